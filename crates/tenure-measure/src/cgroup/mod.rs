//! A memory-limited cgroup of either version, made for one test or demo and removed with it.

mod place;
mod version;

use crate::unavailable::Unavailable;
use place::{read_procs, Place};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Once;
use std::thread::sleep;
use std::time::Duration;

pub use version::Version;

/// A memory cgroup with a limit that this process makes, removed on drop.
///
/// Processes in it are moved back to where this process lives before the removal; none is killed.
/// A forked child that drops its copy removes nothing.
#[derive(Debug)]
pub struct MemoryCgroup {
    version: Version,
    dir: PathBuf,
    home: PathBuf,
    creator: u32,
    /// Whether swap stays shut, so that `set_limit` also moves the swap limit.
    no_swap: AtomicBool,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);
const PREFIX: &str = "tenure-";

impl MemoryCgroup {
    /// Makes a group named after `name_hint` with room for `limit_bytes`, and no swap.
    pub fn create(name_hint: &str, limit_bytes: u64) -> Result<MemoryCgroup, Unavailable> {
        let place = place::find()?;
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| {
            sweep_in(&place);
        });
        let hint: String =
            name_hint.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(60).collect();
        let creator = std::process::id();
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let dir = place.dir.join(format!("{PREFIX}{}-{creator}-{n}-{hint}", pid_namespace()));
        let version = place.version;
        fs::create_dir(&dir).map_err(|e| {
            let at = place.dir.display();
            Unavailable::new(format!("cannot make a memory cgroup {version} in {at}: {e}"))
        })?;
        let no_swap = AtomicBool::new(true);
        let group = MemoryCgroup { version, dir, home: place.home, creator, no_swap };
        group.set_limit(limit_bytes).map_err(|e| {
            let at = group.dir.display();
            Unavailable::new(format!("cannot limit the memory cgroup {version} at {at}: {e}"))
        })?;
        Ok(group)
    }

    /// Lets the group swap without a limit of its own; `create` shuts swap out.
    pub fn allow_swap(&self) -> io::Result<()> {
        self.no_swap.store(false, Ordering::Relaxed);
        match self.version {
            Version::V1 => {
                // The kernel's default.
                self.write("memory.swappiness", "60")?;
                if self.has("memory.memsw.limit_in_bytes") {
                    self.write("memory.memsw.limit_in_bytes", "-1")?;
                }
                Ok(())
            }
            Version::V2 => self.write("memory.swap.max", "max"),
        }
    }

    /// Changes the limit. A limit below the usage makes the kernel reclaim first. For memory that
    /// cannot be reclaimed, v1 returns EBUSY and v2 kills processes.
    pub fn set_limit(&self, bytes: u64) -> io::Result<()> {
        let text = bytes.to_string();
        match self.version {
            Version::V2 => {
                if self.no_swap.load(Ordering::Relaxed) && self.has("memory.swap.max") {
                    self.write("memory.swap.max", "0")?;
                }
                self.write("memory.max", &text)
            }
            Version::V1 => {
                let (limit, memsw) = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
                if !self.no_swap.load(Ordering::Relaxed) {
                    return self.write(limit, &text);
                }
                // With swappiness 0 the kernel reclaims a v1 group at its limit without swapping.
                // It still reclaims lazily freed pages, which are on the file list.
                self.write("memory.swappiness", "0")?;
                if !self.has(memsw) {
                    return self.write(limit, &text);
                }
                // memsw, memory and swap together, bounds how much global reclaim may swap. It has
                // one page more than the limit, so that charges reach the limit first: newer
                // kernels count failures (failcnt) only there.
                let page = rustix::param::page_size() as u64;
                let both = bytes.saturating_add(page).to_string();
                // v1 requires limit <= memsw at every moment.
                if bytes >= self.limit()? {
                    self.write(memsw, &both)?;
                    self.write(limit, &text)
                } else {
                    self.write(limit, &text)?;
                    self.write(memsw, &both)
                }
            }
        }
    }

    /// Sets `memory.high`, the throttling limit of version 2.
    pub fn set_high(&self, bytes: u64) -> io::Result<()> {
        match self.version {
            Version::V2 => self.write("memory.high", &bytes.to_string()),
            Version::V1 => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "cgroup v1 has no throttling limit (memory.high)",
            )),
        }
    }

    /// The limit in bytes; `u64::MAX` when there is none.
    pub fn limit(&self) -> io::Result<u64> {
        let text = self.read(match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        })?;
        match text.trim() {
            "max" => Ok(u64::MAX),
            n => n.parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
        }
    }

    /// Bytes charged to the group now; 0 if the group is gone.
    pub fn usage(&self) -> u64 {
        self.number(match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        })
        .unwrap_or(0)
    }

    /// The highest usage so far, where the kernel keeps it (v2: from 5.19).
    pub fn peak(&self) -> Option<u64> {
        self.number(match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        })
    }

    /// One line of `memory.stat`, by the kernel's own key, which differs between the versions.
    pub fn stat(&self, key: &str) -> Option<u64> {
        self.keyed("memory.stat", key)
    }

    /// Bytes on the inactive file list, where lazily freed anonymous pages are put as well.
    pub fn inactive_file(&self) -> u64 {
        self.stat("inactive_file").unwrap_or(0)
    }

    /// Bytes of anonymous memory, huge pages included.
    pub fn anon(&self) -> u64 {
        let key = match self.version {
            Version::V1 => "rss",
            Version::V2 => "anon",
        };
        self.stat(key).unwrap_or(0)
    }

    /// How many processes of this group the kernel has killed for lack of memory.
    pub fn oom_kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        self.keyed(file, "oom_kill").unwrap_or(0)
    }

    /// How often a charge ran into the limit (v1 `failcnt`, v2 `max` events).
    pub fn limit_hits(&self) -> u64 {
        match self.version {
            Version::V1 => self.number("memory.failcnt"),
            Version::V2 => self.keyed("memory.events", "max"),
        }
        .unwrap_or(0)
    }

    /// How often processes were throttled at `memory.high`; `None` on version 1.
    pub fn high_events(&self) -> Option<u64> {
        match self.version {
            Version::V1 => None,
            Version::V2 => self.keyed("memory.events", "high"),
        }
    }

    /// Puts a process, with all its threads, into the group. Pages it already has stay charged
    /// to the group it had them in.
    pub fn add_pid(&self, pid: u32) -> io::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Puts the calling process into the group.
    pub fn enter_self(&self) -> io::Result<()> {
        self.write("cgroup.procs", "0")
    }

    /// Moves the calling process back to its former group.
    pub fn leave_self(&self) -> io::Result<()> {
        fs::write(self.home.join("cgroup.procs"), "0")
    }

    /// The processes in the group.
    pub fn procs(&self) -> Vec<u32> {
        read_procs(&self.dir)
    }

    /// The version of the interface behind this group.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The group's directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Removes groups that dead processes have left behind; returns how many.
    ///
    /// Removes only groups with this kit's names that a dead process has made in this pid
    /// namespace, and that hold no process. `create` calls it once in each process.
    pub fn sweep() -> Result<usize, Unavailable> {
        place::find().map(|place| sweep_in(&place))
    }

    fn has(&self, file: &str) -> bool {
        self.dir.join(file).exists()
    }

    fn read(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(self.dir.join(file))
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.dir.join(file), text)
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.read(file).ok()?.trim().parse().ok()
    }

    fn keyed(&self, file: &str, key: &str) -> Option<u64> {
        keyed_value(&self.read(file).ok()?, key)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        if std::process::id() != self.creator {
            return;
        }
        // An exiting process keeps its group busy until the kernel has freed its memory, which
        // takes a while for a few hundred MiB, and more than 2 s beside other load.
        for _ in 0..1000 {
            for pid in self.procs() {
                let _ = fs::write(self.home.join("cgroup.procs"), pid.to_string());
            }
            match fs::remove_dir(&self.dir) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

fn keyed_value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The pid namespace's number, part of a group's name: a pid has no meaning outside its namespace.
fn pid_namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

fn sweep_in(place: &Place) -> usize {
    let prefix = format!("{PREFIX}{}-", pid_namespace());
    let Ok(entries) = fs::read_dir(&place.dir) else {
        return 0;
    };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|n| n.strip_prefix(&prefix)?.split('-').next());
            pid.and_then(|p| p.parse().ok()).is_some_and(is_dead)
                && fs::remove_dir(entry.path()).is_ok()
        })
        .count()
}

fn is_dead(pid: i32) -> bool {
    rustix::process::Pid::from_raw(pid)
        .is_some_and(|p| rustix::process::test_kill_process(p) == Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_values_match_whole_keys() {
        let v2 = "low 0\nhigh 3\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(keyed_value(v2, "oom_kill"), Some(1));
        assert_eq!(keyed_value(v2, "oom"), Some(2));
        assert_eq!(keyed_value(v2, "oom_group"), None);
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n";
        assert_eq!(keyed_value(v1, "oom_kill"), Some(5));
    }
}
