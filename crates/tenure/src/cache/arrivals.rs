//! Counts the values that come to segments and leave them.

use super::inside::Inside;
use super::life::Life;
use super::place::Place;
use super::space::Space;
use std::sync::atomic::{AtomicU64, Ordering};

impl Space {
    /// Adds the value at a place to `count`, because no key leads to it any more. If its segment has
    /// ended, the value was counted there.
    pub fn left(&self, place: Place, count: &AtomicU64) {
        let _inside = Inside::begin();
        let segment = self.segments.must(place.segment());
        let Some(left) = segment.life.leave(place.generation()) else { return };
        count.fetch_add(1, Ordering::Relaxed);
        if left == 0 {
            self.may_be_empty(segment);
        }
    }

    /// Counts the value that a key leads to from now on. `again`: another one had the place before. If
    /// a clear has ended the segment meanwhile, it has removed the value.
    pub fn came(&self, place: Place, again: bool) {
        let life = &self.segments.must(place.segment()).life;
        let add = if again { Life::add_again } else { Life::add };
        self.counts.inserted.fetch_add(1, Ordering::Relaxed);
        if add(life, place.generation()).is_none() {
            self.counts.removed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// No key will lead to the value at a place: its bytes are dead, and its segment may be empty.
    pub fn did_not_come(&self, place: Place, again: bool) {
        let _inside = Inside::begin();
        let segment = self.segments.must(place.segment());
        if !again {
            segment.life.add_none(place.generation());
        }
        if segment.life.live() == 0 {
            self.may_be_empty(segment);
        }
    }
}
