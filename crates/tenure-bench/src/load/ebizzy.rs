//! ebizzy's work: the memory use of a search engine.
//!
//! Chunks of sorted records lie in memory. For each request a thread copies a random chunk into a
//! buffer that it allocates, looks a random record up in the copy by bisection, and frees the copy.
//! Unlike the copy in the Linux Test Project, whose random numbers are all zero, chunk, record and
//! (where asked for) size really are random.

#![allow(unsafe_code, reason = "reads and writes blocks of its own")]

use super::memory::{Block, Source};
use super::random::Random;
use super::usage::{kept, Usage};
use super::{wrong, Answer};
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

type Record = u64;
const RECORD: usize = size_of::<Record>();

/// ebizzy's options, by its own letters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ebizzy {
    /// `-t`: threads.
    pub threads: usize,
    /// `-n`: chunks.
    pub chunks: usize,
    /// `-s`: bytes of a chunk; its own default is 512 KiB.
    pub chunk_bytes: usize,
    /// `-S`, in milliseconds: how long to run.
    pub run_ms: u64,
    /// How long to run before that, not counted.
    pub warm_up_ms: u64,
    /// `-m` or `-M`, or neither.
    pub allocation: Allocation,
    /// `-R`: copy a random number of records instead of whole chunks.
    pub random_size: bool,
    /// When to read the resident memory, in milliseconds after everything was freed.
    pub look_after_ms: Vec<u64>,
}

/// The source of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allocation {
    /// `malloc` with its defaults.
    Default,
    /// `-M`: `malloc` with a setting never to use a mapping (only glibc has it).
    NeverMmap,
    /// `-m`: a mapping for each buffer.
    AlwaysMmap,
    /// Not one of ebizzy's: one buffer for each thread, never freed. Only the copying remains.
    Kept,
}

impl Ebizzy {
    pub(super) fn run(&self) -> io::Result<Answer> {
        if self.threads == 0 || self.chunks == 0 || self.chunk_bytes < RECORD {
            return Err(io::Error::other("no threads, no chunks or too small ones"));
        }
        #[cfg(target_env = "gnu")]
        if self.allocation == Allocation::NeverMmap {
            // SAFETY: no other thread has been started yet.
            unsafe { libc::mallopt(libc::M_MMAP_MAX, 0) };
        }
        let chunks = self.chunks()?;
        let (measuring, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let served = AtomicBool::new(false);
        let records = AtomicU64::new(0);
        let start = Barrier::new(self.threads + 1);
        let (seconds, usage) = thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads)
                .map(|index| {
                    let (chunks, start) = (&chunks, &start);
                    let (measuring, over, records) = (&measuring, &over, &records);
                    let served = &served;
                    scope.spawn(move || {
                        start.wait();
                        let mut random = Random::new(index as u64 + 1);
                        let kept = match self.allocation {
                            Allocation::Kept => Some(Block::new(self.chunk_bytes, self.source())?),
                            _ => None,
                        };
                        let mut done = 0;
                        let mut before = None;
                        while !over.load(Relaxed) {
                            if before.is_none() && measuring.load(Relaxed) {
                                before = Some(done);
                            }
                            self.serve(chunks, kept.as_ref(), &mut random)?;
                            done += 1;
                            if before.is_some_and(|before| done == before + 1) {
                                served.store(true, Relaxed);
                            }
                        }
                        records.fetch_add(done - before.unwrap_or(done), Relaxed);
                        Ok::<_, io::Error>(())
                    })
                })
                .collect();
            start.wait();
            thread::sleep(Duration::from_millis(self.warm_up_ms));
            let (began, before) = (Instant::now(), Usage::now());
            measuring.store(true, Relaxed);
            thread::sleep(Duration::from_millis(self.run_ms));
            // On a busy machine a thread may not have run yet.
            while !served.load(Relaxed) && !workers.iter().all(|worker| worker.is_finished()) {
                thread::sleep(Duration::from_millis(1));
            }
            over.store(true, Relaxed);
            let measured = (began.elapsed().as_secs_f64(), Usage::now().since(before));
            for worker in workers {
                worker.join().map_err(|_| io::Error::other("a thread panicked"))??;
            }
            Ok::<_, io::Error>(measured)
        })?;
        drop(chunks);
        let kept = kept(&self.look_after_ms)?;
        Ok(Answer { done: records.into_inner(), seconds, usage, kept, ..Answer::default() })
    }

    fn source(&self) -> Source {
        match self.allocation {
            Allocation::AlwaysMmap => Source::Mmap,
            _ => Source::Malloc,
        }
    }

    /// Each holds the records 0, 1, 2 …
    fn chunks(&self) -> io::Result<Vec<Block>> {
        (0..self.chunks)
            .map(|_| {
                let block = Block::new(self.chunk_bytes, self.source())?;
                for record in 0..self.chunk_bytes / RECORD {
                    // SAFETY: in the block, which is aligned for any plain type.
                    unsafe { block.addr().cast::<Record>().add(record).write(record as Record) };
                }
                Ok(block)
            })
            .collect()
    }

    fn serve(&self, chunks: &[Block], kept: Option<&Block>, random: &mut Random) -> io::Result<()> {
        let chunk = &chunks[random.below(chunks.len())];
        let records = match self.random_size {
            true => random.below(self.chunk_bytes / RECORD) + 1,
            false => self.chunk_bytes / RECORD,
        };
        let new;
        let copy = match kept {
            Some(kept) => kept,
            None => {
                new = Block::new(records * RECORD, self.source())?;
                &new
            }
        };
        // SAFETY: both have `records` records; the copy belongs to this thread, so they do not
        // overlap.
        unsafe { chunk.addr().copy_to_nonoverlapping(copy.addr(), records * RECORD) };
        let key = random.below(records) as Record;
        let found = bisect(copy, records, key);
        if found != Some(key) {
            return Err(wrong(format!("looked for record {key} of {records}, found {found:?}")));
        }
        Ok(())
    }
}

/// The C library's `bsearch`, as ebizzy has it.
fn bisect(block: &Block, records: usize, key: Record) -> Option<Record> {
    // SAFETY: the block has so many initialised records, and `compare` takes two of them.
    let found = unsafe {
        libc::bsearch(
            (&raw const key).cast(),
            block.addr().cast_const().cast(),
            records,
            RECORD,
            Some(compare),
        )
    };
    // SAFETY: null, or one of the records.
    unsafe { found.cast::<Record>().as_ref().copied() }
}

extern "C" fn compare(a: *const c_void, b: *const c_void) -> c_int {
    // SAFETY: bsearch passes the key and a record.
    let (a, b) = unsafe { (*a.cast::<Record>(), *b.cast::<Record>()) };
    a.cmp(&b) as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(allocation: Allocation, random_size: bool) -> Ebizzy {
        Ebizzy {
            threads: 2,
            chunks: 4,
            chunk_bytes: 64 << 10,
            run_ms: 30,
            warm_up_ms: 5,
            allocation,
            random_size,
            look_after_ms: vec![0, 5],
        }
    }

    #[test]
    fn records_are_served_from_malloc_and_from_mappings() {
        for (allocation, random_size) in [
            (Allocation::Default, false),
            (Allocation::AlwaysMmap, false),
            (Allocation::Default, true),
            (Allocation::Kept, true),
        ] {
            // On a busy machine a run of 30 ms serves few.
            let mut done = 0;
            for _ in 0..100 {
                let answer = small(allocation, random_size).run().unwrap();
                assert!(answer.seconds >= 0.03 && answer.kept.len() == 2, "{answer:?}");
                done += answer.done;
                if done > 10 {
                    break;
                }
            }
            assert!(done > 10, "{done}");
        }
    }

    #[test]
    fn a_copy_with_a_wrong_record_is_noticed() {
        let block = Block::new(64 * RECORD, Source::Malloc).unwrap();
        block.fill(0);
        assert_eq!(bisect(&block, 64, 7), None);
    }
}
