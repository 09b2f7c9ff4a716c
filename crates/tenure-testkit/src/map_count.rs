//! The kernel's limit on the mappings of a process, `vm.max_map_count`. The machine has one.

#![allow(unsafe_code, reason = "maps memory, and changes its protection page by page")]

use crate::setting::Turn;
use crate::Unavailable;
use rustix::param::page_size;
use std::ptr::null_mut;

const FILE: &str = "/proc/sys/vm/max_map_count";
/// A test can make so many mappings in a second. A distribution may have raised the limit.
const HIGHEST: usize = 200_000;

/// Waits until no test relies on the limit, for a test that may raise it.
pub fn turn() -> Result<Turn, Unavailable> {
    Turn::take(FILE)
}

/// The limit. No test raises it until this is dropped, in any copy of the suite.
#[derive(Debug)]
pub struct MapCountLimit {
    /// How many mappings a process may have.
    pub mappings: usize,
    _turn: Turn,
}

impl MapCountLimit {
    /// The present limit.
    pub fn now() -> Result<MapCountLimit, Unavailable> {
        let turn = Turn::share(FILE)?;
        let text = std::fs::read_to_string(FILE).unwrap_or_default();
        let mappings = text
            .trim()
            .parse()
            .map_err(|_| Unavailable::new(format!("{FILE} is {text:?}, not a number")))?;
        Ok(MapCountLimit { mappings, _turn: turn })
    }

    /// The present limit, if a test can make so many mappings.
    pub fn reachable() -> Result<MapCountLimit, Unavailable> {
        let limit = MapCountLimit::now()?;
        match limit.mappings {
            ..=HIGHEST => Ok(limit),
            many => Err(Unavailable::new(format!("vm.max_map_count is {many}: too many to make"))),
        }
    }
}

/// So many mappings that the kernel splits no mapping of this process any more. They end when this is
/// dropped.
#[derive(Debug)]
pub struct Filler {
    start: usize,
    len: usize,
    _limit: MapCountLimit,
}

impl Filler {
    /// Makes them. No thread can start afterwards, and an allocation that needs a mapping fails.
    ///
    /// # Panics
    /// If the kernel goes on past its limit.
    pub fn to_limit() -> Result<Filler, Unavailable> {
        let limit = MapCountLimit::reachable()?;
        let (page, pages) = (page_size(), 2 * limit.mappings);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(null_mut(), pages * page, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let filler = Filler { start: at as usize, len: pages * page, _limit: limit };
        // Neighbours with the same protection would be one mapping.
        let is_split = |number: usize| {
            let at = (filler.start + number * page) as *mut libc::c_void;
            // SAFETY: a page of the mapping above, which nothing reads or writes.
            unsafe { libc::mprotect(at, page, libc::PROT_READ) == 0 }
        };
        assert!(
            !(0..pages).step_by(2).all(is_split),
            "the kernel has more mappings than its limit"
        );
        Ok(filler)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, to which nothing refers.
        let done = unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}
