//! The settings of a program: how long to wait before offering, and how much may stay unoffered.

use crate::os::environment::variable;
use crate::runtime::setting::{Bytes, Time};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The order in which ranges are offered and purged: 0 goes first, 7 last.
///
/// Lower priorities are offered sooner. They are also purged first, because the kernel purges in
/// the order of offering. The wait before offering (see [`Settings::offer_after`]) is multiplied by
/// 1/8, 1/4, 1/2, 1, 1, 2, 4, 8 for the priorities 0 to 7. Under memory pressure there is no wait,
/// and only the order remains.
///
/// ```
/// use tenure::Priority;
/// assert!(Priority::LOWEST < Priority::DEFAULT && Priority::DEFAULT < Priority::HIGHEST);
/// let buffer = tenure::Volatile::builder(1 << 20).priority(Priority::LOWEST).build()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// Offered and discarded first.
    ///
    /// ```
    /// assert_eq!(tenure::Priority::LOWEST.level(), 0);
    /// ```
    pub const LOWEST: Priority = Priority(0);
    /// The priority of a range for which the program has set none.
    ///
    /// ```
    /// assert_eq!(tenure::Priority::default(), tenure::Priority::DEFAULT);
    /// ```
    pub const DEFAULT: Priority = Priority(4);
    /// Offered and discarded last.
    ///
    /// ```
    /// assert_eq!(tenure::Priority::HIGHEST.level(), 7);
    /// ```
    pub const HIGHEST: Priority = Priority(7);

    /// Returns the priority of that level, 0 to 7. `None`: there is no such level.
    ///
    /// ```
    /// use tenure::Priority;
    /// assert_eq!(Priority::new(7), Some(Priority::HIGHEST));
    /// assert_eq!(Priority::new(8), None);
    /// ```
    pub fn new(level: u8) -> Option<Priority> {
        (level <= 7).then_some(Priority(level))
    }

    /// Returns the level, 0 to 7.
    ///
    /// ```
    /// assert_eq!(tenure::Priority::DEFAULT.level(), 4);
    /// ```
    pub fn level(self) -> u8 {
        self.0
    }

    /// Returns the wait before offering, in eighths of the configured one.
    pub(crate) fn wait_eighths(self) -> u64 {
        [1, 2, 4, 8, 8, 16, 32, 64][self.0 as usize]
    }
}

impl Default for Priority {
    fn default() -> Self {
        Priority::DEFAULT
    }
}

/// The worker's settings. Every field has a default.
///
/// ```
/// use std::time::Duration;
/// use tenure::volatile::{configure, settings, Settings};
/// configure(Settings::default().with_offer_after(Duration::from_secs(2)));
/// assert_eq!(settings().offer_after, Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long a range stays marked before it is offered when memory is not short
    /// (default 500 ms).
    ///
    /// Offering and taking back 2 MiB costs about 10 µs as one huge page and 180 µs in 4 KiB pages
    /// (`tenure bench volatile`). A range that is used again just after it was offered pays that
    /// once in 500 ms, at most 0.04 % of the time. Waiting longer gains nothing and leaves the
    /// memory out of the kernel's reach for longer.
    pub offer_after: Duration,
    /// How many bytes may be marked and not offered. `None` (default): a quarter of the memory that
    /// is free under the limits that hold for this process (those of its memory cgroups, and the
    /// machine's), at least 16 MiB or a sixteenth of the limit. Processes that use tenure under one
    /// limit share that equally. Above it the oldest marked ranges are offered at once, and a
    /// caller that takes memory back faster than the worker offers it waits.
    ///
    /// The kernel meets a sudden need from free and from offered memory. So the memory that is
    /// marked and not offered must be small against the free memory.
    pub unoffered_max: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { offer_after: Duration::from_millis(500), unoffered_max: None }
    }
}

impl Settings {
    /// Sets how long a range stays marked before it is offered.
    ///
    /// ```
    /// use tenure::volatile::{configure, settings};
    /// configure(settings().with_offer_after(std::time::Duration::from_millis(100)));
    /// ```
    pub fn with_offer_after(mut self, wait: Duration) -> Self {
        self.offer_after = wait;
        self
    }

    /// Sets the bound on the memory that is marked and not offered.
    ///
    /// ```
    /// use tenure::volatile::{configure, settings};
    /// configure(settings().with_unoffered_max(64 << 20)); // at most 64 MiB marked and not offered
    /// ```
    pub fn with_unoffered_max(mut self, bytes: u64) -> Self {
        self.unoffered_max = Some(bytes);
        self
    }
}

/// The present settings, each readable by itself.
struct InForce {
    offer_after: Time,
    unoffered_max: Bytes,
    purge_always: AtomicBool,
    /// Whether the environment was read.
    read: AtomicBool,
}

/// For the whole process: one worker offers the ranges of all threads.
static IN_FORCE: InForce = InForce {
    offer_after: Time::new(Duration::from_millis(500)),
    unoffered_max: Bytes::unset(),
    purge_always: AtomicBool::new(false),
    read: AtomicBool::new(false),
};

/// Sets the settings for the whole process. They take effect at the worker's next scan.
///
/// ```
/// use tenure::volatile::{configure, Settings};
/// configure(Settings::default().with_unoffered_max(64 << 20));
/// ```
pub fn configure(settings: Settings) {
    IN_FORCE.offer_after.set(settings.offer_after);
    IN_FORCE.unoffered_max.set(settings.unoffered_max);
    super::wake::wake();
}

/// Returns the present settings.
///
/// ```
/// assert_eq!(tenure::volatile::settings().offer_after.as_millis(), 500); // the default
/// ```
pub fn settings() -> Settings {
    Settings {
        offer_after: IN_FORCE.offer_after.get(),
        unoffered_max: IN_FORCE.unoffered_max.get(),
    }
}

/// Returns whether every unmark and every offer purges, for programs that test their own refill
/// (`TENURE_PURGE=always` in the environment, read once).
pub(crate) fn purge_always() -> bool {
    IN_FORCE.purge_always.load(Ordering::Relaxed)
}

/// Reads the environment, when tenure is first used. Threads that come here together read it twice.
/// There is no lock, which a forked child could find held.
pub(super) fn read_environment_once() {
    if !IN_FORCE.read.load(Ordering::Acquire) {
        read_environment();
        IN_FORCE.read.store(true, Ordering::Release);
    }
}

/// Reports an unknown value instead of ignoring it. In a setuid program nothing is read.
fn read_environment() {
    let text = |name| variable(name)?.into_string().ok();
    match text("TENURE_PURGE").as_deref() {
        Some("always") => IN_FORCE.purge_always.store(true, Ordering::Relaxed),
        Some("" | "never") | None => {}
        Some(other) => {
            eprintln!("tenure: TENURE_PURGE={other} is unknown; use `always` or `never`")
        }
    }
    if let Some(text) = text("TENURE_OFFER_AFTER_MS") {
        match text.parse::<u64>() {
            Ok(ms) => IN_FORCE.offer_after.set(Duration::from_millis(ms)),
            Err(_) => eprintln!("tenure: TENURE_OFFER_AFTER_MS={text} is not a number"),
        }
    }
}
