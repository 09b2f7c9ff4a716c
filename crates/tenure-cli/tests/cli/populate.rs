//! `tenure populate` on real files: the kernel tells which pages are resident before and after.

use crate::kit::*;
use std::io::Write;
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use tenure_testkit::hugetlb::MoreHugePages;
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{in_child, or_skip, skip, this_test, MemoryCgroup};

const MIB: usize = 1 << 20;

fn populate(arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = tenure();
    command.arg("populate").args(arguments).args(paths);
    command.output().expect("the program starts")
}

fn number(value: &serde_json::Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn a_cold_file_becomes_resident_and_is_read_once() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    let len = 3 * MIB + 123;
    cold(&path, len);

    let looked = populate(&["--dry-run", "--json"], &[&path]);
    assert_eq!(looked.status.code(), Some(0));
    assert_eq!(number(&json(&looked), "missing"), len as u64);
    assert_eq!(resident(&path), 0, "a dry run read something");

    let first = populate(&["--json"], &[&path]);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert_eq!(resident(&path), len as u64);
    let told = json(&first);
    assert_eq!((number(&told, "read"), number(&told, "resident_after")), (len as u64, len as u64));

    let again = json(&populate(&["--json"], &[&path]));
    assert_eq!((number(&again, "read"), number(&again, "resident_before")), (0, len as u64));

    // Only the missing part is read. Pages are dropped at a boundary that no large folio crosses.
    drop_pages(&path, 2 * MIB as u64..len as u64);
    let missing = len as u64 - resident(&path);
    assert!(missing > 0);
    let partly = json(&populate(&["--json"], &[&path]));
    assert_eq!(number(&partly, "read"), missing);
    assert_eq!(resident(&path), len as u64);
}

#[test]
fn the_text_has_the_same_numbers() {
    let dir = or_skip!(directory());
    cold(&dir.path().join("one"), 2 * MIB);
    cold(&dir.path().join("two"), 8192);
    let done = populate(&["-v"], &[dir.path()]);
    let (code, out, err) = parts(&done);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let line =
        |name: &str| out.lines().find(|line| line.starts_with(name)).unwrap_or("").to_owned();
    assert!(line("files").contains(" 2"), "{out}");
    assert!(line("before").contains("0 B  0 % resident"), "{out}");
    assert!(line("after").contains("2.0 MiB  100 % resident"), "{out}");
    let two = out.lines().find(|line| line.contains("/two ")).expect("a line for each file");
    let cells: Vec<&str> = two.split_whitespace().skip(1).collect();
    assert_eq!(cells.join(" "), "8 KiB 0 B 8 KiB 8 KiB 100 %", "{out}");
    assert!(!out.contains("missing"), "{out}");
}

#[test]
fn only_the_part_that_is_asked_for() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    cold(&path, 4 * MIB);
    let done = populate(&["--json", "--range", "2M..2052K"], &[&path]);
    assert_eq!(number(&json(&done), "bytes"), page().max(4096));
    let file = std::fs::File::open(&path).unwrap();
    let there = |range| tenure::page_cache::resident_bytes(&file, range).unwrap().unwrap();
    assert_eq!(there(2 << 20..(2 << 20) + 4096), 4096);
    assert_eq!(resident(&path), 4096, "the disk read ahead, or around it");
}

#[test]
fn one_file_one_reading_and_no_waiting_for_pipes() {
    let dir = or_skip!(directory());
    let at = |name: &str| dir.path().join(name);
    cold(&at("file"), 64 << 10);
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::hard_link(at("file"), at("sub/same")).unwrap();
    symlink("..", at("sub/loop")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    std::fs::write(at("empty"), b"").unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, mode, 0).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let sparse = std::fs::File::create(at("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"data", 512 << 20).unwrap();
    sparse.sync_all().unwrap();
    let blocks = sparse.metadata().unwrap().blocks();

    for links in [&[][..], &["-L"]] {
        drop_pages(&at("file"), 0..64 << 10);
        drop_pages(&at("sparse"), 0..1 << 30);
        let mut arguments = vec!["--json"];
        arguments.extend(links);
        let done = populate(&arguments, &[dir.path(), &at("file")]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let told = json(&done);
        assert_eq!(number(&told, "files"), 3);
        assert_eq!(number(&told["skipped"], "special"), 2);
        assert_eq!(number(&told["skipped"], "links"), 2);
        assert_eq!(number(&told["skipped"], "duplicates"), 2);
        assert_eq!(resident(&at("file")), 64 << 10);
        let data = number(&told, "bytes");
        assert!(data < 1 << 20, "the hole was counted as data: {data}");
        assert_eq!(data + number(&told, "hole_bytes"), (64 << 10) + (1 << 30));
    }
    assert!(resident(&at("sparse")) < 1 << 20, "the hole was read");
    assert_eq!(sparse.metadata().unwrap().blocks(), blocks, "the hole was filled");
    drop(socket);
}

#[test]
fn what_cannot_be_read_does_not_stop_the_rest() {
    let user = or_skip!(AsUser::new());
    let at = |name: &str| user.dir.path().join(name);
    for name in ["a", "b", "c"] {
        std::fs::write(at(name), bytes(8192)).unwrap();
        drop_pages(&at(name), 0..8192);
    }
    std::fs::set_permissions(at("b"), PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::create_dir(at("closed")).unwrap();
    std::fs::set_permissions(at("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    let done = user
        .tenure()
        .arg("populate")
        .args([at("a"), at("b"), at("missing"), at("closed"), at("c")])
        .output()
        .expect("the program starts");
    let (code, out, err) = parts(&done);
    assert_eq!(code, Some(1), "{out}{err}");
    assert_eq!(err.lines().count(), 3, "{err}");
    for name in ["/b: open: Permission denied", "/missing: stat: No such file", "/closed: "] {
        assert!(err.contains(name), "{err}");
    }
    assert!(out.contains("3 problems"), "{out}");
    std::fs::set_permissions(at("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    for name in ["a", "c"] {
        assert_eq!(resident(&at(name)), 8192, "{name}");
    }
}

#[test]
fn what_is_not_told_is_said_to_be_unknown_and_read_all_the_same() {
    if !is_root() {
        skip!("needs files of another user: run as root");
    }
    let user = or_skip!(AsUser::new());
    let path = user.dir.path().join("roots");
    std::fs::write(&path, bytes(MIB)).unwrap();
    drop_pages(&path, 0..MIB as u64);
    let run = |more: &[&str]| {
        let mut command = user.tenure();
        command.arg("populate").args(more).arg(&path).output().expect("the program starts")
    };
    let told = json(&run(&["--json"]));
    assert!(told["list"][0]["resident_before"].is_null(), "{told}");
    assert_eq!((number(&told, "unknown_bytes"), number(&told, "missing")), (MIB as u64, 0));
    assert_eq!(resident(&path), MIB as u64);
    let (code, out, _) = parts(&run(&[]));
    assert_eq!(code, Some(0));
    assert!(out.contains("of another user"), "{out}");
}

/// Starts the program and stops it (SIGSTOP) while it reads the file.
fn caught_reading(path: &Path, len: usize, arguments: &[&str]) -> Option<Child> {
    for _ in 0..20 {
        cold(path, len);
        let mut command = tenure();
        command.arg("populate").args(arguments).arg(path);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        while !maps(child.id(), path) && child.try_wait().expect("it is ours").is_none() {
            std::hint::spin_loop();
        }
        if child.try_wait().expect("it is ours").is_none() {
            signal(child.id(), rustix::process::Signal::STOP);
            // A part of it is resident, but not all.
            if maps(child.id(), path) && resident(path) < len as u64 / 3 {
                return Some(child);
            }
            let _ = child.kill();
        }
        let _ = child.wait();
    }
    None
}

/// A file is truncated while it is read. Returns the error.
fn shrunk_while_read(path: &Path) -> Option<String> {
    let child = caught_reading(path, 48 * MIB, &[])?;
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5000).unwrap();
    signal(child.id(), rustix::process::Signal::CONT);
    let done = child.wait_with_output().expect("it ends");
    let (code, out, err) = parts(&done);
    assert_eq!((code, done.status.signal()), (Some(1), None), "{out}{err}");
    Some(err)
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error_and_no_signal() {
    let dir = or_skip!(directory());
    let Some(err) = shrunk_while_read(&dir.path().join("file")) else {
        skip!("the disk is too fast to be caught at it");
    };
    assert!(err.contains("it became shorter during the read: it now ends at byte 5000"), "{err}");
}

#[test]
fn ctrl_c_stops_with_the_state_so_far() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    // One reader, because the disk's read-ahead is then a small part of the file.
    let Some(child) = caught_reading(&path, 96 * MIB, &["--json", "--threads", "1"]) else {
        skip!("the disk is too fast to be caught at it");
    };
    signal(child.id(), rustix::process::Signal::INT);
    signal(child.id(), rustix::process::Signal::CONT);
    let done = child.wait_with_output().expect("it ends");
    assert_eq!((done.status.code(), done.status.signal()), (Some(1), None));
    let told = json(&done);
    assert_eq!(told["ending"], "interrupted");
    let (read, missing) = (number(&told, "read"), number(&told, "missing"));
    assert!(missing > 0 && read < 96 * MIB as u64, "{told}");
    assert_eq!(number(&told, "resident_after") + missing, 96 * MIB as u64);
}

#[test]
fn a_deadline_ends_it() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    cold(&path, 96 * MIB);
    let done = populate(&["--json", "--deadline", "0.002", "--threads", "1"], &[&path]);
    assert_eq!(done.status.code(), Some(1));
    let told = json(&done);
    assert_eq!(told["ending"], "out_of_time");
    assert!(number(&told, "missing") > 0 && resident(&path) < 96 * MIB as u64, "{told}");
}

#[test]
fn a_deadline_that_no_clock_reaches_is_none() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    // More than one call reads: the program asks for the time between calls.
    for seconds in ["1e9", "1e19", "1.8e19"] {
        cold(&path, 5 * MIB);
        let done = populate(&["--deadline", seconds], &[&path]);
        assert_eq!(done.status.code(), Some(0), "{seconds}: {}", text(&done.stderr));
        assert_eq!(resident(&path), 5 * MIB as u64, "{seconds}");
    }
}

#[test]
fn what_cannot_fit_is_not_begun() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    cold(&path, 48 * MIB);
    let group = or_skip!(MemoryCgroup::create("cli_populate", 24 << 20));
    let run = |more: &[&str]| {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", "read go; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tenure"), "populate"]);
        shell.args(more).arg(&path);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().expect("the shell starts");
        group.add_pid(child.id()).expect("the child moves");
        child.stdin.take().expect("piped").write_all(b"go\n").expect("the shell reads");
        child.wait_with_output().expect("it ends")
    };
    let (code, _, err) = parts(&run(&[]));
    assert_eq!(code, Some(1), "{err}");
    let name = group.path().file_name().unwrap().to_str().unwrap();
    assert!(err.contains("the files would need 48 MiB of memory") && err.contains(name), "{err}");
    assert_eq!(resident(&path), 0, "it was begun");

    let forced = run(&["--force"]);
    let (code, out, err) = parts(&forced);
    assert_eq!((code, forced.status.signal()), (Some(1), None), "{out}{err}");
    assert!(out.contains("pushed out of memory again"), "{out}");
    assert!(resident(&path) < 48 * MIB as u64);
}

/// As a service with TasksMax has it, or a container with a bound on processes.
#[test]
fn without_a_thread_to_spare_it_is_the_same() {
    let user = or_skip!(AsUser::new());
    let paths: Vec<_> = (0..3).map(|i| user.dir.path().join(format!("file{i}"))).collect();
    // One is so large that several threads read it, in the background, too.
    for (path, len) in paths.iter().zip([4096, 5 * MIB, 80 * MIB]) {
        std::fs::write(path, bytes(len)).unwrap();
        std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap_or(());
    }
    let mut shell = user.with_limit("-u 1 2>/dev/null || ulimit -p 1");
    let limited = shell.arg("populate").args(&paths).output().unwrap();
    println!("{}", text(&limited.stderr));
    assert_eq!(limited.status.code(), Some(0), "{}", text(&limited.stderr));
    assert!(paths.iter().all(|path| resident(path) == path.metadata().unwrap().len()));
}

/// The calls that Linux 5.10 lacks, or that a container's filter refuses.
fn old_kernel() -> Filter {
    const SYS_CACHESTAT: i64 = 451;
    let filter = Filter::new().refuse(Call::Number(SYS_CACHESTAT), Errno::NOSYS);
    let filter = filter.refuse(Call::ProcmapQuery, Errno::NOTTY);
    let filter = filter.refuse(Call::PagemapScan, Errno::NOTTY);
    filter.refuse(Call::Madvise(22), Errno::INVAL).refuse(Call::Madvise(23), Errno::INVAL)
}

#[test]
fn without_cachestat_and_populate_it_is_the_same() {
    in_child(this_test!(), &[], || {
        let dir = or_skip!(directory());
        let path = dir.path().join("file");
        cold(&path, 3 * MIB + 5);
        or_skip!(old_kernel().install_this_thread());
        let told = json(&populate(&["--json"], &[&path]));
        assert_eq!(number(&told, "resident_before"), 0);
        assert_eq!(number(&told, "read"), 3 * MIB as u64 + 5);
        assert_eq!(number(&told, "resident_after"), 3 * MIB as u64 + 5);
        assert_eq!(number(&json(&populate(&["--json"], &[&path])), "read"), 0);
    });
}

#[test]
fn without_populate_a_file_that_shrinks_is_no_signal_either() {
    in_child(this_test!(), &[], || {
        let dir = or_skip!(directory());
        or_skip!(old_kernel().install_this_thread());
        let Some(err) = shrunk_while_read(&dir.path().join("file")) else {
            skip!("the disk is too fast to be caught at it");
        };
        assert!(err.contains("it became shorter during the read"), "{err}");
    });
}

#[test]
fn what_is_no_file_is_a_problem_if_it_was_named() {
    let dir = or_skip!(directory());
    let pipe = dir.path().join("pipe");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    let (code, out, err) = parts(&populate(&["-q"], &[&pipe]));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.ends_with("/pipe: neither a regular file nor a directory\n"), "{err}");
    let (code, out, err) = parts(&populate(&["-v"], &[dir.path()]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("/pipe: special file\n") && out.contains("over: 1 special file"), "{out}");
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let dir = or_skip!(directory());
    let (name, shown) = ("evil\n\x1b[31mname", r"evil'$'\n\033''[31mname'");
    std::fs::write(dir.path().join(name), b"x").unwrap();
    let (code, out, err) = parts(&populate(&["-v"], &[dir.path(), &dir.path().join("no\x1b[1m")]));
    assert_eq!(code, Some(1));
    assert!(out.contains(shown) && !out.contains('\x1b'), "{out:?}");
    assert!(
        err.contains(r"no'$'\033''[1m': stat: No such file") && !err.contains('\x1b'),
        "{err:?}"
    );
    let json = json(&populate(&["--json"], &[dir.path()]));
    assert_eq!(json["list"][0]["path"].as_str(), dir.path().join(name).to_str());
}

#[test]
fn huge_pages_of_the_pool_are_allocated_and_the_numbers_agree() {
    const HUGE: u64 = 2 * MIB as u64;
    let _pool = or_skip!(MoreHugePages::add(4));
    let file = |pages: u64| {
        let flags = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::HUGE_2MB;
        let fd = rustix::fs::memfd_create("huge", flags).map_err(|e| e.to_string())?;
        rustix::fs::ftruncate(&fd, pages * HUGE).map_err(|e| e.to_string())?;
        let file = std::fs::File::from(fd);
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        let path = format!("/proc/{}/fd/{descriptor}", std::process::id());
        Ok::<_, String>((file, std::path::PathBuf::from(path)))
    };
    let (two, path) = or_skip!(file(2));
    let numbers = |done: &Output| {
        let told = json(done);
        let of = |name| number(&told, name);
        (of("resident_before"), of("read"), of("resident_after"), of("missing"))
    };
    let looked = populate(&["--json", "--dry-run"], &[&path]);
    assert_eq!(numbers(&looked), (0, 0, 0, 2 * HUGE), "nothing is allocated");
    let done = populate(&["--json"], &[&path]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(numbers(&done), (0, 2 * HUGE, 2 * HUGE, 0));
    assert_eq!(two.metadata().unwrap().blocks() * 512, 2 * HUGE);
    let (code, out, _) = parts(&populate(&["-v"], &[&path]));
    assert!(code == Some(0) && !out.contains("unknown"), "{out}");
    assert_eq!(out.matches("100 %").count(), 3, "{out}");

    let (many, path) = or_skip!(file(100_000));
    let (code, out, err) = parts(&populate(&[], &[&path]));
    assert_eq!(code, Some(1), "{out}");
    assert!(err.contains("huge pages of 2 MiB; raise vm.nr_hugepages"), "{err}");
    assert_eq!(many.metadata().unwrap().blocks(), 0);
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [&["--range", "5"][..], &["--deadline", "soon"], &["--threads", "0"], &[]] {
        let mut command = tenure();
        command.arg("populate").args(arguments);
        if !arguments.is_empty() {
            command.arg("/nonexistent");
        }
        assert_eq!(command.output().expect("starts").status.code(), Some(2), "{arguments:?}");
    }
}
