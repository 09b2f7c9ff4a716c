//! The sizes from which on the hooks serve requests. The environment sets them once. The hooks stop
//! serving in a program that the pool would disturb.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const NEVER: usize = usize::MAX;

/// For the whole process: the arguments of the C library's functions contain no settings.
pub static ALLOCATIONS: Allocations = Allocations::none();
/// For the whole process, as [`ALLOCATIONS`] is.
pub static MAPPINGS: Mappings = Mappings::none();

/// malloc and related functions.
pub struct Allocations {
    /// Requests of this size and more are looked at. It is the pool's size, or 0 while the next
    /// call is to start the keeper, or a thread is starting it. The usual case takes one
    /// comparison.
    look_from: AtomicUsize,
    /// The pool serves requests of this size and more.
    from: AtomicUsize,
    /// The next allocator serves larger requests.
    up_to: AtomicUsize,
    /// The next allocator is glibc's, and adapts to the blocks that are freed. See `hooks::malloc`.
    teach: AtomicBool,
}

impl Allocations {
    const fn none() -> Allocations {
        Allocations {
            look_from: AtomicUsize::new(NEVER),
            from: AtomicUsize::new(NEVER),
            up_to: AtomicUsize::new(isize::MAX as usize),
            teach: AtomicBool::new(false),
        }
    }

    /// Has glibc's malloc adapt to the blocks that the program frees, or has it do so no more.
    pub fn teach_glibc(&self, yes: bool) {
        self.teach.store(yes, Ordering::Relaxed);
    }

    pub fn are_taught(&self) -> bool {
        self.teach.load(Ordering::Relaxed)
    }

    /// Serves requests of `from` to `up_to` bytes.
    pub fn serve(&self, from: usize, up_to: usize) {
        self.up_to.store(up_to.min(isize::MAX as usize), Ordering::Relaxed);
        self.from.store(from, Ordering::Relaxed);
        self.look_from.store(from, Ordering::Relaxed);
    }

    /// Serves no new request from now on. Served blocks are freed as before.
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

    /// Whether a request is small enough to be served.
    pub fn reach(&self, size: usize) -> bool {
        size <= self.up_to.load(Ordering::Relaxed)
    }

    /// Whether the hooks look at a request.
    #[inline]
    pub fn are_looked_at(&self, size: usize) -> bool {
        size >= self.look_from.load(Ordering::Relaxed)
    }

    /// Makes the hooks look at the next request of any size.
    #[cold]
    pub fn look_at_next(&self) {
        self.look_from.store(0, Ordering::Relaxed);
    }

    /// Whether [`Allocations::look_at_next`] is in force.
    pub fn look_at_all(&self) -> bool {
        self.look_from.load(Ordering::Relaxed) == 0
    }

    /// Makes the hooks ignore small requests again.
    pub fn look_at_served(&self) {
        self.look_from.store(self.from(), Ordering::Relaxed);
    }
}

/// mmap, munmap and mremap.
pub struct Mappings {
    /// The pool serves mmap from this size on.
    map_from: AtomicUsize,
    /// Larger mappings go to the kernel, which makes or refuses them.
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

    /// Makes every mmap go to the kernel from now on.
    pub fn serve_no_more(&self) {
        self.map_from.store(NEVER, Ordering::Relaxed);
    }

    /// Makes every call go to the kernel from now on.
    pub fn leave_all(&self) {
        for from in [&self.map_from, &self.unmap_from, &self.populate_from] {
            from.store(NEVER, Ordering::Relaxed);
        }
    }

    pub fn are_served(&self) -> bool {
        self.map_from.load(Ordering::Relaxed) != NEVER
    }

    /// Whether the pool serves a mapping of this size.
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
