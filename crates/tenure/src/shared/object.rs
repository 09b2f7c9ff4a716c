//! Shared volatile memory as a process has it open.

#![allow(unsafe_code, reason = "other processes write to the memory")]

use super::chunk::{Purge, MOST_BRIEF_PINS, MOST_PINS};
use super::function::{Function, Once};
use super::layout::{Shape, Use};
use super::make::get_or_make;
use super::pin::{Before, Maker, SharedChunk, SharedPin};
use super::region::Region;
use super::stats::SharedStats;
use super::{list, pin, priority_of, purge, refill, service, touch};
use crate::error::{Error, ErrorKind, Result};
use crate::os::generation;
use crate::os::shared_file::SharedFile;
use crate::os::signal::Blocked;
use crate::runtime::fork;
use crate::sync::Ordering;
use crate::text::text;
use crate::tracking::settings::Priority;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ops::Range;
use std::sync::Arc;

/// Volatile memory that several processes share.
///
/// It consists of chunks. A process pins a chunk to use it. While no process has a chunk pinned,
/// any process that has the memory open may give its pages back when memory is short. The next
/// process that pins it learns that, and makes the bytes again.
///
/// ```
/// use tenure::shared::SharedVolatile;
/// let shared = SharedVolatile::new(16 << 20)?; // children of a fork have it, too
/// let tile = shared.get_or_make(3, |bytes| bytes.fill(7))?; // made once, by the first caller
/// assert_eq!(tile[0], 7);
/// drop(tile); // from here on the memory may go when it is needed elsewhere
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ashmem")]
#[doc(alias = "memfd_create")]
pub struct SharedVolatile {
    region: Arc<Region>,
    function: Once<Function>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl SharedVolatile {
    /// Opens memory that another process has made, by its descriptor: inherited, or
    /// [received](super::receive).
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use tenure::shared::SharedVolatile;
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// shared.get_or_make(0, |bytes| bytes.fill(7))?;
    /// let descriptor = shared.as_fd().try_clone_to_owned().unwrap();
    /// // SAFETY: only this program has the descriptor.
    /// let other = unsafe { SharedVolatile::open(descriptor) }?;
    /// assert_eq!(other.get_or_make(0, |_| unreachable!())?[100], 7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Safety
    /// Every process that has the descriptor writes to the memory only as a [`Maker`]. A process
    /// that writes elsewhere could change bytes to which this program has a reference. No process
    /// can crash this one by what it writes to the header, because tenure checks the header.
    /// # Errors
    /// `EPROTO`: it is not shared volatile memory of this version, or it is damaged. `EUSERS`: as
    /// many processes have it open as its maker allowed. `EACCES`, `EPERM`: the descriptor is open
    /// only for reading, or sealed. `EOPNOTSUPP`: a [refill
    /// function](super::SharedVolatileBuilder::refill) makes it, and this process may not use
    /// userfaultfd. `EAGAIN`: no thread, or another thread replaces the userfaultfds. `ENOENT`: there
    /// is no `/proc`. `ENOMEM`, `EMFILE`.
    pub unsafe fn open(descriptor: OwnedFd) -> Result<SharedVolatile> {
        SharedVolatile::open_as("SharedVolatile::open", descriptor, Use::Chunks, false)
    }

    /// Opens memory to pin and read it, not to make chunks: for this process a chunk that is gone
    /// stays gone. A write to the bytes ends the process.
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use tenure::shared::SharedVolatile;
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// // SAFETY: only this program has the descriptor.
    /// let reader = unsafe {
    ///     SharedVolatile::open_read_only(shared.as_fd().try_clone_to_owned().unwrap())
    /// }?;
    /// assert!(reader.read(0)?.is_none());
    /// assert_eq!(reader.pin(0).unwrap_err().errno(), 13); // EACCES
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Safety
    /// As [`SharedVolatile::open`]. A pin is a write, so the descriptor must be open for writing.
    /// An untrusted reader can therefore also write.
    ///
    /// # Errors
    /// As [`SharedVolatile::open`].
    pub unsafe fn open_read_only(descriptor: OwnedFd) -> Result<SharedVolatile> {
        SharedVolatile::open_as("SharedVolatile::open_read_only", descriptor, Use::Chunks, true)
    }

    /// Does what [`SharedVolatile::open`] does, for a type that is built on it.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn open_for(
        call: &'static str,
        descriptor: OwnedFd,
        usage: Use,
    ) -> Result<SharedVolatile> {
        SharedVolatile::open_as(call, descriptor, usage, false)
    }

    fn open_as(
        call: &'static str,
        descriptor: OwnedFd,
        usage: Use,
        read_only: bool,
    ) -> Result<SharedVolatile> {
        let system = |errno| Error::system(call, "asking for the file's length and seals", errno);
        let file = SharedFile::of(descriptor).map_err(system)?;
        let (_, is_sealed) = file.len().map_err(system)?;
        if !is_sealed {
            let why = "the file could be made shorter: it is not sealed (F_SEAL_SHRINK)";
            let remedy = "pass the descriptor that the maker of a SharedVolatile passed on";
            return Err(Error::new(ErrorKind::BadHeader, call, why, remedy));
        }
        SharedVolatile::map(call, file, None, usage, read_only)
    }

    /// Maps a file. `new`: the shape of a new file.
    pub(super) fn map(
        call: &'static str,
        file: SharedFile,
        new: Option<Shape>,
        usage: Use,
        read_only: bool,
    ) -> Result<SharedVolatile> {
        let region = service::open(call, file, new, usage, read_only)?;
        Ok(SharedVolatile { region, function: Once::new() })
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Keeps the function that [`FunctionPlace`](super::function::FunctionPlace) finds.
    pub(super) fn keep(&self, function: Function) {
        self.function.set(function);
    }

    pub(super) fn region_shared(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the length in bytes, whole chunks.
    ///
    /// ```
    /// assert_eq!(tenure::shared::SharedVolatile::new(1)?.len(), 64 << 10);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.region.shape.data
    }

    /// Returns `false`, because the memory has at least one chunk.
    ///
    /// ```
    /// assert!(!tenure::shared::SharedVolatile::new(1)?.is_empty());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the number of chunks.
    ///
    /// ```
    /// assert_eq!(tenure::shared::SharedVolatile::new(1 << 20)?.chunks(), 16);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn chunks(&self) -> usize {
        self.region.shape.chunks
    }

    /// Returns the size of a chunk in bytes.
    ///
    /// ```
    /// assert_eq!(tenure::shared::SharedVolatile::new(1 << 20)?.chunk_size(), 64 << 10);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn chunk_size(&self) -> usize {
        self.region.shape.chunk
    }

    pub(super) fn check(&self, call: &'static str, chunk: usize) -> Result<()> {
        if chunk < self.chunks() {
            return Ok(());
        }
        let why = text!("chunk {chunk} is none: there are {}", self.chunks());
        Err(Error::new(ErrorKind::BadRange, call, why, "pass 0 to chunks() - 1"))
    }

    /// Pins a chunk and returns its state, in one step. Of all threads and processes that pin a
    /// purged chunk, exactly one gets the right to make the bytes. The others find the chunk being
    /// made.
    ///
    /// ```
    /// use tenure::shared::{SharedPin, SharedVolatile};
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// assert!(matches!(shared.pin(0)?, SharedPin::ToMake(_)));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// An intact chunk: no system call. A chunk that is gone: its memory is made, and the call may
    /// first purge other chunks for it.
    ///
    /// # Errors
    /// `EINVAL`: there is no such chunk. `EACCES`: the chunk is gone, and the memory is open only
    /// for reading, or this process has no refill function. `EIO`: the refill function failed or
    /// panicked. `EDEADLK`: the chunk's own refill function pins it. `ENOMEM`: there is no memory
    /// for the chunk; the next pin finds what this one found. `EUSERS`: this process has the chunk
    /// pinned 32,000 times. `EPROTO`: another process has overwritten the header. `EOPNOTSUPP`: a
    /// refill function makes the memory, and this process is a child that got no userfaultfd.
    /// `EBADF`: it is not watched, and the program has closed the memory's descriptor.
    #[inline]
    pub fn pin(&self, chunk: usize) -> Result<SharedPin<'_>> {
        self.pin_as("SharedVolatile::pin", chunk)
    }

    #[inline]
    fn pin_as(&self, call: &'static str, chunk: usize) -> Result<SharedPin<'_>> {
        if let Some(intact) = self.pin_intact(chunk) {
            return Ok(SharedPin::Intact(intact));
        }
        self.check(call, chunk)?;
        SharedPin::take(call, &self.region, chunk)
    }

    /// Pins a chunk of this object, if it is intact.
    #[inline]
    fn pin_intact(&self, chunk: usize) -> Option<SharedChunk<'_>> {
        self.pin_up_to(MOST_PINS, chunk)
    }

    /// The same, for a pin that ends within the call. It succeeds although the program has as many
    /// pins as it may have.
    #[inline]
    pub(super) fn pin_briefly(&self, chunk: usize) -> Option<SharedChunk<'_>> {
        self.pin_up_to(MOST_BRIEF_PINS, chunk)
    }

    /// Returns how many more lasting pins this process may have of a chunk. Negative: it has more
    /// than it may, because some are brief.
    #[inline]
    pub(super) fn pins_left(&self, chunk: usize) -> i32 {
        let own = self.region.slots.own_or_none();
        let pins = own.map_or(0, |own| self.region.chunk(chunk).pins_of(own));
        i32::from(MOST_PINS) - i32::from(pins)
    }

    #[inline]
    fn pin_up_to(&self, most: u16, chunk: usize) -> Option<SharedChunk<'_>> {
        let pinned = chunk < self.chunks() && self.region.pin_intact(chunk, most);
        pinned.then(|| SharedChunk::pinned(&self.region, chunk))
    }

    /// Pins a chunk if it is intact. Returns `None` if it is gone or being made. The next
    /// [`pin`](SharedVolatile::pin) still gets the right to make it.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// assert!(shared.read(0)?.is_none());
    /// shared.get_or_make(0, |bytes| bytes.fill(7))?;
    /// assert_eq!(shared.read(0)?.unwrap()[0], 7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SharedVolatile::pin`], except `ENOMEM` and `EACCES`.
    pub fn read(&self, chunk: usize) -> Result<Option<SharedChunk<'_>>> {
        self.read_as("SharedVolatile::read", chunk)
    }

    #[inline]
    pub(super) fn read_as(
        &self,
        call: &'static str,
        chunk: usize,
    ) -> Result<Option<SharedChunk<'_>>> {
        if let Some(intact) = self.pin_intact(chunk) {
            return Ok(Some(intact));
        }
        self.check(call, chunk)?;
        let found = self.region.pin(call, chunk, false)?;
        // The pin of a chunk that is being made ends here.
        Ok(SharedPin::of(&self.region, chunk, found).and_then(SharedPin::intact))
    }

    /// Pins a chunk. If it is gone, makes it with `make`, which gets zeros. If another thread makes
    /// it, waits for that thread. `make` replaces the refill function, if there is one.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// let chunk = shared.get_or_make(5, |bytes| bytes[..2].copy_from_slice(b"hi"))?;
    /// assert_eq!(&chunk[..3], b"hi\0");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SharedVolatile::pin`]. `EBUSY`: `make` has forked, and this is the child. The parent
    /// makes the chunk, and the child must not write to it. If `make` panics, the chunk stays gone.
    /// `EDEADLK`: `make` asks for the same chunk, or the thread that makes the chunk in this call
    /// waits for this thread.
    ///
    /// Not every circle is found. Its threads wait for ever if they are of two processes, if
    /// [`pin`](SharedVolatile::pin) gave one of them its chunk, if refill functions make the memory, or
    /// if two of the chunks that are being made have numbers whose lowest six bits are equal.
    pub fn get_or_make(
        &self,
        chunk: usize,
        make: impl FnOnce(&mut [u8]),
    ) -> Result<SharedChunk<'_>> {
        let call = "SharedVolatile::get_or_make";
        if self.region.shape.refilled && !self.region.read_only {
            self.check(call, chunk)?;
            return pin::get_or_fill(call, &self.region, chunk, |bytes| {
                make(bytes);
                Ok(())
            });
        }
        get_or_make(call, &self.region, self.pin_as(call, chunk)?, chunk, make)
    }

    /// Pins neighbouring chunks, each as [`SharedVolatile::pin`] does.
    ///
    /// Finish the chunks that you make before you wait for chunks that others make: they may wait
    /// for you.
    ///
    /// ```
    /// use tenure::shared::{SharedPin, SharedVolatile};
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// for pin in shared.pin_range(0..4)? {
    ///     if let SharedPin::ToMake(mut maker) = pin {
    ///         maker.fill(7);
    ///         maker.finish()?;
    ///     }
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SharedVolatile::pin`]. Then no chunk is pinned, and later pins find the chunks that are
    /// gone.
    pub fn pin_range(&self, chunks: Range<usize>) -> Result<Vec<SharedPin<'_>>> {
        let call = "SharedVolatile::pin_range";
        if chunks.is_empty() {
            return Err(Error::new(
                ErrorKind::BadRange,
                call,
                "the range is empty",
                "pass a chunk",
            ));
        }
        self.check(call, chunks.end - 1)?;
        let mut pins = Vec::new();
        for chunk in chunks {
            match self.pin_as(call, chunk) {
                Ok(pin) => pins.push(pin),
                Err(error) => {
                    pins.into_iter().for_each(SharedPin::withdraw);
                    return Err(error);
                }
            }
        }
        Ok(pins)
    }

    /// Returns the right to change an intact chunk in place, if no other thread or process has it
    /// pinned. Until the maker finishes, others find the chunk being made. If the maker does not
    /// finish, they find it gone.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// shared.get_or_make(0, |bytes| bytes.fill(7))?;
    /// let mut maker = shared.remake(0)?;
    /// maker[0] = 8;
    /// assert_eq!(maker.finish()?[..2], [8, 7]);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EBUSY`: another thread or process has it pinned, or it is not intact. `EACCES`: the memory
    /// is open only for reading. `EOPNOTSUPP`: a [refill
    /// function](super::SharedVolatileBuilder::refill) makes it. Others as [`SharedVolatile::pin`].
    pub fn remake(&self, chunk: usize) -> Result<Maker<'_>> {
        let call = "SharedVolatile::remake";
        self.check(call, chunk)?;
        if self.region.read_only {
            let why = "the memory is open to read only";
            return Err(Error::new(ErrorKind::NoAccess, call, why, "open it to write"));
        }
        if self.region.shape.refilled {
            return Err(refill::not_in_place(call));
        }
        let found = self.region.pin(call, chunk, false)?;
        let busy = |why: &'static str| {
            Error::new(ErrorKind::Busy, call, text!("chunk {chunk} {why}"), "try again later")
        };
        // Ends the pin, unless the maker takes it over.
        let pinned = SharedPin::of(&self.region, chunk, found).and_then(SharedPin::intact);
        let Some(pinned) = pinned else { return Err(busy("is gone, or being made")) };
        let maker = match self.try_remake(call, chunk)? {
            Some(maker) => maker,
            None => {
                // The processes that have it pinned may have died.
                list::look_who_lives(&self.region);
                let maker = self.try_remake(call, chunk)?;
                maker.ok_or_else(|| busy("is pinned by another thread or process"))?
            }
        };
        std::mem::forget(pinned);
        Ok(maker)
    }

    /// Takes the right to change a chunk in place, if the caller's pin is the only one. The maker
    /// takes that pin over.
    fn try_remake(&self, call: &'static str, chunk: usize) -> Result<Option<Maker<'_>>> {
        let _blocked = Blocked::all();
        let own = self.region.slots.own(call)?;
        let is_mine = self.region.chunk(chunk).try_remake(own, || self.region.forks());
        let maker = || Maker::new(&self.region, chunk, Before::Intact, generation::current());
        Ok(is_mine.then(maker))
    }

    /// Sets when a chunk is purged, compared with other chunks.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// shared.set_priority(0, tenure::Priority::LOWEST)?; // goes before the others
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: there is no such chunk.
    pub fn set_priority(&self, chunk: usize, priority: Priority) -> Result<()> {
        self.check("SharedVolatile::set_priority", chunk)?;
        self.region.chunk(chunk).priority.store(super::stored(priority), Ordering::Relaxed);
        Ok(())
    }

    /// Returns a chunk's priority.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// assert_eq!(shared.priority(0)?, tenure::Priority::DEFAULT);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: there is no such chunk.
    pub fn priority(&self, chunk: usize) -> Result<Priority> {
        self.check("SharedVolatile::priority", chunk)?;
        Ok(priority_of(&self.region.chunk(chunk)))
    }

    /// Purges the unpinned chunks of a range, as happens when memory is short. Returns their
    /// number. If some are pinned, first removes what dead processes left.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// shared.get_or_make(0, |bytes| bytes.fill(7))?;
    /// assert_eq!(shared.purge_now(0..shared.chunks())?, 1);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: there are no such chunks. `EUSERS`: as [`SharedVolatile::pin`].
    pub fn purge_now(&self, chunks: Range<usize>) -> Result<usize> {
        let call = "SharedVolatile::purge_now";
        if !chunks.is_empty() {
            self.check(call, chunks.end - 1)?;
        }
        fork::look();
        self.region.slots.own(call)?;
        let purge = |chunk| purge::purge(&self.region, chunk);
        let (mut purged, mut looked) = (0, false);
        self.region.each_recorded(|chunk| {
            if !chunks.contains(&chunk) {
                return;
            }
            let mut done = purge(chunk);
            // The processes that have it pinned may have died, and no worker may have looked yet.
            if done == Purge::Pinned && !std::mem::replace(&mut looked, true) {
                list::look_who_lives(&self.region);
                done = purge(chunk);
            }
            purged += usize::from(done == Purge::Done);
        });
        Ok(purged)
    }

    /// Returns the address of a chunk's first byte, for code that touches the bytes without a pin.
    /// A touch of bytes that are gone raises SIGBUS if [`is_watched`](SharedVolatile::is_watched),
    /// and otherwise may read zeros. With a [refill function](super::SharedVolatileBuilder::refill)
    /// such a touch makes the chunk, and sees the made bytes. The bytes may be given back at any
    /// moment, and another process may make them anew.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// assert!(!shared.as_ptr(0)?.is_null());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: there is no such chunk.
    pub fn as_ptr(&self, chunk: usize) -> Result<*mut u8> {
        self.check("SharedVolatile::as_ptr", chunk)?;
        Ok(self.region.view_of(chunk).start as *mut u8)
    }

    /// Returns whether a touch of bytes that are gone raises SIGBUS in this process. `false`: this
    /// process, or another one that had the memory open, may not use userfaultfd. The touch of such
    /// a process puts zeros there for all, so the result changes when one opens the memory. Memory
    /// with refill functions, made in a process with userfaultfd, is not opened without.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// println!("SIGBUS on touch: {}", shared.is_watched());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_watched(&self) -> bool {
        self.region.is_watched()
    }

    /// Returns what the memory holds now, and its counts so far, in all processes. First removes
    /// what dead processes left.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// let _chunk = shared.get_or_make(0, |bytes| bytes.fill(7))?;
    /// let stats = shared.stats();
    /// assert_eq!((stats.intact, stats.pinned, stats.processes), (1, 1, 1));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// One read of each chunk (about 20 ns), and three system calls for each process that has it
    /// open.
    pub fn stats(&self) -> SharedStats {
        SharedStats::of(&self.region)
    }
}

impl Drop for SharedVolatile {
    fn drop(&mut self) {
        fork::look();
        if self.region.refill.is_set() {
            touch::remove(&self.region);
        }
        service::close(&mut self.region);
    }
}

/// The descriptor, for another process. It closes at `exec`, unless the program clears `FD_CLOEXEC`
/// of a copy.
impl AsFd for SharedVolatile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.file.as_fd()
    }
}
