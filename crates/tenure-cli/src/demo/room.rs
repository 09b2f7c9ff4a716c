//! The memory that worker and neighbour share, and the enforcement of its limit.

use super::process::Process;
use std::process::Command;
use std::time::{Duration, Instant};
use tenure_measure::{MemoryCgroup, Unavailable};

/// Set in the environment of the program that systemd-run starts for this one.
const IN_SCOPE: &str = "TENURE_DEMO_IN_SCOPE";
/// How long the stand-in goes on when the worker gives up nothing. As the kernel, it kills only then:
/// a worker that fills the room as fast as it is emptied is no reason.
const GRACE: Duration = Duration::from_millis(500);
/// How often the worker must have tried in vain by then: on a busy machine it may not have run at
/// all.
const TRIES: u64 = 4;
/// The stand-in asks for such a part of the limit more than it needs: the worker goes on to fill the
/// room until the neighbour has taken it.
const HEADROOM: u64 = 64;

/// The source of the limit, chosen once for the whole demo.
#[derive(Clone, Debug)]
pub enum Enforcement {
    /// The kernel, by a memory cgroup.
    Kernel,
    /// This program.
    StandIn {
        /// The reason why the kernel does not enforce it.
        reason: String,
    },
}

impl Enforcement {
    /// Makes a cgroup if that is possible, directly or in a scope of the user's systemd, for which
    /// this program is executed again; otherwise the stand-in.
    pub fn choose(limit: u64, stand_in: bool) -> Enforcement {
        if stand_in {
            return Enforcement::StandIn { reason: "--stand-in was given".into() };
        }
        let refused = match MemoryCgroup::create("probe", limit) {
            Ok(_) => return Enforcement::Kernel,
            Err(refused) => refused,
        };
        let scope = enter_user_scope();
        Enforcement::StandIn { reason: format!("{refused}; {scope}") }
    }

    /// A note for the reader of the output, if one is needed.
    pub fn note(&self) -> Option<String> {
        match self {
            Enforcement::Kernel => None,
            Enforcement::StandIn { reason } => Some(format!(
                "stand-in: no memory cgroup ({reason}), so this program enforces the limit, not \
                 the kernel's reclaim and OOM killer"
            )),
        }
    }
}

/// Executes this program again in a transient scope of the user's systemd, whose part of the cgroup
/// tree belongs to the user. Returns only if that fails, with the reason.
fn enter_user_scope() -> String {
    use std::os::unix::process::CommandExt;
    if std::env::var_os(IN_SCOPE).is_some() {
        return "nor in a scope of the user's systemd".into();
    }
    if rustix::process::geteuid().is_root() {
        return "as root, no scope of a user's systemd would help".into();
    }
    let scope = ["--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--"];
    // A trial, because after exec this program could not fall back.
    match Command::new("systemd-run").args(scope).arg("true").output() {
        Err(e) => return format!("systemd-run: {e}"),
        Ok(done) if !done.status.success() => {
            let said = String::from_utf8_lossy(&done.stderr);
            return format!("systemd-run --user --scope: {}", said.trim().replace('\n', " "));
        }
        Ok(_) => {}
    }
    let Ok(exe) = std::env::current_exe() else {
        return "this program has no path".into();
    };
    let error = Command::new("systemd-run")
        .args(scope)
        .arg(exe)
        .args(std::env::args_os().skip(1))
        .env(IN_SCOPE, "1")
        .exec();
    format!("systemd-run: {error}")
}

/// The room for one run.
#[derive(Debug)]
pub struct Room {
    limit: u64,
    group: Option<MemoryCgroup>,
    /// Since when the worker has given up nothing although memory is short, and its counts then.
    short_since: Option<(Instant, GivenUp)>,
}

/// What the worker has given up so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// How often it has tried.
    pub tries: u64,
    /// Bytes that went.
    pub bytes: u64,
}

/// The stand-in's decision about the requested memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It fits.
    Fits,
    /// The worker must first give up this much.
    Short(u64),
    /// The worker has nothing to give up.
    OutOfMemory,
}

/// A cgroup's counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Bytes charged.
    pub usage: u64,
    /// Of them, pages of files.
    pub file_pages: u64,
}

impl Room {
    /// Makes it.
    pub fn open(enforcement: &Enforcement, limit: u64) -> Result<Room, Unavailable> {
        let group = match enforcement {
            Enforcement::Kernel => Some(MemoryCgroup::create("demo", limit)?),
            Enforcement::StandIn { .. } => None,
        };
        Ok(Room { limit, group, short_since: None })
    }

    /// Puts a process into it.
    pub fn admit(&self, process: &Process) -> std::io::Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.add_pid(process.pid()))
    }

    /// The kernel's counters, if the kernel counts.
    pub fn counters(&self) -> Option<Counters> {
        let group = self.group.as_ref()?;
        // Lazily freed pages are on the list of inactive file pages although they are not file
        // pages; "cache" (v1) and "file" (v2) count only true pages of files.
        let file_pages = group.stat("cache").or_else(|| group.stat("file")).unwrap_or(0);
        Some(Counters { usage: group.usage(), file_pages })
    }

    /// The kernel's own record of the highest usage.
    pub fn peak(&self) -> Option<u64> {
        self.group.as_ref()?.peak()
    }

    /// Processes the kernel has killed here.
    pub fn oom_kills(&self) -> u64 {
        self.group.as_ref().map_or(0, MemoryCgroup::oom_kills)
    }

    /// Returns whether `wanted` bytes fit. With a cgroup the kernel decides when the memory is
    /// touched.
    pub fn judge(&mut self, wanted: u64, now: Instant, given_up: GivenUp) -> Verdict {
        if self.group.is_some() || wanted <= self.limit {
            self.short_since = None;
            return Verdict::Fits;
        }
        let in_vain = self.short_since.filter(|(_, before)| before.bytes == given_up.bytes);
        let (since, before) = *self.short_since.insert(in_vain.unwrap_or((now, given_up)));
        if now - since < GRACE || given_up.tries < before.tries + TRIES {
            Verdict::Short(wanted - self.limit + self.limit / HEADROOM)
        } else {
            Verdict::OutOfMemory
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_kills_when_nothing_is_given_up() {
        let stand_in = Enforcement::StandIn { reason: "test".into() };
        let mut room = Room::open(&stand_in, 100).unwrap();
        let start = Instant::now();
        let mut judge = |wanted, millis, tries, bytes| {
            room.judge(wanted, start + Duration::from_millis(millis), GivenUp { tries, bytes })
        };
        assert_eq!(judge(100, 0, 0, 0), Verdict::Fits);
        assert_eq!(judge(130, 10, 0, 0), Verdict::Short(31));
        assert_eq!(judge(110, 400, 5, 0), Verdict::Short(11));
        assert_eq!(judge(90, 450, 5, 0), Verdict::Fits);
        assert_eq!(judge(101, 500, 5, 0), Verdict::Short(2), "the grace starts anew");
        assert_eq!(judge(101, 1100, 8, 0), Verdict::Short(2), "the worker has not run");
        assert_eq!(judge(101, 1200, 9, 1), Verdict::Short(2), "it gave up something");
        assert_eq!(judge(101, 1699, 13, 1), Verdict::Short(2), "the grace has started anew");
        assert_eq!(judge(101, 1700, 13, 1), Verdict::OutOfMemory);
    }

    #[test]
    fn the_stand_in_says_what_it_is() {
        let note = Enforcement::choose(1 << 20, true).note().unwrap();
        assert!(note.contains("stand-in") && note.contains("not the kernel"), "{note}");
        assert_eq!(Enforcement::Kernel.note(), None);
    }
}
