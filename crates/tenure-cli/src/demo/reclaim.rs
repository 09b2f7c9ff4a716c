//! The reclaim of the stand-in, for a demo without a cgroup: the worker asks the kernel to page out
//! its mappings with lazily freed pages.
//!
//! `MADV_PAGEOUT` needs no privilege and uses the kernel's own discard path: pages that were given
//! up with `MADV_FREE` and not taken back are dropped, all others stay (or go to swap, if there is
//! some). Unlike real pressure it selects by address and not by age.

#![allow(unsafe_code, reason = "gives advice for memory that it was given")]

use anyhow::Context;
use rustix::mm::{madvise, Advice};
use std::ffi::c_void;

/// Large enough for few calls, small enough not to take much more than requested.
const STEP: usize = 4 << 20;

/// Has the kernel discard about `bytes` of the memory that this process has offered. Returns how
/// many went.
pub fn reclaim(bytes: u64) -> anyhow::Result<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").context("reading smaps")?;
    let mut gone = 0;
    for (start, end) in offered(&smaps) {
        for at in (start..end).step_by(STEP) {
            if gone >= bytes {
                return Ok(gone);
            }
            let before = own_resident();
            let len = STEP.min(end - at);
            // SAFETY: in any mapping, this advice changes no byte on which the program may rely: it
            // drops pages that were given up, and at most moves others to swap. A range that was
            // unmapped meanwhile only gives an error.
            let _ = unsafe { madvise(at as *mut c_void, len, Advice::LinuxPageOut) };
            gone += before.saturating_sub(own_resident());
        }
    }
    Ok(gone)
}

fn own_resident() -> u64 {
    super::process::own_bytes("self")
}

/// The mappings in which the kernel counts lazily freed pages.
fn offered(smaps: &str) -> Vec<(usize, usize)> {
    let mut mappings = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16);
            current = address(start).ok().zip(address(end).ok());
        } else if first == "LazyFree:" && words.next().is_some_and(|kib| kib != "0") {
            mappings.extend(current);
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_with_lazily_freed_pages_are_found() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
Size:               4096 kB\nRss:                4096 kB\nLazyFree:           2048 kB\n\
VmFlags: rd wr mr mw me ac\n\
7f0000400000-7f0000800000 r--p 00000000 fe:00 77  /usr/lib/a b-c.so\n\
LazyFree:              0 kB\n";
        assert_eq!(offered(smaps), [(0x7f00_0000_0000, 0x7f00_0040_0000)]);
    }

    #[test]
    fn offered_memory_goes_and_other_memory_stays() {
        let mut kept = memmap2::MmapMut::map_anon(STEP).unwrap();
        kept.fill(7);
        let mut given = memmap2::MmapMut::map_anon(2 * STEP).unwrap();
        given.fill(9);
        // SAFETY: no code relies on these bytes any more.
        unsafe { given.unchecked_advise(memmap2::UncheckedAdvice::Free) }.unwrap();
        let gone = || {
            let pages = tenure_measure::pages::present_pages(given.as_ptr() as usize, given.len());
            pages.iter().filter(|present| !**present).count() * rustix::param::page_size()
        };
        // The kernel skips a page that another processor has just put into a batch.
        for _ in 0..20 {
            if gone() >= STEP {
                break;
            }
            reclaim(2 * STEP as u64).unwrap();
        }
        assert!(gone() >= STEP, "only {} bytes went", gone());
        assert!(kept.iter().all(|&byte| byte == 7));
    }
}
