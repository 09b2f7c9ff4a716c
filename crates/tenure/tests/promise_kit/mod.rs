//! For tests that must end even if the library hangs: a child with a watchdog, forks with a
//! deadline, raw memory, and a page read through the kernel.

#![allow(dead_code)] // each test file uses its part

pub mod ends;
pub mod stepping;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;
use std::time::{Duration, Instant};
use tenure::volatile::{self, Settings};
use tenure::{Mapping, PageSize};
use tenure_testkit::child::{takings_from_the_machine, undisturbed_with};
use tenure_testkit::deadline::spawn_begun;
use tenure_testkit::{in_child, Deadline, MemoryCgroup, Unavailable};

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;

/// Long enough for everything that does not hang.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Too long even on a machine that is busy all the time. Less than the ten minutes of [`in_child`]. At
/// a load of 46 on two processors, 10,000 turns of three threads took longer than two minutes.
pub const LONGEST: Duration = Duration::from_secs(500);

/// Runs `body` in a process of its own, which a watchdog ends after four times [`PATIENCE`].
pub fn promised(test: &str, body: impl FnOnce()) {
    promised_with(test, &[], body);
}

/// [`promised`] with environment variables.
pub fn promised_with(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    in_child(test, env, || {
        watchdog();
        body();
    });
}

/// Only the test itself offers. The wait alone is not enough: if other programs have taken the
/// memory, less may stay marked, and the rest is offered at once.
pub fn never_offer() {
    let long = Settings::default().with_offer_after(Duration::from_secs(3600));
    volatile::configure(long.with_unoffered_max(u64::MAX));
}

/// The variable that names a cgroup's directory to a child.
pub const GROUP: &str = "TENURE_TEST_GROUP";

/// Moves this process into the cgroup that its parent made.
pub fn enter_group() {
    let directory = std::env::var(GROUP).unwrap();
    std::fs::write(format!("{directory}/cgroup.procs"), "0").unwrap();
}

/// [`promised`] in a memory cgroup of this size, which no other process uses. A body that the
/// kernel kills for lack of memory has failed. `Err`: such a group cannot be made here.
pub fn promised_within(test: &str, bytes: u64, body: impl FnOnce()) -> Result<(), Unavailable> {
    let group = group_of(bytes)?;
    promised_with(test, &env_of(&group), || {
        enter_group();
        body();
    });
    Ok(())
}

/// [`promised_within`] for a body that holds only while the kernel takes no memory from the whole
/// machine: it takes from this group, too. A body that fails then runs again.
#[track_caller]
pub fn undisturbed_within(test: &str, bytes: u64, body: impl Fn()) -> Result<(), Unavailable> {
    let group = group_of(bytes)?;
    undisturbed_with(test, &env_of(&group), takings_from_the_machine, || {
        watchdog();
        enter_group();
        body();
    });
    Ok(())
}

/// The group of a test. A child finds the one that its parent has made.
fn group_of(bytes: u64) -> Result<Option<MemoryCgroup>, Unavailable> {
    match std::env::var_os(GROUP) {
        Some(_) => Ok(None),
        None => MemoryCgroup::create("promise", bytes).map(Some),
    }
}

fn env_of(group: &Option<MemoryCgroup>) -> Vec<(&'static str, &str)> {
    let path = group.as_ref().map(|group| group.path().to_str().expect("its name is plain"));
    path.map(|path| (GROUP, path)).into_iter().collect()
}

/// Ends this process with a message if it still runs after four times [`PATIENCE`].
pub fn watchdog() {
    // Before any test counts its threads: the deadline has one, too.
    let (start, deadline) = (Instant::now(), Deadline::after(4 * PATIENCE));
    spawn_begun(move || {
        while !deadline.is_over() && start.elapsed() < LONGEST {
            std::thread::sleep(Duration::from_millis(50));
        }
        hangs();
    });
}

/// Ends this process, whose body did not end in time, and says what its threads do.
pub fn hangs() -> ! {
    let text = b"HANG: the body did not end in time. Its threads:\n";
    // SAFETY: a constant is written, without a lock that a hanging thread may hold; then the
    // process ends at once.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        print_threads();
        libc::_exit(1)
    }
}

/// Prints what the kernel shows of this process's threads. Allocates nothing, and runs no fork
/// handlers: a hanging thread may have their locks.
fn print_threads() {
    let script = c"for t in /proc/$PPID/task/*; do cd $t && echo $(cat comm wchan) $(cat syscall) \
        $(grep -E '^(State|SigPnd|SigBlk)' status); done >&2";
    let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
    let (mut child, no_environment) = (0, [std::ptr::null_mut()]);
    // SAFETY: strings and lists that live through the call, and end with a zero. The child is this
    // function's own.
    unsafe {
        let (actions, attributes) = (std::ptr::null(), std::ptr::null());
        let (sh, arguments) = (c"/bin/sh".as_ptr(), arguments.as_ptr().cast());
        let environment = no_environment.as_ptr();
        if libc::posix_spawn(&mut child, sh, actions, attributes, arguments, environment) == 0 {
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
}

/// Private memory in base pages; every byte of page `i` is [`byte`]`(i)`.
pub fn filled(pages: usize) -> Mapping {
    let mut map = Mapping::anonymous_with(pages * PAGE, PageSize::Base).unwrap();
    refill(&mut map);
    map
}

/// Writes the original contents again.
pub fn refill(map: &mut Mapping) {
    for (i, page) in map.as_mut_slice().chunks_mut(PAGE).enumerate() {
        page.fill(byte(i));
    }
}

/// The byte of page `i`; never 0.
pub fn byte(i: usize) -> u8 {
    (i % 251) as u8 + 1
}

/// Plain memory that only the test knows, not backed by huge pages.
pub fn plain(len: usize) -> usize {
    // SAFETY: a new mapping at an address that the kernel chooses, and advice for it.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = libc::mmap(std::ptr::null_mut(), len, 3, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
        at as usize
    }
}

/// Reads a byte through the kernel; `None` where a load would raise a signal.
pub fn peek(at: usize) -> Option<u8> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: 1 };
    // SAFETY: one byte is written to `byte`; the kernel checks the other address.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (read == 1).then_some(byte)
}

/// Reclaims as the kernel does when memory is short: harmless to memory that is in use.
pub fn reclaim(at: usize, len: usize) {
    for _ in 0..4 {
        // SAFETY: this advice changes no contents of memory that was not given up.
        unsafe { libc::madvise(at as *mut _, len, libc::MADV_PAGEOUT) };
    }
}

/// Purges a marked range until all of it is gone: the kernel skips a page that waits on another
/// processor's list. `false`: it did not all go.
pub fn purge(at: *mut u8, len: usize) -> bool {
    let start = Instant::now();
    let mut tries = 0;
    // This thread may have stood still all the time.
    while tries < 2 || start.elapsed() < PATIENCE / 2 {
        tries += 1;
        // SAFETY: the caller's range, which is marked.
        if unsafe { volatile::purge_now(at, len) } == Ok(len) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// The processor time of this thread, to compare two works: other load does not change it much.
pub fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Base pages only, so that pages go one by one.
pub fn without_huge_pages() {
    // SAFETY: the call takes numbers only, and sets how this process gets huge pages.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Binds this thread, and those that it starts, to the first processor that it may use. The last pages that a
/// processor made wait in a batch of its own, where an offer by a thread on another one cannot mark them.
pub fn on_one_processor() -> Result<(), Unavailable> {
    tenure_testkit::seccomp::may_call("sched_setaffinity")?;
    let allowed = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
    sched_setaffinity(None, &one).unwrap();
    Ok(())
}

/// The rounds of a test that goes on for a while, and on a busy machine until it has had `least` of
/// them.
pub fn rounds(time: Duration, least: u64) -> impl Iterator<Item = u64> {
    let start = Instant::now();
    (0..).take_while(move |round| *round < least || start.elapsed() < time)
}

/// Waits until `done`; `false`: that took longer than [`PATIENCE`].
pub fn waited(done: impl FnMut() -> bool) -> bool {
    waited_for(PATIENCE, done)
}

/// Waits until `done`; `false`: that took longer than `limit`.
pub fn waited_for(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    // Without a thread in a forked child: one that the parent was starting may have left the standard
    // library's lock of threads locked there.
    if done() {
        return true;
    }
    let (start, deadline) = (Instant::now(), Deadline::after(limit));
    loop {
        if done() {
            return true;
        }
        if deadline.is_over() || start.elapsed() > LONGEST / 2 {
            return done();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How a forked child ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its body returned.
    Well,
    /// Its body panicked.
    Panicked,
    /// It died of this signal.
    Signal(i32),
    /// It had not ended in time, and was killed.
    Hung,
}

/// Runs `body` in a forked child.
pub fn forked(body: impl FnOnce()) -> Ended {
    // SAFETY: the child runs the body and ends without unwinding into the parent's code.
    let pid = unsafe { libc::fork() };
    child_or_parent(pid, body)
}

/// Waits until tenure's threads, and the one that waits for the test, have slept for a while, at most
/// so long. When they start, they allocate: a raw `clone` at that moment leaves the C library's lock
/// locked in the child (docs/limits.md), and one that finds no memory may end the process.
pub fn threads_sleep(at_most: Duration) {
    // SAFETY: a plain request.
    let own = unsafe { libc::gettid() };
    let runner = Some(std::process::id() as i32).filter(|id| *id != own);
    let switches = || -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let statuses = tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
        let is_runner =
            |status: &str| runner.is_some_and(|id| status.contains(&format!("\nPid:\t{id}\n")));
        let ours =
            statuses.filter(|status| status.starts_with("Name:\ttenure-") || is_runner(status));
        let about = |line: &&str| line.starts_with("State") || line.contains("ctxt_switches");
        ours.map(|status| status.lines().filter(about).collect()).collect()
    };
    // Without the deadline's thread, which would end at the wrong time. The watchdog ends a hang.
    let (mut before, start) = (Vec::new(), Instant::now());
    while start.elapsed() < at_most {
        std::thread::sleep(Duration::from_millis(20));
        let last = std::mem::replace(&mut before, switches());
        if last == before && before.iter().all(|lines| lines.contains("S (sleeping)")) {
            return;
        }
    }
}

/// What each thread of this process does: its name, its state, and where in the kernel it is.
pub fn threads_there() -> String {
    threads_of("self")
}

fn threads_of(process: &str) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let about = tasks.map(|task| {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{}{}{}", read("stat"), read("syscall"), read("stack"))
    });
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let of_libraries = maps.lines().filter(|line| line.contains(".so") || line.contains("[heap]"));
    about.chain(of_libraries.map(|line| format!("{line}\n"))).collect()
}

/// [`forked`] by a plain system call, which calls no fork handlers. The first one in a process comes
/// when tenure's threads have started.
pub fn raw_forked(body: impl FnOnce()) -> Ended {
    static STARTED: Once = Once::new();
    // On a busy machine a thread may take seconds to start.
    STARTED.call_once(|| threads_sleep(PATIENCE));
    // SAFETY: the child runs the body and ends without unwinding into the parent's code.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    child_or_parent(pid, body)
}

fn child_or_parent(pid: i32, body: impl FnOnce()) -> Ended {
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let panicked = catch_unwind(AssertUnwindSafe(body)).is_err();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(panicked)) };
    }
    end_of(pid)
}

/// Starts a forked child that runs `body` and never returns. It is killed if the test stops early.
pub fn worker(body: impl FnOnce()) -> i32 {
    // SAFETY: the child runs the body and ends without unwinding into the parent's code.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: requests a signal for the end of the parent's thread.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let panicked = catch_unwind(AssertUnwindSafe(body)).is_err();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(panicked)) }
        }
        pid => pid,
    }
}

/// Kills a child that lives, and waits until it is dead.
pub fn kill(pid: i32) {
    // SAFETY: a signal to a child of this process that has not been waited for; it changes no
    // memory of this process.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    assert_eq!(end_of(pid), Ended::Signal(libc::SIGKILL), "it had ended by itself");
}

/// Waits for a child, and kills it if it takes longer than [`PATIENCE`].
pub fn end_of(pid: i32) -> Ended {
    let mut status = 0;
    let ended = waited(|| {
        // SAFETY: waits for a child of this process, and writes a local.
        unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) == pid }
    });
    if !ended {
        eprintln!("the child hangs:\n{}", threads_of(&pid.to_string()));
        // SAFETY: a child of this process, which has not been waited for.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, &mut status, 0);
        }
        return Ended::Hung;
    }
    match (libc::WIFSIGNALED(status), libc::WEXITSTATUS(status)) {
        (true, _) => Ended::Signal(libc::WTERMSIG(status)),
        (false, 0) => Ended::Well,
        (false, _) => Ended::Panicked,
    }
}

/// Skips the test where purged pages cannot raise SIGBUS.
#[macro_export]
macro_rules! needs_userfaultfd {
    () => {
        if tenure::volatile::detection() == tenure::volatile::Detection::Words {
            tenure_testkit::skip!("userfaultfd does not work here");
        }
    };
}
