//! The pools of huge pages.

use super::small_file::text;

/// Returns how many bytes a mapping of huge pages of this size can still take. A mapping that
/// `reserved` its pages when it was made can take all free pages. Another mapping can take the free
/// pages that are not reserved. `None`: there is no such pool.
pub(crate) fn free_for(size: usize, reserved: bool) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", size >> 10);
        text(path).ok()?.trim().parse().ok()
    };
    let free = number("free_hugepages")? + number("nr_overcommit_hugepages").unwrap_or(0);
    let taken = if reserved { 0 } else { number("resv_hugepages")? };
    Some(free.saturating_sub(taken) * size as u64)
}
