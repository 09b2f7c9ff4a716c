//! A file of memory that processes share (`memfd`): makes it, maps it, and finds it again.

use super::brief::{self, Brief, File, HIGH};
use super::files::memfd_of;
use super::own_table::this_thread_has_own_table;
use super::{advise, limits, raw_map, tid};
use crate::range::PageRange;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, seek, stat};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

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

impl SharedFile {
    /// Makes a file that no process can make shorter or longer, nor seal against writing.
    ///
    /// # Errors
    /// As [`memfd_of`].
    pub fn make(name: &CStr, bytes: u64) -> Result<SharedFile, (&'static str, Errno)> {
        let failed = |what| move |errno| (what, errno);
        let fd = memfd_of(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING, bytes)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        Ok(SharedFile::at(fd))
    }

    /// Takes a descriptor over.
    pub fn of(fd: OwnedFd) -> Result<SharedFile, Errno> {
        brief::open_by(|| Ok(fd), |_, _| true).map(SharedFile::at)
    }

    fn at(fd: Brief) -> SharedFile {
        let fd = fd.again(HIGH).unwrap_or(fd);
        let file = fd.file();
        SharedFile { file, number: AtomicI32::new(fd.stays()), borrowed: AtomicBool::new(false) }
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
        if !self.borrowed.swap(true, Ordering::AcqRel) {
            brief::close(own, self.file);
        }
    }

    /// Returns whether it is the file of this descriptor.
    pub fn is(&self, file: File) -> bool {
        self.file == file
    }

    /// Returns whether the program has it open under the number.
    pub fn is_the_programs(&self) -> bool {
        let is_it = |stat: Stat| (stat.st_dev, stat.st_ino) == self.file;
        let look = |directory: &[u8]| {
            stat(brief::path_of(&brief::number_path(directory, self.number())))
                .and_then(|stat| is_it(stat).then_some(()).ok_or(Errno::BADF))
        };
        in_the_programs_table(look).is_ok()
    }

    /// The program has closed the number. Looks for another descriptor of the file in its table,
    /// and takes that from now on. `false`: there is none.
    pub fn find_again(&self) -> bool {
        let look = |directory: &[u8]| {
            let numbers = std::fs::read_dir(OsStr::from_bytes(directory));
            let number = numbers.into_iter().flatten().flatten().find_map(|entry| {
                let stat = stat(entry.path()).ok()?;
                let is_it = (stat.st_dev, stat.st_ino) == self.file;
                is_it.then(|| entry.file_name().to_str()?.parse().ok())?
            });
            number.ok_or(Errno::BADF)
        };
        let number = in_the_programs_table(look).ok();
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
        let number = self.number.swap(-1, Ordering::AcqRel);
        if !self.borrowed.load(Ordering::Acquire) && number >= 0 {
            brief::close(number, self.file);
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

    /// Calls `each` with the parts of a range that have memory, in whole pages, until it returns
    /// `false`. A read of the other parts through a mapping would find zeros, and take memory for
    /// them.
    ///
    /// # Errors
    /// The file cannot be opened anew, so where it has memory is not known. `each` was not called.
    pub fn each_part_there(
        &self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>) -> bool,
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
            if !each(begin..end) {
                break;
            }
            begin = next;
        }
        Ok(())
    }

    /// Writes to a part of the file. The part is in memory afterwards.
    ///
    /// `EBADF`: the program has closed the descriptor. `EFBIG`: `RLIMIT_FSIZE` (`ulimit -f`) is below
    /// the end.
    pub fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            if !self.is_open() {
                return Err(Errno::BADF);
            }
            // The kernel would end the program with SIGXFSZ.
            let end = offset + bytes.len() as u64;
            if limits::file_bytes().is_some_and(|limit| limit < end) {
                return Err(Errno::FBIG);
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
    /// reservation. The mapping takes no memory, even if the program locks all its mappings.
    ///
    /// # Safety
    /// Nothing refers to `place`.
    pub unsafe fn map_over(&self, place: PageRange, offset: u64, write: bool) -> Result<(), Errno> {
        let access = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let (flags, offset) = (libc::MAP_SHARED | libc::MAP_FIXED, offset as i64);
        let (start, len, fd) = (place.start, place.len(), self.number());
        // SAFETY: the caller promises that nothing refers to the place.
        unsafe { raw_map::map(start, len, libc::PROT_NONE, flags, fd, offset) }?;
        // Under mlockall(MCL_FUTURE) the kernel makes a new mapping resident, unless it has no
        // access, and a locked one when it gets access.
        // SAFETY: the call changes no contents.
        unsafe { libc::munlock(start as *mut libc::c_void, len) };
        // SAFETY: the mapping was made above, and access is only added.
        unsafe { raw_map::protect(place, access) }.map_err(|errno| {
            let sealed = fcntl_get_seals(self).is_ok_and(|seals| seals.contains(SealFlags::WRITE));
            // As the kernel says for a mapping that may be written from the beginning.
            if errno == Errno::ACCESS && sealed {
                return Errno::PERM;
            }
            errno
        })
    }

    /// Opens a file description of its own for this call, through `/proc`. `EBADF`: the program has
    /// closed the descriptor.
    pub(super) fn reopen(&self) -> Result<Brief, Errno> {
        if self.number() < 0 {
            return Err(Errno::BADF);
        }
        let opened = in_the_programs_table(|directory| {
            let path = brief::number_path(directory, self.number());
            brief::open_anew(brief::path_of(&path), self.file, OFlags::RDWR)
        });
        opened.map_err(|errno| match errno {
            // So the error is not taken for a missing /proc.
            Errno::NOENT if !self.is_open() => Errno::BADF,
            errno => errno,
        })
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

/// Opens a second file description of a file that the program has open, through `/proc`.
pub(crate) fn open_again(fd: BorrowedFd<'_>, write: bool) -> Result<OwnedFd, Errno> {
    let file = file_of(fd)?;
    let path = brief::number_path(b"/proc/thread-self/fd/", fd.as_raw_fd());
    brief::open_to_keep(brief::path_of(&path), file, write)
}

/// Calls `look` with the directory of the program's descriptors, with a `/` at its end.
///
/// tenure's own threads have descriptor tables of their own. For them the program's table is the
/// main thread's, or, if the main thread has ended, that of another thread.
fn in_the_programs_table<R>(mut look: impl FnMut(&[u8]) -> Result<R, Errno>) -> Result<R, Errno> {
    if !this_thread_has_own_table() {
        return look(b"/proc/thread-self/fd/").or_else(|_| look(b"/proc/self/fd/"));
    }
    let found = look(b"/proc/self/fd/");
    if found.is_ok() || !tid::main_has_ended() {
        return found;
    }
    let own = tid::own().to_string();
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = threads.map(|thread| thread.file_name()).filter(|name| **name != *own);
    let directory = |name: OsString| [b"/proc/self/task/", name.as_bytes(), b"/fd/"].concat();
    others.map(directory).find_map(|directory| look(&directory).ok()).map_or(found, Ok)
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
    use rustix::fd::FromRawFd;
    use tenure_testkit::{in_child, this_test};

    /// Runs a test in a process of its own: a program that another test starts has the
    /// descriptions, and with them the locks, for a moment.
    fn alone(test: &str, body: impl FnOnce()) {
        in_child(test, &[], body);
    }

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

    /// A second description of a pipe would keep its reader waiting for the end.
    #[test]
    fn a_foreign_file_under_the_number_is_not_kept_open() {
        let file = SharedFile::make(c"test", 4096).unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        // SAFETY: the number is this test's, and the file is not used by it any more.
        let copy = unsafe { libc::dup3(write.as_raw_fd(), file.number(), libc::O_CLOEXEC) };
        assert_eq!(copy, file.number());
        for _ in 0..3 {
            assert_eq!(file.in_place_of(0, || ()), Err(Errno::BADF));
            assert!(file.has_heirs(0).is_err());
            assert!(!file.is_the_programs() && !file.is_open());
        }
        // SAFETY: made above.
        drop((write, unsafe { OwnedFd::from_raw_fd(file.number()) }));
        // Without an end of the pipe this would wait for ever.
        assert_eq!(std::io::Read::read(&mut read, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_write_beyond_the_limit_of_file_sizes_is_an_error() {
        alone(this_test!(), || {
            let file = SharedFile::make(c"test", 2 * 4096).unwrap();
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: reads a local structure.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
            assert_eq!(file.write(0, &[7; 4096]), Ok(()));
            assert_eq!(file.write(4096, &[7; 4096]), Err(Errno::FBIG));
        });
    }

    #[test]
    fn where_the_limit_of_file_sizes_cannot_be_asked_for_a_file_is_made_and_written() {
        use tenure_testkit::seccomp::{Call, Errno, Filter};
        alone(this_test!(), || {
            let filter = Filter::new().refuse(Call::Number(libc::SYS_prlimit64), Errno::PERM);
            tenure_testkit::or_skip!(filter.install_this_thread());
            // What an unasked limit would be is left on the stack.
            std::hint::black_box([0_u8; 4096]);
            let file = SharedFile::make(c"test", 2 * 4096).unwrap();
            assert_eq!(file.write(4096, &[7; 4096]), Ok(()));
        });
    }
}
