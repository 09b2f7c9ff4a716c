//! The scenario's side: when failures begin and end, and the allowed errors meanwhile.

#![allow(unsafe_code, reason = "tells the process outside by a system call, and ends the process")]

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tenure::{Error, ErrorKind};

/// The option of prctl by which a scenario signals the process outside. The kernel has no such
/// option.
pub const MARK: u64 = 0x5445_4e55;
/// The second argument of the mark: calls are counted from here on.
pub const BEGINS: u64 = 1;
/// The second argument of the mark: none is counted, and none fails.
pub const ENDS: u64 = 2;
/// The beginning of a line that names an error, if calls are refused for good.
pub const TOLD: &str = "told: ";
/// The variable with the `errno` that is injected; 0 in a run without failures.
pub const ERRNO: &str = "TENURE_FAILING_ERRNO";

const BEFORE: u32 = 0;
const NOW: u32 = 1;
const AFTER: u32 = 2;

static PHASE: AtomicU32 = AtomicU32::new(BEFORE);
static INJECTED: AtomicI32 = AtomicI32::new(0);
static ERRORS: AtomicU32 = AtomicU32::new(0);
/// The refusals for good, from the first use on, and their errors.
static REFUSED: OnceLock<Vec<(&str, i32)>> = OnceLock::new();

fn mark(what: u64) {
    // SAFETY: numbers only; without a process outside the kernel refuses the option.
    unsafe { libc::prctl(MARK as i32, what, 0, 0, 0) };
}

/// From now on these capabilities' calls fail with these errors, and never work again.
pub fn refuse(capabilities: Vec<(&'static str, i32)>) {
    INJECTED.store(capabilities.first().map_or(0, |(_, errno)| *errno), Ordering::Relaxed);
    let _ = REFUSED.set(capabilities);
    PHASE.store(NOW, Ordering::Relaxed);
}

/// Whether calls fail that will never work.
pub fn is_refused() -> bool {
    REFUSED.get().is_some()
}

/// Whether this capability's calls fail, and will never work.
pub fn refuses(capability: &str) -> bool {
    REFUSED.get().is_some_and(|refused| refused.iter().any(|(name, _)| *name == capability))
}

/// From here on calls may be made to fail.
pub fn begin() {
    if is_refused() {
        return;
    }
    let errno = std::env::var(ERRNO).ok().and_then(|errno| errno.parse().ok()).unwrap_or(0);
    INJECTED.store(errno, Ordering::Relaxed);
    PHASE.store(NOW, Ordering::Relaxed);
    mark(BEGINS);
}

/// From here on every call works that is not refused for good. Before the beginning, and after the
/// end, this does nothing.
pub fn over() {
    if !is_refused() && PHASE.load(Ordering::Relaxed) == NOW {
        mark(ENDS);
        PHASE.store(AFTER, Ordering::Relaxed);
    }
}

/// Whether calls may fail now.
pub fn is_failing() -> bool {
    PHASE.load(Ordering::Relaxed) == NOW && INJECTED.load(Ordering::Relaxed) != 0
}

/// Returns whether the injected error means that a page is gone (for example `EFAULT` of
/// `MADV_POPULATE_WRITE`) although it is there. Such a page is reported as purged, and its contents
/// are unchanged.
pub fn says_gone() -> bool {
    [libc::EFAULT, libc::EHWPOISON].contains(&INJECTED.load(Ordering::Relaxed))
}

/// Returns how many errors there were.
pub fn errors() -> u32 {
    ERRORS.load(Ordering::Relaxed)
}

/// Returns the value; `None` after an allowed error. `documented`: the errors that the call's
/// documentation names, beside [`ErrorKind::System`] with the failed call's own `errno`, which
/// [`ErrorKind`] names for all calls.
///
/// # Panics
/// After an error when nothing fails, and after an undocumented one.
pub fn allowed<T>(result: Result<T, Error>, documented: &[i32]) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    assert!(is_failing(), "an error although nothing is made to fail: {error}");
    ERRORS.fetch_add(1, Ordering::Relaxed);
    let injected = INJECTED.load(Ordering::Relaxed);
    let of_system =
        matches!(error.kind(), ErrorKind::System | ErrorKind::OutOfMemory | ErrorKind::Unsupported);
    // mmap has this errno for a process that locks what it maps.
    let over_limit = injected == libc::EAGAIN
        && (error.kind(), error.errno()) == (ErrorKind::LockLimit, libc::ENOMEM);
    let refused = REFUSED.get().is_some_and(|refused| {
        let unsupported = error.kind() == ErrorKind::Unsupported;
        println!("{TOLD}{error}");
        unsupported || of_system && refused.iter().any(|(_, errno)| *errno == error.errno())
    });
    // The C library makes EAGAIN of a clone without memory. A page that is said to be gone, and is
    // there, cannot be refilled.
    let follows = match (injected, error.errno()) {
        (libc::ENOMEM, libc::EAGAIN) => true,
        (libc::EFAULT | libc::EHWPOISON, libc::ENOENT) => true,
        (injected, errno) => injected == errno,
    };
    let is_documented =
        documented.contains(&error.errno()) || of_system && follows || over_limit || refused;
    assert!(
        is_documented,
        "errno {} of {:?} is not documented: {error}",
        error.errno(),
        error.kind()
    );
    assert!(!error.remedy().is_empty(), "no remedy: {error}");
    None
}

/// Waits a moment for the worker to do something, unless it cannot.
pub fn soon(what: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(15) {
        if what() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    what()
}

/// Runs `body` in a forked child; `None`: the fork failed. `Some(true)`: it ended well.
///
/// # Panics
/// If the child does not end.
pub fn forked(body: impl FnOnce()) -> Option<bool> {
    // SAFETY: the child runs the body and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        assert!(is_failing(), "fork failed: {}", std::io::Error::last_os_error());
        return None;
    }
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of this process's own.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0)
}

/// The resources of a process at its end, for [`crate::judge`].
pub fn print_stock() {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let mappings = read("/proc/self/maps").lines().count();
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    println!(
        "stock: mappings {mappings} descriptors {descriptors} threads {} locked {} size {}",
        field("Threads:"),
        field("VmLck:"),
        field("VmSize:"),
    );
    println!("errors: {}", errors());
}

/// Prints the mappings, to find the ones that were left.
pub fn print_mappings() {
    println!("{}", std::fs::read_to_string("/proc/self/maps").unwrap_or_default());
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        println!("{:?} {:?}", entry.file_name(), std::fs::read_link(entry.path()));
    }
}
