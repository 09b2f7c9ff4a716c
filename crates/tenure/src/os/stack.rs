//! Stacks of tenure's own threads, [apart](super::apart) from the program's mappings.

use super::{page_size, raw_map, reserve, tid};
use crate::range::PageRange;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// A stack for one thread after another. The C library puts a thread's stack into a hole of the
/// program's, and keeps it when the thread has ended. So tenure's threads get a stack of their own.
pub struct Stack {
    /// The address of its guard page; 0: there is none yet.
    start: AtomicUsize,
    /// The kernel's number of the thread that has it, or had it last; 0: a thread that has not run
    /// yet; [`NO_THREAD`].
    thread: AtomicI32,
}

/// The last thread could not be made.
const NO_THREAD: i32 = -1;

const BYTES: usize = 256 << 10;

impl Stack {
    /// Makes an empty value, without memory.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Stack {
        Stack { start: AtomicUsize::new(0), thread: AtomicI32::new(0) }
    }

    /// Starts a thread on it, which is never joined. The thread calls [`is_mine`](Stack::is_mine).
    /// If there is no memory for a stack of tenure's own, the C library chooses one.
    ///
    /// # Errors
    /// The errno of `pthread_create`.
    ///
    /// # Safety
    /// `body` may run on any thread with `argument`. No two threads call this at the same time for
    /// one stack.
    pub unsafe fn start(
        &self,
        body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        argument: *mut libc::c_void,
    ) -> Result<(), c_int> {
        // SAFETY: the caller keeps the same promises.
        unsafe { self.create(body, argument, libc::PTHREAD_CREATE_DETACHED) }
    }

    /// [`start`](Stack::start) of a thread that is joined before the next one starts on this stack.
    ///
    /// # Errors
    /// The errno of `pthread_create`.
    ///
    /// # Safety
    /// As for [`start`](Stack::start).
    pub unsafe fn start_joinable(
        &self,
        body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        argument: *mut libc::c_void,
    ) -> Result<(), c_int> {
        // SAFETY: the caller keeps the same promises.
        unsafe { self.create(body, argument, libc::PTHREAD_CREATE_JOINABLE) }
    }

    unsafe fn create(
        &self,
        body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        argument: *mut libc::c_void,
        state: c_int,
    ) -> Result<(), c_int> {
        let stack = self.take();
        let mut attributes = MaybeUninit::uninit();
        let mut thread = MaybeUninit::uninit();
        // SAFETY: the attributes are local, initialised before they are used and destroyed
        // afterwards. The stack is mapped for good, and `take` returns none that a thread uses.
        // `body` may run on any thread with `argument`, as this function requires.
        let failed = unsafe {
            let failed = libc::pthread_attr_init(attributes.as_mut_ptr());
            if failed != 0 {
                return Err(failed);
            }
            let attributes = attributes.as_mut_ptr();
            libc::pthread_attr_setdetachstate(attributes, state);
            match stack {
                Some(stack) => {
                    libc::pthread_attr_setstack(attributes, stack.start as *mut _, stack.len())
                }
                None => libc::pthread_attr_setstacksize(attributes, BYTES),
            };
            let failed = libc::pthread_create(thread.as_mut_ptr(), attributes, body, argument);
            libc::pthread_attr_destroy(attributes);
            failed
        };
        if failed == 0 {
            return Ok(());
        }
        self.thread.store(NO_THREAD, Ordering::Release);
        Err(failed)
    }

    /// Notes that the calling thread was started on it.
    pub fn is_mine(&self) {
        self.thread.store(tid::own(), Ordering::Release);
    }

    /// Returns the stack without its guard page, if no thread uses it any more; otherwise a new
    /// one.
    fn take(&self) -> Option<PageRange> {
        let last = self.thread.swap(0, Ordering::AcqRel);
        let mut start = self.start.load(Ordering::Acquire);
        // The kernel removes a thread's number after the thread's last access to its memory.
        let is_free = last == NO_THREAD || last != 0 && tid::has_ended(last);
        if start == 0 || !is_free {
            start = Self::map()?;
            self.start.store(start, Ordering::Release);
        }
        Some(PageRange::new(start + page_size(), start + page_size() + BYTES))
    }

    fn map() -> Option<usize> {
        let page = page_size();
        let mapped = reserve::map_own(page + BYTES, page).ok()?;
        let guard = PageRange::new(mapped.start, mapped.start + page);
        // SAFETY: the first page of the memory mapped just above for this stack, which no thread
        // uses yet.
        if unsafe { raw_map::protect(guard, libc::PROT_NONE) }.is_err() {
            // SAFETY: mapped just above for this stack, which no thread uses yet.
            let _ = unsafe { reserve::unmap(mapped) };
            return None;
        }
        Some(mapped.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};
    use tenure_testkit::seccomp::{Call, Errno, Filter};
    use tenure_testkit::{in_child, or_skip, this_test};

    static STACK: Stack = Stack::new();
    static LAST: AtomicU64 = AtomicU64::new(0);

    extern "C" fn note(_: *mut libc::c_void) -> *mut libc::c_void {
        STACK.is_mine();
        let local = 0u8;
        LAST.store(std::ptr::from_ref(&local) as u64, Ordering::Release);
        std::ptr::null_mut()
    }

    #[test]
    fn threads_that_cannot_be_made_take_one_stack() {
        in_child(this_test!(), &[], || {
            let clone = |filter: Filter, number| filter.refuse(Call::Number(number), Errno::AGAIN);
            let filter = clone(clone(Filter::new(), libc::SYS_clone), libc::SYS_clone3);
            or_skip!(filter.install_this_thread());
            static NEVER: Stack = Stack::new();
            let start = || {
                // SAFETY: the body uses no argument; one thread calls this.
                let started = unsafe { NEVER.start(note, std::ptr::null_mut()) };
                assert_eq!(started, Err(libc::EAGAIN));
                NEVER.start.load(Ordering::Acquire)
            };
            assert_eq!(start(), start());
        });
    }

    #[test]
    fn threads_that_follow_one_another_have_the_same_stack() {
        let until = Instant::now() + Duration::from_secs(60);
        let mut seen = Vec::new();
        for _ in 0..3 {
            LAST.store(0, Ordering::Release);
            // SAFETY: the body uses no argument; one thread calls this.
            unsafe { STACK.start(note, std::ptr::null_mut()) }.unwrap();
            let ended = || {
                let number = STACK.thread.load(Ordering::Acquire);
                number != 0 && tid::has_ended(number)
            };
            while !ended() {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(1));
            }
            seen.push(LAST.load(Ordering::Acquire));
        }
        let start = STACK.start.load(Ordering::Acquire) as u64;
        assert!(seen.iter().all(|at| (start..start + 2 * BYTES as u64).contains(at)), "{seen:x?}");
    }
}
