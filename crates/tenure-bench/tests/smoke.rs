//! Every bench in smoke mode: it ends, its samples are there, and its memory is given back.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tenure::{pool, retire, Volatile};
use tenure_bench::{list, run_to, Options};
use tenure_testkit::{hugetlb, in_child, map_count, sweep, this_test, LeakCheck};

tenure_testkit::plain_output!();
tenure_testkit::two_for_each_processor!();

const BENCH: &str = env!("CARGO_BIN_EXE_tenure-bench");

struct Ran {
    text: String,
    json: Value,
}

fn smoke(name: &str) -> Ran {
    let path: PathBuf =
        std::env::temp_dir().join(format!("tenure-smoke-{name}-{}.json", std::process::id()));
    let options = Options {
        quick: true,
        rounds: Some(sweep(1, 2)),
        // `volatile` compares what no first round does, and `unmap` collects all but the first.
        skip_warm_up: sweep(!["volatile", "unmap"].contains(&name), false),
        json: Some(path.clone()),
        bench: Some(BENCH.into()),
        launcher: launcher(),
        ..Options::default()
    };
    let mut out = Vec::new();
    run_to(&[name.to_string()], &options, &mut out).unwrap();
    let json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    Ran { text: String::from_utf8(out).unwrap(), json }
}

/// The command line, if this build has made it and its library, which are another package's.
fn launcher() -> Option<PathBuf> {
    let path = Path::new(BENCH).with_file_name("tenure");
    let mut run = Command::new(&path);
    run.args(["run", "-q", "--large=pool", "--", "true"]);
    run.stderr(Stdio::null()).status().is_ok_and(|status| status.success()).then_some(path)
}

impl Ran {
    fn comparisons(&self) -> &Vec<Value> {
        self.json["benches"][0]["comparisons"].as_array().unwrap()
    }

    /// Rows that ran, as (title, row); rows that could not run have a reason.
    fn rows(&self) -> Vec<(&str, &Value)> {
        let mut rows = Vec::new();
        for comparison in self.comparisons() {
            let title = comparison["title"].as_str().unwrap();
            // Either a table of its own, or a column of one with which its title starts.
            let table = title.split_once(": ").map_or(title, |(table, _)| table);
            assert!(self.text.contains(table), "{title} is not in the printed text");
            for row in comparison["rows"].as_array().unwrap() {
                if row["unavailable"].is_null() {
                    let samples = row["samples"].as_array().unwrap();
                    let rounds = comparison["rounds"].as_u64().unwrap();
                    // All rounds, or only the last.
                    assert!([1, rounds].contains(&(samples.len() as u64)), "{title}: {row}");
                    assert!(samples.iter().all(Value::is_number), "{title}: {row}");
                    rows.push((title, row));
                } else {
                    assert!(row["unavailable"].as_str().is_some_and(|why| why.len() > 10));
                }
            }
        }
        rows
    }

    fn median(&self, title: &str, name: &str) -> f64 {
        let rows = self.rows();
        let found = rows.iter().find(|(at, row)| at.starts_with(title) && row["name"] == name);
        found.unwrap_or_else(|| panic!("no row {name} in {title}:\n{}", self.text)).1["stats"]
            ["median"]
            .as_f64()
            .unwrap()
    }
}

/// Each bench in a process of its own: it measures the whole process, and so does the leak check.
macro_rules! benches {
    ($($test:ident: $name:literal, $check:expr, $leaks:expr;)*) => {
        $(
            #[test]
            fn $test() {
                in_child(this_test!(), &[], || {
                    let _turns = RAISING.contains(&$name).then(|| (hugetlb::turn(), map_count::turn()));
                    bench($name, $check, $leaks);
                });
            }
        )*

        #[test]
        fn every_bench_has_its_test() {
            let known: Vec<&str> = list().iter().map(|(name, _)| *name).collect();
            assert_eq!(known, [$($name),*]);
        }
    };
}

benches! {
    cache_in_smoke_mode: "cache", cache, Leaks::Unchecked;
    hit_ratio_in_smoke_mode: "hit-ratio", hit_ratio, Leaks::Unchecked;
    lazy_free_in_smoke_mode: "lazy-free", lazy_free, Leaks::Unchecked;
    lock_on_fault_in_smoke_mode: "lock-on-fault", lock_on_fault, Leaks::Checked;
    populate_in_smoke_mode: "populate", populate, Leaks::Checked;
    programs_in_smoke_mode: "programs", programs, Leaks::Unchecked;
    shared_in_smoke_mode: "shared", shared, Leaks::Unchecked;
    unmap_in_smoke_mode: "unmap", unmap, Leaks::Checked;
    volatile_in_smoke_mode: "volatile", volatile, Leaks::CheckedInASecondRun;
}

/// Benches that raise [`settings`] for a while, one after another on this machine.
const RAISING: [&str; 3] = ["lock-on-fault", "populate", "unmap"];

#[derive(PartialEq)]
enum Leaks {
    /// The run must leave nothing behind.
    Checked,
    /// The first run leaves resources that a process has once, in each of its threads.
    CheckedInASecondRun,
    Unchecked,
}

/// Uses the resources once that a process has once.
fn warm_up() {
    let mut buffer = Volatile::new(4 << 20).unwrap();
    buffer.pin_mut().unwrap().fill(1);
    let _ = buffer.offer_now();
    drop(buffer.pin().unwrap());
    retire::prepare().unwrap();
    pool::prepare().unwrap();
    drop(pool::Buffer::zeroed(4 << 20).unwrap());
}

fn bench(name: &str, check: fn(&Ran), leaks: Leaks) {
    let before = settings();
    // The worker's threads and mappings exist before the leak check, and stay.
    let first = match leaks {
        Leaks::CheckedInASecondRun => Some(smoke(name)),
        _ => {
            warm_up();
            None
        }
    };
    let leak_check = (leaks != Leaks::Unchecked).then(|| LeakCheck::start().allow_mappings(8));
    let ran = smoke(name);
    if let Some(leak_check) = leak_check {
        leak_check.finish().unwrap();
    }
    // Memory that a process takes for the first time is measured in a first run only.
    let ran = first.unwrap_or(ran);
    assert!(ran.comparisons().len() >= 2, "{}", ran.text);
    // An ordinary user may not lock as much as lock-on-fault needs, and gets an error.
    assert!(!ran.rows().is_empty() || name == "lock-on-fault", "{}", ran.text);
    check(&ran);
    if !RAISING.contains(&name) {
        return;
    }
    assert_eq!(settings(), before, "a setting of the kernel was not put back");
}

/// The settings that the benches raise for a while.
fn settings() -> [String; 2] {
    ["max_map_count", "nr_hugepages"]
        .map(|name| std::fs::read_to_string(format!("/proc/sys/vm/{name}")).unwrap_or_default())
}

fn lock_on_fault(ran: &Ran) {
    let rows = ran.rows();
    for (title, row) in &rows {
        let beside = |name: &str| {
            let columns = row["extras"].as_array().unwrap();
            let column = columns.iter().find(|column| column[0] == name).unwrap();
            column[1][0].as_f64().unwrap()
        };
        let total = row["samples"][0].as_f64().unwrap();
        let sum = beside("setup ms") + beside("processing ms");
        assert!((total - sum).abs() < 1e-6 && sum > 0.0, "{title}: {row}");
        assert!(beside("locked MiB") >= 63.0, "{title}: {row}");
    }
    // If this user may lock 64 MiB, all ways can run whose mappings need not be split.
    if !rows.is_empty() {
        for name in ["tenure, on fault + populate", "mlock, whole range"] {
            assert!(rows.iter().any(|(_, row)| row["name"] == name), "{name}:\n{}", ran.text);
        }
    }
}

fn lazy_free(ran: &Ran) {
    let ebizzy = "ebizzy -n 16, default";
    assert!(ran.median(ebizzy, "glibc") > 0.0);
    assert!(ran.median("launcher's cost: copy", "no launcher") > 0.0);
    let rows = ran.rows();
    let beside = |title: &str, name: &str, column: &str| {
        let row = rows.iter().find(|(at, row)| at.starts_with(title) && row["name"] == name)?.1;
        let columns = row["extras"].as_array().unwrap();
        columns.iter().find(|known| known[0] == column).unwrap()[1][0].as_f64()
    };
    // If the others' libraries are installed: an allocator that gives memory back at once faults
    // for each record, 128 times for its 512 KiB.
    if let Some(faults) = beside(ebizzy, "jemalloc, decay 0", "faults/record") {
        assert!(faults > 50.0, "{faults}");
    }
    if launcher().is_some() {
        // On a busy machine the first record, which faults, may be one of a few.
        let few = ran.median(ebizzy, "tenure") < 600.0;
        let faults = beside(ebizzy, "tenure", "faults/record").unwrap();
        assert!(faults < 10.0 || few, "{}", ran.text);
        assert!(ran.median("malloc-large", "tenure") > 0.0);
        assert!(ran.median("launcher's cost: copy", "--large=pool") > 0.0);
    }
}

/// Machines have different programs; a missing one is reported.
fn programs(ran: &Ran) {
    assert!(ran.median("a C++ compiler", "plain") > 1.0, "{}", ran.text);
    for (title, row) in ran.rows() {
        let columns = row["extras"].as_array().unwrap();
        let names: Vec<_> = columns.iter().map(|column| column[0].as_str().unwrap()).collect();
        assert_eq!(names, tenure_bench::programs::COLUMNS, "{title}: {row}");
        for column in columns {
            assert!(column[1][0].as_f64().is_some_and(|value| value > 0.0), "{title}: {row}");
        }
    }
    for title in ["numpy, 1 MiB", "java, direct", "ruby, strings", "ImageMagick", "redis, large"] {
        let measured =
            ran.comparisons().iter().any(|at| at["title"].as_str().unwrap().contains(title));
        assert!(
            measured
                || ran.text.lines().any(|line| line.contains(title) && line.contains("skipped:"))
        );
    }
}

/// The speed, and which neighbour gets a process killed, depend on the machine.
fn shared(ran: &Ran) {
    let shared = "tenure, one SharedCache";
    for threads in ["1 thread", "2 threads, each its own", "2 processes, all the same"] {
        let title = format!("pin + unpin of an intact chunk, {threads}");
        assert!(ran.median(&title, "tenure, shared") > 0.1, "{}", ran.text);
    }
    for (title, row) in ran.rows() {
        let columns = row["extras"].as_array().unwrap();
        let column = |name: &str| Some(&columns.iter().find(|column| column[0] == name)?[1][0]);
        if let Some(calls) = column("calls in 1000") {
            assert_eq!(calls, 0.0, "{title}: {row}");
        }
    }
    for work in ["get, 1 KiB", "get, 100 KiB", "overwrite, 1 KiB", "insert a new key, 1 KiB"] {
        assert!(ran.median(work, shared) > 1.0);
        assert!(ran.median(work, "tenure, a private Cache each") > 1.0);
    }
    assert!(ran.median("get_or_insert_with of a new key", shared) > 1.0);
    // Without a memory cgroup the others report that.
    let group = ran.rows().iter().any(|(title, _)| title.starts_with("killed beside"));
    assert!(ran.text.contains("2 threads, as fast as it can"), "{}", ran.text);
    assert!(group || ran.text.contains("not measured"), "{}", ran.text);
}

fn unmap(ran: &Ran) {
    for content in ["4 KiB pages", "THP", "memfd", "file"] {
        for way in ["tenure, retire", "munmap"] {
            let median =
                |figure: &str| ran.median(&format!("unmap 64 MiB, {content}: {figure}"), way);
            assert!(median("the caller's time") > 0.0);
            assert!(median("another thread's worst mmap") > 0.0);
            assert!(median("processor time") > 0.0);
        }
    }
    assert!(ran.text.contains("all rounds together"), "{}", ran.text);
}

fn populate(ran: &Ran) {
    for sharing in ["private", "shared"] {
        for kind in ["anon 4 KiB", "memfd 4 KiB", "tmpfs", "file"] {
            let title = format!("populate, {sharing}, 2 MiB: {kind}, ready for writing");
            assert!(ran.median(&title, "tenure") > 0.0);
            assert!(ran.median(&title, "Write") > 0.0);
        }
    }
    assert!(ran.median("populate, 2 threads, 16 MiB, anon 4 KiB", "tenure") > 0.0);
}

fn volatile(ran: &Ran) {
    let bookkeeping = ran.median("bookkeeping of", "tenure");
    assert!(bookkeeping > 1.0, "{bookkeeping} bytes:\n{}", ran.text);
    assert!(ran.median("pin + unpin", "tenure") > 0.1);
    assert!(ran.median("unmark + mark, one of 1000 ranges", "tenure") > 1.0);
    // If another program or the host made memory short during the run, the kernel took the pieces.
    assert!(
        has_fewer_faults(ran) || (0..4).any(|_| has_fewer_faults(&smoke("volatile"))),
        "{}",
        ran.text
    );
}

/// Two retries of ten pieces that are each given back: ten faulting pieces against none.
fn has_fewer_faults(ran: &Ran) -> bool {
    let faults = |name: &str| {
        let rows = ran.rows();
        let (_, row) = rows
            .iter()
            .find(|(title, row)| {
                title.starts_with("seed program against giving back, 4 KiB")
                    && title.ends_with("1 thread")
                    && row["name"] == name
            })
            .unwrap();
        let rounds = row["extras"][0][1].as_array().unwrap().iter();
        rounds.map(|faults| faults.as_f64().unwrap()).fold(f64::INFINITY, f64::min)
    };
    faults("MADV_DONTNEED") >= 1.9 * faults("tenure")
}

fn cache(ran: &Ran) {
    for (title, row) in ran.rows() {
        if title.starts_with("get") {
            assert_eq!(row["extras"][0][0], "misses", "{title}: {row}");
        }
    }
    assert!(ran.median("get, 1 KiB values, uniform", "tenure") > 1.0);
    assert!(ran.median("bookkeeping bytes by own count", "tenure") > 1.0);
    #[cfg(feature = "peers")]
    for peer in ["moka", "quick_cache", "foyer"] {
        assert!(ran.median("get, 1 KiB values, uniform", peer) > 1.0);
        assert!(ran.median("resident bytes beyond the value", peer) > 0.0, "{}", ran.text);
    }
}

fn hit_ratio(ran: &Ran) {
    for load in ["Zipf 0.8", "scans beside Zipf", "loop", "mixed sizes"] {
        let misses = ran.median(&format!("{load}: in 40 % "), "tenure");
        assert!((1.0..100.0).contains(&misses), "{load}: {misses}");
        assert!(ran.median(&format!("{load}: in 40 % "), "plain LRU") > 1.0);
    }
    assert_eq!(ran.median("loop: in 20 % ", "plain LRU"), 100.0, "LRU finds nothing in a loop");
    #[cfg(feature = "peers")]
    for peer in ["moka", "quick_cache", "foyer S3-FIFO", "foyer LFU", "foyer LRU", "foyer FIFO"] {
        assert!(ran.median("Zipf 1.0: in 10 % ", peer) < 90.0, "{}", ran.text);
    }
}
