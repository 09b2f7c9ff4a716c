//! The process's list of mappings as a descriptor that stays open: a question by it takes 0.2 µs (PROCMAP_QUERY), to
//! open the file anew 1 µs.
//!
//! The program may close it and give its number to another file. Then the question fails, and the list is opened
//! again. Were the other file the list of another process, the answer would be about that process: nothing may rest
//! on it but which error a call returns.

use super::generation;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{fstat, open, Mode, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// The list that stays open.
struct Kept {
    /// The descriptor's number and one; above it the lower half of the number of the process that opened it. 0: none.
    descriptor: AtomicU64,
    /// The file's number, by which a child knows it.
    file: AtomicU64,
}

/// For the whole process: the list is that of its mappings, and one descriptor serves all threads.
static KEPT: Kept = Kept { descriptor: AtomicU64::new(0), file: AtomicU64::new(0) };

fn word(fd: RawFd) -> u64 {
    generation::current() << 32 | (u64::from(fd.unsigned_abs()) + 1)
}

/// # Safety
/// The result is used before another call of this module's; the file may be any.
unsafe fn list_of(word: u64) -> BorrowedFd<'static> {
    let number = (word as u32 - 1) as RawFd;
    // SAFETY: the number was a descriptor's, so it is not -1. The callers use it for one system
    // call only, and bear that it may have come to mean another file.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// The descriptor of this process; opened unless it is.
fn descriptor() -> Result<u64, Errno> {
    let there = KEPT.descriptor.load(Ordering::Acquire);
    if there != 0 && there >> 32 == word(0) >> 32 {
        return Ok(there);
    }
    let new = open("/proc/thread-self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // Before it can be used. Of two threads that open it at a time both may be too late here; then the list is
    // opened once more, and one descriptor is left open.
    KEPT.file.store(fstat(&new)?.st_ino, Ordering::Release);
    let opened = word(new.as_raw_fd());
    match KEPT.descriptor.compare_exchange(there, opened, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let _ = new.into_raw_fd();
            Ok(opened)
        }
        // Another thread was first, and `new` is closed.
        Err(_) => descriptor(),
    }
}

/// Has `ask` ask the kernel; again by a new descriptor where this one turns out to be closed or another file's.
pub(super) fn asked<R>(
    mut ask: impl FnMut(BorrowedFd<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    loop {
        let kept = descriptor()?;
        // SAFETY: the request's number is one that only lists of mappings have; any other file refuses it.
        match ask(unsafe { list_of(kept) }) {
            // Other files say ENOTTY, or EINVAL, as a userfaultfd does.
            Err(_) if !is_ours(kept) => {
                let _ =
                    KEPT.descriptor.compare_exchange(kept, 0, Ordering::AcqRel, Ordering::Acquire);
            }
            answer => return answer,
        }
    }
}

/// Whether the descriptor is still the list's.
fn is_ours(word: u64) -> bool {
    // SAFETY: only asked which file it is.
    let list = unsafe { list_of(word) };
    fstat(list).is_ok_and(|stat| stat.st_ino == KEPT.file.load(Ordering::Acquire))
}

/// In a child with descriptors of its own: closes what it has of its parent's.
pub(crate) fn reset_in_child() {
    let parents = KEPT.descriptor.swap(0, Ordering::AcqRel);
    if parents == 0 {
        return;
    }
    if is_ours(parents) {
        // SAFETY: the file that `descriptor` opened, whose owner `KEPT` was.
        drop(unsafe { OwnedFd::from_raw_fd(list_of(parents).as_raw_fd()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use tenure_testkit::{in_child, this_test};

    fn question(list: BorrowedFd<'_>) -> Result<u64, Errno> {
        let name = rustix::fs::readlinkat(rustix::fs::CWD, link_of(list), Vec::new())?;
        match name.to_bytes().ends_with(b"/maps") {
            true => Ok(fstat(list)?.st_ino),
            false => Err(Errno::INVAL),
        }
    }

    fn link_of(list: BorrowedFd<'_>) -> String {
        format!("/proc/thread-self/fd/{}", list.as_raw_fd())
    }

    #[test]
    fn a_descriptor_that_the_program_closed_or_took_is_opened_again_and_never_closed() {
        in_child(this_test!(), &[], || {
            let first = asked(|list| question(list).map(|_| list.as_raw_fd())).unwrap();
            assert_eq!(asked(|list| Ok(list.as_raw_fd())).unwrap(), first, "it stays open");
            // SAFETY: this module's, which is to notice.
            drop(unsafe { OwnedFd::from_raw_fd(first) });
            let programs = File::open("/dev/null").unwrap();
            assert_eq!(programs.as_raw_fd(), first);
            let second = asked(|list| question(list).map(|_| list.as_raw_fd())).unwrap();
            assert_ne!(second, first);
            assert!(programs.metadata().is_ok(), "the program's own was closed");
            // SAFETY: the child looks at its descriptors and exits without unwinding.
            let child = unsafe { libc::fork() };
            if child == 0 {
                reset_in_child();
                // SAFETY: only asked whether it is open.
                let open = unsafe { libc::fcntl(second, libc::F_GETFD) } >= 0;
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(open || programs.metadata().is_err())) };
            }
            let mut status = 0;
            // SAFETY: the kernel writes the local.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        });
    }
}
