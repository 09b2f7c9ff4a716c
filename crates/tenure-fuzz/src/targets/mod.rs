//! The targets.

mod abi;
mod build;
mod figures;
mod groups;
mod launcher;
mod map;
mod maps;
mod pagemap;
mod promise;
mod ranges;
mod text;

pub use build::built_in;
use std::process::ExitCode;

/// A part of tenure that takes input.
pub struct Target {
    /// Its name, and that of its folder of samples.
    pub name: &'static str,
    /// A description.
    pub what: &'static str,
    /// Words that its readers know.
    pub tokens: &'static [&'static [u8]],
    /// The most bytes of an input.
    pub longest: usize,
    /// How many inputs are tried between two looks at the clock.
    pub between_looks: u64,
    /// The error names the feature that is missing here.
    pub can_run: fn() -> Result<(), String>,
    /// Tries an input. The error is the broken promise.
    pub run: fn(&[u8]) -> Result<(), String>,
}

fn always() -> Result<(), String> {
    Ok(())
}

/// A target in this process without samples, whose input is read as a list of choices.
const PLAN: Target = Target {
    name: "",
    what: "",
    tokens: &[],
    longest: 512,
    between_looks: 16,
    can_run: always,
    run: |_| Ok(()),
};

/// A target in this process that reads text.
const TEXT: Target = Target { longest: 16 << 10, ..PLAN };

/// All targets.
pub static TARGETS: &[Target] = &[
    Target { name: "ranges", what: "range arithmetic", run: ranges::run, ..PLAN },
    Target { name: "map", what: "the interval map", run: map::run, ..PLAN },
    Target {
        name: "maps",
        what: "lists of mappings: /proc/PID/maps",
        tokens: &[b"rw-p", b"---s", b" [anon:x]", b" (deleted)", b"00:00 0 "],
        run: maps::lines,
        ..TEXT
    },
    Target {
        name: "smaps",
        what: "what smaps says of each mapping, by both readers",
        tokens: &[b"VmFlags:", b" lo", b" ??", b" lf", b"Locked:", b"Rss:", b" kB\n"],
        run: maps::smaps,
        ..TEXT
    },
    Target {
        name: "groups",
        what: "which memory cgroup it is: /proc/PID/cgroup and mountinfo",
        tokens: &[b"\\040", b"\\134", b" - ", b"cgroup2", b"cgroup", b"memory", b"0::/", b"/.."],
        run: groups::names,
        ..TEXT
    },
    Target {
        name: "limits",
        what: "a memory cgroup's files, version 1 and 2, by both readers",
        tokens: &[b"max\n", b"inactive_file ", b"total_inactive_file ", b"\x00"],
        run: groups::limits,
        ..TEXT
    },
    Target {
        name: "pressure",
        what: "PSI, and where a service manager says to hear of pressure",
        tokens: &[b"some ", b"full ", b"avg10=", b"nan", b"inf", b"1e309"],
        run: text::pressure,
        ..TEXT
    },
    Target {
        name: "stat",
        what: "/proc/PID/stat",
        tokens: &[b")", b"(", b") ("],
        run: text::stat,
        ..TEXT
    },
    Target {
        name: "settings",
        what: "the grammar of the launcher's options, and the settings of huge pages",
        tokens: &[b"pool:", b"retire:", b"SIG", b"RTMIN+", b"KiB", b"GB", b".", b"[", b"]"],
        longest: 64,
        run: text::settings,
        ..TEXT
    },
    Target {
        name: "pagemap",
        what: "the page map, by each way to read it, of pages in every state",
        longest: 256,
        can_run: pagemap::can_run,
        run: pagemap::run,
        ..PLAN
    },
    Target {
        name: "figures",
        what: "the figures that another process publishes and that lie",
        longest: 256,
        can_run: figures::can_run,
        run: figures::run,
        ..PLAN
    },
    Target {
        name: "launcher",
        what: "tenure run's options and environment: a clear error or the program's own run",
        longest: 256,
        between_looks: 1,
        can_run: launcher::can_run,
        run: launcher::run,
        ..PLAN
    },
    Target {
        name: "abi",
        what: "C calls in random order with random arguments, in a child",
        longest: 2048,
        between_looks: 1,
        can_run: abi::can_run,
        run: abi::run,
        ..PLAN
    },
];

/// Does the work of a child that a target has started, and returns its exit code. `None`: this is
/// no such child.
pub fn as_child() -> Option<ExitCode> {
    abi::as_child().or_else(launcher::as_child)
}
