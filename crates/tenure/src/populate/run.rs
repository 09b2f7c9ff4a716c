//! The ways to run a populate: in the caller, watched, and in the background.

use super::background::Background;
use super::failure::{self, Failed};
use super::job::{Job, Outcome};
use super::plan::{self, Plan, Step};
use super::progress::{Progress, Report};
use super::{huge_advice, room, Access, HugePages, Populate};
use crate::error::{Error, ErrorKind, Result};
use crate::os::populate as os_populate;
use crate::os::thp::{self, Setting};
use crate::os::thread::spawn_quiet;
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Up to this size one call does all: it takes less than the time in which a deadline could be
/// noticed.
const AT_ONCE: usize = 4 << 20;

pub(super) fn run(asked: &Populate) -> Outcome {
    let started = Instant::now();
    let call = "populate";
    let range = asked.range(call).map_err(nothing)?;
    if is_plain(asked, range) {
        let outcome = at_once(call, asked, range, started);
        // madvise never returns these two for a reason of its own, so the code below tries the call
        // anew.
        let refused = [libc::EPERM, libc::ENOSYS];
        if !outcome.as_ref().is_err_and(|failed| refused.contains(&failed.error.errno())) {
            return outcome;
        }
    }
    let (job, workers) = prepare(call, asked, range, started).map_err(nothing)?;
    help(&job, workers - 1, |_| Helpers::Urgent);
    job.work(|| {});
    job.result()
}

/// Returns whether one call is enough for the range, because it needs no plan.
fn is_plain(asked: &Populate, range: PageRange) -> bool {
    // A file is passed for its holes, and for better errors, which can be made after the failure.
    let allocates = match asked.access {
        Access::Read => asked.allocate == Some(true),
        Access::Write => asked.file.is_some() && asked.allocate != Some(false),
    };
    range.len() <= AT_ONCE
        && !allocates
        && asked.deadline.is_none()
        && asked.threads <= 1
        && !asked.within_room
        && os_populate::by_madvise(asked.access == Access::Write)
}

/// Gives the plan's advice without a look at the range's mappings, which would take a fifth of the
/// time that a huge page does. On memory that gains nothing from it, the advice changes nothing.
fn advise_unseen(asked: &Populate, range: PageRange) {
    let asks = asked.access == Access::Write
        && asked.huge_pages == HugePages::Advise
        && range.huge_part().is_some();
    let takes =
        || thp::anonymous(false) == Setting::Advised || thp::shared(false) == Setting::Advised;
    if asks && takes() {
        huge_advice::give(range);
    }
}

fn at_once(call: &'static str, asked: &Populate, range: PageRange, started: Instant) -> Outcome {
    let mut report = Report {
        bytes: range.len() as u64,
        populated: range.len() as u64,
        threads: 1,
        elapsed: Duration::ZERO,
        first_missing: None,
    };
    advise_unseen(asked, range);
    let result = os_populate::populate(range, asked.access == Access::Write);
    if result.is_err() {
        // After a failure the look is worth its time.
        let plan = plan::make(asked, range).map_err(nothing)?;
        if let Err(fault) = plan.locate(range, |part| plan.make_ready(part)) {
            report.populated = (fault.page - range.start) as u64;
            report.first_missing = Some(fault.page);
            report.elapsed = started.elapsed();
            add(&COUNTERS.populated_bytes, report.populated);
            add(&COUNTERS.populate_failures, 1);
            let error = failure::explain(call, &plan, fault);
            return Err(Failed { error, report: Box::new(report) });
        }
    }
    add(&COUNTERS.populated_bytes, report.populated);
    report.elapsed = started.elapsed();
    Ok(report)
}

/// Does everything that comes before the first piece.
fn prepare(
    call: &'static str,
    asked: &Populate,
    range: PageRange,
    started: Instant,
) -> Result<(Arc<Job>, usize)> {
    if asked.within_room {
        room::insist(call, asked, range)?;
    }
    os_populate::still_by_madvise(asked.access == Access::Write);
    let plan = plan::make(asked, range)?;
    advise_huge(&plan);
    let workers = plan.threads;
    Ok((Arc::new(Job::new(call, plan, started, asked.deadline, workers)), workers))
}

fn advise_huge(plan: &Plan) {
    for part in plan.parts.iter().filter(|part| part.does(Step::AdviseHugePages)) {
        huge_advice::give(part.range());
    }
}

/// The caller's behaviour while the helpers work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Helpers {
    /// It waits for them.
    Urgent,
    /// It continues with other work.
    Behind,
    /// As `Behind`, and only if the kernel has to wait for a disk.
    OnceCold,
}

/// Starts helpers, and does not wait for those that cannot be started. Returns how many there are.
///
/// None works before all are there; see [`Job::open`].
fn help(job: &Arc<Job>, count: usize, helpers: impl Fn(usize) -> Helpers) -> usize {
    let mut started = 0;
    for i in 0..count {
        // The first helper must not be one that waits for another.
        match spawn(job, if started == 0 { helpers(0) } else { helpers(i) }) {
            Ok(_) => started += 1,
            Err(_) => job.without_one(),
        }
    }
    // A caller that continues with other work does not wait for them.
    job.open(if helpers(0) == Helpers::Urgent { started } else { 0 });
    started
}

fn spawn(job: &Arc<Job>, helpers: Helpers) -> std::io::Result<()> {
    let job = job.clone();
    spawn_quiet("tenure-populate", move || {
        // A signal handler may make a child while the helpers are started. For its caller the
        // populate is over, so nothing may go on behind it.
        if job.in_child() {
            return;
        }
        job.wait_for_opening();
        if helpers == Helpers::OnceCold {
            job.wait_for_cold();
        }
        job.work(|| {});
    })
    .map(drop)
}

pub(super) fn run_with(
    asked: &Populate,
    every: Duration,
    mut each: impl FnMut(&Progress),
) -> Outcome {
    let call = "populate";
    let started = Instant::now();
    let range = asked.range(call).map_err(nothing)?;
    let (job, workers) = prepare(call, asked, range, started).map_err(nothing)?;
    // If the first helper cannot be started, this thread works in its place and calls `each`
    // between pieces.
    if spawn(&job, Helpers::Urgent).is_ok() {
        help(&job, workers - 1, |_| Helpers::Urgent);
    } else {
        (1..workers).for_each(|_| job.without_one());
        let mut last = started;
        job.work(|| {
            if last.elapsed() >= every {
                last = Instant::now();
                each(&job.progress());
            }
        });
    }
    // If `each` panics, this is dropped: the code that catches the panic may unmap the range.
    let watched = Background::new(job);
    while !watched.wait_timeout(every.max(Duration::from_millis(1))) {
        each(&watched.progress());
    }
    each(&watched.progress());
    watched.wait()
}

pub(super) fn start(asked: &Populate) -> Result<Background> {
    let call = "populate";
    let started = Instant::now();
    let range = asked.range(call)?;
    let (job, workers) = prepare(call, asked, range, started)?;
    let helpers = |i| match asked.others_once_cold && i > 0 {
        true => Helpers::OnceCold,
        false => Helpers::Behind,
    };
    if help(&job, workers, helpers) == 0 {
        let why = "no thread could be started to do it in the background";
        let remedy = "raise RLIMIT_NPROC or the cgroup's pids.max, or populate at once";
        return Err(Error::new(ErrorKind::System, call, why, remedy)
            .with_errno(libc::EAGAIN)
            .on(range.start, range.len()));
    }
    Ok(Background::new(job))
}

/// A failure before anything was done.
fn nothing(error: Error) -> Failed {
    add(&COUNTERS.populate_failures, 1);
    error.into()
}
