//! `tenure lock --follow` when memory has no room for new data: the existing locks stay.

use crate::kit::locker::{after_dropping, inode, Locker};
use crate::kit::*;
use std::path::Path;
use std::process::Command;
use tenure_testkit::{or_skip, MemoryCgroup};

const MIB: u64 = 1 << 20;

/// `tenure lock --follow` of a directory, in a memory cgroup.
fn follow(group: &MemoryCgroup, dir: &Path) -> Locker {
    let mut shell = Command::new("/bin/sh");
    let own = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.path().display());
    shell.args(["-c", &own, env!("CARGO_BIN_EXE_tenure"), "lock", "--follow"]).arg(dir);
    Locker::start(shell)
}

#[test]
fn a_file_that_memory_has_no_room_for_is_awaited_and_no_lock_is_lost() {
    let dir = or_skip!(directory());
    let group = or_skip!(MemoryCgroup::create("cli_follow_room", 40 << 20));
    std::fs::create_dir(dir.path().join("kept")).unwrap();
    let at = |name: &str| dir.path().join("kept").join(name);
    cold(&at("small"), 2 * MIB as usize);
    cold(&dir.path().join("large"), 80 * MIB as usize);
    let mut locker = follow(&group, &dir.path().join("kept"));
    std::fs::rename(dir.path().join("large"), at("large")).unwrap();
    // Seen later than the large file, or together with it. The large file has been refused by then.
    cold(&dir.path().join("late"), MIB as usize);
    std::fs::rename(dir.path().join("late"), at("late")).unwrap();
    locker.says(&["locked", "late"]);
    assert_eq!(locker.charged(), 3 * MIB);
    assert!(!locker.maps_inode(inode(&at("large"))));
    assert_eq!((resident(&at("large")), after_dropping(&at("small"))), (0, 2 * MIB));

    group.set_limit(160 << 20).expect("it may have more");
    locker.says(&["locked", "large"]);
    assert_eq!(locker.charged(), 83 * MIB);
    assert_eq!(after_dropping(&at("large")), 80 * MIB);
    assert_eq!(group.oom_kills(), 0);
    let (code, _, err) = locker.interrupt();
    assert_eq!((code, err.lines().count()), (Some(0), 1), "told once: {err}");
    assert!(
        err.contains("the file would need 80 MiB more memory") && err.contains("cgroup"),
        "{err}"
    );
}

#[test]
fn files_that_fit_each_and_not_together_are_locked_as_far_as_there_is_room() {
    let dir = or_skip!(directory());
    let group = or_skip!(MemoryCgroup::create("cli_follow_many", 40 << 20));
    let (kept, new) = (dir.path().join("kept"), dir.path().join("new"));
    std::fs::create_dir(&kept).unwrap();
    std::fs::create_dir(&new).unwrap();
    cold(&kept.join("small"), 2 * MIB as usize);
    for n in 0..10 {
        cold(&new.join(n.to_string()), 8 * MIB as usize);
    }
    let mut locker = follow(&group, &kept);
    std::fs::rename(&new, kept.join("new")).unwrap();
    locker.says(&["locked", "new"]);
    // Their number depends on the other charges of the cgroup. The last of them is read by now,
    // because the program prints a round when it is over.
    let charged = locker.charged();
    assert!((10 * MIB..=34 * MIB).contains(&charged), "{charged}");
    assert_eq!(after_dropping(&kept.join("small")), 2 * MIB);
    assert_eq!(group.oom_kills(), 0);
    let (code, _, err) = locker.interrupt();
    let refused = err.lines().filter(|line| line.contains("would need 8 MiB more memory")).count();
    assert_eq!((code, refused as u64 * 8 * MIB), (Some(1), 82 * MIB - charged), "{err}");
}

#[test]
fn a_locked_file_that_outgrows_memory_keeps_what_is_locked() {
    let dir = or_skip!(directory());
    let group = or_skip!(MemoryCgroup::create("cli_follow_grows", 40 << 20));
    let path = dir.path().join("file");
    cold(&path, 80 * MIB as usize);
    // Cold data that arrives at once: the file stays locked up to its former end.
    let second = dir.path().join("second");
    std::fs::write(&second, bytes(2 * MIB as usize)).unwrap();
    std::fs::create_dir(dir.path().join("kept")).unwrap();
    let kept = dir.path().join("kept/second");
    std::fs::rename(&second, &kept).unwrap();
    let mut locker = follow(&group, &dir.path().join("kept"));
    assert_eq!(locker.charged(), 2 * MIB);
    let grown = Command::new("dd")
        .arg(format!("if={}", path.display()))
        .arg(format!("of={}", kept.display()))
        .args(["bs=1M", "seek=2", "conv=notrunc", "iflag=direct", "oflag=direct", "status=none"])
        .status();
    if !grown.is_ok_and(|status| status.success()) {
        tenure_testkit::skip!("the file system has no direct writing, or there is no dd");
    }
    cold(&dir.path().join("late"), 100);
    std::fs::rename(dir.path().join("late"), dir.path().join("kept/late")).unwrap();
    locker.says(&["locked", "late"]);
    // It may have locked a part of the new data. The pages that it had locked must still be locked.
    assert!(locker.charged() >= 2 * MIB && locker.charged() < 40 * MIB, "{}", locker.charged());
    drop_pages(&kept, 0..82 * MIB);
    let file = std::fs::File::open(&kept).unwrap();
    let first = tenure::page_cache::resident_bytes(&file, 0..2 * MIB).unwrap();
    assert_eq!(first, Some(2 * MIB));
    assert_eq!(group.oom_kills(), 0);
    let (code, _, err) = locker.interrupt();
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("more memory, and there is room for"), "{err}");
}
