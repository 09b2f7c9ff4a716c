//! Advice for huge pages, within a bound on the mappings that it costs.

use crate::os::advise;
use crate::range::PageRange;
use crate::runtime::mapping_room::MappingRoom;

/// Advice only saves time, so most mappings are left to the program.
/// For the whole process: the kernel bounds the mappings of a process.
static ROOM: MappingRoom = MappingRoom::new(8);

/// Called before any page is populated: afterwards the kernel makes no huge page from it. Advice
/// only: if the kernel refuses it, or if it would cost too many mappings, only speed is lost.
pub(super) fn give(range: PageRange) {
    if ROOM.may_cut(range) {
        let _ = advise::want_huge_pages(range);
    }
}
