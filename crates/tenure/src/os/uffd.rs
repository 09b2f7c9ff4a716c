//! userfaultfd: missing pages raise SIGBUS, or wait for a refill thread.
//!
//! The descriptor lives in two descriptor tables: the process's, and a private one that only the
//! worker thread sees. Closing the last copy would silently end the SIGBUS promise, and with it the
//! detection of purges. Programs that close every descriptor that they do not know (daemons,
//! launchers) would do that. So all *registering* goes through the private copy, which such a
//! program cannot close or replace by another file.

use super::brief::{self, Brief};
use super::{generation, kernel, wiped};
use crate::range::PageRange;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::ffi::{c_long, CStr};
use std::mem::ManuallyDrop;

const UFFD_API: u64 = 0xAA;
const USER_MODE_ONLY: i32 = 1;
const MODE_MISSING: u64 = 1;
const IOC_NEW: u64 = 0xAA00;

/// The features that tenure asks for.
pub(crate) mod feature {
    /// A missing page raises SIGBUS in the touching thread instead of waiting for a reader.
    pub const SIGBUS: u64 = 1 << 7;
    /// Events carry the id of the touching thread.
    pub const THREAD_ID: u64 = 1 << 8;
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, core::marker::Copy)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
#[derive(Clone, core::marker::Copy)]
struct Register {
    range: RangeArg,
    mode: u64,
    /// The kernel reads none of it, and writes here which requests the range takes.
    ioctls: u64,
}

/// The last word of a registration by tenure. The launcher knows it by this, and leaves pages of
/// zeros as they are: to tenure a page that is missing there was purged.
pub const REGISTERED_BY_TENURE: u64 = u64::from_ne_bytes(*b"tenure\0\x01");

#[repr(C)]
#[derive(Clone, core::marker::Copy)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

/// The argument of `uffdio_poison` and `uffdio_zeropage`.
#[repr(C)]
#[derive(Clone, core::marker::Copy)]
struct Fill {
    range: RangeArg,
    mode: u64,
    done: i64,
}

/// One event as read from the descriptor.
#[repr(C)]
#[derive(Clone, core::marker::Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    pad: u32,
}

const fn iowr(nr: u64, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | (0xAA << 8) | nr
}
const fn ior(nr: u64, size: usize) -> u64 {
    (2 << 30) | ((size as u64) << 16) | (0xAA << 8) | nr
}
const IOC_API: u64 = iowr(0x3F, size_of::<Api>());
const IOC_REGISTER: u64 = iowr(0x00, size_of::<Register>());
const IOC_UNREGISTER: u64 = ior(0x01, size_of::<RangeArg>());
const IOC_WAKE: u64 = ior(0x02, size_of::<RangeArg>());
const IOC_COPY: u64 = iowr(0x03, size_of::<Copy>());
const IOC_ZEROPAGE: u64 = iowr(0x04, size_of::<Fill>());
const IOC_POISON: u64 = iowr(0x08, size_of::<Fill>());

/// Opens a userfaultfd for faults of user code only and agrees on the features.
///
/// Tries the system call, then `/dev/userfaultfd` (6.1+), which a container may have been given
/// although its seccomp profile refuses the call. `EPERM`/`ENOSYS`: refused.
pub(crate) fn open(features: u64) -> Result<Userfaultfd, Errno> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    let fd = open_by_call(flags).or_else(|errno| open_device(flags).ok_or(errno))?;
    Userfaultfd(fd).agreed(features)
}

fn open_by_call(flags: i32) -> Result<RawFd, Errno> {
    // SAFETY: userfaultfd takes flags and returns a new descriptor or an error.
    let fd = unsafe { kernel::call(libc::SYS_userfaultfd, [flags.into(), 0, 0, 0, 0, 0]) }?;
    Ok(fd as RawFd)
}

/// A userfaultfd in the program's descriptor table. Another thread may close its number at any time,
/// and put a file of its own there. So the drop closes it only if it is still a userfaultfd, which
/// an [`OwnedFd`] does not ask.
pub(crate) struct Userfaultfd(RawFd);

impl Userfaultfd {
    /// Agrees with the kernel on the features of a new descriptor.
    fn agreed(self, features: u64) -> Result<Userfaultfd, Errno> {
        let mut api = Api { api: UFFD_API, features, ioctls: 0 };
        ioctl(self.0, IOC_API, &mut api).map(|()| self)
    }

    pub fn number(&self) -> RawFd {
        self.0
    }

    /// Keeps it open under its number.
    pub fn into_number(self) -> RawFd {
        ManuallyDrop::new(self).0
    }

    /// Gives it a high number, if one is free: programs hand out and close the low ones.
    pub fn at_high_number(self) -> Userfaultfd {
        // If the program has put a file of its own under the number, the copy is closed again.
        match brief::open_by(|| brief::copy(self.0, brief::HIGH), |_, _| true) {
            Ok(high) if is_userfaultfd(high.number()) => Userfaultfd(high.stays()),
            _ => self,
        }
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        close_if_ours(self.0);
    }
}

fn open_device(flags: i32) -> Option<RawFd> {
    let device = brief::open_device(c"/dev/userfaultfd").ok()?;
    let arguments = [device.number().into(), IOC_NEW as c_long, flags.into(), 0, 0, 0];
    // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and returns a new descriptor or an error.
    unsafe { kernel::call(libc::SYS_ioctl, arguments) }.ok().map(|fd| fd as RawFd)
}

/// A userfaultfd, and the process on whose memory it acts. A child inherits the descriptor.
#[derive(Clone, core::marker::Copy)]
pub(crate) struct Watcher {
    fd: RawFd,
    process: u64,
}

impl Watcher {
    /// `process`: the [number](generation::current) of the process that opened it, read before the
    /// descriptor was looked up.
    pub fn of(process: u64, fd: RawFd) -> Watcher {
        Watcher { fd, process }
    }

    /// For a thread that the program's handlers do not interrupt, and for requests that act on no
    /// memory of the program's.
    pub fn of_this_process(fd: RawFd) -> Watcher {
        Watcher::of(generation::current(), fd)
    }

    /// Negative: there is no descriptor.
    pub fn fd(self) -> RawFd {
        self.fd
    }

    /// Makes the request. In a process other than its own it does nothing. It may have done it
    /// before a child was made; in the child it may then return `ESTALE`, `EINVAL` or its usual
    /// result.
    fn act<T: core::marker::Copy>(self, request: u64, argument: &mut T) -> Result<(), Errno> {
        let act = |argument| ioctl_at(self.fd, request, argument);
        wiped::call_in(self.process, argument, act).unwrap_or(Err(Errno::STALE))
    }
}

fn ioctl<T>(fd: RawFd, request: u64, argument: &mut T) -> Result<(), Errno> {
    ioctl_at(fd, request, argument)
}

/// `argument`: valid for reading and writing.
fn ioctl_at<T>(fd: RawFd, request: u64, argument: *mut T) -> Result<(), Errno> {
    // The launcher's copy of tenure lets go of the memory.
    let call = if request == IOC_REGISTER { kernel::shown_call } else { kernel::call };
    let arguments = [fd.into(), request as c_long, argument.addr() as c_long, 0, 0, 0];
    loop {
        // SAFETY: each request in this module is paired with the structure that the kernel defines
        // for it. The callers of this function, all in this module, own that structure during the
        // call.
        match unsafe { call(libc::SYS_ioctl, arguments) } {
            Ok(_) => return Ok(()),
            // The address space is being changed (a fork is under way), and the kernel wants a
            // retry.
            Err(Errno::AGAIN | Errno::INTR) => super::futex::yield_now(),
            Err(errno) => return Err(errno),
        }
    }
}

fn range_arg(range: PageRange) -> RangeArg {
    RangeArg { start: range.start as u64, len: range.len() as u64 }
}

/// From here on userfaultfd handles the missing pages of the range. `ENOMEM`: too many mappings.
/// `EINVAL`: not private anonymous (or shmem) memory. `EBUSY`: watched by another userfaultfd.
pub(crate) fn register(watcher: Watcher, range: PageRange) -> Result<(), Errno> {
    let mut argument =
        Register { range: range_arg(range), mode: MODE_MISSING, ioctls: REGISTERED_BY_TENURE };
    let registered = watcher.act(IOC_REGISTER, &mut argument);
    // Left on the stack, the mark could end up in a registration of the program's.
    argument.ioctls = 0;
    std::hint::black_box(&argument);
    registered
}

/// Ends the registration: missing pages fault in as zeros again. Wakes the threads that wait in the
/// range.
pub(crate) fn unregister(watcher: Watcher, range: PageRange) -> Result<(), Errno> {
    watcher.act(IOC_UNREGISTER, &mut range_arg(range))
}

/// Wakes the threads that wait for pages of the range.
pub(crate) fn wake(watcher: Watcher, range: PageRange) -> Result<(), Errno> {
    watcher.act(IOC_WAKE, &mut range_arg(range))
}

/// Makes touching the missing pages of the range raise SIGBUS (6.6+; else `EINVAL`).
pub(crate) fn poison(watcher: Watcher, range: PageRange) -> Result<(), Errno> {
    let mut argument = Fill { range: range_arg(range), mode: 0, done: 0 };
    watcher.act(IOC_POISON, &mut argument)
}

/// Fills one missing page with `bytes` and wakes the threads that touch it. `EEXIST`: it is not
/// missing.
pub(crate) fn copy_page(watcher: Watcher, page: usize, bytes: &[u8]) -> Result<(), Errno> {
    assert_eq!(bytes.len(), super::page_size());
    let mut argument = Copy {
        dst: page as u64,
        src: bytes.as_ptr() as u64,
        len: bytes.len() as u64,
        mode: 0,
        copied: 0,
    };
    watcher.act(IOC_COPY, &mut argument)
}

/// Copies a page to itself, which changes nothing. Returns `ENOENT` if the page is registered with
/// no userfaultfd. If it is missing, the kernel cannot read it (`EFAULT`).
pub(crate) fn copy_to_itself(watcher: Watcher, page: usize) -> Result<(), Errno> {
    let (dst, src, len) = (page as u64, page as u64, super::page_size() as u64);
    watcher.act(IOC_COPY, &mut Copy { dst, src, len, mode: 0, copied: 0 })
}

/// Asks for a page of zeros in the place of a page that is there, which the kernel refuses. From
/// then on the watched mapping counts as written, and a fork copies its page tables.
pub(crate) fn count_as_written(watcher: Watcher, page: usize) -> Result<(), Errno> {
    let range = PageRange::new(page, page + super::page_size());
    let mut argument = Fill { range: range_arg(range), mode: 0, done: 0 };
    match watcher.act(IOC_ZEROPAGE, &mut argument) {
        Err(Errno::EXIST) => Ok(()),
        // The page was missing, and must stay so.
        // SAFETY: a page of zeros that the call has just made, in memory that no code may use
        // meanwhile.
        Ok(()) => unsafe { super::advise::drop_pages(range) },
        Err(errno) => Err(errno),
    }
}

/// A thread that waits for a page.
pub(crate) struct Fault {
    pub address: usize,
    pub thread: u32,
}

/// Reads the next fault. `None`: there is none.
pub(crate) fn read_fault(fd: RawFd) -> Result<Option<Fault>, Errno> {
    const EVENT_PAGEFAULT: u8 = 0x12;
    let mut message = [0u8; size_of::<Message>()];
    // SAFETY: the caller keeps the descriptor open for this call, which only borrows it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    match rustix::io::read(borrowed, &mut message) {
        Ok(n) if n == message.len() => {
            // SAFETY: `Message` is plain data of exactly that size and every bit pattern is valid.
            let message: Message = unsafe { std::ptr::read_unaligned(message.as_ptr().cast()) };
            Ok((message.event == EVENT_PAGEFAULT)
                .then_some(Fault { address: message.address as usize, thread: message.thread }))
        }
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Opens a userfaultfd for all faults. Before 5.11 the kernel has none for the faults of user code
/// alone (`EINVAL`).
fn open_for_all_faults(errno: Errno) -> Result<Userfaultfd, Errno> {
    if errno != Errno::INVAL {
        return Err(errno);
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    Userfaultfd(open_by_call(flags)?).agreed(0)
}

/// Opens a userfaultfd for questions, with which nothing is ever registered.
pub(super) fn open_to_ask() -> Result<Brief, Errno> {
    let number = || open(0).or_else(open_for_all_faults).map(Userfaultfd::into_number);
    // SAFETY: the kernel has just made the descriptor for this call, which gives it away.
    let open = || number().map(|number| unsafe { OwnedFd::from_raw_fd(number) });
    brief::open_by(open, |fd, _| is_userfaultfd(fd.as_raw_fd()))
}

/// Copies to a page from memory that cannot be read. Returns `ENOENT` if the page is registered
/// with no userfaultfd, and else `EFAULT`. It changes nothing.
pub(super) fn copy_unreadable(fd: RawFd, page: usize, unreadable: usize) -> Result<(), Errno> {
    let mut copy = Copy {
        dst: page as u64,
        src: unreadable as u64,
        len: super::page_size() as u64,
        mode: 0,
        copied: 0,
    };
    ioctl(fd, IOC_COPY, &mut copy)
}

/// Closes a descriptor if it is still a userfaultfd: the program may have closed it and opened
/// another file under that number since. Makes system calls only.
pub(crate) fn close_if_ours(fd: RawFd) {
    if names_userfaultfd(fd) {
        // SAFETY: a userfaultfd. The only one of this process is tenure's, unless the program uses
        // userfaultfd itself, under numbers of its own.
        unsafe { libc::close(fd) };
    }
}

/// Returns whether `fd` is a userfaultfd in the calling thread's descriptor table. 100 ns if it is.
pub(crate) fn is_userfaultfd(fd: RawFd) -> bool {
    // A wake at an address where nothing is mapped only shows the kind of the file.
    let page = super::page_size();
    let range = PageRange::new(page, 2 * page);
    // After an error it may be closed, or another file. Or something else refused the call: a
    // descriptor that is taken for closed once is not used again.
    fd >= 0 && (ioctl(fd, IOC_WAKE, &mut range_arg(range)).is_ok() || names_userfaultfd(fd))
}

/// Returns whether the link that `/proc` shows is a userfaultfd's. Allocates nothing.
fn names_userfaultfd(fd: RawFd) -> bool {
    let mut name = [0u8; 32];
    let mut path = *b"/proc/thread-self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0u8; 10];
    let mut number = fd.unsigned_abs();
    let mut count = 0;
    // By hand: formatting may allocate, and this runs in a fork handler.
    loop {
        digits[count] = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
        if number == 0 {
            break;
        }
    }
    let start = path.iter().position(|b| *b == 0).unwrap_or(0);
    for i in 0..count {
        path[start + i] = digits[count - 1 - i];
    }
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let len = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut name);
    len.is_ok_and(|len| name[..len].starts_with(b"anon_inode:[userfaultfd]"))
}

/// Gives the calling thread a descriptor table of its own that holds only `keep`.
pub(crate) fn private_descriptor_table(keep: &mut [RawFd]) -> Result<(), Errno> {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    keep.sort_unstable();
    let mut from: u32 = 0;
    let mut flags = CLOSE_RANGE_UNSHARE;
    for kept in keep.iter().map(|fd| *fd as u32).chain([u32::MAX]) {
        let (first, last) = (from, if kept == u32::MAX { kept } else { kept.wrapping_sub(1) });
        from = kept.wrapping_add(1);
        if first > last || last == u32::MAX && kept != u32::MAX {
            continue;
        }
        let arguments = [first.into(), last.into(), flags.into(), 0, 0, 0];
        // SAFETY: with CLOSE_RANGE_UNSHARE the kernel first gives this thread a table of its own.
        // So no other thread loses a descriptor, and this thread uses none but `keep`.
        unsafe { kernel::call(libc::SYS_close_range, arguments) }?;
        flags = 0;
    }
    Ok(())
}
