//! The mappings that are unmapped.

#![allow(unsafe_code, reason = "locks memory of its own")]

use crate::backing::{unsupported, Backing, Fresh, Kind, HUGE_PAGE};
use crate::harness::Raised;
use crate::Options;
use rustix::mm::{self, Advice};
use std::fs;
use std::io;

/// A mapping of one kind and size.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub content: Content,
    pub len: usize,
}

/// The kind of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Private anonymous memory.
    Anon,
    /// Private anonymous memory in transparent huge pages.
    Transparent,
    /// Huge pages of hugetlbfs.
    Pooled,
    /// Private anonymous memory, locked.
    Locked,
    /// A memory file, shared and written.
    Memory,
    /// A file on a disk, shared and read.
    File,
}

/// Base pages come first, because they take longest.
const CONTENTS: [Content; 6] = [
    Content::Anon,
    Content::Transparent,
    Content::Pooled,
    Content::Locked,
    Content::Memory,
    Content::File,
];

/// Every kind at 1 GiB and the first two at 4 GiB; or every kind at the user's size.
pub(super) fn cases(options: &Options) -> Vec<Case> {
    let all = |len: usize| CONTENTS.map(|content| Case { content, len });
    let first = options.chosen_size(1 << 30, 64 << 20, HUGE_PAGE);
    let mut cases: Vec<_> = all(first).into();
    if options.size.is_none() && !options.quick {
        let number = if options.is_short() { 1 } else { 2 };
        cases.extend_from_slice(&all(4 << 30)[..number]);
    }
    cases
}

impl Case {
    /// How titles begin.
    pub fn name(&self) -> String {
        format!("unmap {} MiB, {}", self.len >> 20, self.content.name())
    }

    /// Its measured rounds: populating a huge mapping takes long.
    pub fn rounds(&self) -> u32 {
        match self.len >> 30 {
            0..=1 => 7,
            2..=8 => 5,
            _ => 3,
        }
    }

    /// Raises the kernel settings that its mapping needs.
    pub fn room(&self) -> io::Result<Option<Raised>> {
        let needed = self.len as u64 + (256 << 20);
        let available = available_bytes();
        if available < needed {
            return Err(unsupported(&format!(
                "needs {} MiB of memory, {} MiB are available",
                needed >> 20,
                available >> 20
            )));
        }
        match self.content {
            Content::Pooled => {
                let pages = (self.len / HUGE_PAGE) as u64;
                Raised::by("/proc/sys/vm/nr_hugepages", pages).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Maps it, with all pages resident.
    pub fn populated(&self, options: &Options) -> io::Result<Fresh> {
        let (kind, shared) = match self.content {
            Content::Anon | Content::Locked => (Kind::Anon, false),
            Content::Transparent => (Kind::AnonTransparent, false),
            Content::Pooled => (Kind::AnonHuge, false),
            Content::Memory => (Kind::Memfd, true),
            Content::File => (Kind::Disk, true),
        };
        let fresh = Backing::new(kind, shared, &options.dir()).fresh(self.len)?;
        fresh.advise(match self.content {
            Content::File => Advice::LinuxPopulateRead,
            _ => Advice::LinuxPopulateWrite,
        })?;
        if self.content == Content::Locked {
            // SAFETY: the mapping's own addresses.
            unsafe { mm::mlock(fresh.addr.cast(), self.len) }.map_err(|errno| {
                unsupported(&format!("mlock of {} MiB: {errno}: ulimit -l", self.len >> 20))
            })?;
        }
        Ok(fresh)
    }
}

impl Content {
    fn name(self) -> &'static str {
        match self {
            Content::Anon => "4 KiB pages",
            Content::Transparent => "THP",
            Content::Pooled => "hugetlb",
            Content::Locked => "4 KiB pages, locked",
            Content::Memory => "memfd",
            Content::File => "file",
        }
    }

    /// Whether the process's resident memory counts its pages.
    pub fn is_resident_memory(self) -> bool {
        self != Content::Pooled
    }
}

fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_asked_for_is_the_only_one() {
        let sizes = |options: &Options| {
            let mut sizes: Vec<_> = cases(options).iter().map(|case| case.len >> 20).collect();
            sizes.dedup();
            sizes
        };
        assert_eq!(sizes(&Options::default()), [1024, 4096]);
        assert_eq!(sizes(&Options { size: Some(5 << 30), ..Options::default() }), [5120]);
        assert_eq!(sizes(&Options { quick: true, ..Options::default() }), [64]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let case = Case { content: Content::Anon, len: 1 << 50 };
        let error = case.room().err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("are available"), "{error}");
    }

    #[test]
    fn a_populated_mapping_is_resident() {
        let case = Case { content: Content::Anon, len: 8 << 20 };
        let fresh = case.populated(&Options::default()).unwrap();
        let found = tenure_measure::pages::smaps_over(fresh.addr as usize, fresh.len);
        assert_eq!(found.iter().map(|mapping| mapping.rss).sum::<u64>(), 8 << 20);
    }
}
