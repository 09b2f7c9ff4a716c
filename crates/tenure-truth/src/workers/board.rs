//! The memory to which all processes of a run write: counts, and the facts about each chunk. It
//! does not belong to tenure.

#![allow(unsafe_code, reason = "maps memory that forked processes share")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Workers at a time.
pub const MOST_WORKERS: usize = 16;
/// Chunks of both memories.
pub const MOST_CHUNKS: usize = 8192;
/// Keys of the cache.
pub const KEYS: usize = 4096;
/// Workers over time; later ones use the places of earlier ones again.
const MOST_LIVES: usize = 1 << 16;

/// See the head of the module.
pub struct Board {
    /// Chunks that were pinned and found intact.
    pub reads: AtomicU64,
    pub made: AtomicU64,
    pub remade: AtomicU64,
    pub given_up: AtomicU64,
    pub told: AtomicU64,
    pub wrong: AtomicU64,
    pub told_twice: AtomicU64,
    pub hangs: AtomicU64,
    pub grandchildren: AtomicU64,
    pub handles: AtomicU64,
    /// Set when all processes must end.
    pub over: AtomicU32,
    /// Each worker's steps: a worker that takes none hangs.
    pub steps: [AtomicU64; MOST_WORKERS],
    /// The action of each worker, for the report.
    pub doing: [AtomicU32; MOST_WORKERS],
    /// The worker has its stake pinned.
    pub staked: [AtomicU32; MOST_WORKERS],
    /// The version of each chunk's bytes: written by its maker.
    pub versions: [AtomicU64; MOST_CHUNKS],
    /// The life that makes the chunk; 0: none.
    pub makers: [AtomicU32; MOST_CHUNKS],
    /// Values that the cache found, and that were correct.
    pub found: AtomicU64,
    /// For each key: the life that changes it; the numbers of the last change that began, and of
    /// the last one that ended.
    pub changers: [AtomicU32; KEYS],
    pub begun: [AtomicU64; KEYS],
    pub settled: [AtomicU64; KEYS],
    /// Lives that have ended.
    gone: [AtomicU32; MOST_LIVES],
    /// Lives that were ended from outside, or are about to be.
    ended: [AtomicU32; MOST_LIVES],
    /// The number of living grandchildren of each life.
    pub living: [AtomicU32; MOST_LIVES],
}

impl Board {
    /// A fresh one, which children share.
    pub fn map() -> std::io::Result<&'static Board> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let len = size_of::<Board>();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the mapping is as long as a Board, zeroed and never unmapped, and a Board
        // consists of atomics.
        Ok(unsafe { &*(at as *const Board) })
    }

    /// Whether a life was ended from outside.
    pub fn is_ended(&self, life: u32) -> bool {
        self.ended[life as usize % MOST_LIVES].load(Ordering::SeqCst) == life
    }

    /// Notes that it is about to be ended.
    pub fn end(&self, life: u32) {
        self.ended[life as usize % MOST_LIVES].store(life, Ordering::SeqCst);
    }

    /// Returns whether a life has ended and does nothing any more.
    pub fn is_gone(&self, life: u32) -> bool {
        self.gone[life as usize % MOST_LIVES].load(Ordering::SeqCst) == life
    }

    /// Notes that it has ended.
    pub fn went(&self, life: u32) {
        self.gone[life as usize % MOST_LIVES].store(life, Ordering::SeqCst);
    }

    /// The number of living grandchildren of a life.
    pub fn living(&self, life: u32) -> &AtomicU32 {
        &self.living[life as usize % MOST_LIVES]
    }

    /// Counts a wrong byte, and describes it.
    pub fn wrong(&self, text: std::fmt::Arguments<'_>) {
        if self.wrong.fetch_add(1, Ordering::Relaxed) < 20 {
            eprintln!("WRONG: {text} (process {})", std::process::id());
        }
    }
}
