//! Counts the processes with tenure that share a memory limit.
//!
//! The background thread of each has a lock on one byte of a file that identifies the limit: one of
//! the memory cgroup's, or `/proc/meminfo`. A user that may read a file may lock it for reading.
//! The lock ends with the thread's descriptor table, however the process ends. (Measured: a look
//! among six processes takes 9 µs, alone 1 µs.)

#![allow(unsafe_code, reason = "asks for locks, and keeps a descriptor in the thread's own table")]

use super::errno::last_errno;
use super::own_table;
use super::work::Work;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest count. All larger counts look alike, so that the locks of another user do no more
/// harm than so many processes would.
const MOST: i64 = 64;
/// The most processor time that a look takes, and the pause after a longer one as a multiple of
/// that time. Each question walks over each lock of the file, and any user may have taken very
/// many.
const LONGEST: Duration = Duration::from_millis(1);
const REST: u32 = 100;

thread_local! {
    /// Each thread's own: it is open in the descriptor table of one thread only.
    static OWN: Cell<Option<(BorrowedFd<'static>, Instant)>> = const { Cell::new(None) };
    /// Each thread's own, as the descriptor is by which it looks: the time at which it may look
    /// again.
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns whether the calling thread must join, again if it did so long ago: a process may be
/// moved to another group.
pub(crate) fn is_to_join(now: Instant, after: Duration) -> bool {
    let is_late = |at: Instant| now.saturating_duration_since(at) >= after;
    own_table::this_thread_has_own_table() && OWN.get().is_none_or(|(_, at)| is_late(at))
}

/// Counts the calling thread for the limit that this file identifies, and for no other. The thread
/// has a descriptor table of its own: in the shared one the program could close the descriptor.
pub(crate) fn join(file: &Path, now: Instant) {
    debug_assert!(own_table::this_thread_has_own_table());
    if let Some((before, _)) = OWN.take() {
        // SAFETY: the code below opened it in this thread's own table, and `OWN`, from which it is
        // taken here, was the only place that had it.
        unsafe { rustix::io::close(before.as_raw_fd()) };
    }
    let Ok(fd) = open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    // SAFETY: nothing closes the descriptor before it is taken out of its place, or before the
    // thread ends and its table with it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.into_raw_fd()) };
    // Two threads that join at once may choose one number. Then they count as one until they join
    // again.
    let work = Work::begin();
    let mut numbers = (0..MOST).take_while(|_| work.spent() < LONGEST);
    if let Some(number) = numbers.find(|number| !is_locked(fd, *number, 1)) {
        let _ = ask(fd, libc::F_OFD_SETLK, libc::F_RDLCK, number, 1);
    }
    OWN.set(Some((fd, now)));
}

/// Returns how many processes there are, this one included. `None`: the calling thread has not
/// joined any, or has looked just now.
pub(crate) fn count(now: Instant) -> Option<u32> {
    let (fd, _) = OWN.get().filter(|_| NEXT.get().is_none_or(|next| now >= next))?;
    let (work, mut others) = (Work::begin(), 0);
    for number in 0..MOST {
        if !is_locked(fd, number, 0) {
            break;
        }
        others += u32::from(is_locked(fd, number, 1));
        if work.spent() >= LONGEST {
            // Assumes the most: too small a count would keep too much memory.
            others = MOST as u32;
            break;
        }
    }
    NEXT.set(Some(now + work.spent() * REST));
    Some(1 + others)
}

/// Returns whether another thread has one of `count` locks from a number on (0: of all).
fn is_locked(fd: BorrowedFd<'_>, number: i64, count: i64) -> bool {
    ask(fd, libc::F_OFD_GETLK, libc::F_WRLCK, number, count)
        .is_ok_and(|found| found != libc::F_UNLCK)
}

fn ask(
    fd: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    number: i64,
    count: i64,
) -> Result<libc::c_int, Errno> {
    // SAFETY: all zeros is a value of the structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_start = number as libc::off_t;
    lock.l_len = count as libc::off_t;
    // SAFETY: the kernel reads and writes a local structure of the layout that it defines.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(libc::c_int::from(lock.l_type)),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::sync::Barrier;

    /// Any user may lock `/proc/meminfo`, as often as memory allows, and each query walks over
    /// all locks.
    #[test]
    fn locks_that_others_took_do_not_keep_the_thread() {
        let file = std::env::temp_dir().join(format!("tenure-locked-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let theirs = [(); 2].map(|()| std::fs::File::open(&file).unwrap());
        let lock = |of: &std::fs::File, number, count| {
            ask(of.as_fd(), libc::F_OFD_SETLK, libc::F_RDLCK, number, count).unwrap();
        };
        (100..10_000).rev().for_each(|number| lock(&theirs[0], number * 2, 1));
        lock(&theirs[1], 0, MOST);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: a call without pointers.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                own_table::has_own_table();
                join(&file, Instant::now());
                let work = Work::begin();
                // As many scans as in a second.
                let begun = Instant::now();
                for look in 0..100 {
                    let counted = count(begun + Duration::from_millis(10) * look);
                    assert!(counted.is_none_or(|count| i64::from(count) <= 1 + MOST));
                }
                let took = work.spent();
                assert!(took < Duration::from_millis(500), "{took:?}");
            });
        });
        std::fs::remove_file(&file).unwrap();
    }

    /// Threads with tables of their own act as processes here: a lock belongs to a table.
    #[test]
    fn those_that_are_there_are_counted() {
        let file = std::env::temp_dir().join(format!("tenure-sharers-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let joined = || {
            // SAFETY: a call without pointers.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            own_table::has_own_table();
            join(&file, Instant::now());
        };
        let (all, over) = (Barrier::new(5), Barrier::new(5));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    joined();
                    all.wait();
                    over.wait();
                });
            }
            scope.spawn(|| {
                assert_eq!(count(Instant::now()), None);
                all.wait();
                joined();
                let finds = |counts: std::ops::RangeInclusive<u32>| {
                    (0..2000).any(|_| {
                        std::thread::sleep(Duration::from_millis(5));
                        count(Instant::now()).is_some_and(|count| counts.contains(&count))
                    })
                };
                // Some of the four may have chosen one number. A look that takes long counts the
                // most, and another one follows. The four wait, so this thread asserts afterwards.
                let together = finds(2..=5);
                over.wait();
                assert!(together);
                assert!(finds(1..=1));
            });
        });
        std::fs::remove_file(&file).unwrap();
    }
}
