//! Which threads of this process make chunks in `get_or_make`. A thread that waits for one of them
//! finds out whether that thread waits for it.

use crate::os::generation;
use crate::runtime::waits;
use crate::sync::{thread_number, AtomicU64, Futex, Ordering};

/// The number of chunks that are noted at a time.
const PLACES: usize = 64;

/// See the module's head.
pub(super) struct Threads([Place; PLACES]);

struct Place {
    /// The thread's number, and in the upper half the process's: a child inherits its parent's
    /// places. 0: none.
    thread: AtomicU64,
    /// The chunk's number plus one. 0: not known yet.
    chunk: AtomicU64,
    /// Changes when the thread has made the chunk, or has given up.
    ended: Futex,
}

/// A thread makes a chunk until this is dropped.
pub(super) struct Making<'a>(&'a Place, u64);

fn process() -> u64 {
    generation::current() & u64::from(u32::MAX)
}

impl Threads {
    pub fn new() -> Threads {
        let place =
            |_| Place { thread: AtomicU64::new(0), chunk: AtomicU64::new(0), ended: Futex::new(0) };
        Threads(std::array::from_fn(place))
    }

    /// Notes that this thread makes a chunk. `None`: the place of the note is taken.
    pub fn make(&self, chunk: usize) -> Option<Making<'_>> {
        let place = &self.0[chunk % PLACES];
        let own = process() << 32 | u64::from(thread_number());
        let there = place.thread.load(Ordering::Acquire);
        if there != 0 {
            if there >> 32 == process() {
                return None;
            }
            // Inherited. A parent's thread makes nothing here.
            place.chunk.store(0, Ordering::Release);
        }
        place.thread.compare_exchange(there, own, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        place.chunk.store(chunk as u64 + 1, Ordering::Release);
        Some(Making(place, own))
    }

    /// Waits for the thread of this process that makes a chunk. `Some(false)`: that thread is this
    /// one, or waits for it. `None`: the thread is not known.
    pub fn wait(&self, chunk: usize) -> Option<bool> {
        let (place, now) = (&self.0[chunk % PLACES], generation::current());
        // Read before the thread: the word changes after the thread has gone.
        let seen = place.ended.word.load(Ordering::Acquire);
        let thread = place.thread.load(Ordering::Acquire);
        let is_known = thread != 0
            && thread >> 32 == process()
            && place.chunk.load(Ordering::Acquire) == chunk as u64 + 1;
        is_known.then(|| waits::wait(&place.ended, seen, thread as u32, now))
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let Making(place, own) = self;
        // This is a child's copy.
        if *own >> 32 != process() {
            return;
        }
        place.chunk.store(0, Ordering::Release);
        place.thread.store(0, Ordering::Release);
        place.ended.word.fetch_add(1, Ordering::Release);
        place.ended.wake_all();
    }
}
