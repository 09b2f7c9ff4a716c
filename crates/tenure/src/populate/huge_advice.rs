//! Advice for huge pages, within a bound on the mappings that it costs.

use crate::os::advise;
use crate::range::PageRange;
use crate::runtime::mapping_room::MappingRoom;

/// Advice saves time only, so most mappings are left to the program.
/// For the whole process: the kernel bounds the mappings of a process.
static ROOM: MappingRoom = MappingRoom::new(8);

/// Before any page is populated: afterwards no huge page comes of it. Advice only: where it is refused, or
/// would cost too many mappings, speed is lost.
pub(super) fn give(range: PageRange) {
    if ROOM.may_cut(range) {
        let _ = advise::want_huge_pages(range);
    }
}
