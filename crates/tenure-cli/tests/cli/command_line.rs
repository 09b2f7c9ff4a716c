//! The command line as a shell sees it: exit codes, help, pipes.

use std::process::{Command, Output, Stdio};
use tenure_testkit::seccomp::{kill_for_resources_and_privileged, Call, Filter};
use tenure_testkit::skip;

fn tenure(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    tenure(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn version_and_help_succeed() {
    let version = output(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(text(&version.stdout), format!("tenure {}\n", env!("CARGO_PKG_VERSION")));
    for command in [
        &["--help"][..],
        &["demo", "--help"],
        &["doctor", "--help"],
        &["populate", "--help"],
        &["lock", "--help"],
        &["explain", "lock", "--help"],
    ] {
        let help = output(command);
        assert_eq!(help.status.code(), Some(0), "{command:?}");
        assert!(text(&help.stdout).contains("Usage: tenure"), "{command:?}");
    }
    assert!(text(&output(&["demo", "--help"]).stdout).contains("Examples:"));
}

#[test]
fn wrong_usage_is_2_and_names_the_mistake() {
    for (arguments, word) in [
        (&[][..], "Usage"),
        (&["demoo"], "demo"),
        (&["demo", "--limit", "12Q"], "Q"),
        (&["demo", "--limit", "8M"], "--limit"),
        (&["doctor", "--colour"], "--colour"),
        (&["lock", "--threads", "-1", "/"], "'-1' for '--threads"),
        (&["demo", "--workers", "-1"], "expected a number of processes from 1 to 48, as in 4"),
        (&["demo", "--neighbour-min", "1T"], "Usage: tenure demo "),
    ] {
        let done = output(arguments);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}");
        assert!(text(&done.stderr).contains(word), "{arguments:?}: {}", text(&done.stderr));
    }
}

/// An option of a number names itself, the value, the range, the unit and an example.
#[test]
fn a_wrong_number_is_2_and_names_option_value_and_range() {
    const THREADS: &str = "a number of threads from 1 to 1024, as in 4";
    const SIZE: &str = "8192T: bytes, or a number with K, M, G or T (powers of 1024), or with KB";
    for (command, option, expected) in [
        (&["run"][..], "--large", "pool or off, with a size from 64K to 8192T: bytes, or a"),
        (&["run"], "--mmap", "pool or off, with a size from 64K to 8192T: bytes, or a number"),
        (&["run"], "--unmap", "retire or off, with a size from 1 to 8192T: bytes, or a number"),
        (&["run"], "--populate", "a number of threads from 1 to 1024, auto or off"),
        (&["demo"], "--limit", SIZE),
        (&["demo"], "--neighbour-min", SIZE),
        (&["demo"], "--neighbour-max", SIZE),
        (&["demo"], "--seconds", "a number of seconds from 1 to 3600, as in 10"),
        (&["demo"], "--zipf", "an exponent from 0 to 3, as in 0.9"),
        (&["demo"], "--seed", "a whole number, 0 or more, as in 1"),
        (&["demo"], "--level", "a level from 1 to 19, as in 6"),
        (&["demo"], "--workers", "a number of processes from 1 to 48, as in 4"),
        (&["demo"], "--threads", "a number of threads from 1 to 256, as in 2"),
        (&["lock"], "--max-file-size", SIZE),
        (&["lock"], "--threads", THREADS),
        (&["populate"], "--range", "A..B, A.. or ..B, with sizes such as 4096 or 64M"),
        (&["populate"], "--threads", THREADS),
        (&["populate"], "--deadline", "a number of seconds, 0 or more, as in 20 or 0.5"),
        (&["top"], "--delay", "a number of seconds from 0.05 to 86400, as in 0.5"),
        (&["top"], "--iterations", "a number of updates, 1 or more, as in 10"),
        (&["top"], "--pid", "the number of a process, 1 or more"),
        (&["inspect"], "--top", "a number of mappings, 0 or more, as in 5"),
        (&["inspect"], "", "the number of a process, 1 or more"),
        (&["metrics"], "", "the number of a process, 1 or more"),
        (&["explain", "lock"], "", SIZE),
        (&["explain", "populate"], "", SIZE),
    ] {
        for value in ["-1", "-1.5G", "", "1Q", "99999999999T"] {
            let given = match (option, command[0]) {
                ("", _) => vec![value.to_owned()],
                (_, "run") => vec![format!("{option}={value}")],
                _ => vec![option.to_owned(), value.to_owned()],
            };
            // A program, or a file.
            let more = matches!(command[0], "run" | "lock" | "populate").then_some("1");
            let done = tenure(command).args(&given).args(more).output().unwrap();
            assert_eq!(done.status.code(), Some(2), "{command:?} {given:?}");
            let errors = text(&done.stderr);
            assert!(errors.contains(&format!("invalid value '{value}' for '{option}")), "{errors}");
            assert!(errors.contains(expected), "{given:?}: {errors}");
        }
    }
}

/// What cannot be written is said before the work of a minute, and no file is left.
#[test]
fn the_demo_first_looks_at_the_files_that_it_is_to_write() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("demo.svg");
    let svg_name = svg.to_str().unwrap();
    let done = output(&["demo", "--svg", svg_name, "--json", "/nonexistent/demo.json"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).starts_with("tenure: cannot write /nonexistent/demo.json: "));
    assert!(!svg.exists());
}

#[test]
fn a_failure_is_1_with_one_line() {
    let done = output(&["demo", "--dir", "/nonexistent", "--stand-in"]);
    assert_eq!(done.status.code(), Some(1));
    let errors = text(&done.stderr);
    let last = errors.lines().last().unwrap_or("");
    let why = "tenure: cannot read --dir /nonexistent: open: No such file or directory (os error 2); check";
    assert!(last.starts_with(why) && errors.lines().count() == 1, "{errors}");
}

/// No error of the kernel stands alone: the file is named, the call, and the remedy.
#[test]
fn an_error_of_a_file_names_the_file_the_call_and_the_remedy() {
    const MISSING: &str = "open: No such file or directory (os error 2); check the name, and that";
    for (arguments, file, why) in [
        (&["run", "--report=/nonexistent/x", "true"][..], "--report=/nonexistent/x: ", MISSING),
        (
            &["run", "--report=/proc", "true"],
            "--report=/proc: ",
            "open: Is a directory (os error 21); name",
        ),
        (&["run", "--report=", "true"], "--report: ", "name a file, or - for standard error"),
        (
            &["run", "--", "/dev/null/x"],
            "/dev/null/x: ",
            "stat: Not a directory (os error 20); check",
        ),
        (
            &["populate", "/nonexistent"],
            "/nonexistent: ",
            "stat: No such file or directory (os error 2); ch",
        ),
        (&["metrics", "--all", "--output", "/nonexistent/x"], "--output /nonexistent/x: ", MISSING),
        (&["metrics", "--all", "--output", "/"], "--output /: ", "name a file, not a directory"),
        (&["man-pages", "/dev/null"], "/dev/null: ", "mkdir: File exists (os error 17); remove it"),
        (&["demo", "--svg", "/nonexistent/x"], "/nonexistent/x: ", MISSING),
        (
            &["demo", "--dir", "/dev/null"],
            "--dir /dev/null: ",
            "open: Not a directory (os error 20); ch",
        ),
    ] {
        let errors = text(&output(arguments).stderr);
        assert!(errors.contains(&format!("{file}{why}")), "{arguments:?}: {errors}");
    }
    for variable in ["TENURE_REPORT", "TENURE_PRELOAD"] {
        let done = tenure(&["run", "true"]).env(variable, "/nonexistent/x").output().unwrap();
        let errors = text(&done.stderr);
        assert!(errors.contains(&format!("{variable}=/nonexistent/x: {MISSING}")), "{errors}");
    }
    let help = [&["--help"][..], &["--version"], &["help", "run"], &["populate", "--help"]];
    let explain = [&["explain", "lock", "1"][..], &["explain", "lock", "1", "--json"]];
    for arguments in help.into_iter().chain(explain) {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let done = tenure(arguments).stdout(full).output().unwrap();
        let errors = text(&done.stderr);
        assert!(errors.starts_with("tenure: standard output cannot be written: "), "{errors}");
        assert_eq!(done.status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = tenure(&["doctor"]).stdout(Stdio::piped()).spawn().expect("starts");
    // The reading end is closed before, or while, the first line is written.
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn doctor_says_the_same_in_both_forms() {
    let json = output(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    let lines = text(&output(&["doctor"]).stdout);
    assert!(!findings.is_empty());
    for finding in findings {
        let name = finding["name"].as_str().expect("a name");
        let verdict = match finding["status"].as_str() {
            Some("works") => "PASS",
            Some("degraded") => "WARN",
            _ => "FAIL",
        };
        let line = lines.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
        assert!(line.is_some_and(|line| line.starts_with(verdict)), "{name} in {lines}");
        assert_eq!(finding["remedy"].is_string(), verdict != "PASS", "{name}");
    }
    let missing = findings.iter().any(|finding| finding["status"] == "missing");
    assert_eq!(json.status.code(), Some(missing.into()));
    let works = findings.iter().all(|finding| finding["status"] == "works");
    assert_eq!(output(&["doctor", "--strict"]).status.success(), works);
}

#[test]
fn hidden_commands_say_that_they_are_no_use_alone() {
    let done = output(&["demo-worker"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("part of `tenure demo`"));
}

/// The doctor, started by a thread under this filter. The doctor inherits the filter.
fn doctor_under(filter: Filter) -> Option<(Output, serde_json::Value)> {
    std::thread::spawn(move || {
        filter.install_this_thread().ok()?;
        let done = output(&["doctor", "--json"]);
        let report = serde_json::from_slice(&done.stdout).expect("one JSON object");
        Some((done, report))
    })
    .join()
    .expect("the thread lives")
}

#[test]
fn doctor_passes_where_a_filter_kills_for_resources_and_privileged() {
    let Some((done, report)) = doctor_under(kill_for_resources_and_privileged()) else {
        skip!("a seccomp filter cannot be installed");
    };
    let trial = &report["findings"][0];
    assert_eq!((&trial["name"], &trial["status"]), (&"trial".into(), &"works".into()), "{trial}");
    let without: serde_json::Value =
        serde_json::from_slice(&output(&["doctor", "--json"]).stdout).expect("one JSON object");
    assert_eq!(report["findings"], without["findings"]);
    assert_eq!(done.status.code(), output(&["doctor"]).status.code());
}

#[test]
fn doctor_names_the_step_that_a_filter_kills() {
    for (call, step, findings) in [
        (libc::SYS_mlock2, "locking a range", true),
        // The filter would kill the doctor's next call, so the doctor does not make it.
        (libc::SYS_userfaultfd, "trying each feature", false),
    ] {
        let Some((done, report)) = doctor_under(Filter::new().kill(Call::Number(call))) else {
            skip!("a seccomp filter cannot be installed");
        };
        assert_eq!(done.status.code(), Some(1), "{call}");
        assert_eq!(report["passed"], false);
        let trial = &report["findings"][0];
        assert_eq!(trial["status"], "missing");
        let error = trial["error"].as_str().expect("it says what happened");
        assert!(error.contains("seccomp filter kills (SIGSYS)") && error.contains(step), "{error}");
        let others = report["findings"].as_array().expect("a list").len() > 1;
        assert_eq!(others, findings, "{report}");
    }
}

#[test]
fn completions_and_manual_pages_come_from_the_flags() {
    for (shell, word) in [("bash", "--one-file-system"), ("zsh", "_tenure"), ("fish", "on-fault")] {
        let done = output(&["completions", shell]);
        assert_eq!(done.status.code(), Some(0), "{shell}");
        assert!(text(&done.stdout).contains(word), "{shell}");
        for hidden in ["demo-worker", "demo-neighbour", "doctor-trial"] {
            assert!(!text(&done.stdout).contains(hidden), "{shell} completes {hidden}");
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("a plain name");
    assert_eq!(output(&["man-pages", path]).status.code(), Some(0));
    let help = text(&output(&["--help"]).stdout);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty()).map(str::trim);
    let names = commands.filter_map(|line| line.split_once("  ")).map(|(name, _)| name);
    for name in names.filter(|name| *name != "help") {
        let page = std::fs::read_to_string(dir.path().join(format!("tenure-{name}.1")));
        assert!(page.is_ok_and(|page| page.contains(".SH SYNOPSIS")), "{name}");
    }
    let page = std::fs::read_to_string(dir.path().join("tenure-run.1")).expect("it is there");
    assert!(page.contains(".SH \"EXIT STATUS\"") && page.contains("TENURE_DISABLE"), "{page}");
    // The flags of tenure-bench, which is a separate program, are included.
    let bench = text(&output(&["completions", "bash"]).stdout);
    for flag in ["--within", "--html", "--fail-on-loss", "--threshold"] {
        assert!(bench.contains(flag), "{flag}");
    }
    for (name, word) in [
        ("tenure-bench", "\\-\\-within"),
        ("tenure-bench-compare", "Mann"),
        ("tenure-report", "\\-\\-html"),
    ] {
        let page =
            std::fs::read_to_string(dir.path().join(format!("{name}.1"))).expect("it is there");
        assert!(page.contains(word), "{name}: {page}");
    }
}
