//! Small caches without values, which try settings of the policy on a sample of the keys.
//!
//! The best settings depend on the program: a loop needs a cache that keeps what it has, news need
//! one that forgets. Each trial plays the same requests with its own settings, and the cache takes
//! the settings of the trial with the most recent hits. All memory is taken at once.

use super::place::MOST_USES;

/// The settings of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The part of the cache that is for new values, in 1024ths.
    pub probation: u64,
    /// How long a ghost brings its value back into the protected part: until this many eighths of
    /// the cache were evicted after the eighth in which the value went.
    pub memory: u16,
    /// Only a value that comes back for the second time in that time is protected. So what is asked for
    /// twice, and never again, replaces nothing that is asked for again and again.
    pub twice: bool,
    /// A used value that moves within the protected part loses all its uses, and not only as many
    /// as it [costs](cost). So what was popular once goes soon.
    pub forgets: bool,
}

impl Settings {
    /// Returns the uses that are left to a protected value after it moved.
    pub fn left(self, uses: u32, cost: u32) -> u32 {
        if self.forgets {
            0
        } else {
            uses.saturating_sub(cost)
        }
    }
}

const fn with(probation: u64, memory: u16) -> Settings {
    Settings { probation, memory, twice: false, forgets: false }
}

/// From the settings that keep most to those that forget most. The cache begins with [`START`].
pub(super) const SETTINGS: [Settings; 6] = [
    with(20, 1),
    Settings { twice: true, ..with(20, 11) },
    with(30, 7),
    with(100, 11),
    with(300, 7),
    Settings { forgets: true, ..with(800, 7) },
];
pub(super) const START: usize = 2;
const COUNT: usize = SETTINGS.len();

/// The number of values that a trial should have room for.
pub(super) const VALUES: u64 = 256;
/// The number of known keys, in all trials together.
const NODES: usize = 1536;
const CHAINS: usize = 512;
const NONE: u16 = u16::MAX;

/// The number of requests between two comparisons of the trials. At each one earlier hits count a
/// little less.
const ROUND: u32 = 32;
const FADING: f32 = 0.99;
/// How many hits another trial must be ahead, so that chance alone does not change the settings:
/// 0.2 % of the requests that count.
const AHEAD: f32 = 0.002 * ROUND as f32 / (1.0 - FADING);

/// The size of each trial's cache.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub room: u64,
    /// The bytes of a value.
    pub average: u32,
    /// The cache has evicted nothing so far. `room` is what it has now, and it takes more.
    pub grows: bool,
}

/// Where a key is in one trial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Probation,
    Protected,
    Ghost,
    None,
}

#[derive(Clone, Copy)]
struct Node {
    hash: u32,
    bytes: u32,
    /// The next of its chain, or of the free ones.
    next: u16,
    /// The number of trials that know the key.
    known: u16,
}

/// A key's place in one trial.
#[derive(Clone, Copy)]
struct Seat {
    before: u16,
    after: u16,
    part: Part,
    /// The uses, and [`CAME_BACK`].
    marks: u8,
}

/// The value came back before.
const CAME_BACK: u8 = 0x80;

impl Seat {
    fn uses(&self) -> u8 {
        self.marks & !CAME_BACK
    }

    fn set_uses(&mut self, uses: u8) {
        self.marks = self.marks & CAME_BACK | uses;
    }
}

#[derive(Clone, Copy)]
struct Line {
    first: u16,
    last: u16,
    bytes: u64,
}

const EMPTY: Line = Line { first: NONE, last: NONE, bytes: 0 };

/// See the module's head.
pub(super) struct Trials {
    nodes: Box<[Node]>,
    chains: Box<[u16]>,
    free: u16,
    /// For each trial, one seat for each key.
    seats: Box<[Seat]>,
    lines: [[Line; 3]; COUNT],
    /// Hits of each trial. Older hits count less.
    hits: [f32; COUNT],
    requests: u32,
    best: usize,
}

fn filled<T: Clone>(value: T, len: usize) -> Option<Box<[T]>> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).ok()?;
    all.resize(len, value);
    Some(all.into_boxed_slice())
}

impl Trials {
    /// Returns trials with empty caches, or `None` if the kernel refused the memory.
    pub fn new() -> Option<Trials> {
        let node = Node { hash: 0, bytes: 0, next: NONE, known: 0 };
        let seat = Seat { before: NONE, after: NONE, part: Part::None, marks: 0 };
        let mut nodes = filled(node, NODES)?;
        for (next, node) in (1..).zip(&mut nodes[..NODES - 1]) {
            node.next = next;
        }
        Some(Trials {
            nodes,
            chains: filled(NONE, CHAINS)?,
            free: 0,
            seats: filled(seat, COUNT * NODES)?,
            lines: [[EMPTY; 3]; COUNT],
            hits: [0.0; COUNT],
            requests: 0,
            best: START,
        })
    }

    /// Forgets the keys that are no longer in the sample.
    pub fn thin(&mut self, is_sampled: impl Fn(u32) -> bool) {
        for node in 0..NODES as u16 {
            if is_sampled(self.nodes[node as usize].hash) {
                continue;
            }
            for trial in 0..COUNT {
                if self.seats[trial * NODES + node as usize].part != Part::None {
                    self.leave(trial, node);
                    self.let_go(node);
                }
            }
        }
    }

    pub const BYTES: u64 = (size_of::<Trials>()
        + NODES * (size_of::<Node>() + COUNT * size_of::<Seat>())
        + CHAINS * size_of::<u16>()) as u64;

    /// Plays a request in caches of this size. Returns the number of the best settings now.
    pub fn request(&mut self, hash: u32, bytes: u32, size: Size) -> usize {
        let Some(node) = self.find_or_make(hash, bytes) else { return self.best };
        self.nodes[node as usize].known += 1;
        for trial in 0..COUNT {
            self.play(trial, node, size);
        }
        self.let_go(node);
        self.requests = (self.requests + 1) % ROUND;
        if self.requests == 0 {
            for trial in 0..COUNT {
                if self.hits[trial] > self.hits[self.best] + AHEAD {
                    self.best = trial;
                }
            }
            self.hits.iter_mut().for_each(|hits| *hits *= FADING);
        }
        self.best
    }

    fn find_or_make(&mut self, hash: u32, bytes: u32) -> Option<u16> {
        let chain = hash as usize % CHAINS;
        let mut at = self.chains[chain];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.hash == hash {
                return Some(at);
            }
            at = node.next;
        }
        // If there are too many keys, ghosts go first.
        for trial in (0..COUNT).cycle().take(64 * COUNT) {
            if self.free != NONE {
                break;
            }
            let ghost = self.lines[trial][Part::Ghost as usize].first;
            if ghost != NONE {
                self.leave(trial, ghost);
                self.let_go(ghost);
            }
        }
        let at = self.free;
        let node = self.nodes.get_mut(at as usize)?;
        self.free = node.next;
        *node = Node { hash, bytes, next: self.chains[chain], known: 0 };
        self.chains[chain] = at;
        Some(at)
    }

    /// One trial, or the request, no longer knows the key.
    fn let_go(&mut self, node: u16) {
        let Node { hash, next, known, .. } = self.nodes[node as usize];
        self.nodes[node as usize].known = known - 1;
        if known > 1 {
            return;
        }
        let chain = hash as usize % CHAINS;
        let mut at = self.chains[chain];
        if at == node {
            self.chains[chain] = next;
        }
        while at != NONE {
            let after = self.nodes[at as usize].next;
            if after == node {
                self.nodes[at as usize].next = next;
            }
            at = after;
        }
        self.nodes[node as usize].next = self.free;
        self.free = node;
    }

    fn play(&mut self, trial: usize, node: u16, size: Size) {
        let Size { room, average, grows } = size;
        let bytes = u64::from(self.nodes[node as usize].bytes);
        let cost = cost(bytes as usize, average);
        let part = self.seats[trial * NODES + node as usize].part;
        if matches!(part, Part::Probation | Part::Protected) {
            let seat = &mut self.seats[trial * NODES + node as usize];
            seat.set_uses((seat.uses() + 1).min(MOST_USES as u8));
            self.hits[trial] += 1.0;
            return;
        }
        let mut into = Part::Probation;
        let seat = &mut self.seats[trial * NODES + node as usize];
        let came_back = std::mem::take(&mut seat.marks) & CAME_BACK != 0;
        if part == Part::Ghost {
            self.leave(trial, node);
            self.nodes[node as usize].known -= 1;
            if SETTINGS[trial].twice && !came_back {
                self.seats[trial * NODES + node as usize].marks = CAME_BACK;
            } else if comes_back(cost) {
                into = Part::Protected;
            }
        }
        if bytes > room {
            return;
        }
        while !grows && self.bytes(trial) + bytes > room && self.evict(trial, room, average) {}
        // While there is room, the trial protects what probation has no room for.
        let has_room = |bytes_now: u64| grows || bytes_now + 2 * bytes + room / 64 < room;
        while self.is_full(trial, room) && has_room(self.bytes(trial)) {
            let first = self.lines[trial][Part::Probation as usize].first;
            self.leave(trial, first);
            self.enter(trial, first, Part::Protected);
        }
        self.nodes[node as usize].known += 1;
        self.enter(trial, node, into);
    }

    fn bytes(&self, trial: usize) -> u64 {
        let line = |part: Part| self.lines[trial][part as usize].bytes;
        line(Part::Probation) + line(Part::Protected)
    }

    /// Returns whether probation has more than its part.
    fn is_full(&self, trial: usize, room: u64) -> bool {
        let probation = &self.lines[trial][Part::Probation as usize];
        probation.first != NONE && probation.bytes > room * SETTINGS[trial].probation / 1024
    }

    fn evict(&mut self, trial: usize, room: u64, average: u32) -> bool {
        let protected = self.lines[trial][Part::Protected as usize].first;
        let is_new = protected == NONE || self.is_full(trial, room);
        let node =
            if is_new { self.lines[trial][Part::Probation as usize].first } else { protected };
        if node == NONE {
            return false;
        }
        let cost = cost(self.nodes[node as usize].bytes as usize, average);
        let uses = u32::from(self.seats[trial * NODES + node as usize].uses());
        self.leave(trial, node);
        if uses >= cost {
            let left = if is_new { 0 } else { SETTINGS[trial].left(uses, cost) };
            self.seats[trial * NODES + node as usize].set_uses(left as u8);
            self.enter(trial, node, Part::Protected);
            return true;
        }
        if !is_new {
            self.let_go(node);
            return true;
        }
        self.enter(trial, node, Part::Ghost);
        let most = room * (u64::from(SETTINGS[trial].memory) + 1) / 8;
        while self.lines[trial][Part::Ghost as usize].bytes > most {
            let ghost = self.lines[trial][Part::Ghost as usize].first;
            if ghost == NONE {
                break;
            }
            self.leave(trial, ghost);
            self.let_go(ghost);
        }
        true
    }

    fn enter(&mut self, trial: usize, node: u16, part: Part) {
        let line = &mut self.lines[trial][part as usize];
        let before = std::mem::replace(&mut line.last, node);
        line.bytes += u64::from(self.nodes[node as usize].bytes);
        let seats = &mut self.seats[trial * NODES..(trial + 1) * NODES];
        match seats.get_mut(before as usize) {
            Some(seat) => seat.after = node,
            None => line.first = node,
        }
        let seat = &mut seats[node as usize];
        (seat.before, seat.after, seat.part) = (before, NONE, part);
    }

    /// Takes a key out of the line that it is in.
    fn leave(&mut self, trial: usize, node: u16) {
        let seats = &mut self.seats[trial * NODES..(trial + 1) * NODES];
        let Seat { before, after, part, .. } = seats[node as usize];
        seats[node as usize].part = Part::None;
        let Some(line) = self.lines[trial].get_mut(part as usize) else { return };
        line.bytes = line.bytes.saturating_sub(u64::from(self.nodes[node as usize].bytes));
        match seats.get_mut(before as usize) {
            Some(seat) => seat.after = after,
            None => line.first = after,
        }
        match seats.get_mut(after as usize) {
            Some(seat) => seat.before = before,
            None => line.last = before,
        }
    }
}

/// Returns how many uses keep a value of this length: a large value takes the place of several.
pub(super) fn cost(bytes: usize, average: u32) -> u32 {
    let average = average.max(1) as usize;
    ((bytes + average / 2) / average).clamp(1, MOST_USES as usize) as u32
}

/// Returns whether a value of this cost is protected at once when it comes back.
pub(super) fn comes_back(cost: u32) -> bool {
    cost <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { room: 100 * VALUES, average: 100, grows: false };

    fn played(requests: impl Iterator<Item = u32>) -> Settings {
        let mut trials = Trials::new().expect("there is memory");
        let mut best = START;
        for key in requests {
            best = trials.request(key.wrapping_mul(0x9E37_79B1), 100, SIZE);
        }
        SETTINGS[best]
    }

    #[test]
    fn a_loop_holds_on_and_news_forget() {
        let round = (0..60_000u32).map(|at| at % 700);
        assert!(played(round).memory < 7, "a loop: ghosts would bring back what is gone again");
        // Each key is asked for four times, a hundred requests apart, and never again.
        let news = (0..60_000u32).map(|at| at / 4 + 200 * (3 - at % 4) / 4);
        assert!(played(news).probation > 100);
        let last = SETTINGS[COUNT - 1];
        assert_eq!(last.left(MOST_USES, 1), 0, "what was popular once goes soon");
    }

    #[test]
    fn keys_that_are_gone_from_all_trials_are_free_again() {
        let mut trials = Trials::new().expect("there is memory");
        for key in 0..100_000u32 {
            trials.request(key.wrapping_mul(0x9E37_79B1), 100, SIZE);
        }
        let in_chains = |trials: &Trials| {
            let next = |at: &u16| Some(trials.nodes[*at as usize].next).filter(|at| *at != NONE);
            let first = trials.chains.iter().filter(|at| **at != NONE);
            first.map(|at| std::iter::successors(Some(*at), next).count()).sum::<usize>()
        };
        let known = trials.nodes.iter().filter(|node| node.known > 0).count();
        assert_eq!(in_chains(&trials), known);
        assert!((VALUES as usize..NODES).contains(&known), "{known}");
    }
}
