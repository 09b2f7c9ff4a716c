//! A file of memory that processes share (`memfd`): makes it, finds it again, and finds out whether
//! a process that uses it is alive.
//!
//! A process shows that it is alive by a lock on one byte, which belongs to an open file
//! description of its own. A mapping of one page holds that description. So the kernel ends the
//! lock when the process's memory ends, and not before. The program may close every descriptor. A
//! process that is killed at any instruction counts as dead once its lock is gone.

use super::brief::{self, Brief, File};
use super::errno::last_errno;
use super::files::memfd;
use super::{advise, page_size, raw_map, reserve};
use crate::range::PageRange;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, seek, stat};
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{getrlimit, Resource};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// A descriptor of the file, at a high number, which programs rarely hand out. The program may
/// still close it, so each use checks whether it is still that file.
#[derive(Debug)]
pub(crate) struct SharedFile {
    /// The descriptor's number. Negative: it is closed.
    number: AtomicI32,
    file: File,
    /// The number belongs to the program, so this type does not close it.
    borrowed: AtomicBool,
}

/// The offset of the bytes whose locks show which processes are alive. A locked byte need not
/// exist.
const LIVES: i64 = 1 << 61;
/// So many bytes belong to each process number.
const ALL: i64 = 2;

impl SharedFile {
    /// Makes a file that no process can make shorter or longer, nor seal against writing.
    ///
    /// # Errors
    /// The call that failed, and why. `EFBIG`: `RLIMIT_FSIZE` (`ulimit -f`) is below the length. The
    /// kernel would end the program with SIGXFSZ.
    pub fn make(name: &CStr, bytes: u64) -> Result<SharedFile, (&'static str, Errno)> {
        let failed = |what| move |errno| (what, errno);
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < bytes) {
            return Err(("making the file, which RLIMIT_FSIZE (ulimit -f) forbids", Errno::FBIG));
        }
        let fd = memfd(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(failed("memfd_create"))?;
        ftruncate(&fd, bytes).map_err(failed("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        SharedFile::of(fd).map_err(failed("fstat"))
    }

    /// Takes a descriptor over.
    pub fn of(fd: OwnedFd) -> Result<SharedFile, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, 700).unwrap_or(fd);
        let stat = fstat(&fd)?;
        Ok(SharedFile {
            file: (stat.st_dev, stat.st_ino),
            number: AtomicI32::new(fd.into_raw_fd()),
            borrowed: AtomicBool::new(false),
        })
    }

    /// From now on the file is reached by a descriptor of the program's, and by no other.
    ///
    /// A descriptor that it has stays, if the program has not closed it: the program may close this
    /// one, a copy, first.
    pub fn borrow(&self, fd: BorrowedFd<'_>) {
        let same = self.number() == fd.as_raw_fd();
        if self.borrowed.load(Ordering::Acquire) && (same || self.is_the_programs()) {
            return;
        }
        let own = self.number.swap(fd.as_raw_fd(), Ordering::AcqRel);
        if !self.borrowed.swap(true, Ordering::AcqRel) && is_file(own, self.file) {
            // SAFETY: it is still the file that this value has opened, under the number that it
            // got, and this value has just forgotten the number.
            drop(unsafe { OwnedFd::from_raw_fd(own) });
        }
    }

    /// Returns whether it is the file of this descriptor.
    pub fn is(&self, file: File) -> bool {
        self.file == file
    }

    /// Returns whether the program has it open under the number. It looks at the main thread's
    /// table, because the background thread has one of its own.
    pub fn is_the_programs(&self) -> bool {
        let path = number_path(b"/proc/self/fd/", self.number());
        let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
        stat(path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file)
    }

    /// The program has closed the number. Looks for another descriptor of the file in its table,
    /// and takes that from now on. `false`: there is none.
    pub fn find_again(&self) -> bool {
        let Ok(numbers) = std::fs::read_dir("/proc/self/fd") else { return false };
        let number = numbers.flatten().find_map(|entry| {
            let stat = stat(entry.path()).ok()?;
            let is_it = (stat.st_dev, stat.st_ino) == self.file;
            is_it.then(|| entry.file_name().to_str()?.parse().ok())?
        });
        if let Some(number) = number {
            self.number.store(number, Ordering::Release);
        }
        number.is_some()
    }

    /// Returns its length, and whether the length is sealed.
    pub fn len(&self) -> Result<(u64, bool), Errno> {
        let stat = fstat(self)?;
        let seals = match fcntl_get_seals(self) {
            // A file of another kind, which has no seals.
            Err(Errno::INVAL) => SealFlags::empty(),
            seals => seals?,
        };
        Ok((stat.st_size as u64, seals.contains(SealFlags::SHRINK)))
    }

    /// Returns whether the descriptor is still this file's.
    pub fn is_open(&self) -> bool {
        self.number() >= 0 && fstat(self).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file)
    }

    fn number(&self) -> RawFd {
        self.number.load(Ordering::Acquire)
    }

    /// Closes the descriptor, on a thread that has the program's descriptor table. No other thread
    /// borrows it any more.
    pub fn close(&self) {
        let is_ours = !self.borrowed.load(Ordering::Acquire) && self.is_open();
        let number = self.number.swap(-1, Ordering::AcqRel);
        if is_ours && number >= 0 {
            // SAFETY: it is still the file that this value has opened, under the number that it
            // got.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }

    /// Allocates memory for a part of the file: zeros where there was nothing. No process maps it
    /// by that.
    ///
    /// `ENOMEM`, `ENOSPC`: no memory. `EBADF`: the program has closed the descriptor.
    pub fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        if !self.is_open() {
            return Err(Errno::BADF);
        }
        super::files::allocate(self.as_fd(), offset, bytes)
    }

    /// Calls `each` with the parts of a range that have memory, in whole pages. A read of the other
    /// parts through a mapping would find zeros, and take memory for them.
    ///
    /// # Errors
    /// The file cannot be opened anew, so where it has memory is not known. `each` was not called.
    pub fn each_part_there(
        &self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>),
    ) -> Result<(), Errno> {
        let own = self.reopen()?;
        // If another thread has put a file of its own under the number, what that one has does not
        // count.
        let answer = |answer, otherwise| match answer {
            _ if !own.is_open() => otherwise,
            Ok(at) => at,
            Err(Errno::NXIO) => range.end,
            Err(_) => otherwise,
        };
        let begin_after = |at| answer(seek(&own, SeekFrom::Data(at)), at);
        let mut begin = begin_after(range.start);
        while begin < range.end {
            let end = answer(seek(&own, SeekFrom::Hole(begin)), range.end);
            // Another process may make the hole meanwhile.
            let end = end.clamp(begin + 1, range.end);
            // Before `each`, which may take memory for what follows its part.
            let next = begin_after(end);
            each(begin..end);
            begin = next;
        }
        Ok(())
    }

    /// Writes to a part of the file. The part is in memory afterwards.
    ///
    /// `EBADF`: the program has closed the descriptor.
    pub fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            if !self.is_open() {
                return Err(Errno::BADF);
            }
            match rustix::io::pwrite(self, bytes, offset) {
                Ok(0) => return Err(Errno::NOMEM),
                Ok(written) => (offset, bytes) = (offset + written as u64, &bytes[written..]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Maps a part of the file at an address that the caller has reserved, in place of the
    /// reservation.
    ///
    /// # Safety
    /// Nothing refers to `place`.
    pub unsafe fn map_over(&self, place: PageRange, offset: u64, write: bool) -> Result<(), Errno> {
        let access = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let (flags, offset) = (libc::MAP_SHARED | libc::MAP_FIXED, offset as i64);
        // SAFETY: the caller promises that nothing refers to the place.
        unsafe { raw_map::map(place.start, place.len(), access, flags, self.number(), offset) }?;
        Ok(())
    }

    /// Opens a file description of its own for this call, through `/proc`. `EBADF`: the program has
    /// closed the descriptor.
    fn reopen(&self) -> Result<Brief, Errno> {
        if self.number() < 0 {
            return Err(Errno::BADF);
        }
        // The program's table is the main thread's, because the background thread has one of its
        // own. If the main thread has ended, the calling thread's table is used.
        let open = |directory: &[u8]| {
            let path = number_path(directory, self.number());
            let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
            brief::open_anew(path, self.file)
        };
        let opened = open(b"/proc/self/fd/").or_else(|_| open(b"/proc/thread-self/fd/"));
        opened.map_err(|errno| match errno {
            // So the error is not taken for a missing /proc.
            Errno::NOENT if !self.is_open() => Errno::BADF,
            errno => errno,
        })
    }

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
        if !set(&own, number, libc::F_WRLCK, Bytes::Life)? {
            return Ok(None);
        }
        let done = act();
        set(&own, number, libc::F_UNLCK, Bytes::Life)?;
        Ok(Some(done))
    }

    /// Returns whether heirs of a number are alive.
    pub fn has_heirs(&self, number: u32) -> Result<bool, Errno> {
        Ok(holder(&self.reopen()?, number, Bytes::Heirs)? != Holder::Nobody)
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open while the handle that returns it lives, unless the program
        // closes descriptors that are not its own: see the type. The borrow ends with the handle.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the identity of a descriptor's file.
pub(crate) fn file_of(fd: BorrowedFd<'_>) -> Result<File, Errno> {
    fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

fn is_file(number: RawFd, file: File) -> bool {
    // SAFETY: the number is only used to ask which file it is.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    file_of(fd) == Ok(file)
}

/// Opens a second file description of a file that the program has open, through `/proc`.
pub(crate) fn open_again(fd: BorrowedFd<'_>, write: bool) -> Result<OwnedFd, Errno> {
    let file = file_of(fd)?;
    let path = number_path(b"/proc/thread-self/fd/", fd.as_raw_fd());
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    brief::open_to_keep(path, file, write)
}

/// Makes a path from the directory, at most 21 bytes, and the number, with a zero at the end.
fn number_path(directory: &[u8], number: RawFd) -> [u8; 34] {
    let mut path = [0; 34];
    path[..directory.len()].copy_from_slice(directory);
    write_number(&mut path[directory.len()..], number);
    path
}

/// Writes digits without `format!`, which may allocate: a fork handler calls this.
fn write_number(text: &mut [u8], number: RawFd) {
    let (mut left, mut len) = (number.unsigned_abs(), 1);
    while left > 9 {
        left /= 10;
        len += 1;
    }
    let mut left = number.unsigned_abs();
    for digit in text[..len].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

/// Which of a number's two bytes a process locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// The first byte: locked by the process that has the number, or in its place while its heirs
    /// are alive.
    Life,
    /// The second byte: locked for reading by children that have no number, in their parent's
    /// place.
    Heirs,
    /// Both bytes: locked by a process that cleans up after a dead process and its heirs, and at
    /// first by a process that takes the number.
    All,
}

fn lock_of(number: u32, kind: libc::c_int, bytes: Bytes) -> libc::flock {
    let (first, len) = match bytes {
        Bytes::Life => (0, 1),
        Bytes::Heirs => (1, 1),
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
        (0, false, ALL) => Ok(Holder::LooksAfter),
        (0, false, _) => Ok(Holder::Lives),
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

/// Gives the pages of a shared mapping back, for all processes.
///
/// # Safety
/// No process needs their contents.
pub(crate) unsafe fn punch(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller promises that no process needs the contents.
    let remove = || unsafe { advise::remove(range) };
    match remove() {
        // The program has locked all its mappings (mlockall), and locked pages cannot be given
        // back.
        Err(Errno::INVAL) => {
            // SAFETY: the call changes no contents.
            unsafe { libc::munlock(range.start as *mut libc::c_void, range.len()) };
            remove()
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_copy_of_a_descriptor_does_not_count() {
        let file = SharedFile::make(c"test", 4096).unwrap();
        let copies: Vec<OwnedFd> =
            (0..2).map(|_| rustix::io::fcntl_dupfd_cloexec(&file, 0).unwrap()).collect();
        let [first, second] = <[OwnedFd; 2]>::try_from(copies).unwrap();
        file.borrow(first.as_fd());
        file.borrow(second.as_fd());
        assert_eq!(file.number(), first.as_raw_fd());
        drop(first);
        // Another test may open a file under the number that was just closed, but not this file.
        assert!(!file.is_the_programs() && file.find_again());
        assert_eq!(file.number(), second.as_raw_fd());
        drop(second);
        assert!(!file.is_the_programs() && !file.find_again());
    }

    #[test]
    fn a_life_lock_lasts_as_long_as_its_mapping() {
        let file = SharedFile::make(c"test", 4096).unwrap();
        assert_eq!(file.in_place_of(0, || ()), Ok(Some(())));
        let (life, number) = LifeLock::take(&file, 4).unwrap().unwrap();
        assert_eq!((number, file.in_place_of(0, || ())), (0, Ok(None)));
        let (_other, number) = LifeLock::take(&file, 4).unwrap().unwrap();
        assert_eq!(number, 1);
        drop(life);
        assert_eq!(file.in_place_of(0, || ()), Ok(Some(())));
        assert_eq!(file.in_place_of(0, || 7), Ok(Some(7)));
    }

    #[test]
    fn a_number_with_heirs_is_neither_free_nor_looked_after() {
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
    }

    #[test]
    fn who_looks_after_a_dead_ones_number_is_waited_for() {
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
    }

    /// The looking after may end between the try and the look at who has the number.
    #[test]
    fn a_number_that_is_looked_after_again_and_again_is_taken_in_the_end() {
        let file = SharedFile::make(c"test", 4096).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    file.in_place_of(0, || ()).unwrap();
                }
            });
            let refused = (0..2000).filter(|_| LifeLock::take(&file, 1).unwrap().is_none()).count();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, 0);
        });
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        let mut text = [0; 12];
        write_number(&mut text, 70_123);
        assert_eq!(&text[..6], b"70123\0");
        write_number(&mut text, 0);
        assert_eq!(text[0], b'0');
    }
}
