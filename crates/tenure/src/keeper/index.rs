//! The raw ranges in order of address: found by any address, split and merged.
//!
//! Two levels: a tree of 2 MiB pieces of the address space, and in each the ranges that start there,
//! eight bytes a range. A million one-page ranges make a tree of a few thousand pieces, which stays
//! in the processor's cache; a flat tree of a million would miss it at every level.

use super::node::{flag, slab, Node, NodeId, Phase, Word};
use super::{bound, gate, pin, records};
use crate::os::page_size;
use crate::range::PageRange;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

const PIECE_SHIFT: u32 = 21;

/// Offset in the piece (upper half) and the node's number (lower half): sorts by address.
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    fn new(start: usize, id: NodeId) -> Entry {
        Entry(((start & ((1 << PIECE_SHIFT) - 1)) as u64) << 32 | u64::from(id.0))
    }
    fn offset(self) -> u64 {
        self.0 >> 32
    }
    fn id(self) -> NodeId {
        NodeId(self.0 as u32)
    }
}

/// See the module's head.
pub(crate) struct Index {
    pieces: BTreeMap<usize, Vec<Entry>>,
}

/// Ranges that are known, so that whoever unmaps memory of a program without any need not take the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any raw range is known.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

static INDEX: Mutex<Index> = Mutex::new(Index { pieces: BTreeMap::new() });

/// The index; its lock orders every change of a raw range's shape.
pub(crate) fn lock() -> MutexGuard<'static, Index> {
    static OVER_FORK: Once = Once::new();
    OVER_FORK.call_once(|| gate::hold_over_fork(|| Box::new(guard())));
    guard()
}

fn guard() -> MutexGuard<'static, Index> {
    INDEX.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Index {
    /// The range that is exactly `[start, end)`.
    pub fn exact(&self, range: PageRange) -> Option<NodeId> {
        let entries = self.pieces.get(&(range.start >> PIECE_SHIFT))?;
        let offset = Entry::new(range.start, NodeId(0)).offset();
        // Ranges mostly lie evenly, so the place of this one can be reckoned: one line of the list is
        // read instead of the three or four of a binary search.
        let reckoned = (offset as usize * entries.len()) >> PIECE_SHIFT;
        let at = match entries.get(reckoned) {
            Some(entry) if entry.offset() == offset => reckoned,
            _ => entries.binary_search_by_key(&offset, |entry| entry.offset()).ok()?,
        };
        let id = entries[at].id();
        (id.node().end() == range.end).then_some(id)
    }

    /// The range that holds `address`.
    pub fn covering(&self, address: usize) -> Option<NodeId> {
        let limit = Entry::new(address, NodeId(0)).offset();
        let (piece, entries) = self.pieces.range(..=address >> PIECE_SHIFT).next_back()?;
        let id = if *piece == address >> PIECE_SHIFT {
            match entries.partition_point(|entry| entry.offset() <= limit) {
                0 => self.pieces.range(..*piece).next_back()?.1.last()?.id(),
                n => entries[n - 1].id(),
            }
        } else {
            entries.last()?.id()
        };
        (id.node().end() > address).then_some(id)
    }

    /// The ranges that overlap `range`, in order.
    pub fn overlapping(&self, range: PageRange) -> Vec<NodeId> {
        let first = self.covering(range.start);
        let starts_inside = self
            .pieces
            .range(range.start >> PIECE_SHIFT..=(range.end - 1) >> PIECE_SHIFT)
            .flat_map(|(_, entries)| entries.iter())
            .map(|entry| entry.id())
            .filter(|id| {
                let start = id.node().start();
                start > range.start && start < range.end
            });
        first.into_iter().chain(starts_inside).collect()
    }

    /// The parts of `range` that belong to none of the (ordered) ranges given.
    pub fn gaps(range: PageRange, known: &[NodeId]) -> Vec<PageRange> {
        let mut at = range.start;
        let mut gaps = Vec::new();
        for id in known {
            let part = id.node().range();
            if part.start > at {
                gaps.push(PageRange::new(at, part.start));
            }
            at = at.max(part.end);
        }
        if at < range.end {
            gaps.push(PageRange::new(at, range.end));
        }
        gaps
    }

    /// Makes a range known. `None`: 2^25 ranges are known already.
    pub fn insert(&mut self, range: PageRange, word: Word, priority: u8) -> Option<NodeId> {
        let id = slab().take(range, word, priority, flag::RAW)?;
        bound::count(range.len() as u64);
        self.enter(range.start, id);
        Some(id)
    }

    fn enter(&mut self, start: usize, id: NodeId) {
        let entries = self.pieces.entry(start >> PIECE_SHIFT).or_default();
        let entry = Entry::new(start, id);
        let at = entries.partition_point(|other| other.offset() < entry.offset());
        entries.insert(at, entry);
        COUNT.fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets a range that the caller holds.
    pub fn remove(&mut self, id: NodeId) {
        let start = id.node().start();
        if let Some(entries) = self.pieces.get_mut(&(start >> PIECE_SHIFT)) {
            entries.retain(|entry| entry.id() != id);
            if entries.is_empty() {
                self.pieces.remove(&(start >> PIECE_SHIFT));
            }
        }
        COUNT.fetch_sub(1, Ordering::AcqRel);
        records::forget(id);
        slab().put(id);
        pin::ring(id.node());
    }

    /// Splits a held range at `at`; answers the right part, held too.
    pub fn split(&mut self, id: NodeId, at: usize) -> Option<NodeId> {
        let node = id.node();
        let (range, word) = (node.range(), node.load());
        let right = PageRange::new(at, range.end);
        let new = slab().take(
            right,
            word,
            node.priority.load(Ordering::Relaxed),
            node.flags.load(Ordering::Relaxed),
        )?;
        new.node().age.store(node.age.load(Ordering::Relaxed), Ordering::Relaxed);
        new.node().seen_uses.store(new.node().load().uses(), Ordering::Relaxed);
        node.set_range(PageRange::new(range.start, at));
        records::split(id, new, (at - range.start) / page_size());
        self.enter(at, new);
        Some(new)
    }

    /// Cuts a held range to its part inside `range`, which stays held; the parts outside are released.
    /// `Err`: no more ranges can be known; answers the (larger) part that is held.
    pub fn cut(&mut self, id: NodeId, range: PageRange) -> Result<NodeId, NodeId> {
        let whole = id.node().range();
        let mut id = id;
        if whole.start < range.start {
            let right = self.split(id, range.start).ok_or(id)?;
            release(id.node());
            id = right;
        }
        if whole.end > range.end {
            let right = self.split(id, range.end).ok_or(id)?;
            release(right.node());
        }
        Ok(id)
    }

    /// Joins held, resident neighbours of one state into the first of them.
    pub fn merge(&mut self, first: NodeId, rest: &[NodeId]) {
        let node = first.node();
        let mut end = node.end();
        for id in rest {
            end = id.node().end();
            let age = node.age.load(Ordering::Relaxed).min(id.node().age.load(Ordering::Relaxed));
            node.age.store(age, Ordering::Relaxed);
            self.remove(*id);
        }
        node.set_range(PageRange::new(node.start(), end));
    }

    /// Joins a marked range with the marked ranges beside it that are as cold, so that they are
    /// offered by one call and watched as one mapping, and huge pages that they share can go whole.
    /// Answers the joined range.
    pub fn merge_with_neighbours(&mut self, id: NodeId) -> NodeId {
        let node = id.node();
        if !hold_marked(node, None) {
            return id;
        }
        let (priority, age) =
            (node.priority.load(Ordering::Relaxed), node.age.load(Ordering::Relaxed));
        let fits = |other: NodeId| {
            let n = other.node();
            n.priority.load(Ordering::Relaxed) == priority && hold_marked(n, Some(age / 2))
        };
        let mut run = vec![id];
        let mut bytes = node.len();
        while let Some(left) = self.covering(run[0].node().start() - 1) {
            bytes += left.node().len();
            if left.node().end() != run[0].node().start() || bytes > LONGEST_MERGE || !fits(left) {
                break;
            }
            run.insert(0, left);
        }
        while let Some(right) = self.covering(run[run.len() - 1].node().end()) {
            bytes += right.node().len();
            if bytes > LONGEST_MERGE || !fits(right) {
                break;
            }
            run.push(right);
        }
        self.merge(run[0], &run[1..]);
        release(run[0].node());
        run[0]
    }
}

/// Merged ranges stay below this, so that one offer takes a bounded time (1 GiB of base pages:
/// 90 ms, interruptible every 8 MiB).
const LONGEST_MERGE: usize = 1 << 30;

/// Takes hold of a marked, resident node without waiting.
fn hold_marked(node: &Node, age_at_least: Option<u8>) -> bool {
    let word = node.load();
    word.pins() == 0
        && word.phase() == Phase::Resident
        && !word.has(Word::FREE | Word::HELD)
        && age_at_least.is_none_or(|age| node.age.load(Ordering::Relaxed) >= age)
        && node.try_change(word, Word(word.used().0 | Word::HELD))
}

/// Takes hold of a raw node: nobody else changes its state until [`release`]. Waits for an offer or
/// a revival under way to end. The caller has the index's lock, so the node stays the same.
pub(crate) fn hold(id: NodeId) {
    let node = id.node();
    loop {
        let word = node.load();
        if matches!(word.phase(), Phase::Resident | Phase::Offered)
            && !word.has(Word::HELD)
            && node.try_change(word, Word(word.used().0 | Word::HELD))
        {
            return;
        }
        pin::wait_until(id, |w| {
            matches!(w.phase(), Phase::Resident | Phase::Offered) && !w.has(Word::HELD)
        });
    }
}

/// Ends [`hold`].
pub(crate) fn release(node: &'static Node) {
    let _ = node.change(|word| Some(Word(word.used().0 & !Word::HELD)));
    pin::ring(node);
}
