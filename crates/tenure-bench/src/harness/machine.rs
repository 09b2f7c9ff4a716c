//! The machine and the peers that a report is about.

use rustix::param::page_size;
use serde::{Deserialize, Serialize};
use std::fs;

/// The facts on which the numbers depend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name for itself.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Whether a hypervisor runs it, in which case first touches are noisy.
    pub virtual_machine: bool,
    /// Kernel release.
    pub kernel: String,
    /// The policy for transparent huge pages, `always`, `madvise` or `never`.
    pub huge_pages: String,
    /// Its policy for a huge page at a fault.
    pub huge_page_defrag: String,
    /// Base page size in bytes.
    pub page_size: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Swap in bytes.
    pub swap: u64,
}

impl Machine {
    /// Asks the kernel. A fact that it does not report is "unknown" or 0.
    pub fn describe() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let setting = |name: &str| {
            fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}"))
                .ok()
                .and_then(|text| bracketed(&text))
                .unwrap_or_else(|| "unknown".into())
        };
        Machine {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").into(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            huge_pages: setting("enabled"),
            huge_page_defrag: setting("defrag"),
            page_size: page_size(),
            memory: kibibytes(&meminfo, "MemTotal"),
            swap: kibibytes(&meminfo, "SwapTotal"),
        }
    }
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn kibibytes(meminfo: &str, name: &str) -> u64 {
    field(meminfo, name)
        .and_then(|value| value.strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// The chosen word of a sysfs line such as `always [madvise] never`.
fn bracketed(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_string())
}

/// The compared caches and their versions, as this crate's manifest pins them.
pub fn peer_versions() -> Vec<(&'static str, &'static str)> {
    if !cfg!(feature = "peers") {
        return Vec::new();
    }
    include_str!("../../Cargo.toml")
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(" = ")?;
            let version = rest.split_once("\"=")?.1.split_once('"')?.0;
            Some((name, version))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let text = "MemTotal:       1024 kB\nmodel name\t: Some CPU @ 3 GHz\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 3 GHz"));
        assert_eq!(kibibytes(text, "MemTotal"), 1 << 20);
        assert_eq!(kibibytes(text, "SwapTotal"), 0);
        assert_eq!(bracketed("always [madvise] never").as_deref(), Some("madvise"));
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::describe();
        assert!(machine.cores > 0 && machine.memory > 0 && machine.kernel.contains('.'));
    }

    #[test]
    #[cfg(feature = "peers")]
    fn every_peer_is_pinned_to_a_version() {
        let peers = peer_versions();
        let names: Vec<_> = peers.iter().map(|peer| peer.0).collect();
        assert_eq!(names, ["moka", "quick_cache", "foyer-memory"]);
        assert!(peers.iter().all(|(_, version)| version.split('.').count() == 3), "{peers:?}");
    }
}
