//! Reading a part of a file into the page cache, and into a mapping of it.
//!
//! Nothing here touches the mapping itself, so a file that shrinks meanwhile is an error, no SIGBUS.

use super::{data, hugetlb};
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::populate::{Access, Background, Failed, Populate};
use tenure::{Error, ErrorKind};

/// Up to here a populate is over before anybody could wish to stop it, and is one call.
const AT_ONCE: usize = 4 << 20;
/// Threads that read a large file, unless the user says otherwise. They wait more than they work, so
/// it is no matter of processors.
pub const READERS: usize = 4;
/// One request of the kernel's explicit readahead.
const EXACT: usize = 2 << 20;
/// Up to here small parts are read through one mapping: few enough to be requested all at once.
const WINDOW: u64 = 16 << 20;
const TICK: Duration = Duration::from_millis(20);

/// What all the filling of a command has in common.
#[derive(Debug)]
pub struct Filling<'a> {
    /// Stops it when it becomes true.
    pub stop: &'a AtomicBool,
    /// Ends it.
    pub until: Option<Instant>,
    /// Bytes read so far, in whole pages, by all of it.
    pub done: &'a AtomicU64,
}

/// Why a part could not be filled.
#[derive(Debug)]
pub enum Unfilled {
    /// The user pressed Ctrl-C.
    Stopped,
    /// The deadline passed.
    TimedOut,
    /// There is something wrong with the file.
    Broken(String),
    /// There is something wrong with this process or machine.
    Failed(Error),
}

impl Filling<'_> {
    /// Whether to begin nothing more.
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
    /// that are there, whatever else happened.
    ///
    /// `threads`: 0 for as many as are useful, each with a contiguous span and a descriptor of its own,
    /// as the kernel reads ahead by descriptor. Measured, 1 GiB cold, s: one thread 0.5, four spans
    /// 0.45; with 128 KiB of readahead 1.0 and 0.65. Two threads taking turns on one descriptor 0.9,
    /// `MADV_WILLNEED` ahead of each piece 1.5.
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
                    // Under a bound on threads (RLIMIT_NPROC, pids.max) this one does it.
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
            // Unmapped with another advice, its pages would not count as used.
            if !whole {
                let _ = map.advise(Advice::Normal);
            }
            if let Err(why) = result {
                return (read, Err(why));
            }
        }
        (read, Ok(()))
    }

    /// Makes `[addr, addr + len)`, a mapping of the file from `offset` on, resident. It counts nothing:
    /// what had to be read has been by now.
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
                // No thread for the background: here then, without looking up before it is done.
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

/// A fault reads around it, as far as the readahead of the disk goes (half before it): into holes, and
/// what was not asked for. In sequence it reads ahead only, and the farther the more was read; what is
/// short is read exactly, and all of a group requested before the first is waited for. Advice: what it
/// refuses costs reading.
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
