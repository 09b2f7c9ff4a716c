//! Forks of every kind. The children verify their inherited memory and report the result.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::rng::Rng;
use crate::setting;
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{doing, panics, wrong};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// A way to make a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// fork(2) by the C library.
    Fork,
    /// The bare system call.
    Clone,
    /// fork(2) inside a signal handler.
    Handler,
    /// vfork(2) and exec by the C library.
    Vfork,
}

const CHILDREN: usize = 5;
/// A child that lives longer counts as hanging.
const PATIENCE_MS: u64 = 25_000;
const RESERVED: i32 = -1;

struct Child {
    pid: AtomicI32,
    since: AtomicU64,
    kind: AtomicI32,
}

static TABLE: [Child; CHILDREN] =
    [const { Child { pid: AtomicI32::new(0), since: AtomicU64::new(0), kind: AtomicI32::new(0) } };
        CHILDREN];

thread_local! {
    /// The memory that a child of a fork inside a closure verifies.
    static SPARE: Cell<Option<*mut dyn Spare>> = const { Cell::new(None) };
    static HANDLER_CHILD: Cell<i32> = const { Cell::new(-1) };
}

/// Memory that a child can check after it has inherited it.
pub trait Spare {
    /// Checks the memory.
    fn verify(&mut self, rng: &mut Rng);
}

/// Sets the memory that children check which the calling thread makes inside closures. `spare`
/// lives until the thread ends.
pub fn set_spare(spare: Option<*mut dyn Spare>) {
    SPARE.set(spare);
}

extern "C" fn fork_here(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    HANDLER_CHILD.set(sys::fork());
}

/// Installs the handler that forks, and starts the thread that waits for children.
pub fn start() {
    sys::on_signal(libc::SIGUSR1, fork_here);
    let reaper = || loop {
        sys::nap_us(20_000);
        reap();
    };
    std::thread::Builder::new().name("reaper".into()).spawn(reaper).expect("a thread");
}

fn reap() {
    for (number, child) in TABLE.iter().enumerate() {
        let pid = child.pid.load(Ordering::Acquire);
        if pid <= 0 {
            continue;
        }
        let kind = child.kind.load(Ordering::Relaxed);
        let kind = ["fork", "raw clone", "fork in a signal handler", "vfork"][kind as usize & 3];
        if let Some(status) = sys::reap(pid) {
            child.pid.store(0, Ordering::Release);
            let (signal, code) = (libc::WTERMSIG(status), libc::WEXITSTATUS(status));
            if libc::WIFSIGNALED(status) {
                add(&tally().kills, 1);
                tally().say(format_args!(
                    "KILL: a child of {kind} (pid {pid}) died of signal {signal}"
                ));
            } else if ![0, sys::EXIT_WRONG, sys::EXIT_SIGBUS].contains(&code) {
                add(&tally().kills, 1);
                tally().say(format_args!("KILL: a child of {kind} (pid {pid}) exited with {code}"));
            }
        } else if sys::now_ms().saturating_sub(child.since.load(Ordering::Relaxed)) > PATIENCE_MS {
            add(&tally().hangs, 1);
            tally().say(format_args!(
                "HANG: a child of {kind} (pid {pid}) does not end; it does: {}; its threads:",
                doing::child_doing(number)
            ));
            for part in doing::kernel_view(pid as u32).split("; ") {
                tally().say(format_args!("    {part}"));
            }
            sys::kill(pid);
            child.since.store(sys::now_ms(), Ordering::Relaxed);
            child.pid.store(0, Ordering::Release);
        }
    }
}

/// From now on the calling thread's children see a clock that is days ahead, or hours back.
pub fn in_another_time(thread: usize) {
    // SAFETY: changes the namespace of this thread's children alone.
    if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0 {
        return;
    }
    let up = i64::try_from(sys::now_ms() / 1000).unwrap_or(0);
    let days = 86_400 * (1 + 100 * thread as i64);
    let seconds = if thread % 2 == 0 { days } else { -(up / 2) };
    // SAFETY: has no precondition.
    let own = unsafe { libc::gettid() };
    let offsets = format!("monotonic {seconds} 0\nboottime {seconds} 0\n");
    if let Err(error) = std::fs::write(format!("/proc/{own}/timens_offsets"), offsets) {
        tally().say(format_args!("no other time for children: {error}"));
    }
}

/// Waits for all children; hanging ones are counted and killed.
pub fn wait_for_children() {
    while TABLE.iter().any(|child| child.pid.load(Ordering::Acquire) != 0) {
        sys::nap_us(10_000);
    }
}

/// Kills all children that are left.
pub fn kill_children() {
    for child in &TABLE {
        let pid = child.pid.swap(0, Ordering::AcqRel);
        if pid > 0 {
            sys::kill(pid);
        }
    }
}

/// Makes a child that runs `body` and ends. Does nothing in a child, or if there are enough
/// children.
pub fn make(kind: Kind, body: impl FnOnce()) {
    if sys::in_child() {
        return;
    }
    let reserve = |child: &&Child| {
        child.pid.compare_exchange(0, RESERVED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    let Some(number) = TABLE.iter().position(|child| reserve(&child)) else { return };
    let slot = &TABLE[number];
    tally().child_doing[number].store(0, Ordering::Relaxed);
    slot.kind.store(kind as i32, Ordering::Relaxed);
    slot.since.store(sys::now_ms(), Ordering::Relaxed);
    let pid = match kind {
        Kind::Fork => {
            add(&tally().forks, 1);
            sys::fork()
        }
        Kind::Clone => {
            add(&tally().clones, 1);
            sys::clone_raw()
        }
        Kind::Handler => {
            add(&tally().handler_forks, 1);
            HANDLER_CHILD.set(-1);
            sys::raise(libc::SIGUSR1);
            HANDLER_CHILD.get()
        }
        Kind::Vfork => {
            add(&tally().vforks, 1);
            execute()
        }
    };
    match pid {
        0 => {
            sys::set_in_child();
            doing::enlist_child(number);
            doing!("the child's start");
            if kind == Kind::Clone {
                setting::UNWATCHED.store(true, Ordering::Relaxed);
            }
            let done = panics::catching(body);
            sys::exit_now(if done.is_some() { 0 } else { 70 });
        }
        pid => slot.pid.store(pid.max(0), Ordering::Release),
    }
}

/// Executes a program that ends at once; the C library does it by vfork.
fn execute() -> i32 {
    let path = c"/bin/true";
    let mut pid = 0;
    let mut arguments = [path.as_ptr().cast_mut(), std::ptr::null_mut()];
    let mut environment = [std::ptr::null_mut()];
    // SAFETY: the strings and both arrays, which end with null, live through the call.
    let failed = unsafe {
        libc::posix_spawn(
            &mut pid,
            path.as_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            arguments.as_mut_ptr(),
            environment.as_mut_ptr(),
        )
    };
    if failed == 0 {
        pid
    } else {
        -1
    }
}

/// Forks inside a closure that tenure has called.
pub fn in_closure(kind: Kind) {
    add(&tally().closure_forks, 1);
    let spare = SPARE.get();
    make(kind, || {
        doing!("child of a fork in a closure");
        if let Some(spare) = spare {
            // SAFETY: it belongs to the thread and lives as long as the thread. Only this closure
            // uses it, in a process of its own.
            unsafe { &mut *spare }.verify(&mut Rng::of_operation(1, 2, 3));
        }
        let _ = tenure::stats();
    });
}

/// Memory that a child does not inherit: another mapping takes its place there, and the parent's
/// mark must not affect that mapping.
pub fn not_inherited(rng: &mut Rng) {
    doing!("fork without a marked range");
    let len = 16 * page_bytes();
    let Some(at) = sys::map(len, false) else { return };
    (0..16).for_each(|page| sys::set_word(at + page * page_bytes(), 7));
    // SAFETY: a mapping of this function's own, forgotten before it is unmapped. The test is that
    // children do not inherit it.
    let marked = unsafe {
        libc::madvise(at as *mut _, len, libc::MADV_DONTFORK);
        tenure::volatile::mark(at as *mut u8, len)
    };
    if marked.is_ok() && rng.once_in(2) {
        // SAFETY: a mapping of this function's own, forgotten before it is unmapped.
        let _ = unsafe { tenure::volatile::offer_now(at as *mut u8, len) };
    }
    make(Kind::Fork, || {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the place is free, or the call fails.
        let there = unsafe { libc::mmap(at as *mut _, len, access, flags, -1, 0) };
        if there as usize != at {
            return;
        }
        (0..16).for_each(|page| sys::set_word(at + page * page_bytes(), 9));
        if let Some(other) = sys::map(len, false) {
            // Starts the child's worker, whatever its state.
            // SAFETY: a mapping of this function's own that stays.
            let _ = unsafe { tenure::volatile::mark(other as *mut u8, len) };
        }
        for _ in 0..6 {
            sys::nap_us(10_000);
            sys::reclaim(at, len);
            if let Some(page) = (0..16).find(|page| sys::word(at + page * page_bytes()) != 9) {
                wrong!(
                    "page {page} of memory in the place of what was not inherited was discarded"
                );
                return;
            }
        }
    });
    // SAFETY: a mapping of this function's own, which is still mapped and whose contents are not
    // needed.
    if unsafe { tenure::volatile::forget(at as *mut u8, len) }.is_ok() {
        sys::unmap(at, len);
    }
}

/// Pages that a child shares are not discarded during that time.
pub fn shared_pages(rng: &mut Rng) {
    doing!("purge of pages that a child shares");
    let len = 32 * page_bytes();
    let Some(at) = sys::map(len, false) else { return };
    (0..32).for_each(|page| sys::set_word(at + page * page_bytes(), 7));
    let (go, hold) = (crate::gate::Gate::new(), rng.below(2) == 0);
    let made = std::cell::Cell::new(false);
    make(Kind::Fork, || {
        go.wait(3000);
        (0..32).for_each(|page| {
            if sys::word(at + page * page_bytes()) != 7 {
                wrong!("page {page} of memory that was never marked here changed in a child");
            }
        });
    });
    made.set(TABLE.iter().any(|child| child.pid.load(Ordering::Acquire) > 0));
    // SAFETY: a mapping of this function's own, forgotten before it is unmapped.
    let purged = unsafe {
        tenure::volatile::mark(at as *mut u8, len)
            .and_then(|()| tenure::volatile::purge_now(at as *mut u8, len))
    };
    // The child is still there, because the gate was not opened.
    let _ = made;
    if hold {
        sys::nap_us(2000);
    }
    if let (Ok(gone), true) = (&purged, go.waited_for()) {
        if *gone > 0 {
            wrong!("{gone} bytes that a child shares were purged");
        }
    }
    go.open();
    // SAFETY: a mapping of this function's own, which is still mapped and whose contents are not
    // needed.
    if unsafe { tenure::volatile::forget(at as *mut u8, len) }.is_ok() {
        sys::unmap(at, len);
    }
}
