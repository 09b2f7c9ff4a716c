//! The needs of a run, printed beforehand, and its changes on a smaller machine.

use crate::Options;
use rustix::fs::statvfs;
use std::fmt::Write as _;
use std::path::Path;
use tenure::populate::{Access, Populate};

const MIB: u64 = 1 << 20;

/// The needs of one bench at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Needs {
    memory: u64,
    disk: u64,
}

/// The available resources.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Room {
    memory: u64,
    disk: u64,
}

/// The plan of one bench.
pub(crate) struct Plan {
    /// The options, with a size that fits.
    pub options: Options,
    /// The changes, with reasons.
    pub changes: Vec<String>,
    /// Whether it can be run at all.
    pub fits: bool,
    needs: Needs,
    room: Room,
}

/// The plans of these benches, in order.
pub(crate) fn plan<'n>(names: impl Iterator<Item = &'n str>, options: &Options) -> Vec<Plan> {
    let room = Room { memory: memory_room(), disk: disk_room(&options.dir()) };
    names.map(|name| fitted(name, options, room)).collect()
}

/// About how much a bench needs, for a size.
fn needs(name: &str, options: &Options, size: u64) -> Needs {
    let memory = |full: u64, short: u64, quick: u64| {
        options.scaled(full as usize, short as usize, quick as usize) as u64 * MIB
    };
    match name {
        // All of it locked, page tables, and memory for other programs meanwhile.
        "lock-on-fault" => Needs { memory: size / 5 * 6, disk: size + 64 * MIB },
        "populate" => Needs { memory: size + 64 * MIB, disk: size },
        // The file is in the page cache, which the kernel can shrink.
        "unmap" => Needs { memory: size + 256 * MIB, disk: size.min(1 << 30) },
        "cache" => Needs { memory: memory(1200, 1200, 150), disk: 0 },
        "hit-ratio" => Needs { memory: memory(2000, 700, 150), disk: 0 },
        "lazy-free" => Needs { memory: memory(1300, 1300, 400), disk: MIB },
        "programs" => Needs { memory: memory(1000, 1000, 400), disk: 64 * MIB },
        "shared" => Needs { memory: memory(800, 800, 250), disk: 0 },
        "volatile" => Needs { memory: memory(1300, 900, 400), disk: 0 },
        _ => Needs { memory: 0, disk: 0 },
    }
}

/// The size that a bench works on, if it can be chosen.
fn own_size(name: &str, options: &Options) -> u64 {
    let own = match name {
        "lock-on-fault" => options.scaled(5 << 30, 1 << 30, 64 << 20),
        "populate" => options.scaled(512 << 20, 128 << 20, 16 << 20),
        // The larger one of two. If it does not fit, there is only one.
        "unmap" => options.scaled(4 << 30, 4 << 30, 64 << 20),
        _ => return 0,
    };
    options.size.unwrap_or(own as u64)
}

fn fitted(name: &str, options: &Options, room: Room) -> Plan {
    let wanted = own_size(name, options);
    let fits = |size: u64| {
        let needs = needs(name, options, size);
        needs.memory <= room.memory && needs.disk <= room.disk
    };
    let mut size = wanted;
    // Less than 64 MiB is no measure of large memory.
    while !fits(size) && size > 64 * MIB {
        size = (size / 2).max(64 * MIB);
    }
    let mut plan = Plan {
        options: options.clone(),
        changes: Vec::new(),
        fits: fits(size),
        needs: needs(name, options, size),
        room,
    };
    if !plan.fits {
        plan.changes.push(format!(
            "{name}: left out: it needs {} of memory and {} of disk; there are {} and {}",
            show(plan.needs.memory),
            show(plan.needs.disk),
            show(room.memory),
            show(room.disk),
        ));
    } else if size < wanted {
        plan.options.size = Some(size);
        plan.changes.push(format!(
            "{name}: works on {} in place of {}, because more does not fit",
            show(size),
            show(wanted),
        ));
    } else if wanted > 0 && options.is_short() && name != "unmap" {
        plan.options.size = Some(wanted);
    }
    plan
}

/// The needs of the run, in a sentence or two.
pub(crate) fn text(plans: &[Plan], options: &Options) -> String {
    let fitting = || plans.iter().filter(|plan| plan.fits);
    let memory = fitting().map(|plan| plan.needs.memory).max().unwrap_or(0);
    let disk = fitting().map(|plan| plan.needs.disk).max().unwrap_or(0);
    let Some(room) = plans.first().map(|plan| plan.room) else { return String::new() };
    let mut text = format!("It needs about {} of memory (of {})", show(memory), show(room.memory));
    if disk > 0 {
        let dir = options.dir();
        let _ = write!(
            text,
            " and {} of disk in {} (of {})",
            show(disk),
            dir.display(),
            show(room.disk)
        );
    }
    let _ = match options.within {
        Some(time) => write!(text, ", and ends within {}.", time_text(time.as_secs())),
        None => write!(text, "."),
    };
    for change in plans.iter().flat_map(|plan| &plan.changes) {
        let _ = write!(text, "\n  {change}");
    }
    text.push('\n');
    text
}

fn time_text(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

fn show(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 10 << 30 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 30 => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
        bytes => format!("{} MiB", bytes.div_ceil(MIB)),
    }
}

/// The memory that this process may take, under its memory cgroups and the machine's memory.
fn memory_room() -> u64 {
    let ask = || {
        let map = tenure::Mapping::anonymous(rustix::param::page_size())?;
        Populate::new(map.as_ptr(), map.len(), Access::Write).room()
    };
    ask().map_or(u64::MAX, |room: tenure::populate::Room| room.available)
}

fn disk_room(dir: &Path) -> u64 {
    statvfs(dir).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PLENTY: Room = Room { memory: 1 << 40, disk: 1 << 40 };

    #[test]
    fn where_there_is_plenty_nothing_changes() {
        for (name, _) in crate::list() {
            let plan = fitted(name, &Options::default(), PLENTY);
            assert!(plan.fits && plan.changes.is_empty() && plan.options.size.is_none(), "{name}");
            assert!(plan.needs.memory > 0, "{name}");
        }
    }

    #[test]
    fn a_large_size_is_halved_until_it_fits() {
        let room = Room { memory: 2 << 30, disk: 1 << 40 };
        let plan = fitted("lock-on-fault", &Options::default(), room);
        assert!(plan.fits);
        assert_eq!(plan.options.size, Some(5 << 28));
        assert!(plan.changes[0].contains("1.2 GiB in place of 5.0 GiB"), "{:?}", plan.changes);
        let room = Room { memory: 1 << 40, disk: 200 * MIB };
        let plan = fitted("lock-on-fault", &Options::default(), room);
        assert!(plan.fits && plan.needs.disk <= 200 * MIB);
    }

    #[test]
    fn what_cannot_fit_is_left_out_and_said() {
        let room = Room { memory: 8 * MIB, disk: 1 << 40 };
        for (name, _) in crate::list() {
            let plan = fitted(name, &Options { quick: true, ..Options::default() }, room);
            assert!(!plan.fits && plan.changes[0].contains("left out"), "{name}");
        }
    }

    #[test]
    fn the_sentence_has_memory_disk_and_time() {
        let options = Options { within: Some(Duration::from_secs(900)), ..Options::default() };
        let plans = ["cache", "lock-on-fault"].map(|name| fitted(name, &options, PLENTY));
        let text = text(&plans, &options);
        assert!(text.contains("1.2 GiB of memory (of 1024 GiB)"), "{text}");
        assert!(text.contains("1.1 GiB of disk") && text.contains("within 15 min."), "{text}");
    }

    #[test]
    fn this_machine_has_some_room() {
        assert!(memory_room() > MIB);
        assert!(disk_room(Path::new("/")) > 0);
    }
}
