//! Gives tenure's threads only processor time that no other thread wants.

#![allow(unsafe_code, reason = "changes how threads are scheduled")]

use crate::sys;
use std::sync::atomic::{AtomicU64, Ordering};

/// Starts busy loops, one for each processor, and a thread that finds tenure's threads and puts
/// them into `SCHED_IDLE`, again and again, because they come and go.
pub fn start() {
    static TURNS: AtomicU64 = AtomicU64::new(0);
    let loops = std::thread::available_parallelism().map_or(1, usize::from);
    for n in 0..loops {
        let turn = || loop {
            TURNS.fetch_add(1, Ordering::Relaxed);
        };
        let _ = std::thread::Builder::new().name(format!("busy-{n}")).spawn(turn);
    }
    let starve = || loop {
        starve_all();
        sys::nap_us(20_000);
    };
    let _ = std::thread::Builder::new().name("starver".into()).spawn(starve);
}

fn starve_all() {
    let own = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for thread in own {
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        let id = thread.file_name().to_string_lossy().parse::<i32>();
        let (true, Ok(id)) = (name.starts_with("tenure"), id) else { continue };
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: a thread of this process, or one that has ended since; the structure is read
        // only.
        unsafe { libc::sched_setscheduler(id, libc::SCHED_IDLE, &none) };
    }
}
