//! The place for a new memory cgroup: finds the hierarchy and this process's group in it.

use super::version::Version;
use crate::unavailable::Unavailable;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The directory in which groups are made, and the group to which processes return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub version: Version,
    /// New groups become children of this directory.
    pub dir: PathBuf,
    /// The group to which a process returns that leaves a new group.
    pub home: PathBuf,
}

/// One cgroup mount, as /proc/self/mountinfo names it.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    root: PathBuf,
    point: PathBuf,
}

/// The group to which this process moves if its own group must be empty.
const LEAF: &str = "tenure-self";

/// Finds the place for this process, preparing it where cgroup v2 needs that.
pub(super) fn find() -> Result<Place, Unavailable> {
    // One thread at a time: the preparation takes several steps.
    static PREPARING: Mutex<()> = Mutex::new(());
    let _alone = PREPARING.lock();
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|e| Unavailable::new(format!("cannot read /proc/self/mountinfo: {e}")))?;
    let own = fs::read_to_string("/proc/self/cgroup")
        .map_err(|e| Unavailable::new(format!("cannot read /proc/self/cgroup: {e}")))?;
    let (mount, path) = locate(&mounts, &own).ok_or_else(|| {
        Unavailable::new("no cgroup hierarchy with the memory controller is mounted here")
    })?;
    let group = directory(&mount, &path);
    match mount.version {
        Version::V1 => {
            writable(&group, Version::V1)?;
            Ok(Place { version: Version::V1, dir: group.clone(), home: group })
        }
        Version::V2 => find_v2(&group, &mount.point),
    }
}

/// Selects the hierarchy that has the memory controller and this process's path in it. A controller
/// belongs to one hierarchy only. So if a version 1 `memory` mount exists, version 2 does not have
/// it.
fn locate(mountinfo: &str, own: &str) -> Option<(Mount, PathBuf)> {
    let v1_path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        controllers.split(',').any(|c| c == "memory").then(|| PathBuf::from(path))
    });
    let v2_path = own.lines().find_map(|line| line.strip_prefix("0::").map(PathBuf::from));
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(parse_mount).collect();
    let take = |version| mounts.iter().position(|m| m.version == version);
    let (at, path) = match (take(Version::V1), v1_path) {
        (Some(at), Some(path)) => (at, path),
        _ => (take(Version::V2)?, v2_path?),
    };
    mounts.into_iter().nth(at).map(|m| (m, path))
}

/// Parses one mountinfo line if it is a cgroup2 mount or a version 1 mount of `memory`.
fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let mut after = after.split(' ');
    let version = match after.next()? {
        "cgroup2" => Version::V2,
        "cgroup" if after.nth(1)?.split(',').any(|o| o == "memory") => Version::V1,
        _ => return None,
    };
    Some(Mount { version, root, point })
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut out = field.to_owned();
    for (code, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(code, plain);
    }
    PathBuf::from(out)
}

/// The directory of this process's group. A container often sees the host's path in
/// /proc/self/cgroup, while the mount shows only the part below the mount's root. So the root is
/// removed from the path.
fn directory(mount: &Mount, path: &Path) -> PathBuf {
    let below = path.strip_prefix(&mount.root).unwrap_or(path);
    let below = below.strip_prefix("/").unwrap_or(below);
    if below.as_os_str().is_empty() {
        mount.point.clone()
    } else {
        mount.point.join(below)
    }
}

fn writable(dir: &Path, version: Version) -> Result<(), Unavailable> {
    // access(2) rather than a trial mkdir: a refusal leaves nothing to undo.
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).map_err(
        |e| {
            let uid = rustix::process::geteuid().as_raw();
            let remedy = match version {
                Version::V1 => "run as root",
                Version::V2 => "run as root, or under `systemd-run --user --scope`",
            };
            let at = dir.display();
            Unavailable::new(format!(
                "memory cgroup {version} at {at} is not writable by uid {uid} ({e}); {remedy}"
            ))
        },
    )
}

fn lists_memory(dir: &Path, file: &str) -> bool {
    fs::read_to_string(dir.join(file))
        .is_ok_and(|text| text.split_whitespace().any(|word| word == "memory"))
}

/// Version 2: a group that passes controllers to children may hold no processes itself (the root
/// excepted). The own group holds this process, so it is seldom the place. In order of least
/// intrusion: the own group if it already passes `memory` on, a sibling under a parent that does,
/// and last the own group after moving this process into a leaf.
fn find_v2(own: &Path, mount_point: &Path) -> Result<Place, Unavailable> {
    let v2 = Version::V2;
    let place = |dir: &Path, home: &Path| Place { version: v2, dir: dir.into(), home: home.into() };
    if lists_memory(own, "cgroup.subtree_control") {
        writable(own, v2)?;
        return Ok(place(own, own));
    }
    if own != mount_point {
        if let Some(parent) = own.parent() {
            // Moving a process needs write access to cgroup.procs of the common ancestor.
            let movable =
                rustix::fs::access(parent.join("cgroup.procs"), rustix::fs::Access::WRITE_OK);
            if lists_memory(parent, "cgroup.subtree_control")
                && writable(parent, v2).is_ok()
                && movable.is_ok()
            {
                return Ok(place(parent, own));
            }
        }
    }
    writable(own, v2)?;
    if !lists_memory(own, "cgroup.controllers") {
        return Err(Unavailable::new(format!(
            "the memory controller is not handed to cgroup v2 {}; \
             run under `systemd-run --user --scope -p Delegate=yes`",
            own.display()
        )));
    }
    if enable(own).is_ok() {
        return Ok(place(own, own));
    }
    // EBUSY: the group holds processes. This process may move its own; the next try shows whether
    // others are left.
    let leaf = own.join(LEAF);
    match fs::create_dir(&leaf) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(refused(&leaf, &e)),
        _ => {}
    }
    let (ours, others): (Vec<u32>, Vec<u32>) =
        read_procs(own).into_iter().partition(|pid| descends_from_us(*pid));
    if !others.is_empty() {
        let _ = fs::remove_dir(&leaf);
        return Err(Unavailable::new(format!(
            "cgroup v2 {} holds {} other processes, so it cannot hand out the memory controller; \
             move them into a group below it, or run under `systemd-run --user --scope`",
            own.display(),
            others.len(),
        )));
    }
    for pid in ours {
        match fs::write(leaf.join("cgroup.procs"), pid.to_string()) {
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => return Err(refused(&leaf, &e)),
            _ => {}
        }
    }
    enable(own).map_err(|e| refused(own, &e))?;
    Ok(place(own, &leaf))
}

fn enable(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.subtree_control"), "+memory")
}

/// The processes in a group.
pub(super) fn read_procs(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    // A process of another pid namespace is listed as 0, which cannot be written to a group.
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
}

/// Whether a process is this one or a descendant of it.
fn descends_from_us(pid: u32) -> bool {
    let me = std::process::id();
    let parent = |pid: &u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    std::iter::successors(Some(pid), parent).any(|ancestor| ancestor == me)
}

fn refused(at: &Path, e: &io::Error) -> Unavailable {
    Unavailable::new(format!("cgroup v2 at {} cannot be prepared: {e}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn hybrid_hosts_use_the_version_1_memory_hierarchy() {
        let own = "9:name=systemd:/\n4:memory:/jobs/a\n0::/";
        let (mount, path) = locate(V1, own).expect("memory is mounted in the sample");
        assert_eq!(mount.version, Version::V1);
        assert_eq!(directory(&mount, &path), Path::new("/sys/fs/cgroup/memory/jobs/a"));
    }

    #[test]
    fn unified_hosts_use_version_2() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let own = "0::/user.slice/user-1000.slice/session-3.scope";
        let (mount, path) = locate(mounts, own).expect("cgroup2 is mounted in the sample");
        assert_eq!(mount.version, Version::V2);
        let want = "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope";
        assert_eq!(directory(&mount, &path), Path::new(want));
    }

    #[test]
    fn a_container_path_is_taken_relative_to_the_mounted_root() {
        let mounts = "35 31 0:32 /docker/ab /mnt/a\\040b ro - cgroup cgroup rw,memory";
        let (mount, path) = locate(mounts, "4:memory:/docker/ab/x").expect("memory mount");
        assert_eq!(directory(&mount, &path), Path::new("/mnt/a b/x"));
        let (mount, path) = locate(mounts, "4:memory:/docker/ab").expect("memory mount");
        assert_eq!(directory(&mount, &path), Path::new("/mnt/a b"));
    }

    #[test]
    fn no_memory_hierarchy_is_no_place() {
        assert_eq!(locate("32 31 0:29 / /c rw - cgroup cgroup rw,cpu", "1:cpu:/"), None);
    }
}
