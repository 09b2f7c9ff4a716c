//! The settings of the pool that a program may change.

use crate::runtime::setting::{Bytes, Time};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// When runs get huge pages.
///
/// ```
/// use tenure::pool::{configure, settings, HugePages};
/// configure(settings().with_huge_pages(HugePages::Never));
/// ```
#[doc(alias = "MADV_HUGEPAGE")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Runs of 2 MiB and more have huge pages, as far as whole huge pages fit into the requested
    /// size or waste at most an eighth of it. The rest, and smaller runs, have base pages: the
    /// kernel splits a huge page of which a part is offered.
    #[default]
    Auto,
    /// Huge pages as the system's setting says (`/sys/kernel/mm/transparent_hugepage/enabled`),
    /// without advice from the pool. Memory of which a program uses few pages takes no more than
    /// with another allocator.
    System,
    /// No run.
    Never,
}

/// The pool's settings. Every field has a default; see each.
///
/// ```
/// use std::time::Duration;
/// use tenure::pool::{configure, Settings};
/// configure(Settings::default().with_return_after(Duration::from_secs(1)).with_warm_max(64 << 20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long a freed run stays warm before it is offered (default 500 ms; it may take a quarter
    /// longer, and more on a busy machine, where the worker comes late). Offering costs 0.17 µs a 4 KiB
    /// page.
    pub offer_after: Duration,
    /// How long after it was freed a run is returned (default 10 s; the first look of the worker
    /// after that, and later on a busy machine).
    pub return_after: Duration,
    /// How many bytes may be warm. `None` (default): a quarter of the bytes that are free under the
    /// limits of this process, at least 16 MiB or a sixteenth of the limit. Processes that use
    /// tenure under one limit share that equally. Beyond it the oldest warm runs are offered at
    /// once.
    pub warm_max: Option<u64>,
    /// When runs get huge pages. Takes effect for sizes that were not used before.
    pub huge_pages: HugePages,
    /// Whether the pages of freed runs are used again (default true). `false`: each page goes back
    /// to the kernel when its run is freed, and the next run has fresh ones. For a program that
    /// frees memory which the kernel still reads or writes: `vmsplice`, `MSG_ZEROCOPY`, io_uring or
    /// AIO in flight. `munmap` is safe then, because the kernel keeps such pages for itself. Takes
    /// effect for runs that are freed from then on.
    pub reuse: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            offer_after: Duration::from_millis(500),
            return_after: Duration::from_secs(10),
            warm_max: None,
            huge_pages: HugePages::Auto,
            reuse: true,
        }
    }
}

impl Settings {
    /// Sets how long a run stays warm.
    ///
    /// ```
    /// use tenure::pool::{configure, settings};
    /// configure(settings().with_offer_after(std::time::Duration::from_millis(100)));
    /// ```
    pub fn with_offer_after(mut self, wait: Duration) -> Self {
        self.offer_after = wait;
        self
    }

    /// Sets when a run is returned.
    ///
    /// ```
    /// use tenure::pool::{configure, settings};
    /// configure(settings().with_return_after(std::time::Duration::from_secs(1)));
    /// ```
    pub fn with_return_after(mut self, wait: Duration) -> Self {
        self.return_after = wait;
        self
    }

    /// Sets how many bytes may be warm.
    ///
    /// ```
    /// use tenure::pool::{configure, settings};
    /// configure(settings().with_warm_max(64 << 20)); // at most 64 MiB warm
    /// ```
    pub fn with_warm_max(mut self, bytes: u64) -> Self {
        self.warm_max = Some(bytes);
        self
    }

    /// Sets when runs get huge pages.
    ///
    /// ```
    /// use tenure::pool::{configure, settings, HugePages};
    /// configure(settings().with_huge_pages(HugePages::System));
    /// ```
    pub fn with_huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets whether pages are used again.
    ///
    /// ```
    /// use tenure::pool::{configure, settings};
    /// configure(settings().with_reuse(false)); // before the program's first io_uring write
    /// ```
    pub fn with_reuse(mut self, reuse: bool) -> Self {
        self.reuse = reuse;
        self
    }
}

/// The settings in force. Each can be read by itself.
struct InForce {
    offer_after: Time,
    return_after: Time,
    warm_max: Bytes,
    /// The number of a [`HugePages`].
    huge: AtomicU8,
    no_reuse: AtomicBool,
}

/// For the whole process, as the pool is.
static IN_FORCE: InForce = InForce {
    offer_after: Time::new(Duration::from_millis(500)),
    return_after: Time::new(Duration::from_secs(10)),
    warm_max: Bytes::unset(),
    huge: AtomicU8::new(0),
    no_reuse: AtomicBool::new(false),
};

thread_local! {
    /// Each thread's own: it knows best what the kernel may still read of what it frees.
    static NO_REUSE_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether runs that this thread frees keep their pages. Costs two loads.
#[inline]
pub(super) fn reuses() -> bool {
    !IN_FORCE.no_reuse.load(Ordering::Relaxed) && !NO_REUSE_HERE.get()
}

/// Sets whether the pages of runs that this thread frees are used again (default true), as
/// [`Settings::reuse`] does for all threads. If one of both is `false`, they are not. Costs one store.
///
/// ```
/// tenure::pool::set_reuse_of_this_thread(false); // the kernel may still read what it frees next
/// tenure::pool::set_reuse_of_this_thread(true);
/// ```
#[inline]
pub fn set_reuse_of_this_thread(reuse: bool) {
    NO_REUSE_HERE.set(!reuse);
}

/// Sets the settings. They take effect at the worker's next scan.
pub(super) fn set(settings: Settings) {
    IN_FORCE.offer_after.set(settings.offer_after);
    IN_FORCE.return_after.set(settings.return_after);
    IN_FORCE.warm_max.set(settings.warm_max);
    IN_FORCE.huge.store(settings.huge_pages as u8, Ordering::Relaxed);
    IN_FORCE.no_reuse.store(!settings.reuse, Ordering::Relaxed);
}

/// Returns the settings in force.
///
/// ```
/// assert_eq!(tenure::pool::settings().offer_after.as_millis(), 500); // the default
/// ```
pub fn settings() -> Settings {
    Settings {
        offer_after: IN_FORCE.offer_after.get(),
        return_after: IN_FORCE.return_after.get(),
        warm_max: IN_FORCE.warm_max.get(),
        huge_pages: [HugePages::Auto, HugePages::System, HugePages::Never]
            [usize::from(IN_FORCE.huge.load(Ordering::Relaxed))],
        reuse: !IN_FORCE.no_reuse.load(Ordering::Relaxed),
    }
}
