//! System calls that fail, and descriptors that are closed behind tenure's back.

use crate::rng::Rng;
use crate::setting;
use crate::sys;
use crate::tally::{add, tally};
use std::sync::atomic::Ordering;
use std::sync::OnceLock;
use tenure_testkit::seccomp::{Call, Errno, NthFailure, When};
use tenure_testkit::Unavailable;

/// Which system calls fail, and how.
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
/// mmap of private memory for which nothing is reserved.
pub const MAP: Call = Call::WithArgument(
    libc::SYS_mmap,
    3,
    (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u32,
);

/// Makes calls fail from now on, one in a while. To be called before any other thread starts.
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

const DESCRIPTORS: i32 = 2048;

fn is_open(fd: i32) -> bool {
    // SAFETY: plain numbers.
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
            // SAFETY: not one of the driver's, and none of its other threads is opening one. Programs
            // that become daemons do this.
            unsafe { libc::close(fd) };
            add(&tally().closed, 1);
        }
    }
}
