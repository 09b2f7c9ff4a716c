//! `tenure lock` on real files: VmLck, mappings and the page cache of the real process.

use crate::kit::locker::{after_dropping, inode, pages, Locker};
use crate::kit::*;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tenure_testkit::{or_skip, Competitor, MemoryCgroup};

const MIB: u64 = 1 << 20;

#[test]
fn cold_files_are_read_locked_and_unlocked_on_ctrl_c() {
    let dir = or_skip!(directory());
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    cold(&one, 2 * MIB as usize + 5);
    cold(&two, 100);
    let locker = Locker::on(&[], &[dir.path()]);
    assert!(locker.said.contains("2 files locked, 2.0 MiB, all of it resident"), "{}", locker.said);
    assert_eq!(locker.charged(), pages(2 * MIB + 5) + page());
    assert_eq!(after_dropping(&one), 2 * MIB + 5);
    assert_eq!(after_dropping(&two), 100);
    let open = std::fs::read_dir(format!("/proc/{}/fd", locker.pid())).expect("it runs").count();
    assert!(open < 12, "{open} descriptors are open");
    let (code, out, err) = locker.interrupt();
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "unlocked 2 files, 2.0 MiB\n", ""));
    assert_eq!(after_dropping(&one), 0, "nobody holds it any more");
}

#[test]
fn each_event_is_an_object() {
    let dir = or_skip!(directory());
    let path = dir.path().join("a \"name\"\n");
    cold(&path, 2 * MIB as usize);
    let locker = Locker::on(&["--json"], &[dir.path()]);
    let lines: Vec<serde_json::Value> = locker
        .said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
        .collect();
    let (first, ready) = (&lines[0], &lines[lines.len() - 1]);
    assert_eq!((&first["event"], &first["bytes"]), (&"locked".into(), &(2 * MIB).into()));
    assert_eq!(first["path"].as_str(), path.to_str());
    assert_eq!((&ready["event"], &ready["files"]), (&"ready".into(), &1.into()));
    assert_eq!(ready["bytes"].as_u64(), Some(locker.charged()));
    assert_eq!(ready["resident_bytes"].as_u64(), Some(2 * MIB));
    assert_eq!((&ready["not_locked_bytes"], &ready["on_fault"]), (&0.into(), &false.into()));
    let (code, out, err) = locker.interrupt();
    let last: serde_json::Value = serde_json::from_str(&out).expect("one object");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!((&last["event"], &last["bytes"]), (&"unlocked".into(), &(2 * MIB).into()));
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let dir = or_skip!(directory());
    std::fs::write(dir.path().join("evil\n\x1b[31mname"), b"x").unwrap();
    let missing = dir.path().join("no\x1b[1m");
    let locker = Locker::on(&["-v"], &[dir.path(), &missing]);
    assert!(locker.said.contains(r"evil'$'\n\033''[31mname'"), "{:?}", locker.said);
    assert!(!locker.said.contains('\x1b'), "{:?}", locker.said);
    let (code, _, err) = locker.interrupt();
    assert_eq!(code, Some(1));
    assert!(
        err.contains(r"no'$'\033''[1m': stat: No such file") && !err.contains('\x1b'),
        "{err:?}"
    );
}

#[test]
fn holes_and_empty_files_cost_nothing() {
    let dir = or_skip!(directory());
    std::fs::write(dir.path().join("empty"), b"").unwrap();
    let sparse = std::fs::File::create(dir.path().join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 512 << 20).unwrap();
    sparse.sync_all().unwrap();
    let blocks = sparse.metadata().unwrap().blocks();
    let locker = Locker::on(&[], &[dir.path()]);
    // A block of the file system may be larger than a page.
    assert!((1..=64 << 10).contains(&locker.charged()), "{}", locker.charged());
    assert_eq!(sparse.metadata().unwrap().blocks(), blocks);
    assert_eq!(locker.interrupt().0, Some(0));
}

#[test]
fn on_fault_reads_nothing_and_keeps_what_is_there() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    cold(&path, 4 * MIB as usize);
    assert!(tenure().args(["populate", "-q"]).arg(&path).status().expect("it starts").success());
    // At a boundary that no large folio crosses.
    drop_pages(&path, 2 * MIB..4 * MIB);
    let before = resident(&path);
    assert!((2 * MIB..4 * MIB).contains(&before), "{before}");
    let locker = Locker::on(&["--on-fault"], &[&path]);
    assert_eq!(locker.charged(), 4 * MIB, "the whole length is charged");
    assert_eq!(resident(&path), before, "something was read");
    assert_eq!(after_dropping(&path), before, "what was there is kept");
    let (code, _, err) = locker.interrupt();
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

#[test]
fn over_the_limit_nothing_is_locked_and_the_remedy_is_said() {
    let user = or_skip!(AsUser::new());
    let at = |name: &str| user.dir.path().join(name);
    std::fs::create_dir(at("files")).unwrap();
    std::fs::write(at("files/large"), bytes(MIB as usize)).unwrap();
    std::fs::write(at("files/small"), bytes(100 << 10)).unwrap();

    let mut command = user.tenure_with_limit(256 << 10);
    let done = command.arg("lock").arg(at("files")).output().expect("the program starts");
    let (code, out, err) = parts(&done);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    for word in ["nothing was locked", "--partial", "1150976", "262144", "LimitMEMLOCK=1150976"] {
        assert!(err.contains(word), "no {word}: {err}");
    }

    let mut command = user.tenure_with_limit(256 << 10);
    command.args(["lock", "--partial"]).arg(at("files"));
    let locker = Locker::start(command);
    assert_eq!(locker.charged(), 100 << 10);
    assert!(locker.maps_inode(inode(&at("files/small"))));
    let (code, _, err) = locker.interrupt();
    assert_eq!(code, Some(1));
    assert!(err.contains("files/large: ") && err.contains("262144"), "{err}");
}

#[test]
fn locked_files_stay_where_others_are_pushed_out() {
    let dir = or_skip!(directory());
    let (kept, lost) = (dir.path().join("kept"), dir.path().join("lost"));
    let group = or_skip!(MemoryCgroup::create("cli_lock", 64 << 20));
    cold(&kept, 6 * MIB as usize);
    cold(&lost, 6 * MIB as usize);
    let inside = |command: &str, path: &Path| {
        let mut shell = Command::new("/bin/sh");
        let own = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.path().display());
        shell.args(["-c", &own, env!("CARGO_BIN_EXE_tenure"), command]).arg(path);
        shell
    };
    let locker = Locker::start(inside("lock", &kept));
    assert!(inside("populate", &lost).output().expect("it starts").status.success());
    assert_eq!(resident(&lost), 6 * MIB);
    let mut competitor = or_skip!(Competitor::spawn(Some(&group)));
    competitor.need(52 << 20).expect("it gets what is not locked");
    assert_eq!(resident(&kept), 6 * MIB);
    assert!(resident(&lost) < 6 * MIB, "there was no pressure");
    assert_eq!(locker.interrupt().0, Some(0));
}

#[test]
fn what_is_no_file_is_a_problem_if_it_was_named_and_else_counted() {
    let dir = or_skip!(directory());
    let at = |name: &str| dir.path().join(name);
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, mode, 0).unwrap();
    std::fs::write(at("small"), b"x").unwrap();

    let locker = Locker::on(&[], &[&at("small"), &at("pipe"), Path::new("/dev/null")]);
    assert!(!locker.said.contains("passed over"), "{}", locker.said);
    let (code, _, err) = locker.interrupt();
    assert_eq!((code, err.lines().count()), (Some(1), 2), "{err}");
    for name in ["/pipe", "/dev/null"] {
        let line = format!("{name}: neither a regular file nor a directory\n");
        assert!(err.contains(&line), "{err}");
    }

    let locker = Locker::on(&[], &[dir.path()]);
    assert!(locker.said.contains("passed over: 1 special file\n"), "{}", locker.said);
    assert!(!locker.said.contains("/pipe"), "{}", locker.said);
    let (code, _, err) = locker.interrupt();
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let locker = Locker::on(&["-v"], &[dir.path()]);
    assert!(locker.said.contains("/pipe: special file\n"), "{}", locker.said);
    let locker = Locker::on(&["--json"], &[dir.path()]);
    assert!(locker.said.contains(r#""skipped":{"special":1,"#), "{}", locker.said);
}

#[test]
fn nothing_to_keep_is_an_error_at_once() {
    let dir = or_skip!(directory());
    for path in [dir.path().to_owned(), dir.path().join("missing")] {
        let done = tenure().arg("lock").arg(&path).output().expect("the program starts");
        let (code, _, err) = parts(&done);
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("there is no file to lock"), "{err}");
    }
}

#[test]
fn the_service_manager_is_told() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    std::fs::write(&path, b"x").unwrap();
    let at = dir.path().join("socket");
    let socket = UnixDatagram::bind(&at).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = tenure();
    command.env("NOTIFY_SOCKET", &at).arg("lock").arg(&path);
    let locker = Locker::start(command);
    let mut buffer = [0; 256];
    let mut hear = || {
        let len = socket.recv(&mut buffer).expect("something is said");
        text(&buffer[..len])
    };
    let ready = hear();
    assert!(ready.starts_with("READY=1\nSTATUS=1 file locked"), "{ready}");
    assert_eq!(locker.interrupt().0, Some(0));
    assert_eq!(hear(), "STOPPING=1");
}

#[test]
fn what_memory_has_no_room_for_is_not_begun() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    cold(&path, 40 << 20);
    let group = or_skip!(MemoryCgroup::create("cli_lock_room", 24 << 20));
    let own = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.path().display());
    let done = Command::new("/bin/sh")
        .args(["-c", &own, env!("CARGO_BIN_EXE_tenure"), "lock"])
        .arg(&path)
        .output()
        .expect("the shell starts");
    let (code, _, err) = parts(&done);
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("the files would need 40 MiB of memory") && err.contains("cgroup"),
        "{err}"
    );
    assert_eq!(resident(&path), 0);
}

#[test]
fn explain_answers_before_anyone_tries() {
    let user = or_skip!(AsUser::new());
    let ask = |size: &str, json: bool| {
        let mut command = user.tenure_with_limit(1 << 20);
        command.args(["explain", "lock", size]).args(json.then_some("--json"));
        command.output().expect("the program starts")
    };
    let (code, out, _) = parts(&ask("2M", false));
    assert_eq!(code, Some(1));
    for word in ["LimitMEMLOCK=2097152", "ulimit -l 2048", "docker run", "Kubernetes"] {
        assert!(out.contains(word), "no {word}: {out}");
    }
    let told = json(&ask("2M", true));
    assert_eq!((told["allowed"].as_bool(), told["soft_limit"].as_u64()), (Some(false), Some(MIB)));
    assert_eq!(ask("1M", false).status.code(), Some(0));

    // A limit that the shell may raise itself. The printed line raises it if the shell runs it
    // unchanged.
    let ask = |more: &[&str]| {
        let mut command = user.with_limit("-S -l 64 && ulimit -H -l 2048");
        command.args(["explain", "lock", "1M"]).args(more).output().expect("the program starts")
    };
    let (code, out, _) = parts(&ask(&[]));
    assert_eq!(code, Some(1));
    assert!(
        out.contains("this shell, as it is:\n      prlimit --pid $$ --memlock=1048576:"),
        "{out}"
    );
    let line = json(&ask(&["--json"]))["to_write"][0]["line"].as_str().map(str::to_owned);
    assert_eq!(line.as_deref(), Some("prlimit --pid $$ --memlock=1048576:"));

    for unlimited in [true, false] {
        let mut command = if unlimited { tenure() } else { user.tenure_with_limit(1 << 20) };
        let done = command.args(["explain", "lock", "1024T"]).output().expect("it starts");
        let (code, out, _) = parts(&done);
        let first = out.lines().next().unwrap_or("");
        assert_eq!(code, Some(1));
        assert!(first.contains("iB): no, less memory is free; the limit alone: "), "{out}");
    }

    let populate = tenure().args(["explain", "populate", "4000G"]).output().expect("it starts");
    let (code, out, _) = parts(&populate);
    assert_eq!(code, Some(1));
    assert!(out.contains("memory free"), "{out}");
}
