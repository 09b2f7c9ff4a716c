//! Fork handlers of the program itself, registered before its first use of tenure, which use
//! tenure: the program's allocator is tenure's pool.

mod promise_kit;
use promise_kit::*;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use tenure::{volatile, Cache, Mapping, Outcome};
use tenure_testkit::this_test;

#[global_allocator]
static POOL: tenure::pool::Pool = tenure::pool::Pool;

static MARKED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn use_tenure() {
    let at = MARKED.load(Ordering::Relaxed);
    if at.is_null() {
        return;
    }
    std::hint::black_box(vec![1u8; 4 << 20]);
    drop(Mapping::anonymous(64 << 20).unwrap());
    assert!(volatile::is_volatile(at, PAGE));
    let cache = Cache::<u64>::new().unwrap();
    cache.insert(1, &[7; 5000]).unwrap();
    assert_eq!(cache.get(&1).unwrap()[..], [7; 5000]);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn handlers_that_the_program_registered_first_may_use_everything() {
    promised(this_test!(), || {
        // SAFETY: the handler unwinds only to end the test, and lives for ever.
        unsafe { libc::pthread_atfork(Some(use_tenure), Some(use_tenure), Some(use_tenure)) };
        tenure::pool::prepare().unwrap();
        let mut map = filled(16);
        let (at, len) = (map.as_mut_ptr(), map.len());
        // SAFETY: the mapping outlives the calls, and is not touched while it is marked.
        unsafe { volatile::mark(at, len).unwrap() };
        MARKED.store(at, Ordering::Relaxed);
        let ended = forked(|| {
            assert_eq!(CALLS.load(Ordering::Relaxed), 2);
            // SAFETY: this is the child's copy of the mapping, which nothing else uses.
            unsafe {
                assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Intact);
                volatile::mark(at, len).unwrap();
            }
            std::thread::spawn(|| use_tenure()).join().unwrap();
        });
        assert_eq!(ended, Ended::Well);
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
        // SAFETY: this test's own mapping, which lives on.
        assert_eq!(unsafe { volatile::unmark(at, len) }.unwrap(), Outcome::Intact);
    });
}
