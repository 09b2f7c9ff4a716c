//! The cache: with all features of this kernel, and again with parts of it refused.

#[path = "suite/refused.rs"]
mod refused;
#[path = "suite/cache.rs"]
mod suite;

/// Forks while other threads use the cache: every lock is free in the child, and no byte wrong.
#[test]
fn a_child_can_use_the_cache() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use tenure_testkit::{run_child, this_test};
    let result = run_child(this_test!(), &[], || {
        let cache = tenure::Cache::<u64>::builder().ceiling(32 << 20).build().unwrap();
        let value = |key: u64| vec![(key % 251) as u8; 3000 + key as usize % 3000];
        let check = |key: u64| match cache.get(&key) {
            Some(found) => assert!(found[..] == value(key)[..], "key {key}"),
            None => cache.insert(key, &value(key)).unwrap(),
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (check, done) = (&check, &done);
                scope.spawn(move || {
                    let mut key = thread * 7919;
                    while !done.load(Ordering::Relaxed) {
                        key =
                            key.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        check((key >> 33) % 9000);
                    }
                });
            }
            for round in 0..30u64 {
                // SAFETY: the child uses the cache and ends without unwinding.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let use_it = || (0..3000u64).for_each(|i| check((i * 31 + round) % 9000));
                    let failed =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(use_it)).is_err();
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(i32::from(failed)) };
                }
                let mut status = 0;
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert_eq!(status, 0, "round {round}");
            }
            done.store(true, Ordering::Relaxed);
        });
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
