//! The system calls that the driver makes itself.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;
/// The exit code of a process that found enough errors.
pub const EXIT_WRONG: i32 = 76;
/// The exit code of a process whose watchdog found a hanging thread.
pub const EXIT_HANG: i32 = 78;
/// The exit code at a SIGBUS that nothing explains.
pub const EXIT_SIGBUS: i32 = 75;

/// Bytes of a page: 4, 16 or 64 KiB. Handlers of SIGBUS ask, too.
pub fn page_bytes() -> usize {
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    match BYTES.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: the call takes a number only.
            let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child of the driver's.
pub fn in_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

/// Notes that it is.
pub fn set_in_child() {
    IN_CHILD.store(true, Ordering::Relaxed);
}

/// Ends the process without any handler.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: has no precondition.
    unsafe { libc::_exit(code) }
}

/// Maps `len` bytes of private memory; `huge`: at a huge page, and advised so.
pub fn map(len: usize, huge: bool) -> Option<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let extra = if huge { HUGE } else { 0 };
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len + extra, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let start = at as usize;
    if !huge {
        // SAFETY: the mapping made above; advice only.
        unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
        return Some(start);
    }
    let aligned = start.next_multiple_of(HUGE);
    unmap(start, aligned - start);
    unmap(aligned + len, start + len + extra - (aligned + len));
    // SAFETY: inside the mapping made above; advice only.
    unsafe { libc::madvise(aligned as *mut _, len, libc::MADV_HUGEPAGE) };
    Some(aligned)
}

/// Unmaps memory of the driver's own.
pub fn unmap(start: usize, len: usize) {
    if len > 0 {
        // SAFETY: callers pass mappings that they made and no longer use.
        unsafe { libc::munmap(start as *mut _, len) };
    }
}

/// Has the kernel reclaim memory of the driver's own. Without swap it can take only memory that was
/// given up with MADV_FREE.
pub fn reclaim(start: usize, len: usize) {
    // SAFETY: the call changes no contents of memory that was not given up.
    unsafe { libc::madvise(start as *mut _, len, libc::MADV_PAGEOUT) };
}

/// Reads memory through the kernel, which fails where a touch would raise SIGBUS.
pub fn read_through_kernel(from: usize, into: &mut [u8]) -> Result<(), i32> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from as *mut _, iov_len: into.len() };
    // SAFETY: `into` is writable; the other address is only read, by the kernel, which checks it.
    let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match done {
        n if n == into.len() as isize => Ok(()),
        n if n >= 0 => Err(libc::EFAULT),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// Reads one word of the driver's memory, whatever other threads do.
pub fn word(at: usize) -> u64 {
    // SAFETY: callers pass aligned addresses of mappings that they own and have unmarked or mean to
    // touch.
    unsafe { std::ptr::read_volatile(at as *const u64) }
}

/// Writes one word of the driver's memory.
pub fn set_word(at: usize, value: u64) {
    // SAFETY: callers pass aligned addresses of mappings that they own and have unmarked or mean to
    // touch.
    unsafe { std::ptr::write_volatile(at as *mut u64, value) };
}

/// fork by the C library: its handlers run.
pub fn fork() -> i32 {
    // SAFETY: children of the driver only verify, count in shared atomics, and `_exit`.
    unsafe { libc::fork() }
}

/// fork by the bare system call: no handler runs.
pub fn clone_raw() -> i32 {
    // SAFETY: children of the driver only verify, count in shared atomics, and `_exit`. The callers
    // keep the driver's other threads outside of malloc, so the child finds its locks free.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
}

/// Whether a child has ended, and how.
pub fn reap(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    (unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == pid).then_some(status)
}

/// The children of the calling thread.
pub fn children() -> Vec<i32> {
    let path = "/proc/thread-self/children";
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.split_ascii_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

/// Kills a child of the driver's own.
pub fn kill(pid: i32) {
    // SAFETY: plain numbers; the callers' own children.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Installs a signal handler.
pub fn on_signal(
    signal: i32,
    handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void),
) {
    // SAFETY: the handler has the signature that SA_SIGINFO asks for and is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// Sends this thread a signal; its handler has run when this returns.
pub fn raise(signal: i32) {
    // SAFETY: a signal that the driver handles.
    unsafe { libc::raise(signal) };
}

/// Milliseconds since some moment, the same one for all processes.
pub fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// A short sleep.
pub fn nap_us(us: u64) {
    std::thread::sleep(std::time::Duration::from_micros(us));
}
