//! One configuration, in this process.

use crate::blocks::Blocks;
use crate::caches::{Caches, Held};
use crate::closures;
use crate::conditions::Condition;
use crate::config::{Config, Weights};
use crate::crowd::Crowd;
use crate::faults;
use crate::first_use;
use crate::foreign::Foreign;
use crate::forks::{self, Kind};
use crate::many::Many;
use crate::objects::Object;
use crate::overlap::Overlap;
use crate::panics::{self, catching};
use crate::ranges::{Closure, Ranges};
use crate::rng::{mix, Rng};
use crate::setting::{self, is};
use crate::shared_objects::SharedObjects;
use crate::sigbus;
use crate::starved;
use crate::sys::{self, exit_now};
use crate::tally::{add, tally};
use crate::{doing, watchdog};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tenure::volatile::{self, Detection, Settings};

/// The exit code of a process whose machine lacks a feature.
pub const EXIT_SKIP: i32 = 79;

struct World {
    config: Config,
    seed: u64,
    overlap: Option<(Overlap, [Crowd; 2])>,
    shared: SharedObjects,
    caches: Option<Caches>,
    many: Option<Many>,
}

struct Worker {
    world: &'static World,
    thread: usize,
    ranges: Vec<Ranges>,
    objects: Vec<Object>,
    held: VecDeque<Held>,
    foreign: Foreign,
    blocks: Blocks,
}

/// How long one operation may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a configuration under a condition for so long, and ends the process.
pub fn run(config: Config, condition: Option<&Condition>, seed: u64, seconds: f64) -> ! {
    if let Some(profile) = condition.and_then(|condition| condition.profile) {
        let profile = tenure_testkit::refused::profile(profile).expect("a profile of this name");
        if let Err(reason) = profile.enter() {
            println!("{reason}");
            exit_now(EXIT_SKIP);
        }
    }
    if let Some(fault) = config.fault {
        if let Err(reason) = faults::start(fault, seed) {
            println!("{reason}");
            exit_now(EXIT_SKIP);
        }
    }
    if config.filter {
        if let Err(reason) = faults::filter() {
            println!("{reason}");
            exit_now(EXIT_SKIP);
        }
    }
    // Before the first use no handler can be installed, so no purged page is touched.
    setting::WORDS.store(config.words || config.first_use, Ordering::Relaxed);
    setting::FORKS.store(config.forks(), Ordering::Relaxed);
    setting::SHORT.store(config.pressure.is_some(), Ordering::Relaxed);
    setting::CLOSES.store(config.weights.closes > 0, Ordering::Relaxed);
    setting::JUMPS.store(condition.is_some_and(|condition| condition.jumps), Ordering::Relaxed);
    closures::ENABLED.store(config.wild, Ordering::Relaxed);
    panics::quiet_panics();
    faults::note_descriptors();
    watchdog::start(PATIENCE);
    forks::start();
    let end = sys::now_ms() + (seconds * 1000.0) as u64;
    setting::END_MS.store(end, Ordering::Relaxed);
    if !config.first_use {
        set_up(&config, seed);
    }
    if condition.is_some_and(|condition| condition.starved) {
        starved::start();
    }
    let world: &'static World = Box::leak(Box::new(World::new(config, seed)));
    let threads: Vec<_> = (0..config.threads)
        .map(|thread| {
            let work = move || Worker::new(world, thread).work(end);
            std::thread::Builder::new()
                .name(format!("driver-{thread}"))
                .spawn(work)
                .expect("a thread")
        })
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
    forks::wait_for_children();
    if let Some(many) = &world.many {
        many.finish();
    }
    if let Some(caches) = &world.caches {
        add(&tally().purged, caches.purged());
    }
    exit_now(if tally().counts().wrong > 0 { sys::EXIT_WRONG } else { 0 });
}

/// The first use of tenure, and its settings.
fn set_up(config: &Config, seed: u64) {
    let mut rng = Rng::of_operation(seed, 1 << 21, 0);
    let waits = [0, 300, 1000, 10_000, 500_000];
    let wait = config.offer_after_us.unwrap_or(waits[rng.below(waits.len())]);
    let mut settings = Settings::default().with_offer_after(Duration::from_micros(wait));
    if rng.once_in(4) {
        settings = settings.with_unoffered_max(0);
    }
    if config.no_descriptors {
        faults::first_use_without_descriptors();
    }
    volatile::configure(settings);
    sigbus::install();
    let words = volatile::detection() == Detection::Words;
    if words && !config.words {
        if config.fault.is_none()
            && !config.no_descriptors
            && !tenure::capabilities().works("userfaultfd")
        {
            println!("userfaultfd does not work here");
            exit_now(EXIT_SKIP);
        }
        // A call that failed chose words, or may choose them.
        setting::WORDS.store(true, Ordering::Relaxed);
    }
}

impl World {
    fn new(config: Config, seed: u64) -> World {
        let w = config.weights;
        let crowds = || [false, true].map(|forgets| Crowd::new(mix(seed, 73), 256, forgets));
        let overlap = (w.overlap > 0).then(|| (Overlap::new(mix(seed, 71), 160), crowds()));
        let shared = SharedObjects::new(4, config.huge, config.refill);
        let caches = (w.caches > 0).then(|| Caches::new(seed, config.threads, config.plan));
        let many = (w.many + w.pins > 0).then(|| Many::new(mix(seed, 79), config.objects));
        World { config, seed, overlap, shared, caches, many }
    }
}

impl Worker {
    fn new(world: &'static World, thread: usize) -> Worker {
        let salt = |n: u64| mix(mix(world.seed, thread as u64), 500 + n);
        let huge = world.config.huge;
        let pages = if huge { 3 * sys::HUGE / sys::page_bytes() } else { 96 };
        let count = if world.config.weights.ranges > 0 { 2 } else { 0 };
        let ranges = (0..count).map(|n| Ranges::new(salt(n), pages, huge)).collect();
        Worker {
            world,
            thread,
            ranges,
            objects: Vec::new(),
            held: VecDeque::new(),
            foreign: Foreign::default(),
            blocks: Blocks::default(),
        }
    }

    fn work(&mut self, end: u64) {
        doing::enlist(self.thread);
        if is(&setting::JUMPS) {
            forks::in_another_time(self.thread);
        }
        let mut spare = Ranges::new(mix(self.world.seed, 333 + self.thread as u64), 16, false);
        forks::set_spare(Some(&mut spare));
        for operation in 0.. {
            if sys::now_ms() >= end {
                break;
            }
            let mut rng = Rng::of_operation(self.world.seed, self.thread as u64, operation);
            static NEXT: &str = "an operation";
            self.operation(&mut rng, &mut || doing::enter(Some(&NEXT), Some(operation)));
            doing::enter(None, None);
            add(&tally().operations, 1);
        }
        let _passing = watchdog::pass();
        doing!("the last check");
        let mut rng = Rng::of_operation(self.world.seed, self.thread as u64, u64::MAX);
        catching(|| self.finish(&mut rng));
        forks::set_spare(None);
        doing::enter(None, None);
    }

    fn operation(&mut self, rng: &mut Rng, begin: &mut dyn FnMut()) {
        if self.world.config.first_use {
            begin();
            return first_use::step(rng);
        }
        let weights = self.world.config.weights;
        let Weights { ranges, overlap, objects, shared, caches, foreign, forks, closes, .. } =
            weights;
        let Weights { pool, many, pins, .. } = weights;
        let known = ranges + overlap + objects + shared + caches + foreign + forks + closes;
        let mut pick = rng.below(known + pool + many + pins);
        let mut is = |weight: usize| {
            let hit = pick < weight;
            pick = pick.wrapping_sub(weight);
            hit
        };
        if is(closes) {
            // Rarely: each time may cost tenure a new start.
            if rng.once_in(20) {
                let _alone = watchdog::alone();
                begin();
                faults::close_descriptors();
            }
            return;
        }
        if is(forks) {
            return self.fork(rng, begin);
        }
        let _passing = watchdog::pass();
        begin();
        let done = catching(|| {
            if is(ranges) {
                let which = rng.below(self.ranges.len());
                self.ranges[which].step(rng, Closure::Wild);
            } else if is(overlap) {
                match &self.world.overlap {
                    Some((overlap, _)) if rng.once_in(2) => overlap.step(rng, self.thread),
                    Some((_, crowds)) => {
                        let forks = self.world.config.crowd_forks;
                        crowds[rng.below(2)].step(rng, forks)
                    }
                    None => {}
                }
            } else if is(objects) {
                self.object(rng);
            } else if is(shared) {
                self.world.shared.step(rng);
            } else if is(caches) {
                if let Some(caches) = &self.world.caches {
                    caches.step(rng, self.thread, &mut self.held);
                }
            } else if is(pool) {
                self.blocks.step(rng);
            } else if is(many) {
                self.world.many.iter().for_each(|many| many.step(rng));
            } else if is(pins) {
                // Making threads takes a while.
                if rng.once_in(8) {
                    self.world.many.iter().for_each(|many| many.crowd(rng));
                }
            } else {
                self.foreign.step(rng);
            }
        });
        let _ = done;
    }

    fn object(&mut self, rng: &mut Rng) {
        let config = &self.world.config;
        if self.objects.len() < 5 && rng.once_in(4) {
            self.objects.extend(Object::new(rng, config.huge, config.refill));
        } else if !self.objects.is_empty() {
            let which = rng.below(self.objects.len());
            if !self.objects[which].step(rng) {
                doing!("drop of an object");
                self.objects.swap_remove(which);
            }
        }
    }

    fn fork(&mut self, rng: &mut Rng, begin: &mut dyn FnMut()) {
        let mut inner = *rng;
        let kind = match rng.below(12) {
            0..=4 => Kind::Fork,
            5..=6 => Kind::Handler,
            7 => Kind::Vfork,
            8..=9 => {
                // No thread of the driver may hold a lock of the C library's.
                let _alone = watchdog::alone();
                begin();
                doing!("raw clone");
                return forks::make(Kind::Clone, || self.child(&mut inner));
            }
            n => {
                let _passing = watchdog::pass();
                begin();
                return match n {
                    10 => forks::not_inherited(rng),
                    _ => forks::shared_pages(rng),
                };
            }
        };
        let _passing = watchdog::pass();
        begin();
        doing!("fork");
        forks::make(kind, || self.child(&mut inner));
    }

    /// A child's life: it continues with its thread's objects, and checks all of them.
    fn child(&mut self, rng: &mut Rng) {
        let closes = self.world.config.weights.closes > 0;
        for n in 0..24 {
            // Like a process that becomes a daemon: before its first use of tenure, or later.
            if closes && rng.once_in(24) {
                setting::UNWATCHED.store(true, Ordering::Relaxed);
                faults::close_descriptors();
            }
            let what = rng.below(4);
            if what < 2 && !self.ranges.is_empty() {
                let which = rng.below(self.ranges.len());
                self.ranges[which].step(rng, Closure::Quiet);
            } else if what == 2 && !self.objects.is_empty() {
                self.object(rng);
            }
            if let (Some(caches), 5 | 15) = (&self.world.caches, n) {
                caches.verify(rng, self.thread, &self.held);
            }
        }
        self.blocks.verify();
        self.finish(rng);
    }

    fn finish(&mut self, rng: &mut Rng) {
        self.ranges.iter_mut().for_each(|range| range.finish(rng));
        self.objects.iter_mut().for_each(|object| object.finish(rng));
        if let Some(caches) = &self.world.caches {
            caches.verify(rng, self.thread, &self.held);
        }
        self.blocks.finish();
        doing!("the last check of foreign memory");
        self.foreign.check();
    }
}
