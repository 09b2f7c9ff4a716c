//! The environment of a turn: other swap, neighbours, stops, a starved worker, refused files.

/// Swap of the memory cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// None.
    Absent,
    /// Compressed memory of so many bytes.
    Zram(u64),
}

/// The memory cgroup and the processes beside the driver's.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The limit of the group.
    pub limit: u64,
    /// The most that all competitors need; `None`: as the configuration sets it.
    pub need: Option<u64>,
    /// The number of competitors.
    pub competitors: usize,
    /// Its swap.
    pub swap: Swap,
}

/// One condition.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub about: &'static str,
    /// The group, for configurations that run in one.
    pub group: Group,
    /// All processes are stopped at random moments, for so many milliseconds at most.
    pub stops: Option<u64>,
    /// The process is killed at a random moment.
    pub kills: bool,
    /// tenure's threads get only processor time that no other thread wants, beside busy loops.
    pub starved: bool,
    /// Children find another time.
    pub jumps: bool,
    /// The refused calls: a profile of the test kit's.
    pub profile: Option<&'static str>,
}

/// The group of configurations without a condition.
pub const USUAL_GROUP: Group =
    Group { limit: 256 << 20, need: None, competitors: 1, swap: Swap::Absent };
const USUAL: Condition = Condition {
    name: "usual",
    about: "nothing",
    group: USUAL_GROUP,
    stops: None,
    kills: false,
    starved: false,
    jumps: false,
    profile: None,
};

/// All conditions.
pub const CONDITIONS: &[Condition] = &[
    Condition {
        name: "edge",
        about: "three competitors in the group",
        group: Group { competitors: 3, ..USUAL_GROUP },
        ..USUAL
    },
    Condition {
        name: "oom",
        about: "competitors that leave next to nothing",
        group: Group { need: Some(176 << 20), competitors: 2, ..USUAL_GROUP },
        ..USUAL
    },
    Condition {
        name: "zram",
        about: "swap in compressed memory",
        group: Group { swap: Swap::Zram(256 << 20), ..USUAL_GROUP },
        ..USUAL
    },
    Condition {
        name: "swap-full",
        about: "swap of 4 MiB, which is full",
        group: Group { swap: Swap::Zram(4 << 20), ..USUAL_GROUP },
        ..USUAL
    },
    Condition { name: "no-psi", about: "no /proc/pressure", profile: Some("no-psi"), ..USUAL },
    Condition {
        name: "no-huge",
        about: "no huge page is to be had",
        profile: Some("no-thp"),
        ..USUAL
    },
    Condition {
        name: "stops",
        about: "SIGSTOP at random moments, for 300 ms at most",
        stops: Some(300),
        ..USUAL
    },
    Condition {
        name: "suspends",
        about: "SIGSTOP of all processes, for 4 s at most",
        stops: Some(4000),
        ..USUAL
    },
    Condition { name: "kills", about: "SIGKILL at a random moment", kills: true, ..USUAL },
    Condition {
        name: "starved",
        about: "the worker in SCHED_IDLE beside busy loops",
        starved: true,
        ..USUAL
    },
    Condition {
        name: "jumps",
        about: "children in time namespaces, days before and after",
        jumps: true,
        ..USUAL
    },
];

/// The condition of this name.
pub fn named(name: &str) -> Option<&'static Condition> {
    CONDITIONS.iter().find(|condition| condition.name == name)
}
