//! The present action of each thread.

#![allow(unsafe_code, reason = "shares memory with its child processes")]

use crate::sys;
use crate::tally::tally;
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

const THREADS: usize = 32;

struct Slot {
    /// A `&'static &'static str`.
    doing: AtomicPtr<&'static str>,
    since: AtomicU64,
    operation: AtomicU64,
}

static SLOTS: [Slot; THREADS] = [const {
    Slot {
        doing: AtomicPtr::new(std::ptr::null_mut()),
        since: AtomicU64::new(0),
        operation: AtomicU64::new(0),
    }
}; THREADS];

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(THREADS) };
}

static CHILD: AtomicUsize = AtomicUsize::new(usize::MAX);

/// In a child: its actions are stored for its parent under child number `child`.
pub fn enlist_child(child: usize) {
    CHILD.store(child, Ordering::Relaxed);
}

/// Returns the present action of child number `child` of this process.
pub fn child_doing(child: usize) -> &'static str {
    let at = tally().child_doing[child].load(Ordering::Relaxed) as *const &'static str;
    if at.is_null() {
        return "nothing yet";
    }
    // SAFETY: the child, a copy of this process, stored a reference to a static, which lies at the
    // same address here.
    unsafe { *at }
}

/// Gives the calling thread a slot.
pub fn enlist(thread: usize) {
    assert!(thread < THREADS);
    MINE.set(thread);
}

/// Sets the action of the calling thread from now on; `None`: an action that cannot hang.
pub fn enter(what: Option<&'static &'static str>, operation: Option<u64>) {
    let Some(slot) = SLOTS.get(MINE.get()) else { return };
    if let Some(operation) = operation {
        slot.operation.store(operation, Ordering::Relaxed);
    }
    slot.since.store(sys::now_ms(), Ordering::Relaxed);
    let what = what.map_or(std::ptr::null_mut(), |what| std::ptr::from_ref(what).cast_mut());
    if let Some(shared) = tally().child_doing.get(CHILD.load(Ordering::Relaxed)) {
        shared.store(what as u64, Ordering::Relaxed);
    }
    slot.doing.store(what, Ordering::Release);
}

/// Sets the action of the calling thread from now on.
#[macro_export]
macro_rules! doing {
    ($what:literal) => {{
        static WHAT: &str = $what;
        $crate::doing::enter(Some(&WHAT), None);
    }};
}

fn name(slot: &Slot) -> &'static str {
    let doing = slot.doing.load(Ordering::Acquire);
    if doing.is_null() {
        return "-";
    }
    // SAFETY: `enter` stored a reference to a static.
    unsafe { *doing }
}

/// Returns the action of the calling thread.
pub fn doing() -> impl std::fmt::Display {
    struct Doing(usize);
    impl std::fmt::Display for Doing {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match SLOTS.get(self.0) {
                None => write!(f, "a thread of tenure's"),
                Some(slot) => {
                    let operation = slot.operation.load(Ordering::Relaxed);
                    write!(f, "thread {}, operation {operation}: {}", self.0, name(slot))
                }
            }
        }
    }
    Doing(MINE.get())
}

/// A thread whose action could hang.
pub struct Thread {
    /// Its slot.
    pub number: usize,
    /// Its operation's number.
    pub operation: u64,
    /// Its action.
    pub what: &'static str,
    /// The time when the action began, by the clock of [`sys::now_ms`].
    pub since: u64,
}

impl Thread {
    /// Returns whether the action has taken longer than `limit` ms.
    pub fn is_late(&self, now: u64, limit: u64) -> bool {
        now.saturating_sub(self.since) > limit
    }
}

/// All such threads.
pub fn threads() -> impl Iterator<Item = Thread> {
    let busy = |slot: &&Slot| !slot.doing.load(Ordering::Acquire).is_null();
    SLOTS.iter().enumerate().filter(move |(_, slot)| busy(slot)).map(|(number, slot)| Thread {
        number,
        operation: slot.operation.load(Ordering::Relaxed),
        what: name(slot),
        since: slot.since.load(Ordering::Relaxed),
    })
}

/// The calls that the threads of a process are in, for a report of a hang.
pub fn kernel_view(pid: u32) -> String {
    let mut text = String::new();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let read = |file: &str| {
            let text = std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            text.trim().split(' ').take(2).collect::<Vec<_>>().join(" ")
        };
        let id = thread.file_name();
        let (comm, place, call) = (read("comm"), read("wchan"), read("syscall"));
        text += &format!("{}:{comm}:{place}:{call}; ", id.to_string_lossy());
    }
    text
}
