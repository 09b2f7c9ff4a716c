//! How far the calling thread is confined by seccomp.

use super::small_file::read;

/// Returns the number of the thread's filters, which only grows. `None`: it is not known (before
/// Linux 5.9, without /proc, or in seccomp's strict mode).
pub(crate) fn filters() -> Option<u32> {
    let mut buffer = [0; 4096];
    let text = read(c"/proc/thread-self/status", &mut buffer).ok()?;
    let number = |name| -> Option<u32> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    match number("Seccomp:")? {
        0 => Some(0),
        2 => number("Seccomp_filters:"),
        _ => None,
    }
}
