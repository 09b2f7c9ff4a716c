//! The counted guard.

use super::change;
use super::receipt::{receipt, Receipt};
use super::{diagnose, ledger, When};
use crate::error::{Error, ErrorKind, Result};
use crate::os::generation;
use crate::range::PageRange;
use crate::tracking::raw::is_marked;

/// Locks the pages that `[addr, addr + len)` touches until the guard is dropped. The kernel charges
/// them against `RLIMIT_MEMLOCK`, once however many guards hold them.
///
/// The call locks the whole range, or changes nothing. A lock on fault does not weaken pages that
/// are locked in full. With [`When::Now`] every page is resident when the call returns. The call
/// accepts memory that is never paged out anyway (huge pages of hugetlbfs, `memfd_secret`,
/// devices); [`Lock::receipt`] shows it apart.
///
/// ```
/// use tenure::lock::{lock, When};
/// let key = tenure::Mapping::anonymous(4096)?;
/// let guard = lock(key.as_ptr(), key.len(), When::Now)?;
/// assert_eq!(guard.receipt()?.full_bytes(), 4096);
/// drop(guard); // unlocked, unless another guard holds it
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// On fault: about 7 µs for a mapping of any size, 2 µs for each further mapping; the kernel's own
/// call is 1 µs of each. (Before Linux 6.11 tenure reads `/proc/self/maps`: 1 µs for each mapping
/// of the process.) If part of the range is locked without a guard (by an uncounted call, or by
/// other code), tenure reads `/proc/self/smaps`: 80 µs, and 10 ns for each resident page of the
/// process. Now: that, and making the pages resident.
///
/// # Errors
/// Each error names the page or mapping, and a remedy.
/// - `EINVAL`: empty or wrapping; `addr` is not a multiple of the page size; part of it is
///   volatile; `MAP_DROPPABLE` memory, which the kernel does not lock although its call succeeds.
/// - `ENOMEM`: over the limit ([`ErrorKind::LockLimit`]); a hole ([`ErrorKind::NotMapped`]); a
///   mapping cannot be split ([`ErrorKind::TooManyMappings`]); and with [`When::Now`]: a page past
///   the end of its file or a guard page ([`ErrorKind::NoBacking`]), one without access
///   ([`ErrorKind::NoAccess`]), a full tmpfs ([`ErrorKind::NoSpace`]).
/// - `EPERM`: the limit is 0, without `CAP_IPC_LOCK` ([`ErrorKind::LockLimit`]).
/// - `EAGAIN`: no memory to make all of it resident ([`ErrorKind::OutOfMemory`]).
/// - `EHWPOISON`: the hardware has lost a page.
/// - Others: part of the range is locked already, or not mapped, and `/proc/self/smaps` could not be
///   read.
#[doc(alias = "mlock")]
#[doc(alias = "mlock2")]
#[doc(alias = "MLOCK_ONFAULT")]
pub fn lock(addr: *const u8, len: usize, when: When) -> Result<Lock> {
    let range = PageRange::touched("lock", addr, len)?;
    refuse_volatile("lock", range)?;
    // Read before: a signal handler may fork in the midst of this, and a child holds no lock.
    let generation = generation::current();
    let since = change::take("lock", range, when)?;
    Ok(Lock { range, when, generation, since })
}

/// Locks on fault a mapping that was just made, and that no other code has.
pub(super) fn lock_new(call: &'static str, range: PageRange) -> Result<Lock> {
    let generation = generation::current();
    let since = change::take_new(call, range)?;
    Ok(Lock { range, when: When::OnFault, generation, since })
}

pub(super) fn refuse_volatile(call: &'static str, range: PageRange) -> Result<()> {
    if is_marked(range) {
        let why = "part of it is volatile, so the kernel may take it";
        return Err(Error::new(ErrorKind::IsVolatile, call, why, "unmark it first")
            .on(range.start, range.len()));
    }
    Ok(())
}

/// A lock on a range, given back on drop.
///
/// The guard may be dropped before or after the memory is unmapped. Drop it before, if other code
/// than tenure, or a future lock of [`mlockall`](super::mlockall()), will lock the next mapping at
/// this place. The drop unlocks the range that was locked: pages that `mremap` has moved away stay
/// locked. A part that the kernel does not unlock (the process has too many mappings to split one
/// more) stays locked until a later lock call for the part, which tries again. In a forked child the
/// guard does nothing, because a child inherits no locks.
///
/// ```
/// use tenure::lock::{lock, When};
/// let memory = tenure::Mapping::anonymous(8192)?;
/// let all = lock(memory.as_ptr(), 8192, When::OnFault)?;
/// let first = lock(memory.as_ptr(), 4096, When::OnFault)?;
/// drop(all); // the first page has another guard
/// assert_eq!(first.receipt()?.on_fault_bytes(), 4096);
/// # Ok::<(), tenure::Error>(())
/// ```
#[must_use = "the memory is unlocked when the guard is dropped"]
#[derive(Debug)]
pub struct Lock {
    range: PageRange,
    when: When,
    generation: u64,
    /// The ledger's time when the guard was made.
    since: u64,
}

impl Lock {
    /// Returns the address of the first byte.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// let lock = tenure::lock::lock(memory.as_ptr(), 4096, tenure::lock::When::OnFault)?;
    /// assert_eq!(lock.addr(), memory.as_ptr());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn addr(&self) -> *const u8 {
        self.range.start as *const u8
    }

    /// Returns the length in bytes, in whole pages.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// let lock = tenure::lock::lock(memory.as_ptr(), 1, tenure::lock::When::OnFault)?;
    /// assert_eq!(lock.len() % 4096, 0); // whole pages
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns `false`: a lock holds at least one page.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// assert!(!tenure::lock::lock(memory.as_ptr(), 4096, tenure::lock::When::Now)?.is_empty());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns when this guard locks the pages.
    ///
    /// ```
    /// use tenure::lock::{lock, When};
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// assert_eq!(lock(memory.as_ptr(), 4096, When::OnFault)?.when(), When::OnFault);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn when(&self) -> When {
        self.when
    }

    /// Returns how the range is really locked, as [`receipt()`] does.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// let lock = tenure::lock::lock(memory.as_ptr(), 4096, tenure::lock::When::Now)?;
    /// assert_eq!(lock.receipt()?.resident_bytes(), 4096);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for [`receipt()`].
    ///
    /// # Errors
    /// As for [`receipt()`].
    pub fn receipt(&self) -> Result<Receipt> {
        receipt(self.addr(), self.len())
    }

    /// Changes when this guard locks the pages. Only this call weakens a full lock: with
    /// [`When::OnFault`] the pages that no other guard has in full are locked on fault from then
    /// on, and are not unlocked for an instant. With [`When::Now`] the call makes all of them
    /// resident.
    ///
    /// ```
    /// use tenure::lock::{lock, When};
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// let mut guard = lock(memory.as_ptr(), 4096, When::OnFault)?;
    /// guard.set(When::Now)?; // makes it resident
    /// assert_eq!(guard.receipt()?.full_bytes(), 4096);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// To [`When::Now`]: as for [`lock`]. To [`When::OnFault`]: one system call for each mapping
    /// that changes.
    ///
    /// # Errors
    /// To [`When::Now`]: as for [`lock`]. To [`When::OnFault`]: `ENOMEM` if `RLIMIT_MEMLOCK` was
    /// lowered below the bytes that are locked already, because the kernel then refuses this
    /// change, too. In a forked child `ENOMEM`: it holds no lock. Nothing is changed then. Only if
    /// the kernel also refuses to undo a change that it made in part, some pages stay locked on
    /// fault.
    pub fn set(&mut self, when: When) -> Result<()> {
        let call = "Lock::set";
        if when == self.when {
            return Ok(());
        }
        if self.generation != generation::current() {
            return Err(Error::new(
                ErrorKind::NotMapped,
                call,
                "the lock was made before a fork, and a child inherits none",
                "lock it anew in the child",
            )
            .on(self.range.start, self.range.len()));
        }
        match when {
            When::Now => {
                let since = change::take(call, self.range, when)?;
                // The stronger claim is still there, so this only counts.
                self.give_back(&mut ledger::open());
                self.since = since;
            }
            When::OnFault => change::downgrade(&mut ledger::open(), self.range, self.since)
                .map_err(|error| diagnose::not_weakened(call, self.range, error))?,
        }
        self.when = when;
        Ok(())
    }

    /// A part that cannot be unlocked (a mapping that cannot be split any more) stays locked until a
    /// later call for a lock of the part, which tries again.
    fn give_back(&self, ledger: &mut ledger::Ledger) {
        change::pay(ledger, self.range);
        for part in ledger.still(self.range, self.since) {
            let _ = change::give_back(ledger, part, self.when);
        }
        ledger.guard_goes(self.range, self.since);
    }

    /// Ends a lock on fault, or returns it if the kernel does not unlock all of the range.
    pub(super) fn end(self) -> std::result::Result<(), Lock> {
        let ended = ledger::open_if(self.generation)
            .map(|mut ledger| change::give_back_whole(&mut ledger, self.range, self.since));
        match ended {
            Some(Err(_)) => Err(self),
            _ => {
                std::mem::forget(self);
                Ok(())
            }
        }
    }

    /// Keeps the pages locked until the process ends, they are unmapped, or
    /// [`munlock2`](super::munlock2) clears them.
    ///
    /// ```
    /// use tenure::lock::{lock, munlock2, Kinds, When};
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// lock(memory.as_ptr(), 4096, When::Now)?.leak(); // locked without a guard
    /// munlock2(memory.as_ptr(), 4096, Kinds::ALL)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn leak(self) {
        let this = std::mem::ManuallyDrop::new(self);
        if let Some(mut ledger) = ledger::open_if(this.generation) {
            change::keep(&mut ledger, this.range, this.since, this.when);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(mut ledger) = ledger::open_if(self.generation) {
            self.give_back(&mut ledger);
        }
    }
}
