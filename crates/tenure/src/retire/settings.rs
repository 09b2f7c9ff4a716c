//! The settings of retire that a program may change.

use crate::runtime::setting::{Bytes, Time};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

/// When the memory of retired file mappings is given up.
///
/// ```
/// use tenure::retire::{configure, settings, Files};
/// configure(settings().with_files(Files::Later));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Files {
    /// Before the call returns, in slices. Nothing stays held that munmap(2) would release, so the
    /// file system can be unmounted and a memfd sealed at once.
    #[default]
    AtOnce,
    /// Later, as other memory. Until then the mapping holds its file: unmounting and sealing a
    /// memfd against writes return `EBUSY`, and the kernel grants no lease. Needs Linux 6.11,
    /// which tells the page size of a mapping: huge pages of hugetlbfs go at once. On older kernels
    /// files go [in slices](super::Way::InSlices), as with `AtOnce`.
    Later,
}

/// The settings of [`retire`](crate::retire). Every field has a default; see each.
///
/// ```
/// use std::time::Duration;
/// use tenure::retire::{configure, Settings};
/// configure(Settings::default().with_longest_stall(Duration::from_micros(500)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Ranges below this many bytes are unmapped by plain munmap(2).
    pub min_bytes: usize,
    /// How long another thread may have to wait for one step of a teardown (default 1 ms).
    pub longest_stall: Duration,
    /// How many resident bytes may wait to be given back. `None` (default): half of the bytes that
    /// are free under the limits of this process. With another value that half is a bound, too.
    pub pending_max: Option<u64>,
    /// When file mappings are given up.
    pub files: Files,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            min_bytes: 32 << 20,
            longest_stall: Duration::from_millis(1),
            pending_max: None,
            files: Files::AtOnce,
        }
    }
}

impl Settings {
    /// Sets the size from which on ranges are retired.
    ///
    /// ```
    /// use tenure::retire::{configure, settings};
    /// configure(settings().with_min_bytes(4 << 20)); // dropping a Mapping of 4 MiB retires it
    /// ```
    pub fn with_min_bytes(mut self, bytes: usize) -> Self {
        self.min_bytes = bytes;
        self
    }

    /// Sets how long another thread may have to wait.
    ///
    /// ```
    /// use tenure::retire::{configure, settings};
    /// configure(settings().with_longest_stall(std::time::Duration::from_micros(500)));
    /// ```
    pub fn with_longest_stall(mut self, stall: Duration) -> Self {
        self.longest_stall = stall;
        self
    }

    /// Sets how many resident bytes may wait to be given back.
    ///
    /// ```
    /// use tenure::retire::{configure, settings};
    /// configure(settings().with_pending_max(1 << 30)); // at most 1 GiB waits
    /// ```
    pub fn with_pending_max(mut self, bytes: u64) -> Self {
        self.pending_max = Some(bytes);
        self
    }

    /// Sets when file mappings are given up.
    ///
    /// ```
    /// use tenure::retire::{configure, settings, Files};
    /// configure(settings().with_files(Files::AtOnce)); // the default
    /// ```
    pub fn with_files(mut self, files: Files) -> Self {
        self.files = files;
        self
    }
}

/// The settings. Each can be read without a lock.
struct InForce {
    min_bytes: AtomicUsize,
    longest_stall: Time,
    /// Unset: the free memory is the only bound.
    pending_max: Bytes,
    files_later: AtomicU8,
}

/// For the whole process: the arguments of `munmap`, and of the drop of a mapping, are only a
/// range.
static IN_FORCE: InForce = InForce {
    min_bytes: AtomicUsize::new(32 << 20),
    longest_stall: Time::new(Duration::from_millis(1)),
    pending_max: Bytes::unset(),
    files_later: AtomicU8::new(0),
};

/// Sets the settings for the whole process. They take effect from the next call on.
///
/// ```
/// use tenure::retire::{configure, settings, Settings};
/// configure(Settings::default().with_min_bytes(4 << 20));
/// assert_eq!(settings().min_bytes, 4 << 20);
/// ```
pub fn configure(settings: Settings) {
    IN_FORCE.min_bytes.store(settings.min_bytes, Ordering::Relaxed);
    IN_FORCE.longest_stall.set(settings.longest_stall);
    IN_FORCE.pending_max.set(settings.pending_max);
    IN_FORCE.files_later.store(u8::from(settings.files == Files::Later), Ordering::Relaxed);
}

/// Returns the settings in force.
///
/// ```
/// assert_eq!(tenure::retire::settings().min_bytes, 32 << 20); // the default
/// ```
pub fn settings() -> Settings {
    Settings {
        min_bytes: IN_FORCE.min_bytes.load(Ordering::Relaxed),
        longest_stall: IN_FORCE.longest_stall.get(),
        pending_max: IN_FORCE.pending_max.get(),
        files: match IN_FORCE.files_later.load(Ordering::Relaxed) {
            0 => Files::AtOnce,
            _ => Files::Later,
        },
    }
}

pub(super) fn min_bytes() -> usize {
    IN_FORCE.min_bytes.load(Ordering::Relaxed)
}

pub(super) fn longest_stall_ns() -> u64 {
    IN_FORCE.longest_stall.get().as_nanos() as u64
}

pub(super) fn pending_max() -> u64 {
    IN_FORCE.pending_max.get().unwrap_or(u64::MAX)
}

pub(super) fn files_later() -> bool {
    IN_FORCE.files_later.load(Ordering::Relaxed) != 0
}
