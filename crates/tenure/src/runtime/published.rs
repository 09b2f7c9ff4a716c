//! The place of this process's figures, for a reader in another process (`tenure inspect`).
//!
//! The first service that has figures makes one page, readable only, and named `tenure: figures`
//! where the kernel can name memory (5.17). The page contains the address of the list of
//! [parts](Part). A part contains the address of its figures and describes them. The reader reads
//! the program's memory, which the kernel allows only to a process that may trace the program.
//!
//! So a counter stays where it is, counting costs no more than before, and no code refreshes
//! anything. A child of a fork has a copy of all of it, and continues to count in its own.

#![allow(unsafe_code, reason = "shares addresses between threads")]

use crate::os::figures_page;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The first bytes of the page. The digit is the version of this layout: readers refuse another
/// one.
pub const MAGIC: [u8; 16] = *b"tenure figures 1";
/// The page's name in the kernel's list `/proc/PID/maps`.
pub const NAME: &str = "tenure: figures";
/// The largest number of parts.
pub const PLACES: usize = 32;

/// The content of the page.
#[repr(C)]
pub struct Root {
    /// [`MAGIC`].
    pub magic: [u8; 16],
    /// The size of this structure.
    pub size: usize,
    /// The address of `places` addresses of [parts](Part); 0: none.
    pub parts: usize,
    /// The number of addresses in `parts`.
    pub places: usize,
    /// The version of tenure, filled up with zeros.
    pub version: [u8; 16],
}

/// Some figures of one kind.
#[repr(C)]
pub struct Part {
    /// How to read `numbers`.
    pub kind: usize,
    /// The address of the figures.
    pub at: *const u8,
    /// Names, separated by spaces.
    pub names: *const u8,
    /// The length of the names.
    pub names_len: usize,
    /// Numbers whose meaning depends on the kind.
    pub numbers: [usize; 16],
}

// SAFETY: a part is a constant: two addresses and numbers. This module neither reads nor writes
// through the addresses.
unsafe impl Sync for Part {}

/// The kind of parts that `Part::words` makes.
pub const WORDS: usize = 1;
/// The kind of the tracked ranges, by chunks.
pub const RANGES: usize = 2;
/// The kind of the pool's runs, by areas.
pub const RUNS: usize = 3;

impl Part {
    /// Words of 64 bits, one after another, with a name each. There are `shards` copies of them,
    /// `stride` bytes apart, and a figure is the sum of its words.
    pub(crate) const fn words(
        at: *const u8,
        names: &'static str,
        words: usize,
        shards: usize,
        stride: usize,
    ) -> Part {
        let mut numbers = [0; 16];
        (numbers[0], numbers[1], numbers[2]) = (words, shards, stride);
        Part { kind: WORDS, at, names: names.as_ptr(), names_len: names.len(), numbers }
    }

    /// One word.
    pub(crate) const fn word(at: *const u8, name: &'static str) -> Part {
        Part::words(at, name, 1, 1, 8)
    }
}

struct Published {
    parts: [AtomicPtr<Part>; PLACES],
    /// The page's address. 0: not made yet; 1: it could not be made.
    page: AtomicUsize,
}

/// For the whole process: it has one page.
static PUBLISHED: Published =
    Published { parts: [const { AtomicPtr::new(null_mut()) }; PLACES], page: AtomicUsize::new(0) };

/// Lists the parts that are not listed yet. Takes no lock and allocates nothing. A part that finds
/// no free place is left out.
pub(crate) fn publish(parts: &[&'static Part]) {
    for part in parts {
        let new = std::ptr::from_ref::<Part>(part).cast_mut();
        let _ = PUBLISHED.parts.iter().find(|place| {
            let put = place.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
            put.is_ok() || put == Err(new)
        });
    }
    if PUBLISHED.page.load(Ordering::Acquire) == 0 {
        make_page();
    }
}

/// Two threads that come here together each make a page, and one of them unmaps its own.
#[cold]
fn make_page() {
    let mut version = [0; 16];
    let text = env!("CARGO_PKG_VERSION").as_bytes();
    let len = text.len().min(version.len());
    version[..len].copy_from_slice(&text[..len]);
    let root = Root {
        magic: MAGIC,
        size: size_of::<Root>(),
        parts: PUBLISHED.parts.as_ptr() as usize,
        places: PLACES,
        version,
    };
    let page = figures_page::make(root);
    let new = page.map_or(1, |page| page.start);
    let first =
        PUBLISHED.page.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if let Some(page) = page.filter(|_| !first) {
        figures_page::end(page);
    }
}

/// Returns the address of the page. For tests.
#[cfg(test)]
pub(crate) fn page() -> usize {
    PUBLISHED.page.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::counters;
    use tenure_testkit::{in_child, this_test};

    #[test]
    fn one_page_that_nobody_can_write_lists_each_part_once() {
        in_child(this_test!(), &[], || {
            let parts: [&'static Part; 2] = [&counters::PUBLISHED, &counters::PUBLISHED_GAUGES];
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| publish(&parts));
                }
            });
            publish(&parts);
            let listed =
                PUBLISHED.parts.iter().map(|part| part.load(Ordering::Relaxed).cast_const());
            let listed: Vec<_> = listed.filter(|part| !part.is_null()).collect();
            assert_eq!(listed, parts.map(std::ptr::from_ref));
            let at = page();
            // SAFETY: the page is mapped for the process's lifetime, and no code writes to it.
            let root = unsafe { &*(at as *const Root) };
            assert_eq!((root.magic, root.places), (MAGIC, PLACES));
            assert_eq!(root.parts, PUBLISHED.parts.as_ptr() as usize);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let line = maps.lines().find(|line| line.starts_with(&format!("{at:x}-"))).unwrap();
            assert!(line.contains(" r--p "), "{line}");
            // Of eight threads that made a page, seven have unmapped theirs.
            let same =
                |other: &&str| other.contains(" r--p 00000000 00:00 0") && !other.contains('[');
            assert_eq!(maps.lines().filter(same).count(), 1, "{maps}");
        });
    }
}
