//! Pages of files.

/// The page size of this machine.
pub fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// `bytes`, as whole pages.
pub fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(page())
}
