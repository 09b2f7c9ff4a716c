//! Filters as service managers set them: tenure never makes the calls for which they kill.

use crate::promise_kit::*;
use std::time::Duration;
use tenure::volatile::{self, Refill, Settings};
use tenure::{Cache, Outcome, Volatile};
use tenure_testkit::seccomp::{Call, Filter};
use tenure_testkit::{or_skip, this_test};

/// systemd's @resources, and the calls of @privileged for memory, threads and descriptors.
const KILLED: &[i64] = &[
    libc::SYS_ioprio_set,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_set_mempolicy,
    libc::SYS_setpriority,
    libc::SYS_setrlimit,
    libc::SYS_acct,
    libc::SYS_bpf,
    libc::SYS_capset,
    libc::SYS_fanotify_init,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_setdomainname,
    libc::SYS_setfsuid,
    libc::SYS_setgroups,
    libc::SYS_sethostname,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
    libc::SYS_vhangup,
];

#[test]
fn a_service_under_a_filter_that_kills_keeps_its_promises() {
    promised(this_test!(), || {
        let filter = KILLED.iter().fold(Filter::new(), |f, nr| f.kill(Call::Number(*nr)));
        or_skip!(filter.install_all_threads());
        let settings = Settings::default().with_offer_after(Duration::from_millis(1));
        volatile::configure(settings);
        let mut map = filled(256);
        let (p, len) = (map.as_mut_ptr(), map.len());
        let cache = Cache::<u64>::builder().ceiling(8 << 20).build().unwrap();
        for round in 0..3 {
            // SAFETY: inside the mapping, which lives on.
            unsafe { volatile::mark(p, len).unwrap() };
            for key in 0..20 {
                cache.insert(key, &vec![key as u8; 700_000]).unwrap();
            }
            // Waits for the worker.
            assert!(waited(|| tenure::stats().offered > 0), "round {round}: nothing was offered");
            // SAFETY: the whole mapping, which lives on, and is written only after it is unmarked.
            unsafe {
                let _ = volatile::purge_now(p, len).unwrap();
                if volatile::unmark(p, len).unwrap() == Outcome::Purged {
                    refill(&mut map);
                }
            }
            for key in 0..20 {
                if let Some(value) = cache.get(&key) {
                    assert!(value.iter().all(|b| *b == key as u8));
                }
            }
            let refill = Refill::pages(|_, bytes| {
                bytes.fill(7);
                Ok(())
            });
            let mut buffer = Volatile::builder(16 * PAGE).refill(refill).build().unwrap();
            buffer.pin_mut().unwrap().fill(7);
            let _ = buffer.purge_now().unwrap();
            assert!(buffer.pin().unwrap().iter().all(|b| *b == 7));
            assert_eq!(forked(|| drop(Volatile::new(PAGE).unwrap().pin().unwrap())), Ended::Well);
        }
    });
}
