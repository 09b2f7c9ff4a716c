//! The program: an interruption keeps the finished results, a page is made of them, and two runs
//! are compared.

use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tenure_bench::programs::starter;
use tenure_testkit::{hugetlb, map_count};

tenure_testkit::plain_output!();

const BENCH: &str = env!("CARGO_BIN_EXE_tenure-bench");

/// A directory of this test's own, removed in the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(BENCH).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The peak that a starter reports for this command of a shell, in bytes.
fn peak(script: &str) -> f64 {
    let output = run(&[starter::COMMAND, "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let complaints = text(&output.stderr);
    let usage: Value = serde_json::from_str(complaints.lines().next_back().unwrap()).unwrap();
    for name in ["elapsed_ms", "cpu_ms", "faults"] {
        assert!(usage[name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {usage}");
    }
    usage["peak_bytes"].as_f64().unwrap()
}

#[test]
fn the_peak_of_a_program_has_no_memory_of_the_process_that_asks() {
    const SIZE: usize = 256 << 20;
    // In the child between this process's fork and its exec, the kernel sees this memory.
    let held = std::hint::black_box(vec![1_u8; SIZE]);
    let small = peak("i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; exit 3");
    assert!(small < SIZE as f64 / 8.0, "{small}");
    let grown = peak("x=$(head -c 64000000 /dev/zero | tr '\\0' x); exit 3");
    assert!(grown > 6e7, "{grown}");
    drop(held);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A run of one comparison, in which each contestant has these samples.
fn kept(dir: &Dir, name: &str, rows: &[(&str, &str, &[f64])]) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|(name, role, samples)| {
            let stats =
                json!({"median": samples[0], "min": samples[0], "p90": samples[0], "spread": 0.0});
            json!({"name": name, "role": role, "samples": samples, "extras": [["misses", samples]],
                   "stats": stats, "findings": [], "unavailable": null, "failed": null})
        })
        .collect();
    let machine = json!({"cpu": "c", "cores": 2, "virtual_machine": false, "kernel": "6", "huge_pages": "never",
                         "huge_page_defrag": "never", "page_size": 4096, "memory": 1, "swap": 0});
    let run = json!({"tenure": "0.1.0", "machine": machine, "peers": [], "quick": false, "benches": [
        {"name": "b", "notes": [], "comparisons": [
            {"title": "t", "unit": "Nanoseconds", "baseline": null, "rounds": 5, "rows": rows}]}]});
    let path = dir.file(name);
    std::fs::write(&path, run.to_string()).unwrap();
    path
}

#[test]
fn an_interruption_keeps_what_is_done() {
    let dir = Dir::new("interrupted");
    let (json, html) = (dir.file("run.json"), dir.file("run.html"));
    // Long enough: each of them takes some tenths of a second.
    let mut child = Command::new(BENCH)
        .args(["volatile"; 200])
        .args(["--quick", "--within", "none", "--rounds", "100"])
        .args(["--filter", "pin + unpin, owned object"])
        .args(["--json", &json, "--html", &html])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|line| line.contains("(100 rounds)")))
        .unwrap()
        .unwrap();
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("Ended early: interrupted")), "{rest:?}");
    let run = read(&json);
    assert_eq!(run["ended_early"], "interrupted");
    let first = &run["benches"][0]["comparisons"][0];
    assert_eq!(first["rounds"], 100);
    for row in first["rows"].as_array().unwrap() {
        assert_eq!(row["samples"].as_array().unwrap().len(), 100, "{row}");
    }
    // The last one has only complete rounds.
    let last = run["benches"].as_array().unwrap().iter().rev();
    let last =
        last.flat_map(|bench| bench["comparisons"].as_array().unwrap().last()).next().unwrap();
    for row in last["rows"].as_array().unwrap() {
        assert_eq!(
            row["samples"].as_array().unwrap().len() as u64,
            last["rounds"].as_u64().unwrap()
        );
    }
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("The run ended early (interrupted)") && page.contains("pin + unpin"));
    // The page made from the JSON is equal.
    let again = run_report(&[&json]);
    assert_eq!(text(&again.stdout), page);
}

fn run_report(files: &[&str]) -> Output {
    let done = run(&[&["report"], files].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    done
}

#[test]
fn a_run_says_what_it_needs_before_it_begins() {
    let done = run(&["volatile", "--quick", "--filter", "no such comparison", "--within", "90s"]);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    let (before, _) = said.split_once("== volatile").unwrap();
    assert!(before.contains("It needs about") && before.contains("ends within 90 s"), "{said}");
}

#[test]
fn a_run_that_is_short_of_time_measures_the_figure_of_each_proposal() {
    // It raises settings of the machine.
    let _turns = (hugetlb::turn(), map_count::turn());
    let dir = Dir::new("short");
    let html = dir.file("run.html");
    // The other two need a limit of locked memory, or an allocator that may be missing.
    let proposals = ["volatile", "unmap", "populate"];
    let done =
        run(&[&proposals[..], &["-q", "--quick", "--within", "1s", "--html", &html]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let page = std::fs::read_to_string(&html).unwrap();
    let figures: Vec<&str> = page.split("tenure here<b>").skip(1).collect();
    assert_eq!(figures.len(), 5);
    for figure in &figures[2..] {
        let (figure, _) = figure.split_once("</b>").unwrap();
        assert!(figure.ends_with(" x"), "{figure}");
    }
}

#[test]
fn a_report_is_one_page_of_all_runs() {
    let dir = Dir::new("report");
    let first = kept(&dir, "a.json", &[("<script>one</script>", "Ours", &[1.0; 5])]);
    let second = kept(&dir, "b.json", &[("two", "Ours", &[1.0; 5])]);
    let page = text(&run_report(&[&first, &second]).stdout);
    assert!(
        page.contains("&lt;script&gt;one") && page.contains("two") && !page.contains("<script")
    );
    let html = dir.file("page.html");
    run_report(&[&first, &second, "--html", &html]);
    assert_eq!(std::fs::read_to_string(html).unwrap(), page);
    let done = run(&["report", &dir.file("nosuch.json")]);
    assert_eq!(done.status.code(), Some(1));
    let why = "nosuch.json: open: No such file or directory (os error 2); check the name";
    assert!(text(&done.stderr).contains(why), "{}", text(&done.stderr));
}

#[test]
fn compare_exits_with_one_for_a_loss_only_if_asked() {
    let dir = Dir::new("compare");
    let (fast, slow) = ([10.0, 10.1, 10.2, 10.3, 10.4], [15.0, 15.1, 15.2, 15.3, 15.4]);
    let peer = ("moka", "Peer", &fast[..]);
    let before = kept(&dir, "a.json", &[("tenure", "Ours", &fast), peer]);
    let after = kept(&dir, "b.json", &[("tenure", "Ours", &slow), peer]);
    let code = |arguments: &[&str]| run(&[&["compare"], arguments].concat()).status.code();
    assert_eq!(code(&[&before, &after]), Some(0));
    assert_eq!(code(&[&before, &after, "--fail-on-loss"]), Some(1));
    assert_eq!(code(&[&after, &before, "--fail-on-loss"]), Some(0));
    assert_eq!(code(&[&before, &before, "--fail-on-loss"]), Some(0));
    assert_eq!(code(&[&before, &after, "--fail-on-loss", "--threshold", "80"]), Some(0));
    assert_eq!(code(&[&before]), Some(2));
    assert_eq!(code(&[&before, &dir.file("nosuch.json")]), Some(1));
    let done = run(&["compare", &before, &after, "--json"]);
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(found["rows"][0]["verdict"], "worse");
    assert_eq!(found["rows"][1]["verdict"], "same");
    let said = text(&run(&["compare", &before, &after]).stdout);
    assert!(
        said.contains("Worse, rows of tenure:\n  t: tenure\n    10.0 ns -> 15.0 ns  x 1.49"),
        "{said}"
    );
}

#[test]
fn numbers_and_names_that_measure_nothing_are_refused() {
    for wrong in [
        &["volatile", "--rounds", "0"][..],
        &["cache", "--threads", "2,0"],
        &["lock-on-fault", "--dir", "/nonexistent"],
    ] {
        let done = run(&[wrong, &["--quick", "-q"]].concat());
        assert_eq!(done.status.code(), Some(2), "{wrong:?}: {}", text(&done.stderr));
    }
    for (option, value, expected) in [
        ("--size", "-1G", "a size from 4K to 8192T: bytes, or a number with K, M, G or T"),
        ("--size", "1K", "a size from 4K to 8192T"),
        ("--rounds", "x", "a number of rounds, 1 or more, as in 9"),
        ("--threads", "-1", "a number of threads, 1 or more, as in 1,4"),
        ("--within", "-5m", "a number from 1 to 4294967295 with s, m or h, as in 90s"),
    ] {
        let done = run(&[option, value]);
        assert_eq!(done.status.code(), Some(2), "{option} {value}");
        let errors = text(&done.stderr);
        assert!(errors.contains(&format!("invalid value '{value}' for '{option}")), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    let done = run(&["volatile", "--filter", "nosuchtitle", "--quick", "-q"]);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
    let why = "no comparison's title contains \"nosuchtitle\"";
    assert!(text(&done.stderr).contains(why), "{}", text(&done.stderr));
}
