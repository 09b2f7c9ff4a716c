//! The ways to keep touched memory resident.

#![allow(unsafe_code, reason = "locks what it has mapped")]

use super::access::Accesses;
use super::file::{unsupported, Mapped, RandomFile};
use super::handler;
use crate::harness::Sample;
use rustix::io::Errno;
use rustix::mm::{mlock, mlock_with, MlockFlags, ProtFlags};
use rustix::param::page_size;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::time::Instant;

/// The original's six, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// `mlock` of the whole mapping.
    LockAll,
    /// `mlock` of the page before each access.
    LockEach,
    /// `PROT_NONE` and a signal handler that locks this many pages at a time.
    Handler(usize),
    /// `mlock2(MLOCK_ONFAULT)` of the whole mapping.
    OnFault,
    /// tenure's.
    Ours,
}

/// The column of the time before the first access.
pub(super) const SETUP: &str = "setup ms";

/// The report of a sample's process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    setup: f64,
    processing: f64,
    first: f64,
    last: f64,
    /// Milliseconds since the beginning, setup included, after each part of the accesses.
    pub until: Vec<f64>,
    locked_mib: f64,
}

impl From<&Measured> for Sample {
    fn from(m: &Measured) -> Sample {
        Sample::from(m.setup + m.processing)
            .with(SETUP, m.setup)
            .with("processing ms", m.processing)
            .with("first 15th", m.first)
            .with("last 15th", m.last)
            .with("locked MiB", m.locked_mib)
    }
}

impl Way {
    /// Whether each page or batch of pages may become a mapping of its own.
    pub fn splits_mappings(self) -> bool {
        matches!(self, Way::LockEach | Way::Handler(_))
    }

    /// Sets up, accesses, and checks the bytes and that they are locked. It runs in a process of
    /// its own: a handler and locks stay.
    pub fn measure(self, file: &RandomFile, accesses: &Accesses) -> io::Result<Measured> {
        let start = Instant::now();
        let prot = match self {
            Way::Handler(_) => ProtFlags::empty(),
            _ => ProtFlags::READ,
        };
        let map = file.map(prot)?;
        let held = self.set_up(&map)?;
        let setup = start.elapsed().as_secs_f64() * 1e3;
        let page = page_size();
        let mut refused = None;
        let each = |at: *const u8| {
            let at = (at as usize & !(page - 1)) as *mut std::ffi::c_void;
            // SAFETY: locking changes no contents; the page is the mapping's.
            if let Err(errno) = unsafe { mlock(at, page) } {
                refused.get_or_insert(errno);
            }
        };
        // SAFETY: the mapping lives until the end of this function, is the file's full length, and
        // is readable, or made so by the handler that was installed over it.
        let processed = unsafe {
            match self {
                Way::LockEach => accesses.run(map.addr(), each),
                _ => accesses.run(map.addr(), |_| ()),
            }
        };
        if let Some(errno) = refused {
            return Err(unsupported(&format!("mlock before an access: {errno}")));
        }
        handler::check()?;
        accesses.check(&processed)?;
        let locked = locked_bytes()?;
        // Of 11 accesses a page one page in 90,000 is missed.
        if locked < map.len() as u64 / 100 * 99 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("only {} of {} MiB are locked", locked >> 20, map.len() >> 20),
            ));
        }
        drop(held);
        Ok(Measured {
            setup,
            processing: processed.total(),
            first: processed.first(),
            last: processed.last(),
            until: processed.until.iter().map(|until| setup + until).collect(),
            locked_mib: (locked >> 20) as f64,
        })
    }

    fn set_up(self, map: &Mapped) -> io::Result<Option<tenure::lock::Gradual>> {
        let addr = map.addr().cast();
        // SAFETY: locking changes no contents; the range is the mapping's.
        let locked = unsafe {
            match self {
                Way::LockAll => mlock(addr, map.len()),
                Way::OnFault => mlock_with(addr, map.len(), MlockFlags::ONFAULT),
                _ => Ok(()),
            }
        };
        match locked {
            Err(errno @ (Errno::PERM | Errno::NOMEM)) => {
                return Err(unsupported(&format!("locking {} MiB: {errno}", map.len() >> 20)))
            }
            other => other?,
        }
        match self {
            Way::Ours => super::ours::hold(map).map(Some),
            Way::Handler(batch) => {
                let start = map.addr() as usize;
                handler::install(start..start + map.len(), page_size(), batch)?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// Bytes of this process's memory that are resident in locked mappings.
fn locked_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    text.lines()
        .find_map(|line| line.strip_prefix("Locked:")?.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map(|kib| kib << 10)
        .ok_or_else(|| io::Error::other("smaps_rollup has no line \"Locked\""))
}

/// An error unless this process may lock `len` bytes.
pub(super) fn check_limit(file: &RandomFile) -> io::Result<()> {
    let map = file.map(ProtFlags::READ)?;
    // SAFETY: locking on fault touches nothing; the mapping is removed at once.
    match unsafe { mlock_with(map.addr().cast(), map.len(), MlockFlags::ONFAULT) } {
        Ok(()) => Ok(()),
        Err(errno) => Err(unsupported(&format!(
            "this user may not lock {} MiB ({errno}): give it CAP_IPC_LOCK or `ulimit -l {}`",
            map.len() >> 20,
            map.len() >> 10
        ))),
    }
}
