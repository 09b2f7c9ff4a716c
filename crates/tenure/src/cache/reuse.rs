//! Writes a value that overwrites another one to the place of an earlier overwritten value.
//!
//! If all new values went to open segments, the cache would move the values beside overwritten ones
//! together again and again: it would copy two bytes for each byte that is put in. So a value that
//! overwrites another goes to the place of a value that was overwritten just before, if that had
//! the same length. An allocator also returns the memory that was freed last. Nothing is copied
//! then, and the cache takes no more memory than its values.
//!
//! **No reader sees bytes change.** The cache notes a place here when the key that led to it leads
//! elsewhere. A thread takes the note, so only that thread has the place. It pins the segment by an
//! exchange that succeeds only while no other thread has it pinned
//! ([`Life::enter_alone`](super::life::Life::enter_alone)). All pins are read-modify-writes of the
//! same word, so each reader's pin comes before the exchange or after it:
//!
//! - before: the reader also took its pin away before the exchange (Release; the exchange is
//!   Acquire). So all its reads came before the first byte that is written here, and it has no
//!   value of the segment any more;
//! - after: the reader (Acquire) sees everything that came before the exchange, also that the key
//!   leads elsewhere. It looks at the key's entry once more when it has pinned the segment
//!   ([`Table::find_and_enter`](super::table::Table::find_and_enter)), and reads nothing if the key
//!   leads elsewhere.
//!
//! A thread that empties a segment, or walks over its values, pins it in the same way. So two such
//! threads never work on one segment at once, a walk meets no half written header, and no thread
//! puts a value into a segment that is being emptied. Both values must have the same length,
//! because a walk finds the next value behind this one.
//!
//! The value of a new key takes no such place. It goes where the newest values are, so that it is
//! evicted after older ones.

use super::header::Header;
use super::lanes::Lane;
use super::place::Place;
use super::space::{Room, Space, LARGE};
use super::vacated::Good;

/// Shorter values go to open segments: the search for a place would take as long as the copies.
const LEAST: usize = 512;

impl Space {
    /// Returns whether the cache searches the place of an overwritten value for this one.
    pub fn may_reuse(&self, head: Header) -> bool {
        self.need(head) >= LEAST
    }

    /// Returns room at the place of an earlier value, for a value that overwrites the one at
    /// `before`. The segment is of the same kind as that one's.
    pub(super) fn reuse(&self, lane: &Lane, before: Place, head: Header) -> Option<Room<'_>> {
        let now = self.segments.get(before.segment())?;
        if now.life.generation() != before.generation() {
            return None;
        }
        let (need, is_protected) = (self.need(head), now.is_protected());
        let look = |place: Place| {
            let segment = self.segments.must(place.segment());
            // An offered segment stays offered: taking 2 MiB back for one value would keep them
            // from the kernel.
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
        // No other thread reads or writes the header now.
        let was = segment.header(place.offset(), self.lifetimes.bytes());
        let fits = was.is_some_and(|was| self.need(was) == need)
            && segment.is_shared()
            && segment.whole(place.offset(), need);
        if !fits {
            segment.unpin();
            return None;
        }
        segment.write_header(place.offset(), head, self.lifetimes.bytes());
        segment.lengths.put_again(need);
        let at = place.offset() + self.head(head.times.is_some());
        Some(Room { segment, place: place.with_uses(0), at, again: true, evicted: false })
    }

    /// Notes a place whose key leads elsewhere since a value that takes `need` bytes was put in.
    pub(super) fn vacate(&self, lane: usize, place: Place, need: usize) {
        let segment = self.segments.must(place.segment());
        let is_there = segment.life.generation() == place.generation();
        if is_there && (LEAST..=LARGE).contains(&need) {
            self.lane(lane).vacated.put(place, need);
        }
    }
}
