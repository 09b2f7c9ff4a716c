//! How much memory this process may still take: the machine's, or its cgroup's (v1 and v2).
//!
//! To find the files allocates. To read them does not: code inside an allocator does it.

use super::limits;
use super::memory_group::MemoryGroup;
use super::small_file::{number, number_after, number_of, read};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The room that is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// The smallest limit above this process: of a cgroup, or the machine's memory.
    pub limit: u64,
    /// Bytes that the process could still take before the kernel must reclaim anonymous memory that
    /// is in use. Lazily freed and clean file pages count as room.
    pub free: u64,
}

impl Room {
    /// Whether a memory cgroup has a limit.
    pub fn is_limited(self) -> bool {
        self != NO_LIMIT
    }
}

/// The assumed room of a memory cgroup whose files cannot be seen (a container without
/// `/sys/fs/cgroup`). The cgroup may have any limit, and the kernel kills the process for memory
/// that it keeps beyond it.
pub(crate) const UNSEEN: Room = Room { limit: 256 << 20, free: 64 << 20 };

/// The files of one memory cgroup.
struct Level {
    /// v2 has two limits, `memory.high` and `memory.max`.
    limits: Vec<CString>,
    usage: CString,
    stat: CString,
    inactive: &'static str,
}

/// The paths of the files to read. Making this value allocates, reading does not.
pub(crate) struct Files {
    levels: Vec<Level>,
    /// There may be a limit, but no file shows it.
    unseen: bool,
}

/// The room that is left under the nearest memory cgroup's limit and on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoomNow {
    pub group: Room,
    pub machine: Room,
}

const NO_LIMIT: Room = Room { limit: u64::MAX, free: u64::MAX };

impl Files {
    pub const fn none() -> Files {
        Files { levels: Vec::new(), unseen: false }
    }

    pub fn of(group: Option<&MemoryGroup>) -> Files {
        let Some(group) = group else { return Files::none() };
        let levels = group.levels().filter_map(|path| Level::of(path, group.v2)).collect();
        Files { levels, unseen: group.is_unseen() }
    }

    pub fn read(&self) -> RoomNow {
        let mut group = if self.unseen { UNSEEN } else { NO_LIMIT };
        for level in &self.levels {
            // Not known now, for example because the process may open no more files.
            if let Some(room) = level.read().unwrap_or(Some(UNSEEN)) {
                group.limit = group.limit.min(room.limit);
                group.free = group.free.min(room.free);
            }
        }
        RoomNow { group, machine: machine() }
    }
}

impl Level {
    fn of(path: &Path, v2: bool) -> Option<Level> {
        let file = |name: &str| CString::new(path.join(name).as_os_str().as_bytes()).ok();
        let stat = file("memory.stat")?;
        Some(match v2 {
            true => Level {
                limits: vec![file("memory.high")?, file("memory.max")?],
                usage: file("memory.current")?,
                stat,
                inactive: "inactive_file ",
            },
            false => Level {
                limits: vec![file("memory.limit_in_bytes")?],
                usage: file("memory.usage_in_bytes")?,
                stat,
                inactive: "total_inactive_file ",
            },
        })
    }

    /// Returns the limit. `None`: there is none.
    fn limit(&self) -> Result<Option<u64>, Errno> {
        let mut limit = u64::MAX;
        for path in &self.limits {
            // "max" does not parse, and v1 writes "no limit" as a number near 2^63.
            limit = limit.min(number_in(path)?.unwrap_or(u64::MAX));
        }
        Ok((limit < 1 << 60).then_some(limit))
    }

    /// Returns the room that this level leaves. `None`: it has no limit.
    fn read(&self) -> Result<Option<Room>, Errno> {
        let Some(limit) = self.limit()? else { return Ok(None) };
        let Some(usage) = number_in(&self.usage)? else { return Ok(None) };
        let inactive = number_of(&self.stat, self.inactive).unwrap_or(0);
        Ok(Some(Room { limit, free: limit.saturating_sub(usage.saturating_sub(inactive)) }))
    }
}

/// Returns the machine's memory, and how much of it is free. Allocates nothing. Without `/proc` the
/// system call `sysinfo` tells, which does not count the file pages that the kernel can drop.
fn machine() -> Room {
    // Both keys are among the first three lines.
    let mut buffer = [0u8; 256];
    let text = read(c"/proc/meminfo", &mut buffer).unwrap_or_default();
    let bytes = |key: &str| number_after(text, key).map(|kib| kib << 10);
    if let (Some(limit), Some(free)) = (bytes("MemTotal:"), bytes("MemAvailable:")) {
        return Room { limit, free };
    }
    by_sysinfo()
}

fn by_sysinfo() -> Room {
    limits::machine().map_or(UNSEEN, |found| Room { limit: found.memory, free: found.free })
}

/// Returns the room left under the machine and every cgroup above the process.
pub(crate) fn room(group: Option<&MemoryGroup>) -> Room {
    let RoomNow { group, machine } = Files::of(group).read();
    Room { limit: group.limit.min(machine.limit), free: group.free.min(machine.free) }
}

/// Returns a file that identifies the smallest limit above this process.
pub(crate) fn governing_file(group: Option<&MemoryGroup>) -> PathBuf {
    let files = Files::of(group);
    let levels = files.levels.iter().filter_map(|level| Some((level.limit().ok()??, &level.stat)));
    let smallest = levels.min_by_key(|(limit, _)| *limit);
    match smallest.filter(|(limit, _)| *limit < machine().limit) {
        Some((_, stat)) => PathBuf::from(OsStr::from_bytes(stat.to_bytes())),
        None => PathBuf::from("/proc/meminfo"),
    }
}

/// Returns the resident bytes of this process, from `/proc/self/statm`: 2 µs. The figure is off by
/// up to a batch of pages for each processor. `None`: not known, for example when the main thread
/// has ended.
pub(crate) fn resident_bytes() -> Option<u64> {
    let mut buffer = [0u8; 128];
    let text = read(c"/proc/thread-self/statm", &mut buffer).ok()?;
    let mut fields = text.split(' ');
    let pages = number(fields.nth(1)?).filter(|pages| *pages > 0)?;
    Some(pages.saturating_mul(super::page_size() as u64))
}

/// Returns whether the machine counts writable memory against a fixed limit (`vm.overcommit_memory`
/// 2).
pub(crate) fn commit_is_limited() -> bool {
    let mut buffer = [0u8; 16];
    read(c"/proc/sys/vm/overcommit_memory", &mut buffer).is_ok_and(|text| text.starts_with('2'))
}

/// `None`: there is no such file, or no number in it.
fn number_in(path: &CStr) -> Result<Option<u64>, Errno> {
    let mut buffer = [0u8; 32];
    match read(path, &mut buffer) {
        Ok(text) => Ok(number(text)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory_group::{find_group, own_group};

    #[test]
    fn the_machine_has_as_much_without_proc() {
        let (room, other) = (machine(), by_sysinfo());
        assert_eq!(room.limit, other.limit);
        // Other processes take and free memory between the two.
        assert!((1 << 20..room.limit).contains(&other.free), "{other:?}");
    }

    #[test]
    fn where_the_kernel_tells_nothing_the_machine_has_little() {
        use tenure_testkit::seccomp::{Call, Errno, Filter};
        tenure_testkit::in_child(tenure_testkit::this_test!(), &[], || {
            let filter = Filter::new().refuse(Call::Number(libc::SYS_sysinfo), Errno::PERM);
            tenure_testkit::or_skip!(filter.install_this_thread());
            assert_eq!(by_sysinfo(), UNSEEN);
        });
    }

    #[test]
    fn there_is_room() {
        let room = room(own_group().as_ref());
        assert!(room.limit > 0 && room.free > 0 && room.free <= room.limit);
        let resident = resident_bytes().unwrap();
        assert!(resident > 1 << 20 && resident < room.limit);
        let unseen = find_group(b"0::/\n", b"30 20 0:26 / /nowhere rw - tmpfs none rw\n").unwrap();
        assert!(super::room(Some(&unseen)).free <= UNSEEN.free);
        assert!(Files::of(Some(&unseen)).levels.is_empty(), "of the working directory");
    }
}
