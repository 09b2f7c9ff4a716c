//! Chunks that are kept for all processes at once, without a count, as ashmem's pins are.
//!
//! A file that is made for it has every chunk kept at first, with the bytes that its users write through mappings of
//! their own. One call by any process releases a chunk, and one call by any process keeps it again. The byte in the
//! chunk's record says which. As with counted pins, the keeper writes first and looks afterwards, and so does the purger.
//!
//! A chunk that was never released is fresh, which nobody purges. So a new file needs no record of any chunk.

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

/// It may be purged.
const RELEASED: u8 = 1;
/// It was purged, and nobody has been told.
const LOST: u8 = 2;

/// Keeps chunks. `true`: some were purged since they were kept last. Those read zeros now, and no other call is told.
///
/// The bytes that were purged have no memory until somebody touches them. A caller that is killed before it was told
/// leaves what it found to the next.
///
/// # Errors
/// `ENOMEM`: the old memory of a chunk could not be given back. `EPROTO`. The chunks before it are kept; what the call
/// found is told to the next.
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

/// Waits until a kept chunk is at rest. One that is purged has zeros from now on, and its loss is noted.
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
                // First: a process that dies in between must not take it along.
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
        // It has bytes, which its users wrote. Where it is not fresh it was released before.
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

/// Whether a chunk is kept now.
pub(super) fn is_kept(region: &Region, chunk: usize) -> bool {
    region.shape.asked != 0 && region.kept(chunk).load(Ordering::SeqCst) & RELEASED == 0
}
