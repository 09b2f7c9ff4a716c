//! Mappings of every kind, made by plain system calls, and the kernel's facts about them.

#![allow(dead_code)] // each test file uses its part

use std::fs;
use std::time::Duration;
use tenure::retire::{self, Settings, Way};
pub use tenure_testkit::pages::mapped;

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;

/// Prepares tenure with a threshold that tests reach.
pub fn ready() {
    retire::prepare().unwrap();
    retire::configure(Settings::default().with_min_bytes(MIB));
}

/// Plain mmap; the errno on failure.
pub fn try_map(len: usize, protection: i32, flags: i32, fd: i32) -> Result<usize, i32> {
    // SAFETY: an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    Ok(at as usize)
}

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
pub const SHARED: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Private memory in base pages, every page written.
pub fn written(len: usize) -> usize {
    let at = untouched(len);
    touch(at, len);
    at
}

/// Private memory of base pages.
pub fn untouched(len: usize) -> usize {
    let at = try_map(len, RW, PRIVATE, -1).unwrap();
    // SAFETY: advice for a mapping of this test's own.
    unsafe { libc::madvise(at as *mut _, len, libc::MADV_NOHUGEPAGE) };
    at
}

pub fn touch(at: usize, len: usize) {
    for page in (at..at + len).step_by(PAGE) {
        // SAFETY: the caller's mapping, writable.
        unsafe { (page as *mut u64).write_volatile(page as u64) };
    }
}

/// Retires as `munmap` does.
pub fn unmap(at: usize, len: usize) -> Result<Way, i32> {
    // SAFETY: the tests' own mappings.
    unsafe { retire::munmap_raw(at as *mut u8, len) }
}

pub fn drain() {
    assert!(retire::drain(Some(Duration::from_secs(60))), "{:?}", retire::pending());
    assert_eq!(retire::pending().bytes, 0);
}

/// A line of /proc/self/status in kB, as bytes.
pub fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).map_or(0, |n| n.parse::<u64>().unwrap() << 10)
}

/// Asserts that nothing is mapped there, and that a touch would fault, by the kernel's own result.
pub fn assert_gone(at: usize, len: usize) {
    assert_eq!(mapped(at, len), [], "of {at:#x}");
    let mut byte = 0u8;
    for address in [at, at + len / 2, at + len - 1] {
        let local = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: 1 };
        // SAFETY: the kernel reads the remote address and reports a bad one.
        let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        assert_eq!(got, -1, "{address:#x} can be read");
    }
}

/// Runs `f` in a forked child; its exit status, or 128 and its signal.
pub fn forked(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `f` and ends.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = f();
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(code) }
        }
        child => ending(child),
    }
}

pub fn ending(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}
