//! The memory that worker and neighbour share, and the enforcement of its limit.

use super::process::Process;
use std::process::Command;
use std::time::{Duration, Instant};
use tenure_measure::{MemoryCgroup, Unavailable};

/// Set in the environment of the program that systemd-run starts for this one.
const IN_SCOPE: &str = "TENURE_DEMO_IN_SCOPE";
/// How long the stand-in lets a worker give up memory before it kills, as the kernel tries to
/// reclaim before it kills.
const GRACE: Duration = Duration::from_millis(500);
/// How often the worker must have tried by then: on a busy machine it may not have run at all.
const TRIES: u64 = 4;

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
    /// Since when the stand-in has been short of memory, and how often the worker had given up some
    /// by then.
    short_since: Option<(Instant, u64)>,
}

/// The stand-in's decision about the requested memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It fits.
    Fits,
    /// The worker must first give up this much.
    Short(u64),
    /// The worker did not give it up in time.
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

    /// Returns whether `wanted` bytes fit, after the worker has given up some `gave_up` times so
    /// far. With a cgroup the kernel decides when the memory is touched.
    pub fn judge(&mut self, wanted: u64, now: Instant, gave_up: u64) -> Verdict {
        if self.group.is_some() || wanted <= self.limit {
            self.short_since = None;
            return Verdict::Fits;
        }
        let (since, before) = *self.short_since.get_or_insert((now, gave_up));
        if now - since < GRACE || gave_up < before + TRIES {
            Verdict::Short(wanted - self.limit)
        } else {
            Verdict::OutOfMemory
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_waits_before_it_kills() {
        let stand_in = Enforcement::StandIn { reason: "test".into() };
        let mut room = Room::open(&stand_in, 100).unwrap();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(room.judge(100, at(0), 0), Verdict::Fits);
        assert_eq!(room.judge(130, at(10), 0), Verdict::Short(30));
        assert_eq!(room.judge(110, at(400), 5), Verdict::Short(10));
        assert_eq!(room.judge(90, at(450), 5), Verdict::Fits);
        assert_eq!(room.judge(101, at(500), 5), Verdict::Short(1), "the grace starts anew");
        assert_eq!(room.judge(101, at(1100), 8), Verdict::Short(1), "the worker has not run");
        assert_eq!(room.judge(101, at(1100), 9), Verdict::OutOfMemory);
    }

    #[test]
    fn the_stand_in_says_what_it_is() {
        let note = Enforcement::choose(1 << 20, true).note().unwrap();
        assert!(note.contains("stand-in") && note.contains("not the kernel"), "{note}");
        assert_eq!(Enforcement::Kernel.note(), None);
    }
}
