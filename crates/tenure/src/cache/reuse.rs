//! Places of values that were overwritten, for values that overwrite others.
//!
//! Where all new values go to open segments, what is left beside overwritten ones must be moved together again and
//! again: two bytes are copied for each that is put in. So a value that overwrites another goes to where one was that was
//! overwritten just before, if that was as long: an allocator would give it the memory that was freed last, too. Nothing
//! is copied then, and the cache takes no more memory than its values.
//!
//! **Nobody sees bytes change.** A place is noted here when the key that led to it leads elsewhere. A thread takes
//! the note, so it has the place alone, and pins the segment by an exchange that succeeds only while nobody else has it
//! pinned ([`Life::enter_alone`](super::life::Life::enter_alone)). All pins are counted by read-modify-writes of the
//! same word, so each reader's pin comes before the exchange or after it:
//!
//! - before: it was taken away, too (Release; the exchange is Acquire), so all that the reader read came before the
//!   first byte that is written here, and it has no value of the segment any more;
//! - after: the reader (Acquire) sees all that came before the exchange, also that the key leads elsewhere. It looks
//!   at the key's entry once more when it has pinned the segment
//!   ([`Table::find_and_enter`](super::table::Table::find_and_enter)), and reads nothing if it leads elsewhere.
//!
//! A thread that empties a segment, or walks over its values, pins it in the same way. So there are no two such
//! threads at once, a walk meets no half written header, and no value is put into a segment that is being emptied. As
//! long as the other value: the place of the next one in the segment stays, for walks.
//!
//! A new key's value takes no such place. It goes where the newest values are, so that it is evicted after older ones.

use super::header::Header;
use super::lanes::Lane;
use super::place::Place;
use super::space::{Room, Space, LARGE};
use super::vacated::Good;

/// Values that take less go to open segments: a look for a place would take as long as the copies.
const LEAST: usize = 512;

impl Space {
    /// Whether it is looked for the place of another value that was overwritten.
    pub fn may_reuse(&self, head: Header) -> bool {
        self.need(head) >= LEAST
    }

    /// Room where another value was, for one that overwrites that at `before`, in a segment of the same kind.
    pub(super) fn reuse(&self, lane: &Lane, before: Place, head: Header) -> Option<Room<'_>> {
        let now = self.segments.get(before.segment())?;
        if now.life.generation() != before.generation() {
            return None;
        }
        let (need, is_protected) = (self.need(head), now.is_protected());
        let look = |place: Place| {
            let segment = self.segments.must(place.segment());
            // What is offered stays so: to take 2 MiB back for one value would keep them from the kernel.
            if segment.life.generation() != place.generation() || segment.range.is_offered() {
                Good::Never
            } else if segment.is_protected() != is_protected || segment.range.pins() > 0 {
                Good::NotNow
            } else {
                Good::Yes
            }
        };
        let place = lane.vacated.take(need, look)?;
        let segment = self.segments.must(place.segment());
        if !segment.life.enter_alone(&segment.range, place.generation()) {
            return None;
        }
        // Nobody else reads or writes the header now.
        let was = segment.header(place.offset(), self.lifetimes.bytes());
        let fits = was.is_some_and(|was| self.need(was) == need)
            && segment.is_shared()
            && segment.whole(place.offset(), need);
        if !fits {
            segment.unpin();
            return None;
        }
        segment.write_header(place.offset(), head, self.lifetimes.bytes());
        segment.life.add_again(place.generation());
        segment.lengths.put_again(need);
        let at = place.offset() + self.head(head.times.is_some());
        Some(Room { segment, place: place.with_uses(0), at, evicted: false })
    }

    /// A key leads elsewhere now than to this place, since a value that takes `need` bytes was put in.
    pub(super) fn vacate(&self, lane: usize, place: Place, need: usize) {
        let segment = self.segments.must(place.segment());
        let is_there = segment.life.generation() == place.generation();
        if is_there && (LEAST..=LARGE).contains(&need) {
            self.lane(lane).vacated.put(place, need);
        }
    }
}
