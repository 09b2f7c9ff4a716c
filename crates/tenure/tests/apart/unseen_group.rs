//! A memory cgroup whose files cannot be seen, as in a container without `/sys/fs/cgroup`: it may
//! have any limit.

use crate::promise_kit::*;
use std::time::Duration;
use tenure::{pool, retire};
use tenure_testkit::{skip, this_test};

/// Hides the files from this thread, and from the threads that it starts. `false`: not permitted.
fn hide_groups() -> bool {
    let path = c"/sys/fs/cgroup".as_ptr();
    // SAFETY: this thread's own view of the file system, from here on.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::umount2(path, libc::MNT_DETACH) == 0
    }
}

fn written(len: usize) -> std::ptr::NonNull<u8> {
    let p = pool::alloc(len, 1, false).expect("a run");
    // SAFETY: this test's own run.
    unsafe { p.write_bytes(1, len) };
    p
}

/// Free memory stays below the smallest such group's limit, also in the first moments.
#[test]
fn what_is_kept_warm_has_nobody_killed() {
    if std::thread::spawn(hide_groups).join().ok() != Some(true) {
        skip!("no right to hide the files of cgroups");
    }
    let result = promised_within(this_test!(), 256 << 20, || {
        assert!(hide_groups());
        for prepared in [false, true] {
            for _ in 0..4 {
                for len in [200 << 20, 100 << 20, 60 << 20] {
                    let p = written(len);
                    // SAFETY: this test's own run, used no more.
                    unsafe { pool::free(p) };
                }
            }
            if !prepared {
                pool::prepare().unwrap();
                retire::prepare().unwrap();
            }
        }
        let at = plain(180 << 20);
        // SAFETY: this test's own mapping.
        unsafe {
            (at as *mut u8).write_bytes(1, 180 << 20);
            retire::munmap(at as *mut u8, 180 << 20).unwrap();
        }
        let again = plain(180 << 20);
        // SAFETY: this test's own mapping, just made and writable.
        unsafe { (again as *mut u8).write_bytes(1, 180 << 20) };
        retire::drain(Some(Duration::from_secs(10)));
    });
    if let Err(reason) = result {
        skip!("{reason}");
    }
}
