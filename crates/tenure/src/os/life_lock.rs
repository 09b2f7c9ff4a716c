//! Locks by which processes that share a file show that they are alive.
//!
//! A process shows that it is alive by a lock on one byte, which belongs to an open file
//! description of its own. A mapping of one page holds that description. So the kernel ends the
//! lock when the process's memory ends, and not before. The program may close every descriptor. A
//! process that is killed at any instruction counts as dead once its lock is gone.

use super::brief::Brief;
use super::errno::last_errno;
use super::shared_file::SharedFile;
use super::{page_size, raw_map, reserve};
use crate::range::PageRange;
use rustix::io::Errno;
use std::time::Duration;

/// The offset of the bytes whose locks show which processes are alive. A locked byte need not
/// exist.
const LIVES: i64 = 1 << 61;
/// So many bytes belong to each process number.
const ALL: i64 = 3;

impl SharedFile {
    /// Runs `act` in the place of the process that had the lock, if it is dead. No other process
    /// takes the lock meanwhile, or runs `act`. A second caller waits until the first one has
    /// finished, 100 milliseconds at most. `None`: that process is alive.
    pub fn in_place_of<R>(&self, number: u32, act: impl FnOnce() -> R) -> Result<Option<R>, Errno> {
        let own = self.reopen()?;
        let mut tries = 0;
        while !set(&own, number, libc::F_WRLCK, Bytes::All)? {
            match holder(&own, number, Bytes::All)? {
                Holder::Nobody if tries < LONGEST_BURIAL => {}
                Holder::LooksAfter if tries < LONGEST_BURIAL => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return Ok(None),
            }
            tries += 1;
        }
        let done = act();
        // A child that was made meanwhile may have the description, too.
        set(&own, number, libc::F_UNLCK, Bytes::All)?;
        Ok(Some(done))
    }

    /// Runs `act` in the place of a dead process whose heirs may be alive. No other process takes
    /// the number meanwhile, or runs `act`. `None`: that process is alive, or another process does
    /// so just now.
    pub fn in_place_of_parent<R>(
        &self,
        number: u32,
        act: impl FnOnce() -> R,
    ) -> Result<Option<R>, Errno> {
        let own = self.reopen()?;
        if !set(&own, number, libc::F_WRLCK, Bytes::LifeAndCare)? {
            return Ok(None);
        }
        let done = act();
        set(&own, number, libc::F_UNLCK, Bytes::LifeAndCare)?;
        Ok(Some(done))
    }

    /// Returns whether heirs of a number are alive.
    pub fn has_heirs(&self, number: u32) -> Result<bool, Errno> {
        Ok(holder(&self.reopen()?, number, Bytes::Heirs)? != Holder::Nobody)
    }
}

/// Which of a number's three bytes a process locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// The first byte: locked for reading by children that have no number, in their parent's
    /// place.
    Heirs,
    /// The second and the third byte: locked by a process that ends a dead process's work while its
    /// heirs may be alive. The process that has the number locks the second one only.
    LifeAndCare,
    /// The third byte.
    Care,
    /// All bytes: locked by a process that cleans up after a dead process and its heirs, and at
    /// first by a process that takes the number.
    All,
}

fn lock_of(number: u32, kind: libc::c_int, bytes: Bytes) -> libc::flock {
    let (first, len) = match bytes {
        Bytes::Heirs => (0, 1),
        Bytes::LifeAndCare => (1, 2),
        Bytes::Care => (2, 1),
        Bytes::All => (0, ALL),
    };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: LIVES + ALL * i64::from(number) + first,
        l_len: len,
        l_pid: 0,
    }
}

/// Sets or ends a lock. `false`: another description has it.
fn set(own: &Brief, number: u32, kind: libc::c_int, bytes: Bytes) -> Result<bool, Errno> {
    let lock = lock_of(number, kind, bytes);
    // SAFETY: the kernel reads a local structure of the layout that it defines.
    match unsafe { libc::fcntl(own.number(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(true),
        _ => match last_errno() {
            Errno::AGAIN | Errno::ACCESS => Ok(false),
            errno => Err(errno),
        },
    }
}

/// The kind of process that has locks of a number.
#[derive(PartialEq, Eq)]
enum Holder {
    Nobody,
    /// A process that has the number, or heirs of it.
    Lives,
    /// A process that cleans up after a dead one.
    LooksAfter,
}

fn holder(own: &Brief, number: u32, bytes: Bytes) -> Result<Holder, Errno> {
    let mut lock = lock_of(number, libc::F_WRLCK, bytes);
    // SAFETY: the kernel reads and writes a local structure of the layout that it defines.
    let done = unsafe { libc::fcntl(own.number(), libc::F_OFD_GETLK, &raw mut lock) };
    match (done, lock.l_type == libc::F_UNLCK as libc::c_short, lock.l_len) {
        (0, true, _) => Ok(Holder::Nobody),
        (0, false, 1) => Ok(Holder::Lives),
        (0, false, _) => Ok(Holder::LooksAfter),
        _ => Err(last_errno()),
    }
}

/// A process waits at most so many milliseconds for a number that another process cleans up.
const LONGEST_BURIAL: u32 = 100;

/// The lock by which a process shows that it is alive. It lasts until it is dropped, or until the
/// process's memory ends.
#[derive(Debug)]
pub(crate) struct LifeLock {
    page: PageRange,
}

impl LifeLock {
    /// Takes the first free lock of those from 0 to `count`, and returns it with its number.
    /// Children have it, too, until [`only_here`](Self::only_here). `None`: all are taken.
    pub fn take(file: &SharedFile, count: u32) -> Result<Option<(LifeLock, u32)>, Errno> {
        let own = file.reopen()?;
        for tries in 0.. {
            // A number that another process cleans up may be free as soon as that is done.
            if let Some(taken) = LifeLock::try_take(&own, count)? {
                return Ok(Some(taken));
            }
            // Or it is free now, because that was done after the try.
            let may_be_free = |number| {
                matches!(holder(&own, number, Bytes::All), Ok(Holder::Nobody | Holder::LooksAfter))
            };
            if tries == LONGEST_BURIAL || !(0..count).any(may_be_free) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    fn try_take(own: &Brief, count: u32) -> Result<Option<(LifeLock, u32)>, Errno> {
        for number in 0..count {
            // A process that died may have left its number to its heirs.
            if set(own, number, libc::F_WRLCK, Bytes::All)? {
                set(own, number, libc::F_UNLCK, Bytes::Heirs)?;
                set(own, number, libc::F_UNLCK, Bytes::Care)?;
                return Ok(Some((LifeLock::mapped(own)?, number)));
            }
        }
        Ok(None)
    }

    /// Takes the lock of heirs of the caller's number. There may be others.
    pub fn of_heirs(file: &SharedFile, number: u32) -> Result<LifeLock, Errno> {
        let own = file.reopen()?;
        match set(&own, number, libc::F_RDLCK, Bytes::Heirs)? {
            true => LifeLock::mapped(&own),
            false => Err(Errno::AGAIN),
        }
    }

    fn mapped(own: &Brief) -> Result<LifeLock, Errno> {
        let (len, fd) = (page_size(), own.number());
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe { raw_map::map(0, len, libc::PROT_NONE, libc::MAP_SHARED, fd, 0) }?;
        Ok(LifeLock { page: PageRange::new(at, at + len) })
    }

    /// Keeps the lock out of children.
    pub fn only_here(&self) {
        self.inherit(libc::MADV_DONTFORK);
    }

    /// Passes the lock on to children, too.
    pub fn also_in_children(&self) {
        self.inherit(libc::MADV_DOFORK);
    }

    fn inherit(&self, advice: libc::c_int) {
        // SAFETY: one page that only this value knows, and that no code can access.
        unsafe { libc::madvise(self.page.start as *mut libc::c_void, self.page.len(), advice) };
    }
}

impl Drop for LifeLock {
    fn drop(&mut self) {
        // SAFETY: one page that only this value knows, and that no code can access.
        let _ = unsafe { reserve::unmap(self.page) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_testkit::{in_child, this_test};

    /// Runs a test in a process of its own: a program that another test starts has the
    /// descriptions, and with them the locks, for a moment.
    fn alone(test: &str, body: impl FnOnce()) {
        in_child(test, &[], body);
    }

    #[test]
    fn a_life_lock_lasts_as_long_as_its_mapping() {
        alone(this_test!(), || {
            let file = SharedFile::make(c"test", 4096).unwrap();
            assert_eq!(file.in_place_of(0, || ()), Ok(Some(())));
            let (life, number) = LifeLock::take(&file, 4).unwrap().unwrap();
            assert_eq!((number, file.in_place_of(0, || ())), (0, Ok(None)));
            let (_other, number) = LifeLock::take(&file, 4).unwrap().unwrap();
            assert_eq!(number, 1);
            drop(life);
            assert_eq!(file.in_place_of(0, || ()), Ok(Some(())));
            assert_eq!(file.in_place_of(0, || 7), Ok(Some(7)));
        });
    }

    #[test]
    fn a_number_with_heirs_is_neither_free_nor_looked_after() {
        alone(this_test!(), || {
            let file = SharedFile::make(c"test", 4096).unwrap();
            let (life, number) = LifeLock::take(&file, 4).unwrap().unwrap();
            assert_eq!((number, file.has_heirs(0)), (0, Ok(false)));
            let heirs = [(); 2].map(|()| LifeLock::of_heirs(&file, 0).unwrap());
            drop(life);
            let (_other, number) = LifeLock::take(&file, 4).unwrap().unwrap();
            assert_eq!((number, file.in_place_of(0, || ())), (1, Ok(None)));
            let [first, second] = heirs;
            drop(first);
            assert_eq!(file.has_heirs(0), Ok(true));
            assert_eq!(file.in_place_of_parent(0, || 7), Ok(Some(7)));
            assert_eq!(file.in_place_of_parent(1, || 7), Ok(None));
            drop(second);
            assert_eq!((file.has_heirs(0), file.in_place_of(0, || ())), (Ok(false), Ok(Some(()))));
        });
    }

    #[test]
    fn who_looks_after_a_dead_ones_number_is_waited_for() {
        alone(this_test!(), || {
            let file = SharedFile::make(c"test", 4096).unwrap();
            let (begun, waits) = std::sync::mpsc::channel();
            let done = std::sync::atomic::AtomicBool::new(false);
            let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
            std::thread::scope(|scope| {
                let first = scope.spawn(|| {
                    file.in_place_of(0, || {
                        begun.send(()).unwrap();
                        std::thread::sleep(Duration::from_millis(20));
                        done.store(true, std::sync::atomic::Ordering::Relaxed);
                    })
                });
                waits.recv().unwrap();
                // On a busy machine the first process may take longer than the longest wait.
                assert!(matches!(file.in_place_of(0, is_done), Ok(None | Some(true))));
                assert_eq!(first.join().unwrap(), Ok(Some(())));
            });
        });
    }

    /// The looking after may end between the try and the look at who has the number.
    #[test]
    fn a_number_that_is_looked_after_again_and_again_is_taken_in_the_end() {
        alone(this_test!(), || {
            let file = SharedFile::make(c"test", 4096).unwrap();
            let over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        file.in_place_of(0, || ()).unwrap();
                        file.in_place_of_parent(0, || ()).unwrap();
                    }
                });
                let take = || LifeLock::take(&file, 1).unwrap().is_none();
                let refused = (0..2000).filter(|_| take()).count();
                over.store(true, std::sync::atomic::Ordering::Relaxed);
                assert_eq!(refused, 0);
            });
        });
    }
}
