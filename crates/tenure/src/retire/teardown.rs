//! Gives the memory of hidden mappings back, slice by slice. The worker does so, and so do callers
//! that have to wait for it.

#![allow(unsafe_code, reason = "unmaps what nobody knows any more")]

use super::queue::{self, Queue};
use super::slice;
use crate::os::pagemap::Pagemap;
use crate::os::{detach, generation};
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::services::{Next, Visit};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How long a visit of the worker may take when memory is short.
const UNDER_PRESSURE: Duration = Duration::from_millis(20);
/// The time after which chunks that could not be torn down are tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// How long this thread sleeps while another thread tears down a chunk.
pub(super) const SHORT_WAIT: Duration = Duration::from_micros(100);
/// The longest sum of these waits: much longer than a chunk takes that can be torn down.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The worker's task.
pub(super) fn visit(visit: &Visit) -> Next {
    loop {
        match one_chunk() {
            Chunk::None => return Next::WhenStirred,
            // The next visit tries another chunk.
            Chunk::Failed => match queue::lock().is_stuck() {
                true => return Next::After(AGAIN),
                false => return Next::AtOnce,
            },
            Chunk::Done(_) => {}
        }
        if !visit.pressure || visit.now.elapsed() >= UNDER_PRESSURE {
            return Next::AtOnce;
        }
    }
}

/// The result of tearing down a chunk.
pub(super) enum Chunk {
    /// Nothing waits, but a chunk may be in flight.
    None,
    /// So many bytes are given back.
    Done(u64),
    Failed,
}

/// Tears one chunk down. It works on any thread, and several threads may do it at once.
pub(super) fn one_chunk() -> Chunk {
    let process = generation::current();
    let pagemap = Pagemap::open().ok();
    let (chunk, there) = loop {
        let next = queue::lock_unless_forking().and_then(|queue| queue.next());
        let Some(next) = next else { return Chunk::None };
        let there = pagemap.as_ref().map_or(next.start, |pagemap| pagemap.first_there(next));
        let Some(mut queue) = queue::lock_unless_forking() else { return Chunk::None };
        if let Some(chunk) = queue.take(next, there) {
            break (chunk, there.min(chunk.end));
        }
    };
    let done = tear_down(chunk, there, process);
    let Some(mut queue) = queue::lock_unless_forking() else {
        // A chunk that could not be torn down stays mapped until the process ends.
        if generation::current() == process {
            queue::done_late(chunk);
        }
        return Chunk::None;
    };
    if generation::current() != process {
        return Chunk::None;
    }
    match done {
        Ok(()) => {
            queue.done(chunk);
            Chunk::Done(chunk.len() as u64)
        }
        Err(left) => {
            settle(&mut queue, chunk, left);
            Chunk::Failed
        }
    }
}

/// Puts back the part of a chunk that is left.
fn settle(queue: &mut Queue, chunk: PageRange, left: PageRange) {
    queue.shrink_in_flight((chunk.len() - left.len()) as u64);
    queue.put_back(left);
}

/// Drops the pages first, in slices. From Linux 6.17 on this holds no lock that another thread
/// needs to map, unmap or fault. Before 6.17 it holds the address space's lock shared. Then it
/// unmaps the rest of the mapping: few page tables, or none since 6.14, where dropping the pages
/// frees them.
///
/// `Err`: the part that is still mapped.
fn tear_down(chunk: PageRange, there: usize, process: u64) -> Result<(), PageRange> {
    let mut mapped = chunk;
    let mut at = there;
    while at < chunk.end {
        // A signal handler may have forked in between. The child has no such mapping, and may have
        // a mapping of its own there by now.
        if generation::current() != process {
            return Ok(());
        }
        let step = slice::bytes();
        let piece = PageRange::new(at, (at / step * step + step).min(chunk.end));
        let began = Instant::now();
        // SAFETY: a part of a hidden mapping, whose address no other code has.
        if unsafe { detach::zap(piece) }.is_err() {
            // The kernel cannot drop these pages (locked, before 5.18) or refuses to, so they are
            // unmapped. The call leaves out the part that was unmapped before: another thread may
            // have mapped memory there.
            unmap(PageRange::new(mapped.start, piece.end)).map_err(|_| mapped)?;
            if piece.end == chunk.end {
                return Ok(());
            }
            mapped = PageRange::new(piece.end, chunk.end);
        }
        slice::took(piece.len(), began.elapsed());
        at = piece.end;
    }
    let began = Instant::now();
    unmap(mapped).map_err(|_| mapped)?;
    slice::note_longest(began.elapsed());
    Ok(())
}

fn unmap(range: PageRange) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        // SAFETY: a part of a hidden mapping, whose address no other code has, and each part is
        // unmapped once.
        match unsafe { detach::unmap(range.start, range.len()) } {
            // The mapping count is at its limit, and another thread still tears down the chunk
            // above this one. When that chunk is gone, this call needs no split.
            Err(Errno::NOMEM) if tries < 50 => {
                tries += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
            other => return other,
        }
    }
}

/// Tears down until nothing waits and nothing is in flight.
pub(super) fn drain(timeout: Option<Duration>) -> bool {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        match help() {
            Chunk::Done(_) => {}
            _ if queue::lock().is_empty() => return true,
            // Another thread tears down the last chunks.
            _ => std::thread::sleep(SHORT_WAIT),
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return queue::lock().is_empty();
        }
    }
}

/// Tears down as much as it can, for a caller to whom the kernel has refused memory. Unlike
/// [`drain`] it ends when every waiting mapping has been tried and none could be torn down. `true`:
/// some memory was given back.
pub(super) fn relieve() -> bool {
    let (mut any, mut failed, mut waited) = (false, 0, Duration::ZERO);
    loop {
        match help() {
            Chunk::Done(_) => (any, failed, waited) = (true, 0, Duration::ZERO),
            Chunk::Failed => {
                failed += 1;
                if failed >= queue::lock().count() {
                    return any;
                }
            }
            Chunk::None if queue::lock().is_empty() => return true,
            // Another thread tears down the last chunks, and it may fail too.
            Chunk::None => {
                if waited >= LONGEST_WAIT {
                    return any;
                }
                std::thread::sleep(SHORT_WAIT);
                waited += SHORT_WAIT;
            }
        }
    }
}

/// Tears one chunk down, for a caller that has to wait for it.
pub(super) fn help() -> Chunk {
    let chunk = one_chunk();
    if let Chunk::Done(bytes) = chunk {
        add(&COUNTERS.retire_helped_bytes, bytes);
    }
    chunk
}
