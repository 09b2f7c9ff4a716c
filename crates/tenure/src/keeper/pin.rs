//! Pinning a node: one instruction when its pages are there, else taking them back.

use super::node::{flag, Node, NodeId, Phase, Word};
use super::{bound, gate, inbox, pages};
use crate::os;
use crate::range::PageRange;
use crate::stats::{self, COUNTERS};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Where threads wait for a node to leave a phase. A node's waiters share a place with other nodes'.
struct Place {
    waiters: AtomicU32,
    lock: Mutex<()>,
    bell: Condvar,
}

const PLACES: usize = 16;
static PLACE: [Place; PLACES] =
    [const { Place { waiters: AtomicU32::new(0), lock: Mutex::new(()), bell: Condvar::new() } };
        PLACES];

fn place(node: &'static Node) -> &'static Place {
    &PLACE[std::ptr::from_ref(node) as usize / size_of::<Node>() % PLACES]
}

/// All places' locks, for a fork.
pub(crate) fn lock_all() -> Vec<MutexGuard<'static, ()>> {
    PLACE.iter().map(|p| p.lock.lock().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// Waits until `done` holds of the node's word.
pub(crate) fn wait_until(id: NodeId, done: impl Fn(Word) -> bool) {
    let node = id.node();
    // Most waits are for one system call of the keeper.
    for _ in 0..200 {
        if done(node.load()) {
            return;
        }
        std::hint::spin_loop();
    }
    let place = place(node);
    let mut lock = place.lock.lock().unwrap_or_else(PoisonError::into_inner);
    place.waiters.fetch_add(1, Ordering::SeqCst);
    while !done(node.load()) {
        lock = place.bell.wait(lock).unwrap_or_else(PoisonError::into_inner);
    }
    place.waiters.fetch_sub(1, Ordering::SeqCst);
}

/// Lets the waiters look. After every change that they may wait for.
pub(crate) fn ring(node: &'static Node) {
    std::sync::atomic::fence(Ordering::SeqCst);
    let place = place(node);
    if place.waiters.load(Ordering::SeqCst) > 0 {
        drop(place.lock.lock().unwrap_or_else(PoisonError::into_inner));
        place.bell.notify_all();
    }
}

/// Leaves a phase that the caller owns.
pub(crate) fn leave_phase(id: NodeId, to: Phase) {
    id.node().set_phase(to);
    ring(id.node());
}

/// Adds a pin. `true`: the pages are there and good. `false`: call [`settle`], then look at the
/// node's `LOST` flag.
#[inline(always)]
pub(crate) fn pin(node: &Node) -> bool {
    // SeqCst: a cache reads a segment's generation after pinning it, and whoever recycles the segment
    // writes the generation before looking for pins; one of the two must see the other.
    let before = Word(node.word.fetch_add(Word::PIN + Word::USE, Ordering::SeqCst));
    if before.too_many_pins() {
        too_many(node);
    }
    before.plain()
}

#[cold]
fn too_many(node: &Node) {
    node.word.fetch_sub(Word::PIN, Ordering::AcqRel);
    panic!("tenure: more than 500,000 pins on one range at once: are guards being leaked?");
}

/// Takes a pin away. `true`: it was the last, and the node asks for [`last_unpin`].
#[inline(always)]
pub(crate) fn unpin(node: &Node) -> bool {
    let before = Word(node.word.fetch_sub(Word::PIN, Ordering::AcqRel));
    debug_assert!(before.pins() > 0);
    before.has(Word::SLOW_UNPIN) && before.pins() == 1
}

/// What the debug mode does at the last unpin: offer and purge at once.
#[cold]
pub(crate) fn last_unpin(id: NodeId) {
    let _ = offer_and_purge(id);
}

/// Makes a pinned node's pages the process's. A raw node is given with the range that the caller
/// unmarks: another thread may mark, merge or forget the same memory meanwhile, and then the node may
/// be somebody else's, whose losses are not for this caller to hear of. `lost` is called for each extent that is gone, before
/// any other pinner gets on; the flags it asks for are set in the word by its answer.
///
/// # Errors
/// As [`pages::revive`]; the node stays offered, and the pin is the caller's to take away.
pub(crate) fn settle(
    id: NodeId,
    raw: Option<PageRange>,
    lost: &mut dyn FnMut(PageRange) -> u64,
) -> Result<(), Errno> {
    let node = id.node();
    loop {
        // The exchange below fails if anything about the node changed after this.
        let word = node.load();
        if let Some(range) = raw {
            let now = node.range();
            let inside = range.start <= now.start && now.end <= range.end;
            if word.has(Word::FREE) || !node.is(flag::RAW) || !inside {
                return Ok(());
            }
        }
        if word.has(Word::HELD) {
            wait_until(id, |w| !w.has(Word::HELD));
            continue;
        }
        match word.phase() {
            Phase::Resident => return Ok(()),
            Phase::Offering | Phase::Reviving => {
                wait_until(id, |w| !matches!(w.phase(), Phase::Offering | Phase::Reviving));
            }
            Phase::Offered => {
                if os::fork::missed() {
                    os::fork::make_up();
                }
                let pass = gate::pass();
                if !node.try_change(word, word.with_phase(Phase::Reviving)) {
                    continue;
                }
                let mut flags = 0;
                let revived = pages::revive(id, node, &mut |extent| flags |= lost(extent));
                if let Err(errno) = revived {
                    leave_phase(id, Phase::Offered);
                    return Err(errno);
                }
                if flags != 0 {
                    node.word.fetch_or(flags, Ordering::AcqRel);
                }
                leave_phase(id, Phase::Resident);
                drop(pass);
                inbox::stirred();
                bound::exposed(node.len() as u64);
                return Ok(());
            }
        }
    }
}

/// Offers a node if it is marked. On the keeper's thread. `split_huge`: even where that splits a huge
/// page.
pub(crate) fn offer(id: NodeId, split_huge: bool) -> Result<(), pages::Refusal> {
    let node = id.node();
    let _pass = gate::pass();
    let word = node.load();
    let ready =
        word.phase() == Phase::Resident && word.pins() == 0 && !word.has(Word::FREE | Word::HELD);
    if !ready || !node.try_change(word, word.with_phase(Phase::Offering)) {
        return Err(pages::Refusal::Wanted);
    }
    match pages::offer(id, node, split_huge) {
        Ok(()) => {
            let len = node.len() as u64;
            stats::add(&COUNTERS.offers, 1);
            stats::add(&COUNTERS.offered_bytes, len);
            if super::settings::purge_always() {
                let _ = pages::purge(node);
            }
            leave_phase(id, Phase::Offered);
            Ok(())
        }
        Err(refusal) => {
            leave_phase(id, Phase::Resident);
            if refusal != pages::Refusal::Wanted {
                stats::add(&COUNTERS.refused_offers, 1);
            }
            Err(refusal)
        }
    }
}

/// Offers a node now, whatever its age, from any thread.
pub(crate) fn offer_now(id: NodeId) -> Result<(), pages::Refusal> {
    loop {
        let word = id.node().load();
        match word.phase() {
            Phase::Offered => return Ok(()),
            Phase::Offering | Phase::Reviving => {
                wait_until(id, |w| !matches!(w.phase(), Phase::Offering | Phase::Reviving));
            }
            Phase::Resident => {
                return inbox::on_keeper(move || offer(id, true))
                    .unwrap_or(Err(pages::Refusal::Kernel(Errno::AGAIN)));
            }
        }
    }
}

/// Gives back the pages of a node that the caller has pinned and settled, and whose contents nobody
/// wants: its range is ordinary memory that was never touched.
pub(crate) fn discard(id: NodeId) {
    let node = id.node();
    let _pass = gate::pass();
    pages::discard(node);
}

/// Offers a node and has the kernel discard it; answers how many bytes are gone.
pub(crate) fn offer_and_purge(id: NodeId) -> Result<usize, pages::Refusal> {
    offer_now(id)?;
    inbox::on_keeper(move || purge(id)).unwrap_or(Err(pages::Refusal::Kernel(Errno::AGAIN)))
}

fn purge(id: NodeId) -> Result<usize, pages::Refusal> {
    let node = id.node();
    let _pass = gate::pass();
    // Owning the phase keeps others from taking the pages back meanwhile.
    let word = node.load();
    if word.phase() != Phase::Offered || !node.try_change(word, word.with_phase(Phase::Offering)) {
        return Err(pages::Refusal::Wanted);
    }
    let gone = pages::purge(node).map_err(pages::Refusal::Kernel);
    leave_phase(id, Phase::Offered);
    gone
}
