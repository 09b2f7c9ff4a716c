//! The layout of the shared file. The data comes first, so that its offset in the file is its
//! offset in the data. Then come a record for each chunk, and one page of facts.

use super::chunk::PINS_AT;
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::sync::{AtomicU32, AtomicU64, AtomicU8, Ordering};
use crate::text::{text, Text};

/// "tenure" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"tenure\0\x05");
/// The largest number of processes. Their flags fit the page of facts.
pub(super) const MOST_SLOTS: u32 = 1024;
/// The largest number of chunks. A fork looks at the private count of each: 0.1 s for so many.
const MOST_CHUNKS: usize = 1 << 22;
const FLAGS_AT: usize = 1024;

/// The facts with a fixed place in their page. The sizes are read once, when the file is opened.
#[repr(C)]
pub(super) struct Facts {
    /// Written last.
    magic: AtomicU64,
    page: AtomicU64,
    data: AtomicU64,
    chunk: AtomicU64,
    slots: AtomicU32,
    /// Roughly tenths of a second. It measures a chunk's age.
    pub tick: AtomicU32,
    /// The slot of the process that purges now, plus one. 0: none.
    pub purger: AtomicU32,
    /// Forks that have begun. It changes before a child inherits pins.
    pub forks: AtomicU32,
    /// The tick at which a process last checked which processes live.
    pub looked: AtomicU32,
    /// A [`Use`].
    usage: AtomicU32,
    /// Chunks purged so far.
    pub purges: AtomicU64,
    /// Dead processes whose pins were removed.
    pub buried: AtomicU64,
    /// In a file of kept chunks: the length that its maker asked for. 0: chunks are pinned.
    asked: AtomicU64,
    /// 1 after a chunk was released for the first time.
    pub released: AtomicU32,
    /// Refill functions make the chunks, and threads touch them without pins: see
    /// [`refill`](super::refill).
    refilled: AtomicU32,
    /// 1 after a process had it open that userfaultfd does not watch: see
    /// [`Region::is_watched`](super::region::Region::is_watched).
    pub unwatched: AtomicU32,
}
const _: () = assert!(size_of::<Facts>() <= FLAGS_AT);

/// What the memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Chunks that the program numbers.
    Chunks,
    /// A [`SharedCache`](super::SharedCache).
    Cache,
    /// Chunks that are [kept](super::kept), not pinned.
    Kept,
}

impl Facts {
    /// The length of the facts.
    pub const LEN: usize = size_of::<Facts>();

    /// Returns the facts that were read from a file.
    #[allow(unsafe_code, reason = "bytes become atomics")]
    pub fn of(bytes: [u8; Self::LEN]) -> Facts {
        // SAFETY: a structure of atomic integers, of the same size. Any bytes are a valid value.
        unsafe { std::mem::transmute::<[u8; Self::LEN], Facts>(bytes) }
    }
}

/// Flags of a process.
pub(super) mod slot {
    /// A process has or had this slot. Its lock shows whether the process lives.
    pub const USED: u8 = 1;
    /// The process is a child that has not run yet and may have pins that are not noted: nothing
    /// may be purged.
    pub const HOLDS_ALL: u8 = 2;
    /// A process has left the slot, and could not remove what it left in the records.
    pub const LEFT: u8 = 4;
}

/// The sizes in the page of facts. They are checked once, and kept where no other process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub data: usize,
    pub chunk: usize,
    pub chunks: usize,
    pub slots: u32,
    pub record: usize,
    /// Chunks are [kept](super::kept), not pinned: the length that the maker asked for. 0: they are
    /// pinned.
    pub asked: usize,
    /// Each page of a chunk is put in place whole: see [`refill`](super::refill).
    pub refilled: bool,
}

impl Shape {
    /// # Errors
    /// `EINVAL`: these sizes are not possible.
    pub fn new(call: &'static str, len: usize, chunk: usize, slots: u32) -> Result<Shape> {
        let page = os::page_size();
        let bad = |why: Text, remedy: &'static str| {
            Err(Error::new(ErrorKind::BadRange, call, why, remedy))
        };
        if len == 0 || len > 1 << 46 {
            return bad(text!("the length is {len}"), "ask for 1 byte to 64 TiB");
        }
        if !chunk.is_power_of_two() || chunk < page || chunk > 1 << 30 {
            let why = text!("a chunk of {chunk} bytes is not a power of two from a page to 1 GiB");
            return bad(why, "pass 65536, for instance");
        }
        if slots == 0 || slots > MOST_SLOTS {
            let why =
                text!("the number of processes is {slots}, and must be from 1 to {MOST_SLOTS}");
            return bad(why, "pass the number of processes that may have it open at a time");
        }
        let data = len.div_ceil(chunk) * chunk;
        let chunks = len.div_ceil(chunk);
        if chunks > MOST_CHUNKS {
            let why = text!("{len} bytes are {chunks} chunks of {chunk} bytes");
            return bad(why, "take larger chunks: there may be 4,194,304");
        }
        // A record has cache lines of its own, and none lies in two pages: a read of a record that
        // has memory takes no more.
        let record = (PINS_AT + 2 * slots as usize).next_power_of_two().max(64);
        Ok(Shape { data, chunk, chunks, slots, record, asked: 0, refilled: false })
    }

    /// Returns the bytes of the records, in whole pages.
    pub fn records(&self) -> usize {
        (self.chunks * self.record).next_multiple_of(os::page_size())
    }

    /// Returns the bytes of the file.
    pub fn file(&self) -> u64 {
        (self.data + self.records() + os::page_size()) as u64
    }

    /// Writes the facts of a file that no process has opened yet.
    pub fn write(&self, facts: &Facts, usage: Use) {
        facts.usage.store(usage as u32, Ordering::Relaxed);
        facts.page.store(os::page_size() as u64, Ordering::Relaxed);
        facts.data.store(self.data as u64, Ordering::Relaxed);
        facts.chunk.store(self.chunk as u64, Ordering::Relaxed);
        facts.slots.store(self.slots, Ordering::Relaxed);
        facts.asked.store(self.asked as u64, Ordering::Relaxed);
        facts.refilled.store(self.refilled.into(), Ordering::Relaxed);
        facts.magic.store(MAGIC, Ordering::Release);
    }

    /// Reads the facts of a file of `bytes` bytes.
    ///
    /// # Errors
    /// `EPROTO`: the file is not tenure's, is not complete, or has another version.
    pub fn read(call: &'static str, facts: &Facts, bytes: u64, usage: Use) -> Result<Shape> {
        let not = |why: &'static str| {
            let remedy = "pass the descriptor that the maker of a SharedVolatile passed on";
            Error::new(ErrorKind::BadHeader, call, why, remedy)
        };
        if facts.magic.load(Ordering::Acquire) != MAGIC {
            return Err(not("the file is no shared volatile memory of this version"));
        }
        if facts.page.load(Ordering::Relaxed) != os::page_size() as u64 {
            return Err(not("its pages have another size than this machine's"));
        }
        if facts.usage.load(Ordering::Relaxed) != usage as u32 {
            return Err(not(
                "it is shared memory for another use: chunks, a shared cache, or ashmem",
            ));
        }
        let data = facts.data.load(Ordering::Relaxed);
        let chunk = facts.chunk.load(Ordering::Relaxed);
        let slots = facts.slots.load(Ordering::Relaxed);
        let shape = Shape::new(call, data as usize, chunk as usize, slots)
            .map_err(|_| not("its sizes are impossible"))?;
        if shape.data as u64 != data || shape.file() != bytes {
            return Err(not("its sizes do not fit the file's length"));
        }
        let asked = facts.asked.load(Ordering::Relaxed);
        let is_one_page = chunk == os::page_size() as u64;
        if asked != 0 && (!is_one_page || asked > data || asked <= data - chunk) {
            return Err(not("its sizes are impossible"));
        }
        let refilled = facts.refilled.load(Ordering::Relaxed);
        if refilled > 1 || refilled == 1 && usage != Use::Chunks {
            return Err(not("it has a feature that this version does not know"));
        }
        Ok(Shape { asked: asked as usize, refilled: refilled == 1, ..shape })
    }
}

/// Returns the flags of the processes, which follow the facts.
///
/// # Safety
/// `facts` lies at the start of a mapped page, which stays mapped for `'a`, and `slots` is from
/// that page's shape.
#[allow(unsafe_code, reason = "gives out atomics of shared memory")]
pub(super) unsafe fn flags<'a>(facts: *const Facts, slots: u32) -> &'a [AtomicU8] {
    // SAFETY: the caller promises that the page is mapped. MOST_SLOTS flags fit behind FLAGS_AT in
    // the smallest page. All processes use them only as atomics.
    unsafe { std::slice::from_raw_parts(facts.cast::<AtomicU8>().add(FLAGS_AT), slots as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_page_of_facts() {
        let shape = Shape::new("test", 100_000, 1 << 16, 56).unwrap();
        assert_eq!((shape.data, shape.chunks, shape.record), (1 << 17, 2, 128));
        assert_eq!(shape.file() as usize, (1 << 17) + 2 * os::page_size());
        for (len, chunk, slots) in [
            (0, 1 << 16, 1),
            (1 << 45, 1 << 16, 1),
            (1, 3 << 16, 1),
            (1, 1 << 9, 1),
            (1, 1 << 16, 0),
            (1, 1 << 16, 2000),
        ] {
            assert_eq!(Shape::new("test", len, chunk, slots).unwrap_err().errno(), libc::EINVAL);
        }
    }
}
