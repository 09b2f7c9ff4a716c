//! System calls that fail, and descriptors that are closed behind tenure's back.

#![allow(unsafe_code, reason = "takes descriptors and limits away from itself")]

use crate::rng::Rng;
use crate::setting;
use crate::sys;
use crate::tally::{add, tally};
use crate::wrong;
use std::sync::atomic::Ordering;
use std::sync::OnceLock;
use tenure::volatile::{self, Detection};
use tenure_measure::seccomp::{Call, Errno, Filter, NthFailure, When};
use tenure_measure::Unavailable;

/// The system calls that fail, and their error.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The calls.
    pub calls: &'static [Call],
    /// Their error.
    pub errno: Errno,
}

/// UFFDIO_REGISTER.
pub const REGISTER: Call = Call::Ioctl(0xC020_AA00);
/// UFFDIO_UNREGISTER.
pub const UNREGISTER: Call = Call::Ioctl(0x8010_AA01);
/// UFFDIO_COPY.
pub const COPY: Call = Call::Ioctl(0xC028_AA03);
/// mmap of private memory without a reservation.
pub const MAP: Call = Call::WithArgument(
    libc::SYS_mmap,
    3,
    (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u32,
);

/// Makes calls fail from now on, from time to time. It is called before any other thread starts.
pub fn start(fault: Fault, seed: u64) -> Result<(), Unavailable> {
    let failing = NthFailure::install(fault.calls, fault.errno, When::Never)?;
    setting::INJECTED.store(fault.errno.raw_os_error(), Ordering::Relaxed);
    let rearm = move || {
        for n in 0.. {
            let mut rng = Rng::of_operation(seed, 1 << 20, n);
            let nth = 1 + rng.below(12) as u64;
            failing.rearm(if rng.once_in(5) { When::FromNth(nth) } else { When::Nth(nth) });
            sys::nap_us(1000 + rng.below(12_000) as u64);
            add(&tally().failures, failing.failures());
            failing.rearm(When::Never);
            sys::nap_us(rng.below(3000) as u64);
        }
    };
    std::thread::Builder::new().name("faults".into()).spawn(rearm).expect("a thread");
    Ok(())
}

/// Uses tenure for the first time while no descriptor is free. Then descriptors become free, and
/// after a while tenure uses userfaultfd.
pub fn first_use_without_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let none = libc::rlimit { rlim_cur: 0, ..limit };
    let set = |limit: &libc::rlimit| {
        // SAFETY: the kernel reads `limit`, which lives through the call, and changes only this
        // process's own limit.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) };
    };
    let Some(at) = sys::map(sys::page_bytes(), false) else { return };
    let use_it = || {
        // SAFETY: memory of this function's own that stays.
        let _ = unsafe {
            volatile::mark(at as *mut u8, sys::page_bytes())
                .and_then(|()| volatile::unmark(at as *mut u8, sys::page_bytes()))
        };
    };
    set(&none);
    use_it();
    set(&limit);
    let end = sys::now_ms() + 2500;
    while volatile::detection() == Detection::Words && sys::now_ms() < end {
        use_it();
        sys::nap_us(20_000);
    }
    if volatile::detection() == Detection::Words {
        wrong!("one EMFILE at the first use chose the weaker detection for good");
    }
}

/// Calls that systemd's units commonly kill for (`SystemCallFilter=~@resources @privileged`).
pub fn filter() -> Result<(), Unavailable> {
    let killed = [
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setaffinity,
        libc::SYS_setpriority,
        libc::SYS_ioprio_set,
        libc::SYS_mbind,
        libc::SYS_set_mempolicy,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
        libc::SYS_setrlimit,
        libc::SYS_capset,
        libc::SYS_chroot,
        libc::SYS_setuid,
        libc::SYS_quotactl,
    ];
    let filter =
        killed.iter().fold(Filter::new(), |filter, number| filter.kill(Call::Number(*number)));
    filter.install_this_thread()
}

const DESCRIPTORS: i32 = 2048;

fn is_open(fd: i32) -> bool {
    // SAFETY: the call takes numbers only, and asks for the flags of a descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

static OWN: OnceLock<Vec<bool>> = OnceLock::new();

/// Notes which descriptors are the driver's: those open now.
pub fn note_descriptors() {
    OWN.get_or_init(|| (0..DESCRIPTORS).map(is_open).collect());
}

/// Closes every descriptor that is not the driver's. All other threads are parked.
pub fn close_descriptors() {
    let Some(own) = OWN.get() else { return };
    for fd in 0..DESCRIPTORS {
        if !own[fd as usize] && is_open(fd) {
            // Programs that become daemons do this.
            // SAFETY: the descriptor is none of the driver's, and no other thread of the driver
            // opens one now.
            unsafe { libc::close(fd) };
            add(&tally().closed, 1);
        }
    }
}
