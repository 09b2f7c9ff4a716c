//! What the kernel promises a program of memory (`vm.overcommit_memory`), which the pool must not change: it maps its
//! memory without having it counted.

/// Requests up to so many bytes are the pool's to serve; larger ones are the kernel's to refuse. It refuses what is
/// larger than all memory and swap (0, the heuristic), or nothing (1).
pub fn largest_served() -> usize {
    let about = rustix::system::sysinfo();
    let unit = u64::from(about.mem_unit);
    let all = (about.totalram as u64 + about.totalswap as u64).saturating_mul(unit);
    usize::try_from(all).unwrap_or(usize::MAX)
}
