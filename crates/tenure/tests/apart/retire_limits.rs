//! Limits: after a retire a program may do all that it may do after munmap.

use crate::promise_kit::never_offer;
use crate::retire_kit::*;
use rustix::io::Errno;
use std::time::{Duration, Instant};
use tenure::retire::{self, Settings, Way};
use tenure::{lock, volatile, Mapping};
use tenure_testkit::map_count::Filler;
use tenure_testkit::seccomp::{Call, Filter};
use tenure_testkit::{
    as_nobody, in_child, or_skip, run_child, skip, sweep, this_test, Deadline, MemoryCgroup,
    Unavailable,
};

fn limit(resource: u32, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the kernel reads the limit, which outlives the call.
    assert_eq!(unsafe { libc::setrlimit(resource as _, &limit) }, 0);
}

#[test]
fn address_space_is_there_again_at_once() {
    in_child(this_test!(), &[], || {
        ready();
        let len = 256 * MIB;
        unmap(written(len), len).unwrap();
        drain();
        limit(libc::RLIMIT_AS as _, status("VmSize:") + len as u64 + len as u64 / 2);
        for _ in 0..5 {
            let at = try_map(len, RW, PRIVATE, -1).expect("the last one is gone");
            touch(at, len);
            assert_eq!(unmap(at, len), Ok(Way::InSlices));
        }
    });
}

#[test]
fn locks_are_not_charged_for_what_is_gone() {
    in_child(this_test!(), &[], || {
        ready();
        or_skip!(as_nobody());
        let len = 6 * MIB;
        limit(libc::RLIMIT_MEMLOCK as _, len as u64);
        for round in 0..20 {
            let at = written(len);
            // SAFETY: the range is a mapping of this test's own. A lock changes no contents.
            let done = unsafe { libc::mlock(at as *const _, len) };
            assert_eq!(done, 0, "round {round}: the last lock is still charged");
            assert_eq!(unmap(at, len), Ok(Way::InSlices));
        }
        // Unlocked memory is still moved.
        assert_eq!(unmap(written(len), len), Ok(Way::Moved));
        drain();
    });
}

/// No limit is set while it is unmapped; the program may set one right after.
#[test]
fn no_lock_is_charged_when_the_call_returns() {
    in_child(this_test!(), &[], || {
        ready();
        let len = 64 * MIB;
        for _ in 0..8 {
            let at = written(len);
            // SAFETY: the range is a mapping of this test's own. A lock changes no contents.
            if unsafe { libc::mlock(at as *const _, len) } != 0 {
                skip!("{len} bytes may not be locked");
            }
            assert_eq!(status("VmLck:"), len as u64);
            // From the middle, too: the rest stays locked.
            assert_eq!(unmap(at + MIB, len - MIB), Ok(Way::InSlices));
            assert_eq!(status("VmLck:"), MIB as u64);
            unmap(at, MIB).unwrap();
            assert_eq!(status("VmLck:"), 0);
        }
        assert_eq!(retire::pending().bytes, 0);
    });
}

/// The body of a test at the limit of mappings. `hidden`: the program keeps its memory out of core
/// dumps. `false`: a thread of tenure's had a mapping more, which it has given back since.
fn is_refused_at_the_limit(hidden: bool) -> Result<bool, Unavailable> {
    // Apart from each other, or they would be one mapping.
    let place = try_map(256 * MIB, libc::PROT_NONE, PRIVATE, -1).unwrap();
    let (at, whole) = (place + 16 * MIB, place + 128 * MIB);
    for start in [at, whole] {
        // SAFETY: parts of a mapping of this test's own.
        unsafe {
            libc::mprotect(start as *mut _, 64 * MIB, RW);
            if hidden {
                libc::madvise(start as *mut _, 64 * MIB, libc::MADV_DONTDUMP);
            }
        }
        touch(start, 64 * MIB);
    }
    // Before the limit is reached, because the first mark makes mappings of its own.
    // SAFETY: the mapping stays as it is until it is unmarked below.
    unsafe { volatile::mark(at as *mut u8, 64 * MIB).unwrap() };
    let filler = Filler::to_limit()?;
    // The middle of a mapping would make one more.
    let refused = unmap(at + 16 * MIB, 16 * MIB);
    if refused.is_ok() {
        assert_gone(at + 16 * MIB, 16 * MIB);
    } else {
        assert_eq!(refused, Err(libc::ENOMEM));
        assert!(volatile::is_volatile((at + 16 * MIB) as *const u8, 16 * MIB));
        // SAFETY: the range was marked above, and the mapping is as it was.
        let outcome = unsafe { volatile::unmark(at as *mut u8, 64 * MIB) }.unwrap();
        assert_eq!(outcome, volatile::Outcome::Intact);
        for page in (at..at + 64 * MIB).step_by(PAGE) {
            // SAFETY: the word is aligned, and its page was not lost.
            assert_eq!(unsafe { (page as *const u64).read_volatile() }, page as u64);
        }
        // A whole one, and one from its end: no kernel needs another mapping for these.
        assert!(unmap(at + 32 * MIB, 32 * MIB).is_ok());
        assert_gone(at + 32 * MIB, 32 * MIB);
        assert!(unmap(whole, 64 * MIB).is_ok());
        assert_gone(whole, 64 * MIB);
        drain();
    }
    drop(filler);
    unmap(place, 256 * MIB).unwrap();
    drain();
    Ok(refused.is_err())
}

fn fails_at_the_limit(test: &'static str, hidden: bool) {
    in_child(test, &[], || {
        ready();
        // The worker would watch the range piece by piece: for a moment these are mappings.
        never_offer();
        for _ in 0..20 {
            if or_skip!(is_refused_at_the_limit(hidden)) {
                return;
            }
        }
        panic!("the kernel has more mappings than its limit");
    });
}

#[test]
fn at_the_limit_of_mappings_it_fails_as_munmap_does_and_no_sooner() {
    fails_at_the_limit(this_test!(), false);
}

#[test]
fn at_the_limit_of_mappings_it_also_fails_for_memory_kept_out_of_core_dumps() {
    fails_at_the_limit(this_test!(), true);
}

#[test]
fn tenures_own_locks_wait_for_a_teardown() {
    in_child(this_test!(), &[], || {
        // Only the worker, which inherits the filter, cannot give anything back: this thread must.
        let keeper = std::thread::spawn(|| {
            let munmap = Call::Number(libc::SYS_munmap);
            let filter = Filter::new().refuse(munmap, Errno::NOMEM);
            filter.install_this_thread().expect("a seccomp filter needs no rights");
            ready();
        });
        keeper.join().unwrap();
        let len = 256 * MIB;
        // SAFETY: asks for the effective user.
        if unsafe { libc::geteuid() } != 0 {
            skip!("to have hidden memory locked, no limit may hold, and then one must");
        }
        assert_eq!(unmap(written(len), len), Ok(Way::Moved));
        // Locked while it waits, as by an mlockall meanwhile.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(hidden) = maps.lines().find(|line| line.ends_with("[anon:tenure: retired]"))
        else {
            skip!("the kernel shows no names of anonymous memory");
        };
        let start = usize::from_str_radix(hidden.split('-').next().unwrap(), 16).unwrap();
        // SAFETY: locks mapped pages; no contents change.
        assert_eq!(unsafe { libc::mlock(start as *const _, len) }, 0);
        let few = 4 * MIB;
        limit(libc::RLIMIT_MEMLOCK as _, few as u64);
        or_skip!(as_nobody());
        let map = Mapping::anonymous(few).unwrap();
        // With all of the 256 MiB still charged.
        assert_eq!(retire::pending().bytes, len as u64);
        let guard = lock::lock(map.as_ptr(), few, lock::When::OnFault).unwrap();
        assert_eq!((guard.len(), status("VmLck:")), (few, few as u64));
        assert!(tenure::stats().total.retire_helped_bytes > 0, "{:?}", tenure::stats());
    });
}

#[test]
fn whoever_is_refused_memory_does_not_wait_for_what_cannot_be_torn_down() {
    in_child(this_test!(), &[], || {
        // The worker's thread has the filter too.
        let munmap = Call::Number(libc::SYS_munmap);
        let filter = Filter::new().refuse(munmap, Errno::NOMEM);
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        ready();
        for _ in 0..3 {
            assert_eq!(unmap(written(40 * MIB), 40 * MIB), Ok(Way::Moved));
        }
        assert!(retire::pending().bytes > 0);
        let deadline = Deadline::after(Duration::from_secs(20));
        // As much as the whole address space.
        assert!(Mapping::anonymous(1 << 47).is_err());
        assert!(!deadline.is_over());
        assert_eq!(retire::pending().bytes, 120 << 20);
    });
}

#[test]
fn the_bound_on_what_waits_is_kept_by_the_caller() {
    in_child(this_test!(), &[], || {
        ready();
        let settings = Settings::default().with_min_bytes(MIB).with_pending_max(64 << 20);
        retire::configure(settings);
        for _ in 0..4 {
            let at = written(512 * MIB);
            assert_eq!(unmap(at, 512 * MIB), Ok(Way::Moved));
            let pending = retire::pending();
            assert!(pending.bytes <= 64 << 20, "{pending:?}");
        }
        assert!(tenure::stats().total.retire_helped_bytes > 0);
        drain();
    });
}

/// Retires 60 % of the group's limit and touches as much new memory, again and again.
#[test]
fn a_cgroup_does_not_kill_for_a_teardown_that_lags() {
    let group = or_skip!(MemoryCgroup::create("retire", 1 << 30));
    let directory = group.path().to_str().unwrap().to_owned();
    let result = run_child(this_test!(), &[("RETIRE_GROUP", &directory)], || {
        let directory = std::env::var("RETIRE_GROUP").unwrap();
        std::fs::write(format!("{directory}/cgroup.procs"), "0").unwrap();
        ready();
        let len = 614 * MIB;
        let (mut caller, start) = (Duration::ZERO, Instant::now());
        let mut at = written(len);
        let times = sweep(4, 12);
        for _ in 0..times {
            let began = Instant::now();
            assert_eq!(unmap(at, len), Ok(Way::Moved));
            caller += began.elapsed();
            at = written(len);
        }
        unmap(at, len).unwrap();
        drain();
        println!("{times} times: {:?} in retires of {:?}", caller, start.elapsed());
        println!("{:?}", tenure::stats().total.retire_helped_bytes);
    });
    println!("{}", result.output);
    assert!(result.finished(), "{}: {}", result.status, result.output);
    assert_eq!(group.oom_kills(), 0);
}
