//! One owned buffer of volatile memory.

#![allow(unsafe_code, reason = "gives out the bytes of a buffer under a pin")]

use super::object::Object;
use super::refill::Refill;
use super::{make_again, refill_thread, refused, Outcome};
use crate::error::{Error, Result};
use crate::mapping::{Mapping, PageSize};
use crate::os;
use crate::runtime::turn::Turn;
use crate::tracking;
use crate::tracking::offer::Refusal;
use crate::tracking::owned::{Losses, OwnedRange};
use crate::tracking::settings::Priority;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// A buffer that the kernel may take while it is not pinned.
///
/// ```
/// # fn main() -> tenure::Result<()> {
/// let mut thumbnails = tenure::Volatile::new(1 << 20)?;
/// thumbnails.pin_mut()?.fill(7);
/// // … later: is all of it still there?
/// let pinned = thumbnails.pin()?;
/// match pinned.outcome() {
///     tenure::Outcome::Intact => assert_eq!(pinned[0], 7),
///     tenure::Outcome::Purged => { /* make it again through pin_mut, then restored() */ }
/// }
/// # Ok(()) }
/// ```
///
/// Pins are counted: the buffer is volatile when the last guard is dropped. Without a pin safe Rust
/// cannot reach the bytes. Once something was lost, every pin reports it until the program calls
/// [`Volatile::restored`], or a refill function has made it again. So no nested pin takes zeros for
/// contents.
#[derive(Debug)]
#[doc(alias = "MADV_FREE")]
pub struct Volatile {
    inner: Arc<Object>,
}

/// Builds a [`Volatile`]: the settings that [`Volatile::new`] leaves at their defaults.
///
/// ```
/// use tenure::{PageSize, Priority, Volatile};
/// let buffer =
///     Volatile::builder(1 << 20).priority(Priority::LOWEST).pages(PageSize::Base).build()?;
/// assert_eq!(buffer.len(), 1 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
pub struct VolatileBuilder {
    len: usize,
    priority: Priority,
    pages: Option<PageSize>,
    refill: Option<Refill>,
}

impl VolatileBuilder {
    /// Sets when the kernel takes it, compared with other volatile memory of the process.
    ///
    /// ```
    /// let buffer = tenure::Volatile::builder(4096).priority(tenure::Priority::HIGHEST).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the size of its pages. The default is huge pages from 2 MiB on, which are much cheaper
    /// to offer and take back (`tenure bench volatile`).
    ///
    /// ```
    /// let buffer = tenure::Volatile::builder(4 << 20).pages(tenure::PageSize::Base).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[doc(alias = "MADV_HUGEPAGE")]
    #[doc(alias = "MADV_NOHUGEPAGE")]
    pub fn pages(mut self, pages: PageSize) -> Self {
        self.pages = Some(pages);
        self
    }

    /// Sets the function that makes purged bytes again. A new buffer holds zeros: the program
    /// writes the first contents, and the function makes again the bytes that are purged after
    /// that. tenure calls it at the next pin, or when a thread touches purged bytes through
    /// [`Volatile::as_ptr`] without a pin. That thread then waits while another thread makes the
    /// bytes.
    ///
    /// That other thread has the program's descriptors and the usual stack. It blocks all signals
    /// except those that it raises itself. If tenure cannot keep descriptors of its own
    /// (`private_descriptors` of `tenure doctor`), such a touch raises SIGBUS.
    ///
    /// One thread runs the refill functions of all objects. So the function must not touch purged
    /// pages of such an object without a pin, and must not wait for a thread that does so (for
    /// example for its lock).
    ///
    /// ```
    /// use tenure::volatile::{Refill, RefillError};
    /// fn numbers(offset: usize, bytes: &mut [u8]) -> Result<(), RefillError> {
    ///     bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((offset + i) % 251) as u8);
    ///     Ok(())
    /// }
    /// let refill = Refill::pages(numbers);
    /// let mut buffer = tenure::Volatile::builder(1 << 20).refill(refill).build()?;
    /// let _ = numbers(0, &mut buffer.pin_mut()?); // the first contents
    /// buffer.purge_now()?; // as the kernel does when memory is short
    /// assert_eq!(buffer.pin()?[1000], (1000 % 251) as u8); // made again, or still there
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[doc(alias = "userfaultfd")]
    pub fn refill(mut self, refill: Refill) -> Self {
        self.refill = Some(refill);
        self
    }

    /// Makes the buffer, zeroed and volatile.
    ///
    /// ```
    /// let buffer = tenure::Volatile::builder(1 << 20).build()?;
    /// assert_eq!(tenure::Volatile::builder(0).build().unwrap_err().errno(), 22); // EINVAL
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// One mapping: about 3 µs. The first use of volatile memory in the process tries the kernel's
    /// features, which takes some milliseconds.
    ///
    /// # Errors
    /// `EINVAL`: the length is 0. `ENOMEM`: no address space, too many mappings. `EOPNOTSUPP`: the
    /// kernel refuses `MADV_FREE`. `EAGAIN`: the worker's thread could not start.
    pub fn build(self) -> Result<Volatile> {
        let call = "Volatile::new";
        tracking::ready(call)?;
        let huge = self.len >= os::HUGE_PAGE;
        let pages = self.pages.unwrap_or(if huge { PageSize::Huge } else { PageSize::System });
        let mapping = Mapping::anonymous_with(self.len, pages)?;
        // Pinned until it is complete.
        let losses = match self.refill {
            Some(_) => Losses::AreMadeAgain,
            None => Losses::AreZeros,
        };
        let memory = OwnedRange::new(call, mapping, self.priority.level(), losses)?;
        let (len, refilling) = (self.len, Turn::new());
        let inner = Arc::new(Object { memory, len, refill: self.refill, refilling });
        tracking::backpressure::hold_back();
        if inner.refill.is_some() {
            refill_thread::enrol(&inner);
        }
        inner.memory.unpin();
        Ok(Volatile { inner })
    }
}

impl Volatile {
    /// Makes a buffer of `len` zeroed bytes, volatile from the start.
    ///
    /// ```
    /// let mut buffer = tenure::Volatile::new(1 << 20)?;
    /// buffer.pin_mut()?[..5].copy_from_slice(b"hello");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for [`VolatileBuilder::build`]. It takes no memory before the first write.
    ///
    /// # Errors
    /// As for [`VolatileBuilder::build`].
    #[doc(alias = "madvise")]
    #[doc(alias = "MADV_FREE")]
    pub fn new(len: usize) -> Result<Volatile> {
        Volatile::builder(len).build()
    }

    /// Returns a builder for the settings that [`Volatile::new`] leaves at their defaults.
    ///
    /// ```
    /// let buffer = tenure::Volatile::builder(1 << 20).priority(tenure::Priority::LOWEST).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn builder(len: usize) -> VolatileBuilder {
        VolatileBuilder { len, priority: Priority::DEFAULT, pages: None, refill: None }
    }

    /// Returns the length in bytes.
    ///
    /// ```
    /// assert_eq!(tenure::Volatile::new(5000)?.len(), 5000); // as asked for, not whole pages
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Returns `false`: a buffer has at least one byte.
    ///
    /// ```
    /// assert!(!tenure::Volatile::new(1)?.is_empty());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Pins the buffer: the bytes stay while the guard lives. The guard reports the pages that were
    /// purged before.
    ///
    /// ```
    /// let buffer = tenure::Volatile::new(1 << 20)?;
    /// let pinned = buffer.pin()?;
    /// if pinned.outcome() == tenure::Outcome::Intact {
    ///     let _first = pinned[0]; // the kernel takes nothing while `pinned` lives
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// If the buffer is not offered, one atomic instruction each for the pin and the unpin,
    /// whatever the size. If it is offered, as for [`super::unmark`] of an offered range.
    ///
    /// # Errors
    /// `EIO`: the refill function failed or panicked; the next pin tries again. `EDEADLK`: the
    /// object's own refill function pins it, or waits for this thread. `ENOMEM`: no memory for
    /// pages that a fork shares or for the bytes of the refill function, or too many mappings.
    /// After an error nothing is lost.
    ///
    /// # Panics
    /// If the buffer has more than 500,000 pins at once: so many guards are held, or were leaked.
    #[inline]
    pub fn pin(&self) -> Result<Pinned<'_>> {
        if !self.inner.memory.pin() {
            settle(&self.inner)?;
        }
        Ok(Pinned { volatile: self })
    }

    /// Pins the buffer for writing, as [`Volatile::pin`] does for reading.
    ///
    /// ```
    /// let mut buffer = tenure::Volatile::new(1 << 20)?;
    /// let mut pinned = buffer.pin_mut()?;
    /// if pinned.outcome() == tenure::Outcome::Purged {
    ///     pinned.fill(7); // make all of it again,
    ///     pinned.restored(); // and say so
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for [`Volatile::pin`].
    ///
    /// # Errors
    /// As for [`Volatile::pin`].
    ///
    /// # Panics
    /// As for [`Volatile::pin`]: guards of [`Volatile::pin`] that were leaked count.
    pub fn pin_mut(&mut self) -> Result<PinnedMut<'_>> {
        if !self.inner.memory.pin() {
            settle(&self.inner)?;
        }
        Ok(PinnedMut { volatile: self })
    }

    /// Removes a pin whose guard was passed to [`std::mem::forget`], for callers that count their
    /// pins themselves, as the C library does. `false`: the buffer is not pinned.
    ///
    /// ```
    /// let buffer = tenure::Volatile::new(1 << 20)?;
    /// std::mem::forget(buffer.pin()?);
    /// // SAFETY: the pin above was forgotten, and nothing refers to the bytes.
    /// assert!(unsafe { buffer.unpin() });
    /// // SAFETY: nothing refers to the bytes.
    /// assert!(!unsafe { buffer.unpin() }); // it is not pinned
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Safety
    /// There is such a pin, or none at all, and nothing refers to the bytes through it.
    pub unsafe fn unpin(&self) -> bool {
        self.inner.memory.unpin_if_pinned()
    }

    /// Declares the contents intact again after a loss.
    ///
    /// Bytes that a refill function has not made yet stay lost: no pin has seen them.
    ///
    /// ```
    /// let mut buffer = tenure::Volatile::new(1 << 20)?;
    /// if buffer.pin()?.outcome() == tenure::Outcome::Purged {
    ///     buffer.pin_mut()?.fill(7);
    ///     buffer.restored();
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// One atomic instruction if something was lost, else none.
    pub fn restored(&self) {
        if self.inner.refill.is_none() {
            self.inner.memory.restored();
        }
    }

    /// Changes its priority.
    ///
    /// ```
    /// let buffer = tenure::Volatile::new(1 << 20)?;
    /// buffer.set_priority(tenure::Priority::LOWEST); // from now on it goes before others
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// A few instructions; no system call.
    pub fn set_priority(&self, priority: Priority) {
        self.inner.memory.set_priority(priority.level());
    }

    /// Returns the address of the first byte, for code that touches the bytes without a pin. A
    /// touch of a purged page raises SIGBUS, or the page is refilled while the thread waits. If
    /// [`super::detection`] is [`super::Detection::Words`], such a page reads as zeros, so there
    /// only pinned memory may be read.
    ///
    /// ```
    /// let buffer = tenure::Volatile::new(1 << 20)?;
    /// let first = buffer.as_ptr();
    /// let pinned = buffer.pin()?;
    /// assert_eq!(pinned.as_ptr(), first.cast_const());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.range().start as *mut u8
    }

    /// Offers the bytes now, if they are not pinned.
    ///
    /// ```
    /// let buffer = tenure::Volatile::new(1 << 20)?;
    /// buffer.offer_now()?; // the worker would do it within half a second
    /// let pinned = buffer.pin()?;
    /// assert_eq!(buffer.offer_now().unwrap_err().errno(), 22); // EINVAL: it is pinned
    /// # drop(pinned);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 4 µs for a huge page, and 40 µs for 2 MiB of 4 KiB pages.
    ///
    /// # Errors
    /// `EINVAL`: pinned. Others as for [`super::offer_now`].
    #[doc(alias = "madvise")]
    #[doc(alias = "MADV_FREE")]
    pub fn offer_now(&self) -> Result<()> {
        let call = "Volatile::offer_now";
        tracking::ready(call)?;
        self.inner.memory.offer_now().map_err(|r| self.refused(call, r))
    }

    /// Offers the bytes as [`Volatile::offer_now`] does, and has the kernel discard them. Returns
    /// how many bytes are gone.
    ///
    /// ```
    /// let mut buffer = tenure::Volatile::new(1 << 20)?;
    /// buffer.pin_mut()?.fill(7);
    /// if buffer.purge_now()? > 0 {
    ///     assert_eq!(buffer.pin()?.outcome(), tenure::Outcome::Purged);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for [`Volatile::offer_now`], and the kernel's reclaim: up to 1 µs for each 4 KiB page.
    ///
    /// # Errors
    /// As for [`Volatile::offer_now`].
    #[doc(alias = "MADV_PAGEOUT")]
    pub fn purge_now(&self) -> Result<usize> {
        let call = "Volatile::purge_now";
        tracking::ready(call)?;
        self.inner.memory.purge_now().map_err(|r| self.refused(call, r))
    }

    fn refused(&self, call: &'static str, refusal: Refusal) -> Error {
        refused::error(
            call,
            self.inner.range(),
            refusal,
            ("it is pinned", "take its pins away first"),
        )
    }
}

impl Drop for Volatile {
    fn drop(&mut self) {
        // The mapping is unmapped with the last reference, which the refill thread may hold for a
        // moment.
        if self.inner.refill.is_some() {
            refill_thread::remove(self.inner.range().start);
        }
    }
}

/// Completes a pin of offered or purged pages. After an error the pin is removed.
#[cold]
fn settle(object: &Object) -> Result<()> {
    take_back(object).inspect_err(|_| object.memory.unpin())
}

fn take_back(object: &Object) -> Result<()> {
    let on_range = |error: Error| error.on(object.range().start, object.range().len());
    object.memory.settle_and_keep_losses().map_err(|errno| {
        on_range(Error::system("Volatile::pin", "taking the pages back", errno))
    })?;
    match &object.refill {
        Some(refill) if object.memory.has_losses() => {
            make_again::make_again(object, refill).map_err(on_range)
        }
        _ => Ok(()),
    }
}

/// Read access to a pinned [`Volatile`]; the bytes stay while it lives.
///
/// ```
/// let buffer = tenure::Volatile::new(1 << 20)?;
/// let (one, two) = (buffer.pin()?, buffer.pin()?); // pins are counted
/// drop(one);
/// assert_eq!(two.len(), 1 << 20); // still pinned
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the buffer is volatile again when the guard is dropped"]
pub struct Pinned<'a> {
    volatile: &'a Volatile,
}

/// Write access to a pinned [`Volatile`].
///
/// ```
/// let mut buffer = tenure::Volatile::new(1 << 20)?;
/// let mut pinned = buffer.pin_mut()?;
/// pinned[0] = 7;
/// assert_eq!(pinned[0], 7);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the buffer is volatile again when the guard is dropped"]
pub struct PinnedMut<'a> {
    volatile: &'a mut Volatile,
}

macro_rules! guard {
    ($name:ident) => {
        impl $name<'_> {
            /// Returns whether all bytes are as they were last written.
            ///
            /// ```
            /// let buffer = tenure::Volatile::new(1 << 20)?;
            /// let pinned = buffer.pin()?;
            /// assert_eq!(pinned.outcome() == tenure::Outcome::Intact, pinned.lost().is_empty());
            /// # Ok::<(), tenure::Error>(())
            /// ```
            #[inline]
            pub fn outcome(&self) -> Outcome {
                match self.volatile.inner.memory.has_losses() {
                    false => Outcome::Intact,
                    true => Outcome::Purged,
                }
            }

            /// Returns the purged extents, which read as zeros, as byte offsets, in order. The list
            /// is empty if nothing was lost.
            ///
            /// ```
            /// let mut buffer = tenure::Volatile::new(1 << 20)?;
            /// let mut pinned = buffer.pin_mut()?;
            /// for extent in pinned.lost() {
            ///     pinned[extent].fill(7); // make only the lost bytes again
            /// }
            /// pinned.restored();
            /// assert!(pinned.lost().is_empty());
            /// # Ok::<(), tenure::Error>(())
            /// ```
            ///
            /// # Cost
            /// An allocation for the list.
            pub fn lost(&self) -> Vec<Range<usize>> {
                self.volatile.inner.lost_offsets()
            }

            /// Declares the contents intact again; see [`Volatile::restored`].
            ///
            /// ```
            /// let mut buffer = tenure::Volatile::new(1 << 20)?;
            /// let mut pinned = buffer.pin_mut()?;
            /// pinned.fill(7);
            /// pinned.restored();
            /// assert_eq!(pinned.outcome(), tenure::Outcome::Intact);
            /// # Ok::<(), tenure::Error>(())
            /// ```
            pub fn restored(&self) {
                self.volatile.restored();
            }
        }

        impl Deref for $name<'_> {
            type Target = [u8];
            #[inline]
            fn deref(&self) -> &[u8] {
                self.volatile.inner.bytes()
            }
        }

        impl Drop for $name<'_> {
            #[inline]
            fn drop(&mut self) {
                self.volatile.inner.memory.unpin();
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
        // the `Volatile`. A refill writes only lost pages, and a settled pin leaves none.
        unsafe { std::slice::from_raw_parts_mut(inner.range().start as *mut u8, inner.len) }
    }
}
