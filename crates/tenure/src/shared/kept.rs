//! Chunks that are kept for all processes at once, without a count, like the pins of ashmem.
//!
//! In such a file every chunk is kept at first. Its users write the bytes through mappings of their
//! own. One call by any process releases a chunk, and one call by any process keeps it again. A
//! byte in the chunk's record holds this state. As with counted pins, the keeper writes first and
//! looks afterwards, and so does the purger.
//!
//! A chunk that was never released is fresh, and no process purges a fresh chunk. So a new file
//! needs no record of any chunk.

use super::chunk::Found;
use super::region::{damaged, Region};
use super::state::{Kind, State};
use super::waiting::Waiting;
use crate::error::{Error, Result};
use crate::os::generation;
use crate::os::signal::Blocked;
use crate::runtime::fork;
use crate::sync::{barrier_after_rmw, Ordering};
use rustix::io::Errno;
use std::ops::Range;

/// The chunk may be purged.
const RELEASED: u8 = 1;
/// The chunk was purged, and no call has reported it.
const LOST: u8 = 2;

/// Keeps chunks. Returns `true` if some were purged since they were kept last. Those read zeros
/// now, and no other call reports this loss.
///
/// Purged bytes have no memory until a thread touches them. If the caller is killed before the call
/// returns, the next call reports what it found.
///
/// # Errors
/// `ENOMEM`: the old memory of a chunk could not be given back. `EPROTO`. The chunks before it are
/// kept, and the next call reports what this call found.
pub(super) fn keep(region: &Region, call: &'static str, chunks: Range<usize>) -> Result<bool> {
    fork::look();
    region.slots.own(call)?;
    for chunk in chunks.clone() {
        let noted = region.kept(chunk);
        if noted.load(Ordering::SeqCst) & RELEASED != 0 {
            noted.fetch_and(!RELEASED, Ordering::SeqCst);
            barrier_after_rmw();
        }
        settle(region, call, chunk)?;
    }
    let mut any = false;
    for chunk in chunks {
        let noted = region.kept(chunk);
        if noted.load(Ordering::SeqCst) & LOST != 0 {
            any |= noted.fetch_and(!LOST, Ordering::SeqCst) & LOST != 0;
        }
    }
    Ok(any)
}

/// Waits until a kept chunk is at rest. If it was purged, it has zeros from now on, and its loss is
/// noted.
fn settle(region: &Region, call: &'static str, chunk: usize) -> Result<()> {
    let record = region.chunk(chunk);
    let mut waiting = Waiting::new();
    loop {
        let state = record.load();
        match state.kind() {
            Kind::Fresh | Kind::Intact => return Ok(()),
            Kind::Damaged => return Err(damaged(call)),
            Kind::Purged | Kind::Making | Kind::Checked | Kind::Purging => {}
        }
        let blocked = Blocked::all();
        match record.look(Some((region.slots.own(call)?, generation::current()))) {
            Found::Busy(state) => {
                drop(blocked);
                waiting.looked(call, region.wait(chunk, state, None))?;
            }
            Found::Damaged => return Err(damaged(call)),
            Found::ToMake(was, _) => {
                if was.is_not_zero() && !region.discard(chunk, &blocked) {
                    region.settle(chunk, &blocked, State::unmade);
                    return Err(Error::system(call, "giving the old memory back", Errno::NOMEM));
                }
                // First: if the process dies before the next line, the loss stays noted.
                region.kept(chunk).fetch_or(LOST, Ordering::SeqCst);
                region.settle(chunk, &blocked, State::intact);
            }
            Found::Intact | Found::Gone(_) => {}
        }
    }
}

/// Lets chunks be purged from now on.
pub(super) fn release(region: &Region, chunks: Range<usize>) {
    fork::look();
    let facts = region.facts();
    if facts.released.load(Ordering::Relaxed) == 0 {
        facts.released.store(1, Ordering::Relaxed);
    }
    let tick = facts.tick.load(Ordering::Relaxed);
    for chunk in chunks {
        let record = region.chunk(chunk);
        let fresh = State(0);
        // The chunk has bytes that its users wrote. If it is not fresh, it was released before.
        let _ = record.state.compare_exchange(
            fresh.0,
            fresh.intact().0,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        record.used.store(tick, Ordering::Relaxed);
        region.kept(chunk).fetch_or(RELEASED, Ordering::SeqCst);
    }
}

/// Returns whether a chunk is kept now.
pub(super) fn is_kept(region: &Region, chunk: usize) -> bool {
    region.shape.asked != 0 && region.kept(chunk).load(Ordering::SeqCst) & RELEASED == 0
}
