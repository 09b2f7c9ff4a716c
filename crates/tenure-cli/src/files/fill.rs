//! Reads a part of a file into the page cache, and into a mapping of it.
//!
//! No code here touches the mapping itself, so a file that shrinks meanwhile gives an error, no
//! SIGBUS.

use super::{data, hugetlb};
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::populate::{Access, Background, Failed, Populate};
use tenure::{Error, ErrorKind};

/// A populate of this size ends before a user could stop it, and is one call.
const AT_ONCE: usize = 4 << 20;
/// Threads that read a large file, unless the user sets another number. They mostly wait, so the
/// number does not depend on the processors.
pub const READERS: usize = 4;
/// The size of one explicit readahead request of the kernel.
const EXACT: usize = 2 << 20;
/// Small parts up to this span are read through one mapping: few enough to be requested all at
/// once.
const WINDOW: u64 = 16 << 20;
const TICK: Duration = Duration::from_millis(20);

/// The settings of all reads of a command.
#[derive(Debug)]
pub struct Filling<'a> {
    /// Stops it when it becomes true.
    pub stop: &'a AtomicBool,
    /// The deadline.
    pub until: Option<Instant>,
    /// Bytes read so far, in whole pages, by all of it.
    pub done: &'a AtomicU64,
}

/// The reason why a part could not be filled.
#[derive(Debug)]
pub enum Unfilled {
    /// The user pressed Ctrl-C.
    Stopped,
    /// The deadline passed.
    TimedOut,
    /// The file has an error.
    Broken(String),
    /// This process or the machine has an error.
    Failed(Error),
}

impl Filling<'_> {
    /// Returns a reason not to begin another read.
    pub fn over(&self) -> Option<Unfilled> {
        if self.stop.load(Ordering::Relaxed) {
            Some(Unfilled::Stopped)
        } else if self.until.is_some_and(|until| Instant::now() >= until) {
            Some(Unfilled::TimedOut)
        } else {
            None
        }
    }

    /// Reads parts of the file into the page cache, through mappings of its own. Returns the bytes
    /// that are there, also after a failure.
    ///
    /// `threads`: 0 for as many as are useful, each with a contiguous span and a descriptor of its
    /// own, because the kernel reads ahead by descriptor. Measured, 1 GiB cold, s: one thread 0.5,
    /// four spans 0.45; with 128 KiB of readahead 1.0 and 0.65. Two threads taking turns on one
    /// descriptor 0.9, `MADV_WILLNEED` before each piece 1.5.
    pub fn read(
        &self,
        file: &File,
        parts: &[Range<u64>],
        threads: usize,
    ) -> (u64, Result<(), Unfilled>) {
        let threads = if threads == 0 { READERS } else { threads };
        let size = file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        let whole = matches!(parts, [only] if only.start == 0 && only.end >= size);
        // Spans are not cut at the largest huge pages.
        if threads == 1 || data::total(parts) < super::LARGE || hugetlb::of(file).is_some() {
            return self.read_span(file, parts, whole);
        }
        let spans = data::split(parts, threads);
        std::thread::scope(|scope| {
            let read_it = |span: &Vec<Range<u64>>| match super::open::again(file) {
                Ok(own) => self.read_span(&own, span, whole),
                Err(_) => self.read_span(file, span, whole),
            };
            let readers: Vec<_> = spans
                .iter()
                .map(|span| {
                    let reader = std::thread::Builder::new();
                    (span, reader.spawn_scoped(scope, move || read_it(span)).ok())
                })
                .collect();
            let mut read = 0;
            let mut result = Ok(());
            for (span, reader) in readers {
                let (bytes, ended) = match reader {
                    Some(reader) => reader.join().expect("a reader does not panic"),
                    // If the limit on threads (RLIMIT_NPROC, pids.max) is reached, this thread does
                    // it.
                    None => read_it(span),
                };
                read += bytes;
                result = result.and(ended);
            }
            (read, result)
        })
    }

    fn read_span(
        &self,
        file: &File,
        parts: &[Range<u64>],
        whole: bool,
    ) -> (u64, Result<(), Unfilled>) {
        let mut read = 0;
        for group in data::groups(parts, EXACT as u64, WINDOW) {
            let (start, end) = (group[0].start, group[group.len() - 1].end);
            let len = (end - start) as usize;
            let map = match MmapOptions::new().offset(start).len(len).map_raw_read_only(file) {
                Ok(map) => map,
                Err(error) => return (read, Err(unmapped(file, error))),
            };
            if !whole {
                stay_inside(&map, group);
            }
            let mut result = Ok(());
            for part in group {
                let addr = map.as_ptr().wrapping_add((part.start - start) as usize);
                let len = part.end - part.start;
                let mapped = (addr, super::whole_pages(len) as usize);
                let populated;
                (populated, result) = self.populate(file, part.start, mapped, self.done);
                read += populated.min(len);
                if result.is_err() {
                    break;
                }
            }
            // If they were unmapped with another advice, its pages would not count as used.
            if !whole {
                let _ = map.advise(Advice::Normal);
            }
            if let Err(why) = result {
                return (read, Err(why));
            }
        }
        (read, Ok(()))
    }

    /// Makes `[addr, addr + len)`, a mapping of the file from `offset` on, resident. It counts no
    /// bytes: the needed ones have been read by now.
    pub fn fill(
        &self,
        file: &File,
        offset: u64,
        mapped: (*const u8, usize),
    ) -> Result<(), Unfilled> {
        self.populate(file, offset, mapped, &AtomicU64::new(0)).1
    }

    fn populate(
        &self,
        file: &File,
        offset: u64,
        (addr, len): (*const u8, usize),
        done: &AtomicU64,
    ) -> (u64, Result<(), Unfilled>) {
        if let Some(over) = self.over() {
            return (0, Err(over));
        }
        let mut populate = Populate::new(addr, len, Access::Read).threads(1);
        let mut counted = 0;
        let result = if len <= AT_ONCE {
            populate.run()
        } else {
            if let Some(until) = self.until {
                populate = populate.deadline(until.saturating_duration_since(Instant::now()));
            }
            match populate.clone().start() {
                Ok(background) => {
                    self.watch(&background, &mut counted, done);
                    background.wait()
                }
                // There is no thread for the background, so this thread does it, without checking
                // for an end in between.
                Err(error) if error.errno() == rustix::io::Errno::AGAIN.raw_os_error() => {
                    populate.run()
                }
                Err(error) => return (0, Err(Unfilled::Failed(error))),
            }
        };
        let (populated, result) = match result {
            Ok(report) => (report.populated, Ok(())),
            Err(failed) => (failed.report.populated, Err(failed)),
        };
        done.fetch_add(populated.saturating_sub(counted), Ordering::Relaxed);
        (populated, result.map_err(|failed| why(file, offset, addr as usize, failed)))
    }

    fn watch(&self, background: &Background, counted: &mut u64, done: &AtomicU64) {
        while !background.wait_timeout(TICK) {
            if self.stop.load(Ordering::Relaxed) {
                background.cancel();
            }
            let populated = background.progress().populated;
            done.fetch_add(populated - *counted, Ordering::Relaxed);
            *counted = populated;
        }
    }
}

/// A fault reads around its page, as far as the readahead of the disk reaches (half before it):
/// also holes, and parts that were not requested. With sequential advice the kernel reads only
/// ahead, and the farther the more was read. Short parts are read exactly, and all of a group are
/// requested before the first is waited for. Advice only: a refusal costs reading.
fn stay_inside(map: &MmapRaw, parts: &[Range<u64>]) {
    if parts.len() > 1 || map.len() < EXACT {
        let _ = map.advise(Advice::Random);
        for part in parts {
            let (at, len) = (part.start - parts[0].start, part.end - part.start);
            let _ = map.advise_range(Advice::WillNeed, at as usize, len as usize);
        }
    } else {
        let _ = map.advise(Advice::Sequential);
    }
}

fn unmapped(file: &File, error: std::io::Error) -> Unfilled {
    let remedy = match hugetlb::of(file) {
        // A mapping reserves the pages that it does not find.
        Some(huge) if error.kind() == std::io::ErrorKind::OutOfMemory => format!(
            ": the pool has too few free huge pages of {}; raise vm.nr_hugepages, or populate less",
            crate::size::show(huge.page)
        ),
        _ => String::new(),
    };
    Unfilled::Broken(format!("mmap: {error}{remedy}"))
}

fn why(file: &File, offset: u64, addr: usize, failed: Failed) -> Unfilled {
    let error = failed.error;
    let at = failed.report.first_missing.map_or(0, |page| page.saturating_sub(addr) as u64);
    let at = offset + at;
    match error.kind() {
        ErrorKind::Cancelled => Unfilled::Stopped,
        ErrorKind::TimedOut => Unfilled::TimedOut,
        ErrorKind::NoBacking => {
            let size = file.metadata().map_or(u64::MAX, |metadata| metadata.len());
            Unfilled::Broken(if size <= at {
                format!("it became shorter during the read: it now ends at byte {size}")
            } else {
                format!(
                    "it cannot be read at byte {at}: the disk or the file system returned an error"
                )
            })
        }
        ErrorKind::Poisoned => {
            Unfilled::Broken(format!("the hardware has lost the page at byte {at}"))
        }
        _ => Unfilled::Failed(error),
    }
}
