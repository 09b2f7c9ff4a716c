//! One owned buffer of volatile memory.

use super::refill::{self, Refill};
use super::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::node::{flag, slab, Node, NodeId, Phase, Word};
use crate::keeper::pages::Refusal;
use crate::keeper::settings::{purge_always, Priority};
use crate::keeper::{self, gate, pin};
use crate::mapping::{Mapping, PageSize};
use crate::os;
use crate::range::PageRange;
use rustix::io::Errno;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once, PoisonError};

/// A buffer that the kernel may take while nobody has it pinned.
///
/// ```
/// # fn main() -> tenure::Result<()> {
/// let mut thumbnails = tenure::Volatile::new(1 << 20)?;
/// thumbnails.pin_mut()?.fill(7);
/// // … later: what is left of it?
/// let pinned = thumbnails.pin()?;
/// match pinned.outcome() {
///     tenure::Outcome::Intact => assert_eq!(pinned[0], 7),
///     tenure::Outcome::Purged => { /* make it again through pin_mut, then restored() */ }
/// }
/// # Ok(()) }
/// ```
///
/// Pins are counted: the buffer is volatile when the last guard is dropped. Without a pin the bytes
/// cannot be reached in safe Rust. Once something was lost, every pin says so until
/// [`Volatile::restored`] is called (or a refill function has made it again), so that no nested pin
/// takes zeros for contents.
#[derive(Debug)]
pub struct Volatile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    id: NodeId,
    mapping: Mapping,
    refill: Option<Refill>,
    /// What was lost and not restored; its lock is held while it is refilled.
    lost: Mutex<Vec<PageRange>>,
}

/// How to make a [`Volatile`].
#[derive(Debug)]
pub struct VolatileBuilder {
    len: usize,
    priority: Priority,
    pages: Option<PageSize>,
    refill: Option<Refill>,
}

impl VolatileBuilder {
    /// How willingly it is given up.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// What pages to use; by default huge pages from 2 MiB on, which are a thousand times cheaper to
    /// offer and take back.
    pub fn pages(mut self, pages: PageSize) -> Self {
        self.pages = Some(pages);
        self
    }

    /// How purged bytes are made again: at the next pin, or when a thread touches them through
    /// [`Volatile::as_ptr`] without a pin, which then waits while they are made on another thread.
    ///
    /// The function must not touch purged pages of an object with a refill function without a pin:
    /// one thread serves them all.
    pub fn refill(mut self, refill: Refill) -> Self {
        self.refill = Some(refill);
        self
    }

    /// Makes the buffer, zeroed and volatile.
    ///
    /// # Errors
    /// `EINVAL`: the length is 0. `ENOMEM`: no address space, too many mappings. `EOPNOTSUPP`: the
    /// kernel refuses `MADV_FREE`.
    pub fn build(self) -> Result<Volatile> {
        let call = "Volatile::new";
        keeper::ready(call)?;
        static OVER_FORK: Once = Once::new();
        OVER_FORK.call_once(|| gate::hold_over_fork(refill::lock_for_fork));
        let huge = self.len >= os::HUGE_PAGE;
        let pages = self.pages.unwrap_or(if huge { PageSize::Huge } else { PageSize::System });
        let mapping = Mapping::anonymous_with(self.len, pages)?;
        let mut word = Word(Word::PIN);
        if purge_always() {
            word.0 |= Word::SLOW_UNPIN;
        }
        let full = || {
            let why = "33 million ranges are known already";
            Error::new(ErrorKind::OutOfMemory, call, why, "use a Cache for many small values")
        };
        // Pinned until it is complete.
        let id = slab().take(mapping.range(), word, self.priority.level(), 0).ok_or_else(full)?;
        keeper::bound::exposed(mapping.range().len() as u64);
        let lost = Mutex::new(Vec::new());
        let inner = Arc::new(Inner { id, mapping, refill: self.refill, lost });
        if inner.refill.is_some() && refill::enrol(&inner) {
            inner.node().set(flag::REFILLED, true);
        }
        inner.unpin();
        Ok(Volatile { inner })
    }
}

impl Volatile {
    /// A buffer of `len` zeroed bytes, volatile from the start.
    ///
    /// # Errors
    /// As [`VolatileBuilder::build`].
    pub fn new(len: usize) -> Result<Volatile> {
        Volatile::builder(len).build()
    }

    /// Sets what [`Volatile::new`] leaves at its default.
    pub fn builder(len: usize) -> VolatileBuilder {
        VolatileBuilder { len, priority: Priority::DEFAULT, pages: None, refill: None }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Never: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Makes the bytes stay while the guard lives, and tells what became of them.
    ///
    /// # Cost
    /// Not offered: pin and unpin are one atomic instruction each, whatever the size. Offered: as
    /// [`super::unmark`], without the unregister.
    ///
    /// # Errors
    /// `EIO`: the refill function failed or panicked; the bytes are as before, and the next pin
    /// tries again. `ENOMEM`: no memory for pages that a fork shares. Nothing is lost by an error.
    #[inline]
    pub fn pin(&self) -> Result<Pinned<'_>> {
        if !pin::pin(self.inner.node()) {
            self.inner.settle()?;
        }
        Ok(Pinned { volatile: self })
    }

    /// [`Volatile::pin`] for writing.
    ///
    /// # Errors
    /// As [`Volatile::pin`].
    pub fn pin_mut(&mut self) -> Result<PinnedMut<'_>> {
        if !pin::pin(self.inner.node()) {
            self.inner.settle()?;
        }
        Ok(PinnedMut { volatile: self })
    }

    /// Takes back a pin whose guard was given to [`std::mem::forget`]; for callers that count their
    /// pins themselves, as the C interface does. `false`: nobody has it pinned.
    ///
    /// # Safety
    /// There is such a pin, or none at all, and nothing refers to the bytes through it any more.
    pub unsafe fn unpin(&self) -> bool {
        let pinned = self.inner.node().load().pins() > 0;
        if pinned {
            self.inner.unpin();
        }
        pinned
    }

    /// Declares the contents good again after they were lost.
    pub fn restored(&self) {
        let mut lost = self.inner.lost();
        lost.clear();
        self.inner.node().word.fetch_and(!Word::LOST, Ordering::AcqRel);
    }

    /// Changes how willingly it is given up.
    pub fn set_priority(&self, priority: Priority) {
        self.inner.node().priority.store(priority.level(), Ordering::Relaxed);
    }

    /// The first byte's address, for code that touches the bytes without a pin: a page that is gone
    /// raises SIGBUS, or is refilled while the toucher waits. Where [`super::detection`] is
    /// [`super::Detection::Words`] it reads zeros, so there only pinned memory may be read.
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.range().start as *mut u8
    }

    /// Tells the kernel now that it may take the bytes, if nobody has them pinned.
    ///
    /// # Errors
    /// `EINVAL`: pinned. Others as [`super::offer_now`].
    pub fn offer_now(&self) -> Result<()> {
        pin::offer_now(self.inner.id).map_err(|r| self.refused("Volatile::offer_now", r))
    }

    /// [`Volatile::offer_now`], and has the kernel discard them; answers how many bytes are gone.
    ///
    /// # Errors
    /// As [`Volatile::offer_now`].
    pub fn purge_now(&self) -> Result<usize> {
        pin::offer_and_purge(self.inner.id).map_err(|r| self.refused("Volatile::purge_now", r))
    }

    fn refused(&self, call: &'static str, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Kernel(errno) => Error::system(call, "madvise(MADV_FREE)", errno),
            Refusal::Shared => Error::system(
                call,
                "not tried: a process made by fork still shares the pages; the call",
                Errno::BUSY,
            ),
            _ => Error::new(ErrorKind::NotMarked, call, "it is pinned", "take its pins away first"),
        }
    }
}

impl Drop for Volatile {
    fn drop(&mut self) {
        let inner = &self.inner;
        if inner.node().is(flag::REFILLED) {
            refill::retire(inner.range().start);
        }
        // A pin keeps the keeper away from now on; an offer under way ends first. The mapping goes
        // with the last reference, which the refill thread may hold for a moment.
        pin::pin(inner.node());
        pin::wait_until(inner.id, |word| {
            !matches!(word.phase(), Phase::Offering | Phase::Reviving)
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        crate::keeper::records::forget(self.id);
        slab().put(self.id);
    }
}

impl Inner {
    #[inline]
    fn node(&self) -> &'static Node {
        self.id.node()
    }

    pub(super) fn range(&self) -> PageRange {
        self.mapping.range()
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    pub(super) fn refill(&self) -> Option<&Refill> {
        self.refill.as_ref()
    }

    /// Writes bytes of a pinned object that were lost. Nobody reads them meanwhile: every pinner
    /// waits for the lock that the caller holds.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len());
        // SAFETY: inside the mapping, which is writable while `self` lives; see above for readers.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (self.range().start + offset) as *mut u8,
                bytes.len(),
            );
        }
    }

    fn lost(&self) -> std::sync::MutexGuard<'_, Vec<PageRange>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn unpin(&self) {
        if pin::unpin(self.node()) {
            pin::last_unpin(self.id);
        }
    }

    /// Completes a pin whose pages were not simply there. On an error the pin is taken away.
    #[cold]
    fn settle(&self) -> Result<()> {
        let fail = |error: Error| {
            self.unpin();
            Err(error.on(self.range().start, self.range().len()))
        };
        let taken_back = pin::settle(self.id, None, &mut |extent| {
            self.lost().push(extent);
            Word::LOST
        });
        if let Err(errno) = taken_back {
            return fail(Error::system("Volatile::pin", "madvise(MADV_POPULATE_WRITE)", errno));
        }
        let (Some(function), true) = (&self.refill, self.node().load().has(Word::LOST)) else {
            return Ok(());
        };
        // Pinners of the same object wait here for the one that refills.
        let mut lost = self.lost();
        if lost.is_empty() {
            return Ok(());
        }
        let watched = self.node().is(flag::REFILLED);
        match refill::refill(self, function, &lost, watched) {
            Ok(()) => {
                lost.clear();
                self.node().word.fetch_and(!Word::LOST, Ordering::AcqRel);
                Ok(())
            }
            Err(cause) => {
                drop(lost);
                fail(Error::new(
                    ErrorKind::RefillFailed,
                    "Volatile::pin",
                    format!("the refill failed: {cause}"),
                    "the next pin tries again",
                ))
            }
        }
    }

    fn lost_offsets(&self) -> Vec<Range<usize>> {
        if !self.node().load().has(Word::LOST) {
            return Vec::new();
        }
        let base = self.range().start;
        let end = self.len();
        let mut all: Vec<_> =
            self.lost().iter().map(|e| e.start - base..(e.end - base).min(end)).collect();
        all.sort_unstable_by_key(|range| range.start);
        all
    }
}

/// Read access to a pinned [`Volatile`]; the bytes stay while it lives.
#[derive(Debug)]
#[must_use = "the buffer is volatile again when the guard is dropped"]
pub struct Pinned<'a> {
    volatile: &'a Volatile,
}

/// Write access to a pinned [`Volatile`].
#[derive(Debug)]
#[must_use = "the buffer is volatile again when the guard is dropped"]
pub struct PinnedMut<'a> {
    volatile: &'a mut Volatile,
}

macro_rules! guard {
    ($name:ident) => {
        impl $name<'_> {
            /// Whether everything is as it was last written.
            #[inline]
            pub fn outcome(&self) -> Outcome {
                match self.volatile.inner.node().load().has(Word::LOST) {
                    false => Outcome::Intact,
                    true => Outcome::Purged,
                }
            }

            /// The extents that are gone and read as zeros, as byte offsets, in order. Empty when
            /// intact; everything when the whole buffer was purged.
            pub fn lost(&self) -> Vec<Range<usize>> {
                self.volatile.inner.lost_offsets()
            }

            /// Declares the contents good again; see [`Volatile::restored`].
            pub fn restored(&self) {
                self.volatile.restored();
            }
        }

        impl Deref for $name<'_> {
            type Target = [u8];
            #[inline]
            fn deref(&self) -> &[u8] {
                self.volatile.inner.mapping.as_slice()
            }
        }

        impl Drop for $name<'_> {
            #[inline]
            fn drop(&mut self) {
                self.volatile.inner.unpin();
            }
        }
    };
}

guard!(Pinned);
guard!(PinnedMut);

impl DerefMut for PinnedMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let inner = &self.volatile.inner;
        // SAFETY: mapped writable, pinned so that it stays, and borrowed exclusively: guards borrow
        // the `Volatile`, and the refill thread writes missing pages only, of which a settled pin
        // leaves none.
        unsafe { std::slice::from_raw_parts_mut(inner.range().start as *mut u8, inner.len()) }
    }
}
