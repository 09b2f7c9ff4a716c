//! Time limits that bound the tested code, and not the machine.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A limit on the time of an action of this process. Meanwhile it measures how long the machine
/// keeps the process's threads from running, because of other work or because the machine stands
/// still. That time is added several times. Without such stalls the limit is the given one. At most
/// 450 s are added.
#[derive(Debug)]
pub struct Deadline {
    start: Instant,
    /// See [`waited_for_processors`].
    waited_before: Duration,
    limit: Duration,
    /// The most that stalls add.
    pub(crate) most: Duration,
    stalls: Arc<Stalls>,
    /// The thread that measures stalls, in the process that made it.
    measures: Option<JoinHandle<()>>,
    process: u32,
}

#[derive(Debug, Default)]
struct Stalls {
    sum_us: AtomicU64,
    over: AtomicBool,
}

/// A stall of one thread is rarely alone: each of the threads that take turns may have one.
const SHARES: u32 = 4;
/// The most that stalls add to a limit: less than the ten minutes that a child has.
const MOST: Duration = Duration::from_secs(450);
const NAP: Duration = Duration::from_millis(5);
/// The latest wake-up of a thread on a quiet machine.
const PUNCTUAL: Duration = Duration::from_millis(1);

impl Deadline {
    /// Starts the time limit now.
    ///
    /// # Panics
    /// If no thread can be created.
    pub fn after(limit: Duration) -> Deadline {
        let stalls = Arc::new(Stalls::default());
        let watched = Arc::clone(&stalls);
        let measures = spawn_begun(move || {
            while !watched.over.load(Ordering::Relaxed) {
                let asleep = Instant::now();
                std::thread::park_timeout(NAP);
                let late = asleep.elapsed().saturating_sub(NAP);
                if late > PUNCTUAL {
                    watched.sum_us.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
                }
            }
        });
        let (start, measures) = (Instant::now(), Some(measures));
        let waited_before = waited_for_processors();
        let (most, process) = (MOST, std::process::id());
        Deadline { start, waited_before, limit, most, stalls, measures, process }
    }

    /// Starts it anew, with the same limit. Allocates nothing.
    pub fn restart(&mut self) {
        self.stalls.sum_us.store(0, Ordering::Relaxed);
        (self.start, self.waited_before) = (Instant::now(), waited_for_processors());
    }

    /// Returns how long the machine has stalled. A thread that naps is woken in time where threads
    /// that work wait for a processor, so the kernel's own count of such waits counts, too.
    pub fn stalled(&self) -> Duration {
        let naps = Duration::from_micros(self.stalls.sum_us.load(Ordering::Relaxed));
        naps.max(waited_for_processors().saturating_sub(self.waited_before))
    }

    /// Returns whether more time has passed than is allowed.
    pub fn is_over(&self) -> bool {
        // Read first: a stall that is not noticed yet delays this thread, too.
        let took = self.start.elapsed();
        if took <= self.limit {
            return false;
        }
        std::thread::sleep(4 * NAP);
        took > self.limit + (SHARES * self.stalled()).min(self.most)
    }
}

/// Starts a thread, and waits until its body runs. While a thread starts, it has a lock of Rust's runtime.
/// If that runtime's handler for SIGBUS runs meanwhile, on another thread, the new thread pauses for ever,
/// and all later ones wait for it: a test that sends itself SIGBUS hung three times in 8,000 turns.
///
/// # Panics
/// If no thread can be created.
pub fn spawn_begun(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let (begins, begun) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::spawn(move || {
        let _ = begins.send(());
        body();
    });
    begun.recv().expect("the thread sends first");
    thread
}

/// How long some thread of the machine has waited for a processor while others ran, since the
/// machine was started. 0 where the kernel does not tell. Allocates nothing: a thread that hangs may
/// have the allocator's lock.
pub fn waited_for_processors() -> Duration {
    let mut text = [0; 512];
    let read = File::open("/proc/pressure/cpu").and_then(|mut file| file.read(&mut text));
    let pressure = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|some| some.split("total=").nth(1)?.trim().parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.stalls.over.store(true, Ordering::Relaxed);
        // The thread is gone afterwards, so that a raw clone does not find it holding a lock of the
        // C library's.
        if let Some(measures) = self.measures.take().filter(|_| self.process == std::process::id())
        {
            measures.thread().unpark();
            let _ = measures.join();
        }
    }
}
