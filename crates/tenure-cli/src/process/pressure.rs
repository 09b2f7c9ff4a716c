//! The shortage of memory: of the machine, and of a process's cgroup.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A shortage of memory makes tasks wait: the share of the last ten seconds in which some tasks
/// waited, or all. In percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// Some task waited.
    pub some: f64,
    /// All tasks waited.
    pub full: f64,
}

impl Stalls {
    /// Those of the machine. `None`: the kernel does not count them.
    pub fn of_machine() -> Option<Stalls> {
        Stalls::parse(&std::fs::read_to_string("/proc/pressure/memory").ok()?)
    }

    /// Parses such a file. `None`: it is no such file.
    pub fn parse(text: &str) -> Option<Stalls> {
        let of = |kind: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
            let value = line.split_ascii_whitespace().find_map(|w| w.strip_prefix("avg10="))?;
            value.parse().ok().filter(|percent: &f64| percent.is_finite())
        };
        Some(Stalls { some: of("some ")?, full: of("full ").unwrap_or(0.0) })
    }
}

/// Bytes of memory of the machine: available without swapping, and all.
pub fn machine() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        let number = line.trim_end_matches(" kB").trim().parse::<u64>();
        number.unwrap_or(0) << 10
    };
    (of("MemAvailable:"), of("MemTotal:"))
}

/// A process's memory cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Bytes that it has.
    pub used: u64,
    /// Its limit in bytes, if it has one.
    pub limit: Option<u64>,
    /// Its stalls; version 2 only.
    pub stalls: Option<Stalls>,
}

/// The files with a group's figures, for a version of cgroups.
#[derive(Debug)]
pub struct Version {
    tops: &'static [&'static str],
    used: &'static str,
    limit: &'static str,
}

const V1: Version =
    Version { tops: &["memory"], used: "memory.usage_in_bytes", limit: "memory.limit_in_bytes" };
const V2: Version = Version { tops: &["", "unified"], used: "memory.current", limit: "memory.max" };

impl Group {
    /// The group of a process. `None`: this process cannot see it.
    pub fn of(pid: u32) -> Option<Group> {
        let text = std::fs::read(format!("/proc/{pid}/cgroup")).ok()?;
        Group::named_in(&text).find_map(|(version, name)| {
            let relative = name.strip_prefix("/").ok()?;
            version.tops.iter().find_map(|top| {
                let folder = Path::new("/sys/fs/cgroup").join(top).join(relative);
                let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
                let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
                Some(Group {
                    name: name.to_string_lossy().into_owned(),
                    used: number(version.used)?,
                    // Version 1 has a huge number if there is no limit.
                    limit: number(version.limit).filter(|limit| *limit < 1 << 60),
                    stalls: read("memory.pressure").and_then(|text| Stalls::parse(&text)),
                })
            })
        })
    }

    /// The groups of `/proc/PID/cgroup` that may have memory's figures. Names are bytes.
    pub fn named_in(text: &[u8]) -> impl Iterator<Item = (&'static Version, &Path)> {
        text.split(|byte| *byte == b'\n').filter_map(|line| {
            let mut fields = line.splitn(3, |byte| *byte == b':').skip(1);
            let (controllers, name) = (fields.next()?, fields.next()?);
            let mut names = controllers.split(|byte| *byte == b',');
            let version = match controllers {
                b"" => &V2,
                _ if names.any(|name| name == b"memory") => &V1,
                _ => return None,
            };
            Some((version, Path::new(OsStr::from_bytes(name))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_read() {
        let text =
            "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25 avg60=0 total=2\n";
        assert_eq!(Stalls::parse(text), Some(Stalls { some: 1.5, full: 0.25 }));
        assert_eq!(Stalls::parse(""), None);
        assert_eq!(Stalls::parse("some avg10=nan total=1\n"), None);
    }

    #[test]
    fn groups_may_be_called_anything() {
        let named = |text: &[u8]| {
            let groups =
                Group::named_in(text).map(|(version, name)| (version.used, name.to_owned()));
            groups.collect::<Vec<_>>()
        };
        let caf = Path::new(OsStr::from_bytes(b"/caf\xe9 a:b")).to_owned();
        let v1 = named(b"5:cpu,cpuacct:/\n4:hugetlb,memory:/caf\xe9 a:b\n0::/x\n");
        assert_eq!(v1, [(V1.used, caf), (V2.used, Path::new("/x").to_owned())]);
        assert_eq!(named(b"\n:\n0:\n1:name=systemd:/\n"), []);
    }

    #[test]
    fn the_machine_has_memory() {
        let (available, all) = machine();
        assert!(0 < available && available <= all);
    }
}
