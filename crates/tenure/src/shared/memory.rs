//! The shared memory as one process has mapped it, and the operations on its chunks.

#![allow(unsafe_code, reason = "maps shared memory, and gives out atomics in it")]

use super::chunk::{Chunk, PINS_AT};
use super::layout::{self, slot, Facts, Shape, Use};
use super::making::{self, FLIGHTS, FLIGHTS_AT};
use super::state::{Kind, State};
use crate::error::{Error, ErrorKind, Result};
use crate::os::shared_file::{punch, SharedFile};
use crate::os::signal::Blocked;
use crate::os::{self, advise, futex, reserve, thp};
use crate::range::PageRange;
use crate::sync::{counting, while_counting};
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};
use rustix::io::Errno;
use std::ops::Range;
use std::time::Duration;

/// See the module's head. It does not know this process's slot.
pub(super) struct Memory {
    pub file: SharedFile,
    pub shape: Shape,
    /// The kernel chooses larger pages for shared memory, or was asked for them. Then a touch makes
    /// memory, because a mapping determines the size of the pages. An allocation in the file would
    /// choose one size for neighbouring chunks together.
    pub by_touch: bool,
    usage: Use,
    /// The program's view of the data, which userfaultfd watches.
    view: PageRange,
    /// tenure's own view, unwatched: through it tenure makes memory and gives it back.
    own: PageRange,
    /// The records and the page of facts.
    head: PageRange,
    /// This process's pins of each chunk, which a child inherits as they are at the fork. Behind
    /// them comes one byte for each chunk that is noted for a child.
    counts: PageRange,
    spread: Spread,
}

/// The places of a process's counts: those of neighbouring chunks are in different cache lines. With
/// 16 counts in a line, two threads that each pinned their own chunk took 170 ns for a pin (Xeon, 2
/// cores); now 47.
#[derive(Clone, Copy)]
struct Spread {
    /// The number of lines is a power of two.
    log2: u32,
}

impl Spread {
    const IN_A_LINE: usize = 64 / size_of::<AtomicU32>();

    /// A few chunks have a line each.
    fn of(chunks: usize) -> Spread {
        let lines = chunks.div_ceil(Self::IN_A_LINE).max(chunks.min(64));
        Spread { log2: lines.next_power_of_two().trailing_zeros() }
    }

    /// Bytes of all counts.
    fn bytes(self) -> usize {
        64 << self.log2
    }

    /// The number of the chunk's count.
    #[inline]
    fn place(self, chunk: usize) -> usize {
        let line = chunk & ((1 << self.log2) - 1);
        line * Self::IN_A_LINE + (chunk >> self.log2)
    }
}

/// A reservation that is unmapped if the memory is not completed.
struct Reserved(PageRange);

impl Reserved {
    fn new(len: usize, align: usize, own: bool) -> std::result::Result<Reserved, Errno> {
        let map = if own { reserve::map_own } else { reserve::map_anonymous };
        Ok(Reserved(map(len, align)?))
    }

    fn keep(self) -> PageRange {
        let range = self.0;
        std::mem::forget(self);
        range
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: this value reserved the range, and has not given it out.
        let _ = unsafe { reserve::unmap(self.0) };
    }
}

impl Memory {
    /// Maps a file. `new`: the shape of a new file. `None`: the shape is read from the file.
    pub fn map(
        call: &'static str,
        file: SharedFile,
        new: Option<Shape>,
        usage: Use,
        read_only: bool,
    ) -> Result<Memory> {
        let system = |what: &'static str| move |errno| Error::system(call, what, errno);
        let page = os::page_size();
        let (bytes, _) = file.len().map_err(system("asking for the file's length"))?;
        let map = |place: PageRange, offset: u64, write: bool| {
            // SAFETY: a reservation of this call.
            unsafe { file.map_over(place, offset, write) }
        };
        let shape = match new {
            Some(shape) => shape,
            None => {
                let Some(at) = bytes.checked_sub(page as u64).filter(|at| at % page as u64 == 0)
                else {
                    return Err(too_short(call));
                };
                let facts = Reserved::new(page, page, true).map_err(system("mmap"))?;
                map(facts.0, at, true).map_err(system("mapping the file to write"))?;
                // SAFETY: a page of the file, mapped until the end of this block. The file's length
                // is sealed.
                Shape::read(call, unsafe { &*(facts.0.start as *const Facts) }, bytes, usage)?
            }
        };
        let align = if shape.chunk >= os::HUGE_PAGE { os::HUGE_PAGE } else { page };
        let no_room = || system("mmap");
        let view = Reserved::new(shape.data, align, false).map_err(no_room())?;
        let own = Reserved::new(shape.data, align, true).map_err(no_room())?;
        let head = Reserved::new(shape.records() + page, page, true).map_err(no_room())?;
        let spread = Spread::of(shape.chunks);
        let counts = (spread.bytes() + shape.chunks).next_multiple_of(page);
        let counts = Reserved::new(counts, page, true).map_err(no_room())?;
        map(view.0, 0, !read_only).map_err(system("mapping the file"))?;
        map(own.0, 0, true).map_err(system("mapping the file to write"))?;
        map(head.0, shape.data as u64, true).map_err(system("mapping the file to write"))?;
        let is_huge = align == os::HUGE_PAGE;
        for range in [view.0, own.0, head.0] {
            // If huge pages are the default, one page of the records would also be one page of
            // chunks, and one chunk's page would contain other chunks.
            let is_data = range != head.0;
            // This is only advice.
            let _ = match is_huge && is_data {
                true => advise::want_huge_pages(range),
                false => advise::want_base_pages(range),
            };
        }
        let by_touch = match is_huge {
            true => thp::shared(true) != thp::Setting::Never,
            false => thp::shared_unasked(),
        };
        let memory = Memory {
            file,
            shape,
            by_touch,
            usage,
            view: view.keep(),
            own: own.keep(),
            head: head.keep(),
            counts: counts.keep(),
            spread,
        };
        if new.is_some() {
            shape.write(memory.facts(), usage);
        }
        Ok(memory)
    }

    pub fn facts(&self) -> &Facts {
        // SAFETY: the page of facts follows the records. It is mapped while `self` lives, and all
        // its fields are atomics.
        unsafe { &*((self.head.start + self.shape.records()) as *const Facts) }
    }

    /// Returns the flags of the processes.
    pub fn flags(&self) -> &[AtomicU8] {
        // SAFETY: the page of facts is mapped while `self` lives, and the shape is the file's.
        unsafe { layout::flags(self.facts(), self.shape.slots) }
    }

    /// Returns the record of a chunk. `number` is below the shape's number of chunks.
    #[inline]
    pub fn chunk(&self, number: usize) -> Chunk<'_> {
        debug_assert!(number < self.shape.chunks);
        let at = self.head.start + number * self.shape.record;
        // SAFETY: the record lies in the mapped records while `self` lives, aligned to 64 bytes.
        // All processes use these fields only as atomics. The shape's record has room for as many
        // pins as there are slots.
        unsafe {
            Chunk {
                state: &*(at as *const AtomicU64),
                used: &*((at + 8) as *const AtomicU32),
                priority: &*((at + 12) as *const AtomicU8),
                dead: &*((at + 14) as *const AtomicU16),
                pins: std::slice::from_raw_parts(
                    (at + PINS_AT) as *const AtomicU16,
                    self.shape.slots as usize,
                ),
            }
        }
    }

    /// Returns the number of the chunk in whose record the calling thread counts or uncounts a pin.
    pub fn counting(&self) -> Option<usize> {
        let at = counting().checked_sub(self.head.start)?;
        let chunk = at / self.shape.record;
        (chunk < self.shape.chunks).then_some(chunk)
    }

    /// Runs `act`, which counts or uncounts a pin of the chunk.
    #[inline]
    pub fn while_counting<R>(&self, chunk: usize, act: impl FnOnce() -> R) -> R {
        while_counting(self.head.start + chunk * self.shape.record, act)
    }

    /// Returns whether the records take little memory. To ask where the file has some takes 10 us.
    fn has_few_records(&self) -> bool {
        self.shape.records() <= 1 << 20
    }

    /// Calls `each` with the chunks whose record has memory. The others are fresh, and no process has
    /// pinned them. A file of few bytes can claim so many chunks that to read all their records would
    /// take more memory than this process may have.
    pub fn each_recorded(&self, mut each: impl FnMut(usize)) {
        if self.try_each_recorded(&mut each).is_err() {
            (0..self.shape.chunks).for_each(each);
        }
    }

    /// As [`each_recorded`](Self::each_recorded).
    ///
    /// # Errors
    /// The file does not tell. `each` was not called.
    fn try_each_recorded(&self, each: &mut impl FnMut(usize)) -> std::result::Result<(), Errno> {
        if self.has_few_records() {
            (0..self.shape.chunks).for_each(each);
            return Ok(());
        }
        let first = self.shape.data as u64;
        self.file.each_part_there(first..first + self.shape.records() as u64, |part| {
            // No record lies in two pages, and so in two parts.
            let number = |at: u64| (at - first) as usize / self.shape.record;
            let end = (number(part.end - 1) + 1).min(self.shape.chunks);
            (number(part.start)..end).for_each(&mut *each);
            true
        })
    }

    /// Returns the byte of [`kept`](super::kept) for a chunk.
    #[inline]
    pub fn kept(&self, chunk: usize) -> &AtomicU8 {
        debug_assert!(chunk < self.shape.chunks);
        let at = self.head.start + chunk * self.shape.record + 13;
        // SAFETY: a byte of the chunk's record, which is mapped while `self` lives and used only as
        // an atomic.
        unsafe { &*(at as *const AtomicU8) }
    }

    /// Returns how often this process has a chunk pinned.
    #[inline]
    pub fn count(&self, chunk: usize) -> &AtomicU32 {
        debug_assert!(chunk < self.shape.chunks);
        let place = self.spread.place(chunk);
        // SAFETY: the private counts are mapped while `self` lives. Each chunk has a place there,
        // zero at first.
        unsafe { &*((self.counts.start as *const AtomicU32).add(place)) }
    }

    /// Returns whether a pin of the chunk is noted for the child that is being made.
    pub fn noted(&self, chunk: usize) -> &AtomicU8 {
        debug_assert!(chunk < self.shape.chunks);
        let at = self.counts.start + self.spread.bytes() + chunk;
        // SAFETY: mapped while `self` lives, behind the counts. There is one byte for each chunk,
        // zero at first.
        unsafe { &*(at as *const AtomicU8) }
    }

    /// Returns whether a pin of the chunk is noted, and removes the note.
    pub fn take_note(&self, chunk: usize) -> bool {
        let noted = self.noted(chunk);
        let was = noted.load(Ordering::Relaxed) != 0;
        if was {
            noted.store(0, Ordering::Relaxed);
        }
        was
    }

    pub fn offset_of(&self, chunk: usize) -> u64 {
        (chunk * self.shape.chunk) as u64
    }

    pub fn view_of(&self, chunk: usize) -> PageRange {
        let at = self.view.start + chunk * self.shape.chunk;
        PageRange::new(at, at + self.shape.chunk)
    }

    /// Returns the program's view of the data.
    pub fn view(&self) -> PageRange {
        self.view
    }

    pub fn own_of(&self, chunk: usize) -> PageRange {
        self.own_of_all(chunk..chunk + 1)
    }

    fn own_of_all(&self, chunks: Range<usize>) -> PageRange {
        let place = |chunk: usize| self.own.start + chunk * self.shape.chunk;
        PageRange::new(place(chunks.start), place(chunks.end))
    }

    // A thread that has the right to change a chunk checks the right and uses it with signals
    // blocked. So no handler forks in between. The handler's child would go on with its parent's
    // right, and later.

    /// Gives the memory of a chunk back. The caller has the right to do so.
    pub fn discard(&self, chunk: usize, blocked: &Blocked) -> bool {
        self.discard_all(chunk..chunk + 1, blocked)
    }

    /// Gives the memory of neighbouring chunks back, in one call. The caller has the right to do
    /// so.
    pub fn discard_all(&self, chunks: Range<usize>, _: &Blocked) -> bool {
        // SAFETY: the caller makes or purges the chunks, so no thread relies on their contents.
        unsafe { punch(self.own_of_all(chunks)) }.is_ok()
    }

    /// Takes this process's access to the program's view of chunks away.
    pub fn close(&self, chunks: Range<usize>) -> std::result::Result<(), Errno> {
        let place = |chunk: usize| self.view.start + chunk * self.shape.chunk;
        let range = PageRange::new(place(chunks.start), place(chunks.end));
        // SAFETY: tenure's own mapping, whose bytes stay as they are.
        unsafe { os::raw_map::protect(range, libc::PROT_NONE) }
    }

    /// Gives the access to the whole view back.
    pub fn open(&self, read_only: bool) -> std::result::Result<(), Errno> {
        let write = if read_only { 0 } else { libc::PROT_WRITE };
        // SAFETY: as above.
        unsafe { os::raw_map::protect(self.view, libc::PROT_READ | write) }
    }

    /// Returns whether it is memory whose chunks the program numbers, and can touch without a pin.
    pub fn has_addresses(&self) -> bool {
        self.usage == Use::Chunks
    }

    /// Writes zeros over a chunk that this process makes.
    pub fn clear_bytes(&self, chunk: usize, _: &Blocked) {
        let own = self.own_of(chunk);
        // SAFETY: mapped to write while `self` lives. No other thread reads or writes a chunk that
        // this process makes.
        unsafe { std::ptr::write_bytes(own.start as *mut u8, 0, own.len()) };
    }

    /// Sets the next state of a chunk that this process makes, and wakes the threads that wait for
    /// it.
    pub fn settle(&self, chunk: usize, _: &Blocked, to: impl Fn(State) -> State) {
        if self.chunk(chunk).settle(to) {
            self.wake(chunk);
        }
    }

    /// Sleeps while a chunk is in a state, for at most this time.
    pub fn sleep(&self, chunk: usize, state: State, time: Duration) {
        futex::wait_shared(futex::low(self.chunk(chunk).state), state.low(), time);
    }

    pub fn wake(&self, chunk: usize) {
        futex::wake_shared(futex::low(self.chunk(chunk).state));
    }

    /// Removes what a dead process left in a slot whose lock the caller has, and sets the slot's
    /// flags. `doubted`: also if the flags say that there is nothing.
    pub fn clear(&self, number: u32, flags: u8, doubted: bool) {
        let place = &self.flags()[number as usize];
        if doubted || place.load(Ordering::SeqCst) != 0 {
            self.bury(number, &Blocked::all());
        }
        place.store(flags, Ordering::SeqCst);
    }

    /// Removes what this process leaves in its slot, at its end. If the records that have memory
    /// cannot be found, because the program has closed the descriptor, another process does that, or
    /// the next one in the slot.
    pub fn leave(&self, number: u32) {
        let is_known = self.try_each_recorded(&mut |_| ()).is_ok();
        match is_known {
            true => self.clear(number, 0, false),
            false => self.flags()[number as usize].store(slot::LEFT, Ordering::SeqCst),
        }
    }

    fn bury(&self, dead: u32, blocked: &Blocked) {
        self.end_work(dead, blocked, true);
        let facts = self.facts();
        let _ = facts.purger.compare_exchange(dead + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
        self.flags()[dead as usize].store(0, Ordering::SeqCst);
    }

    /// Ends the work of a dead process, and removes its pins if `and_pins` is set.
    fn end_work(&self, dead: u32, blocked: &Blocked, and_pins: bool) {
        self.each_recorded(|chunk| {
            let (record, discard) = (self.chunk(chunk), || self.discard(chunk, blocked));
            let awaited = match and_pins {
                true => record.bury(dead, discard),
                false => record.end_work(dead, discard),
            };
            if awaited {
                self.wake(chunk);
            }
        });
        making::bury(self.making(), dead, |word| futex::wake_shared(futex::low(word)));
    }

    /// Returns the words of the values that processes make in a shared cache. Returns none if the
    /// first chunk is not there.
    fn making(&self) -> &[AtomicU64] {
        // A hostile file may be too short.
        let fits = self.shape.chunk >= FLIGHTS_AT + FLIGHTS * size_of::<AtomicU64>();
        // While another process looks for pins, the bytes are there too, and may stay.
        let is_there = matches!(self.chunk(0).load().kind(), Kind::Intact | Kind::Checked);
        if !making::are_in(self.usage) || !fits || !is_there {
            return &[];
        }
        let at = self.own.start + FLIGHTS_AT;
        // SAFETY: inside the first chunk, which is mapped while `self` lives and used only as
        // atomics. If the chunk is purged meanwhile, they are zeros.
        unsafe { std::slice::from_raw_parts(at as *const AtomicU64, FLIGHTS) }
    }

    /// Checks whether a process lives, and removes what it left if not. Only the lock decides,
    /// because another process may have overwritten the flags.
    ///
    /// # Errors
    /// The program has closed the descriptor, or may open no more files: the state of the process
    /// is unknown.
    pub fn bury_if_dead(&self, number: u32) -> std::result::Result<(), Errno> {
        let Some(place) = self.flags().get(number as usize) else { return Ok(()) };
        // Blocked from the check of the lock on: otherwise a child could remove what a later
        // process has in the slot.
        let blocked = Blocked::all();
        let done = self.file.in_place_of(number, || {
            let was_used = place.load(Ordering::SeqCst) & !slot::LEFT != 0;
            self.bury(number, &blocked);
            was_used
        });
        if done? == Some(true) {
            self.facts().buried.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// As [`bury_if_dead`](Self::bury_if_dead), for a thread that waits for the process. It also
    /// ends the work of a dead process whose children keep its pins, because no child goes on with
    /// that work.
    ///
    /// # Errors
    /// As [`bury_if_dead`](Self::bury_if_dead).
    pub fn wait_no_longer_for_the_dead(&self, number: u32) -> std::result::Result<(), Errno> {
        self.bury_if_dead(number)?;
        let blocked = Blocked::all();
        let end = || self.end_work(number, &blocked, false);
        self.file.in_place_of_parent(number, end).map(drop)
    }

    /// Checks whether each process lives.
    pub fn bury_the_dead(&self, own: Option<u32>) {
        for number in (0..self.shape.slots).filter(|number| Some(*number) != own) {
            if self.flags()[number as usize].load(Ordering::SeqCst) != 0 {
                // If the check fails, the process counts as alive.
                let _ = self.bury_if_dead(number);
            }
        }
    }

    /// Returns how many forks have begun, or `None` while a child holds everything.
    pub fn forks(&self) -> Option<u32> {
        let begun = self.facts().forks.load(Ordering::SeqCst);
        let holds = |flags: &AtomicU8| flags.load(Ordering::SeqCst) & slot::HOLDS_ALL != 0;
        (!self.flags().iter().any(holds)).then_some(begun)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for range in [self.view, self.own, self.head, self.counts] {
            // SAFETY: `map` mapped the range. The handle that gave out its addresses is gone, and
            // guards borrow that handle.
            let _ = unsafe { reserve::unmap(range) };
        }
    }
}

fn too_short(call: &'static str) -> Error {
    let remedy = "pass the descriptor that the maker of a SharedVolatile passed on";
    Error::new(ErrorKind::BadHeader, call, "the file is too short, or no whole pages", remedy)
}

#[cfg(test)]
mod tests {
    use super::Spread;
    use std::collections::BTreeSet;

    #[test]
    fn each_chunk_has_a_count_and_neighbours_share_no_cache_line() {
        for chunks in [1, 2, 3, 16, 63, 64, 65, 100, 1023, 1025, 5000, 100_000] {
            let spread = Spread::of(chunks);
            let places: BTreeSet<usize> = (0..chunks).map(|chunk| spread.place(chunk)).collect();
            assert_eq!(places.len(), chunks, "two of {chunks} have one place");
            let end = spread.bytes() / 4;
            assert!(places.iter().all(|place| *place < end), "past the end, of {chunks}");
            assert!(end < (32 * chunks).max(32), "{end} places for {chunks}");
            let line = |chunk| spread.place(chunk) / Spread::IN_A_LINE;
            assert!((1..chunks).all(|chunk| line(chunk - 1) != line(chunk)), "of {chunks}");
        }
    }
}
