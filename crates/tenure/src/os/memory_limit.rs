//! How much memory this process may still take: the machine's, or its cgroup's (v1 and v2).

use super::small_file::{kib_of, text};
use std::path::{Path, PathBuf};

/// The memory cgroup that governs this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryGroup {
    pub path: PathBuf,
    pub root: PathBuf,
    pub v2: bool,
}

/// What is assumed of a memory cgroup whose files cannot be seen (a container without `/sys/fs/cgroup`): it may have
/// any limit, and memory that is kept beyond it has the process killed.
pub(crate) const UNSEEN: Room = Room { limit: 256 << 20, free: 64 << 20 };

/// What is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// The smallest limit above this process: of a cgroup, or the machine's memory.
    pub limit: u64,
    /// What could still be taken before the kernel must reclaim anonymous memory that is in use.
    /// Lazily freed and clean file pages count as room.
    pub free: u64,
}

/// Bytes of page tables that this process has.
pub(crate) fn page_tables() -> Option<u64> {
    kib_of(c"/proc/thread-self/status", "VmPTE:").ok()
}

/// The memory cgroup whose files can be seen.
pub(crate) fn own_group() -> Option<MemoryGroup> {
    governing_group().filter(|group| !group.is_unseen())
}

/// Finds the memory cgroup from `/proc/self/cgroup` and `/proc/self/mountinfo`. It may be
/// [unseen](MemoryGroup::is_unseen); `None`: there is none.
pub(crate) fn governing_group() -> Option<MemoryGroup> {
    let cgroup = text("/proc/self/cgroup").ok()?;
    let mounts = super::mounts::table().unwrap_or_default();
    let mut group = find_group(&cgroup, &mounts)?;
    // Every group has this file; it may be covered by another mount, or forbidden.
    if !group.path.join("cgroup.procs").exists() {
        group.path = PathBuf::new();
    }
    Some(group)
}

fn find_group(cgroup: &str, mounts: &str) -> Option<MemoryGroup> {
    // "4:memory:/a" is a v1 hierarchy; "0::/a" the v2 one. Where memory is on v1, v2 has none.
    let line = |wanted: fn(&str) -> bool| {
        cgroup.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            wanted(controllers).then(|| path.to_owned())
        })
    };
    let v1 = line(|c| c.split(',').any(|c| c == "memory"));
    let v2 = v1.is_none();
    let path = v1.or_else(|| line(str::is_empty))?;
    // mountinfo: id parent dev root mountpoint options - type source superoptions
    let seen = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        let (mount_root, point) = (*fields.get(3)?, *fields.get(4)?);
        let mut after = after.split(' ');
        let fits = if v2 {
            after.next()? == "cgroup2"
        } else {
            after.next()? == "cgroup" && after.nth(1)?.split(',').any(|o| o == "memory")
        };
        if !fits {
            return None;
        }
        // In a container the mount's root is the container's own group.
        let below = path.strip_prefix(mount_root.trim_end_matches('/')).unwrap_or(&path);
        let root = PathBuf::from(point);
        let full = root.join(below.trim_start_matches('/'));
        let path = if full.is_dir() { full } else { root.clone() };
        Some(MemoryGroup { path, root, v2 })
    });
    Some(seen.unwrap_or(MemoryGroup { path: PathBuf::new(), root: PathBuf::new(), v2 }))
}

fn number(path: &Path) -> Option<u64> {
    text(path).ok()?.trim().parse().ok()
}

fn stat(path: &Path, key: &str) -> Option<u64> {
    let text = text(path.join("memory.stat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

impl MemoryGroup {
    /// Whether its files cannot be seen.
    pub fn is_unseen(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    fn room_of(&self, path: &Path) -> Option<Room> {
        let (limit, usage, inactive) = if self.v2 {
            // "max" does not parse: no limit at this level.
            let limit = [number(&path.join("memory.high")), number(&path.join("memory.max"))];
            let limit = limit.into_iter().flatten().min()?;
            (limit, number(&path.join("memory.current"))?, stat(path, "inactive_file "))
        } else {
            let limit = number(&path.join("memory.limit_in_bytes"))?;
            let inactive = stat(path, "total_inactive_file ");
            (limit, number(&path.join("memory.usage_in_bytes"))?, inactive)
        };
        // v1 writes "no limit" as a number near 2^63.
        (limit < 1 << 60).then(|| Room {
            limit,
            free: limit.saturating_sub(usage.saturating_sub(inactive.unwrap_or(0))),
        })
    }
}

/// The room left under the machine and every cgroup above the process.
pub(crate) fn room(group: Option<&MemoryGroup>) -> Room {
    let mut room = machine_room().unwrap_or(Room { limit: u64::MAX, free: u64::MAX });
    if let Some(group) = group {
        if group.is_unseen() {
            room.limit = room.limit.min(UNSEEN.limit);
            room.free = room.free.min(UNSEEN.free);
        }
        for path in group.path.ancestors() {
            if let Some(level) = group.room_of(path) {
                room.limit = room.limit.min(level.limit);
                room.free = room.free.min(level.free);
            }
            if path == group.root {
                break;
            }
        }
    }
    room
}

fn machine_room() -> Option<Room> {
    let text = text("/proc/meminfo").ok()?;
    let kib = |key: &str| {
        text.lines().find_map(|line| {
            line.strip_prefix(key)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        })
    };
    Some(Room { limit: kib("MemTotal:")? << 10, free: kib("MemAvailable:")? << 10 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let v1 = find_group(
            "4:memory:/a/b\n0::/\n",
            "30 20 0:26 / /nowhere/memory rw - cgroup cgroup rw,memory\n\
             31 20 0:27 / /nowhere/unified rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        assert!(!v1.v2);
        assert_eq!(v1.root, Path::new("/nowhere/memory"));
        let v2 = find_group("0::/x\n", "31 20 0:27 / /nowhere rw - cgroup2 cgroup2 rw\n").unwrap();
        assert!(v2.v2);
        assert_eq!(find_group("1:cpu:/\n", ""), None);
        // Neither is mounted.
        for cgroup in ["4:memory:/a/b\n0::/\n", "0::/\n"] {
            let unseen = find_group(cgroup, "30 20 0:26 / /nowhere rw - tmpfs none rw\n").unwrap();
            assert!(unseen.is_unseen());
            assert!(room(Some(&unseen)).free <= UNSEEN.free);
        }
    }

    #[test]
    fn the_machine_has_room() {
        let room = room(own_group().as_ref());
        assert!(room.limit > 0 && room.free > 0 && room.free <= room.limit.max(room.free));
    }
}
