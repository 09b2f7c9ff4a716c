//! The memory cgroup that governs this process (v1 and v2).

use super::mounts;
use super::small_file::{bytes, kib_of};
use super::tid;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The memory cgroup that governs this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryGroup {
    pub path: PathBuf,
    pub root: PathBuf,
    pub v2: bool,
}

/// Bytes of page tables that this process has.
pub(crate) fn page_tables() -> Option<u64> {
    kib_of(c"/proc/thread-self/status", "VmPTE:").ok()
}

/// The memory cgroup whose files can be seen.
pub(crate) fn own_group() -> Option<MemoryGroup> {
    governing_group().filter(|group| !group.is_unseen())
}

/// Finds the memory cgroup from `/proc/self/cgroup` and the mounts. It may be
/// [unseen](MemoryGroup::is_unseen), as without `/proc`. `None`: there is none.
pub(crate) fn governing_group() -> Option<MemoryGroup> {
    let own = match tid::main_has_ended() {
        true => "/proc/thread-self/cgroup",
        false => "/proc/self/cgroup",
    };
    let cgroup = match bytes(own) {
        Ok(cgroup) => cgroup,
        // The kernel has no cgroups.
        Err(Errno::NOENT) if Path::new("/proc/self/stat").exists() => return None,
        Err(_) => return Some(MemoryGroup::unseen(true)),
    };
    let mounts = mounts::table().unwrap_or_default();
    let mut group = find_group(&cgroup, &mounts)?;
    // Every group has this file, but another mount may cover it, or it may be forbidden.
    if !group.path.join("cgroup.procs").exists() {
        group.path = PathBuf::new();
    }
    Some(group)
}

/// Names of groups and of mount points are bytes, not text.
pub(crate) fn find_group(cgroup: &[u8], mounts: &[u8]) -> Option<MemoryGroup> {
    // "4:memory:/a" is a v1 hierarchy; "0::/a" is the v2 one. Where memory is on v1, v2 has no
    // memory group.
    let line = |wanted: fn(&[u8]) -> bool| {
        cgroup.split(|byte| *byte == b'\n').find_map(|line| {
            let mut parts = line.splitn(3, |byte| *byte == b':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            wanted(controllers).then(|| Path::new(OsStr::from_bytes(path)))
        })
    };
    fn has_memory(list: &[u8]) -> bool {
        list.split(|byte| *byte == b',').any(|name| name == b"memory")
    }
    let v1 = line(has_memory);
    let v2 = v1.is_none();
    let path = v1.or_else(|| line(<[u8]>::is_empty))?;
    let of_memory = |mount: &mounts::Mount<'_>| match v2 {
        true => mount.kind == b"cgroup2",
        false => mount.kind == b"cgroup" && has_memory(mount.options),
    };
    let seen = mounts::all(mounts).find(|mount| of_memory(mount) && mount.point().is_absolute());
    Some(match seen {
        Some(mount) => {
            let root = mount.point();
            MemoryGroup { path: below(&root, &mount.root(), path), root, v2 }
        }
        None => MemoryGroup::unseen(v2),
    })
}

/// Returns the directory of a group, where `mount_root` of the hierarchy is mounted at `point`; the
/// point itself if the group lies outside the mount. In a container the mount's root is the
/// container's own group.
fn below(point: &Path, mount_root: &Path, group: &Path) -> PathBuf {
    let relative = group.strip_prefix(mount_root).or_else(|_| group.strip_prefix("/"));
    // A group outside the process's namespace has a name that leads out of the mount.
    let is_inside = |path: &&Path| path.components().all(|part| part != Component::ParentDir);
    match relative.ok().filter(is_inside).map(|relative| point.join(relative)) {
        Some(folder) if folder.is_dir() => folder,
        _ => point.to_owned(),
    }
}

impl MemoryGroup {
    fn unseen(v2: bool) -> MemoryGroup {
        MemoryGroup { path: PathBuf::new(), root: PathBuf::new(), v2 }
    }

    /// Returns whether the group's files cannot be seen.
    pub fn is_unseen(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Returns the group and those above it. Returns none if the group is unseen: an empty path would
    /// lead to files of the working directory.
    pub fn levels(&self) -> impl Iterator<Item = &Path> {
        let seen = !self.is_unseen();
        self.path.ancestors().take_while(move |path| seen && path.starts_with(&self.root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let v1 = find_group(
            b"4:memory:/a/b\n0::/\n",
            b"30 20 0:26 / /nowhere/memory rw - cgroup cgroup rw,memory\n\
             31 20 0:27 / /nowhere/unified rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        assert!(!v1.v2);
        assert_eq!(v1.root, Path::new("/nowhere/memory"));
        let v2 =
            find_group(b"0::/x\n", b"31 20 0:27 / /nowhere rw - cgroup2 cgroup2 rw\n").unwrap();
        assert!(v2.v2);
        assert_eq!(find_group(b"1:cpu:/\n", b""), None);
        // Neither hierarchy is mounted.
        for cgroup in [&b"4:memory:/a/b\n0::/\n"[..], b"0::/\n"] {
            let unseen = find_group(cgroup, b"30 20 0:26 / /nowhere rw - tmpfs none rw\n").unwrap();
            assert!(unseen.is_unseen());
        }
    }

    /// Otherwise tenure would use another group's limit, and the kernel would kill the process for
    /// memory that it keeps beyond the true one.
    #[test]
    fn a_group_is_found_whatever_it_and_its_mount_are_called() {
        let made = tempfile::tempdir().unwrap();
        let point = made.path().join("a mount\\of\tgroups");
        let name = OsStr::from_bytes(b"caf\xe9 x");
        std::fs::create_dir_all(point.join(name)).unwrap();
        let escaped = point.to_str().unwrap().replace('\\', "\\134");
        let escaped = escaped.replace(' ', "\\040").replace('\t', "\\011");
        let find = |mount_root: &str, cgroup: &[u8]| {
            let mounts =
                format!("31 20 0:27 {mount_root} {escaped} rw - cgroup2 cgroup2 rw,nsdelegate\n");
            find_group(cgroup, mounts.as_bytes()).unwrap()
        };
        let group = find("/", b"0::/caf\xe9 x\n");
        assert_eq!((&group.root, group.path), (&point, point.join(name)));
        // The mount shows one group. Another group's name begins with that group's name.
        std::fs::create_dir(point.join("b")).unwrap();
        assert_eq!(find("/pod\\0401", b"0::/pod 1/b\n").path, point.join("b"));
        assert_eq!(find("/pod", b"0::/podb\n").path, point);
        // A group's name that leads out of the mount.
        assert_eq!(find("/", b"0::/../\n").path, point);
    }
}
