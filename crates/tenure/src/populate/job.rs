//! The work of a populate: free threads take pieces in ascending order, and the size of a piece
//! depends on the time that pieces take.

use super::failure::{self, Failed, Fault, LowestFault};
use super::plan::{Plan, Step, LARGEST_OF_FILE, LARGEST_PIECE};
use super::progress::{Counter, Progress, Report};
use super::Access;
use crate::error::{Error, ErrorKind};
use crate::os::thread::disk_reads;
use crate::os::{files, generation, page_size, populate as os_populate, touch, HUGE_PAGE};
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::event::Event;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest time of a piece: short against the 50 ms in which a cancel must act, long against
/// the microsecond that a further call costs.
const PIECE_TIME: Duration = Duration::from_millis(4);
const FIRST_PIECE: usize = HUGE_PAGE;
/// How long threads that start together wait for each other without sleeping: a thread starts
/// within 0.1 ms.
const AWAKE: Duration = Duration::from_millis(2);

pub(super) type Outcome = Result<Report, Failed>;

/// A populate under way, shared by the threads that work on it.
///
/// It has no lock: a child that a signal handler makes continues with it, and the thread that would
/// hold the lock may have stayed with the parent.
pub(super) struct Job {
    /// The process that has its threads. A signal handler may make a child at any moment, also before
    /// the last thread is started.
    generation: u64,
    call: &'static str,
    plan: Plan,
    started: Instant,
    deadline: Option<Instant>,
    /// Everything below it was handed out.
    cursor: AtomicUsize,
    /// Nothing from here on is handed out: this is the end, or the lowest page that failed.
    limit: AtomicUsize,
    counter: Counter,
    cancelled: AtomicBool,
    timed_out: AtomicBool,
    /// The kernel had to read a disk.
    cold: AtomicBool,
    /// No work is left, or none may be handed out.
    handed_out: AtomicBool,
    told_elapsed: AtomicU64,
    workers: AtomicUsize,
    fault: LowestFault,
    /// The last thread that works sets it.
    outcome: OnceLock<Outcome>,
    /// Helpers that are ready to begin.
    arrived: AtomicUsize,
    open: AtomicBool,
    /// How many threads have not yet called [`Job::leave`].
    working: AtomicUsize,
    /// Rung after `open`, `cold`, `handed_out` or `outcome` is set.
    changed: Event,
}

impl Job {
    /// `workers` threads will call [`Job::work`], once each.
    pub fn new(
        call: &'static str,
        plan: Plan,
        started: Instant,
        deadline: Option<Duration>,
        workers: usize,
    ) -> Job {
        Job {
            generation: generation::current(),
            call,
            started,
            // A deadline past the end of time counts as none.
            deadline: deadline.and_then(|d| started.checked_add(d)),
            cursor: AtomicUsize::new(plan.start),
            limit: AtomicUsize::new(plan.start + plan.len),
            plan,
            counter: Counter::default(),
            cancelled: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            cold: AtomicBool::new(false),
            handed_out: AtomicBool::new(false),
            told_elapsed: AtomicU64::new(0),
            workers: AtomicUsize::new(workers),
            fault: LowestFault::none(),
            outcome: OnceLock::new(),
            arrived: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            working: AtomicUsize::new(workers),
            changed: Event::new(),
        }
    }

    pub fn range(&self) -> PageRange {
        self.plan.range()
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn progress(&self) -> Progress {
        self.counter.progress(self.plan.len as u64, self.elapsed())
    }

    /// Returns the elapsed time. It never decreases: the end is computed a moment before it is
    /// published.
    fn elapsed(&self) -> Duration {
        let elapsed = match self.outcome.get() {
            Some(Ok(report)) => report.elapsed,
            Some(Err(failed)) => failed.report.elapsed,
            None => self.started.elapsed(),
        };
        let nanos = elapsed.as_nanos() as u64;
        Duration::from_nanos(self.told_elapsed.fetch_max(nanos, Ordering::Relaxed).max(nanos))
    }

    /// Returns whether this process is a child of the one that has the threads.
    pub fn in_child(&self) -> bool {
        generation::current() != self.generation
    }

    pub fn is_over(&self) -> bool {
        self.outcome.get().is_some() || self.in_child()
    }

    /// Waits for the end. `None`: a signal handler has made a child meanwhile, which this is, and
    /// which has no threads that would end the work.
    pub fn wait(&self) -> Option<&Outcome> {
        self.changed.wait_until(|| self.is_over());
        self.outcome.get()
    }

    /// Waits for the end, for `patience` at most. Returns whether it has come.
    pub fn wait_timeout(&self, patience: Duration) -> bool {
        self.changed.wait_until_timeout(|| self.is_over(), patience)
    }

    /// Waits for the end, and returns the result.
    pub fn result(&self) -> Outcome {
        self.wait().cloned().unwrap_or_else(|| Err(self.left_behind()))
    }

    /// The result in a child made by fork.
    fn left_behind(&self) -> Failed {
        let (progress, range) = (self.progress(), self.range());
        let why = "the threads that did it stayed with the process that forked";
        let remedy = "populate again in the child";
        let error =
            Error::new(ErrorKind::Cancelled, "populate", why, remedy).on(range.start, range.len());
        let report = Report {
            bytes: progress.bytes,
            populated: progress.populated,
            threads: 0,
            elapsed: progress.elapsed,
            first_missing: Some(range.start),
        };
        Failed { error, report: Box::new(report) }
    }

    /// Notes that an expected thread could not be started.
    pub fn without_one(&self) {
        self.workers.fetch_sub(1, Ordering::Relaxed);
        self.leave();
    }

    /// Lets `helpers` threads begin that wait in [`wait_for_opening`](Job::wait_for_opening), once
    /// all are there.
    ///
    /// A new thread maps and protects memory for itself. A populate holds the kernel's lock for
    /// that, and a waiting writer gets its turn only after 4 ms: of two threads one was 14 ms late.
    pub fn open(&self, helpers: usize) {
        let until = Instant::now() + AWAKE;
        while self.arrived.load(Ordering::Acquire) < helpers && Instant::now() < until {
            crate::os::futex::yield_now();
        }
        self.ring(&self.open);
    }

    /// Waits without sleeping at first: a thread that is woken may have to share its waker's
    /// processor for a tick.
    pub fn wait_for_opening(&self) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let until = Instant::now() + AWAKE;
        let is_open = || self.open.load(Ordering::Acquire);
        while !is_open() && Instant::now() < until {
            crate::os::futex::yield_now();
        }
        self.changed.wait_until(is_open);
    }

    /// Waits until the kernel had to read a disk, where a second thread helps, or until the work is
    /// over.
    pub fn wait_for_cold(&self) {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        self.changed.wait_until(|| is_set(&self.cold) || is_set(&self.handed_out));
    }

    /// Sets a flag for which a thread may be waiting.
    fn ring(&self, flag: &AtomicBool) {
        if !flag.swap(true, Ordering::AcqRel) {
            self.changed.ring();
        }
    }

    /// Works until no piece is left, and calls `between` after each piece.
    pub fn work(&self, mut between: impl FnMut()) {
        struct Leave<'a>(&'a Job);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.ring(&self.0.handed_out);
                self.0.leave();
            }
        }
        // However this ends, no other thread may wait for this one for good.
        let _leave = Leave(self);
        let mut size = FIRST_PIECE;
        while let Some(piece) = self.claim(size) {
            let before = Instant::now();
            let done = match self.make_ready(piece) {
                Ok(()) => piece.len(),
                Err(fault) => {
                    self.stop_at(fault);
                    fault.page.saturating_sub(piece.start)
                }
            };
            self.counter.add(done as u64, self.started.elapsed());
            size = next_size(piece.len(), before.elapsed());
            between();
        }
    }

    fn claim(&self, size: usize) -> Option<PageRange> {
        let mut at = self.cursor.load(Ordering::Relaxed);
        loop {
            let limit = self.limit.load(Ordering::Acquire);
            if at >= limit || self.cancelled.load(Ordering::Relaxed) {
                return None;
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.timed_out.store(true, Ordering::Relaxed);
                return None;
            }
            let end = self.piece_end(at, size).min(limit);
            match self.cursor.compare_exchange_weak(at, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(PageRange::new(at, end)),
                Err(now) => at = now,
            }
        }
    }

    /// Cuts pieces at multiples of a huge page, so that two threads never work in one page table.
    /// Towards the end pieces become smaller, so that no thread waits long for the last one.
    fn piece_end(&self, at: usize, size: usize) -> usize {
        let least = self.plan.part_at(at).map_or(HUGE_PAGE, |part| part.least_piece());
        let left = self.plan.start + self.plan.len - at;
        let fair = match self.workers.load(Ordering::Relaxed) {
            0 | 1 => left,
            workers => left / (2 * workers),
        };
        let most = self.plan.part_at(at).map_or(LARGEST_PIECE, |part| part.largest_piece());
        let size = size.min(fair).clamp(least, most.max(least));
        let unit = if size >= HUGE_PAGE { least.max(HUGE_PAGE) } else { least };
        ((at + size) / unit * unit).max((at / unit + 1) * unit).min(self.plan.boundary_after(at))
    }

    fn make_ready(&self, piece: PageRange) -> Result<(), Fault> {
        let used = self.plan.part_at(piece.start).is_some_and(|part| part.does(Step::UseOnce));
        let reads = used.then(disk_reads);
        let result = match self.plan.make_ready(piece) {
            Ok(()) => Ok(()),
            Err(_) => self.plan.locate(piece, |part| self.plan.make_ready(part)),
        };
        // A file that was cold once is taken to be cold from there on. Readahead makes some pieces
        // look warm, although they are still new to this processor.
        if used && reads.is_some_and(|before| disk_reads() > before) {
            self.ring(&self.cold);
        }
        if used && result.is_ok() && self.cold.load(Ordering::Relaxed) {
            touch::use_each_page(piece);
        }
        result
    }

    fn stop_at(&self, fault: Fault) {
        self.limit.fetch_min(fault.page, Ordering::AcqRel);
        self.fault.note(fault);
    }

    fn leave(&self) {
        // The last thread is alone, so its result is final.
        if self.working.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.outcome.set(self.conclude());
            self.changed.ring();
        }
    }

    fn conclude(&self) -> Outcome {
        let fault = self.fault.get();
        let end = self.plan.start + self.plan.len;
        let cursor = self.cursor.load(Ordering::Relaxed);
        let report = Report {
            bytes: self.plan.len as u64,
            populated: self.counter.done(),
            threads: self.workers.load(Ordering::Relaxed),
            elapsed: self.started.elapsed(),
            // Pieces are handed out in ascending order, and the threads that took them finish them.
            first_missing: fault.map(|f| f.page).or((cursor < end).then_some(cursor)),
        };
        add(&COUNTERS.populated_bytes, report.populated);
        let error = match fault {
            Some(fault) => failure::explain(self.call, &self.plan, fault),
            None if cursor >= end => return Ok(report),
            None if self.timed_out.load(Ordering::Relaxed) => {
                failure::timed_out(self.call, &self.plan, &report)
            }
            None => failure::cancelled(self.call, &self.plan, &report),
        };
        add(&COUNTERS.populate_failures, 1);
        Err(Failed { error, report: Box::new(report) })
    }
}

/// Returns the size that would have taken [`PIECE_TIME`], at most twice the last one: one lucky
/// piece (pages that were there) says little about the next.
fn next_size(len: usize, took: Duration) -> usize {
    let fitting = len as u128 * PIECE_TIME.as_nanos() / took.as_nanos().max(1);
    let fitting = usize::try_from(fitting).unwrap_or(LARGEST_OF_FILE).min(len * 2);
    let rounded = if fitting > HUGE_PAGE { fitting / HUGE_PAGE * HUGE_PAGE } else { fitting };
    rounded.clamp(page_size(), LARGEST_OF_FILE)
}

impl Plan {
    /// Does the plan's steps for a piece that lies in one part.
    pub(super) fn make_ready(&self, piece: PageRange) -> Result<(), Fault> {
        let write = self.access == Access::Write;
        let fault = |page, errno, step| Err(Fault { page, errno, step });
        if let Some(part) = self.part_at(piece.start) {
            if part.must_not_be_touched() {
                let (step, _) = part.steps.last().expect("every part is populated");
                return fault(piece.start, Errno::INVAL, *step);
            }
            if let (true, Some((fd, facts))) = (part.does(Step::Allocate), &self.file) {
                let offset = part.offset_of(piece.start);
                let len = facts.size.saturating_sub(offset).min(piece.len() as u64);
                match len {
                    0 => {} // past the end: populating returns the error
                    _ => match files::allocate(fd.as_fd(), offset, len) {
                        Ok(()) | Err(Errno::OPNOTSUPP) => {}
                        Err(Errno::BADF | Errno::PERM) if !self.allocate_asked => {}
                        Err(errno) => return fault(piece.start, errno, Step::Allocate),
                    },
                }
            }
        }
        let populating = self.part_at(piece.start).and_then(|part| part.steps.last());
        let step = populating.map_or(Step::PopulateWrite, |(step, _)| *step);
        os_populate::populate(piece, write)
            .or_else(|stop| fault(stop.page.unwrap_or(piece.start), stop.errno, step))
    }

    /// Finds the lowest page of a piece for which `attempt` fails, by halving: populated pages are
    /// cheap to populate again. Everything before that page is populated afterwards.
    pub(super) fn locate(
        &self,
        piece: PageRange,
        attempt: impl Fn(PageRange) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let unit = page_size();
        let mut from = piece.start;
        while from < piece.end {
            let (mut low, mut high) = (from, piece.end);
            while high - low > unit {
                let middle = low + (high - low) / 2 / unit * unit;
                match attempt(PageRange::new(low, middle)) {
                    Ok(()) => low = middle,
                    // The touch loop names the page, and has populated those before it.
                    Err(fault) if fault.page > low => (low, high) = (fault.page, fault.page + unit),
                    Err(_) => high = middle,
                }
            }
            match attempt(PageRange::new(low, high)) {
                Err(mut fault) => {
                    let size = self.part_at(low).map_or(unit, |part| part.page_size);
                    fault.page = (low / size * size).max(piece.start);
                    return Err(fault);
                }
                // It works by now: memory became free, or the range was repaired.
                Ok(()) => from = high,
            }
        }
        Ok(())
    }
}
