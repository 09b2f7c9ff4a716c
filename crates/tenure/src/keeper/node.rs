//! One volatile range: a state word that a pin changes with one instruction, and where it lies.
//!
//! Nodes live in a slab that is never given back, so a stale reference to one is always readable;
//! the use counter in the upper half of the word changes with every pin, reuse and resize, so a
//! compare-and-swap that started from a stale word fails.

use crate::os;
use crate::range::PageRange;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::Mutex;

/// The low half: how many pins, the phase, and flags. The high half: the use counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub u64);

/// Where a node's pages stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The kernel cannot take the pages. With no pins: marked.
    Resident = 0,
    /// The keeper is telling the kernel.
    Offering = 1,
    /// The kernel may take them.
    Offered = 2,
    /// Somebody is taking them back.
    Reviving = 3,
}

impl Word {
    pub const PIN: u64 = 1;
    const PINS: u64 = (1 << 20) - 1;
    const PHASE_SHIFT: u32 = 20;
    const PHASE: u64 = 3 << Self::PHASE_SHIFT;
    /// Contents were lost and have not been declared good again (owned objects).
    pub const LOST: u64 = 1 << 22;
    /// The last unpin has more to do (the debug mode that purges at once).
    pub const SLOW_UNPIN: u64 = 1 << 23;
    /// Not in use.
    pub const FREE: u64 = 1 << 24;
    /// Being split, merged or dropped.
    pub const HELD: u64 = 1 << 25;
    /// One use.
    pub const USE: u64 = 1 << 32;

    pub fn pins(self) -> u64 {
        self.0 & Self::PINS
    }
    pub fn phase(self) -> Phase {
        match (self.0 & Self::PHASE) >> Self::PHASE_SHIFT {
            0 => Phase::Resident,
            1 => Phase::Offering,
            2 => Phase::Offered,
            _ => Phase::Reviving,
        }
    }
    pub fn with_phase(self, phase: Phase) -> Word {
        Word((self.0 & !Self::PHASE) | ((phase as u64) << Self::PHASE_SHIFT))
    }
    pub fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
    /// Resident, contents good, in use by nobody who changes its shape: a pin needs nothing more.
    pub fn plain(self) -> bool {
        self.0 & (Self::PHASE | Self::LOST | Self::FREE | Self::HELD) == 0
    }
    pub fn uses(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// As many pins as are allowed at once.
    pub fn too_many_pins(self) -> bool {
        self.pins() > Self::PINS / 2
    }
    pub fn used(self) -> Word {
        Word(self.0.wrapping_add(Self::USE))
    }
}

/// Properties of a node that only its owner or the keeper changes, outside of the word.
pub(crate) mod flag {
    /// A raw range: it may be split and merged, and its mapping is the program's.
    pub const RAW: u8 = 1;
    /// Registered with userfaultfd although resident (owned memory is left so).
    pub const REGISTERED: u8 = 2;
    /// Some pages had never been touched when the node was last offered.
    pub const SPARSE: u8 = 4;
    /// The range has no missing page and cannot get one but by being discarded.
    pub const DENSE: u8 = 8;
    /// Missing pages are refilled by the refill thread.
    pub const REFILLED: u8 = 32;
    /// Purges can no longer be told from zeros: everything counts as purged.
    pub const SUSPECT: u8 = 64;
}

/// See the module's head.
#[repr(C)]
pub(crate) struct Node {
    pub word: AtomicU64,
    start: AtomicUsize,
    pages: AtomicU32,
    /// The use counter that the keeper saw last.
    pub seen_uses: AtomicU32,
    /// The fork count at which the pages were last known to be this process's alone.
    pub exclusive_at: AtomicU32,
    /// Rounds for which the keeper has seen no use, saturating.
    pub age: AtomicU8,
    pub priority: AtomicU8,
    pub flags: AtomicU8,
    /// Rounds to leave out after a refusal.
    pub rest: AtomicU8,
}

// The promise is at most 64 bytes a marked range, index included.
const _: () = assert!(size_of::<Node>() <= 32);

impl Node {
    pub fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    pub fn try_change(&self, from: Word, to: Word) -> bool {
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Applies `change` until it sticks; `None` from `change` gives up. Answers the word before.
    pub fn change(&self, mut change: impl FnMut(Word) -> Option<Word>) -> Result<Word, Word> {
        let mut word = self.load();
        loop {
            let Some(next) = change(word) else { return Err(word) };
            match self.word.compare_exchange_weak(
                word.0,
                next.0,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(word),
                Err(now) => word = Word(now),
            }
        }
    }

    /// Moves to another phase; pins and uses may change meanwhile. The caller owns the phase.
    pub fn set_phase(&self, phase: Phase) {
        let _ = self.change(|word| Some(word.with_phase(phase)));
    }

    pub fn start(&self) -> usize {
        self.start.load(Ordering::Acquire)
    }
    pub fn len(&self) -> usize {
        self.pages.load(Ordering::Acquire) as usize * os::page_size()
    }
    pub fn end(&self) -> usize {
        self.start() + self.len()
    }
    pub fn range(&self) -> PageRange {
        let start = self.start();
        PageRange { start, end: start + self.len() }
    }
    pub fn set_range(&self, range: PageRange) {
        self.start.store(range.start, Ordering::Release);
        self.pages.store((range.len() / os::page_size()) as u32, Ordering::Release);
    }
    pub fn is(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }
    pub fn set(&self, flag: u8, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::AcqRel);
        } else {
            self.flags.fetch_and(!flag, Ordering::AcqRel);
        }
    }
}

/// The longest node: `pages` is 32 bits.
pub(crate) fn longest() -> usize {
    (u32::MAX as usize) * os::page_size()
}

/// A node's number, which fits an index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub u32);

const CHUNK: usize = 1 << 12;
const CHUNKS: usize = 1 << 13;

/// All nodes of the process: 2^25 at most.
pub(crate) struct Slab {
    chunks: [AtomicPtr<Node>; CHUNKS],
    /// Nodes in use in each chunk, so that a look at all nodes leaves out what came and went.
    used: [AtomicU32; CHUNKS],
    made: AtomicU32,
    live: AtomicU32,
    free: Mutex<Vec<NodeId>>,
}

static SLAB: Slab = Slab {
    chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
    used: [const { AtomicU32::new(0) }; CHUNKS],
    made: AtomicU32::new(0),
    live: AtomicU32::new(0),
    free: Mutex::new(Vec::new()),
};

/// The process's nodes.
pub(crate) fn slab() -> &'static Slab {
    &SLAB
}

impl NodeId {
    pub fn node(self) -> &'static Node {
        slab().get(self)
    }
}

impl Slab {
    /// How many numbers have ever been given out: every node has a smaller one.
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Acquire)
    }

    /// Calls `each` with every node in use, but for those that come and go meanwhile.
    pub fn each(&self, mut each: impl FnMut(NodeId, &'static Node, Word)) {
        let made = self.made() as usize;
        for (chunk, used) in self.used.iter().enumerate().take(made.div_ceil(CHUNK)) {
            if used.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for number in chunk * CHUNK..((chunk + 1) * CHUNK).min(made) {
                let id = NodeId(number as u32);
                let node = id.node();
                let word = node.load();
                if !word.has(Word::FREE) {
                    each(id, node, word);
                }
            }
        }
    }

    /// How many nodes are in use.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::SeqCst)
    }

    pub fn get(&self, id: NodeId) -> &'static Node {
        let chunk = self.chunks[id.0 as usize / CHUNK].load(Ordering::Acquire);
        debug_assert!(!chunk.is_null());
        // SAFETY: a number is given out only after its chunk was published, a chunk has CHUNK nodes
        // and is never freed.
        unsafe { &*chunk.add(id.0 as usize % CHUNK) }
    }

    /// Takes a node out of the free ones, for `range`, in state `word` (its use counter excepted).
    pub fn take(&self, range: PageRange, word: Word, priority: u8, flags: u8) -> Option<NodeId> {
        let mut free = self.lock();
        let id = match free.pop() {
            Some(id) => id,
            None => {
                let next = self.made.load(Ordering::Relaxed);
                let chunk = next as usize / CHUNK;
                if chunk >= CHUNKS {
                    return None;
                }
                if next as usize % CHUNK == 0 {
                    self.chunks[chunk].store(new_chunk(), Ordering::Release);
                }
                self.made.store(next + 1, Ordering::Release);
                NodeId(next)
            }
        };
        drop(free);
        let node = self.get(id);
        node.set_range(range);
        node.priority.store(priority, Ordering::Relaxed);
        node.flags.store(flags, Ordering::Relaxed);
        node.age.store(0, Ordering::Relaxed);
        // The pages of a raw range may have been shared by a fork before they became known.
        let exclusive_at = if flags & flag::RAW != 0 { 0 } else { os::fork::count() };
        node.exclusive_at.store(exclusive_at, Ordering::Relaxed);
        let _ = node.change(|old| Some(Word((old.0 >> 32 << 32) | (word.0 & 0xFFFF_FFFF)).used()));
        self.used[id.0 as usize / CHUNK].fetch_add(1, Ordering::Relaxed);
        self.live.fetch_add(1, Ordering::SeqCst);
        super::inbox::stirred();
        Some(id)
    }

    /// Puts a node back. The caller has made sure that nobody pins it and the keeper is not at it.
    pub fn put(&self, id: NodeId) {
        self.live.fetch_sub(1, Ordering::SeqCst);
        self.used[id.0 as usize / CHUNK].fetch_sub(1, Ordering::Relaxed);
        let _ = self.get(id).change(|word| Some(Word((word.used().0 >> 32 << 32) | Word::FREE)));
        self.lock().push(id);
    }

    /// The free list's lock; held over a fork so that the child finds it consistent.
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Vec<NodeId>> {
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn new_chunk() -> *mut Node {
    let nodes: Box<[Node]> = (0..CHUNK)
        .map(|_| Node {
            word: AtomicU64::new(Word::FREE),
            start: AtomicUsize::new(0),
            pages: AtomicU32::new(0),
            seen_uses: AtomicU32::new(0),
            exclusive_at: AtomicU32::new(0),
            age: AtomicU8::new(0),
            priority: AtomicU8::new(0),
            flags: AtomicU8::new(0),
            rest: AtomicU8::new(0),
        })
        .collect();
    Box::leak(nodes).as_mut_ptr()
}
