//! Page checks, leak accounting, skips, children and zram swap.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use tenure_testkit::leak::LeakCheck;
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{
    as_nobody, in_child, or_skip, page_out, pages, run_child, skip, this_test, MemoryCgroup,
};

const PAGE: usize = 4096;

fn map(len: usize) -> *mut u8 {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a mapping at an address of the kernel's choice touches nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn advise(at: *mut u8, len: usize, advice: i32) {
    // SAFETY: only called on mappings made by `map`, to which nothing refers.
    assert_eq!(unsafe { libc::madvise(at.cast(), len, advice) }, 0);
}

/// An empty file.
fn tempfile() -> OwnedFd {
    rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}

fn unmap(at: *mut u8, len: usize) {
    // SAFETY: made by `map`, and nothing refers to it.
    assert_eq!(unsafe { libc::munmap(at.cast(), len) }, 0);
}

#[test]
fn present_pages_follow_touch_and_dontneed() {
    let (at, len) = (map(8 * PAGE), 8 * PAGE);
    advise(at, len, libc::MADV_NOHUGEPAGE);
    assert_eq!(pages::present_pages(at as usize, len), [false; 8]);
    for page in [1, 3, 4] {
        // SAFETY: within the mapping made above.
        unsafe { at.add(page * PAGE).write_volatile(1) };
    }
    let want = [false, true, false, true, true, false, false, false];
    assert_eq!(pages::present_pages(at as usize, len), want);
    // SAFETY: within the mapping made above.
    advise(unsafe { at.add(3 * PAGE) }, PAGE, libc::MADV_DONTNEED);
    let want = [false, true, false, false, true, false, false, false];
    assert_eq!(pages::present_pages(at as usize, len), want);
    // Half pages count as the pages they lie in.
    assert_eq!(pages::present_pages(at as usize + PAGE + 5, PAGE), [true, false]);
    unmap(at, len);
}

#[test]
fn smaps_tells_residence_locks_and_lazy_freeing() {
    let (at, len) = (map(1024 * PAGE), 1024 * PAGE);
    // Its flag keeps the mapping from being merged with a neighbour of the same kind.
    advise(at, len, libc::MADV_DONTDUMP);
    advise(at, len, libc::MADV_NOHUGEPAGE);
    // SAFETY: the mapping made above, whole.
    unsafe { at.write_bytes(9, len) };
    let smaps = pages::smaps_of(at as usize).unwrap();
    assert_eq!((smaps.range.clone(), smaps.rss), (at as usize..at as usize + len, len as u64));
    assert!(smaps.has_flag("dd") && smaps.has_flag("nh") && !smaps.has_flag("lo"));
    assert_eq!((smaps.lazy_free, smaps.private_dirty), (0, len as u64));

    advise(at, len / 2, libc::MADV_FREE);
    let smaps = pages::smaps_of(at as usize).unwrap();
    // The kernel moves lazily freed pages in batches for each processor, so the last batch may be
    // missing.
    let (half, batch) = (len as u64 / 2, 64 * PAGE as u64);
    assert!((half - batch..=half).contains(&smaps.lazy_free), "{}", smaps.lazy_free);
    assert_eq!(smaps.rss, len as u64);
    assert!(pages::lazyfree_total() >= half - batch);

    // SAFETY: locks two pages of the mapping made above.
    if unsafe { libc::mlock(at.add(1022 * PAGE).cast(), 2 * PAGE) } == 0 {
        // The lock splits the mapping.
        let parts = pages::smaps_over(at as usize, len);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts.iter().map(|s| s.locked).sum::<u64>(), 2 * PAGE as u64);
        assert!(!parts[0].has_flag("lo") && parts[1].has_flag("lo"));
    }
    unmap(at, len);
    assert_eq!(pages::smaps_of(at as usize).filter(|s| s.has_flag("dd")), None);
}

#[test]
fn rss_and_map_count_follow_a_mapping() {
    in_child(this_test!(), &[], || {
        let len = 32 << 20;
        let (rss, maps) = (pages::rss(), pages::map_count());
        let at = map(len);
        advise(at, len, libc::MADV_DONTDUMP);
        assert_eq!(pages::map_count(), maps + 1);
        // SAFETY: the mapping made above, whole.
        unsafe { at.write_bytes(1, len) };
        let grown = pages::rss() - rss;
        assert!((len as u64..len as u64 + (1 << 20)).contains(&grown), "{grown}");
        unmap(at, len);
        assert_eq!(pages::map_count(), maps);
    });
}

#[test]
fn leaks_are_named() {
    in_child(this_test!(), &[], || {
        LeakCheck::start().finish().expect("nothing happened in between");

        let check = LeakCheck::start();
        let file = File::open("/dev/null").unwrap();
        let text = check.finish().unwrap_err();
        assert!(text.contains("descriptors") && text.contains("/dev/null"), "{text}");
        assert!(!text.contains("threads:"), "{text}");

        let check = LeakCheck::start().allow_descriptors(1);
        let _other = File::open("/dev/null").unwrap();
        check.finish().expect("one is allowed");
        drop(file);

        let check = LeakCheck::start();
        let at = map(PAGE);
        advise(at, PAGE, libc::MADV_DONTDUMP);
        let text = check.finish().unwrap_err();
        assert!(text.contains(&format!("{:x}-", at as usize)), "{text}");
        unmap(at, PAGE);

        let check = LeakCheck::start().allow_mappings(8);
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("lingering".into());
        let thread = thread.spawn(move || stopped.recv().is_err()).unwrap();
        let text = check.finish().unwrap_err();
        assert!(text.contains("threads: 1 before") || text.contains("lingering"), "{text}");
        drop(stop);
        assert!(thread.join().unwrap());

        let check = LeakCheck::start();
        std::thread::spawn(|| drop(File::open("/dev/null"))).join().unwrap();
        check.finish().expect("a joined thread is no leak");
    });
}

#[test]
fn skips_are_recorded_and_taken() {
    let path = std::env::temp_dir().join(format!("tenure-skips-test-{}", std::process::id()));
    let file = path.to_str().unwrap();
    // A file of its own, so that these two do not appear in the final list of skips. The child gets
    // the file's name from its environment, which is set for the child alone.
    let env = [("KIT_SKIP_FILE", file)];
    in_child(this_test!(), &env, || {
        // SAFETY: the harness runs this one test on one thread; nothing else reads the environment.
        unsafe {
            std::env::set_var("TENURE_TESTKIT_SKIPS", std::env::var("KIT_SKIP_FILE").unwrap())
        };
        fn quits(reached: &mut bool) {
            if !*reached {
                skip!("no {} here,\nnor there", "moon");
            }
            *reached = false;
        }
        let mut reached = false;
        quits(&mut reached);
        let in_closure = || skip!("a closure's");
        in_closure();
        reached = true;
        quits(&mut reached);
        assert!(!reached, "not skipped, so run");
        let lines = skip::take_records();
        let place = "kit::skips_are_recorded_and_taken";
        assert_eq!(
            lines,
            [format!("{place}: a closure's"), format!("{place}::quits: no moon here, nor there"),]
        );
        assert_eq!(skip::take_records(), [""; 0]);
        // The child can still write root's file after it has become another user's.
        or_skip!(as_nobody());
        (|| skip!("an ordinary user's"))();
        let kept = std::fs::read_to_string(skip::file()).unwrap();
        assert_eq!(kept, format!("{place}: an ordinary user's\n"));
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_child_that_dies_is_seen_to_die() {
    let result = run_child(this_test!(), &[("GREETING", "moin")], || {
        println!("{}", std::env::var("GREETING").unwrap());
        let empty = tempfile();
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: reading past the end of a mapped file raises SIGBUS, which is meant to end
        // this process, the test's own child.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, empty.as_raw_fd(), 0);
            at.cast::<u8>().read_volatile();
        }
    });
    assert_eq!(result.signal(), Some(libc::SIGBUS));
    assert!(!result.finished() && result.output.contains("moin"), "{}", result.output);
}

#[test]
fn a_child_that_panics_fails_the_test_with_its_words() {
    let result =
        std::panic::catch_unwind(|| in_child(this_test!(), &[], || panic!("words of the child")));
    let text = result.unwrap_err().downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("words of the child"), "{text}");
}

#[test]
fn each_child_runs_the_body_of_its_own_turn() {
    let ran = std::env::temp_dir().join(format!("tenure-turns-{}", std::process::id()));
    let ran = std::env::var_os("TURNS").map_or(ran, Into::into);
    let env = [("TURNS", ran.to_str().unwrap())];
    let note = |what: String| {
        let mut file = File::options().append(true).create(true).open(&ran).unwrap();
        file.write_all(what.as_bytes()).unwrap();
    };
    for turn in 0..3 {
        let _ = run_child(this_test!(), &[], || ());
        in_child(this_test!(), &env, || note(turn.to_string()));
    }
    let another = || in_child(this_test!(), &env, || note("another".into()));
    std::thread::scope(|scope| _ = scope.spawn(another));
    let text = std::fs::read_to_string(&ran).unwrap();
    std::fs::remove_file(&ran).unwrap();
    assert_eq!(text, "012another");
}

#[test]
#[should_panic(expected = "tell it by `env`")]
fn a_child_that_would_run_another_turns_body_is_refused() {
    for turn in 0..2 {
        let _ = run_child(this_test!(), &[], || assert_eq!(turn, 0));
    }
}

#[test]
#[should_panic(expected = "tell it by `env`")]
fn a_child_that_would_run_the_body_of_another_place_is_refused() {
    let _ = run_child(this_test!(), &[], || ());
    let _ = run_child(this_test!(), &[], || panic!("nobody runs this"));
}

#[test]
#[should_panic(expected = "the same calls in each process")]
fn a_child_that_counts_otherwise_is_refused() {
    if std::env::var_os("ONE").is_none() {
        in_child(this_test!(), &[("ONE", "1")], || panic!("nobody runs this"));
    }
    in_child(this_test!(), &[], || ());
}

#[test]
#[should_panic(expected = "asks for a child")]
fn a_body_that_asks_for_a_child_fails() {
    in_child(this_test!(), &[], || in_child(this_test!(), &[], || ()));
}

#[test]
fn a_misnamed_child_is_no_success() {
    let result = std::panic::catch_unwind(|| in_child("no_such_test", &[], || ()));
    let text = result.unwrap_err().downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("full name"), "{text}");
}

#[test]
fn nobody_is_an_ordinary_user_that_may_look_at_itself() {
    in_child(this_test!(), &[], || {
        let thread = std::thread::spawn(|| {
            or_skip!(as_nobody());
        });
        thread.join().unwrap();
        assert!(!rustix::process::geteuid().is_root());
        let here = [1u8; 64];
        assert!(pages::present_pages(here.as_ptr() as usize, 1)[0]);
        assert!(File::open("/proc/1/mem").is_err());
    });
}

#[test]
fn pages_go_to_zram_swap_and_come_back() {
    let swap = or_skip!(ZramSwap::create(32 << 20));
    assert_eq!(swap.used(), 0);
    let name = "pages_go_to_zram_swap_and_come_back";
    in_swap(name, &swap);
    let device = swap.device().to_string_lossy().into_owned();
    drop(swap);
    assert!(!std::fs::read_to_string("/proc/swaps").unwrap().contains(&device));
}

/// Every swap device with the bytes that are used in it.
fn swaps() -> Vec<(PathBuf, u64)> {
    let text = std::fs::read_to_string("/proc/swaps").unwrap();
    let fields = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.map(|f| (f[0].into(), f[3].parse::<u64>().unwrap() * 1024)).collect()
}

/// Moves pages of this process out and in again, while other tests of it run.
fn in_swap(name: &str, swap: &ZramSwap) {
    let (at, len) = (map(1 << 20), 1 << 20);
    for page in 0..len / PAGE {
        // SAFETY: within the mapping made above.
        unsafe { at.add(page * PAGE).cast::<usize>().write_volatile(page + 1) };
    }
    page_out(at as usize, len, len / PAGE / 2 - 1);
    let entries = pages::pagemap(at as usize, len).unwrap();
    let out = entries.iter().filter(|e| e.swapped()).count();
    assert!(out > len / PAGE / 2, "{out} pages of {name} went out");
    // Another program may have its own swap on, and the kernel may have put some there.
    let others = swaps().into_iter().filter(|(device, _)| *device != swap.device());
    let used = swap.used() + others.map(|(_, used)| used).sum::<u64>();
    assert!(used >= (out * PAGE) as u64, "{out} pages out, {:?}", swaps());
    assert!(pages::smaps_of(at as usize).unwrap().swap >= (out * PAGE) as u64);
    assert!(pages::present_pages(at as usize, len).into_iter().all(|p| p));
    for page in 0..len / PAGE {
        // SAFETY: within the mapping made above.
        let word = unsafe { at.add(page * PAGE).cast::<usize>().read_volatile() };
        assert_eq!(word, page + 1);
    }
    unmap(at, len);
}

#[test]
fn a_group_swaps_only_when_allowed() {
    let group = or_skip!(MemoryCgroup::create("swapless", 64 << 20));
    let file = match group.version() {
        tenure_testkit::cgroup::Version::V1 => "memory.memsw.limit_in_bytes",
        tenure_testkit::cgroup::Version::V2 => "memory.swap.max",
    };
    let Ok(shut) = std::fs::read_to_string(group.path().join(file)) else {
        skip!("this kernel has no {file}");
    };
    assert!(["0\n", "67112960\n"].contains(&shut.as_str()), "{shut}");
    group.allow_swap().unwrap();
    let open = std::fs::read_to_string(group.path().join(file)).unwrap();
    assert_ne!(open, shut);
    group.set_limit(128 << 20).unwrap();
    assert_eq!(std::fs::read_to_string(group.path().join(file)).unwrap(), open);
}
