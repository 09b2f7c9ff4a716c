//! Populating and discarding beside a program's other work: panics, other waiters, other
//! namespaces, sandboxes that close later, partly locked memory.

use crate::raw::{fill_with_zeros, watch, Raw, Touch, ANONYMOUS, MIB, PAGE, READ_WRITE};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use tenure::populate::{discard, Access, Populate};
use tenure::ErrorKind;
use tenure_testkit::map_count::{Filler, MapCountLimit};
use tenure_testkit::pages::{present_pages, rss};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{or_skip, run_child, skip, this_test, Deadline};

/// A callback's panic ends the populate: the code that catches it may unmap the range.
#[test]
fn a_panic_of_the_watcher_ends_the_populate() {
    let result = run_child(this_test!(), &[], || {
        let raw = Raw::try_map(2048 * MIB, READ_WRITE, ANONYMOUS, -1).unwrap();
        let asked = Populate::new(raw.ptr(), raw.len, Access::Write);
        std::panic::set_hook(Box::new(|_| {}));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = asked.run_with(Duration::from_millis(1), |_| panic!("seen enough"));
        }));
        assert!(panicked.is_err());
        let then = rss();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(rss().saturating_sub(then) / (4 * MIB as u64), 0, "it goes on without an owner");
        let is_populating = |task: std::io::Result<std::fs::DirEntry>| {
            let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
            name.is_ok_and(|name| name.starts_with("tenure-populate"))
        };
        let deadline = Deadline::after(Duration::from_secs(10));
        while std::fs::read_dir("/proc/self/task").unwrap().any(is_populating) {
            assert!(!deadline.is_over(), "a thread stays");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// Whether a thread of this process sleeps in the kernel. 0: none.
fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| stat.contains(") S "))
}

/// A touched page may hold a word on which another thread sleeps.
#[test]
fn a_touch_wakes_nobody() {
    let result = run_child(this_test!(), &[], || {
        let raw = Raw::anonymous(4);
        raw.set(0, 0);
        let (woken, sleeper) = (AtomicBool::new(false), AtomicI32::new(0));
        let word = raw.start;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleeper.store(rustix::thread::gettid().as_raw_pid(), Ordering::SeqCst);
                // SAFETY: a mapped, aligned word that no thread changes.
                let done = unsafe {
                    let none = std::ptr::null::<libc::timespec>();
                    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                    libc::syscall(libc::SYS_futex, word, wait, 0, none)
                };
                woken.store(true, Ordering::SeqCst);
                assert_eq!(done, 0);
            });
            let deadline = Deadline::after(Duration::from_secs(60));
            while !sleeps(sleeper.load(Ordering::SeqCst)) && !deadline.is_over() {
                std::thread::sleep(Duration::from_millis(100));
            }
            Filter::new()
                .refuse(Call::Madvise(libc::MADV_POPULATE_WRITE), Errno::INVAL)
                .install_this_thread()
                .expect("a seccomp filter needs no rights");
            Populate::new(raw.ptr(), raw.len, Access::Write).run().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let early = woken.load(Ordering::SeqCst);
            while !woken.load(Ordering::SeqCst) {
                // SAFETY: a mapped, aligned word that no thread changes.
                unsafe {
                    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
                    libc::syscall(libc::SYS_futex, word, wake, i32::MAX);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!early, "the touch woke a thread that waited on the page's first word");
        });
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// A process's number does not identify it: the first process of a container may make another first
/// one.
#[test]
fn a_child_with_its_parents_number_is_not_kept_waiting() {
    let result = run_child(this_test!(), &[], || {
        // SAFETY: the call takes a flag only, and concerns children to come.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            skip!("no pid namespace can be made: {}", std::io::Error::last_os_error());
        }
        // SAFETY: this process has no other threads that hold locks; the children leave by _exit.
        let outer = unsafe { libc::fork() };
        if outer == 0 {
            let raw = Raw::try_map(8192 * MIB, READ_WRITE, ANONYMOUS, -1).unwrap();
            let background = loop {
                let asked = Populate::new(raw.ptr(), raw.len, Access::Write);
                let background = asked.deadline(Duration::from_millis(300)).start().unwrap();
                while background.progress().populated == 0 && !background.is_finished() {}
                // On a busy machine its time may be over before its threads have begun.
                if !background.is_finished() {
                    break background;
                }
            };
            // SAFETY: this process has no other threads that hold locks, and the child leaves by
            // _exit.
            let inner = unsafe {
                assert_eq!(libc::unshare(libc::CLONE_NEWPID), 0);
                libc::fork()
            };
            if inner == 0 {
                let own = std::process::id();
                drop(background);
                // SAFETY: ends the child at once, without the parent's exit handlers.
                unsafe { libc::_exit(if own == 1 { 7 } else { 8 }) };
            }
            let mut status = 0;
            // SAFETY: waits for the child just made, into a local. As the first process of its
            // namespace it would sleep through an alarm.
            unsafe {
                for _ in 0..3000 {
                    if libc::waitpid(inner, &mut status, libc::WNOHANG) == inner {
                        break;
                    }
                    libc::usleep(10_000);
                }
                libc::kill(inner, libc::SIGKILL);
                libc::_exit(if status == 7 << 8 { 7 } else { 1 });
            }
        }
        let mut status = 0;
        // SAFETY: waits for a child of this process, and writes a local.
        assert_eq!(unsafe { libc::waitpid(outer, &mut status, 0) }, outer);
        assert_eq!(status, 7 << 8, "the child waited for threads that it does not have");
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// Programs populate first and close their sandbox afterwards.
#[test]
fn a_sandbox_that_is_closed_later_is_noticed() {
    let result = run_child(this_test!(), &[], || {
        let raw = Raw::anonymous(4 * MIB / PAGE);
        let half = raw.len / 2;
        let asked = |from: usize, access| Populate::new(raw.ptr().wrapping_add(from), half, access);
        asked(0, Access::Write).run().unwrap();
        asked(0, Access::Read).run().unwrap();
        Filter::new()
            .refuse(Call::Madvise(libc::MADV_POPULATE_READ), Errno::PERM)
            .refuse(Call::Madvise(libc::MADV_POPULATE_WRITE), Errno::PERM)
            .install_this_thread()
            .expect("a seccomp filter needs no rights");
        asked(half, Access::Write).run().unwrap();
        asked(half, Access::Read).run().unwrap();
        assert!(raw.present().iter().all(|there| *there));
        let large = Raw::anonymous(64 * MIB / PAGE);
        Populate::new(large.ptr(), large.len, Access::Write).threads(2).run().unwrap();
        assert!(large.present().iter().all(|there| *there));
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// All of it or nothing, also if the second of two mappings is locked.
#[test]
fn nothing_is_discarded_beside_what_is_locked() {
    let raw = Raw::anonymous(8);
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the second half of this test's own mapping, mapped anew.
    let at = unsafe { libc::mmap(raw.page(4) as *mut _, 4 * PAGE, READ_WRITE, shared, -1, 0) };
    assert_eq!(at as usize, raw.page(4));
    (0..8).for_each(|page| raw.set(page, 9));
    // SAFETY: the page is inside the mapping. A lock changes no contents.
    assert_eq!(unsafe { libc::mlock(raw.page(7) as *const _, PAGE) }, 0);
    // SAFETY: nothing refers to the memory.
    let error = unsafe { discard(raw.start as *mut u8, raw.len) }.unwrap_err();
    println!("{error}");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Locked, libc::EINVAL));
    let bytes: Vec<u8> = (0..8).map(|page| raw.byte(page)).collect();
    assert_eq!(bytes, [9; 8], "something is gone");
    assert_eq!(present_pages(raw.start, raw.len), [true; 8]);
    // SAFETY: the mapping is this test's own, and nothing refers to the memory.
    unsafe {
        assert_eq!(libc::munlock(raw.page(7) as *const _, PAGE), 0);
        discard(raw.start as *mut u8, raw.len).unwrap();
    }
    assert!((0..8).all(|page| raw.byte(page) == 0));
}

/// Many parts of one mapping, each populated and discarded. The advice for huge pages splits it,
/// and the program needs mappings for other things as well.
#[test]
fn many_parts_of_a_mapping_leave_mappings_to_the_program() {
    let result = run_child(this_test!(), &[], || {
        let limit = or_skip!(MapCountLimit::reachable());
        let most = limit.mappings;
        let parts = most / 8;
        let raw = Raw::try_map(parts * 4 * MIB, READ_WRITE, ANONYMOUS, -1).unwrap();
        let first = raw.start.next_multiple_of(2 * MIB);
        let fill = |at: usize| Populate::new(at as *const u8, 2 * MIB, Access::Write).run();
        for i in 0..parts - 1 {
            let at = first + i * 4 * MIB;
            fill(at).unwrap();
            // SAFETY: the memory is this test's alone, and its contents are not needed any more.
            unsafe { discard(at as *mut u8, 2 * MIB) }.unwrap();
        }
        let count = tenure_testkit::pages::map_count();
        println!("{count} mappings of {most}");
        assert!(count <= most / 8 + 64, "{count} of {most}");
        // The populated pages are still there.
        let last = first + (parts - 2) * 4 * MIB;
        fill(last).unwrap();
        assert!(present_pages(last, 2 * MIB).iter().all(|there| *there));
        // Whole mappings cost nothing, and are advised like before.
        let whole = Raw::try_map(2 * MIB, READ_WRITE, ANONYMOUS, -1).unwrap();
        let advised = |at| tenure_testkit::pages::smaps_of(at).unwrap().has_flag("hg");
        if advised(first) && whole.start % (2 * MIB) == 0 {
            fill(whole.start).unwrap();
            assert!(advised(whole.start));
        }
        assert!(!advised(last));
    });
    println!("{}", result.output);
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// There the kernel returns "try again" for advice.
#[test]
fn at_the_bound_on_mappings_a_populate_ends() {
    let result = run_child(this_test!(), &[], || {
        let raw = Raw::try_map(16 * MIB, READ_WRITE, ANONYMOUS, -1).unwrap();
        let first = raw.start.next_multiple_of(2 * MIB);
        let fill = |at: usize| Populate::new(at as *const u8, 2 * MIB, Access::Write).run();
        fill(first).unwrap();
        // No thread can be started later.
        let (begin, begun) = std::sync::mpsc::channel();
        let (send, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // It has started: it has mapped its signal stack.
            send.send(true).unwrap();
            begun.recv().unwrap();
            send.send(fill(first + 6 * MIB).is_ok())
        });
        assert!(ended.recv().unwrap());
        let _filler = or_skip!(Filler::to_limit());
        begin.send(()).unwrap();
        assert!(ended.recv().unwrap());
        assert!(present_pages(first + 6 * MIB, 2 * MIB).iter().all(|there| *there));
    });
    println!("{}", result.output);
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

static CHILD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn fork_now(_: libc::c_int) {
    // SAFETY: the child returns from the handler, and only waits and ends after that.
    CHILD.store(unsafe { libc::fork() }, Ordering::SeqCst);
}

/// The handler's child is in the midst of the wait, and has no thread that would end it.
#[test]
fn a_handler_may_fork_in_the_midst_of_a_wait() {
    let result = run_child(this_test!(), &[], || {
        // A populate that takes longer than the timer: its threads wait for a page's bytes.
        let raw = Raw::anonymous(16);
        let watched = match watch(&raw, 0, 16, Touch::Waits) {
            Ok(watched) => watched,
            Err(reason) => skip!("{reason}"),
        };
        for end in [0, 1] {
            let behind = Populate::new(raw.ptr(), raw.len, Access::Write).start().unwrap();
            CHILD.store(-1, Ordering::SeqCst);
            // SAFETY: the handler is a function that lives for ever; asks for the thread's own name.
            let waiter = unsafe {
                libc::signal(libc::SIGALRM, fork_now as *const () as usize);
                libc::pthread_self()
            };
            let parent = std::process::id();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    // SAFETY: the thread waits until the pages are filled.
                    unsafe { libc::pthread_kill(waiter, libc::SIGALRM) };
                    while CHILD.load(Ordering::SeqCst) < 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    std::thread::sleep(Duration::from_millis(50));
                    fill_with_zeros(&watched, &raw);
                });
                // Its threads begin, so that an end must wait for them.
                std::thread::sleep(Duration::from_millis(50));
                match end {
                    0 => drop(behind),
                    _ => drop(behind.wait()),
                }
                while CHILD.load(Ordering::SeqCst) < 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if std::process::id() != parent {
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(0) };
                }
            });
            let (child, start) = (CHILD.load(Ordering::SeqCst), std::time::Instant::now());
            let mut status = -1;
            // SAFETY: asks about the child made above.
            while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
                if start.elapsed() > Duration::from_secs(20) {
                    // SAFETY: ends the child made above.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(status, 0, "the child hung in its end {end}");
            raw.advise(0, 16, libc::MADV_DONTNEED).unwrap();
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
