//! `tenure inspect` and `tenure metrics`: they compare figures of a running process with the
//! kernel's and the process's own.

use crate::kit::{self, is_root, json, parts, AsUser};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use tenure::{pool, Volatile};
use tenure_testkit::{in_child, or_skip, this_test};

const MIB: usize = 1 << 20;

fn inspect(arguments: &[&str]) -> Output {
    kit::tenure().arg("inspect").args(arguments).output().expect("it starts")
}

fn own() -> String {
    std::process::id().to_string()
}

fn metrics(arguments: &[&str]) -> Output {
    kit::tenure().arg("metrics").args(arguments).output().expect("it starts")
}

/// The sum of a field over all mappings, in bytes.
fn smaps(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let values = text.lines().filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = |value: &str| value.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
    values.map(number).sum::<u64>() << 10
}

#[test]
fn the_figures_are_the_program_s_own_and_the_kernel_s() {
    in_child(this_test!(), &[], || {
        let found = json(&inspect(&[&own(), "--json"]));
        assert_eq!(found["tenure"], serde_json::Value::Null, "it does not use tenure yet");
        let mut buffers: Vec<Volatile> = (0..4).map(|_| Volatile::new(4 * MIB).unwrap()).collect();
        for buffer in &mut buffers {
            buffer.pin_mut().unwrap().fill(7);
        }
        let _pinned = buffers[0].pin().unwrap();
        buffers[1].offer_now().unwrap();
        assert!(buffers[2].purge_now().unwrap() > 0);
        drop(buffers[2].pin().unwrap());
        let block = pool::Buffer::zeroed(3 * MIB).unwrap();
        drop(pool::Buffer::zeroed(MIB).unwrap());
        // The worker offers marked memory: this retries until nothing changed between two readings.
        let stats = |stats: &tenure::Stats| {
            let now = tenure::stats();
            (now.offered_bytes, now.marked_bytes, now.pool_warm_bytes, now.total.keeper_rounds)
                == (
                    stats.offered_bytes,
                    stats.marked_bytes,
                    stats.pool_warm_bytes,
                    stats.total.keeper_rounds,
                )
        };
        let (expected, found, kernel) = loop {
            let before = tenure::stats();
            let found = json(&inspect(&[&own(), "--json"]));
            let kernel = ["Rss", "Size", "LazyFree"].map(smaps);
            if stats(&before) {
                break (before, found, kernel);
            }
        };
        let figures = &found["tenure"];
        for (name, value) in [
            ("ranges", expected.ranges),
            ("pinned_bytes", expected.pinned_bytes),
            ("marked_bytes", expected.marked_bytes),
            ("offered_bytes", expected.offered_bytes),
            ("pool_in_use_bytes", expected.pool_in_use_bytes),
            ("pool_warm_bytes", expected.pool_warm_bytes),
            ("pool_offered_bytes", expected.pool_offered_bytes),
        ] {
            assert_eq!(figures[name], value, "{name}: {figures:#}");
        }
        let total = &figures["total"];
        assert_eq!(total["purges"], expected.total.purges);
        assert_eq!(total["purged_bytes"], expected.total.purged_bytes);
        assert_eq!(total["pool_allocs"], expected.total.pool_allocs);
        assert!(expected.pinned_bytes >= 4 * MIB as u64 && expected.total.purges == 1);
        assert!(expected.pool_in_use_bytes == 3 * MIB as u64, "{expected:?}");
        drop(block);
        // About the kernel's figure, because the process allocates meanwhile.
        for (name, kernel) in ["resident", "size", "lazy_free"].into_iter().zip(kernel) {
            let found = found["sum"][name].as_u64().unwrap();
            assert!(found.abs_diff(kernel) <= MIB as u64, "{name}: {found}, {kernel}");
        }
        assert!(found["sum"]["lazy_free"].as_u64().unwrap() >= 4 * MIB as u64, "{found:#}");
    });
}

#[test]
fn a_pin_that_stays_counts_as_long() {
    in_child(this_test!(), &[], || {
        use std::time::Duration;
        let settings = tenure::volatile::Settings::default();
        tenure::volatile::configure(settings.with_offer_after(Duration::from_millis(20)));
        let mut buffers: Vec<Volatile> = (0..3).map(|_| Volatile::new(MIB).unwrap()).collect();
        for buffer in &mut buffers {
            buffer.pin_mut().unwrap().fill(7);
        }
        let stays = buffers[0].pin().unwrap();
        kit::until("it is pinned for long", || {
            drop(buffers[1].pin().unwrap());
            tenure::stats().pinned_long_bytes > 0
        });
        let found = json(&inspect(&[&own(), "--json"]));
        assert_eq!(found["tenure"]["pinned_long_bytes"], MIB, "{:#}", found["tenure"]);
        // The mark's age begins at 0 again, and the worker offers it when its time has come.
        drop(stays);
        assert_eq!(tenure::stats().pinned_long_bytes, 0);
        kit::until("all is offered", || tenure::stats().offered_bytes == 3 * MIB as u64);
    });
}

#[test]
fn a_child_s_figures_are_its_own() {
    in_child(this_test!(), &[], || {
        let mut buffer = Volatile::new(MIB).unwrap();
        buffer.pin_mut().unwrap().fill(1);
        let (mut ready, mut tells) = std::io::pipe().unwrap();
        // SAFETY: the child makes a buffer, writes about it to the pipe and sleeps until it is
        // killed, or ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let more: Vec<_> = (0..5).map(|_| Volatile::new(MIB).unwrap()).collect();
            let pins: Vec<_> = more.iter().map(|buffer| buffer.pin().unwrap()).collect();
            std::io::Write::write_all(&mut tells, b"x").unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
            drop(pins);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        std::io::Read::read_exact(&mut ready, &mut [0]).unwrap();
        let pinned = |pid: &str| {
            let found = json(&inspect(&[pid, "--json"]));
            found["tenure"]["pinned_bytes"].as_u64().unwrap()
        };
        let found = (pinned(&child.to_string()), pinned(&own()));
        let tree = json(&inspect(&[&own(), "--json", "--tree"]));
        // SAFETY: the child, for which this process has not waited yet, so its number is not used
        // again.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(found, (5 * MIB as u64, 0));
        assert_eq!(tree["tenure"]["pinned_bytes"], 5 * MIB);
        assert_eq!(tree["pids"].as_array().unwrap().len(), 3, "with inspect itself: {tree:#}");
    });
}

/// A process whose memory looks as if it had figures.
#[test]
fn a_page_that_lies_is_an_error() {
    in_child(this_test!(), &[], || {
        let page = rustix::param::page_size();
        let table = vec![std::ptr::null::<u64>(); 8];
        let mut words = [0u64; 20];
        let lie = |words: &[u64], table: &mut [*const u64]| {
            table[0] = words.as_ptr();
            let mut map = memmap2::MmapMut::map_anon(page).unwrap();
            map[..16].copy_from_slice(&tenure::published::MAGIC);
            for (at, value) in [(16, 56), (24, table.as_ptr() as u64), (32, table.len() as u64)] {
                map[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            }
            map[40..45].copy_from_slice(b"9.9.9");
            let map = map.make_read_only().unwrap();
            let done = inspect(&[&own()]);
            drop(map);
            parts(&done)
        };
        let mut table = table;
        // A reader ignores an unknown kind.
        words[0] = 77;
        let (code, out, _) = lie(&words, &mut table);
        assert!(code == Some(0) && out.contains("tenure 9.9.9"), "{out}");
        // The largest numbers are only shown.
        let huge = u64::MAX;
        let names = "ranges offers revivals pool.allocs pool.warm_reuses pool.offered_reuses torn_down_bytes";
        let values = [huge; 7];
        words = [0; 20];
        (words[0], words[1]) = (1, values.as_ptr() as u64);
        (words[2], words[3]) = (names.as_ptr() as u64, names.len() as u64);
        (words[4], words[5]) = (7, 1);
        let (code, out, errors) = lie(&words, &mut table);
        assert!(code == Some(0) && out.contains("  pool  "), "{out}{errors}");
        for (kind, at, names_len, numbers) in [
            (1, 8, 0, [huge, 1, 1]),
            (1, huge - 3, 0, [0, huge, huge]),
            (1, 8, 0, [0, 4096, 1 << 20]),
            (1, 8, huge, [1, 1, 1]),
            (1, 8, 4096, [1, 1, 1]),
            (2, 8, 0, [huge, huge, huge]),
            (2, huge, 0, [0, 1, 0]),
        ] {
            words = [0; 20];
            (words[0], words[1], words[3]) = (kind, at, names_len);
            words[4..7].copy_from_slice(&numbers);
            if kind == 2 && numbers[1] == 1 {
                (words[7], words[8]) = (1, 8);
            }
            let (code, out, errors) = lie(&words, &mut table);
            assert_eq!(code, Some(1), "{kind} {numbers:?}: {out}{errors}");
            assert!(!errors.contains("panicked"), "{errors}");
            assert!(out.contains("are not valid"), "{out}");
        }
        // The runs of a pool: one area, whose start, stride, records and count follow.
        let records = vec![1u64; 1 << 12];
        let layout = [0, 1, 8, 32, 0, 8, 16, 24, 8, 0, 0, 1, 2, 3, 4];
        for (area, changed, is_valid) in [
            ([1, huge, huge, records.as_ptr() as u64, 1 << 12], None, false),
            ([1, 1 << 40, 4096, records.as_ptr() as u64, 1 << 12], None, true),
            ([1, 1 << 40, 0, records.as_ptr() as u64, 1 << 12], None, true),
            ([huge, 1 << 40, 4096, records.as_ptr() as u64, 1 << 12], None, true),
            ([1, 1 << 40, 4096, 8, 1 << 12], None, false),
            ([1, 1 << 40, 4096, records.as_ptr() as u64, huge], None, false),
            ([1, 1 << 40, 4096, records.as_ptr() as u64, 1 << 12], Some((1, huge)), false),
            ([1, 1 << 40, 4096, records.as_ptr() as u64, 1 << 12], Some((3, 0)), false),
            ([1, 1 << 40, 4096, records.as_ptr() as u64, 1 << 12], Some((3, huge)), false),
            ([1, 1 << 40, 4096, records.as_ptr() as u64, 1 << 12], Some((8, 0)), false),
            ([1, 1 << 40, 4096, records.as_ptr() as u64, 1 << 12], Some((9, huge)), false),
        ] {
            words = [0; 20];
            (words[0], words[1]) = (3, area.as_ptr() as u64);
            words[4..19].copy_from_slice(&layout);
            if let Some((at, value)) = changed {
                words[4 + at] = value;
            }
            let (code, out, errors) = lie(&words, &mut table);
            assert!(!errors.contains("panicked"), "{errors}");
            assert_eq!(code == Some(0), is_valid, "{area:?} {changed:?}: {out}{errors}");
            assert_eq!(!out.contains("are not valid"), is_valid, "{out}");
        }
    });
}

/// A process of this user, which ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Sleeper {
        let mut cat = Command::new("cat");
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // `spawn` returns in the middle of the exec, when the program has nothing but its stack. A
        // byte that comes back shows that it runs.
        cat.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Sleeper(cat)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_may_not_be_read_is_said_with_a_remedy() {
    let none = inspect(&["4194305"]);
    let (code, out, errors) = parts(&none);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(errors, "tenure: there is no process 4194305\n");
    assert_eq!(inspect(&[]).status.code(), Some(2));
    for command in [&["inspect", "sh"][..], &["metrics", "sh"], &["top", "-b", "--pid", "sh"]] {
        let (code, _, errors) = parts(&kit::tenure().args(command).output().unwrap());
        assert!(code == Some(2) && errors.contains("pidof"), "{command:?}: {errors}");
    }
    if !is_root() {
        return;
    }
    let user = or_skip!(AsUser::new());
    let sleeper = Sleeper::new();
    for command in ["inspect", "metrics"] {
        let done = user.tenure().args([command, &sleeper.pid()]).output().unwrap();
        let (code, out, errors) = parts(&done);
        assert_eq!(code, Some(1), "{out}{errors}");
        assert!(errors.contains("as root (sudo)"), "{errors}");
    }
    // Of all processes it leaves these out, and tells how many: a reader that comes every few
    // seconds needs no line each time.
    let (code, out, errors) = parts(&user.tenure().args(["metrics", "--all"]).output().unwrap());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_is_open_metrics(&out);
    assert!(sample(&out, "tenure_unreadable_processes") > 0.0, "{out}");
    assert_eq!(metrics(&["--all", "--tree"]).status.code(), Some(2));
}

/// In a process of its own: other tests' children may be unreadable.
#[test]
fn a_zombie_is_called_one() {
    in_child(this_test!(), &[], || {
        let mut ended = Command::new("true").spawn().unwrap();
        let pid = ended.id().to_string();
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        kit::until("it has ended", || state().contains(") Z "));
        for command in
            [&["inspect"][..], &["inspect", "--tree"], &["metrics"], &["top", "-b", "--pid"]]
        {
            let done = kit::tenure().args(command).arg(&pid).output().unwrap();
            let (code, out, errors) = parts(&done);
            assert_eq!(code, Some(1), "{command:?}: {out}");
            assert!(errors.contains("(true) has ended, and its parent has not waited"), "{errors}");
        }
        // It is a child of this process, which can be read.
        let (code, _, errors) = parts(&inspect(&[&own(), "--tree"]));
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        ended.wait().unwrap();
    });
}

/// Each block of the pool in its state, in a line below the pages of its mapping.
#[test]
fn a_map_shows_the_blocks_of_the_pool() {
    in_child(this_test!(), &[], || {
        let four = || (0..4).map(|_| pool::Buffer::zeroed(4 * MIB).unwrap()).collect::<Vec<_>>();
        let used = four();
        // The pool may return free blocks: the first ones while no worker runs yet, and all where
        // the machine is short of memory. Then they are taken and freed again.
        kit::until("as many blocks are free as are in use", || {
            four().into_iter().for_each(|mut buffer| buffer.fill(1));
            let (code, out, errors) = parts(&inspect(&[&own(), "--map", "--all", "--top", "0"]));
            assert_eq!(code, Some(0), "{out}{errors}");
            let lines: Vec<&str> = out.lines().collect();
            let pool = lines.iter().position(|line| line.ends_with("  (pool of tenure)")).unwrap();
            let states = lines[pool + 2].trim_start_matches("  [");
            // The worker may offer the free ones at any time.
            let free = states.chars().filter(|state| matches!(state, 'w' | 'f')).count();
            let in_use = states.chars().filter(|state| *state == 'U').count();
            assert!(in_use > 0, "{out}");
            println!("{in_use} in use, {free} free: {states}");
            in_use.abs_diff(free) < 9
        });
        drop(used);
    });
}

/// The pool takes the place of the C library's malloc only.
#[test]
fn a_pool_that_serves_nothing_has_its_reason() {
    let allocator = "libjemalloc.so.2";
    let found = Command::new("cat").arg("/dev/null").env("LD_PRELOAD", allocator).output().unwrap();
    if !found.stderr.is_empty() {
        return println!("not tested: there is no {allocator} here");
    }
    let mut cat = kit::tenure()
        .args(["run", "-q", "--", "cat"])
        .env("LD_PRELOAD", allocator)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its answer shows that it runs.
    cat.stdin.as_ref().unwrap().write_all(b"x").unwrap();
    cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let found = inspect(&[&cat.id().to_string()]);
    drop(cat.stdin.take());
    assert!(cat.wait().unwrap().success());
    assert_eq!(found.status.code(), Some(0), "all was read: {found:?}");
    let text = String::from_utf8_lossy(&found.stdout);
    let text: Vec<&str> = text.split_whitespace().collect();
    let reason = "the program allocates through libjemalloc.so.2, so the pool serves nothing";
    assert!(text.join(" ").contains(reason), "{found:?}");
}

/// A process chooses its name, and the reader of the name may be root.
#[test]
fn the_name_of_a_process_cannot_write_to_the_terminal() {
    in_child(this_test!(), &[], || {
        std::fs::write("/proc/self/comm", "a\x1b[31mb").unwrap();
        drop(Volatile::new(MIB).unwrap().pin().unwrap());
        let own = own();
        let both = [inspect(&[&own]), inspect(&["--tree", &own]), metrics(&[&own])];
        let top = kit::tenure().args(["top", "-b", "-n", "1"]).output().expect("it starts");
        for done in both.iter().chain([&top]) {
            let (code, out, errors) = parts(done);
            assert!(code == Some(0) && out.contains("a?[31mb"), "{out}{errors}");
            assert!(!out.contains('\x1b') && !errors.contains('\x1b'), "{out:?}{errors:?}");
        }
    });
}

#[test]
fn strips_and_lists_are_as_asked() {
    let sleeper = Sleeper::new();
    let pid = sleeper.pid();
    let lines = |arguments: &[&str]| {
        let mut all = vec![pid.as_str()];
        all.extend(arguments);
        let (code, out, errors) = parts(&inspect(&all));
        assert_eq!(code, Some(0), "{out}{errors}");
        out
    };
    let starts = |out: &str| {
        let rows = out.lines().skip_while(|line| !line.starts_with("address")).skip(1);
        rows.filter(|line| line.as_bytes()[0].is_ascii_alphanumeric())
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let by_address = starts(&lines(&["--sort", "address", "--top", "0"]));
    assert!(by_address.len() > 5 && by_address.is_sorted(), "{by_address:?}");
    let two = lines(&["--top", "2", "--map"]);
    assert_eq!(starts(&two).len(), 2);
    assert_eq!(two.lines().filter(|line| line.starts_with("  [")).count(), 2, "{two}");
    let narrow = kit::tenure().args(["inspect", &pid]).env("COLUMNS", "80").output().unwrap();
    let (_, narrow, _) = parts(&narrow);
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
}

/// The rules of OpenMetrics that a reader depends on: each family in one piece, the order of its
/// lines, suffixes, units.
#[track_caller]
pub fn assert_is_open_metrics(text: &str) {
    let body = text.strip_suffix("# EOF\n").expect("it ends so");
    let (mut seen, mut family, mut kind, mut unit) = (Vec::new(), "", "", "");
    let mut samples = Vec::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name, value) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            match what {
                "TYPE" => {
                    assert!(!seen.contains(&name), "{name} comes twice");
                    assert!(["gauge", "counter"].contains(&value), "{line}");
                    assert!(!name.ends_with("_total"), "{line}");
                    seen.push(name);
                    (family, kind, unit) = (name, value, "");
                }
                "UNIT" => {
                    assert!(name == family && name.ends_with(&format!("_{value}")), "{line}");
                    unit = value;
                }
                "HELP" => assert!(name == family && !value.contains('"'), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a sample has a value");
        let value: f64 = value.parse().expect("a number");
        assert!(value >= 0.0, "{line}");
        let name = sample.split('{').next().unwrap();
        let suffix = if kind == "counter" { "_total" } else { "" };
        assert_eq!(name, format!("{family}{suffix}"), "{line}");
        assert!(unit == "bytes" || !family.ends_with("_bytes"), "{line}");
        if let Some(labels) = sample.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            assert!(labels.starts_with('{') && labels.ends_with("\"}"), "{line}");
        }
        assert!(!samples.contains(&sample), "{line} comes twice");
        samples.push(sample);
    }
    assert!(!samples.is_empty(), "{text}");
}

/// The value of the sample that begins so.
fn sample(text: &str, begin: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(begin));
    let line = line.unwrap_or_else(|| panic!("{begin} is missing in\n{text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn metrics_have_the_memory_that_only_the_program_can_free() {
    in_child(this_test!(), &[], || {
        let mut buffers: Vec<Volatile> = (0..4).map(|_| Volatile::new(4 * MIB).unwrap()).collect();
        for buffer in &mut buffers {
            buffer.pin_mut().unwrap().fill(7);
            buffer.offer_now().unwrap();
        }
        for arguments in [&[own().as_str()][..], &["--tree", &own()], &["--all"]] {
            let (code, out, errors) = parts(&metrics(arguments));
            assert_eq!(code, Some(0), "{errors}");
            assert_is_open_metrics(&out);
            let of = |name: &str| {
                sample(&out, &format!("tenure_process_{name}_bytes{{pid=\"{}\"", own()))
            };
            let near = |name: &str, field: &str| {
                let (found, kernel) = (of(name) as u64, smaps(field));
                assert!(found.abs_diff(kernel) <= 2 * MIB as u64, "{name}: {found}, {kernel}");
            };
            near("resident", "Rss");
            near("lazy_free", "LazyFree");
            near("swapped", "Swap");
            assert!(of("lazy_free") > 0.0, "{out}");
        }
    });
}

#[test]
fn metrics_have_the_hits_of_each_cache() {
    in_child(this_test!(), &[], || {
        let (pages, tiles) = (tenure::Cache::<u64>::new().unwrap(), tenure::Cache::new().unwrap());
        pages.insert(1, b"one").unwrap();
        tiles.insert(2u64, b"two").unwrap();
        assert!(pages.get(&1).is_some() && pages.get(&2).is_none() && tiles.get(&2).is_some());
        let shared = tenure::shared::SharedCache::builder().most(64 << 20).build().unwrap();
        shared.insert(b"key", b"value").unwrap();
        assert!(shared.get(b"no").unwrap().is_none());
        let mut metrics = tenure::metrics::Metrics::new();
        metrics.add(&[], &tenure::stats());
        metrics.add_cache(&[("cache", "pages")], &pages.stats());
        metrics.add_cache(&[("cache", "tiles")], &tiles.stats());
        metrics.add_shared_cache(&[("cache", "blocks")], &shared.stats());
        metrics.add_gauge(&[], "queue_seconds", "How long jobs wait.", 0.25);
        let text = metrics.render();
        assert_is_open_metrics(&text);
        assert_eq!(sample(&text, "tenure_cache_hits_total{cache=\"pages\"}"), 1.0);
        assert_eq!(sample(&text, "tenure_cache_misses_total{cache=\"pages\"}"), 1.0);
        assert_eq!(sample(&text, "tenure_cache_misses_total{cache=\"tiles\"}"), 0.0);
        assert!(sample(&text, "tenure_cache_footprint_bytes{cache=\"tiles\"}") > 0.0);
        assert_eq!(sample(&text, "tenure_shared_cache_misses_total{cache=\"blocks\"}"), 1.0);
        let intact = "tenure_shared_cache_chunks{cache=\"blocks\",state=\"intact\"}";
        assert!(sample(&text, intact) >= 0.0);
        assert!(text.contains("# UNIT queue_seconds seconds\n") && text.contains(" 0.25\n"));
    });
}

#[test]
fn metrics_are_open_metrics_of_the_program() {
    in_child(this_test!(), &[], || {
        let buffer = Volatile::new(2 * MIB).unwrap();
        let _pin = buffer.pin().unwrap();
        let (code, out, errors) = parts(&metrics(&[&own()]));
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        assert_is_open_metrics(&out);
        assert_is_open_metrics(&tenure::metrics::render());
        let pinned = format!("state=\"pinned\"}} {}\n", tenure::stats().pinned_bytes);
        assert!(out.contains(&pinned) && out.contains(&format!("pid=\"{}\"", own())), "{out}");
        // Several processes and a sum.
        let (code, out, errors) = parts(&metrics(&[&own(), "1"]));
        assert!(code == Some(1) && errors.contains("process 1"), "{errors}");
        assert_is_open_metrics(&out);
        let (code, out, _) = parts(&metrics(&["--tree", &own()]));
        assert!(code == Some(0) && out.contains("processes=\"1\""), "{out}");
        assert_is_open_metrics(&out);
        // A file, in the older format.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tenure.prom");
        let name = file.to_str().unwrap();
        let done = metrics(&[&own(), "--prometheus", "--output", name]);
        assert_eq!(parts(&done), (Some(0), String::new(), String::new()));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("# TYPE tenure_purges_total counter\n"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        // The file keeps its mode. A link stays, and its file is written.
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        metrics(&[&own(), "--output", name]);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        let (other, link) = (dir.path().join("other"), dir.path().join("link"));
        std::fs::write(&other, "x".repeat(100_000)).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        metrics(&[&own(), "--output", link.to_str().unwrap()]);
        assert!(std::fs::read_to_string(&other).unwrap().ends_with("# EOF\n"));
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        // A pipe is written and not replaced.
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        let done = metrics(&[&own(), "--output", pipe.to_str().unwrap()]);
        assert_eq!(parts(&done), (Some(0), String::new(), String::new()));
        assert!(reader.join().unwrap().contains("tenure_purges_total"));
        assert!(!std::fs::symlink_metadata(&pipe).unwrap().is_file());
    });
}
