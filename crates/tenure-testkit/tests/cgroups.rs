//! Memory cgroups and competitors: limits have effect, and nothing is left behind.

use std::time::Duration;
use tenure_testkit::competitor::Refused;
use tenure_testkit::{
    as_nobody, in_child, or_skip, pages, run_child, this_test, Competitor, MemoryCgroup,
};

const MIB: u64 = 1 << 20;

#[test]
fn memory_of_a_competitor_is_charged_to_its_group_and_given_back() {
    let group = or_skip!(MemoryCgroup::create("charged", 128 * MIB));
    assert_eq!(group.limit().unwrap(), 128 * MIB);
    let mut competitor = or_skip!(Competitor::spawn(Some(&group)));
    assert_eq!(group.procs(), [competitor.pid()]);
    let took = competitor.need(64 * MIB).unwrap();
    assert!(took > Duration::ZERO);
    assert_eq!(competitor.held(), 64 * MIB);
    assert!(pages::rss_of(competitor.pid()) >= 64 * MIB);
    assert!(group.usage() >= 64 * MIB, "usage {}", group.usage());
    assert!(group.anon() >= 63 * MIB, "anon {}", group.anon());
    if let Some(peak) = group.peak() {
        assert!(peak >= 64 * MIB, "peak {peak}");
    }
    competitor.release().unwrap();
    assert!(pages::rss_of(competitor.pid()) < 32 * MIB);
    assert!(group.usage() < 32 * MIB, "usage {}", group.usage());
    assert_eq!(group.oom_kills(), 0);
    assert!(competitor.status().is_none());
}

#[test]
fn a_competitor_makes_the_kernel_take_lazily_freed_pages() {
    in_child(this_test!(), &[], || {
        let group = or_skip!(MemoryCgroup::create("taken", 96 * MIB));
        let mut competitor = or_skip!(Competitor::spawn(Some(&group)));
        group.enter_self().unwrap();
        let (memory, len) = (vec![7u8; 48 << 20], 48 << 20);
        let start = (memory.as_ptr() as usize).next_multiple_of(4096);
        let range = start..start + len - 4096;
        let present =
            || pages::present_pages(range.start, range.len()).into_iter().filter(|p| *p).count();
        let all = present();
        assert_eq!(all, range.len() / 4096);
        // SAFETY: within the vector's buffer, which is never read again.
        let freed = unsafe { libc::madvise(start as *mut _, range.len(), libc::MADV_FREE) };
        assert_eq!((freed, present()), (0, all));
        // More than is left beside this test's memory, less than the limit.
        competitor.need(72 * MIB).unwrap();
        let taken = (all - present()) as u64 * 4096;
        assert!(taken >= 24 * MIB, "{taken} bytes taken");
        assert_eq!((group.oom_kills(), competitor.killed_by()), (0, None));
        assert!(group.limit_hits() > 0);
        drop(competitor);
        group.leave_self().unwrap();
    });
}

#[test]
fn a_competitor_over_the_limit_is_killed_and_counted() {
    let group = or_skip!(MemoryCgroup::create("killed", 32 * MIB));
    let mut competitor = or_skip!(Competitor::spawn(Some(&group)));
    competitor.need(8 * MIB).unwrap();
    assert_eq!((group.oom_kills(), competitor.killed_by()), (0, None));
    let refused = competitor.need(64 * MIB).unwrap_err();
    assert!(matches!(refused, Refused::Died(_)), "{refused}");
    assert_eq!(competitor.killed_by(), Some(libc::SIGKILL));
    assert_eq!((group.oom_kills(), competitor.held()), (1, 0));
    assert!(group.limit_hits() > 0);
    assert!(matches!(competitor.need(MIB), Err(Refused::Died(_))));
}

#[test]
fn a_raised_limit_makes_room() {
    let group = or_skip!(MemoryCgroup::create("raised", 32 * MIB));
    group.set_limit(128 * MIB).unwrap();
    let mut competitor = or_skip!(Competitor::spawn(Some(&group)));
    competitor.need(64 * MIB).unwrap();
    competitor.release().unwrap();
    group.set_limit(16 * MIB).unwrap();
    assert_eq!(group.limit().unwrap(), 16 * MIB);
    assert!(matches!(competitor.need(64 * MIB), Err(Refused::Died(_))));
}

#[test]
fn an_answer_can_be_awaited_in_steps() {
    let mut competitor = or_skip!(Competitor::spawn(None));
    let began = std::time::Instant::now();
    competitor.ask_need(256 * MIB);
    let mut steps = 0;
    let took = loop {
        steps += 1;
        if let Some(answer) = competitor.answer_within(Duration::from_millis(1)) {
            break answer.unwrap();
        }
    };
    let all = began.elapsed();
    assert!(all >= Duration::from_millis(1) * (steps - 1), "{all:?} in {steps} steps");
    assert!(took <= all, "{took:?} of {all:?}");
    assert_eq!(competitor.held(), 256 * MIB);
}

#[test]
fn a_dropped_competitor_is_gone() {
    let competitor = or_skip!(Competitor::spawn(None));
    let proc = format!("/proc/{}", competitor.pid());
    assert!(std::fs::exists(&proc).unwrap());
    drop(competitor);
    assert!(!std::fs::exists(&proc).unwrap());
}

#[test]
fn a_competitor_outlives_neither_its_parent_nor_a_kill_of_it() {
    let result = run_child(this_test!(), &[], || {
        let competitor = or_skip!(Competitor::spawn(None));
        println!("competitor={};", competitor.pid());
        // SAFETY: a signal to this very process, which is the test's own child.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    assert_eq!(result.signal(), Some(libc::SIGKILL));
    let pid = result.output.split("competitor=").nth(1).and_then(|rest| rest.split(';').next());
    let proc = format!("/proc/{}/cmdline", pid.expect("the child has printed it"));
    for _ in 0..600 {
        // A zombie that init has yet to reap has an empty command line.
        if std::fs::read(&proc).unwrap_or_default().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{proc} is still there");
}

#[test]
fn a_competitor_shares_no_page_with_us() {
    let ours = vec![1u8; 64 << 20];
    let mut competitor = or_skip!(Competitor::spawn(None));
    competitor.need(MIB).unwrap();
    let start = (ours.as_ptr() as usize).next_multiple_of(4096);
    let entries = pages::pagemap(start, 63 << 20).unwrap();
    assert!(entries.iter().all(|e| e.present() && e.exclusive()));
}

#[test]
fn a_process_enters_and_leaves_and_the_group_is_removed() {
    in_child(this_test!(), &[], || {
        let group = or_skip!(MemoryCgroup::create("entered", 256 * MIB));
        let path = group.path().to_owned();
        group.enter_self().unwrap();
        assert_eq!(group.procs(), [std::process::id()]);
        let before = group.usage();
        let memory = vec![7u8; 32 << 20];
        assert!(group.usage() >= before + 31 * MIB, "{before} then {}", group.usage());
        drop(memory);
        group.leave_self().unwrap();
        assert_eq!(group.procs(), []);
        // Dropping the group also moves this process out.
        group.enter_self().unwrap();
        drop(group);
        assert!(!path.exists());
    });
}

#[test]
fn what_a_dead_process_leaves_is_swept() {
    let result = run_child(this_test!(), &[], || {
        let group = or_skip!(MemoryCgroup::create("left", 64 * MIB));
        println!("group={};", group.path().display());
        std::mem::forget(group);
    });
    assert!(result.finished(), "{}", result.output);
    let Some(path) = result.output.split("group=").nth(1).and_then(|rest| rest.split(';').next())
    else {
        return; // The child has recorded why it could not make a group.
    };
    // Another test's first group may have swept it already.
    MemoryCgroup::sweep().unwrap();
    assert!(!std::path::Path::new(path).exists(), "{path}");
}

#[test]
fn a_living_process_keeps_its_group_when_another_sweeps() {
    let group = or_skip!(MemoryCgroup::create("kept", 64 * MIB));
    MemoryCgroup::sweep().unwrap();
    assert!(group.path().exists());
}

#[test]
fn without_privilege_the_reason_is_named() {
    in_child(this_test!(), &[], || {
        or_skip!(as_nobody());
        let mut competitor = or_skip!(Competitor::spawn(None));
        competitor.need(MIB).unwrap();
        match MemoryCgroup::create("refused", 64 * MIB) {
            Ok(group) => assert!(group.limit().unwrap() == 64 * MIB),
            Err(e) => assert!(e.reason().contains("cgroup"), "{e}"),
        }
    });
}
