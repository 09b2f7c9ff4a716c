//! For the unit tests: an allocator that ends the process if a thread allocates or frees while it
//! has a lock or a claim of tenure's. The reason: the program's allocator may be tenure's own pool,
//! whose locks come later in the order, and a fork may hold that allocator's locks while it waits
//! for the claim.

#![allow(unsafe_code, reason = "is the tests' allocator")]

use crate::os::thread;
use crate::runtime::lock;
use crate::sync::{own_claims, set_own_claims};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Whether tenure's own threads get no memory, as where the C library has none for an arena.
/// For the whole process: the threads have one allocator.
pub(crate) static REFUSES_OWN_THREADS: AtomicBool = AtomicBool::new(false);

/// Whether no thread gets much memory at once, as where the program has used up its addresses.
/// For the whole process: the threads have one allocator.
pub(crate) static REFUSES_LARGE: AtomicBool = AtomicBool::new(false);

/// The number of a thread that gets no memory at all, or 0.
/// For the whole process: the threads have one allocator.
pub(crate) static REFUSES_THREAD: AtomicI32 = AtomicI32::new(0);

struct Unlocked;

#[global_allocator]
static ALLOCATOR: Unlocked = Unlocked;

impl Unlocked {
    fn check(&self, call: &str) {
        let (ranks, claims) = (lock::take_held_ranks().unwrap_or(0), own_claims());
        if ranks != 0 || claims != 0 {
            set_own_claims(0);
            // Not by `eprintln`: the test harness captures its output, and this process ends before
            // the harness shows it.
            let trace = std::backtrace::Backtrace::force_capture();
            let text = format!(
                "tenure: {call} under locks of the ranks {ranks:#b} and {claims} claims\n{trace}\n"
            );
            // SAFETY: `write` only reads from `text`, which lives and has this length; descriptor 2
            // is standard error.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            std::process::abort();
        }
    }
}

fn refuses_this_thread() -> bool {
    let refused = REFUSES_THREAD.load(Ordering::Relaxed);
    refused != 0 && refused == rustix::thread::gettid().as_raw_nonzero().get()
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the trait's
// promises.
unsafe impl GlobalAlloc for Unlocked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.check("an allocation");
        let is_large = layout.size() >= 128 << 10;
        if REFUSES_LARGE.load(Ordering::Relaxed) && is_large
            || refuses_this_thread()
            || REFUSES_OWN_THREADS.load(Ordering::Relaxed) && thread::is_own_thread()
        {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller of `alloc` passes a layout whose size is not zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.check("a free");
        // SAFETY: the caller of `dealloc` passes a block of `alloc`, which came from `System`, with
        // its layout.
        unsafe { System.dealloc(block, layout) }
    }
}

mod tests {
    use super::REFUSES_THREAD;
    use crate::lock::{self, When};
    use crate::os::page_size;
    use crate::volatile::{self, Volatile};
    use crate::{Cache, Error, ErrorKind, Mapping};
    use rustix::io::Errno;
    use rustix::thread::gettid;
    use std::sync::atomic::Ordering;
    use tenure_testkit::{in_child, this_test};

    /// A different number each time (xorshift).
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % end
        }
    }

    /// Cuts and joins ranges while the worker offers them and purges are found and reported.
    fn use_ranges(random: &mut Random) {
        const PAGES: usize = 64;
        let mut map = Mapping::anonymous(PAGES * page_size()).unwrap();
        for _ in 0..400 {
            let first = random.below(PAGES);
            let len = (1 + random.below(PAGES - first)) * page_size();
            let at = map.as_mut_ptr().wrapping_add(first * page_size());
            // SAFETY: inside the mapping, which is written after an unmark only.
            let done = unsafe {
                match random.below(6) {
                    0 => volatile::mark(at, len),
                    1 => volatile::offer_now(at, len),
                    2 => volatile::purge_now(at, len).map(drop),
                    3 => volatile::forget(at, len),
                    _ => volatile::unmark(at, len).map(|_| at.write_bytes(7, len)),
                }
            };
            let _ = done;
        }
    }

    fn use_objects_and_a_cache(random: &mut Random) {
        let len = 8 * page_size();
        let refill = volatile::Refill::pages(|_, bytes| {
            bytes.fill(7);
            Ok(())
        });
        let mut object = Volatile::builder(len).refill(refill).build().unwrap();
        object.pin_mut().unwrap().fill(7);
        let cache = Cache::<usize>::builder().ceiling(8 << 20).build().unwrap();
        for key in 0..400 {
            let len = [100, 5000, 70_000, 700_000][random.below(4)];
            let _ = cache.insert(key, &vec![key as u8; len]);
            let _ = cache.get(&random.below(key + 1));
            cache.remove(&random.below(key + 1));
            let _ = object.purge_now();
            assert_eq!(object.pin().unwrap()[0], 7);
        }
    }

    /// Uses all of tenure, so that this allocator sees each place that allocates.
    fn use_all() {
        std::thread::scope(|scope| {
            for seed in [1, 2] {
                scope.spawn(move || {
                    let mut random = Random(seed);
                    use_ranges(&mut random);
                    use_objects_and_a_cache(&mut random);
                });
            }
        });
    }

    #[test]
    fn nothing_is_allocated_under_a_lock() {
        in_child(this_test!(), &[], use_all);
    }

    #[test]
    fn nothing_is_allocated_under_a_lock_with_detection_by_words() {
        in_child(this_test!(), &[("TENURE_DETECT", "words")], use_all);
    }

    /// `format!` would end the process.
    #[test]
    fn an_error_without_memory_is_a_shorter_one() {
        in_child(this_test!(), &[], || {
            let len = page_size();
            let mut memory = Mapping::anonymous(len).unwrap();
            let at = memory.as_mut_ptr();
            let _locked = lock::lock(at, len, When::Now).unwrap();
            // SAFETY: the calls fail, because the page is locked or the range is none.
            let marks = || unsafe {
                let marked = [volatile::mark(at, len), volatile::mark(at.wrapping_add(1), len)];
                marked.map(Result::unwrap_err)
            };
            let wordy = marks();
            REFUSES_THREAD.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
            let short = marks();
            let copy = wordy[1].clone();
            let system = Error::system("call", "open", Errno::NFILE);
            REFUSES_THREAD.store(0, Ordering::Relaxed);
            assert_eq!(short[0].kind(), ErrorKind::Locked);
            let short = short[1].to_string();
            assert!(short.contains("there is no memory for the details; "), "{short}");
            assert_eq!(copy.to_string(), short);
            assert!(system.to_string().starts_with("call: there is no memory for the details; "));
            let cause = Error::system("call", "open", Errno::NFILE).to_string();
            let words = std::io::Error::from(Errno::NFILE);
            assert!(cause.starts_with(&format!("call: open failed: {words}; ")), "{cause}");
            assert!(wordy[1].to_string().contains("not a multiple"), "{}", wordy[1]);
        });
    }
}
