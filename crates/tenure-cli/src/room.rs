//! How much memory this process may still take.

use memmap2::MmapOptions;
use tenure::populate::{Access, Limiting, Populate, Room};
use tenure_command::call::failed;

/// Asks for one page: the available memory does not depend on the requested amount.
pub fn ask() -> anyhow::Result<Room> {
    let page = rustix::param::page_size();
    let map =
        MmapOptions::new().len(page).map_anon().map_err(|error| failed("mmap of a page", error))?;
    Ok(Populate::new(map.as_ptr(), page, Access::Write).room()?)
}

/// The bound, in words.
pub fn limited_by(room: &Room) -> String {
    match &room.limiting {
        Limiting::Machine => "of this machine".into(),
        Limiting::Cgroup(path) => format!("of the memory cgroup {path}"),
        other => format!("{other:?}"),
    }
}
