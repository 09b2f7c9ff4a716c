//! Refused calls are refused, only the Nth fails, and counts are exact.

use std::io;
use tenure_testkit::seccomp::{
    count_syscalls, counting_syscalls, deny_all_syscalls_on_this_thread_except, Call, Denied,
    Errno, Filter, Hold, NthFailure, When,
};
use tenure_testkit::{in_child, or_skip, page_out, pages, run_child, this_test};

const LEN: usize = 64 << 10;

/// A fresh private anonymous mapping, unmapped on drop.
struct Pages(*mut libc::c_void);

impl Pages {
    fn map() -> Pages {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping at an address of the kernel's choice touches nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Pages(at)
    }

    fn fill(&self) {
        // SAFETY: the whole mapping is ours and writable.
        unsafe { self.0.cast::<u8>().write_bytes(0xA5, LEN) };
    }

    fn present(&self) -> usize {
        pages::present_pages(self.0 as usize, LEN).into_iter().filter(|p| *p).count()
    }

    fn advise(&self, advice: i32) -> Result<(), Errno> {
        // SAFETY: the advices used here change nothing but this mapping's content, which nothing
        // refers to.
        match unsafe { libc::madvise(self.0, LEN, advice) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it.
        unsafe { libc::munmap(self.0, LEN) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).expect("a system error")
}

fn ioctl_on_nothing(request: u64) -> Errno {
    // SAFETY: descriptor -1 is never open, so no memory is read or written.
    assert_eq!(unsafe { libc::ioctl(-1, request as _, 0) }, -1);
    last_error()
}

fn userfaultfd() -> Result<i32, Errno> {
    // SAFETY: makes a descriptor at most; 1 is UFFD_USER_MODE_ONLY.
    match unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } {
        -1 => Err(last_error()),
        fd => Ok(fd as i32),
    }
}

#[test]
fn refused_calls_fail_and_their_neighbours_do_not() {
    in_child(this_test!(), &[], || {
        let filter = Filter::new()
            .refuse(Call::Userfaultfd, Errno::NOSYS)
            .refuse(Call::UserfaultfdDevice, Errno::PERM)
            .refuse(Call::PagemapScan, Errno::NOTTY)
            .refuse(Call::ProcmapQuery, Errno::NXIO)
            .refuse(Call::Madvise(libc::MADV_DONTNEED), Errno::INVAL);
        or_skip!(filter.install_this_thread());
        assert_eq!(userfaultfd(), Err(Errno::NOSYS));
        assert_eq!(ioctl_on_nothing(0xAA00), Errno::PERM);
        // The kernel's own error for descriptor -1 would be EBADF.
        assert_eq!(ioctl_on_nothing(0xC060_6610), Errno::NOTTY);
        assert_eq!(ioctl_on_nothing(0xC068_6611), Errno::NXIO);
        assert_eq!(ioctl_on_nothing(0xC068_6612), Errno::BADF);
        let pages = Pages::map();
        pages.fill();
        assert_eq!(pages.advise(libc::MADV_DONTNEED), Err(Errno::INVAL));
        assert_eq!(pages.present(), LEN / 4096);
        // The system call with another advice: lazily freed pages that are paged out are gone.
        assert_eq!(pages.advise(libc::MADV_FREE), Ok(()));
        page_out(pages.0 as usize, LEN, 0);
    });
}

#[test]
fn a_filter_reaches_the_threads_it_is_meant_for() {
    in_child(this_test!(), &[], || {
        let advise = || Pages::map().advise(libc::MADV_DONTNEED);
        let (ask, asked) = std::sync::mpsc::channel();
        let (answer, answers) = std::sync::mpsc::channel();
        let older = std::thread::spawn(move || {
            while asked.recv().is_ok() {
                let _ = answer.send(advise());
            }
        });
        let in_older = || {
            ask.send(()).expect("the thread listens");
            answers.recv().expect("the thread answers")
        };
        let refuse = |e| Filter::new().refuse(Call::Madvise(libc::MADV_DONTNEED), e);
        or_skip!(refuse(Errno::PERM).install_all_threads());
        assert_eq!((advise(), in_older()), (Err(Errno::PERM), Err(Errno::PERM)));
        // ACCES over PERM: the filter that was installed last decides among equals.
        or_skip!(refuse(Errno::ACCESS).install_this_thread());
        assert_eq!((advise(), in_older()), (Err(Errno::ACCESS), Err(Errno::PERM)));
        assert_eq!(std::thread::spawn(advise).join().unwrap(), Err(Errno::ACCESS));
        drop(ask);
        older.join().unwrap();
    });
}

#[test]
fn exactly_the_nth_call_fails_and_without_effect() {
    in_child(this_test!(), &[], || {
        let calls = [Call::Madvise(libc::MADV_DONTNEED), Call::Userfaultfd];
        let nth = or_skip!(NthFailure::install(&calls, Errno::NOMEM, When::Nth(3)));
        for round in 1..=5 {
            let pages = Pages::map();
            pages.fill();
            let (result, left) = (pages.advise(libc::MADV_DONTNEED), pages.present());
            match round {
                3 => assert_eq!((result, left), (Err(Errno::NOMEM), LEN / 4096)),
                _ => assert_eq!((result, left), (Ok(()), 0), "round {round}"),
            }
        }
        assert_eq!((nth.calls(), nth.failures()), (5, 1));

        nth.rearm(When::FromNth(2));
        let dontneed = || Pages::map().advise(libc::MADV_DONTNEED);
        assert_eq!(dontneed(), Ok(()));
        // Threads started since then are watched too, and counted in one sequence. A thread's own
        // end may advise the kernel about its stack, so the result is read inside the thread.
        assert_eq!(std::thread::spawn(dontneed).join().unwrap(), Err(Errno::NOMEM));
        assert_eq!(userfaultfd(), Err(Errno::NOMEM));
        assert!(nth.calls() >= 3 && nth.failures() == nth.calls() - 1);

        nth.rearm(When::Never);
        assert_eq!((dontneed(), nth.calls(), nth.failures()), (Ok(()), 1, 0));
    });
}

#[test]
fn system_calls_are_counted_exactly() {
    let raw = |times| {
        move || {
            for _ in 0..times {
                // SAFETY: getppid has no precondition.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
        }
    };
    assert_eq!(or_skip!(count_syscalls(raw(0))), 0);
    assert_eq!(or_skip!(count_syscalls(raw(1))), 1);
    assert_eq!(or_skip!(count_syscalls(raw(1000))), 1000);
    let (sum, by_number) = or_skip!(counting_syscalls(|count| {
        let (sum, quiet) = count.of(|| (0..1_000_000u64).map(std::hint::black_box).sum::<u64>());
        assert_eq!(quiet, 0);
        let ((), loud) = count.of(raw(7));
        assert_eq!(loud, 7);
        (sum, count.by_number())
    }));
    assert_eq!(sum, 499_999_500_000);
    assert!(by_number.contains(&(libc::SYS_getppid as usize, 7)), "{by_number:?}");
}

#[test]
fn a_panic_in_a_counted_section_comes_through() {
    let result = std::panic::catch_unwind(|| count_syscalls(|| panic!("on purpose")));
    let text = result.unwrap_err().downcast_ref::<&str>().map(|s| (*s).to_owned());
    assert_eq!(text.as_deref(), Some("on purpose"));
}

#[test]
fn a_silent_section_survives_a_killing_filter() {
    let result = run_child(this_test!(), &[], || {
        let numbers = [libc::SYS_exit_group];
        or_skip!(deny_all_syscalls_on_this_thread_except(&numbers, Denied::Kill));
        let sum: u64 = (0..1_000_000u64).map(std::hint::black_box).sum();
        // SAFETY: ends the process at once, with no exit handler.
        unsafe { libc::syscall(libc::SYS_exit_group, (sum % 251) as i32) };
    });
    assert_eq!(result.status.code(), Some((499_999_500_000u64 % 251) as i32), "{}", result.output);
}

#[test]
fn a_loud_section_dies_of_a_killing_filter() {
    let result = run_child(this_test!(), &[], || {
        let numbers = [libc::SYS_exit_group];
        or_skip!(deny_all_syscalls_on_this_thread_except(&numbers, Denied::Kill));
        // SAFETY: getppid has no precondition.
        unsafe { libc::syscall(libc::SYS_getppid) };
    });
    assert_eq!(result.signal(), Some(libc::SIGSYS), "{}", result.output);
}

#[test]
fn denied_calls_can_fail_instead() {
    let result = run_child(this_test!(), &[], || {
        let numbers = [libc::SYS_exit_group];
        let denied = Denied::Errno(Errno::DOM);
        or_skip!(deny_all_syscalls_on_this_thread_except(&numbers, denied));
        // SAFETY: getppid has no precondition; exit_group ends the process at once.
        unsafe {
            let failed = libc::syscall(libc::SYS_getppid) == -1 && last_error() == Errno::DOM;
            libc::syscall(libc::SYS_exit_group, if failed { 7 } else { 8 });
        }
    });
    assert_eq!(result.status.code(), Some(7), "{}", result.output);
}

#[test]
fn a_held_call_waits_until_it_is_released_and_then_goes_on() {
    in_child(this_test!(), &[], || {
        let hold = or_skip!(Hold::install(&[Call::Madvise(libc::MADV_DONTNEED)]));
        let pages = Pages::map();
        pages.fill();
        let (at, ended) = (pages.0 as usize, std::sync::atomic::AtomicBool::new(false));
        let over = || ended.load(std::sync::atomic::Ordering::SeqCst);
        let long = std::time::Duration::from_secs(60);
        std::thread::scope(|scope| {
            hold.arm(long);
            let held = scope.spawn(|| {
                // SAFETY: the mapping's contents are not needed.
                assert_eq!(unsafe { libc::madvise(at as *mut _, LEN, libc::MADV_DONTNEED) }, 0);
                ended.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            assert!(hold.wait_until_held(long));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!over(), "it went on by itself");
            assert_eq!(pages.present(), LEN / 4096);
            // Calls of the thread that armed it, and a second one's, are not held.
            assert_eq!(Pages::map().advise(libc::MADV_DONTNEED), Ok(()));
            let other = scope.spawn(|| Pages::map().advise(libc::MADV_DONTNEED));
            hold.release();
            // Joined, so that nothing of them is left: libc discards the stack of a thread that
            // ends, which is such a call, too.
            assert_eq!(other.join().unwrap(), Ok(()));
            held.join().unwrap();
        });
        assert!(over());
        assert_eq!(pages.present(), 0, "the call was not made");
        // It ends by itself as well.
        hold.arm(std::time::Duration::from_millis(30));
        std::thread::spawn(|| assert_eq!(Pages::map().advise(libc::MADV_DONTNEED), Ok(())))
            .join()
            .unwrap();
        assert!(!hold.wait_until_held(std::time::Duration::from_millis(1)));
    });
}
