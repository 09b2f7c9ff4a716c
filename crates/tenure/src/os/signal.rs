//! A SIGBUS handler that passes signals on to the handler before it.

use super::errno::last_errno;
use super::kernel;
use rustix::io::Errno;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Gets the faulting address. Returns `true` if the access may be tried again.
pub(crate) type OnBus = fn(usize) -> bool;

/// The memory whose touches a handler serves.
#[derive(Clone, Copy)]
pub(crate) enum Touches {
    /// Memory that processes share.
    Shared,
    /// The process's own memory. This handler asks the kernel about an address that it does not
    /// know, so it comes last.
    Private,
}

/// The state of tenure's SIGBUS handler.
struct Sigbus {
    /// For each of [`Touches`] an [`OnBus`]; null: none yet.
    handlers: [AtomicPtr<()>; 2],
    /// The disposition of SIGBUS before tenure's handler was installed; null is the default. It is
    /// never freed: a thread may be in that handler.
    previous: AtomicPtr<Previous>,
    /// tenure's handler was installed, and has not given way to the default since.
    installed: AtomicBool,
}

/// For the whole process: a signal handler belongs to the process, and reaches only static data.
static SIGBUS: Sigbus = Sigbus {
    handlers: [const { AtomicPtr::new(std::ptr::null_mut()) }; 2],
    previous: AtomicPtr::new(std::ptr::null_mut()),
    installed: AtomicBool::new(false),
};

struct Previous {
    action: libc::sigaction,
    /// It was installed for one call (SA_RESETHAND), and that call has happened.
    is_spent: AtomicBool,
}

/// The touch that the handler is working on.
#[derive(Clone, Copy)]
struct At {
    page: usize,
    /// The address of the context that the kernel saved on the stack. The handler's own frames lie
    /// below it.
    frame: usize,
}

impl At {
    const NOTHING: At = At { page: usize::MAX, frame: 0 };
}

thread_local! {
    /// A touch of this page by the handler itself must reach the previous handler, not recurse. A
    /// handler that siglongjmp leaves does not clear its touch here: see [`touch_around`].
    /// Each thread's own: a thread is in one handler at a time.
    static AT: Cell<At> = const { Cell::new(At::NOTHING) };
}

/// A signal that is blocked while the handler runs, so that the mask that the kernel saves shows
/// whether a signal interrupted the handler.
fn inside_mark() -> libc::c_int {
    libc::SIGRTMAX()
}

/// Returns the touch whose handler was interrupted. siglongjmp out of the handler restores the
/// mask, and moves the stack pointer above the handler's frames. One case cannot be distinguished
/// from the handler: a thread that blocks the mark itself, and touches the page again from further
/// down the stack than the handler was.
fn touch_around(context: &libc::ucontext_t) -> At {
    let at = AT.get();
    // SAFETY: the call reads a valid set.
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

/// The lowest address: only the mark decides.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn stack_pointer(_: &libc::ucontext_t) -> usize {
    0
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // errno belongs to the interrupted code.
    let _errno = super::errno::Kept::now();
    let mut settled = false;
    // SAFETY: the kernel passes a valid siginfo and ucontext to a handler installed with
    // SA_SIGINFO; si_addr is set for a SIGBUS that a fault raised (si_code > 0).
    let (code, address, around) = unsafe {
        let around = touch_around(&*context.cast::<libc::ucontext_t>());
        ((*info).si_code, (*info).si_addr() as usize, around)
    };
    let page = address / super::page_size();
    if code > 0 && around.page != page {
        AT.set(At { page, frame: context as usize });
        settled = SIGBUS.handlers.iter().any(|handler| {
            let handler = handler.load(Ordering::Acquire);
            // SAFETY: `SIGBUS.handlers` only ever holds pointers made from an `OnBus`, or null,
            // which is `None`.
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
    // SAFETY: the pointer is null, or a box that `put_before` has leaked. The box changes only
    // through its atomic.
    unsafe { SIGBUS.previous.load(Ordering::Acquire).as_ref() }
}

/// Returns the disposition that the signal gets now. Resets it to the default for the next signal
/// where the kernel would (SA_RESETHAND).
fn take_previous() -> Option<&'static libc::sigaction> {
    let Previous { action, is_spent } = previous()?;
    let once = action.sa_flags & libc::SA_RESETHAND != 0 && action.sa_sigaction != libc::SIG_IGN;
    (!once || !is_spent.swap(true, Ordering::AcqRel)).then_some(action)
}

fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, sent: bool) {
    match take_previous() {
        Some(action) if action.sa_sigaction != libc::SIG_IGN => {
            let before = block_as_for(action, signal);
            // SAFETY: `action` was installed before tenure's handler. It is neither the default,
            // which is not remembered, nor SIG_IGN, so it is a handler. It gets the arguments that
            // its flags ask for.
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
            // Not left to the kernel: the program may have put its own handler before tenure's and
            // called it.
            restore(before);
            after_previous(sent);
        }
        // A signal that a process sent has the effect that it would have without tenure.
        Some(_) if sent => {}
        // (A fault's signal cannot be ignored: the kernel kills the process in that case as well.)
        _ => give_way(signal, sent),
    }
}

/// Applies the default: the process dies, at once or when the access is tried again.
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

/// Blocks the signals that the kernel blocks while this handler runs. Returns the mask before.
fn block_as_for(action: &libc::sigaction, signal: libc::c_int) -> Mask {
    let mut more = action.sa_mask;
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigaddset changes a valid local set. pthread_sigmask reads it and writes the other
    // set, which is local as well. It cannot fail with these arguments.
    unsafe {
        if action.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut more, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &more, before.as_mut_ptr());
        Mask(before.assume_init())
    }
}

/// The handler before tenure's may have given way to the default, as that of Rust's runtime does at
/// any signal that is not its own. After a signal that a process sent, tenure's handler is then put
/// before the default.
fn after_previous(sent: bool) {
    if disposition().is_ok_and(|now| now.sa_sigaction == libc::SIG_DFL) {
        SIGBUS.installed.store(false, Ordering::Release);
        if sent {
            let _ = put_before(None);
        }
    }
}

/// Calls `handler` for every SIGBUS that a fault raises. If all of them return `false`, the handler
/// that was installed before gets the signal. A second call replaces the function, not the chain.
///
/// After `Ok` a SIGBUS reaches tenure's handler, so each call asks the kernel. Threads that install
/// it at once each do the whole work, with one result. No thread relies on work that another has
/// not done yet, and a child that is forked in between does its own part.
pub(crate) fn install(touches: Touches, handler: OnBus) -> Result<(), Errno> {
    SIGBUS.handlers[touches as usize].store(handler as *mut (), Ordering::Release);
    let now = disposition()?;
    if now.sa_sigaction == on_sigbus as *const () as usize {
        // Also for another thread that has put the handler and has not noted it yet.
        SIGBUS.installed.store(true, Ordering::Release);
        return Ok(());
    }
    if is_later(&now) {
        return Ok(());
    }
    put_before((now.sa_sigaction != libc::SIG_DFL).then_some(now))
}

/// Returns whether the program has put this handler before tenure's. Such a handler calls tenure's;
/// tenure's before it again would make an endless chain. The handler that was there before tenure's
/// is a different case: either the program has put it back, or this is a child that copied its
/// parent's dispositions before the parent's memory, and tenure's handler was installed in between.
fn is_later(now: &libc::sigaction) -> bool {
    let is_handler = !matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    let is_previous = |before: &Previous| before.action.sa_sigaction == now.sa_sigaction;
    SIGBUS.installed.load(Ordering::Acquire) && is_handler && !previous().is_some_and(is_previous)
}

/// Puts tenure's handler before this one (`None`: the default). That one is remembered first,
/// because a SIGBUS may come at once.
fn put_before(action: Option<libc::sigaction>) -> Result<(), Errno> {
    let previous = action.map_or(std::ptr::null_mut(), |action| {
        Box::into_raw(Box::new(Previous { action, is_spent: AtomicBool::new(false) }))
    });
    SIGBUS.previous.store(previous, Ordering::Release);
    put_ours()?;
    SIGBUS.installed.store(true, Ordering::Release);
    Ok(())
}

/// Returns the present disposition of SIGBUS.
fn disposition() -> Result<libc::sigaction, Errno> {
    // SAFETY: plain data, for which any bits are valid; the kernel writes the local.
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
    // SAFETY: `on_sigbus` is a valid SA_SIGINFO handler that lives for ever. SA_NODEFER: it may
    // touch purged memory of another object, and a blocked SIGBUS would kill the process instead of
    // reaching the next handler. No SA_ONSTACK: the alternate stack that Rust gives its threads has
    // 8 KiB, too little for a handler that regenerates data (seen: SIGSEGV), and the touch of a
    // data page does not overflow a stack.
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
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let arguments = [process.into(), thread.into(), libc::SIGBUS.into(), 0, 0, 0];
    // SAFETY: tgkill takes numbers only; a thread that has ended gives ESRCH.
    let _ = unsafe { kernel::call(libc::SYS_tgkill, arguments) };
}

/// A thread's signal mask.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// Signals that a thread raises by its own instructions. If they are blocked, they kill the
/// process: a sandbox raises SIGSYS for refused system calls, a language runtime SIGSEGV for its
/// guard pages.
const OWN: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Blocks, for the calling thread, every signal that others send; returns the mask before. What the
/// program has blocked stays so: a signal that waits would kill it. 80 ns.
pub(crate) fn block_all() -> Mask {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the given set. pthread_sigmask reads the first set and writes
    // the second, and both are local. It cannot fail with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        OWN.iter().for_each(|signal| _ = libc::sigdelset(all.as_mut_ptr(), *signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        Mask(before.assume_init())
    }
}

/// Restores a mask that [`block_all`] returned, for the calling thread.
pub(crate) fn restore(mask: Mask) {
    // SAFETY: the set was written by the kernel, and is only read.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask.0, std::ptr::null_mut()) };
}

/// Blocks, for this thread, every signal that others send, until it is dropped. Two system calls,
/// 80 ns each.
pub(crate) struct Blocked {
    before: Mask,
    // A signal mask belongs to its thread.
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    pub fn all() -> Blocked {
        Blocked { before: block_all(), _of_this_thread: std::marker::PhantomData }
    }

    /// Delivers the signals that wait for the thread now.
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
