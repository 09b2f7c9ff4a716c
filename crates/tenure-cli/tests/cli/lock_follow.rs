//! `tenure lock --follow`: files that are replaced, written, deleted and new.

use crate::kit::locker::{after_dropping, inode, pages, replace, Locker};
use crate::kit::*;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{in_child, or_skip, skip, this_test};

const MIB: u64 = 1 << 20;

#[test]
fn on_fault_and_follow_keep_what_others_bring_in() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    cold(&path, 2 * MIB as usize);
    let locker = Locker::on(&["--on-fault", "--follow"], &[&path]);
    assert_eq!(resident(&path), 0);
    assert_eq!(std::fs::read(&path).unwrap().len(), 2 * MIB as usize);
    // At the next look, ten seconds later at most.
    until("what was read is locked", || {
        after_dropping(&path) > 0 || {
            assert_eq!(std::fs::read(&path).unwrap().len(), 2 * MIB as usize);
            std::thread::sleep(Duration::from_millis(500));
            false
        }
    });
    assert_eq!(locker.interrupt().0, Some(0));
}

#[test]
fn replaced_truncated_extended_deleted_and_new_files_are_followed() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(MIB as usize)).unwrap();
    let old = inode(&path);
    let mut locker = Locker::on(&["--follow"], &[dir.path()]);
    assert_eq!(locker.charged(), MIB);
    assert!(locker.maps_inode(old));

    let new = replace(&path, 600 << 10);
    assert_ne!(old, new);
    // At every time at least one of them is held.
    until("the new one is held alone", || {
        let maps = locker.inodes();
        let (old, new) = (maps.contains(&old), maps.contains(&new));
        assert!(old || new, "the old one was let go first");
        new && !old
    });
    locker.says(&["released", "(1 MiB): replaced"]);
    assert!(locker.maps_inode(new) && !locker.maps_inode(old));
    assert_eq!(locker.charged(), 600 << 10);

    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(50_000).unwrap();
    locker.says(&["anew", "was 600 KiB"]);
    assert_eq!(locker.charged(), pages(50_000));

    // The file grows as a log does: many times, by little.
    for _ in 0..40 {
        std::io::Write::write_all(&mut &file, &bytes(9000)).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    until("the new end is locked", || locker.charged() == pages(50_000 + 40 * 9000));
    until("the new end is resident", || after_dropping(&path) == 50_000 + 40 * 9000);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", locker.pid())).unwrap();
    let mappings = maps.lines().filter(|line| line.contains("/file")).count();
    assert!(mappings <= 8, "{mappings} mappings of one file");

    // Written again in place: other contents in other pages, but the inode and the length stay.
    std::fs::write(&path, bytes(50_000 + 40 * 9000)).unwrap();
    until("it is locked again", || {
        locker.charged() == pages(50_000 + 40 * 9000) && after_dropping(&path) == 50_000 + 40 * 9000
    });

    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let late = dir.path().join("sub/late");
    std::fs::write(&late, bytes(5 * page() as usize)).unwrap();
    until("the new file is locked", || locker.charged() == pages(50_000 + 40 * 9000) + 5 * page());
    assert!(locker.maps_inode(inode(&late)));

    std::fs::remove_file(&path).unwrap();
    locker.says(&["released", "deleted"]);
    assert_eq!(locker.charged(), 5 * page());
    std::fs::remove_dir_all(dir.path().join("sub")).unwrap();
    until("nothing is locked", || locker.charged() == 0);

    let (code, out, err) = locker.interrupt();
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.ends_with("unlocked 0 files, 0 B\n"), "{out}");
}

#[test]
fn a_switched_link_and_a_file_that_comes_late_are_followed() {
    let dir = or_skip!(directory());
    let at = |name: &str| dir.path().join(name);
    for (version, len) in [("v1", 3), ("v2", 4)] {
        std::fs::create_dir(at(version)).unwrap();
        std::fs::write(at(version).join("data"), bytes(len * page() as usize)).unwrap();
    }
    symlink("v1", at("current")).unwrap();
    let mut locker = Locker::on(&["--follow"], &[&at("current/data"), &at("late")]);
    assert!(locker.maps_inode(inode(&at("v1/data"))));
    symlink("v2", at("next")).unwrap();
    std::fs::rename(at("next"), at("current")).unwrap();
    locker.says(&["released", "current/data", "replaced"]);
    assert!(locker.maps_inode(inode(&at("v2/data"))) && !locker.maps_inode(inode(&at("v1/data"))));
    std::fs::write(at("late"), bytes(10)).unwrap();
    locker.says(&["locked", "late"]);
    assert_eq!(locker.charged(), 5 * page());
    let (code, _, err) = locker.interrupt();
    assert_eq!(code, Some(0), "what was missing has come: {err}");
    assert!(err.contains("late: stat: No such file"), "{err}");
}

#[test]
fn without_follow_a_deleted_file_stays_whole() {
    let dir = or_skip!(directory());
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(MIB as usize)).unwrap();
    let old = inode(&path);
    let locker = Locker::on(&[], &[&path]);
    replace(&path, 100);
    std::thread::sleep(Duration::from_millis(300));
    assert!(locker.maps_inode(old));
    assert_eq!(locker.charged(), MIB);
    assert_eq!(locker.interrupt().0, Some(0));
}

#[test]
fn a_replaced_file_is_locked_even_where_there_is_no_room_for_both() {
    let user = or_skip!(AsUser::new());
    let path = user.dir.path().join("file");
    let write = |path: &Path| {
        std::fs::write(path, bytes(MIB as usize)).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
    };
    write(&path);
    let mut command = user.tenure_with_limit(MIB + MIB / 2);
    command.args(["lock", "--follow"]).arg(&path);
    let mut locker = Locker::start(command);
    assert_eq!(locker.charged(), MIB);
    let new = user.dir.path().join("new");
    write(&new);
    std::fs::rename(&new, &path).unwrap();
    locker.says(&["released", "replaced"]);
    until("the new one is locked", || locker.charged() == MIB && locker.maps_inode(inode(&path)));
    assert_eq!(locker.interrupt().0, Some(0));
}

#[test]
fn many_files_take_no_descriptors() {
    let dir = or_skip!(directory());
    // As many pages as an ordinary user may lock by default.
    let many = 1500;
    let names: Vec<PathBuf> = (0..many).map(|n| dir.path().join(n.to_string())).collect();
    for name in &names {
        std::fs::write(name, b"x").unwrap();
    }
    let mut locker = Locker::on(&["--follow"], &[dir.path()]);
    assert_eq!(locker.charged(), many * page());
    // More events than one look reads.
    for name in &names[..1000] {
        std::fs::remove_file(name).unwrap();
    }
    until("they are let go", || locker.charged() == (many - 1000) * page());
    locker.says(&["released"]);
    let open = std::fs::read_dir(format!("/proc/{}/fd", locker.pid())).expect("it runs");
    let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let of_files: Vec<_> = links.filter(|link| link.starts_with(dir.path())).collect();
    assert!(of_files.is_empty(), "{of_files:?}");
    let (code, out, _) = locker.interrupt();
    assert_eq!(code, Some(0));
    assert!(out.ends_with("unlocked 500 files, 2.0 MiB\n"), "{out}");
}

#[test]
fn an_overflow_of_events_loses_nothing() {
    let dir = or_skip!(directory());
    let queue = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").ok();
    let queue: usize = queue.and_then(|text| text.trim().parse().ok()).unwrap_or(usize::MAX);
    if queue > 1 << 17 {
        skip!("fs.inotify.max_queued_events is {queue}: too many events to make");
    }
    let at = |name: &str| dir.path().join(name);
    for name in ["a", "b"] {
        std::fs::write(at(name), b"x").unwrap();
    }
    let locker = Locker::on(&["--follow"], &[dir.path()]);
    signal(locker.pid(), rustix::process::Signal::STOP);
    // Alternately, because the kernel merges two equal events that follow each other.
    let open = |name: &str| std::fs::OpenOptions::new().append(true).open(at(name)).unwrap();
    let mut files = [open("a"), open("b")];
    for n in 0..queue + 100 {
        std::io::Write::write_all(&mut files[n % 2], b"y").unwrap();
    }
    // The queue is full by now and has no room for these events.
    std::fs::write(at("late"), bytes(3 * page() as usize)).unwrap();
    std::fs::remove_file(at("b")).unwrap();
    signal(locker.pid(), rustix::process::Signal::CONT);
    let a = pages(std::fs::metadata(at("a")).unwrap().len());
    until("the last state is locked", || locker.charged() == a + 3 * page());
    assert!(locker.maps_inode(inode(&at("late"))));
    assert_eq!(locker.interrupt().0, Some(0));
}

#[test]
fn without_inotify_changes_are_found_later() {
    in_child(this_test!(), &[], || {
        let dir = or_skip!(directory());
        let path = dir.path().join("file");
        std::fs::write(&path, bytes(MIB as usize)).unwrap();
        let filter = Filter::new().refuse(Call::Number(libc::SYS_inotify_init1), Errno::MFILE);
        or_skip!(filter.install_this_thread());
        let locker = Locker::on(&["--follow"], &[&path]);
        let new = replace(&path, 300 << 10);
        until("the new one is held alone", || {
            locker.maps_inode(new) && locker.charged() == 300 << 10
        });
        let (code, _, err) = locker.interrupt();
        assert_eq!(code, Some(0));
        assert!(err.contains("within 10 s") && err.contains("max_user_instances"), "{err}");
    });
}
