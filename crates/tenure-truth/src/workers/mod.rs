//! Shared volatile memory, used by workers of which one is killed every tenth of a second, beside a
//! neighbour in their memory cgroup. Every chunk that a worker has pinned is compared with the
//! bytes of its maker.

#![allow(unsafe_code, reason = "stops and ends processes of its own")]

mod board;
mod bytes;
mod cache;
mod worker;

use crate::pressure::{Pressure, Went};
use crate::rng::Rng;
use crate::sys;
use board::{Board, MOST_WORKERS};
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tenure::shared::{SharedCache, SharedPin, SharedVolatile};
use worker::{Memory, Worker};

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Processes.
    pub workers: usize,
    /// Checked reads.
    pub reads: u64,
    /// The first number.
    pub seed: u64,
    /// Milliseconds between two kills.
    pub kill_every: u64,
}

/// The most that the neighbour needs. It takes that as fast as it can.
const NEED: u64 = 48 << 20;
const DOOR: &str = "TENURE_TRUTH_DOOR";
/// A worker without a step for so long counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(20);
/// After this time pins of dead processes must be gone.
const RELEASED_AFTER: Duration = Duration::from_secs(1);

/// Runs it in a memory cgroup, if one can be made. Returns whether nothing was wrong.
pub fn run(plan: &Plan, arguments: &[String]) -> Result<bool, String> {
    if let Ok(door) = std::env::var(DOOR) {
        std::fs::write(&door, "0").map_err(|error| format!("{door}: {error}"))?;
        return Master::run(plan);
    }
    let pressure = match Pressure::start("workers", NEED) {
        Ok(pressure) => pressure,
        Err(reason) => {
            println!("no memory cgroup, so there is no neighbour: {reason}");
            return Master::run(plan);
        }
    };
    let status = Command::new("/proc/self/exe")
        .args(arguments)
        .env(DOOR, pressure.door())
        .status()
        .map_err(|error| error.to_string())?;
    let Went { killed, left, .. } = pressure.end();
    println!(
        "killed for want of memory: {killed}; the group's memory afterwards: {} KiB",
        left >> 10
    );
    if let Some(signal) = status.signal() {
        println!("ended by signal {signal}");
    }
    Ok(status.success() && killed == 0 && left < 8 << 20)
}

struct Slot {
    pid: i32,
    life: u32,
    /// It is stopped until then.
    stopped: Option<Instant>,
    steps: u64,
    moved: Instant,
}

/// A child of a worker that was killed. This process is its parent now, and so sees its end.
struct Orphan {
    pid: i32,
    life: u32,
}

/// A worker that was killed, and whose pin must go.
struct Dead {
    life: u32,
    stake: usize,
    at: Instant,
}

struct Master<'a> {
    plan: Plan,
    board: &'static Board,
    memories: &'a [Memory],
    cache: &'a SharedCache,
    slots: Vec<Slot>,
    dead: Vec<Dead>,
    orphans: Vec<Orphan>,
    lives: u32,
    rng: Rng,
    kills: u64,
    stops: u64,
    stuck: u64,
    slowest: Duration,
    died: u64,
}

impl Master<'_> {
    fn run(plan: &Plan) -> Result<bool, String> {
        let text = |error: Error| error.to_string();
        let board = Board::map().map_err(text)?;
        std::panic::set_hook(Box::new(|_| {}));
        let memory = |chunks: usize, chunk: usize, first: usize| -> tenure::Result<Memory> {
            let stakes = MOST_WORKERS * 8;
            let shared = SharedVolatile::builder((chunks + stakes) * chunk)
                .chunk_size(chunk)
                .processes(200)
                .build()?;
            Ok(Memory { shared, first, used: chunks })
        };
        let all = || -> tenure::Result<Vec<Memory>> {
            Ok(vec![memory(3072, 64 << 10, 0)?, memory(4096, 4 << 10, 3072)?])
        };
        let memories = all().map_err(|error| error.to_string())?;
        // Small, so that chunks are emptied all the time.
        let cache = SharedCache::builder().most(8 << 20).chunk_size(64 << 10).processes(200);
        let cache = cache.build().map_err(|error| error.to_string())?;
        let mut master = Master {
            plan: *plan,
            board,
            memories: &memories,
            cache: &cache,
            slots: Vec::new(),
            dead: Vec::new(),
            orphans: Vec::new(),
            lives: 0,
            rng: Rng::new(plan.seed),
            kills: 0,
            stops: 0,
            stuck: 0,
            slowest: Duration::ZERO,
            died: 0,
        };
        // SAFETY: from now on the orphans of this process's children are its own children.
        if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } != 0 {
            return Err(Error::last_os_error().to_string());
        }
        let good = master.drive();
        let back = master.check_the_end();
        Ok(good && back)
    }

    /// The chunk that a worker has pinned for its life.
    fn stake(&self, life: u32) -> usize {
        self.memories[1].used + life as usize % (MOST_WORKERS * 8)
    }

    fn spawn(&mut self, place: usize) -> Slot {
        self.lives += 1;
        let life = self.lives;
        self.board.staked[place].store(0, Ordering::SeqCst);
        let (stake, seed) = (self.stake(life), self.rng.draw());
        let pid = sys::fork();
        if pid == 0 {
            // SAFETY: asks the kernel to end this process with its parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let rng = Rng::new(seed);
            let (board, memories, cache) = (self.board, self.memories, self.cache);
            let staked = memories[1].shared.get_or_make(stake, |bytes| bytes.fill(1));
            board.staked[place].store(u32::from(staked.is_ok()), Ordering::SeqCst);
            let grandchild = false;
            let mut worker = Worker { board, memories, cache, place, life, rng, grandchild };
            worker.run(None);
            drop(staked);
            sys::exit_now(0);
        }
        assert!(pid > 0, "fork: {}", Error::last_os_error());
        Slot { pid, life, stopped: None, steps: 0, moved: Instant::now() }
    }

    fn drive(&mut self) -> bool {
        for place in 0..self.plan.workers {
            let slot = self.spawn(place);
            self.slots.push(slot);
        }
        let begun = Instant::now();
        let (mut next_kill, mut next_line) = (Instant::now(), Instant::now());
        while self.board.reads.load(Ordering::Relaxed) < self.plan.reads
            && (self.good_so_far() || self.stuck > 0 && self.slots.iter().all(|slot| slot.pid > 0))
        {
            std::thread::sleep(Duration::from_millis(5));
            let now = Instant::now();
            if now >= next_kill {
                next_kill = now + Duration::from_millis(self.plan.kill_every);
                self.kill_or_stop(now);
            }
            if self.rng.once_in(20) {
                let memory = &self.memories[self.rng.below(2)];
                let (start, count) = self.rng.part(memory.used, 256);
                let _ = memory.shared.purge_now(start..start + count);
            }
            self.look_after(now);
            self.look_at_the_dead(now);
            if now >= next_line {
                next_line = now + Duration::from_secs(10);
                self.line(begun.elapsed());
            }
        }
        self.board.over.store(1, Ordering::SeqCst);
        let end = Instant::now() + HANGS_AFTER;
        for slot in self.slots.iter_mut().filter(|slot| slot.pid > 0) {
            send(slot.pid, libc::SIGCONT);
            let mut counted = false;
            while sys::reap(slot.pid).is_none() {
                if Instant::now() > end && !std::mem::replace(&mut counted, true) {
                    self.board.hangs.fetch_add(1, Ordering::Relaxed);
                    eprintln!("HANG: process {} does not end", slot.pid);
                    eprintln!("{}", crate::doing::kernel_view(slot.pid as u32));
                    send(slot.pid, libc::SIGKILL);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (end, mut ends) = (Instant::now() + HANGS_AFTER, true);
        while !self.dead.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
            self.look_at_the_dead(Instant::now());
            if ends && Instant::now() > end {
                ends = false;
                for orphan in &self.orphans {
                    self.board.hangs.fetch_add(1, Ordering::Relaxed);
                    eprintln!("HANG: process {} does not end", orphan.pid);
                    send(orphan.pid, libc::SIGKILL);
                }
            }
        }
        self.line(begun.elapsed());
        self.good_so_far()
    }

    fn good_so_far(&self) -> bool {
        let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let board = self.board;
        count(&board.wrong)
            + count(&board.told_twice)
            + count(&board.hangs)
            + self.stuck
            + self.died
            == 0
    }

    fn kill_or_stop(&mut self, now: Instant) {
        let place = self.rng.below(self.slots.len());
        let slot = &mut self.slots[place];
        if slot.stopped.is_some() || slot.pid == 0 {
            return;
        }
        if self.rng.once_in(8) {
            slot.stopped = Some(now + Duration::from_millis(self.rng.below(400) as u64));
            send(slot.pid, libc::SIGSTOP);
            self.stops += 1;
            return;
        }
        let (pid, life) = (slot.pid, slot.life);
        self.board.end(life);
        send(pid, libc::SIGKILL);
        while sys::reap(pid).is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        // It has ended now, and not before: without a processor it takes seconds to.
        let at = Instant::now();
        self.adopt(life);
        self.board.went(life);
        self.kills += 1;
        if self.board.staked[place].load(Ordering::SeqCst) == 1 {
            self.dead.push(Dead { life, stake: self.stake(life), at });
        }
        self.slots[place] = self.spawn(place);
    }

    /// Lets stopped workers continue, and finds those that end or hang.
    fn look_after(&mut self, now: Instant) {
        for (place, slot) in self.slots.iter_mut().enumerate() {
            if slot.stopped.is_some_and(|until| now >= until) {
                send(slot.pid, libc::SIGCONT);
                slot.stopped = None;
                slot.moved = now;
            }
            let steps = self.board.steps[place].load(Ordering::Relaxed);
            if steps != slot.steps || slot.stopped.is_some() {
                (slot.steps, slot.moved) = (steps, now);
            } else if now - slot.moved > HANGS_AFTER {
                self.board.hangs.fetch_add(1, Ordering::Relaxed);
                let doing = self.board.doing[place].load(Ordering::Relaxed);
                eprintln!("HANG: process {}, at {doing}", slot.pid);
                eprintln!("{}", crate::doing::kernel_view(slot.pid as u32));
            }
            if let Some(status) = Some(slot.pid).filter(|pid| *pid > 0).and_then(sys::reap) {
                self.died += 1;
                eprintln!("DIED: process {} ended with status {status:#x}", slot.pid);
                slot.pid = 0;
            }
        }
    }

    /// Takes over the children that a killed worker has left.
    fn adopt(&mut self, life: u32) {
        for pid in sys::children() {
            let is_worker = self.slots.iter().any(|slot| slot.pid == pid);
            if !is_worker && self.orphans.iter().all(|orphan| orphan.pid != pid) {
                self.orphans.push(Orphan { pid, life });
            }
        }
    }

    /// Finds orphans that have ended.
    fn look_after_orphans(&mut self) {
        let died = &mut self.died;
        self.orphans.retain(|orphan| match sys::reap(orphan.pid) {
            None => true,
            Some(0) => false,
            Some(status) => {
                *died += 1;
                eprintln!("DIED: process {} ended with status {status:#x}", orphan.pid);
                false
            }
        });
    }

    /// Checks that the pins of dead processes go, by the other processes' normal work.
    fn look_at_the_dead(&mut self, now: Instant) {
        self.look_after_orphans();
        let (orphans, memory) = (&self.orphans, &self.memories[1].shared);
        let (stuck, slowest) = (&mut self.stuck, &mut self.slowest);
        self.dead.retain_mut(|dead| {
            // A grandchild has the pin, too, while it lives.
            if orphans.iter().any(|orphan| orphan.life == dead.life) {
                dead.at = now;
                return true;
            }
            // Other processes may have purged it, once it was not pinned any more.
            let gone = memory.purge_now(dead.stake..dead.stake + 1).is_ok_and(|count| count == 1)
                || memory.read(dead.stake).is_ok_and(|pin| pin.is_none());
            let time = now - dead.at;
            if gone {
                *slowest = (*slowest).max(time);
            } else if time > 3 * RELEASED_AFTER {
                eprintln!("STUCK: a pin of life {} is there after {time:?}", dead.life);
            } else {
                return true;
            }
            *stuck += u64::from(time > RELEASED_AFTER);
            false
        });
    }

    fn line(&self, time: Duration) {
        let (board, load) =
            (self.board, |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed));
        let purges: u64 = self.memories.iter().map(|memory| memory.shared.stats().purges).sum();
        println!(
            "{:>5.0} s: {} checked reads, {} found in the cache, {} made, {} remade, {} given up, {purges} purged, {} told; {} kills, \
             {} stops, {} grandchildren, {} handles; wrong {}, told twice {}, stuck pins {} (slowest {:.0} ms), \
             hangs {}, died {}",
            time.as_secs_f64(), load(&board.reads), load(&board.found), load(&board.made), load(&board.remade),
            load(&board.given_up), load(&board.told), self.kills, self.stops, load(&board.grandchildren),
            load(&board.handles), load(&board.wrong), load(&board.told_twice), self.stuck,
            self.slowest.as_secs_f64() * 1e3, load(&board.hangs), self.died,
        );
    }

    /// At the end all processes are gone: checks that every purge was reported, and that the memory
    /// comes back.
    fn check_the_end(&mut self) -> bool {
        let mut good = true;
        let (mut told, mut purges) = (self.board.told.load(Ordering::SeqCst), 0);
        for memory in self.memories {
            let shared = &memory.shared;
            purges += shared.stats().purges;
            for chunk in 0..shared.chunks() {
                match shared.pin(chunk) {
                    Ok(SharedPin::ToMake(maker)) => {
                        told += u64::from(maker.before() == tenure::shared::Before::Purged);
                    }
                    Ok(SharedPin::Intact(_)) => {}
                    other => {
                        println!("chunk {chunk} at the end: {other:?}");
                        good = false;
                    }
                }
            }
            let _ = shared.purge_now(0..shared.chunks());
            let stats = shared.stats();
            let left = allocated(shared);
            // The records and the facts.
            let records =
                4096 + (shared.chunks() as u64 * (16 + 2 * 200)).next_multiple_of(4096) * 2;
            println!(
                "at the end {} KiB in the file, {} pinned, {} processes",
                left >> 10,
                stats.pinned,
                stats.processes
            );
            good &= left <= records && stats.pinned == 0 && stats.processes == 1;
        }
        // A killed process may have purged a chunk, or got a report, that it had not counted yet,
        // and stakes are not counted.
        println!("{purges} purges, of which {told} were told; {} workers were killed", self.kills);
        good
    }
}

fn send(pid: i32, signal: i32) {
    // SAFETY: a child of this process's own that it has not reaped.
    unsafe { libc::kill(pid, signal) };
}

fn allocated(shared: &SharedVolatile) -> u64 {
    // SAFETY: writes to a local structure.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        match libc::fstat(shared.as_fd().as_raw_fd(), &mut stat) {
            0 => stat.st_blocks as u64 * 512,
            _ => u64::MAX,
        }
    }
}
