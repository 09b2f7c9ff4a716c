//! Gets that copy a value of an offered segment, and leave the segment offered.
//!
//! Where memory is short, little of a cache may be out of the kernel's reach at a time. If each get
//! took its segment back, the worker would offer another one for it: with 40 segments in use in
//! 256 MiB that took a sixth of two processors. The reads also show the kernel which pages are in
//! use, so it takes the others first.

#![allow(unsafe_code, reason = "reads bytes that the kernel has filled")]

use super::header::{decode, ends, Times, HEADER, TIME};
use super::lifetimes::{Age, Lifetimes};
use super::segment::Segment;
use crate::os::page_size;
use crate::tracking::backpressure;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

/// Longer values are not copied: malloc maps memory of its own for them.
const MOST: usize = 120 << 10;

/// The result of a try to copy.
pub(super) enum Copied {
    Value(Vec<u8>),
    /// Its time is over.
    Ended,
    /// The caller takes the segment back.
    Not,
}

/// A segment is taken back at every so many copies. A segment that is read very often then comes to
/// be among those that the kernel cannot take now, where a read takes 0.1 µs. The others pay less
/// than 1 µs more for each read.
const OFTEN: u8 = 128;

impl Segment {
    /// Copies a value of a segment that is offered, if more memory than the
    /// [bound](crate::volatile::Settings::unoffered_max) allows would be out of the kernel's reach
    /// otherwise. `hash` is that of its key. The caller has the segment pinned.
    pub fn copy_offered(&self, offset: usize, hash: u32, lifetimes: &Lifetimes) -> Copied {
        if backpressure::has_room(self.capacity() as u64) {
            return Copied::Not;
        }
        if self.copies.fetch_add(1, Ordering::Relaxed) % OFTEN == OFTEN - 1 {
            return Copied::Not;
        }
        self.try_copy(offset, hash, lifetimes).unwrap_or(Copied::Not)
    }

    fn try_copy(&self, offset: usize, hash: u32, lifetimes: &Lifetimes) -> Option<Copied> {
        let capacity = self.capacity();
        let mut head = [MaybeUninit::uninit(); HEADER + 2 * TIME];
        let there = head.len().min(capacity.checked_sub(offset)?);
        let head = self.read(offset, &mut head[..there])?;
        let word = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let time = |at: usize| Some(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let (length, found) = (word(0)?, word(4)?);
        // First: the times of a value that was purged earlier are zeros, and it has not ended.
        if found != hash || !self.whole(offset, head.len()) {
            return None;
        }
        let (mut at, mut len) = (offset + HEADER, length as usize);
        if ends(length) {
            let has_used = lifetimes.bytes() > TIME;
            let used = if has_used { time(HEADER + TIME)? } else { 0 };
            match lifetimes.age(Times { deadline: time(HEADER)?, used }) {
                Age::Over => return Some(Copied::Ended),
                Age::Alive => {}
                // A note of the use would change the page.
                Age::AliveUnused(_) => return None,
            }
            (at, len) = (at + lifetimes.bytes(), decode(length, capacity) as usize);
        }
        let fits = at <= capacity && len <= (capacity - at).min(MOST);
        if !fits || !self.whole(at, len) {
            return None;
        }
        let mut value = Vec::new();
        value.try_reserve_exact(len).ok()?;
        let room = &mut value.spare_capacity_mut()[..len];
        // Takes the memory now: the read fills it under the range's claim, for which other threads
        // wait.
        room.iter_mut().step_by(page_size()).for_each(|byte| _ = byte.write(0));
        room.last_mut().map(|byte| byte.write(0));
        self.read(at, room)?;
        // SAFETY: `read` has filled these bytes.
        unsafe { value.set_len(len) };
        Some(Copied::Value(value))
    }

    fn read<'a>(&self, offset: usize, into: &'a mut [MaybeUninit<u8>]) -> Option<&'a [u8]> {
        let read = self.range.copy_offered(offset, into);
        // SAFETY: the read has filled all of it.
        read.then(|| unsafe { std::slice::from_raw_parts(into.as_ptr().cast(), into.len()) })
    }
}
