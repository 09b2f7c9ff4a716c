//! Many processes with volatile memory under one limit.

use crate::promise_kit::*;
use std::time::Duration;
use tenure::volatile::Volatile;
use tenure_testkit::{this_test, Competitor};

const PROCESSES: usize = 8;
/// In each process: together three quarters of the limit.
const BUFFERS: usize = 12;
const LIMIT: u64 = 128 << 20;

/// A worker that uses its volatile memory all the time, and pins none of it for long. It is killed
/// if the test stops early.
fn user() -> i32 {
    worker(|| {
        let mut buffers: Vec<_> = (0..BUFFERS).map(|_| Volatile::new(MIB).unwrap()).collect();
        loop {
            for buffer in &mut buffers {
                // Purged bytes are made again.
                let mut pinned = buffer.pin_mut().unwrap();
                pinned.fill(1);
                pinned.restored();
                drop(pinned);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    })
}

/// Each keeps only its share from the kernel, so that together they leave most of the limit to a
/// neighbour.
#[test]
fn a_neighbour_gets_what_none_of_them_uses() {
    let done = promised_within(this_test!(), LIMIT, || {
        let workers: Vec<i32> = (0..PROCESSES).map(|_| user()).collect();
        std::thread::sleep(Duration::from_secs(2));
        let mut neighbour = Competitor::spawn(None).unwrap();
        neighbour.need(90 << 20).unwrap();
        assert_eq!(neighbour.status(), None, "the neighbour was killed");
        for pid in workers {
            let mut status = 0;
            // SAFETY: checks and kills a child of this process's own.
            unsafe {
                assert_eq!(libc::waitpid(pid, &mut status, libc::WNOHANG), 0, "one was killed");
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, &mut status, 0);
            }
        }
    });
    tenure_testkit::or_skip!(done);
}
