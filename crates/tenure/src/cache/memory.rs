//! What the cache uses of the core below it: one owned range of volatile memory, and what is free.
//!
//! Everything here is a stand-in for `tracking::OwnedRange` and the runtime's budget, with the same
//! calls: nothing else in the cache names the core's modules.

use crate::error::{Error, ErrorKind, Result};
use crate::keeper::node::{flag, slab, Node, NodeId, Phase, Word};
use crate::keeper::pages::{self, PagemapHandle};
use crate::keeper::settings::purge_always;
use crate::keeper::{self, bound, gate, pin, records, room};
use crate::mapping::Mapping;
use crate::range::PageRange;
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub(super) use crate::keeper::settings::Priority;
pub(super) use crate::os::generation::current as process;
pub(super) use crate::os::memory_limit::Room;

/// The page map of this process.
pub(super) type Pagemap = PagemapHandle;

/// Opens the page map; `None` where it is refused.
pub(super) fn pagemap() -> Option<Pagemap> {
    PagemapHandle::open()
}

/// Gets the core ready.
pub(super) fn ready(call: &'static str) -> Result<()> {
    keeper::ready(call)
}

/// What is free, as of at most 100 ms ago. Takes a lock and may read files.
pub(super) fn room(now: Instant) -> Room {
    room::room(now)
}

/// Waits while more memory is marked than may be. Under no lock.
#[inline]
pub(super) fn hold_back() {
    bound::hold_back();
}

/// Has `held` called around every fork, in the order of the locks, and `missed` in a child whose
/// fork handlers did not run.
pub(super) fn hold_over_forks(held: fn() -> Box<dyn std::any::Any>, missed: fn()) {
    gate::hold_over_fork(held);
    let _ = gate::MISSED.set(missed);
}

/// Memory that the kernel may take while it is not pinned. See the plan of the core.
pub(super) struct OwnedRange {
    id: NodeId,
    mapping: Mutex<Option<Mapping>>,
}

const NOWHERE: PageRange = PageRange { start: 0, end: 0 };

impl OwnedRange {
    /// Without memory yet; pinned once.
    pub fn bare(priority: u8) -> Result<OwnedRange> {
        let slow = if purge_always() { Word::SLOW_UNPIN } else { 0 };
        let id = slab().take(NOWHERE, Word(Word::PIN | slow), priority, 0).ok_or_else(|| {
            let why = "33 million ranges are known already";
            Error::new(ErrorKind::OutOfMemory, "Cache", why, "use fewer, larger caches")
        })?;
        Ok(OwnedRange { id, mapping: Mutex::new(None) })
    }

    #[inline]
    fn node(&self) -> &'static Node {
        self.id.node()
    }

    /// Adds a pin. `true`: the pages are there and good. `false`: call [`OwnedRange::settle`].
    #[inline]
    pub fn pin(&self) -> bool {
        pin::pin(self.node())
    }

    /// Takes the pages back; the caller has a pin. `lost` only records.
    pub fn settle(&self, lost: &mut dyn FnMut(PageRange)) -> std::result::Result<(), Errno> {
        pin::settle(self.id, None, &mut |extent| {
            lost(extent);
            0
        })
    }

    /// Takes a pin away.
    #[inline]
    pub fn unpin(&self) {
        if pin::unpin(self.node()) {
            pin::last_unpin(self.id);
        }
    }

    pub fn pins(&self) -> u32 {
        self.node().load().pins() as u32
    }

    pub fn is_offered(&self) -> bool {
        self.node().load().phase() == Phase::Offered
    }

    pub fn missing_bytes(&self, pagemap: &Pagemap) -> usize {
        pages::missing(pagemap, self.node())
    }

    /// Drops the pages; the caller alone has the range pinned.
    pub fn discard_pages(&self) -> std::result::Result<(), Errno> {
        self.settle(&mut |_| ())?;
        pin::discard(self.id);
        Ok(())
    }

    /// Takes the mapping away; the caller alone has the range pinned. Drop it outside all locks.
    pub fn take_mapping(&self) -> Option<Mapping> {
        let node = self.node();
        loop {
            pin::wait_until(self.id, |word| {
                !matches!(word.phase(), Phase::Offering | Phase::Reviving)
            });
            let word = node.load();
            let offered = word.phase() == Phase::Offered;
            let next = if offered { Phase::Reviving } else { word.phase() };
            if matches!(word.phase(), Phase::Offering | Phase::Reviving)
                || !node.try_change(word, word.with_phase(next))
            {
                continue;
            }
            node.set(flag::REGISTERED | flag::DENSE | flag::SPARSE | flag::SUSPECT, false);
            records::forget(self.id);
            let mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner).take();
            node.set_range(NOWHERE);
            if offered {
                pin::leave_phase(self.id, Phase::Resident);
            }
            return mapping;
        }
    }

    /// Gives a bare range, which the caller has pinned, its memory.
    pub fn put_mapping(&self, mapping: Mapping) {
        self.node().set_range(mapping.range());
        bound::count(mapping.range().len() as u64);
        *self.mapping.lock().unwrap_or_else(PoisonError::into_inner) = Some(mapping);
    }

    /// What the range takes beside its memory.
    pub const BOOKKEEPING: usize = size_of::<Node>();
}

impl Drop for OwnedRange {
    fn drop(&mut self) {
        self.pin();
        let mapping = self.take_mapping();
        slab().put(self.id);
        drop(mapping);
    }
}
