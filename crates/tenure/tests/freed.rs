//! The refusals of `MADV_FREE`, and its silent losses.

#[path = "suite/raw.rs"]
mod raw;

use raw::*;
use std::alloc::Layout;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tenure::volatile::{forget, mark, offer_now, purge_now, unmark};
use tenure::{pool, ErrorKind, Outcome, Volatile};
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{in_child, or_skip, page_out, this_test, undisturbed};

#[test]
fn locked_and_shared_memory_cannot_be_freed_lazily_and_the_error_says_why() {
    for (lock, shared, kind) in
        [(true, false, ErrorKind::Locked), (false, true, ErrorKind::WrongMapping)]
    {
        let memory = memfd(16 * PAGE, 0).unwrap();
        let raw = if shared { Raw::shared(&memory, 16 * PAGE) } else { Raw::anonymous(16) };
        (0..16).for_each(|i| raw.set(i, 3));
        if lock {
            // SAFETY: the kernel checks the range.
            assert_eq!(unsafe { libc::mlock2(raw.start as *const _, raw.len, 1) }, 0);
        }
        // The plain call: one number for both.
        assert_eq!(raw.advise(0, 16, libc::MADV_FREE), Err(libc::EINVAL));
        // SAFETY: this test's own memory, which stays as it is.
        let refused = unsafe { mark(raw.start as *mut u8, raw.len) }.unwrap_err();
        println!("{refused}");
        assert_eq!((refused.kind(), refused.errno()), (kind, libc::EINVAL));
        assert!((0..16).all(|i| raw.byte(i) == 3));
    }
}

#[test]
fn what_is_swapped_out_goes_at_once_and_the_program_is_told() {
    drop(or_skip!(ZramSwap::create(64 << 20)));
    in_child(this_test!(), &[], || {
        let _swap = ZramSwap::create(64 << 20).unwrap();
        let swapped_out = |raw: &Raw| page_out(raw.start, raw.len, 0);
        // The plain call, with no memory short: the bytes are gone, without a report.
        let plain = Raw::anonymous(64);
        (0..64).for_each(|i| plain.set(i, 3));
        swapped_out(&plain);
        plain.advise(0, 64, libc::MADV_FREE).unwrap();
        assert!((0..64).all(|i| plain.byte(i) == 0));

        let raw = Raw::anonymous(64);
        (0..64).for_each(|i| raw.set(i, 3));
        swapped_out(&raw);
        // SAFETY: this test's own memory, which stays as it is until it is forgotten.
        unsafe {
            let at = raw.start as *mut u8;
            mark(at, raw.len).unwrap();
            offer_now(at, raw.len).unwrap();
            match unmark(at, raw.len).unwrap() {
                Outcome::Purged => assert!((0..64).all(|i| raw.byte(i) == 0)),
                Outcome::Intact => assert!((0..64).all(|i| raw.byte(i) == 3)),
            }
            forget(at, raw.len).unwrap();
        }
    });
}

/// The first byte of each page after the pages (more than half of them) were swapped out and read
/// back: clean, as the kernel counts.
fn read_back(at: *const u8, len: usize) -> Vec<u8> {
    page_out(at as usize, len, len / PAGE / 2);
    first_bytes(at, len)
}

fn first_bytes(at: *const u8, len: usize) -> Vec<u8> {
    // SAFETY: the caller's own memory.
    (0..len).step_by(PAGE).map(|byte| unsafe { at.add(byte).read_volatile() }).collect()
}

/// Makes a child by a plain system call, has the parent free the pages lazily and write them (until
/// then the kernel reclaims none of them), and returns whether the child has its bytes after the
/// kernel has reclaimed what it may. `before` runs when the pages have been read back.
fn child_keeps(
    at: *const u8,
    len: usize,
    before: impl FnOnce(),
    free_and_write: impl FnOnce(),
) -> bool {
    let (mut hear, mut tell) = UnixStream::pair().unwrap();
    let wanted = read_back(at, len);
    before();
    // SAFETY: the child only reads, and ends without unwinding into the parent's code.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        drop(tell);
        let told = hear.read(&mut [0]).is_ok_and(|bytes| bytes == 1);
        // SAFETY: paging out changes no byte. A lazily freed page goes, a shared one may stay.
        (0..4).for_each(|_| unsafe {
            libc::madvise(at as *mut _, len, libc::MADV_PAGEOUT);
        });
        let kept = told && first_bytes(at, len) == wanted;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!kept)) };
    }
    free_and_write();
    tell.write_all(&[0]).unwrap();
    status_of(pid) == 0
}

fn status_of(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// The kernel frees a page that was read back from zram also where a child has it, and the child
/// loses its data. So tenure offers no such page. The child's fork handlers do not run, so tenure
/// does not know of the child.
#[test]
fn what_a_process_frees_lazily_stays_in_a_child_that_has_it_too() {
    drop(or_skip!(ZramSwap::create(64 << 20)));
    undisturbed(this_test!(), pressure, || {
        let _swap = ZramSwap::create(64 << 20).unwrap();
        // SAFETY: the child uses tenure as any process may, and ends without unwinding.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let is_well = std::panic::catch_unwind(without_a_page_map).is_ok();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_well)) };
        }
        assert_eq!(status_of(pid), 0, "without a page map");

        let plain = Raw::anonymous(64);
        (0..64).for_each(|i| plain.set(i, 3));
        let kept = child_keeps(plain.ptr(), plain.len, nothing, || {
            plain.advise(0, 64, libc::MADV_FREE).unwrap();
            (0..64).for_each(|i| plain.set(i, 3));
        });
        println!("the kernel alone: {}", if kept { "kept" } else { "lost" });

        let raw = Raw::anonymous(64);
        (0..64).for_each(|i| raw.set(i, 4));
        let at = raw.start as *mut u8;
        // SAFETY: this test's own memory, which stays as it is while it is marked.
        let marked = |now: &dyn Fn()| unsafe {
            mark(at, raw.len).unwrap();
            now();
            assert_eq!(unmark(at, raw.len), Ok(Outcome::Intact));
        };
        // SAFETY: as above.
        let offer = || unsafe { offer_now(at, raw.len) };
        // From now on tenure takes the pages for the process's own until a fork.
        marked(&|| offer().unwrap());
        let kept = child_keeps(at, raw.len, nothing, || {
            // A child is never left without its data for a purge, either.
            marked(&|| {
                assert_eq!(offer().unwrap_err().errno(), libc::EBUSY);
                // SAFETY: as above.
                assert_eq!(unsafe { purge_now(at, raw.len) }.unwrap_err().errno(), libc::EBUSY);
            });
            (0..64).for_each(|i| raw.set(i, 4));
        });
        assert!(kept, "a range that the child has not marked");
        marked(&|| offer().unwrap());

        // Nothing of a range is offered where its end is a child's, too: the rest would wait long.
        let large = Raw::anonymous(16 * MIB / PAGE);
        let last = large.page(16 * MIB / PAGE - 64);
        let set = |pages: std::ops::Range<usize>| pages.for_each(|i| large.set(i, 7));
        set(0..16 * MIB / PAGE);
        // SAFETY: this test's own memory, which stays as it is while it is marked.
        unsafe {
            mark(large.start as *mut u8, large.len).unwrap();
            offer_now(large.start as *mut u8, large.len).unwrap();
            assert_eq!(unmark(large.start as *mut u8, large.len), Ok(Outcome::Intact));
        }
        let kept = child_keeps(last as *const u8, 64 * PAGE, nothing, || {
            set(0..16 * MIB / PAGE - 64);
            // SAFETY: as above.
            unsafe {
                mark(large.start as *mut u8, large.len).unwrap();
                let refused = offer_now(large.start as *mut u8, large.len).unwrap_err();
                assert_eq!(refused.errno(), libc::EBUSY);
                assert_eq!(tenure::stats().offered_bytes, 0);
                assert_eq!(unmark(large.start as *mut u8, large.len), Ok(Outcome::Intact));
            }
            set(16 * MIB / PAGE - 64..16 * MIB / PAGE);
        });
        assert!(kept, "the end of a range");

        let mut owned = Volatile::new(64 * PAGE).unwrap();
        owned.pin_mut().unwrap().fill(5);
        owned.offer_now().unwrap();
        assert_eq!(owned.pin().unwrap().outcome(), Outcome::Intact);
        std::mem::forget(owned.pin().unwrap());
        let at = owned.as_ptr();
        let kept = child_keeps(at, owned.len(), nothing, || {
            // SAFETY: the pin that was forgotten above.
            assert!(unsafe { owned.unpin() });
            assert_eq!(owned.offer_now().unwrap_err().errno(), libc::EBUSY);
            owned.pin_mut().unwrap().fill(6);
        });
        assert!(kept, "an object that the child had pinned");
        owned.offer_now().unwrap();
        assert!(owned.pin().unwrap().iter().all(|byte| *byte == 6));

        let soon = Duration::from_millis(20);
        pool::configure(
            pool::Settings::default()
                .with_huge_pages(pool::HugePages::Never)
                .with_offer_after(soon)
                .with_return_after(Duration::from_secs(1000)),
        );
        pool::prepare().unwrap();
        let layout = Layout::from_size_align(64 * PAGE, PAGE).unwrap();
        let run = pool::Pool.alloc(layout).unwrap().cast::<u8>();
        // SAFETY: the run's own bytes.
        unsafe { run.as_ptr().write_bytes(6, layout.size()) };
        let kept = child_keeps(run.as_ptr(), layout.size(), nothing, || {
            // SAFETY: allocated above, and this process does not use it any more.
            unsafe { pool::Pool.dealloc(run, layout) };
            let start = Instant::now();
            let waits = || pool::stats().warm > 0 && start.elapsed() < Duration::from_secs(5);
            while waits() {
                std::thread::sleep(soon);
            }
            assert_eq!(pool::stats().offered, 0, "{:?}", pool::stats());
            assert_eq!(pool::Pool.alloc(layout).unwrap().cast(), run);
            // SAFETY: allocated just above.
            unsafe { run.as_ptr().write_bytes(7, layout.size()) };
        });
        assert!(kept, "memory of the pool that the child uses");
    });
}

fn nothing() {}

fn pressure() -> u64 {
    tenure::stats().total.pressure_events
}

/// A process that has dropped its privileges cannot see who has its pages. It offers copies.
fn without_a_page_map() {
    let raw = Raw::anonymous(64);
    (0..64).for_each(|i| raw.set(i, 8));
    let at = raw.start as *mut u8;
    // SAFETY: changes the user and a flag of this process, which has one thread.
    let drop_privileges = || unsafe {
        assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 0), 0);
        assert!(std::fs::File::open("/proc/self/pagemap").is_err());
    };
    // SAFETY: this process's own memory, which stays as it is while it is marked.
    let kept = child_keeps(at, raw.len, drop_privileges, || unsafe {
        mark(at, raw.len).unwrap();
        offer_now(at, raw.len).unwrap();
        assert_eq!(unmark(at, raw.len), Ok(Outcome::Intact));
        assert!((0..64).all(|i| raw.byte(i) == 8));
        (0..64).for_each(|i| raw.set(i, 9));
    });
    assert!(kept, "a range that the child has not marked");
}
