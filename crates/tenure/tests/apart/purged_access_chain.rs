//! tenure's SIGBUS handler among those of the program: it is installed when the call returns, and
//! it calls the handler before it as the kernel would.

use crate::promise_kit::*;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use tenure::volatile::{self, on_purged_access, Purged};
use tenure_testkit::seccomp::{Call, Hold};
use tenure_testkit::{or_skip, this_test};

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

fn fill(purged: Purged) -> bool {
    purged.fill(&[7; PAGE]).is_ok()
}

fn decline(_: Purged) -> bool {
    false
}

fn purged_page() -> usize {
    let at = plain(PAGE);
    let p = at as *mut u8;
    // SAFETY: this test's own memory, which stays.
    unsafe {
        p.write_bytes(9, PAGE);
        volatile::mark(p, PAGE).unwrap();
    }
    assert!(purge(p, PAGE));
    at
}

fn touch(at: usize) -> u8 {
    // SAFETY: a page of `purged_page`: mapped; a handler makes a purged page.
    unsafe { (at as *const u8).read_volatile() }
}

/// Makes a page without `Purged::fill`, so that the access continues whatever its handler returns.
fn make(at: usize) {
    let p = at as *mut u8;
    // SAFETY: a page of `purged_page`.
    unsafe {
        assert!(volatile::unmark(p, PAGE).is_ok());
        p.write_bytes(5, PAGE);
    }
}

/// Has the program install a handler; returns the one before.
fn installed(handler: usize, flags: i32, masked: &[i32]) -> libc::sigaction {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the callers' handlers live for ever; the rest is plain data.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags | libc::SA_SIGINFO;
        masked.iter().for_each(|signal| _ = libc::sigaddset(&mut action.sa_mask, *signal));
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr()), 0);
        before.assume_init()
    }
}

/// Bits: whether this thread blocks SIGUSR1, SIGBUS, SIGUSR2.
fn blocked() -> u32 {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: without a new mask the call only writes the old one into the local.
    let mask = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
        mask.assume_init()
    };
    // SAFETY: the set was filled in by the kernel, and is only read.
    let has = |signal| unsafe { libc::sigismember(&mask, signal) as u32 };
    has(libc::SIGUSR1) | has(libc::SIGBUS) << 1 | has(libc::SIGUSR2) << 2
}

static CALLS: AtomicU32 = AtomicU32::new(0);
static BLOCKED: AtomicU32 = AtomicU32::new(0);

extern "C" fn makes(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    BLOCKED.store(blocked(), Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel's siginfo of a fault.
    make(unsafe { (*info).si_addr() } as usize);
}

const MAKES: Handler = makes;

/// The handler is installed when the call returns, also while another thread's first call is half
/// way.
#[test]
fn a_call_beside_another_and_in_a_child_has_the_handler_installed() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let (ours, the_child_s) = (purged_page(), purged_page());
        let sigaction = Call::WithArgument(libc::SYS_rt_sigaction, 0, libc::SIGBUS as u32);
        let hold = or_skip!(Hold::install(&[sigaction]));
        hold.arm(PATIENCE * 2);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| on_purged_access(fill).unwrap());
            assert!(hold.wait_until_held(PATIENCE));
            let child = forked(|| {
                on_purged_access(fill).unwrap();
                assert_eq!(touch(the_child_s), 7);
            });
            assert_eq!(child, Ended::Well);
            on_purged_access(fill).unwrap();
            assert_eq!(touch(ours), 7);
            hold.release();
            first.join().unwrap();
        });
        assert_eq!(touch(purged_page()), 7);
    });
}

fn make_and_decline(purged: Purged) -> bool {
    make(purged.page);
    false
}

/// A fault that should get the default action, and that the program survives, because the page is
/// there by now.
#[test]
fn a_call_after_the_default_was_put_back_installs_the_handler_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        // SAFETY: sets the default action, so no function is called for the signal.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        on_purged_access(make_and_decline).unwrap();
        assert_eq!(touch(purged_page()), 5);
        on_purged_access(fill).unwrap();
        assert_eq!(touch(purged_page()), 7);
        // Also if the program has installed a handler meanwhile that passes nothing on.
        on_purged_access(make_and_decline).unwrap();
        assert_eq!(touch(purged_page()), 5);
        installed(MAKES as usize, 0, &[]);
        on_purged_access(fill).unwrap();
        assert_eq!(touch(purged_page()), 7);
    });
}

#[test]
fn a_call_after_the_program_put_its_handler_back_installs_ours_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        installed(MAKES as usize, 0, &[]);
        on_purged_access(fill).unwrap();
        installed(MAKES as usize, 0, &[]);
        on_purged_access(fill).unwrap();
        assert_eq!(touch(purged_page()), 7);
        on_purged_access(decline).unwrap();
        assert_eq!(touch(purged_page()), 5);
    });
}

static BEFORE_LATER: AtomicUsize = AtomicUsize::new(0);
static BLOCKED_AFTER: AtomicU32 = AtomicU32::new(u32::MAX);

extern "C" fn later(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the result of `installed`, which takes a siginfo: tenure's handler.
    let before: Handler = unsafe { std::mem::transmute(BEFORE_LATER.load(Ordering::SeqCst)) };
    before(signal, info, context);
    BLOCKED_AFTER.store(blocked(), Ordering::SeqCst);
}

const LATER: Handler = later;

/// It calls tenure's handler. A call leaves it in place: tenure's before it again would be an
/// endless chain.
#[test]
fn a_later_handler_of_the_program_stays_before_ours() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        installed(MAKES as usize, 0, &[libc::SIGUSR1]);
        on_purged_access(fill).unwrap();
        let ours = installed(LATER as usize, libc::SA_NODEFER, &[libc::SIGUSR2]).sa_sigaction;
        BEFORE_LATER.store(ours, Ordering::SeqCst);
        on_purged_access(fill).unwrap();
        assert_eq!(touch(purged_page()), 7);
        assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        // Signals that were blocked for the handler before tenure's are unblocked again when
        // tenure's has returned.
        on_purged_access(decline).unwrap();
        assert_eq!(touch(purged_page()), 5);
        assert_eq!(CALLS.load(Ordering::SeqCst), 3);
        assert_eq!(BLOCKED.load(Ordering::SeqCst), 0b111);
        assert_eq!(BLOCKED_AFTER.load(Ordering::SeqCst), 0b100);
        assert_eq!(installed(MAKES as usize, 0, &[]).sa_sigaction, LATER as usize);
    });
}

/// Blocked while the handler before tenure's runs: its mask, and the signal itself unless
/// SA_NODEFER is set.
#[test]
fn the_handler_before_has_blocked_what_it_asked_for() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        for (flags, expected) in [(0, 0b011), (libc::SA_NODEFER, 0b001)] {
            let ended = forked(|| {
                installed(MAKES as usize, flags, &[libc::SIGUSR1]);
                on_purged_access(decline).unwrap();
                assert_eq!(touch(purged_page()), 5);
                assert_eq!((BLOCKED.load(Ordering::SeqCst), blocked()), (expected, 0));
            });
            assert_eq!(ended, Ended::Well, "flags {flags:#x}");
        }
    });
}

/// The calls of `reports`, in memory that a child shares.
fn shared_count() -> &'static AtomicI32 {
    static SHARED: AtomicUsize = AtomicUsize::new(0);
    if SHARED.load(Ordering::SeqCst) == 0 {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, 3, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        SHARED.store(at as usize, Ordering::SeqCst);
    }
    // SAFETY: mapped above, zeroed, for ever.
    unsafe { &*(SHARED.load(Ordering::SeqCst) as *const AtomicI32) }
}

extern "C" fn reports(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if shared_count().fetch_add(1, Ordering::SeqCst) >= 5 {
        // SAFETY: ends a child that would report for ever.
        unsafe { libc::_exit(3) };
    }
}

const REPORTS: Handler = reports;

/// A crash reporter: it reports once and returns, and the repeated access kills the process.
#[test]
fn a_handler_before_that_is_to_be_called_once_is_called_once() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let count = shared_count();
        for flags in [libc::SA_RESETHAND, libc::SA_RESETHAND | libc::SA_NODEFER] {
            count.store(0, Ordering::SeqCst);
            installed(REPORTS as usize, flags, &[]);
            on_purged_access(decline).unwrap();
            let page = purged_page();
            assert_eq!(forked(|| _ = touch(page)), Ended::Signal(libc::SIGBUS));
            assert_eq!(count.load(Ordering::SeqCst), 1);
            // Also a signal that a process sends. tenure handles the next one if it is about a
            // purged page.
            let sent = forked(|| {
                // SAFETY: the call takes a number only, and there is a handler for the signal.
                assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
                on_purged_access(fill).unwrap();
                assert_eq!(touch(page), 7);
                assert_eq!(count.load(Ordering::SeqCst), 2);
                // SAFETY: the call takes a number only. The signal ends this process if no handler
                // takes it.
                unsafe { libc::raise(libc::SIGBUS) };
            });
            assert_eq!(sent, Ended::Signal(libc::SIGBUS));
            assert_eq!(count.load(Ordering::SeqCst), 2);
        }
    });
}

static RECURSED: AtomicBool = AtomicBool::new(false);

/// Touches its own page.
fn touches_it_itself(purged: Purged) -> bool {
    if RECURSED.swap(true, Ordering::SeqCst) {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(4) };
    }
    touch(purged.page) == 5
}

#[test]
fn a_touch_by_the_handler_itself_reaches_the_handler_before() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        installed(MAKES as usize, 0, &[]);
        on_purged_access(touches_it_itself).unwrap();
        for round in 1..=4 {
            if round == 3 {
                // Also on a thread that blocks the signals that it does not raise itself.
                // SAFETY: plain data, all local.
                unsafe {
                    let mut all = MaybeUninit::uninit();
                    libc::sigfillset(all.as_mut_ptr());
                    libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
                }
            }
            RECURSED.store(false, Ordering::SeqCst);
            assert_eq!(touch(purged_page()), 5);
            assert_eq!(CALLS.load(Ordering::SeqCst), round);
        }
    });
}
