//! The ways to unmap: tenure's, and others'.

#![allow(unsafe_code, reason = "unmaps what it was given")]

use crate::backing::{unsupported, Fresh};
use crate::harness::Role;
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use std::hint::black_box;
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use tenure::retire;

/// The slice of a data frame library that unmaps on a thread of its own.
const SLICE: usize = 32 << 20;

/// How long memory may take to come back.
const PATIENCE: Duration = Duration::from_secs(120);

/// A way to unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// tenure's.
    Retire,
    /// One call.
    Munmap,
    /// A call for each 32 MiB.
    Slices,
    /// `MADV_DONTNEED`, and then `munmap` of the empty mapping. Not equivalent: in between, the
    /// addresses read as zeros.
    DiscardFirst,
    /// Not unmapping, but computing meanwhile: the machine's own effect on the bystanders.
    Nothing,
}

impl Way {
    pub const ALL: [Way; 5] =
        [Way::Retire, Way::Munmap, Way::Slices, Way::DiscardFirst, Way::Nothing];

    pub fn name(self) -> &'static str {
        match self {
            Way::Retire => "tenure, retire",
            Way::Munmap => "munmap",
            Way::Slices => "munmap in 32 MiB slices",
            Way::DiscardFirst => "MADV_DONTNEED, then munmap",
            Way::Nothing => "nothing is unmapped",
        }
    }

    pub fn role(self) -> Role {
        match self {
            Way::Retire => Role::Ours,
            Way::Nothing => Role::Reference,
            _ => Role::Peer,
        }
    }

    /// The preparation before the time is taken.
    pub fn prepare(self) -> io::Result<()> {
        match self {
            Way::Retire => retire::prepare().map_err(io::Error::other),
            _ => Ok(()),
        }
    }

    /// Unmaps, and returns when the caller may continue.
    pub fn perform(self, fresh: Fresh) -> io::Result<()> {
        let (addr, len) = (fresh.addr, fresh.len);
        if self == Way::Nothing {
            // About as long as unmapping would take.
            let time = Duration::from_millis((len as u64 >> 20) / 8).max(Duration::from_millis(50));
            let start = Instant::now();
            let mut turns = 0u64;
            while start.elapsed() < time {
                turns = black_box(turns + 1);
            }
            // A drop here would unmap it while the bystanders watch.
            std::mem::forget(fresh);
            return Ok(());
        }
        // Its own drop would unmap memory that another mapping may have by then. The process ends
        // soon.
        std::mem::forget(fresh);
        // SAFETY: only this function has the mapping from here on; all slices lie inside it.
        unsafe {
            match self {
                Way::Retire => retire::munmap(addr, len).map(drop).map_err(io::Error::other)?,
                Way::Munmap => mm::munmap(addr.cast(), len)?,
                Way::Slices => {
                    for at in (0..len).step_by(SLICE) {
                        mm::munmap(addr.add(at).cast(), SLICE.min(len - at))?;
                    }
                }
                Way::DiscardFirst => {
                    match mm::madvise(addr.cast(), len, Advice::LinuxDontNeed) {
                        Err(Errno::INVAL) => {
                            return Err(unsupported("MADV_DONTNEED is refused for this mapping"))
                        }
                        other => other?,
                    }
                    mm::munmap(addr.cast(), len)?;
                }
                Way::Nothing => {}
            }
        }
        Ok(())
    }

    /// Waits until all of the memory is back, without helping.
    pub fn wait(self) -> io::Result<()> {
        let start = Instant::now();
        while self == Way::Retire && retire::pending().bytes > 0 {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("memory not back after {PATIENCE:?}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
