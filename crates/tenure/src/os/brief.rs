//! Descriptors that are open for the length of a call, in the program's own table.
//!
//! A child that another thread forks meanwhile would inherit such a descriptor for good. With the
//! list of the parent's mappings it could read the parent's memory layout. So the child closes it.
//!
//! A thread that knows that the number is free may close it and put a file of its own under it
//! meanwhile (`dup2`). And a thread of the program may have a descriptor table of its own, so its
//! number may be another file's in the table that a child gets. So this module closes a descriptor
//! only if it is still the file that was opened. tenure's own threads have such tables, too: a child
//! gets none of their descriptors, so those are not noted.

use super::errno::last_errno;
pub(super) use super::fork_notes::File;
use super::fork_notes::{self, Note};
use super::generation;
use super::signal::Blocked;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{fstat, open as open_file, stat, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use std::cell::Cell;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

/// A descriptor as the head of the module describes it.
pub(crate) struct Brief {
    fd: ManuallyDrop<OwnedFd>,
    file: File,
    /// Where the descriptor is noted; `None`: it is not noted, and a child keeps it.
    note: Option<&'static Note>,
    /// The [number](generation::current) of the process that opened it, read before that.
    process: u64,
    /// How many bytes were [read](Brief::read).
    position: Cell<u64>,
}

/// From here on the numbers of tenure's lasting descriptors are: programs hand out and close the low
/// ones. Where the limit on descriptors is below this number, most of them do not stay open: the
/// program may need all numbers.
pub(super) const HIGH: RawFd = 700;

fn file_of(fd: impl AsFd) -> Option<File> {
    fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns whether the path leads to this file system. The number of `/proc` is usually known from
/// the last time.
fn leads_to(path: &CStr, file_system: u64) -> bool {
    /// For the whole process: `/proc` is usually one file system.
    static OF_PROC: AtomicU64 = AtomicU64::new(0);
    let is_in_proc = path.to_bytes().starts_with(b"/proc/");
    if is_in_proc && OF_PROC.load(Ordering::Relaxed) == file_system {
        return true;
    }
    let found = stat(path).map_or(0, |stat| stat.st_dev);
    if is_in_proc {
        OF_PROC.store(found, Ordering::Relaxed);
    }
    found == file_system
}

/// Opens a file to read it.
pub(crate) fn open(path: impl Arg) -> Result<Brief, Errno> {
    open_for(path, OFlags::RDONLY)
}

/// Opens a file for its facts only. This reads nothing, and needs no permission on the file itself.
pub(crate) fn open_for_facts(path: impl Arg) -> Result<Brief, Errno> {
    open_for(path, OFlags::PATH)
}

/// Opens a device for requests.
pub(super) fn open_device(path: &CStr) -> Result<Brief, Errno> {
    open_for(path, OFlags::RDWR)
}

/// Opens, through `/proc`, a file description of its own for a file that the program has open.
/// Fails if it is no longer that `file`: then it opens nothing, because a second description of a
/// pipe would keep its reader waiting.
pub(super) fn open_anew(path: &CStr, file: File, access: OFlags) -> Result<Brief, Errno> {
    let there = || stat(path).map(|stat| (stat.st_dev, stat.st_ino));
    if there()? != file {
        return Err(Errno::BADF);
    }
    let open = || open_file(path, access | OFlags::CLOEXEC, Mode::empty());
    // If the path has come to lead to another file just now, that one is closed here.
    let opened = open_by(open, |_, opened| opened == file || there() == Ok(opened))?;
    if opened.file == file {
        Ok(opened)
    } else {
        Err(Errno::BADF)
    }
}

/// Opens, through `/proc`, a file description of its own for a file that the program has open, and
/// the caller keeps it. Fails if it is no longer that `file`.
pub(super) fn open_to_keep(path: &CStr, file: File, write: bool) -> Result<OwnedFd, Errno> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let opened = open_file(path, access | OFlags::CLOEXEC, Mode::empty())?;
    match file_of(&opened) == Some(file) {
        true => Ok(opened),
        false => Err(Errno::BADF),
    }
}

fn open_for(path: impl Arg, flags: OFlags) -> Result<Brief, Errno> {
    path.into_with_c_str(|path| {
        let open = || open_file(path, flags | OFlags::CLOEXEC, Mode::empty());
        open_by(open, |_, file| leads_to(path, file.0))
    })
}

pub(super) fn path_of(path: &[u8]) -> &CStr {
    CStr::from_bytes_until_nul(path).unwrap_or_default()
}

/// Makes a path from the directory, at most 31 bytes, and the number, with a zero at the end.
pub(super) fn number_path(directory: &[u8], number: RawFd) -> [u8; 44] {
    let mut path = [0; 44];
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

/// Opens a file of any kind by `open`. `is_right` returns whether it is the file that the caller
/// wants.
pub(super) fn open_by(
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
    is_right: impl FnOnce(&OwnedFd, File) -> bool,
) -> Result<Brief, Errno> {
    let (note, process) = (fork_notes::begin(), generation::current());
    let opened = open();
    let found = opened.as_ref().ok().and_then(file_of);
    let number = opened.as_ref().ok().map(AsRawFd::as_raw_fd);
    let note = note.filter(|note| {
        let is_noted = number.zip(found).is_some_and(|(number, file)| note.is_of(number, file));
        if !is_noted {
            note.end();
        }
        is_noted
    });
    let fd = ManuallyDrop::new(opened?);
    let file = found.filter(|file| is_right(&fd, *file));
    // A file that another thread has put under the number is forgotten, and otherwise left alone.
    let (known, position) = (file.unwrap_or_default(), Cell::new(0));
    let brief = Brief { fd, file: known, note, process, position };
    file.map(|_| brief).ok_or(Errno::BADF)
}

/// In a process with one thread: has the kernel make its table of descriptors large enough for
/// tenure's [high numbers](HIGH). As soon as a second thread shares the table, that takes 7 ms (Linux
/// 6.18): the kernel waits until no processor can use the old table any more.
pub(crate) fn have_table_for_high_numbers() {
    // The links of this directory are itself, its parent's, and one for each thread.
    let is_alone = stat(c"/proc/self/task").is_ok_and(|task| task.st_nlink == 3);
    if let Some(any) = is_alone.then(|| open_for_facts(c"/")).and_then(Result::ok) {
        drop(any.again(HIGH));
    }
}

/// Closes a number that tenure got for this file, unless the program has closed it, and maybe put
/// another file there.
///
/// Not by the owning type: debug builds end the process if another thread has closed it just now.
pub(super) fn close(number: RawFd, file: File) {
    // SAFETY: the call only asks which file it is; a free number is an error.
    if file_of(unsafe { BorrowedFd::borrow_raw(number) }) == Some(file) {
        // SAFETY: it is the file that tenure has opened under this number, and its only user gives
        // it up by this call.
        unsafe { libc::close(number) };
    }
}

/// Duplicates a descriptor to a number of at least `least`.
pub(super) fn copy(number: RawFd, least: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the call makes a new number; it closes and changes none.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, least) };
    if copy < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just made the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

impl Brief {
    pub fn file(&self) -> File {
        self.file
    }

    pub fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Duplicates the descriptor to a number of at least `least`.
    pub(super) fn again(&self, least: RawFd) -> Option<Brief> {
        // If the program has put a file of its own under the first number, the duplicate is of that
        // file and is closed.
        let again = open_by(|| copy(self.number(), least), |_, _| true);
        again.ok().filter(|again| again.file == self.file)
    }

    /// Keeps the descriptor open, also in a child. Returns its number.
    pub(super) fn stays(self) -> RawFd {
        let own = ManuallyDrop::new(self);
        if let Some(note) = own.note {
            note.end();
        }
        own.number()
    }

    /// Returns whether the number is still this file's. Another thread of the program may have
    /// closed it and put a file there. Bytes that were read meanwhile may come from that file.
    pub fn is_open(&self) -> bool {
        file_of(&*self.fd) == Some(self.file)
    }

    /// Reads the next bytes. `EBADF`: the program has put another file under the number.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let read = self.read_next(buffer)?;
        let read = self.if_open(read)?;
        self.position.set(self.position.get() + read as u64);
        Ok(read)
    }

    /// A child's copy has one position in common with the parent's. A signal handler may make a child
    /// between two reads, and both go on. So the child reads by a description of its own: otherwise
    /// the parent would miss what the child reads, such as the mapping that it looks for.
    fn read_next(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        {
            let _no_handler = Blocked::all();
            if generation::current() == self.process {
                return rustix::io::read(&*self.fd, buffer);
            }
        }
        let path = number_path(b"/proc/thread-self/fd/", self.number());
        open_anew(path_of(&path), self.file, OFlags::RDONLY)?.pread(buffer, self.position.get())
    }

    /// Like [`read`](Brief::read), from an offset.
    pub fn pread(&self, buffer: &mut [u8], from: u64) -> Result<usize, Errno> {
        self.if_open(rustix::io::pread(&*self.fd, buffer, from)?)
    }

    /// Returns the length just read, if the bytes come from this file.
    fn if_open(&self, read: usize) -> Result<usize, Errno> {
        if self.is_open() {
            Ok(read)
        } else {
            Err(Errno::BADF)
        }
    }
}

impl AsFd for Brief {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Brief {
    fn drop(&mut self) {
        if let Some(note) = self.note {
            note.becomes_busy();
        }
        close(self.number(), self.file);
        if let Some(note) = self.note {
            note.end();
        }
    }
}

/// In the child, whose only thread is the one that forked: closes the descriptors that the other
/// threads had open.
pub(crate) fn close_others() {
    // A thread that this process does not have has opened the file, and has not closed it.
    fork_notes::take_others(close);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::fork_notes::PATIENCE;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;
    use tenure_testkit::{in_child, this_test};

    /// Descriptors above the standard ones.
    fn open_ones() -> usize {
        // SAFETY: the call only asks whether the number is open.
        (3..200).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).count()
    }

    #[test]
    fn children_inherit_nothing_of_other_threads() {
        in_child(this_test!(), &[], || {
            static OVER: AtomicBool = AtomicBool::new(false);
            crate::watch_forks();
            let before = open_ones();
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    std::thread::spawn(|| {
                        while !OVER.load(Ordering::Relaxed) {
                            drop(open("/proc/thread-self/maps").unwrap());
                        }
                    })
                })
                .collect();
            // A fork that takes longer than the threads wait, as on a busy machine, gives no promise.
            let (mut certain, mut forks) = (0, 0);
            while certain < 100 {
                let began = Instant::now();
                // SAFETY: the child reads its descriptors and exits without unwinding.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the child, which has no more to do.
                    unsafe { libc::_exit((open_ones() != before).into()) };
                }
                let is_certain = began.elapsed() < PATIENCE;
                let mut status = 0;
                // SAFETY: the kernel writes the local.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                certain += i32::from(is_certain);
                forks += 1;
                assert!(status == 0 || !is_certain, "child {forks} has inherited: {status:#x}");
                assert!(forks < 5_000, "{certain} forks were quick");
            }
            OVER.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(open_ones(), before);
        });
    }

    /// The number of a file in another thread's own descriptor table may be another file's in the
    /// program's table.
    #[test]
    fn a_child_keeps_the_numbers_of_other_tables() {
        in_child(this_test!(), &[], || a_child_keeps_number(false));
    }

    /// As above, and it is the same file: a monitor reads `/proc/meminfo` from standard input, and
    /// the worker does so, too.
    #[test]
    fn a_child_keeps_the_numbers_of_tenures_threads_also_for_the_same_file() {
        in_child(this_test!(), &[], || a_child_keeps_number(true));
    }

    /// `tenures`: the other thread is tenure's, and the two tables have the same file.
    fn a_child_keeps_number(tenures: bool) {
        crate::watch_forks();
        let path = "/proc/meminfo";
        let same = std::fs::File::open(path).unwrap();
        let (opened, is_open) = std::sync::mpsc::sync_channel(0);
        let (end, ends) = std::sync::mpsc::sync_channel::<()>(0);
        let theirs = std::thread::spawn(move || {
            crate::os::uffd::private_descriptor_table(&mut []).unwrap();
            if tenures {
                crate::os::own_table::has_own_table();
            }
            let list = open(path).unwrap();
            opened.send(list.number()).unwrap();
            ends.recv().unwrap();
        });
        let number = is_open.recv().unwrap();
        let copied = if tenures { same.as_raw_fd() } else { 2 };
        // SAFETY: a copy of a descriptor of the test's, under the number that the other thread's file has.
        assert!(unsafe { libc::dup2(copied, number) } == number);
        // SAFETY: the child looks at the number and exits without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: asks whether it is open, and ends the child.
            unsafe { libc::_exit((libc::fcntl(number, libc::F_GETFD) < 0).into()) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes the local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        end.send(()).unwrap();
        theirs.join().unwrap();
        assert_eq!(status, 0, "the child has lost descriptor {number}");
    }

    /// The thread that forks keeps its own descriptor, also in the child.
    #[test]
    fn a_child_keeps_what_its_thread_had_open() {
        in_child(this_test!(), &[], || {
            crate::watch_forks();
            let list = open("/proc/thread-self/maps").unwrap();
            // SAFETY: the child reads and exits without unwinding.
            let child = unsafe { libc::fork() };
            let mut byte = [0; 1];
            let read = rustix::io::read(&list, &mut byte);
            if child == 0 {
                // SAFETY: ends the child, which has no more to do.
                unsafe { libc::_exit(i32::from(read != Ok(1))) };
            }
            let mut status = 0;
            // SAFETY: the kernel writes the local.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!((status, read), (0, Ok(1)));
        });
    }

    /// With and without fork handlers.
    #[test]
    fn a_child_that_reads_on_takes_nothing_from_its_parent() {
        in_child(this_test!(), &[], || {
            crate::watch_forks();
            for raw in [false, true] {
                // First: the allocation may make a mapping.
                let mut text = Vec::with_capacity(1 << 20);
                let list = open("/proc/thread-self/maps").unwrap();
                let mut more = |length: usize| {
                    let mut bytes = [0; 512];
                    let read = list.read(&mut bytes[..length]).unwrap();
                    text.extend_from_slice(&bytes[..read]);
                    read > 0
                };
                assert!(more(100));
                // SAFETY: the child reads and exits without unwinding.
                let child = unsafe {
                    match raw {
                        true => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
                        false => libc::fork(),
                    }
                };
                let mut status = 0;
                if child != 0 {
                    // SAFETY: the kernel writes the local.
                    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                }
                while more(512) {}
                let lines = || text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                let is_whole = lines().count() > 10
                    && lines().all(|line| crate::os::maps_line::parse_line(line).is_some());
                if child == 0 {
                    // SAFETY: ends the child, which has no more to do.
                    unsafe { libc::_exit(i32::from(!is_whole)) };
                }
                assert_eq!((status, is_whole), (0, true), "raw: {raw}");
            }
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
