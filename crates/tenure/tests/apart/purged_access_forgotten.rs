//! A SIGBUS for a page that no range holds any more. If another thread has taken the page back and
//! forgotten its range since the touch, the access is tried again. Every other one goes to the
//! program.

use crate::promise_kit::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use tenure::volatile::{self, Purged};
use tenure::{PageSize, Volatile};
use tenure_testkit::this_test;

const PAGES: usize = 4;

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void);

/// The handler that tenure installs.
static TENURES: AtomicUsize = AtomicUsize::new(0);
/// The range to forget before tenure's handler gets the signal. 0: none.
static FORGET: AtomicUsize = AtomicUsize::new(0);
/// Signals that reached the program's own handler.
static EARLIER: AtomicUsize = AtomicUsize::new(0);

fn never_called(_: Purged) -> bool {
    false
}

fn install(handler: Handler) {
    // SAFETY: the handler has the signature that SA_SIGINFO asks for; an all-zero sigaction is a
    // valid one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
}

/// Calls tenure's handler.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the handler that `tenures` found is such a function.
    let handler: Handler = unsafe { std::mem::transmute(TENURES.load(Ordering::SeqCst)) };
    handler(signal, info, context);
}

/// Has tenure install its handler, and notes the handler's address.
fn tenures() {
    volatile::on_purged_access(never_called).unwrap();
    // SAFETY: only reads the present action; an all-zero sigaction is a valid one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut action);
        TENURES.store(action.sa_sigaction, Ordering::SeqCst);
    }
}

/// Acts between the touch and tenure's look, as another thread may.
extern "C" fn forget_first(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let at = FORGET.swap(0, Ordering::SeqCst);
    if at != 0 {
        // SAFETY: this test's pages.
        unsafe { volatile::forget(at as *mut u8, PAGES * PAGE).unwrap() };
    }
    pass_on(signal, info, context);
}

extern "C" fn earlier(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    EARLIER.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_touch_goes_on_where_its_range_was_forgotten_before_the_look() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        tenures();
        install(forget_first);
        let at = plain(PAGES * PAGE);
        for round in 0..100 {
            // SAFETY: this test's pages.
            unsafe {
                std::ptr::write_bytes(at as *mut u8, 7, PAGES * PAGE);
                volatile::mark(at as *mut u8, PAGES * PAGE).unwrap();
                assert!(purge(at as *mut u8, PAGES * PAGE), "not purged");
            }
            FORGET.store(at, Ordering::SeqCst);
            // Touches one page more often than an access is tried again without a change.
            // SAFETY: mapped; the handler forgets its range.
            let byte = unsafe { (at as *const u8).read_volatile() };
            assert_eq!((byte, FORGET.load(Ordering::SeqCst)), (0, 0), "round {round}");
        }
    });
}

/// Passes tenure's handler the signal of a touch of this page. Returns how many reached the
/// program's handler.
fn raise(at: usize) -> usize {
    const BUS_ADRERR: libc::c_int = 2;
    let before = EARLIER.load(Ordering::SeqCst);
    // SAFETY: all-zero structures of these types are valid; the address lies 16 bytes into a
    // siginfo.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let mut context: libc::ucontext_t = std::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGBUS, BUS_ADRERR);
        (&raw mut info).cast::<usize>().add(2).write(at);
        assert_eq!(info.si_addr() as usize, at);
        pass_on(libc::SIGBUS, &raw mut info, (&raw mut context).cast());
    }
    EARLIER.load(Ordering::SeqCst) - before
}

#[test]
fn a_signal_that_is_not_tenure_s_reaches_the_program_s_handler() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        install(earlier);
        tenures();
        let at = plain(PAGES * PAGE);
        // SAFETY: this test's pages, and an empty file's, which are never touched.
        let beyond = unsafe {
            volatile::mark(at as *mut u8, PAGE).unwrap();
            volatile::forget(at as *mut u8, PAGE).unwrap();
            let _ = volatile::mark(at as *mut u8, PAGE).is_ok();
            let _ = volatile::unmark(at as *mut u8, PAGE).unwrap();
            let file = libc::memfd_create(c"empty".as_ptr(), 0);
            libc::mmap(std::ptr::null_mut(), PAGE, 1, libc::MAP_SHARED, file, 0) as usize
        };
        assert_eq!(raise(beyond), 1, "a page past the end of its file: at once");
        // A page that can be read and raises the signal for another reason is passed on after some
        // tries: in a range that is not volatile, and in none.
        for page in [at, at + PAGE] {
            let tries = (1..1000).find(|_| raise(page) > 0);
            assert!(tries.is_some_and(|tries| tries < 100), "{tries:?} tries");
        }
    });
}

fn fill(purged: Purged) -> bool {
    purged.fill(&[7; PAGE]).is_ok()
}

/// A program may unmap a range that it has unmarked. A buffer that is then mapped there has the
/// purged pages.
#[test]
fn a_buffer_in_place_of_an_unmapped_range_is_the_one_that_is_touched() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        volatile::on_purged_access(fill).unwrap();
        let mut met = 0;
        for _ in 0..100 {
            met += u32::from(touches_a_buffer_in_place_of_a_range());
        }
        println!("{met} buffers in place of a range");
        assert!(met > 0, "the addresses are never used again");
    });
}

/// `false`: the buffer lies elsewhere.
fn touches_a_buffer_in_place_of_a_range() -> bool {
    const OTHERS: usize = 16;
    // The range gets a higher number than these, whose numbers are free later: a look at all ranges
    // meets the buffer first.
    let others = plain(2 * OTHERS * PAGE);
    let each_other = || (0..OTHERS).map(|i| (others + 2 * i * PAGE) as *mut u8);
    // The place where the kernel puts a buffer.
    let at = buffer().as_ptr();
    // SAFETY: this test's pages, in a place where nothing is mapped, not volatile when they are
    // unmapped.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        if libc::mmap(at.cast(), MIB, 3, flags, -1, 0) != at.cast() {
            return false;
        }
        each_other().for_each(|page| volatile::mark(page, PAGE).unwrap());
        volatile::mark(at, MIB).unwrap();
        let _ = volatile::unmark(at, MIB).unwrap();
        assert_eq!(libc::munmap(at.cast(), MIB), 0);
        each_other().for_each(|page| volatile::forget(page, PAGE).unwrap());
    }
    let buffer = buffer();
    if buffer.as_ptr() == at {
        assert!(waited(|| buffer.purge_now().unwrap() == MIB));
        // SAFETY: mapped; the handler makes a purged page.
        assert_eq!(unsafe { buffer.as_ptr().read_volatile() }, 7);
    }
    // SAFETY: this test's pages, which are not known any more.
    assert_eq!(unsafe { libc::munmap(others as *mut c_void, 2 * OTHERS * PAGE) }, 0);
    buffer.as_ptr() == at
}

fn buffer() -> Volatile {
    let mut buffer = Volatile::builder(MIB).pages(PageSize::System).build().unwrap();
    buffer.pin_mut().unwrap().fill(3);
    buffer
}
