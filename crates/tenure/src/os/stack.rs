//! Stacks of tenure's own threads, [apart](super::apart) from the program's mappings.

use super::thread_creation::{create, Body};
use super::{generation, page_size, raw_map, reserve, tid};
use crate::range::PageRange;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Stacks for threads that follow one another. The C library puts a thread's stack into a hole of
/// the program's, and keeps it when the thread has ended. So tenure's threads get a stack of their
/// own.
pub struct Stack {
    places: [Place; PLACES],
}

/// One stack, and the thread that has it. Only the thread that starts another one on it, that one,
/// and a thread that has waited for its end write here. A thread that the C library gave a stack
/// has no place.
struct Place {
    /// The address of the guard page; 0: there is no memory yet.
    start: AtomicUsize,
    /// The process ([`generation`]) that uses it. In a child it may be the stack of the thread that
    /// forked; and after a fork without handlers the C library's list still has the parent's thread,
    /// whose entry lies on the stack. So a child makes its own, and leaves its parent's alone.
    process: AtomicU64,
    /// The kernel's number of the thread that has it, or had it last; [`STARTING`]; [`NO_THREAD`].
    thread: AtomicI32,
    body: AtomicPtr<c_void>,
    argument: AtomicPtr<c_void>,
}

/// Threads of tenure's that follow one another.
pub(crate) struct Threads {
    last: i32,
    on_stacks: [i32; PLACES],
}

/// A thread is being started on the stack.
const STARTING: i32 = -1;
const NO_THREAD: i32 = 0;

/// Mostly one is used: a thread starts when the one before it has ended.
const PLACES: usize = 4;
const BYTES: usize = 256 << 10;

impl Stack {
    /// Makes an empty value, without memory.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Stack {
        Stack { places: [const { Place::new() }; PLACES] }
    }

    /// Starts a thread, which is never joined. If there is no memory for a stack of tenure's own,
    /// or each has its thread, the C library chooses one.
    ///
    /// # Errors
    /// The errno of `pthread_create`; `EAGAIN` also where the C library has no memory for this
    /// thread.
    ///
    /// # Safety
    /// `body` may run on any thread with `argument`. No two threads call this at the same time for
    /// one value.
    pub unsafe fn start(&'static self, body: Body, argument: *mut c_void) -> Result<(), c_int> {
        // SAFETY: the caller keeps the same promises.
        unsafe { self.create(body, argument, libc::PTHREAD_CREATE_DETACHED) }
    }

    /// [`start`](Stack::start) of a thread that is joined before the next one starts.
    ///
    /// # Errors
    /// The errno of `pthread_create`.
    ///
    /// # Safety
    /// As for [`start`](Stack::start).
    pub unsafe fn start_joinable(
        &'static self,
        body: Body,
        argument: *mut c_void,
    ) -> Result<(), c_int> {
        // SAFETY: the caller keeps the same promises.
        unsafe { self.create(body, argument, libc::PTHREAD_CREATE_JOINABLE) }
    }

    /// Returns the kernel's numbers of the threads that have the stacks, or had them last, and of
    /// the last one that was started, which may have none. One that was replaced may still be ending.
    pub(crate) fn threads(&self, last: &AtomicI32) -> Threads {
        let number = |place: &Place| match place.thread.load(Ordering::Acquire) {
            STARTING => NO_THREAD,
            _ if place.is_parents() => NO_THREAD,
            number => number,
        };
        Threads {
            last: last.load(Ordering::Acquire),
            on_stacks: self.places.each_ref().map(number),
        }
    }

    /// Waits until the kernel no longer counts these threads of [`threads`](Stack::threads).
    /// `false`: one has not ended until then.
    pub(crate) fn wait_for_end(&self, threads: &Threads, last: &AtomicI32, until: Instant) -> bool {
        // A number stays here when its thread has ended, and a thread of the program's may get it.
        let replaced = |number: i32| number != NO_THREAD && !tid::is_programs(number);
        let on_stacks = self.places.iter().zip(threads.on_stacks);
        tid::wait_for_end_of(threads.last, last, until)
            && on_stacks
                .filter(|(_, number)| replaced(*number))
                .all(|(place, number)| tid::wait_for_end_of(number, &place.thread, until))
    }

    unsafe fn create(
        &'static self,
        body: Body,
        argument: *mut c_void,
        state: c_int,
    ) -> Result<(), c_int> {
        if !allocates() {
            return Err(libc::EAGAIN);
        }
        let place = self.places.iter().find(|place| place.is_free());
        let place = place.filter(|place| place.take(body, argument));
        let mut attributes = MaybeUninit::uninit();
        let mut thread = MaybeUninit::uninit();
        // SAFETY: the attributes are local, initialised before they are used and destroyed
        // afterwards. The stack is mapped for good, and no thread uses it. `body` may run on any
        // thread with `argument`, as this function requires.
        let failed = unsafe {
            let failed = libc::pthread_attr_init(attributes.as_mut_ptr());
            if failed == 0 {
                let attributes = attributes.as_mut_ptr();
                libc::pthread_attr_setdetachstate(attributes, state);
                let (body, argument) = match place {
                    Some(place) => {
                        let lowest = place.start.load(Ordering::Relaxed) + page_size();
                        libc::pthread_attr_setstack(attributes, lowest as *mut _, BYTES);
                        (run as Body, std::ptr::from_ref(place).cast_mut().cast())
                    }
                    None => {
                        libc::pthread_attr_setstacksize(attributes, BYTES);
                        (body, argument)
                    }
                };
                let failed = create(thread.as_mut_ptr(), attributes, body, argument);
                libc::pthread_attr_destroy(attributes);
                failed
            } else {
                failed
            }
        };
        if failed == 0 {
            return Ok(());
        }
        if let Some(place) = place {
            place.thread.store(NO_THREAD, Ordering::Release);
        }
        Err(failed)
    }
}

/// Whether the C library has memory for this thread. `pthread_create` allocates the new thread's
/// table of thread-local values. If that fails with another error than `ENOMEM`, glibc 2.36 aborts:
/// `mmap` fails with `EAGAIN` after `mlockall(MCL_FUTURE)` at `RLIMIT_MEMLOCK`, and a thread that
/// allocates for the first time gets that error.
pub(super) fn allocates() -> bool {
    /// More than that table has.
    const TABLE: usize = 4096;
    // SAFETY: the block is freed at once, or there is none.
    unsafe {
        let block = std::hint::black_box(libc::malloc(TABLE));
        libc::free(block);
        !block.is_null()
    }
}

/// The first function of a thread that has a place.
extern "C" fn run(place: *mut c_void) -> *mut c_void {
    // SAFETY: `create` passes a place, which lives as long as the process.
    let place = unsafe { &*place.cast::<Place>() };
    place.thread.store(tid::own(), Ordering::Release);
    let body = place.body.load(Ordering::Acquire);
    // SAFETY: `take` stored the function.
    let body = unsafe { std::mem::transmute::<*mut c_void, Body>(body) };
    body(place.argument.load(Ordering::Acquire))
}

impl Place {
    const fn new() -> Place {
        Place {
            start: AtomicUsize::new(0),
            process: AtomicU64::new(0),
            thread: AtomicI32::new(NO_THREAD),
            body: AtomicPtr::new(std::ptr::null_mut()),
            argument: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The kernel removes a thread's number after the thread's last access to its memory.
    fn is_free(&self) -> bool {
        self.is_parents()
            || match self.thread.load(Ordering::Acquire) {
                NO_THREAD => true,
                STARTING => false,
                last => tid::has_ended(last),
            }
    }

    fn is_parents(&self) -> bool {
        self.process.load(Ordering::Relaxed) != generation::current()
    }

    /// For a thread that will start. `false`: there is no memory, and nothing has changed.
    fn take(&self, body: Body, argument: *mut c_void) -> bool {
        if self.start.load(Ordering::Relaxed) == 0 || self.is_parents() {
            let Some(start) = Self::map() else { return false };
            self.start.store(start, Ordering::Relaxed);
            self.process.store(generation::current(), Ordering::Relaxed);
        }
        self.body.store(body as *mut c_void, Ordering::Release);
        self.argument.store(argument, Ordering::Release);
        self.thread.store(STARTING, Ordering::Release);
        true
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
    use std::time::Duration;
    use tenure_testkit::seccomp::{Call, Errno, Filter};
    use tenure_testkit::{in_child, or_skip, this_test};

    static STACK: Stack = Stack::new();
    static LAST: AtomicU64 = AtomicU64::new(0);

    extern "C" fn note(_: *mut c_void) -> *mut c_void {
        let local = 0u8;
        LAST.store(std::ptr::from_ref(&local) as u64, Ordering::Release);
        std::ptr::null_mut()
    }

    #[test]
    fn a_thread_of_the_programs_that_has_the_number_of_one_that_ended_is_not_waited_for() {
        in_child(this_test!(), &[], || {
            static ONE: Stack = Stack::new();
            let none = AtomicI32::new(0);
            let ends = |name: &str| {
                let (said, number) = std::sync::mpsc::channel();
                let (stop, stopped) = std::sync::mpsc::channel::<()>();
                let body = move || {
                    said.send(tid::own()).unwrap();
                    let _ = stopped.recv();
                };
                let thread =
                    std::thread::Builder::new().name(name.to_string()).spawn(body).unwrap();
                ONE.places[0].process.store(generation::current(), Ordering::Relaxed);
                ONE.places[0].thread.store(number.recv().unwrap(), Ordering::Release);
                let ended = ONE.wait_for_end(&ONE.threads(&none), &none, Instant::now());
                drop(stop);
                thread.join().unwrap();
                ended
            };
            assert!(ends("program"));
            assert!(!ends("tenure-test"), "this one is tenure's");
        });
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
                NEVER.places[0].start.load(Ordering::Acquire)
            };
            assert_eq!(start(), start());
        });
    }

    // With musl the thread that starts this one has no memory either.
    #[cfg(target_env = "gnu")]
    #[test]
    fn a_thread_for_which_malloc_has_no_memory_gets_an_error() {
        in_child(this_test!(), &[], || {
            static ONE: Stack = Stack::new();
            static OTHER: Stack = Stack::new();
            static SAID: AtomicI32 = AtomicI32::new(-1);
            extern "C" fn starts(_: *mut c_void) -> *mut c_void {
                // SAFETY: the body uses no argument; no other thread calls this now.
                let started = unsafe { OTHER.start(note, std::ptr::null_mut()) };
                SAID.store(started.err().unwrap_or(0), Ordering::Release);
                std::ptr::null_mut()
            }
            let start = |stack: &'static Stack, body| {
                // SAFETY: the bodies use no argument; one thread at a time calls this.
                unsafe { stack.start(body, std::ptr::null_mut()) }.unwrap();
                while !stack.places[0].is_free() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            // They have their stacks before the kernel refuses more.
            start(&ONE, note);
            start(&OTHER, note);
            let no_memory = Call::Number(libc::SYS_mmap);
            or_skip!(Filter::new().refuse(no_memory, Errno::AGAIN).install_this_thread());
            start(&ONE, starts);
            assert_eq!(SAID.load(Ordering::Acquire), libc::EAGAIN);
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
            let ended = || STACK.places[0].is_free();
            while !ended() {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(1));
            }
            seen.push(LAST.load(Ordering::Acquire));
        }
        let start = STACK.places[0].start.load(Ordering::Acquire) as u64;
        assert!(seen.iter().all(|at| (start..start + 2 * BYTES as u64).contains(at)), "{seen:x?}");
    }

    #[test]
    fn no_two_threads_have_one_stack_where_there_is_no_memory_for_another() {
        in_child(this_test!(), &[], || {
            static BUSY: Stack = Stack::new();
            static WAITS: AtomicU64 = AtomicU64::new(0);
            static OVER: AtomicU64 = AtomicU64::new(0);
            extern "C" fn wait(_: *mut c_void) -> *mut c_void {
                let local = 0u8;
                WAITS.store(std::ptr::from_ref(&local) as u64, Ordering::Release);
                while OVER.load(Ordering::Acquire) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::ptr::null_mut()
            }
            // SAFETY: the bodies use no argument; one thread at a time calls this.
            let start = |body| unsafe { BUSY.start(body, std::ptr::null_mut()) };
            let set = |at: &AtomicU64| {
                while at.load(Ordering::Acquire) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                at.load(Ordering::Acquire)
            };
            start(wait).unwrap();
            let first = set(&WAITS);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let no_memory = Call::Number(libc::SYS_mmap);
                    let filter = Filter::new().refuse(no_memory, Errno::NOMEM);
                    or_skip!(filter.install_this_thread());
                    // It fails, or the C library has a stack left.
                    let _ = start(note);
                });
            });
            LAST.store(0, Ordering::Release);
            start(note).unwrap();
            let second = set(&LAST);
            assert!(first.abs_diff(second) > BYTES as u64 / 2, "{first:x} {second:x}");
            OVER.store(1, Ordering::Release);
        });
    }
}
