//! How fast a neighbour may take memory before the kernel kills a process, beside shared and beside
//! private volatile memory.
//!
//! The kernel takes private volatile memory itself, when it needs it. A process must give shared
//! memory back beforehand: so it keeps some memory free, and a neighbour that takes all of that
//! between two looks is too fast.

use super::team::wait_for;
use crate::harness::{Child, Comparison, Contestant, Report, Role, Sample, Unit};
use crate::Options;
use rustix::io::write;
use rustix::pipe::pipe;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tenure::shared::SharedVolatile;
use tenure::Volatile;
use tenure_measure::MemoryCgroup;

const SHARED: &str = "tenure, shared";
const PRIVATE: &str = "tenure, private Volatile";
const PIECE: usize = 1 << 20;

/// Sizes in bytes.
#[derive(Clone, Copy)]
struct Sizes {
    limit: u64,
    held: usize,
    taken: usize,
}

/// The speeds at which the neighbour takes memory, in MiB a second; `None`: as fast as it can.
const SPEEDS: [Option<usize>; 6] = [Some(250), Some(500), Some(1000), Some(2000), Some(4000), None];

pub(super) fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let sizes = match options.quick {
        false => Sizes { limit: 512 << 20, held: 384 << 20, taken: 320 << 20 },
        true => Sizes { limit: 128 << 20, held: 80 << 20, taken: 72 << 20 },
    };
    let title = format!(
        "killed beside a neighbour that takes {} MiB, {} MiB volatile in {} MiB",
        sizes.taken >> 20,
        sizes.held >> 20,
        sizes.limit >> 20
    );
    let columns = ["killed", "MiB/s", "MiB free"];
    let mut heading = vec!["neighbour".to_owned()];
    heading
        .extend(["shared", "private"].iter().flat_map(|of| columns.map(|c| format!("{of}: {c}"))));
    heading.push(String::new());
    let mut rows = vec![heading];
    let speeds = if options.quick { &SPEEDS[4..] } else { &SPEEDS[..] };
    for threads in options.threads(&[1, 2]) {
        for &speed in speeds {
            let plural = if threads == 1 { "" } else { "s" };
            let neighbour = match speed {
                Some(speed) => format!("{threads} thread{plural}, {speed} MiB/s"),
                None => format!("{threads} thread{plural}, as fast as it can"),
            };
            let one = |name: &'static str, hold: Hold| {
                let measure = move || sample(sizes, hold, threads, speed);
                Contestant::new(name, Role::Ours, measure)
            };
            let comparison = Comparison::new(format!("{title}: {neighbour}"), Unit::Percent)
                .baseline(PRIVATE)
                .with(one(SHARED, hold_shared))
                .with(one(PRIVATE, hold_private));
            let Some(outcome) = report.measure(comparison, 5)? else { continue };
            let mut cells = vec![neighbour];
            let mut why = String::new();
            for row in &outcome.rows {
                let killed = row.samples.iter().filter(|killed| **killed > 0.0).count();
                let median = |name: &str| {
                    let column = row.extras.iter().find(|(known, _)| *known == name);
                    let stats = column.and_then(|(_, all)| crate::harness::Stats::of(all));
                    stats.map_or("-".into(), |stats| format!("{:.0}", stats.median))
                };
                cells.push(format!("{killed} of {}", row.samples.len()));
                cells.extend([median("MiB/s"), median("MiB free")]);
                why = row.unavailable.clone().unwrap_or(why);
            }
            cells.push(why);
            rows.push(cells);
        }
    }
    if rows.len() > 1 {
        report.print_rows(&title, &rows)?;
        report.print(
            "  MiB/s: the neighbour's speed; MiB free: the least free memory under the limit\n",
        )?;
    }
    Ok(())
}

/// Fills memory that it then does not use, and holds it while it lives.
type Hold = fn(usize) -> io::Result<Box<dyn std::any::Any>>;

fn hold_shared(bytes: usize) -> io::Result<Box<dyn std::any::Any>> {
    let shared = SharedVolatile::builder(bytes).chunk_size(PIECE).build()?;
    for chunk in 0..shared.chunks() {
        shared.get_or_make(chunk, |bytes| bytes.fill(1))?;
    }
    Ok(Box::new(shared))
}

fn hold_private(bytes: usize) -> io::Result<Box<dyn std::any::Any>> {
    let mut all = Vec::new();
    for _ in 0..bytes / PIECE {
        let mut one = Volatile::new(PIECE)?;
        one.pin_mut()?.fill(1);
        all.push(one);
    }
    Ok(Box::new(all))
}

/// One try: 100 if the kernel killed a process.
fn sample(sizes: Sizes, hold: Hold, threads: usize, speed: Option<usize>) -> io::Result<Sample> {
    let unsupported = |why: String| io::Error::new(io::ErrorKind::Unsupported, why);
    let group =
        MemoryCgroup::create("margin", sizes.limit).map_err(|why| unsupported(why.to_string()))?;
    let (is_full, full) = pipe()?;
    let holder = Child::<()>::start(|| {
        group.enter_self()?;
        let held = hold(sizes.held);
        write(&full, &[1])?;
        let _held = held?;
        loop {
            thread::park();
        }
    })?;
    wait_for(&is_full)?;
    // For the background work after the last value.
    thread::sleep(Duration::from_millis(300));
    let (may_start, start) = pipe()?;
    let neighbour = Child::<f64>::start(|| {
        group.enter_self()?;
        wait_for(&may_start)?;
        take(sizes.taken, threads, speed)
    })?;
    let is_over = AtomicBool::new(false);
    let (taken, least) = thread::scope(|scope| {
        let watch = scope.spawn(|| watch(sizes.limit, &group, &is_over));
        let taken = write(&start, &[1]).map_err(io::Error::from).and_then(|_| neighbour.join());
        is_over.store(true, Ordering::Relaxed);
        (taken, watch.join().unwrap_or(0))
    });
    let killed = group.oom_kills();
    drop(holder);
    let reached = match taken {
        Ok(seconds) => Some((sizes.taken >> 20) as f64 / seconds),
        Err(_) if killed > 0 => None,
        Err(error) => return Err(error),
    };
    let mut sample = Sample::from(if killed > 0 { 100.0 } else { 0.0 });
    if let Some(reached) = reached {
        sample = sample.with("MiB/s", reached.round());
    }
    sample = sample.with("MiB free", (least >> 20) as f64);
    Ok(if killed > 0 { sample.failed("a process was killed for lack of memory") } else { sample })
}

/// Returns the smallest room until the end.
fn watch(limit: u64, group: &MemoryCgroup, is_over: &AtomicBool) -> u64 {
    let mut least = u64::MAX;
    while !is_over.load(Ordering::Relaxed) {
        least = least.min(limit.saturating_sub(group.usage()));
        thread::sleep(Duration::from_micros(500));
    }
    least
}

/// Takes memory and writes to each page of it. Returns the seconds that this took.
fn take(bytes: usize, threads: usize, speed: Option<usize>) -> io::Result<f64> {
    // All zeros: the kernel makes the pages at the first touch.
    let mut memory = vec![0u8; bytes];
    let begun = Instant::now();
    thread::scope(|scope| {
        for part in memory.chunks_mut(bytes.div_ceil(threads)) {
            scope.spawn(move || {
                for (number, piece) in part.chunks_mut(PIECE).enumerate() {
                    if let Some(speed) = speed {
                        let share = number as f64 * threads as f64 / speed as f64;
                        let due = begun + Duration::from_secs_f64(share);
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                    }
                    piece.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
                }
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    std::hint::black_box(&memory);
    Ok(seconds)
}
