//! Processes and their descendants, and the facts in `/proc/PID/stat`.

use std::collections::BTreeMap;
use std::io;
use tenure_command::call::failed;

/// A part of `/proc/PID/stat`.
#[derive(Clone, Debug, Default)]
pub struct Stat {
    /// The program's name, at most 15 bytes.
    pub name: String,
    /// Its main thread has ended; if that was its last one, its parent has not waited for it.
    pub is_zombie: bool,
    /// The number of the parent.
    pub parent: u32,
    /// Page faults so far that read nothing.
    pub minor_faults: u64,
    /// Page faults so far that waited for a device.
    pub major_faults: u64,
    /// When it started, in ticks of the kernel: with the number it distinguishes processes.
    pub started: u64,
    /// Bytes of addresses.
    pub size: u64,
    /// Bytes in memory.
    pub resident: u64,
}

impl Stat {
    /// Reads that of one process.
    pub fn read(pid: u32) -> io::Result<Stat> {
        let bytes = std::fs::read(format!("/proc/{pid}/stat"))?;
        let text = String::from_utf8_lossy(&bytes);
        Stat::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the line. The name is in parentheses, and may contain parentheses.
    pub fn parse(text: &str) -> Option<Stat> {
        let (head, rest) = text.rsplit_once(')')?;
        let name = head.split_once('(')?.1;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Stat {
            name: name.to_owned(),
            is_zombie: fields.first() == Some(&"Z"),
            parent: u32::try_from(number(1)?).ok()?,
            minor_faults: number(7)?,
            major_faults: number(9)?,
            started: number(19)?,
            size: number(20)?,
            resident: number(21)?.saturating_mul(rustix::param::page_size() as u64),
        })
    }
}

/// The error where no process can be read.
pub const NO_PROC: &str = "/proc is not mounted: mount it (mount -t proc proc /proc)";

/// The numbers of all processes that this one can see.
pub fn all() -> io::Result<Vec<u32>> {
    let mut all: Vec<u32> = std::fs::read_dir("/proc")
        .map_err(|error| io::Error::new(error.kind(), format!("/proc: {}", failed("open", error))))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    if all.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, NO_PROC));
    }
    all.sort_unstable();
    Ok(all)
}

/// The processes and all their descendants, each once, parents first.
pub fn with_descendants(pids: &[u32]) -> io::Result<Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in all()? {
        // A process that has ended meanwhile has no children.
        if let Ok(stat) = Stat::read(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found: Vec<u32> = Vec::new();
    for pid in pids {
        let mut next = vec![*pid];
        while let Some(pid) = next.pop() {
            if found.contains(&pid) {
                continue;
            }
            found.push(pid);
            next.extend(children.get(&pid).into_iter().flatten().rev());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_and_spaces_are_read() {
        let text = "7 (a) (b c) S 3 7 7 0 -1 0 11 0 13 0 1 2 0 0 20 0 1 0 999 4096 5 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent), ("a) (b c", 3));
        assert_eq!((stat.minor_faults, stat.major_faults), (11, 13));
        assert_eq!((stat.started, stat.size), (999, 4096));
        assert_eq!(stat.resident, 5 * rustix::param::page_size() as u64);
        assert!(Stat::parse("7 (x").is_none());
        let vast = text.replace(" 5 0", " 18446744073709551615 0");
        assert_eq!(Stat::parse(&vast).unwrap().resident, u64::MAX);
    }

    #[test]
    fn this_process_is_a_descendant_of_its_parent() {
        let own = std::process::id();
        let parent = Stat::read(own).unwrap().parent;
        let family = with_descendants(&[parent, own]).unwrap();
        assert_eq!(family.first(), Some(&parent));
        assert_eq!(family.iter().filter(|pid| **pid == own).count(), 1);
    }
}
