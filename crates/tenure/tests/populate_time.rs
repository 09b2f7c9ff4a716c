//! Populating against the clock: progress, deadline, cancel, background, fork, limits.

#[path = "suite/raw.rs"]
mod raw;

use raw::{Raw, ANONYMOUS, MIB, PAGE, READ_WRITE};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tenure::populate::{Access, Failed, HugePages, Limiting, Populate, Progress, Step};
use tenure::{ErrorKind, Mapping, PageSize};
use tenure_testkit::pages::{smaps_of, smaps_over};
use tenure_testkit::seccomp::{Call, Errno, NthFailure, When};
use tenure_testkit::setting::Setting;
use tenure_testkit::{or_skip, run_child, skip, this_test, Deadline, LeakCheck, MemoryCgroup};

const GIB: usize = 1 << 30;

fn room_for(bytes: u64) -> Result<(), String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| e.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = line.and_then(|l| l.trim().split(' ').next()?.parse().ok()).unwrap_or(0);
    if kib << 10 >= bytes {
        Ok(())
    } else {
        Err(format!("{kib} KiB are available, and {bytes} bytes are needed"))
    }
}

/// After an early end, the report matches the resident pages exactly.
fn ended_early(raw: &Raw, failed: &Failed, kind: ErrorKind) {
    println!("{failed}");
    assert_eq!(failed.error.kind(), kind);
    let report = &failed.report;
    let missing = report.first_missing.expect("it did not come to its end");
    assert!(report.populated < report.bytes);
    // Pieces go out in order: the pages before the first missing one are done.
    assert_eq!(missing - raw.start, report.populated as usize);
    // On a busy machine its time may be over before its threads have begun.
    if report.populated == 0 {
        return;
    }
    let edge = tenure_testkit::pages::present_pages(missing - 2 * MIB, 4 * MIB);
    assert!(edge[..512].iter().all(|there| *there), "the pages before it are there");
    // A huge page in which a piece ended would reach further; pieces end at their boundaries.
    assert!(edge[512..].iter().all(|there| !*there), "and those after it are not");
}

const EIGHT: usize = 8 * GIB;

fn eight_gib() -> Raw {
    Raw::try_map(EIGHT, READ_WRITE, ANONYMOUS, -1).unwrap()
}

/// Tests that take gigabytes run one at a time.
static LARGE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    LARGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long after its time something ended. A late end is tried again, because another process or
/// the host may have had the processor. An end that is always late is tenure's fault, unless the
/// machine stood still for most of that time.
fn within(limit: Duration, mut attempt: impl FnMut() -> Duration) {
    let mut late = Vec::new();
    let is_late = |(late, stalled): &(Duration, Duration)| *late > limit + *stalled;
    while late.len() < 8 && late.last().is_none_or(is_late) {
        let deadline = Deadline::after(limit);
        let ended = attempt();
        late.push((ended, deadline.stalled()));
    }
    println!("late by, the machine's stalls: {late:?}");
    assert!(!late.last().is_some_and(is_late), "{late:?}");
}

#[test]
fn a_deadline_ends_eight_gib_within_50_ms() {
    or_skip!(room_for(3 * GIB as u64));
    let _alone = alone();
    for huge in [HugePages::Leave, HugePages::Advise] {
        within(Duration::from_millis(50), || {
            let raw = eight_gib();
            let deadline = Duration::from_millis(100);
            let asked = Populate::new(raw.ptr(), raw.len, Access::Write).huge_pages(huge);
            let before = Instant::now();
            let failed = asked.deadline(deadline).run().unwrap_err();
            let late = before.elapsed().saturating_sub(deadline);
            ended_early(&raw, &failed, ErrorKind::TimedOut);
            assert_eq!(failed.error.errno(), libc::ETIMEDOUT);
            late
        });
    }
}

#[test]
fn a_cancel_ends_eight_gib_within_50_ms() {
    or_skip!(room_for(3 * GIB as u64));
    let _alone = alone();
    for huge in [HugePages::Leave, HugePages::Advise] {
        within(Duration::from_millis(50), || {
            let raw = eight_gib();
            let asked = Populate::new(raw.ptr(), raw.len, Access::Write).huge_pages(huge);
            let background = asked.start().unwrap();
            assert!(!background.wait_timeout(Duration::from_millis(100)));
            let before = Instant::now();
            background.cancel();
            let failed = background.wait().unwrap_err();
            let late = before.elapsed();
            ended_early(&raw, &failed, ErrorKind::Cancelled);
            assert_eq!(failed.error.errno(), libc::ECANCELED);
            late
        });
    }
}

#[test]
fn what_is_dropped_is_cancelled_and_over() {
    or_skip!(room_for(3 * GIB as u64));
    let _alone = alone();
    let raw = eight_gib();
    let background = Populate::new(raw.ptr(), raw.len, Access::Write).start().unwrap();
    while background.progress().populated == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(background);
    let there = smaps_of(raw.start).unwrap().rss;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(smaps_of(raw.start).unwrap().rss, there, "nobody goes on");
    assert!(there > 0 && there < EIGHT as u64);
}

#[test]
fn what_is_detached_goes_on() {
    let raw = Raw::anonymous(128 * MIB / PAGE);
    Populate::new(raw.ptr(), raw.len, Access::Write).start().unwrap().detach();
    let deadline = Deadline::after(Duration::from_secs(60));
    while smaps_over(raw.start, raw.len).iter().map(|s| s.rss).sum::<u64>() < raw.len as u64 {
        assert!(!deadline.is_over(), "it did not go on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn progress_never_goes_backwards() {
    // On a busy machine this thread, or a helper, may not run for most of a populate.
    assert!((0..8).any(|_| progress_is_seen()));
    // Also from another thread, for one in the background.
    let raw = Raw::anonymous(256 * MIB / PAGE);
    let background = Populate::new(raw.ptr(), raw.len, Access::Write).start().unwrap();
    let mut last = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !background.is_finished() {
                let now = background.progress().populated;
                assert!(now >= last);
                last = now;
            }
        });
    });
    assert_eq!(background.wait().unwrap().populated, raw.len as u64);
}

/// Returns whether the populate was seen on its way, with its recent rate.
fn progress_is_seen() -> bool {
    let raw = Raw::anonymous(512 * MIB / PAGE);
    let mut seen: Vec<Progress> = Vec::new();
    let report = Populate::new(raw.ptr(), raw.len, Access::Write)
        .threads(2)
        .huge_pages(HugePages::Leave)
        .run_with(Duration::from_millis(2), |progress| seen.push(*progress))
        .unwrap();
    assert_eq!((report.populated, report.threads), (raw.len as u64, 2));
    assert!(seen.windows(2).all(|w| w[0].populated <= w[1].populated), "{seen:?}");
    assert!(seen.windows(2).all(|w| w[0].elapsed <= w[1].elapsed));
    assert!(seen.iter().all(|p| p.bytes == raw.len as u64 && p.populated <= p.bytes));
    assert_eq!(seen.last().unwrap().populated, raw.len as u64);
    let last = seen.last().unwrap();
    let average = last.populated as f64 / last.elapsed.as_secs_f64();
    // The recent rate, which on a machine with other programs is not the average.
    let is_rate = last.bytes_per_second as f64 > average / 10.0;
    println!("{average} {seen:?}");
    seen.len() > 3 && is_rate && seen.iter().any(|p| p.populated > 0 && p.populated < p.bytes)
}

/// A child made by fork has none of the threads: it must neither hang nor report unknown facts.
#[test]
fn a_child_is_not_kept_waiting() {
    or_skip!(room_for(3 * GIB as u64));
    let _alone = alone();
    let result = run_child(this_test!(), &[], || {
        let mut way = 0;
        while way < 4 {
            let raw = eight_gib();
            let asked = Populate::new(raw.ptr(), raw.len, Access::Write);
            let background = asked.deadline(Duration::from_millis(400)).start().unwrap();
            while background.progress().populated == 0 && !background.is_finished() {}
            // SAFETY: the child makes only the calls under test, and leaves by _exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let right = match way {
                    0 => {
                        drop(background);
                        true
                    }
                    1 => background.wait().is_err_and(|f| f.error.kind() == ErrorKind::Cancelled),
                    2 => {
                        background.progress().bytes == EIGHT as u64
                            && background.is_finished()
                            && background.wait_timeout(Duration::from_secs(100))
                    }
                    // It may populate for itself.
                    _ => Populate::new(raw.ptr(), 64 * MIB, Access::Write).threads(2).run().is_ok(),
                };
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(if right { 0 } else { 1 }) };
            }
            // On a busy machine its time may be over before the fork: the child knows the outcome then.
            let is_early = !background.is_finished();
            let mut status = 0;
            // SAFETY: waits for the child just made, into a local.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(status == 0 || !is_early, "way {way}: {status}");
            background.cancel();
            let _ = background.wait();
            way += i32::from(is_early);
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn nothing_is_left_behind() {
    let result = run_child(this_test!(), &[], || {
        let raw = Raw::anonymous(64 * MIB / PAGE);
        let life = || {
            Populate::new(raw.ptr(), raw.len, Access::Write).threads(3).run().unwrap();
            let file = raw::memfd(4 * MIB, 0).unwrap();
            let shared = Raw::shared(&file, 4 * MIB);
            let asked = Populate::new(shared.ptr(), shared.len, Access::Write);
            asked.file(&file).unwrap().start().unwrap().wait().unwrap();
            drop(Populate::new(raw.ptr(), raw.len, Access::Write).start().unwrap());
        };
        life();
        // The C library keeps some stacks of ended threads, and memory for new ones.
        let check = LeakCheck::start().allow_mappings(12);
        (0..30).for_each(|_| life());
        // A thread that was waited for may still be ending.
        std::thread::sleep(Duration::from_millis(50));
        check.finish().unwrap();
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// Advice gives huge pages only before the first touch: the plain order, populate and then advise,
/// gives none.
#[test]
fn huge_pages_are_advised_first() {
    let map = Mapping::anonymous_with(16 * MIB, PageSize::System).unwrap();
    let start = (map.as_ptr() as usize).next_multiple_of(2 * MIB);
    let asked = Populate::new(start as *const u8, 8 * MIB, Access::Write);
    let plan = asked.plan().unwrap();
    println!("{plan}");
    if plan.parts[0].steps[0].0 != Step::AdviseHugePages {
        skip!("huge pages are not given on advice here (transparent_hugepage/enabled)");
    }
    let huge = |at: usize| smaps_over(at, 8 * MIB).iter().map(|s| s.anon_huge).sum::<u64>();
    // SAFETY: advice on the second half of a mapping of this test's own.
    unsafe {
        let plain = start as *mut _;
        assert_eq!(libc::madvise(plain, 8 * MIB, libc::MADV_POPULATE_WRITE), 0);
        assert_eq!(libc::madvise(plain, 8 * MIB, libc::MADV_HUGEPAGE), 0);
        assert_eq!(libc::madvise(plain, 8 * MIB, libc::MADV_POPULATE_WRITE), 0);
    }
    assert_eq!(huge(start), 0, "the plain order");
    let map = Mapping::anonymous(16 * MIB).unwrap();
    let start = (map.as_ptr() as usize).next_multiple_of(2 * MIB);
    Populate::new(start as *const u8, 8 * MIB, Access::Write).run().unwrap();
    if huge(start) == 0 {
        skip!("the kernel has no huge page to give");
    }
    assert_eq!(huge(start), 8 * MIB as u64);
    // A caller that wants none gets none.
    let map = Mapping::anonymous_with(16 * MIB, PageSize::Base).unwrap();
    map.populate(0, 16 * MIB, Access::Write).unwrap();
    assert_eq!(huge(map.as_ptr() as usize), 0);
    let map = Mapping::anonymous(16 * MIB).unwrap();
    let asked = Populate::new(map.as_ptr(), 16 * MIB, Access::Write);
    asked.huge_pages(HugePages::Leave).run().unwrap();
    assert_eq!(huge(map.as_ptr() as usize), 0);
}

/// Shared memory has a setting of its own, and this order applies, too.
#[test]
fn huge_pages_of_shared_memory_are_advised_first() {
    // In a child: the setting is remembered.
    let result = run_child(this_test!(), &[], || {
        let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let _setting = or_skip!(Setting::change(file, "advise"));
        let fresh = || Raw::shared(&raw::memfd(16 * MIB, 0).unwrap(), 16 * MIB);
        let huge = |raw: &Raw| {
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let after = text.split_once(&format!("{:x}-", raw.start)).unwrap().1;
            let line = after.lines().find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
        };
        let raw = fresh();
        let asked = Populate::new(raw.ptr(), raw.len, Access::Write);
        println!("{}", asked.plan().unwrap());
        asked.clone().huge_pages(HugePages::Leave).run().unwrap();
        assert_eq!(huge(&raw), 0);
        asked.clone().run().unwrap();
        assert_eq!(huge(&raw), 0, "too late");
        let other = fresh();
        Populate::new(other.ptr(), other.len, Access::Write).run().unwrap();
        assert_eq!(huge(&other), 16 * MIB);
        // SAFETY: a mapping of this test's own, without references into it.
        unsafe { tenure::populate::discard(raw.start as *mut u8, raw.len) }.unwrap();
        asked.run().unwrap();
        if huge(&raw) == 0 {
            skip!("page tables of discarded memory are kept before Linux 6.14");
        }
        assert_eq!(huge(&raw), 16 * MIB);
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// Over a cgroup's limit the kernel kills; with a check beforehand, it is an error.
#[test]
fn a_cgroup_limit_is_an_error_beforehand() {
    let with_room = |ours: bool| {
        let group = or_skip_string(MemoryCgroup::create("populate", 48 << 20))?;
        or_skip_string(group.enter_self())?;
        let raw = Raw::anonymous(128 * MIB / PAGE);
        let asked = Populate::new(raw.ptr(), raw.len, Access::Write);
        if !ours {
            println!("about to be killed");
            let _ = asked.run();
            return Ok(());
        }
        let room = asked.room().unwrap();
        println!("{room}");
        assert!(matches!(room.limiting, Limiting::Cgroup(_)), "{room:?}");
        assert!(!room.fits() && room.available <= 48 << 20 && room.needed >= 128 << 20);
        let failed = asked.within_room(true).run().unwrap_err();
        println!("{failed}");
        assert_eq!(failed.error.errno(), libc::ENOMEM);
        assert_eq!(failed.report.populated, 0);
        assert!(raw.present().iter().all(|there| !there), "nothing was begun");
        let less = Populate::new(raw.ptr(), 16 * MIB, Access::Write).within_room(true);
        assert_eq!(less.run().unwrap().populated, 16 * MIB as u64);
        or_skip_string(group.leave_self())
    };
    let plain = run_child(this_test!(), &[("TENURE_OURS", "0")], || {
        let ours = std::env::var("TENURE_OURS").as_deref() == Ok("1");
        if let Err(reason) = with_room(ours) {
            println!("cannot: {reason}");
        }
    });
    if let Some((_, reason)) = plain.output.split_once("cannot: ") {
        skip!("{reason}");
    }
    assert_eq!(plain.signal(), Some(libc::SIGKILL), "{}", plain.output);
    let ours = run_child(this_test!(), &[("TENURE_OURS", "1")], || {});
    assert!(ours.finished(), "{}\n{}", ours.status, ours.output);
    println!("{}", ours.output);
    let _ = MemoryCgroup::sweep();
}

/// Without /proc nothing can be looked up; the pages are still populated.
#[test]
fn without_proc() {
    or_skip!(tenure_testkit::seccomp::may_call("chroot"));
    // Not in the child: it would make one of its own, and ends without destructors.
    let place = std::env::var_os("TENURE_PLACE").is_none().then(|| raw::Place::new("no-proc"));
    let path = place.as_ref().map_or("", |place| place.path.to_str().unwrap());
    let result = run_child(this_test!(), &[("TENURE_PLACE", path)], || {
        // The first reading of smaps decides nothing for later.
        let raws = [Raw::anonymous(64 * MIB / PAGE), Raw::anonymous(16)];
        raws[1].protect(5, libc::PROT_READ);
        let there = std::fs::File::open("/proc/self/pagemap").unwrap();
        let path = std::ffi::CString::new(std::env::var("TENURE_PLACE").unwrap()).unwrap();
        // SAFETY: a NUL-terminated path.
        if unsafe { libc::chroot(path.as_ptr()) } != 0 {
            println!("cannot: {}", std::io::Error::last_os_error());
            return;
        }
        let run = |raw: &Raw| {
            Populate::new(raw.ptr(), raw.len, Access::Write).huge_pages(HugePages::Leave).run()
        };
        assert_eq!(run(&raws[0]).unwrap().populated, 64 * MIB as u64);
        let mut entries = vec![0; 64 * MIB / PAGE * 8];
        let at = (raws[0].start / PAGE * 8) as u64;
        std::os::unix::fs::FileExt::read_exact_at(&there, &mut entries, at).unwrap();
        assert!(entries.chunks(8).all(|entry| entry[7] & 0x80 != 0), "every page is there");
        let failed = run(&raws[1]).unwrap_err();
        println!("{failed}");
        assert_eq!(failed.report.first_missing, Some(raws[1].page(5)));
        assert!(failed.to_string().contains("/proc"), "{failed}");
    });
    if let Some((_, reason)) = result.output.split_once("cannot: ") {
        skip!("chroot: {reason}");
    }
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

fn or_skip_string<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|e| e.to_string())
}

/// A call that fails once is tried again on less, and fails no more. A call that fails from there
/// on is an error, and everything before the named page is there.
fn the_nth_call_fails(test: &'static str, errno: Errno) {
    // Not for a kernel that never had it.
    if !tenure::capabilities().works("populate_write") {
        skip!("MADV_POPULATE_WRITE does not work here, so it is never called twice");
    }
    let result = run_child(test, &[], || {
        let calls = &[Call::Madvise(libc::MADV_POPULATE_WRITE)];
        let failing = NthFailure::install(calls, errno, When::Never).unwrap();
        let mut failures = 0;
        for n in [1, 2, 3, 5, 9] {
            for when in [When::Nth(n), When::FromNth(n)] {
                let raw = Raw::anonymous(24 * MIB / PAGE);
                let asked =
                    Populate::new(raw.ptr(), raw.len, Access::Write).huge_pages(HugePages::Leave);
                failing.rearm(when);
                let outcome = asked.run();
                failures += failing.failures();
                failing.rearm(When::Never);
                match (outcome, when) {
                    (Ok(report), _) => {
                        assert_eq!((report.populated, report.first_missing), (24 << 20, None));
                        assert!(raw.present().iter().all(|there| *there));
                    }
                    (Err(failed), When::FromNth(_)) => {
                        println!("{failed}");
                        assert_eq!(failed.error.errno(), errno.raw_os_error());
                        let missing = failed.report.first_missing.unwrap() - raw.start;
                        assert_eq!(missing, failed.report.populated as usize);
                        assert_eq!(raw.leading(), missing / PAGE);
                    }
                    (Err(failed), _) => panic!("one failure is none: {failed}"),
                }
            }
        }
        println!("{failures} failures");
        assert!(failures > 5);
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
    assert!(result.output.contains("first page missing"), "{}", result.output);
}

#[test]
fn the_nth_call_runs_out_of_memory() {
    the_nth_call_fails(this_test!(), Errno::NOMEM);
}

#[test]
fn the_nth_call_finds_nothing() {
    the_nth_call_fails(this_test!(), Errno::FAULT);
}
