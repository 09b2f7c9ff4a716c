//! From which size on the hooks take requests over. The environment sets it once, and a program with which the pool
//! would interfere takes it back.

use std::sync::atomic::{AtomicUsize, Ordering};

const NEVER: usize = usize::MAX;

/// For the whole process: the C library's functions are told no settings.
pub static ALLOCATIONS: Allocations = Allocations::none();
/// For the whole process, as [`ALLOCATIONS`].
pub static MAPPINGS: Mappings = Mappings::none();

/// malloc and its kin.
pub struct Allocations {
    /// Requests from so many bytes on are looked at: the pool's size, or 0 while the next call is to start
    /// the keeper, or a thread is starting it. One comparison in the usual case.
    look_from: AtomicUsize,
    /// Requests from so many bytes on are the pool's.
    from: AtomicUsize,
    /// Larger requests are the next allocator's.
    up_to: AtomicUsize,
}

impl Allocations {
    const fn none() -> Allocations {
        Allocations {
            look_from: AtomicUsize::new(NEVER),
            from: AtomicUsize::new(NEVER),
            up_to: AtomicUsize::new(isize::MAX as usize),
        }
    }

    /// Serves requests of `from` to `up_to` bytes.
    pub fn serve(&self, from: usize, up_to: usize) {
        self.up_to.store(up_to.min(isize::MAX as usize), Ordering::Relaxed);
        self.from.store(from, Ordering::Relaxed);
        self.look_from.store(from, Ordering::Relaxed);
    }

    /// From here on nothing new is served; what is served is freed as before.
    pub fn serve_no_more(&self) {
        self.from.store(NEVER, Ordering::Relaxed);
        self.look_from.store(NEVER, Ordering::Relaxed);
    }

    pub fn are_served(&self) -> bool {
        self.from() != NEVER
    }

    /// The smallest request that is served.
    pub fn from(&self) -> usize {
        self.from.load(Ordering::Relaxed)
    }

    /// Whether a request is not too large to be served.
    pub fn reach(&self, size: usize) -> bool {
        size <= self.up_to.load(Ordering::Relaxed)
    }

    /// Whether a request is to be looked at closer.
    #[inline]
    pub fn are_looked_at(&self, size: usize) -> bool {
        size >= self.look_from.load(Ordering::Relaxed)
    }

    /// Has the next request looked at, whatever its size.
    #[cold]
    pub fn look_at_next(&self) {
        self.look_from.store(0, Ordering::Relaxed);
    }

    /// Whether [`Allocations::look_at_next`] holds.
    pub fn look_at_all(&self) -> bool {
        self.look_from.load(Ordering::Relaxed) == 0
    }

    /// Small requests are not looked at any more.
    pub fn look_at_served(&self) {
        self.look_from.store(self.from(), Ordering::Relaxed);
    }
}

/// mmap, munmap and mremap.
pub struct Mappings {
    /// mmap is served from the pool from so many bytes on.
    map_from: AtomicUsize,
    /// Larger mappings are the kernel's, to make or to refuse.
    map_up_to: AtomicUsize,
    /// munmap is retired from so many bytes on.
    unmap_from: AtomicUsize,
    /// MAP_POPULATE is done in parallel from so many bytes on.
    populate_from: AtomicUsize,
    populate_threads: AtomicUsize,
}

impl Mappings {
    const fn none() -> Mappings {
        Mappings {
            map_from: AtomicUsize::new(NEVER),
            map_up_to: AtomicUsize::new(NEVER),
            unmap_from: AtomicUsize::new(NEVER),
            populate_from: AtomicUsize::new(NEVER),
            populate_threads: AtomicUsize::new(0),
        }
    }

    /// Serves mmap of `from` to `up_to` bytes.
    pub fn serve(&self, from: usize, up_to: usize) {
        self.map_up_to.store(up_to, Ordering::Relaxed);
        self.map_from.store(from, Ordering::Relaxed);
    }

    /// From here on mmap is the kernel's.
    pub fn serve_no_more(&self) {
        self.map_from.store(NEVER, Ordering::Relaxed);
    }

    /// From here on every call is the kernel's.
    pub fn leave_all(&self) {
        for from in [&self.map_from, &self.unmap_from, &self.populate_from] {
            from.store(NEVER, Ordering::Relaxed);
        }
    }

    pub fn are_served(&self) -> bool {
        self.map_from.load(Ordering::Relaxed) != NEVER
    }

    /// Whether a mapping of this size is the pool's.
    #[inline]
    pub fn serves(&self, len: usize) -> bool {
        len >= self.map_from.load(Ordering::Relaxed)
            && len <= self.map_up_to.load(Ordering::Relaxed)
    }

    /// Whether the kernel would not refuse a mapping of this size for its size, so that it need not be counted.
    #[inline]
    pub fn may_go_uncounted(&self, len: usize) -> bool {
        self.are_served() && len <= self.map_up_to.load(Ordering::Relaxed)
    }

    pub fn retire(&self, from: usize) {
        self.unmap_from.store(from, Ordering::Relaxed);
    }

    pub fn are_retired(&self) -> bool {
        self.unmap_from.load(Ordering::Relaxed) != NEVER
    }

    /// Whether an unmap of this size is retired.
    #[inline]
    pub fn retires(&self, len: usize) -> bool {
        len >= self.unmap_from.load(Ordering::Relaxed)
    }

    pub fn populate(&self, from: usize, threads: usize) {
        self.populate_threads.store(threads, Ordering::Relaxed);
        self.populate_from.store(from, Ordering::Relaxed);
    }

    /// Whether a mapping of this size is populated in parallel.
    #[inline]
    pub fn populates(&self, len: usize) -> bool {
        len >= self.populate_from.load(Ordering::Relaxed)
    }

    /// By how many threads; 0: as the library chooses.
    pub fn populate_threads(&self) -> usize {
        self.populate_threads.load(Ordering::Relaxed)
    }
}
