//! SIGKILL in the middle of everything leaves nothing behind: no memory, no process, no file.

mod retire_kit;

use retire_kit::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tenure::populate::{Access, Populate};
use tenure::{lock, pool, retire, volatile, Mapping};
use tenure_testkit::{or_skip, run_child, this_test, Deadline, MemoryCgroup};

/// What a process could leave: files, and System V segments, message queues and semaphores.
fn things(temporary: &Path) -> BTreeSet<String> {
    let entries = |place: &Path| std::fs::read_dir(place).into_iter().flatten().flatten();
    let names = |place: &Path| entries(place).map(|entry| entry.path().display().to_string());
    let shared = names(Path::new("/dev/shm")).filter(|name| name.contains("tenure"));
    let ids = ["shm", "msg", "sem"].into_iter().flat_map(|kind| {
        let text = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        let id = |line: &str| line.split_whitespace().nth(1).map(|id| format!("{kind} {id}"));
        text.lines().filter_map(id).collect::<Vec<_>>()
    });
    shared.chain(names(temporary).collect::<Vec<_>>()).chain(ids).collect()
}

/// Uses every promise on several threads, until it is killed.
fn use_everything() {
    retire::prepare().unwrap();
    retire::configure(retire::Settings::default().with_min_bytes(MIB));
    pool::prepare().unwrap();
    let settings = volatile::Settings::default().with_offer_after(Duration::from_millis(1));
    volatile::configure(settings);
    let mut marked = Mapping::anonymous(64 * MIB).unwrap();
    marked.as_mut_slice().fill(1);
    // SAFETY: the mapping lives as long as the process.
    unsafe { volatile::mark(marked.as_mut_ptr(), marked.len()).unwrap() };
    let locked = Mapping::anonymous(MIB).unwrap();
    let guard = lock::lock(locked.as_ptr(), MIB, lock::When::Now).unwrap();
    let large = Mapping::anonymous(256 * MIB).unwrap();
    let background = Populate::new(large.as_ptr(), large.len(), Access::Write).start().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| loop {
            let p = pool::alloc(3 * MIB, 1, true).unwrap();
            // SAFETY: the run belongs to this thread, and is freed once.
            unsafe {
                p.as_ptr().write_bytes(1, 3 * MIB);
                pool::free(p);
            }
        });
        scope.spawn(|| loop {
            unmap(written(64 * MIB), 64 * MIB).unwrap();
        });
        scope.spawn(|| loop {
            forked(|| {
                let at = written(8 * MIB);
                i32::from(retire::prepare().is_err() || unmap(at, 8 * MIB).is_err())
            });
        });
    });
    drop((guard, background));
}

#[test]
fn sigkill_leaves_nothing() {
    let body = || {
        let round: u64 = std::env::var("KILLED_ROUND").unwrap().parse().unwrap();
        let directory = std::env::var("KILLED_GROUP").unwrap();
        std::fs::write(format!("{directory}/cgroup.procs"), "0").unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150 * round));
            // SAFETY: the call takes numbers only, and ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        use_everything();
    };
    if std::env::var_os("KILLED_ROUND").is_some() {
        run_child(this_test!(), &[], body);
    }
    let group = or_skip!(MemoryCgroup::create("killed", 2 << 30));
    let directory = group.path().to_str().unwrap().to_owned();
    let temporary = std::env::temp_dir().join(format!("tenure-killed-{}", std::process::id()));
    let of_its_own = temporary.to_str().unwrap().to_owned();
    std::fs::create_dir_all(&temporary).unwrap();
    let before = things(&temporary);
    for round in 1..=6u64 {
        let number = round.to_string();
        let env = [
            ("KILLED_GROUP", directory.as_str()),
            ("KILLED_ROUND", &number),
            ("TMPDIR", &of_its_own),
        ];
        let result = run_child(this_test!(), &env, body);
        assert_eq!(result.signal(), Some(libc::SIGKILL), "{} {}", result.status, result.output);
        // A child in the middle of its own work ends by itself.
        let deadline = Deadline::after(Duration::from_secs(60));
        while !group.procs().is_empty() {
            assert!(!deadline.is_over(), "{:?} go on", group.procs());
            std::thread::sleep(Duration::from_millis(10));
        }
        // The kernel's counts are late by a batch for each processor.
        while group.anon() >= MIB as u64 {
            assert!(!deadline.is_over(), "{} bytes stay", group.anon());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert!(group.peak().is_none_or(|peak| peak > 64 << 20), "{:?}: it did nothing", group.peak());
    // Other programs of this machine make such things, too, and remove them in time.
    let mut left = &things(&temporary) - &before;
    let deadline = Deadline::after(Duration::from_secs(60));
    while !left.is_empty() {
        assert!(!deadline.is_over(), "{left:?}");
        std::thread::sleep(Duration::from_millis(10));
        left = &left & &things(&temporary);
    }
    std::fs::remove_dir(&temporary).unwrap();
}
