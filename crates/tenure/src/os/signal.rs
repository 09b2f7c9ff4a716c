//! A SIGBUS handler that chains the one before it.

use super::errno::last_errno;
use rustix::io::Errno;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Given the faulting address; `true` when the access may be tried again.
pub(crate) type OnBus = fn(usize) -> bool;

/// Whose touches a handler answers.
#[derive(Clone, Copy)]
pub(crate) enum Touches {
    /// Of memory that processes share.
    Shared,
    /// Of the process's own. It asks the kernel about an address that it does not know, so it is the last.
    Private,
}

/// What a SIGBUS does.
struct Sigbus {
    /// For each of [`Touches`] an [`OnBus`]; null: none yet.
    handlers: [AtomicPtr<()>; 2],
    /// What was done at a SIGBUS before ours was installed; null is the default. It is never freed: a thread may be
    /// in it.
    previous: AtomicPtr<Previous>,
    /// Ours was installed, and has not given way to the default since.
    installed: AtomicBool,
}

/// For the whole process: a signal's handler is the process's, and finds nothing but what is static.
static SIGBUS: Sigbus = Sigbus {
    handlers: [const { AtomicPtr::new(std::ptr::null_mut()) }; 2],
    previous: AtomicPtr::new(std::ptr::null_mut()),
    installed: AtomicBool::new(false),
};

struct Previous {
    action: libc::sigaction,
    /// It was to be called once (SA_RESETHAND), and has been.
    is_spent: AtomicBool,
}

/// A touch that the handler is at.
#[derive(Clone, Copy)]
struct At {
    page: usize,
    /// The address of what the kernel saved on the stack. The handler's own frames lie below it.
    frame: usize,
}

impl At {
    const NOTHING: At = At { page: usize::MAX, frame: 0 };
}

thread_local! {
    /// A touch of the same page by the handler itself must reach the previous handler, not recurse. A handler
    /// that is left by siglongjmp leaves its touch here: see [`touch_around`].
    /// Each thread's own: a thread is in one handler at a time.
    static AT: Cell<At> = const { Cell::new(At::NOTHING) };
}

/// Blocked while the handler runs, so that the mask that the kernel saves tells whether it interrupted the handler.
fn inside_mark() -> libc::c_int {
    libc::SIGRTMAX()
}

/// The touch whose handler was interrupted. siglongjmp out of the handler restores the mask, and the stack pointer to
/// above the handler's frames. Only a thread that blocks the mark itself, and touches the page again from further
/// down the stack than the handler was, cannot be told from the handler.
fn touch_around(context: &libc::ucontext_t) -> At {
    let at = AT.get();
    // SAFETY: reads a valid set.
    let is_marked = unsafe { libc::sigismember(&context.uc_sigmask, inside_mark()) == 1 };
    if is_marked && stack_pointer(context) < at.frame {
        at
    } else {
        At::NOTHING
    }
}

/// The stack pointer of the interrupted code.
#[cfg(target_arch = "x86_64")]
fn stack_pointer(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

/// The stack pointer of the interrupted code.
#[cfg(target_arch = "aarch64")]
fn stack_pointer(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.sp as usize
}

/// Below every frame: the mark alone decides.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn stack_pointer(_: &libc::ucontext_t) -> usize {
    0
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // errno belongs to the code that was interrupted.
    let _errno = super::errno::Kept::now();
    let mut settled = false;
    // SAFETY: the kernel passes a valid siginfo and ucontext to a handler installed with SA_SIGINFO;
    // si_addr is set for a SIGBUS that a fault raised (si_code > 0).
    let (code, address, around) = unsafe {
        let around = touch_around(&*context.cast::<libc::ucontext_t>());
        ((*info).si_code, (*info).si_addr() as usize, around)
    };
    let page = address / super::page_size();
    if code > 0 && around.page != page {
        AT.set(At { page, frame: context as usize });
        settled = SIGBUS.handlers.iter().any(|handler| {
            let handler = handler.load(Ordering::Acquire);
            // SAFETY: `SIGBUS.handlers` only ever hold pointers made from an `OnBus`, or null, which is `None`.
            let handler: Option<OnBus> = unsafe { std::mem::transmute(handler) };
            handler.is_some_and(|handler| handler(address))
        });
        AT.set(around);
    }
    if !settled {
        chain(signal, info, context, code <= 0);
    }
}

fn previous() -> Option<&'static Previous> {
    // SAFETY: null, or a box that `put_before` has leaked. Nothing writes to it but through its atomic.
    unsafe { SIGBUS.previous.load(Ordering::Acquire).as_ref() }
}

/// What the signal is to do now. This makes it the default for the next one where the kernel would (SA_RESETHAND).
fn take_previous() -> Option<&'static libc::sigaction> {
    let Previous { action, is_spent } = previous()?;
    let once = action.sa_flags & libc::SA_RESETHAND != 0 && action.sa_sigaction != libc::SIG_IGN;
    (!once || !is_spent.swap(true, Ordering::AcqRel)).then_some(action)
}

fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, sent: bool) {
    match take_previous() {
        Some(action) if action.sa_sigaction != libc::SIG_IGN => {
            let before = block_as_for(action, signal);
            // SAFETY: `action` was installed before ours, and is neither the default, which is not remembered,
            // nor SIG_IGN: a handler. It is called with the arguments that its flags say it expects.
            unsafe {
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let f: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(action.sa_sigaction);
                    f(signal, info, context);
                } else {
                    let f: extern "C" fn(libc::c_int) = std::mem::transmute(action.sa_sigaction);
                    f(signal);
                }
            }
            // Not left to the kernel: ours may have been called by a handler that the program put before it.
            restore(before);
            after_previous(sent);
        }
        // A signal that was sent is as it would be without tenure.
        Some(_) if sent => {}
        // (A fault's signal cannot be ignored: the kernel kills in that case as well.)
        _ => give_way(signal, sent),
    }
}

/// The default: die of it, when the access is tried again or at once.
fn give_way(signal: libc::c_int, sent: bool) {
    SIGBUS.installed.store(false, Ordering::Release);
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

/// Blocks what the kernel blocks while this handler runs; returns the mask before.
fn block_as_for(action: &libc::sigaction, signal: libc::c_int) -> Mask {
    let mut more = action.sa_mask;
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigaddset changes a valid local set; pthread_sigmask reads it and writes the other, which is local
    // as well. It cannot fail with these arguments.
    unsafe {
        if action.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut more, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &more, before.as_mut_ptr());
        Mask(before.assume_init())
    }
}

/// The handler before ours may give way to the default, as that of Rust's runtime does at any signal that is not
/// its own. After a signal that was sent, it is the default that ours is put before.
fn after_previous(sent: bool) {
    if disposition().is_ok_and(|now| now.sa_sigaction == libc::SIG_DFL) {
        SIGBUS.installed.store(false, Ordering::Release);
        if sent {
            let _ = put_before(None);
        }
    }
}

/// Calls `handler` for every SIGBUS that a fault raises; where all of them return `false` the handler that
/// was installed before gets the signal. A second call replaces the function, not the chain.
///
/// After `Ok` a SIGBUS reaches ours, so each call asks the kernel. Threads that install it at once each do all of
/// it, with the same result: none relies on what another has not done yet, and a child that is forked in between
/// does its own part.
pub(crate) fn install(touches: Touches, handler: OnBus) -> Result<(), Errno> {
    SIGBUS.handlers[touches as usize].store(handler as *mut (), Ordering::Release);
    let now = disposition()?;
    if now.sa_sigaction == on_sigbus as *const () as usize {
        // Also for another thread that has put it and has not said so yet.
        SIGBUS.installed.store(true, Ordering::Release);
        return Ok(());
    }
    if is_later(&now) {
        return Ok(());
    }
    put_before((now.sa_sigaction != libc::SIG_DFL).then_some(now))
}

/// Whether this is a handler that the program has put before ours. It calls ours; ours before it again would make
/// a chain without an end. The handler that was there before ours is not: the program has put it back, or this
/// is a child that has its parent's dispositions from before its memory, and ours was installed in between.
fn is_later(now: &libc::sigaction) -> bool {
    let is_handler = !matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    let is_previous = |before: &Previous| before.action.sa_sigaction == now.sa_sigaction;
    SIGBUS.installed.load(Ordering::Acquire) && is_handler && !previous().is_some_and(is_previous)
}

/// Puts ours before this (`None`: the default), which is remembered first: a SIGBUS may come at once.
fn put_before(action: Option<libc::sigaction>) -> Result<(), Errno> {
    let previous = action.map_or(std::ptr::null_mut(), |action| {
        Box::into_raw(Box::new(Previous { action, is_spent: AtomicBool::new(false) }))
    });
    SIGBUS.previous.store(previous, Ordering::Release);
    put_ours()?;
    SIGBUS.installed.store(true, Ordering::Release);
    Ok(())
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

    /// Signals that wait for the thread are delivered now.
    pub fn let_signals_come(&self) {
        restore(self.before);
        block_all();
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        restore(self.before);
    }
}
