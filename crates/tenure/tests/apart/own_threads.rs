//! Tenure's threads register no destructor of a thread-local value: the C library does so under a
//! lock, which a child of a raw `clone` may find locked for ever.
#![cfg(target_env = "gnu")]

use crate::promise_kit::*;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tenure::shared::SharedVolatile;
use tenure::volatile::{self, Detection, Settings};
use tenure::{Cache, Volatile};
use tenure_testkit::this_test;

/// How many destructors threads with tenure's names have registered.
static OURS: AtomicU64 = AtomicU64::new(0);
/// How many other threads have.
static OTHERS: AtomicU64 = AtomicU64::new(0);

type Register = extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> c_int;

/// The standard library calls this in place of the C library's function.
// SAFETY: the function has the arguments of the C library's of this name, and calls that one.
#[unsafe(no_mangle)]
extern "C" fn __cxa_thread_atexit_impl(
    destructor: *mut c_void,
    object: *mut c_void,
    dso: *mut c_void,
) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut name = [0u8; 16];
    // SAFETY: the call writes at most 16 bytes, a thread's name.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let count = if name.starts_with(b"tenure-") { &OURS } else { &OTHERS };
    count.fetch_add(1, Ordering::Relaxed);
    if NEXT.load(Ordering::Relaxed) == 0 {
        // SAFETY: the name is a C string.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__cxa_thread_atexit_impl".as_ptr()) };
        NEXT.store(next as usize, Ordering::Relaxed);
    }
    // SAFETY: the C library's function of this name has these arguments.
    let next = unsafe { std::mem::transmute::<usize, Register>(NEXT.load(Ordering::Relaxed)) };
    next(destructor, object, dso)
}

#[test]
fn tenures_threads_register_no_destructors() {
    promised(this_test!(), || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let mut buffer = Volatile::new(8 * PAGE).unwrap();
        buffer.pin_mut().unwrap().fill(1);
        let _ = buffer.purge_now();
        if volatile::detection() != Detection::Words {
            let sevens = |_, bytes: &mut [u8]| {
                bytes.fill(7);
                Ok(())
            };
            let shared = SharedVolatile::builder(64 << 10).refill(sevens).build().unwrap();
            // SAFETY: mapped while `shared` lives; a chunk that is gone is made.
            assert_eq!(unsafe { shared.as_ptr(0).unwrap().read_volatile() }, 7);
        }
        let cache = Cache::<u64>::new().unwrap();
        cache.insert(1, &[1; PAGE]).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        // The standard library registers one for the handle of a thread.
        assert!(OTHERS.load(Ordering::Relaxed) > 0, "the hook is not called");
        assert_eq!(OURS.load(Ordering::Relaxed), 0);
    });
}
