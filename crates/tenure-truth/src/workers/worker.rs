//! The work of a worker: it pins, checks, makes, remakes, abandons, panics and purges, as its
//! random numbers choose, until it is killed.

#![allow(unsafe_code, reason = "opens the memory anew")]

use super::board::Board;
use super::bytes;
use super::cache::Calls;
use crate::rng::Rng;
use crate::sys;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tenure::shared::{Before, Maker, SharedCache, SharedChunk, SharedPin, SharedVolatile};

/// Memory, and the place of its chunks on the board.
pub struct Memory {
    pub shared: SharedVolatile,
    pub first: usize,
    /// Chunks that all workers use. The chunks behind them are stakes.
    pub used: usize,
}

/// A worker for its life.
pub struct Worker<'a> {
    pub board: &'static Board,
    pub memories: &'a [Memory],
    pub cache: &'a SharedCache,
    /// Its place on the board.
    pub place: usize,
    /// Its number, which no other worker has.
    pub life: u32,
    pub rng: Rng,
    /// A grandchild does not fork.
    pub grandchild: bool,
}

struct Held<'a> {
    pin: SharedChunk<'a>,
    on_board: usize,
    version: u64,
}

/// How long the making of a chunk may take: workers are stopped for less.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads in a row.
const READS: usize = 200;

impl<'a> Worker<'a> {
    /// Runs until the whole run ends, or `steps` are done.
    pub fn run(&mut self, steps: Option<u64>) {
        let mut held: VecDeque<Held<'a>> = VecDeque::new();
        let memories = self.memories;
        // Counted a few at a time, because all processes share the board's cache lines.
        let mut reads = 0;
        let mut done = 0;
        while self.board.over.load(Ordering::Relaxed) == 0 && steps.is_none_or(|most| done < most) {
            done += 1;
            let memory = &memories[self.rng.below(memories.len())];
            let chunk = self.some_chunk(memory);
            let act = self.rng.below(100_000);
            if !self.grandchild {
                self.board.doing[self.place].store(act as u32, Ordering::Relaxed);
            }
            match act {
                80_000.. => self.use_the_cache(),
                1000.. => {
                    let Ok(Some(pin)) = memory.shared.read(chunk) else {
                        self.get(memory, chunk);
                        continue;
                    };
                    reads += u64::from(self.check(memory, chunk, &pin));
                    if act < 3000 {
                        let on_board = memory.first + chunk;
                        let version = self.board.versions[on_board].load(Ordering::SeqCst);
                        held.push_back(Held { pin, on_board, version });
                    }
                    // Intact chunks are read, so that most of the time goes into reads.
                    for _ in 0..READS {
                        let chunk = self.some_chunk(memory);
                        if let Ok(Some(pin)) = memory.shared.read(chunk) {
                            reads += u64::from(self.check(memory, chunk, &pin));
                        }
                    }
                }
                0..=499 => self.get(memory, chunk),
                500..=699 => self.range(memory, chunk),
                700..=849 => self.remake(memory, chunk),
                850..=919 => {
                    let end = (chunk + 1 + self.rng.below(64)).min(memory.used);
                    self.expect(memory.shared.purge_now(chunk..end).map(|_| ()));
                }
                920..=923 => self.another_handle(memory, chunk, act < 922),
                924..=925 => self.fork(&held),
                926..=935 => sys::nap_us(self.rng.below(2000) as u64),
                936..=999 => {}
            }
            if held.len() > 12 || held.len() > 4 && self.rng.once_in(3) {
                self.check_held(held.pop_front());
            }
            if done % 16 == 0 {
                self.board.reads.fetch_add(std::mem::take(&mut reads), Ordering::Relaxed);
                if !self.grandchild {
                    self.board.steps[self.place].fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.board.reads.fetch_add(reads, Ordering::Relaxed);
    }

    fn use_the_cache(&mut self) {
        let (board, cache, life) = (self.board, self.cache, self.life);
        let calls = Calls { board, cache, life, only_gets: self.grandchild };
        let found = calls.run(&mut self.rng);
        board.found.fetch_add(found, Ordering::Relaxed);
    }

    /// Chooses a chunk, some more often than others.
    fn some_chunk(&mut self, memory: &Memory) -> usize {
        let most = if self.rng.once_in(4) { memory.used } else { memory.used / 4 };
        self.rng.below(most)
    }

    fn expect(&self, result: tenure::Result<()>) {
        if let Err(error) = result {
            self.board.wrong(format_args!("an error that nothing explains: {error}"));
        }
    }

    /// Checks an intact chunk, which does not change while it is pinned.
    fn check(&mut self, memory: &Memory, chunk: usize, pin: &[u8]) -> bool {
        let on_board = memory.first + chunk;
        let version = self.board.versions[on_board].load(Ordering::SeqCst);
        let wrong = bytes::find_wrong(pin, on_board, version, &mut self.rng);
        if let Some((at, found, right)) = wrong {
            let len = pin.len();
            self.board.wrong(format_args!(
                "chunk {chunk} of {len} bytes, version {version}, word {at}: {found:#x}, not {right:#x}"
            ));
        }
        wrong.is_none()
    }

    /// Checks the held chunk again, after other calls, and in grandchildren.
    fn check_held(&mut self, held: Option<Held<'_>>) {
        let Some(held) = held else { return };
        let wrong = bytes::find_wrong(&held.pin, held.on_board, held.version, &mut self.rng);
        if let Some((at, found, right)) = wrong {
            let (chunk, version) = (held.on_board, held.version);
            self.board.wrong(format_args!(
                "chunk {chunk} on the board, held since version {version}, word {at}: {found:#x}, not {right:#x}"
            ));
        }
    }

    fn get(&mut self, memory: &Memory, chunk: usize) {
        match memory.shared.pin(chunk) {
            Ok(SharedPin::Intact(pin)) => {
                self.check(memory, chunk, &pin);
            }
            Ok(SharedPin::ToMake(maker)) => self.make(memory, chunk, maker),
            Ok(SharedPin::BeingMade(other)) => match other.wait(Some(PATIENCE)) {
                Ok(SharedPin::Intact(pin)) => {
                    self.check(memory, chunk, &pin);
                }
                Ok(SharedPin::ToMake(maker)) => self.make(memory, chunk, maker),
                Ok(SharedPin::BeingMade(_)) => {}
                Err(error) => {
                    self.board.hangs.fetch_add(1, Ordering::Relaxed);
                    eprintln!("HANG: {error}");
                }
            },
            Err(error) => self.expect(Err(error)),
        }
    }

    fn make(&mut self, memory: &Memory, chunk: usize, mut maker: Maker<'_>) {
        let on_board = memory.first + chunk;
        let before = self.board.makers[on_board].swap(self.life, Ordering::SeqCst);
        if before != 0 && !self.board.is_ended(before) {
            self.board.told_twice.fetch_add(1, Ordering::Relaxed);
            eprintln!("TOLD TWICE: chunk {chunk}: lives {before} and {}", self.life);
        }
        let was = maker.before();
        match was {
            Before::Purged => _ = self.board.told.fetch_add(1, Ordering::Relaxed),
            Before::Fresh | Before::HalfMade => {}
            _ => {
                if let Some((at, found, right)) = {
                    let version = self.board.versions[on_board].load(Ordering::SeqCst);
                    bytes::find_wrong(&maker, on_board, version, &mut self.rng)
                } {
                    self.board.wrong(format_args!(
                        "chunk {chunk} to be changed in place, word {at}: {found:#x}, not {right:#x}"
                    ));
                }
            }
        }
        if was != Before::Intact && !bytes::is_zeros(&maker, &mut self.rng) {
            self.board.wrong(format_args!("chunk {chunk} to be made ({was:?}) is not zeros"));
        }
        // While it is being made no other process reads the version.
        let version = self.rng.draw();
        self.board.versions[on_board].store(version, Ordering::SeqCst);
        let words = maker.len() / 8;
        if self.rng.once_in(20) {
            let half = self.rng.below(words);
            bytes::write(&mut maker, on_board, version, half);
            self.board.given_up.fetch_add(1, Ordering::Relaxed);
            self.board.makers[on_board].store(0, Ordering::SeqCst);
            let panics = self.rng.once_in(2);
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let _maker = maker;
                assert!(!panics, "in a maker");
            }));
            return;
        }
        if self.rng.once_in(200) {
            sys::nap_us(self.rng.below(3000) as u64);
        }
        bytes::write(&mut maker, on_board, version, words);
        self.board.made.fetch_add(1, Ordering::Relaxed);
        self.board.makers[on_board].store(0, Ordering::SeqCst);
        let pin = maker.finish().expect("this process makes it");
        self.check(memory, chunk, &pin);
    }

    fn range(&mut self, memory: &Memory, chunk: usize) {
        let end = (chunk + 1 + self.rng.below(8)).min(memory.used);
        let pins = match memory.shared.pin_range(chunk..end) {
            Ok(pins) => pins,
            Err(error) => return self.expect(Err(error)),
        };
        let mut intact = Vec::new();
        for (at, pin) in pins.into_iter().enumerate() {
            match pin {
                SharedPin::Intact(pin) => intact.push((chunk + at, pin)),
                SharedPin::ToMake(maker) => self.make(memory, chunk + at, maker),
                SharedPin::BeingMade(_) => {}
            }
        }
        for (chunk, pin) in intact {
            self.check(memory, chunk, &pin);
        }
    }

    fn remake(&mut self, memory: &Memory, chunk: usize) {
        match memory.shared.remake(chunk) {
            Ok(maker) => {
                self.board.remade.fetch_add(1, Ordering::Relaxed);
                self.make(memory, chunk, maker);
            }
            Err(error) if error.errno() == libc::EBUSY => {}
            Err(error) => self.expect(Err(error)),
        }
    }

    fn another_handle(&mut self, memory: &Memory, chunk: usize, read_only: bool) {
        let Ok(descriptor) = memory.shared.as_fd().try_clone_to_owned() else { return };
        // SAFETY: only the workers have the descriptor.
        let opened = unsafe {
            match read_only {
                true => SharedVolatile::open_read_only(descriptor),
                false => SharedVolatile::open(descriptor),
            }
        };
        let shared = match opened {
            Ok(shared) => shared,
            Err(error) => return self.expect(Err(error)),
        };
        self.board.handles.fetch_add(1, Ordering::Relaxed);
        let other = Memory { shared, first: memory.first, used: memory.used };
        let end = (chunk + 20).min(memory.used);
        for chunk in chunk..end {
            if let Ok(Some(pin)) = other.shared.read(chunk) {
                self.check(&other, chunk, &pin);
            } else if !read_only {
                self.get(&other, chunk);
            }
        }
    }

    fn fork(&mut self, held: &VecDeque<Held<'_>>) {
        if self.grandchild || self.board.living(self.life).load(Ordering::SeqCst) > 1 {
            return;
        }
        self.board.living(self.life).fetch_add(1, Ordering::SeqCst);
        let seed = self.rng.draw();
        match sys::fork() {
            0 => {
                let (board, life) = (self.board, self.life);
                // It continues with its inherited pins, and does work of its own.
                let own = life | 1 << 31;
                let mut own = Worker { life: own, rng: Rng::new(seed), grandchild: true, ..*self };
                own.run(Some(300));
                for held in held {
                    let wrong =
                        bytes::find_wrong(&held.pin, held.on_board, held.version, &mut own.rng);
                    if let Some((at, found, right)) = wrong {
                        board.wrong(format_args!(
                            "an inherited pin of chunk {}, word {at}: {found:#x}, not {right:#x}",
                            held.on_board
                        ));
                    }
                }
                board.grandchildren.fetch_add(1, Ordering::Relaxed);
                board.living(life).fetch_sub(1, Ordering::SeqCst);
                sys::exit_now(0);
            }
            pid if pid < 0 => _ = self.board.living(self.life).fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
    }
}
