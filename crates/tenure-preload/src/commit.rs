//! The kernel's promise of memory to a program (`vm.overcommit_memory`). The pool must not change
//! it, although the kernel does not count the pool's memory.

/// The pool serves requests up to so many bytes, so that the kernel can refuse larger ones. It
/// refuses requests larger than all memory and swap (setting 0, the heuristic), or none (setting
/// 1).
pub fn largest_served() -> usize {
    usize::try_from(tenure::launcher::memory_and_swap()).unwrap_or(usize::MAX)
}
