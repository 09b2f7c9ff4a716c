//! `tenure run` as a shell sees it: the program's environment, exit codes, and refusals with their
//! reasons.

use crate::kit::{self, is_root, parts, text};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tenure_testkit::build::{compiler, copy_program};
use tenure_testkit::skip;

fn tenure(arguments: &[&str]) -> Command {
    let mut command = kit::tenure();
    command.arg("run").args(arguments).env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            command.env_remove(name);
        }
    }
    command
}

fn output(arguments: &[&str]) -> Output {
    tenure(arguments).output().expect("it starts")
}

#[test]
fn the_program_s_output_and_status_are_its_own() {
    let (code, out, errors) =
        parts(&output(&["--", "sh", "-c", "echo out; echo err >&2; exit 42"]));
    assert_eq!((code, out.as_str()), (Some(42), "out\n"));
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(lines[0].starts_with("tenure: malloc from 128 KiB on from the pool"), "{errors}");
    assert_eq!(lines[1], "err");
    let (code, _, errors) = parts(&output(&["-q", "--", "sh", "-c", "exit 0"]));
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let done = output(&["-q", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&done.status), Some(15));
}

#[test]
fn each_flag_is_a_variable() {
    let script = "echo $TENURE_LARGE,$TENURE_MMAP,$TENURE_UNMAP,$TENURE_POPULATE,$TENURE_CHILDREN";
    let shell = |flags: &[&str]| {
        let mut all = flags.to_vec();
        all.extend(["-q", "--", "sh", "-c", script]);
        text(&output(&all).stdout)
    };
    assert_eq!(shell(&[]), "pool,,retire,,\n");
    assert_eq!(shell(&["--large"]), "pool,,,,\n");
    assert_eq!(
        shell(&[
            "--large=pool:1M",
            "--mmap",
            "--unmap=retire:4M",
            "--populate=3",
            "--children=inherit"
        ]),
        "pool:1M,pool,retire:4M,3,inherit\n"
    );
    let mut by_variable = tenure(&["-q", "--", "sh", "-c", script]);
    by_variable.env("TENURE_MMAP", "pool:2M");
    assert_eq!(text(&by_variable.output().expect("it starts").stdout), ",pool:2M,,,\n");
    // The message names the variable where no option was given.
    for (flags, named) in
        [(&[][..], "TENURE_MMAP in the env"), (&["--mmap=x"], "'--mmap[=<SIZE>]'")]
    {
        let mut wrong = tenure(&[flags, &["--", "true"]].concat());
        let done = wrong.env("TENURE_MMAP", "tool").output().expect("it starts");
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains(named), "{}", text(&done.stderr));
    }
    let alone = output(&["--unmapped=open", "--", "true"]);
    assert!(alone.status.code() == Some(125) && text(&alone.stderr).contains("--mmap"));
    let off = output(&["--unmapped=open", "--mmap=off", "--", "true"]);
    assert!(off.status.code() == Some(125) && text(&off.stderr).contains("--mmap"));
    // Contradictions, too, name the variable if the option comes from it.
    for (arguments, variables, named) in [
        (&["--", "true"][..], &[("TENURE_UNMAPPED", "open")][..], "TENURE_UNMAPPED in the env"),
        (
            &["--lock=all"],
            &[("TENURE_MMAP", "pool")],
            "--lock keeps all memory, and the pool of TENURE_MMAP in",
        ),
        (&["--large"], &[("TENURE_LOCK", "all")], "TENURE_LOCK in the environment keeps"),
        // The option of this name is the program's.
        (
            &["echo", "--large=5"],
            &[("TENURE_LARGE", "banana")],
            "'TENURE_LARGE in the environment'",
        ),
        (&["--", "echo", "--large"], &[("TENURE_LARGE", "1")], "'TENURE_LARGE in the environment'"),
    ] {
        let mut command = tenure(arguments);
        let done = command.arg("true").envs(variables.iter().copied()).output().unwrap();
        assert!(
            !done.status.success() && text(&done.stderr).contains(named),
            "{}",
            text(&done.stderr)
        );
    }
    let mut command = tenure(&["--", "true"]);
    let no_text: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    let done = command.env("TENURE_LOCK", no_text).output().unwrap();
    assert!(text(&done.stderr).contains("TENURE_LOCK in the environment is no text"));
    assert_eq!(done.status.code(), Some(2));
    // --mmap=off in a run within a run says nothing about the variables of the outer one.
    let mut inner = tenure(&["-q", "--mmap=off", "--", "true"]);
    inner.envs([("TENURE_MMAP", "pool"), ("TENURE_UNMAPPED", "open")]);
    assert!(inner.status().unwrap().success());
    for wrong in [
        "--large=tool",
        "--mmap=pool:1",
        "--unmap=retire:",
        "--unmapped=half",
        "--populate=0",
        "--lock=some",
    ] {
        let done = output(&[wrong, "--", "true"]);
        assert_eq!(done.status.code(), Some(2), "{wrong}");
        assert!(text(&done.stderr).contains(wrong.split('=').next().unwrap_or("")), "{wrong}");
    }
}

#[test]
fn an_existing_preload_stays_behind_ours() {
    let script = "echo $LD_PRELOAD";
    let mut command = tenure(&["-q", "--", "/bin/sh", "-c", script]);
    // The loader warns of a library that does not exist, and continues.
    command.env("LD_PRELOAD", "libm.so.6:libdl.so.2");
    let list = text(&command.output().expect("it starts").stdout);
    let names: Vec<&str> = list.trim().split(':').collect();
    assert!(names[0].ends_with("/tenure-preload"), "{list}");
    assert_eq!(names[1..], ["libm.so.6", "libdl.so.2"]);
}

#[test]
fn children_may_be_left_alone() {
    let script = "sh -c 'echo \"[$LD_PRELOAD]\"'";
    assert_eq!(text(&output(&["-q", "--children=no", "--", "sh", "-c", script]).stdout), "[]\n");
    assert!(text(&output(&["-q", "--", "sh", "-c", script]).stdout).contains("/tenure-preload"));
    let mut off = tenure(&["--", "sh", "-c", script]);
    off.env("TENURE_DISABLE", "1");
    let (code, out, errors) = parts(&off.output().expect("it starts"));
    assert_eq!((code, out.as_str(), errors.as_str()), (Some(0), "[]\n", ""));
}

#[test]
fn what_is_not_there_is_127_and_what_cannot_be_executed_126() {
    let dir = tempfile::tempdir().expect("a directory");
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "no program").expect("it is written");
    let case = |program: &str, code: i32, word: &str| {
        let done = output(&["--", program]);
        let errors = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{program}: {errors}");
        assert!(errors.starts_with("tenure: ") && errors.contains(word), "{program}: {errors}");
    };
    case("/nonexistent/program", 127, "no such program");
    case("no-such-program-at-all", 127, "no such program");
    case("1M", 127, "--large=1M");
    case(plain.to_str().expect("plain"), 126, "not executable");
    case("/", 126, "directory");
    let script = |name: &str, first: &str| {
        let path = dir.path().join(name);
        let text = dir.path().join("text");
        std::fs::write(&text, format!("{first}\necho done\n")).expect("it is written");
        copy_program(&text, &path).expect("it is copied");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, open).expect("it is ours");
        path.to_str().expect("plain").to_owned()
    };
    case(&script("orphan", "#!/no/such/interpreter"), 126, "/no/such/interpreter is missing");
    case(&script("shapeless", "echo"), 126, "neither a program nor a script");
    case(&script("evil", "#!/no/\x1b[31m"), 126, r"$'\033''[31m' is missing");
    let good = script("good", "#!/bin/sh");
    assert_eq!(text(&output(&["-q", "--", &good]).stdout), "done\n");
}

#[test]
fn what_cannot_be_preloaded_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("main.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("it is written");
    let compiler = match compiler("CC", "cc") {
        Ok(compiler) => compiler,
        Err(reason) => skip!("{reason}"),
    };
    let build = |name: &str, flags: &[&str]| {
        let path = dir.path().join(name);
        let mut cc = Command::new(&compiler);
        cc.arg(&source).args(flags).arg("-o").arg(&path).stderr(Stdio::null());
        cc.status().is_ok_and(|status| status.success()).then_some(path)
    };
    let refused = |path: &Path, code: i32, word: &str| {
        let done = output(&["--", path.to_str().expect("plain")]);
        let errors = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{errors}");
        assert!(errors.contains(word), "{errors}");
    };
    let plain = build("plain", &[]).expect("the compiler works");
    assert_eq!(output(&["-q", "--", plain.to_str().expect("plain")]).status.code(), Some(0));
    if let Some(fixed) = build("static", &["-static"]) {
        refused(&fixed, 125, "linked statically");
    }
    if let Some(lost) = build("lost", &["-Wl,--dynamic-linker=/no/such/loader.so"]) {
        refused(&lost, 126, "loader /no/such/loader.so is missing");
    }
    let mut foreign = std::fs::read(&plain).expect("it is ours");
    foreign[18] = 0xf3; // RISC-V
    std::fs::write(&plain, foreign).expect("it is ours");
    refused(&plain, 125, "another architecture");
    if !is_root() {
        skip!("giving a program to another user needs root");
    }
    let setuid = build("setuid", &[]).expect("the compiler works");
    std::os::unix::fs::chown(&setuid, Some(kit::NOBODY), None).expect("root may");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&setuid, mode).expect("root may");
    refused(&setuid, 125, "setuid or setgid");
}

#[test]
fn memory_is_locked_in_the_program_s_own_process() {
    let script = "grep VmLck /proc/self/status";
    let unlocked = text(&output(&["-q", "--", "grep", "VmLck", "/proc/self/status"]).stdout);
    assert!(unlocked.contains(" 0 kB"), "{unlocked}");
    let done = output(&["-q", "--lock=on-fault", "--", "grep", "VmLck", "/proc/self/status"]);
    match done.status.code() {
        Some(0) => assert!(!text(&done.stdout).contains(" 0 kB"), "{}", text(&done.stdout)),
        // Over the limit, and the message says so.
        code => {
            assert_eq!(code, Some(125));
            assert!(text(&done.stderr).contains("mlockall"), "{}", text(&done.stderr));
        }
    }
    let both = output(&["--lock=all", "--large", "--", "sh", "-c", script]);
    assert_eq!(both.status.code(), Some(125));
    assert!(text(&both.stderr).contains("choose one"), "{}", text(&both.stderr));
}

#[test]
fn the_report_is_shown_or_appended() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("report");
    let name = format!("--report={}", file.display());
    let done = output(&["-q", "--large", &name, "--", "sh", "-c", "exit 3"]);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(3), String::new()));
    let report = std::fs::read_to_string(&file).expect("it was written");
    assert!(report.starts_with("tenure: report of sh, process "), "{report}");
    assert!(report.contains("  coverage: saw "), "{report}");
    let shown = output(&["-q", "--report", "--", "true"]);
    assert!(text(&shown.stderr).contains("tenure: report of true"), "{}", text(&shown.stderr));
    let done = output(&["--report=/nonexistent/dir/report", "--", "true"]);
    assert_eq!(done.status.code(), Some(125));
}

/// `ls`, `sort` and other programs close standard error before they end.
#[test]
fn a_report_comes_though_the_program_closed_its_standard_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = dir.path().join("errors");
    let errors = std::fs::File::create(&name).expect("a file");
    let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
    run.args(["run", "-q", "--report", "--", "sh", "-c", "echo first >&2; exec 2>&-"]);
    assert!(run.stderr(errors).status().expect("it runs").success());
    let text = std::fs::read_to_string(&name).expect("it was written");
    assert!(text.starts_with("first\ntenure: report of sh"), "{text}");
    // Another file under that number is the program's own.
    let other = dir.path().join("other");
    let errors = std::fs::File::create(&name).expect("a file");
    let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
    let script = format!("exec 2>{}", other.display());
    run.args(["run", "-q", "--report", "--", "sh", "-c", &script]);
    assert!(run.stderr(errors).status().expect("it runs").success());
    assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "");
    let text = std::fs::read_to_string(&name).expect("it was written");
    assert!(text.starts_with("tenure: report of sh"), "{text}");
}

#[test]
fn a_mistyped_option_is_wrong_usage() {
    for wrong in [&["--reprot", "--", "true"][..], &["-q", "--larg", "true"], &["-x", "true"]] {
        let done = output(wrong);
        assert_eq!(done.status.code(), Some(2), "{wrong:?}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains("Usage"), "{}", text(&done.stderr));
    }
    // The arguments after the program belong to it, with and without the dashes before it.
    for right in [
        &["-q", "echo", "-n", "--large", "--", "x"][..],
        &["-q", "--", "echo", "-n", "--large", "--", "x"],
    ] {
        assert_eq!(text(&output(right).stdout), "--large -- x", "{right:?}");
    }
}

#[test]
fn a_run_within_a_run_adds_to_the_report() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("report");
    std::fs::write(&file, "of yesterday\n").expect("it is ours");
    let name = format!("--report={}", file.display());
    let own = env!("CARGO_BIN_EXE_tenure");
    let script = format!("{own} run -q --large -- true; {own} run -q --large -- true");
    let done = output(&["-q", "--large", &name, "--", "sh", "-c", &script]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report = std::fs::read_to_string(&file).expect("it was written");
    assert_eq!(report.matches("report of true, ").count(), 2, "{report}");
    assert_eq!(report.matches("report of sh, ").count(), 1, "{report}");
    assert!(!report.contains("of yesterday"), "{report}");
}

#[test]
fn an_empty_variable_is_an_unset_one() {
    let script = "echo $TENURE_LARGE,$TENURE_MMAP,$TENURE_UNMAP,$TENURE_POPULATE,$TENURE_REPORT";
    let mut command = tenure(&["-q", "--", "sh", "-c", script]);
    for name in ["LARGE", "MMAP", "UNMAP", "POPULATE", "LOCK", "CHILDREN", "REPORT", "QUIET"] {
        command.env(format!("TENURE_{name}"), "");
    }
    let (code, out, errors) = parts(&command.output().expect("it starts"));
    assert_eq!((code, out.as_str(), errors.as_str()), (Some(0), "pool,,retire,,\n", ""));
    assert_eq!(output(&["--populate=", "--", "true"]).status.code(), Some(2));
}

#[test]
fn a_report_that_cannot_be_written_is_said() {
    let said = |done: Output| {
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let lines = text(&done.stderr);
        lines.lines().filter(|line| line.contains("the report cannot be written")).count()
    };
    assert_eq!(said(output(&["--report=/dev/full", "--", "true"])), 1);
    assert_eq!(said(output(&["-q", "--report=/dev/full", "--", "true"])), 0);
}

#[test]
fn only_a_library_is_preloaded() {
    for wrong in ["/tmp", "/etc/passwd", "/nonexistent/library.so"] {
        let mut command = tenure(&["--", "true"]);
        command.env("TENURE_PRELOAD", wrong);
        let (code, _, errors) = parts(&command.output().expect("it starts"));
        assert_eq!(code, Some(125), "{errors}");
        assert!(errors.contains("TENURE_PRELOAD=") && errors.contains(wrong), "{errors}");
    }
}

#[test]
fn the_loader_may_be_called_by_name() {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loaders.iter().find(|path| Path::new(path).exists()) else {
        skip!("no loader where it is looked for");
    };
    let done =
        output(&["-q", "--", loader, "/bin/grep", "-c", "/tenure-preload", "/proc/self/maps"]);
    let (code, out, errors) = parts(&done);
    assert_eq!(code, Some(0), "{errors}");
    assert!(out.trim().parse::<u32>().is_ok_and(|lines| lines > 0), "{out}");
}

#[test]
fn a_sanitizer_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("main.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("it is written");
    let program = dir.path().join("program");
    for sanitizer in ["address", "leak", "thread"] {
        let mut gcc = Command::new("gcc");
        gcc.arg(format!("-fsanitize={sanitizer}")).arg(&source).arg("-o").arg(&program);
        if !gcc.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            skip!("gcc has no {sanitizer} sanitizer here");
        }
        let (code, _, errors) = parts(&output(&["--", program.to_str().expect("plain")]));
        assert_eq!(code, Some(125), "{errors}");
        assert!(errors.contains("built with a sanitizer (lib"), "{errors}");
    }
}

/// Rust's runtime opens /dev/null in the place of closed descriptors.
#[test]
fn closed_descriptors_stay_closed() {
    let own = env!("CARGO_BIN_EXE_tenure");
    let script = "for n in 0 1 2; do [ -e /proc/self/fd/$n ] || echo $n >> $0; done";
    let dir = tempfile::tempdir().expect("a directory");
    for (closing, expected) in
        [("<&-", "0\n"), (">&-", "1\n"), ("2>&-", "2\n"), ("", ""), ("<&- >&- 2>&-", "0\n1\n2\n")]
    {
        let file = dir.path().join("closed");
        std::fs::write(&file, "").expect("it is ours");
        let line = format!("exec \"$@\" {closing}");
        let mut command = Command::new("sh");
        command.args(["-c", &line, "sh", own, "run", "-q", "--", "sh", "-c", script]).arg(&file);
        command.output().expect("it starts");
        let found = std::fs::read_to_string(&file).expect("it is ours");
        assert_eq!(found, expected, "{closing}");
    }
}

#[test]
fn one_report_has_what_the_children_did() {
    // Subshells are forks. `true` is a separate program, which has its own report if it has counted
    // something.
    let script = "for n in 1 2 3; do ( : ); done; ( ( : ) )";
    let done = output(&["-q", "--report", "--", "sh", "-c", script]);
    let errors = text(&done.stderr);
    assert_eq!(errors.matches("tenure: report of").count(), 1, "{errors}");
    let first = errors.lines().next().unwrap_or_default();
    let ended = first.split(" and ").nth(1).and_then(|rest| rest.split(' ').next());
    let ended: u32 = ended.and_then(|number| number.parse().ok()).unwrap_or(0);
    // A shell may run the last one in its own process.
    assert!((3..=5).contains(&ended) && first.ends_with("children that have ended"), "{errors}");
    // A child that ends after its ancestor has reported makes its own report.
    let script = "exec 3<&0; \
        ( read end <&3; head -c 40000000 /dev/zero | tail -c 20000000 > /dev/null ) & exit 0";
    let mut command = tenure(&["-q", "--large", "--report", "--", "sh", "-c", script]);
    let mut ancestor = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdin, stderr) = (ancestor.stdin.take(), ancestor.stderr.take());
    assert!(ancestor.wait().unwrap().success());
    drop(stdin);
    let errors = std::io::read_to_string(stderr.unwrap()).unwrap();
    assert!(errors.starts_with("tenure: report of sh, process "), "{errors}");
    assert!(!errors.contains("that has ended"), "{errors}");
}

#[test]
fn a_signal_brings_a_report_and_the_program_goes_on() {
    let script = "kill -USR2 $$; kill -USR2 $$; echo on";
    let done = output(&["-q", "--large", "--report-signal=USR2", "--", "sh", "-c", script]);
    let (code, out, errors) = parts(&done);
    assert_eq!((code, out.as_str()), (Some(0), "on\n"), "{errors}");
    assert_eq!(errors.matches(", while it runs\n").count(), 2, "{errors}");
    assert_eq!(errors.matches("tenure: report of").count(), 2, "none at the end: {errors}");
    // Off by default: the signal has its usual effect.
    let done = output(&["-q", "--large", "--", "sh", "-c", script]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&done.status), Some(12));
    // A program's own handler replaces the report's.
    let trapped = format!("trap 'echo mine' USR2; {script}");
    let done = output(&["-q", "--report-signal=USR2", "--", "sh", "-c", &trapped]);
    assert_eq!(parts(&done), (Some(0), "mine\nmine\non\n".into(), String::new()));
    for signal in ["usr2", "SIGUSR2", "12"] {
        let option = format!("--report-signal={signal}");
        let done = output(&["-q", "--large", &option, "--", "sh", "-c", "kill -USR2 $$; echo on"]);
        let (code, out, errors) = parts(&done);
        assert_eq!((code, out.as_str()), (Some(0), "on\n"), "{errors}");
        assert!(errors.contains(", while it runs\n"), "{errors}");
    }
    let (code, _, errors) = parts(&output(&["--report-signal=KILL", "--", "true"]));
    assert_eq!(code, Some(2));
    assert!(errors.contains("can catch KILL and STOP; expected HUP, USR1"), "{errors}");
}

#[test]
fn inspect_and_metrics_read_a_launched_program() {
    let script = "head -c 30000000 /dev/zero | tail -c 20000000 > /dev/null; echo $$; read line";
    let mut command = tenure(&["-q", "--large", "--report", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    let pid = line.trim();
    let found = kit::tenure().args(["inspect", pid]).output().expect("it starts");
    let machine = kit::tenure().args(["inspect", pid, "--json"]).output().expect("it starts");
    let metrics = kit::tenure().args(["metrics", pid]).output().expect("it starts");
    drop(child.stdin.take());
    child.wait().expect("it ends");
    let served = &kit::json(&machine)["tenure"]["launcher"]["malloc_served"];
    assert!(served.is_u64(), "{served}");
    let counts = &kit::json(&machine)["tenure"]["launcher"];
    let (code, out, errors) = parts(&found);
    assert_eq!(code, Some(0), "{out}{errors}");
    assert!(out.contains("tenure ") && out.contains("  launcher   "), "{out}");
    let (code, out, errors) = parts(&metrics);
    assert_eq!(code, Some(0), "{errors}");
    assert!(out.contains("name=\"sh\"") && out.ends_with("# EOF\n"), "{out}");
    let begin = format!("tenure_launcher_malloc_served_total{{pid=\"{pid}\",name=\"sh\"}} ");
    let exported = out.lines().find_map(|line| line.strip_prefix(&begin));
    assert_eq!(exported, Some(served.to_string().as_str()), "{out}");
    crate::inspect::assert_is_open_metrics(&out);
    for name in counts.as_object().expect("counts").keys().filter(|name| !name.ends_with("_ns")) {
        assert!(out.contains(&format!("\ntenure_launcher_{name}_total{{")), "{name}: {out}");
    }
    // With TENURE_DISABLE nothing is published.
    let mut command = tenure(&["--", "sh", "-c", "echo $$; read line"]);
    command.env("TENURE_DISABLE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    line.clear();
    let out = child.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    let metrics = kit::tenure().args(["metrics", line.trim()]).output().expect("it starts");
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert!(text(&metrics.stderr).contains("does not use tenure"), "{}", text(&metrics.stderr));
}
