//! Notes for a fork: which descriptors the threads have open for the length of a call, so that a child
//! closes those of the other threads.
//!
//! A fork waits while another thread is between the opening or closing of a descriptor and the note
//! about it, which takes a microsecond.

use super::own_table::this_thread_has_own_table;
use rustix::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A file's identity: the numbers of its file system and of the file.
pub(super) type File = (u64, u64);

/// A descriptor that is open now.
pub(super) struct Note {
    /// The thread's [`here`] and, in the lowest 16 bits, [`NOTHING`] or the number and [`FIRST`]. 0:
    /// nobody's.
    word: AtomicU64,
    /// The file's device and inode.
    file: [AtomicU64; 2],
    /// The thread is opening or closing the descriptor. Apart from the word, which a child reads: a
    /// thread may lose its processor while it says so and lets a fork go first.
    is_busy: AtomicBool,
}

/// The descriptors that a child closes.
struct Open {
    notes: [Note; 64],
    /// The thread that forks, its [`here`], and in the lowest 16 bits the fork's number. 0: none.
    forking: AtomicU64,
    forks: AtomicU64,
}

/// For the whole process: its child inherits the descriptors of all threads.
static OPEN: Open = Open {
    notes: [const { Note::none() }; 64],
    forking: AtomicU64::new(0),
    forks: AtomicU64::new(0),
};
/// Nothing is open.
const NOTHING: u64 = 1;
const FIRST: u64 = 2;

impl Note {
    const fn none() -> Note {
        Note {
            word: AtomicU64::new(0),
            file: [const { AtomicU64::new(0) }; 2],
            is_busy: AtomicBool::new(false),
        }
    }

    /// Notes that a child is to close the number if it is this file's. `false`: the note cannot hold
    /// the number, and a child keeps it.
    pub fn is_of(&self, number: RawFd, file: File) -> bool {
        let Some(number) = u16::try_from(number).ok().map(u64::from) else { return false };
        if number + FIRST > u64::from(u16::MAX) {
            return false;
        }
        self.file[0].store(file.0, Ordering::Relaxed);
        self.file[1].store(file.1, Ordering::Relaxed);
        self.word.store(here() | (number + FIRST), Ordering::SeqCst);
        self.is_busy.store(false, Ordering::SeqCst);
        true
    }

    /// Ends the note: nothing is open.
    pub fn end(&self) {
        self.word.store(here() | NOTHING, Ordering::SeqCst);
        self.is_busy.store(false, Ordering::SeqCst);
        self.word.store(0, Ordering::SeqCst);
    }

    /// Notes that the thread is opening or closing the descriptor, while no other thread forks: a
    /// fork that is under way has looked for busy threads already.
    pub fn becomes_busy(&self) {
        let (began, mut too_long) = (Instant::now(), None);
        while began.elapsed() < FORKS_PATIENCE {
            self.is_busy.store(true, Ordering::SeqCst);
            // A thread that loses its processor may find a later fork under way.
            let fork = others_fork().filter(|fork| Some(*fork) != too_long);
            let Some(fork) = fork else { return };
            self.is_busy.store(false, Ordering::SeqCst);
            if !wait_while(|| OPEN.forking.load(Ordering::SeqCst) == fork) {
                too_long = Some(fork);
            }
        }
        self.is_busy.store(true, Ordering::SeqCst);
    }

    fn file(&self) -> File {
        (self.file[0].load(Ordering::Relaxed), self.file[1].load(Ordering::Relaxed))
    }
}

/// The longest wait of a fork and another thread for each other. Without this bound they could wait
/// for ever: a fork handler may want a lock that the other thread has.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);
/// For how long a thread lets forks go first, one after another. On a busy machine with a program that
/// forks all the time, nine of ten looks find a fork under way.
const FORKS_PATIENCE: Duration = Duration::from_secs(2);

/// A number that differs between the threads of a process and is equal in a child: an address of
/// the thread's, above 16 bits.
fn here() -> u64 {
    thread_local! {
        /// Each thread's own: its address tells threads apart.
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here) as u64) << 16
}

/// Notes that this thread is about to open a descriptor. `None`: without a note, a child keeps it.
pub(super) fn begin() -> Option<&'static Note> {
    // The program may have the same file open under the same number, and a child keeps that one.
    if this_thread_has_own_table() {
        return None;
    }
    let own = here() | NOTHING;
    let free = |note: &&Note| {
        note.word.load(Ordering::Relaxed) == 0
            && note.word.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let note = OPEN.notes.iter().find(free)?;
    note.becomes_busy();
    Some(note)
}

/// Returns the other thread's fork that is under way, if there is one.
fn others_fork() -> Option<u64> {
    let forking = OPEN.forking.load(Ordering::SeqCst);
    (forking != 0 && forking >> 16 != here() >> 16).then_some(forking)
}

/// Returns whether that ended within [`PATIENCE`], or while this thread did not have its processor.
fn wait_while(holds: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    loop {
        // The clock first: a thread that loses its processor in between sees the present state.
        let waited = began.elapsed();
        if !holds() {
            return true;
        }
        // On a busy machine a thread that only yields keeps the processor from the other one.
        match waited {
            waited if waited < PATIENCE / 200 => crate::os::futex::yield_now(),
            waited if waited < PATIENCE => std::thread::sleep(PATIENCE / 200),
            _ => return false,
        }
    }
}

fn others() -> impl Iterator<Item = (&'static Note, u64)> {
    let here = here();
    let noted = OPEN.notes.iter().map(|note| (note, note.word.load(Ordering::SeqCst)));
    noted.filter(move |(_, word)| *word != 0 && *word >> 16 != here >> 16)
}

/// Before a fork: from here until [`release`] the notes say which descriptors the other threads
/// have open.
pub(crate) fn hold() {
    let number = OPEN.forks.fetch_add(1, Ordering::Relaxed) & u64::from(u16::MAX);
    OPEN.forking.store(here() | number, Ordering::SeqCst);
    let _ = wait_while(|| others().any(|(note, _)| note.is_busy.load(Ordering::SeqCst)));
}

/// After the fork, in the parent.
pub(crate) fn release() {
    OPEN.forking.store(0, Ordering::SeqCst);
}

/// In the child, whose only thread is the one that forked: forgets the other threads' notes, and calls
/// `close` with what they had open.
pub(super) fn take_others(close: impl Fn(RawFd, File)) {
    for (note, word) in others() {
        if let Some(number) = (word & u64::from(u16::MAX)).checked_sub(FIRST) {
            close(number as RawFd, note.file());
        }
        note.end();
    }
    release();
}

/// In a child that was made without [`hold`]: the open descriptors are not known.
pub(crate) fn forget_others() {
    others().for_each(|(note, _)| note.end());
    release();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_thread_that_loses_its_processor_sees_what_ended_meanwhile() {
        let looks = Cell::new(0);
        let ended = wait_while(|| {
            looks.set(looks.get() + 1);
            let held = looks.get() == 1;
            std::thread::sleep(PATIENCE);
            held
        });
        assert!(ended);
        assert!(!wait_while(|| true));
    }
}
