//! A SIGBUS handler that chains the one before it.

use super::advise::last_errno;
use rustix::io::Errno;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Given the faulting address; `true` when the access may be tried again.
pub(crate) type OnBus = fn(usize) -> bool;

static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// The handler before ours: its address, and [`TAKES_INFO`].
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static INSTALLED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The page whose touch the handler is at. A touch of the same page by the handler itself must reach
    /// the previous handler, not recurse.
    static AT: Cell<usize> = const { Cell::new(0) };
}

/// Blocked while the handler runs: whether the interrupted code was the handler itself is told by the mask
/// that the kernel saved, which siglongjmp out of the handler restores.
fn inside_mark() -> libc::c_int {
    libc::SIGRTMAX()
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // errno belongs to the code that was interrupted.
    let _errno = super::errno::Kept::now();
    let handler = HANDLER.load(Ordering::Acquire);
    let mut settled = false;
    // SAFETY: the kernel passes a valid siginfo and ucontext to a handler installed with SA_SIGINFO;
    // si_addr is set for a SIGBUS that a fault raised (si_code > 0).
    let (code, address, nested) = unsafe {
        let mask = &(*context.cast::<libc::ucontext_t>()).uc_sigmask;
        let nested = libc::sigismember(mask, inside_mark()) == 1;
        ((*info).si_code, (*info).si_addr() as usize, nested)
    };
    let page = address / super::page_size() + 1;
    let before = AT.get();
    if !handler.is_null() && code > 0 && !(nested && before == page) {
        AT.set(page);
        // SAFETY: `HANDLER` only ever holds a pointer made from an `OnBus`.
        let handler: OnBus = unsafe { std::mem::transmute(handler) };
        settled = handler(address);
        AT.set(before);
    }
    if !settled {
        chain(signal, info, context, code <= 0);
    }
}

/// A handler that takes a siginfo has this bit, which no address has.
const TAKES_INFO: usize = 1 << (usize::BITS - 1);

fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, sent: bool) {
    match PREVIOUS.load(Ordering::Acquire) {
        // A signal that was sent is as it would be without tenure.
        libc::SIG_IGN if sent => {}
        // (A fault's signal cannot be ignored: the kernel kills in that case as well.)
        libc::SIG_DFL | libc::SIG_IGN => {
            // The default: die of it, when the access is tried again or at once.
            // SAFETY: resetting a signal's disposition with a zeroed, valid structure.
            unsafe {
                let mut default: libc::sigaction = MaybeUninit::zeroed().assume_init();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, std::ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
        }
        action => {
            // SAFETY: `action` is the handler that was installed before ours, called with the
            // arguments that its flags say it expects.
            unsafe {
                if action & TAKES_INFO != 0 {
                    let f: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(action & !TAKES_INFO);
                    f(signal, info, context);
                } else {
                    let f: extern "C" fn(libc::c_int) = std::mem::transmute(action);
                    f(signal);
                }
            }
            if sent {
                stay_installed();
            }
        }
    }
}

/// The handler before ours may give way to the default, as that of Rust's runtime does at any signal that is not
/// its own: then it is the default that ours is put before.
fn stay_installed() {
    if disposition().is_ok_and(|now| now.sa_sigaction == libc::SIG_DFL) {
        PREVIOUS.store(libc::SIG_DFL, Ordering::Release);
        let _ = put_ours();
    }
}

/// Calls `handler` for every SIGBUS that a fault raises; where it answers `false` the handler that
/// was installed before gets the signal. A second call replaces the function, not the chain.
pub(crate) fn install(handler: OnBus) -> Result<(), Errno> {
    HANDLER.store(handler as *mut (), Ordering::Release);
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let put = disposition().and_then(|previous| {
        let info = if previous.sa_flags & libc::SA_SIGINFO != 0 { TAKES_INFO } else { 0 };
        PREVIOUS.store(previous.sa_sigaction | info, Ordering::Release);
        put_ours()
    });
    put.inspect_err(|_| INSTALLED.store(false, Ordering::Release))
}

/// What is done at a SIGBUS now.
fn disposition() -> Result<libc::sigaction, Errno> {
    // SAFETY: plain data, of which any bits are valid; the kernel writes the local.
    let (done, now) = unsafe {
        let mut now: libc::sigaction = MaybeUninit::zeroed().assume_init();
        (libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut now), now)
    };
    match done {
        0 => Ok(now),
        _ => Err(last_errno()),
    }
}

fn put_ours() -> Result<(), Errno> {
    // SAFETY: `on_sigbus` is a valid SA_SIGINFO handler that lives forever. SA_NODEFER: it may touch
    // purged memory of another object, and a blocked SIGBUS would kill instead of being chained. Not
    // SA_ONSTACK: the alternate stack that Rust gives its threads has 8 KiB, too little for a handler
    // that regenerates data (seen: SIGSEGV), and the touch of a data page does not overflow a stack.
    let done = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaddset(&mut action.sa_mask, inside_mark());
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    match done {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Sends SIGBUS to a thread of this process.
pub(crate) fn send_sigbus(thread: u32) {
    // SAFETY: tgkill takes numbers only; a thread that has ended gives ESRCH.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGBUS) };
}

/// A thread's signal mask.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// What a thread raises by what it does itself. Blocked, it kills the process: a sandbox answers refused system
/// calls by SIGSYS, a language runtime its guard pages by SIGSEGV.
const OWN: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Keeps every signal that is sent away from the calling thread; returns the mask before. 80 ns.
pub(crate) fn block_all() -> Mask {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is given; pthread_sigmask reads the first set and
    // writes the second, both local. It cannot fail with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        OWN.iter().for_each(|signal| _ = libc::sigdelset(all.as_mut_ptr(), *signal));
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Mask(before.assume_init())
    }
}

/// Gives the calling thread a mask back that [`block_all`] returned.
pub(crate) fn restore(mask: Mask) {
    // SAFETY: the set was written by the kernel, and is only read.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask.0, std::ptr::null_mut()) };
}

/// Keeps every signal that is sent away from this thread until it is dropped. Two system calls, 80 ns each.
pub(crate) struct Blocked {
    before: Mask,
    // A signal mask belongs to its thread.
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    pub fn all() -> Blocked {
        Blocked { before: block_all(), _of_this_thread: std::marker::PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        restore(self.before);
    }
}
