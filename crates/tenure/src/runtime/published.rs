//! Where this process has its figures, for a reader in another process (`tenure inspect`).
//!
//! The first service that has figures makes one page, readable only, and named `tenure: figures` where the kernel can
//! name memory (5.17). The page says where the [parts](Part) are listed, and a part says where its figures are and what
//! they mean. The reader reads the program's memory, which only a process may that could trace it.
//!
//! So a counter stays where it is, counting costs what it did, and nothing has to be refreshed. A child of a fork
//! has a copy of all of it, and goes on counting in its own.

#![allow(unsafe_code, reason = "shares addresses between threads")]

use crate::os::figures_page;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The page begins so. The digit is the version of this layout: readers refuse another one.
pub const MAGIC: [u8; 16] = *b"tenure figures 1";
/// As the kernel lists the page in `/proc/PID/maps`.
pub const NAME: &str = "tenure: figures";
/// How many parts there may be.
pub const PLACES: usize = 32;

/// What the page holds.
#[repr(C)]
pub struct Root {
    /// [`MAGIC`].
    pub magic: [u8; 16],
    /// The size of this structure.
    pub size: usize,
    /// The address of `places` addresses of [parts](Part); 0: none.
    pub parts: usize,
    /// See `parts`.
    pub places: usize,
    /// Of tenure; what is left is zeros.
    pub version: [u8; 16],
}

/// Some figures.
#[repr(C)]
pub struct Part {
    /// Says how to read `numbers`.
    pub kind: usize,
    /// Where the figures are.
    pub at: *const u8,
    /// Names, separated by spaces.
    pub names: *const u8,
    /// The length of the names.
    pub names_len: usize,
    /// What the kind says.
    pub numbers: [usize; 16],
}

// SAFETY: a part is a constant: two addresses and numbers. Nothing is read or written through the addresses here.
unsafe impl Sync for Part {}

/// The kind of parts that `Part::words` makes.
pub const WORDS: usize = 1;
/// The kind of the tracked ranges, by chunks.
pub const RANGES: usize = 2;

impl Part {
    /// Words of 64 bits, one after the other, with a name each. There are `shards` of them, `stride` bytes apart; a
    /// figure is the sum of its words.
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

/// Lists the parts that are not listed yet. Takes no lock and allocates nothing. Parts that find no place are left out.
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

/// Two threads that come together each make one, and one unmaps its own.
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

/// The address of the page. For tests.
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
            // SAFETY: the page is mapped for the process's lifetime, and nobody writes to it.
            let root = unsafe { &*(at as *const Root) };
            assert_eq!((root.magic, root.places), (MAGIC, PLACES));
            assert_eq!(root.parts, PUBLISHED.parts.as_ptr() as usize);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let line = maps.lines().find(|line| line.starts_with(&format!("{at:x}-"))).unwrap();
            assert!(line.contains(" r--p "), "{line}");
            // Of eight threads that made one, seven have unmapped theirs.
            let same =
                |other: &&str| other.contains(" r--p 00000000 00:00 0") && !other.contains('[');
            assert_eq!(maps.lines().filter(same).count(), 1, "{maps}");
        });
    }
}
