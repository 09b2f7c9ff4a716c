//! Touches of purged pages, forks, closed descriptors: a program's actions without a call of
//! tenure.

use std::sync::atomic::{AtomicUsize, Ordering};
use tenure::volatile::{self, Detection, Purged};
use tenure::{Mapping, Outcome, PageSize, Volatile};
use tenure_testkit::{run_child, skip, this_test, ChildResult};

const PAGE: usize = 4096;
const LEN: usize = 32 * PAGE;

macro_rules! needs_userfaultfd {
    () => {
        if volatile::detection() == Detection::Words {
            skip!("touches of purged pages are seen only with userfaultfd");
        }
    };
}

fn filled() -> Mapping {
    let mut map = Mapping::anonymous_with(LEN, PageSize::Base).unwrap();
    for (i, page) in map.as_mut_slice().chunks_mut(PAGE).enumerate() {
        page.fill(i as u8 + 1);
    }
    map
}

/// Has all of a marked range discarded: the kernel skips a page that waits on another processor's
/// list, and takes it the next time.
///
/// # Safety
/// The range is marked, and stays so.
unsafe fn purge_all(at: *mut u8, len: usize) {
    let start = std::time::Instant::now();
    // SAFETY: the caller promises that the range is marked, and stays so.
    while unsafe { volatile::purge_now(at, len) } != Ok(len) {
        assert!(start.elapsed().as_secs() < 10, "the kernel does not take it all");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Marks everything and has pages 8 to 15 discarded.
fn purge_some(map: &mut Mapping) {
    // SAFETY: the mapping lives on.
    unsafe {
        volatile::mark(map.as_mut_ptr(), LEN).unwrap();
        purge_all(map.as_mut_ptr().add(8 * PAGE), 8 * PAGE);
        volatile::offer_now(map.as_mut_ptr(), LEN).unwrap();
    }
}

fn read(map: &Mapping, page: usize) -> u8 {
    // SAFETY: inside the mapping.
    unsafe { map.as_ptr().add(page * PAGE).read_volatile() }
}

fn succeeded(result: &ChildResult) {
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn a_purged_page_raises_sigbus_and_intact_ones_do_not() {
    needs_userfaultfd!();
    let result = run_child(this_test!(), &[], || {
        let mut map = filled();
        purge_some(&mut map);
        for page in (0..8).chain(16..32) {
            assert_eq!(read(&map, page), page as u8 + 1);
        }
        println!("intact pages read");
        println!("a purged page reads {}", read(&map, 8));
    });
    assert_eq!(result.signal(), Some(libc::SIGBUS), "{}", result.output);
    assert!(result.output.contains("intact pages read"));
    assert!(!result.output.contains("a purged page reads"), "{}", result.output);
}

static TOUCHED: AtomicUsize = AtomicUsize::new(0);
static CHAINED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn earlier_handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    CHAINED.store(unsafe { (*info).si_addr() } as usize, Ordering::SeqCst);
    // SAFETY: ends the process at once, as this test's last act.
    unsafe { libc::_exit(if TOUCHED.load(Ordering::SeqCst) > 0 { 77 } else { 1 }) };
}

fn regenerate(purged: Purged) -> bool {
    TOUCHED.fetch_add(1, Ordering::SeqCst);
    let (start, len) = purged.range;
    // SAFETY: the range that the test marked; this thread is the one that touched it.
    unsafe {
        let mut gone = Vec::new();
        let outcome =
            volatile::unmark_with_map(start as *mut u8, len, |extent| gone.push(extent)).unwrap();
        assert_eq!(outcome, Outcome::Purged);
        for extent in gone {
            for at in extent.step_by(PAGE) {
                std::ptr::write_bytes((start + at) as *mut u8, 99, PAGE);
            }
        }
    }
    true
}

#[test]
fn a_handler_regenerates_and_the_one_before_gets_the_rest() {
    needs_userfaultfd!();
    let result = run_child(this_test!(), &[], || {
        // SAFETY: installs a handler with the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = earlier_handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
        volatile::on_purged_access(regenerate).unwrap();
        let mut map = filled();
        purge_some(&mut map);
        assert_eq!((read(&map, 9), read(&map, 3), read(&map, 20)), (99, 4, 21));
        assert_eq!(TOUCHED.load(Ordering::SeqCst), 1);
        // tenure does not handle a file that shrank: the earlier handler gets the signal.
        let file = Mapping::memfd("shrinks", PAGE).unwrap();
        let fd = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(fd > 0);
        drop(file);
        let memfd = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: a mapping past the end of the file: the touch raises SIGBUS on purpose.
        unsafe {
            use std::os::fd::AsRawFd;
            let at = libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ,
                libc::MAP_SHARED,
                memfd.as_raw_fd(),
                0,
            );
            at.cast::<u8>().read_volatile();
        }
    });
    assert_eq!(result.status.code(), Some(77), "{}", result.output);
}

#[test]
fn a_system_call_on_a_purged_page_fails_with_efault() {
    needs_userfaultfd!();
    let mut map = filled();
    purge_some(&mut map);
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(null);
    // SAFETY: the kernel reads from the range, and returns an error for a page that it cannot read.
    let wrote = unsafe {
        use std::os::fd::AsRawFd;
        libc::write(writer.as_raw_fd(), map.as_ptr().add(9 * PAGE).cast(), 16)
    };
    assert_eq!(wrote, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    drop(reader);
    // SAFETY: the mapping goes after this.
    unsafe { volatile::forget(map.as_mut_ptr(), LEN).unwrap() };
}

/// Runs `body` in a forked child. Returns its wait status.
fn fork(body: impl FnOnce()) -> i32 {
    // SAFETY: the child runs the body and ends without unwinding into the parent's code.
    match unsafe { libc::fork() } {
        0 => {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(panicked)) }
        }
        pid => wait(pid),
    }
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn verify_in_child(map: &mut Mapping) {
    let mut gone = Vec::new();
    // SAFETY: the child's copy of the mapping.
    let outcome =
        unsafe { volatile::unmark_with_map(map.as_mut_ptr(), LEN, |e| gone.push(e)) }.unwrap();
    assert_eq!(outcome, Outcome::Purged);
    let mut lost = [false; LEN / PAGE];
    gone.iter().for_each(|e| lost[e.start / PAGE..e.end / PAGE].fill(true));
    for (page, lost) in lost.iter().enumerate() {
        assert_eq!(*lost, (8..16).contains(&page), "page {page}");
        assert_eq!(read(map, page), if *lost { 0 } else { page as u8 + 1 });
    }
}

#[test]
fn a_child_has_the_same_marks_and_the_same_promise() {
    let result = run_child(this_test!(), &[], || {
        let mut map = filled();
        purge_some(&mut map);
        assert_eq!(fork(|| verify_in_child(&mut map)), 0);
        if volatile::detection() == Detection::Userfaultfd {
            let status = fork(|| assert_ne!(read(&map, 10), 1));
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS);
        }
        // The child marks, offers and purges by itself, with its own worker.
        let status = fork(|| {
            verify_in_child(&mut map);
            map.as_mut_slice().fill(5);
            // SAFETY: the child's copy of the mapping.
            unsafe {
                let p = map.as_mut_ptr();
                volatile::mark(p, LEN).unwrap();
                purge_all(p, LEN);
                assert_eq!(volatile::unmark(p, LEN), Ok(Outcome::Purged));
            }
        });
        assert_eq!(status, 0);
        // The parent's pages are unchanged.
        verify_in_child(&mut map);
    });
    succeeded(&result);
}

#[test]
fn shared_pages_wait_until_the_child_is_gone() {
    let result = run_child(this_test!(), &[], || {
        let mut map = filled();
        let p = map.as_mut_ptr();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // A range must be known for fork to be watched.
        let _small = Volatile::new(PAGE).unwrap();
        // SAFETY: the child only waits and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(writer);
            let _ = rustix::io::read(&reader, &mut [0; 1]);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        // SAFETY: inside the mapping.
        unsafe {
            volatile::mark(p, LEN).unwrap();
            let error = volatile::offer_now(p, LEN).unwrap_err();
            assert_eq!(error.errno(), libc::EBUSY, "{error}");
            drop(writer);
            assert_eq!(wait(pid), 0);
            volatile::offer_now(p, LEN).unwrap();
            assert_eq!(volatile::unmark(p, LEN), Ok(Outcome::Intact));
        }
    });
    succeeded(&result);
}

/// Before 6.7 the page map shows the zero page like a page that a fork shares.
#[test]
fn pages_that_were_only_read_are_offered_after_a_fork() {
    let result = run_child(this_test!(), &[], || {
        // A range must be known for fork to be watched.
        let _small = Volatile::new(PAGE).unwrap();
        let mut map = Mapping::anonymous_with(LEN, PageSize::Base).unwrap();
        map.as_mut_slice()[..LEN / 2].fill(7);
        assert!(map.as_slice()[LEN / 2..].iter().all(|b| *b == 0));
        for _ in 0..3 {
            assert_eq!(fork(|| ()), 0);
            // Written again, so that only the parent has these pages.
            map.as_mut_slice()[..LEN / 2].fill(7);
            // SAFETY: inside the mapping.
            unsafe {
                volatile::mark(map.as_mut_ptr(), LEN).unwrap();
                volatile::offer_now(map.as_mut_ptr(), LEN).unwrap();
                assert_eq!(volatile::unmark(map.as_mut_ptr(), LEN), Ok(Outcome::Intact));
            }
        }
        // SAFETY: the mapping goes after this.
        unsafe { volatile::forget(map.as_mut_ptr(), LEN).unwrap() };
    });
    succeeded(&result);
}

#[test]
fn a_raw_clone_that_missed_the_handlers_is_noticed() {
    needs_userfaultfd!();
    let result = run_child(this_test!(), &[], || {
        let mut map = filled();
        purge_some(&mut map);
        // SAFETY: a fork by a raw system call; the child checks and exits.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if pid == 0 {
            let mut gone = 0;
            // SAFETY: the child's copy of the mapping.
            let outcome = unsafe {
                volatile::unmark_with_map(map.as_mut_ptr(), LEN, |e| gone += e.len()).unwrap()
            };
            // Everything may be reported; purged pages must be.
            let right = outcome == Outcome::Purged && gone >= 8 * PAGE;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!right)) }
        }
        assert_eq!(wait(pid), 0);
        verify_in_child(&mut map);
    });
    succeeded(&result);
}

#[test]
fn a_program_that_closes_every_descriptor_loses_nothing() {
    needs_userfaultfd!();
    if !tenure::capabilities().works("private_descriptors") {
        skip!("close_range(CLOSE_RANGE_UNSHARE) is refused here");
    }
    let result = run_child(this_test!(), &[], || {
        let mut map = filled();
        purge_some(&mut map);
        // SAFETY: closes descriptors as daemons do; the standard streams stay.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        verify_in_child(&mut map);
        map.as_mut_slice().fill(5);
        purge_some(&mut map);
        // In a child that closes them before it uses tenure, no thread held a copy: there all
        // offered memory counts as purged, rather than as intact.
        let status = fork(|| {
            // SAFETY: the call takes numbers only. The child uses no descriptor of the parent's
            // from here on, and ends soon.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            let mut gone = 0;
            // SAFETY: the child's copy of the mapping.
            let outcome =
                unsafe { volatile::unmark_with_map(map.as_mut_ptr(), LEN, |e| gone += e.len()) };
            assert_eq!((outcome, gone), (Ok(Outcome::Purged), LEN));
        });
        assert_eq!(status, 0);
        println!("a purged page reads {}", read(&map, 8));
    });
    assert_eq!(result.signal(), Some(libc::SIGBUS), "{}", result.output);
}

#[test]
fn memory_locked_after_it_was_marked_is_not_offered_and_not_lost() {
    let mut map = filled();
    let p = map.as_mut_ptr();
    // SAFETY: inside the mapping.
    unsafe {
        volatile::mark(p, LEN).unwrap();
        assert!(volatile::is_volatile(p, PAGE));
        assert_eq!(libc::mlock(p.cast(), LEN), 0);
        let _ = volatile::offer_now(p, LEN);
        let _ = volatile::purge_now(p, LEN);
        assert_eq!(volatile::unmark(p, LEN), Ok(Outcome::Intact));
        libc::munlock(p.cast(), LEN);
        volatile::forget(p, LEN).unwrap();
    }
    assert!((0..LEN / PAGE).all(|page| read(&map, page) == page as u8 + 1));
}

#[test]
fn volatile_memory_cannot_be_locked_nor_locked_memory_volatile() {
    use tenure::lock::{self, When};
    let mut map = filled();
    let p = map.as_mut_ptr();
    let locked =
        |at: *const u8| tenure_testkit::pages::smaps_of(at as usize).unwrap().has_flag("lo");
    // SAFETY: inside the mapping.
    unsafe {
        volatile::mark(p.add(4 * PAGE), PAGE).unwrap();
        for when in [When::Now, When::OnFault] {
            let error = lock::lock(p, LEN, when).unwrap_err();
            assert_eq!(error.kind(), tenure::ErrorKind::IsVolatile);
            assert_eq!(error.errno(), libc::EINVAL);
            assert!(!locked(p));
            let guard = lock::lock(p, 4 * PAGE, when).unwrap();
            assert!(locked(p));
            let error = volatile::mark(p, LEN).unwrap_err();
            assert_eq!((error.kind(), error.errno()), (tenure::ErrorKind::Locked, libc::EINVAL));
            drop(guard);
            assert!(!locked(p));
        }
        volatile::mark(p, LEN).unwrap();
        volatile::forget(p, LEN).unwrap();
    }
}
