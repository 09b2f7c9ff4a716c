//! Makes plans from seeds. Most calls make sense, because the kernel refuses the others at once.

use crate::plan::{Call, SLOTS};
use crate::program::Kind;
use crate::rng::Rng;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const PRIVATE: u64 = libc::MAP_PRIVATE as u64;
const SHARED: u64 = libc::MAP_SHARED as u64;
const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
const FIXED: u64 = libc::MAP_FIXED as u64;
const NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
const READ_WRITE: u64 = 3;

/// The generator's estimate of an object. The child has the true state, and leaves out calls that
/// do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    None,
    Heap,
    New,
    Map { pages: u64 },
}

/// Random calls, and the objects that they leave.
pub struct Generator {
    pub(crate) rng: Rng,
    objects: [Object; SLOTS as usize],
    calls: Vec<Call>,
    limited: bool,
    lock_limited: bool,
    locked_all: bool,
    filtered: bool,
    /// A mapping grows downwards. The kernel then ignores hints less than 256 pages below it, and
    /// which those are depends on where mappings lie, which differs between the runs.
    grows_down: bool,
}

/// How often each group of calls comes.
#[derive(Clone, Copy)]
struct Weights {
    heap: u64,
    map: u64,
    cxx: u64,
    process: u64,
    more: u64,
}

const PROFILES: &[Weights] = &[
    Weights { heap: 12, map: 0, cxx: 1, process: 1, more: 1 },
    Weights { heap: 1, map: 20, cxx: 0, process: 0, more: 0 },
    Weights { heap: 3, map: 20, cxx: 0, process: 1, more: 1 },
    Weights { heap: 8, map: 10, cxx: 2, process: 3, more: 2 },
    Weights { heap: 4, map: 2, cxx: 10, process: 1, more: 1 },
    Weights { heap: 6, map: 6, cxx: 1, process: 6, more: 3 },
];

/// The plan of a seed: its calls, and the program that makes them.
pub fn plan(seed: u64, calls: usize) -> (Kind, Vec<Call>) {
    let mut rng = Rng::new(seed);
    let kind = rng.pick(&[Kind::C, Kind::C, Kind::Cxx, Kind::Replaced]);
    let weights = rng.pick(PROFILES);
    let mut generator = Generator {
        rng,
        objects: [Object::None; SLOTS as usize],
        calls: Vec::new(),
        limited: false,
        lock_limited: false,
        locked_all: false,
        filtered: false,
        grows_down: false,
    };
    generator.fill(weights, calls);
    (kind, generator.calls)
}

impl Generator {
    fn fill(&mut self, weights: Weights, calls: usize) {
        let Weights { heap, map, cxx, process, more } = weights;
        while self.calls.len() < calls {
            let draw = self.rng.below(heap + map + cxx + process + more);
            if draw < heap {
                self.heap();
            } else if draw < heap + map {
                self.map();
            } else if draw < heap + map + cxx {
                self.cxx();
            } else if draw < heap + map + cxx + process {
                self.process();
            } else {
                self.more();
            }
            if self.rng.once_in(40) {
                self.push("sweep", &[]);
            }
        }
        self.push("sweep", &[]);
        if self.rng.once_in(3) {
            let numbers = [self.rng.below(6), self.rng.below(60_000)];
            self.push("end", &numbers);
        }
    }

    fn push(&mut self, name: &'static str, numbers: &[u64]) {
        let peek = !self.rng.once_in(3);
        self.calls.push(Call::new(name, numbers).peek(peek));
    }

    fn slot_with(&mut self, wanted: impl Fn(Object) -> bool) -> Option<u64> {
        let first = self.rng.below(SLOTS);
        (0..SLOTS).map(|n| (first + n) % SLOTS).find(|slot| wanted(self.objects[*slot as usize]))
    }

    fn free_slot(&mut self) -> u64 {
        if let Some(slot) = self.slot_with(|object| object == Object::None) {
            return slot;
        }
        let slot = self.rng.below(SLOTS);
        self.release(slot);
        slot
    }

    fn release(&mut self, slot: u64) {
        match self.objects[slot as usize] {
            Object::None => {}
            Object::Heap => self.push("free", &[slot]),
            Object::New => {
                let sized = self.rng.below(2);
                self.push("delete", &[slot, sized]);
            }
            Object::Map { .. } => self.push("drop", &[slot]),
        }
        self.objects[slot as usize] = Object::None;
    }

    /// Sizes near the thresholds, and some that no allocator can serve.
    fn size(&mut self) -> u64 {
        let near = self.rng.below(5000);
        match self.rng.below(24) {
            0..=3 => self.rng.below(5000),
            4..=6 => 62 * 1024 + near,
            7..=10 => 126 * 1024 + near,
            11..=14 => self.rng.below(MIB),
            15..=18 => self.rng.below(4 * MIB),
            19 => 2 * MIB - 2500 + near,
            20 => self.rng.below(12 * MIB),
            21 => 31 * MIB + self.rng.below(3 * MIB),
            22 => self.rng.below(256 * 1024) / 4096 * 4096,
            _ => 100_000 + near,
        }
    }

    fn absurd(&mut self) -> u64 {
        self.rng.pick(&[
            1 << 40,
            1 << 46,
            1 << 47,
            1 << 62,
            1 << 63,
            u64::MAX,
            u64::MAX - 5000,
            1 << 50,
        ])
    }

    fn heap(&mut self) {
        let draw = self.rng.below(20);
        if draw >= 10 {
            if let Some(slot) = self.slot_with(|object| object == Object::Heap) {
                return self.heap_again(slot, draw);
            }
        }
        let slot = self.free_slot();
        let size = if self.rng.once_in(30) { self.absurd() } else { self.size() };
        let sparse = u64::from(!self.limited && !self.locked_all && self.rng.once_in(25));
        let size = if sparse == 1 { self.rng.below(900 * MIB) + 40 * MIB } else { size };
        match self.rng.below(10) {
            0..=3 => self.push("malloc", &[slot, size, sparse]),
            4..=6 => {
                let count = self.rng.pick(&[1, 1, 3, 8]);
                let overflows = if self.rng.once_in(30) { 1 << 63 } else { count };
                self.push("calloc", &[slot, overflows, size / count + 1, sparse]);
            }
            7 => self.push("realloc", &[slot, size, sparse]),
            _ => {
                let which = self.rng.below(5);
                let align = 16 << self.rng.below(18);
                let align = if self.rng.once_in(10) { self.rng.below(5000) } else { align };
                self.push("memalign", &[slot, which, align, size, sparse]);
            }
        }
        self.objects[slot as usize] = Object::Heap;
        if sparse == 1 {
            self.push("resident", &[]);
        }
    }

    fn heap_again(&mut self, slot: u64, draw: u64) {
        match draw {
            10..=13 => self.release(slot),
            14..=16 => {
                let size = if self.rng.once_in(30) { self.absurd() } else { self.size().max(1) };
                self.push("realloc", &[slot, size]);
            }
            17 => {
                let (count, size) = (self.rng.pick(&[1, 2, 16]), self.size().max(1));
                self.push("reallocarray", &[slot, count, size / 2 + 1]);
            }
            18 => self.push("usable", &[slot]),
            _ => self.push("write", &[slot]),
        }
    }

    fn cxx(&mut self) {
        match self.rng.below(10) {
            0..=4 => {
                let slot = self.free_slot();
                let form = self.rng.below(8);
                let align = 32 << self.rng.below(13);
                let size = if self.rng.once_in(25) { 1 << 62 } else { self.size() };
                self.push("new", &[slot, form, size, align]);
                self.objects[slot as usize] = Object::New;
            }
            5 | 6 => {
                if let Some(slot) = self.slot_with(|object| object == Object::New) {
                    self.release(slot);
                }
            }
            7 | 8 => {
                let numbers = [self.rng.below(4), self.rng.below(400_000)];
                self.push("cxx", &numbers);
            }
            _ => {
                let numbers = [self.rng.below(2), self.rng.below(4_000_000)];
                self.push("plugin", &numbers);
            }
        }
    }

    fn pages(&mut self) -> u64 {
        match self.rng.below(16) {
            0..=2 => 1 + self.rng.below(15),
            3..=7 => 15 + self.rng.below(6),
            8..=11 => 16 + self.rng.below(300),
            12 | 13 => 256 + self.rng.below(800),
            14 => 1024 + self.rng.below(2048),
            _ => 8000 + self.rng.below(2000),
        }
    }

    fn a_map(&mut self) -> Option<(u64, u64)> {
        let slot = self.slot_with(|object| matches!(object, Object::Map { .. }))?;
        match self.objects[slot as usize] {
            Object::Map { pages } => Some((slot, pages)),
            _ => None,
        }
    }

    /// A part of a mapping, in bytes: now and then odd, empty or endless.
    fn part(&mut self, pages: u64) -> (u64, u64) {
        let from = if self.rng.once_in(3) { 0 } else { self.rng.below(pages) };
        let len = if self.rng.once_in(3) { pages - from } else { 1 + self.rng.below(pages - from) };
        let (mut from, mut len) = (from * PAGE, len * PAGE);
        match self.rng.below(40) {
            0 => from += 1 + self.rng.below(4094),
            1 => len -= 1 + self.rng.below(4094),
            2 => len = 0,
            3 => len = u64::MAX - self.rng.below(9000),
            _ => {}
        }
        if from + len.min(1 << 50) > pages * PAGE && len < 1 << 50 {
            len = len.saturating_sub(PAGE);
        }
        (from, len)
    }

    fn map(&mut self) {
        let Some((slot, pages)) = self.a_map() else { return self.new_map() };
        match self.rng.below(20) {
            0..=4 => self.new_map(),
            5 => self.release(slot),
            6 => {
                // Memory that is unmapped whole, and then calls on its addresses.
                self.push("munmap", &[slot, 0, pages * PAGE]);
                for _ in 0..1 + self.rng.below(4) {
                    self.part_call(slot, pages);
                }
                if self.rng.once_in(2) {
                    self.release(slot);
                    // The next owner of the memory must see no effect of those calls.
                    self.new_map_of(pages);
                }
            }
            7..=9 => {
                let (from, len) = self.part(pages);
                self.push("munmap", &[slot, from, len]);
                for _ in 0..self.rng.below(4) {
                    self.part_call(slot, pages);
                }
            }
            10 => {
                let (from, len) = self.part(pages);
                self.push("write", &[slot, from, len]);
            }
            _ => self.part_call(slot, pages),
        }
    }

    /// A call on a part of an object, which maps no memory elsewhere.
    fn part_call(&mut self, slot: u64, pages: u64) {
        let (from, len) = self.part(pages);
        match self.rng.below(16) {
            0..=1 => self.push("munmap", &[slot, from, len]),
            2..=3 => self.map_at(slot, from, len),
            4..=5 => self.remap(slot, pages),
            6 => self.push("write", &[slot, from, len]),
            7 if !self.locked_all => self.push("locked", &[]),
            _ => self.range_call(slot, from, len),
        }
    }

    fn range_call(&mut self, slot: u64, from: u64, len: u64) {
        const ADVICES: &[u64] = &[
            0, 1, 2, 3, 4, 4, 4, 8, 8, 9, 10, 11, 12, 13, 14, 14, 15, 16, 17, 18, 18, 19, 20, 21,
            22, 23, 24, 99, 5000,
        ];
        let which = self.rng.pick(&[0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]);
        let more = match which {
            0 | 8 => self.rng.pick(&[0, 1, 1, 2, 3, 3, 3, 5, 7, 16, 1 << 24]),
            1 => self.rng.pick(ADVICES),
            2 => self.rng.below(6),
            4 => self.rng.pick(&[0, 1, 1, 2]),
            7 => self.rng.pick(&[1, 2, 4, 5, 6, 8]),
            9 => self.rng.pick(&[3, 20, 21, 4, 99]),
            _ => 0,
        };
        let raw = u64::from(self.rng.once_in(12));
        self.push("range", &[slot, from, len, which, more, raw]);
    }

    fn protection(&mut self) -> u64 {
        self.rng.pick(&[3, 3, 3, 3, 3, 3, 1, 0, 2, 7])
    }

    fn map_at(&mut self, slot: u64, from: u64, len: u64) {
        let kind = self.rng.pick(&[PRIVATE, PRIVATE, PRIVATE, SHARED]);
        let how = match self.rng.pick(&[FIXED, FIXED, NOREPLACE, NOREPLACE, 0]) {
            0 if self.grows_down => NOREPLACE,
            how => how,
        };
        let (descriptor, offset) = if self.rng.once_in(4) { self.file() } else { (0, 0) };
        let anonymous = if descriptor == 0 { ANONYMOUS } else { 0 };
        let protection = self.protection();
        let odd = (from % PAGE).min(1);
        let hint = (slot + 1) | (from / PAGE) << 8 | odd << 40;
        let target = self.free_slot_quietly();
        let numbers = [target, len, protection, kind | how | anonymous, descriptor, offset, hint];
        self.push("mmap", &numbers);
    }

    /// A slot that is free in the generator's estimate. If none is, the child leaves the call out.
    fn free_slot_quietly(&mut self) -> u64 {
        self.slot_with(|object| object == Object::None).unwrap_or(0)
    }

    fn file(&mut self) -> (u64, u64) {
        let offset =
            self.rng.pick(&[0, 0, PAGE, 16 * PAGE, 200 * PAGE, 255 * PAGE, 100, 4097, 1 << 40]);
        (self.rng.pick(&[1, 1, 1, 2, 3]), offset)
    }

    fn new_map(&mut self) {
        let pages = self.pages();
        self.new_map_of(pages);
    }

    fn new_map_of(&mut self, pages: u64) {
        let slot = self.free_slot();
        let mut numbers = [slot, pages * PAGE, READ_WRITE, PRIVATE | ANONYMOUS, 0, 0, 0];
        match self.rng.below(20) {
            0..=9 => {}
            10 => numbers[1] = self.rng.pick(&[0, 1, 70_001, 1 << 47, u64::MAX - 4000, 1 << 62]),
            11 => numbers[2] = self.protection(),
            12 | 13 => {
                (numbers[4], numbers[5]) = self.file();
                numbers[3] = self.rng.pick(&[PRIVATE, SHARED]);
                numbers[2] = self.rng.pick(&[1, 3, 3]);
                numbers[1] = numbers[1].min(300 * PAGE);
            }
            14 => numbers[3] = self.rng.pick(&[0, SHARED | ANONYMOUS, 3 | ANONYMOUS, ANONYMOUS]),
            15 => numbers[5] = self.rng.pick(&[100, PAGE, 4097, 1 << 45]),
            16 => numbers[4] = 3,
            _ => {
                let more = [
                    libc::MAP_NORESERVE,
                    libc::MAP_POPULATE,
                    libc::MAP_LOCKED,
                    libc::MAP_STACK,
                    libc::MAP_32BIT,
                    libc::MAP_GROWSDOWN,
                    libc::MAP_NONBLOCK | libc::MAP_POPULATE,
                    libc::MAP_DENYWRITE,
                    libc::MAP_HUGETLB,
                    libc::MAP_SYNC,
                ];
                numbers[3] |= self.rng.pick(&more) as u64;
                self.grows_down |= numbers[3] & libc::MAP_GROWSDOWN as u64 != 0;
            }
        }
        self.push("mmap", &numbers);
        self.objects[slot as usize] = Object::Map { pages };
        if self.rng.once_in(2) {
            let (from, len) = self.part(pages);
            self.push("write", &[slot, from, len]);
        }
    }

    fn remap(&mut self, slot: u64, pages: u64) {
        let (from, old) = self.part(pages);
        let new = match self.rng.below(8) {
            0..=2 => old,
            3 => self.rng.pick(&[0, 1, 1 << 50, 1 << 62, u64::MAX]),
            4 | 5 => (1 + self.rng.below(pages)) * PAGE,
            _ => (pages + self.rng.below(64)) * PAGE,
        };
        let (from, old) = if self.rng.once_in(3) { (0, pages * PAGE) } else { (from, old) };
        let mut flags = self.rng.pick(&[0, 0, 1, 1, 1, 1, 3, 3, 5, 7, 4, 2, 8, 9, 1 << 20]);
        if self.locked_all {
            // MREMAP_DONTUNMAP unlocks the kernel's whole mapping (6.18), which may be several of the
            // program's that lie side by side. Which ones do differs between the runs.
            flags &= !(libc::MREMAP_DONTUNMAP as u64);
        }
        let mut goal = (self.free_slot_quietly(), 0);
        if flags & 2 != 0 {
            if let Some((target, most)) = self.a_map() {
                goal = (target, self.rng.below(most) * PAGE + self.rng.pick(&[0, 0, 0, 0, 0, 7]));
            }
        }
        self.push("mremap", &[slot, from, old, new, flags, goal.0, goal.1]);
    }

    fn process(&mut self) {
        match self.rng.below(16) {
            0..=2 => {
                let numbers = [self.rng.below(12), u64::from(self.rng.once_in(6))];
                self.push("fork", &numbers);
            }
            3..=7 => {
                let numbers = [1 + self.rng.below(10)];
                let name = if self.rng.once_in(3) { "thread" } else { "narrow" };
                self.push(name, &numbers);
            }
            8 => {
                let seed = self.rng.draw() >> 8;
                self.push("race", &[seed]);
            }
            9 | 10 => {
                let numbers = [self.rng.below(3), self.rng.below(1000)];
                self.push("signal", &numbers);
            }
            11 => {
                let (which, value) = self.rng.pick(&[
                    (0, 4 << 30),
                    (1, 2 << 30),
                    (2, 1 << 20),
                    (3, 64 << 20),
                    (4, 256),
                ]);
                self.limited |= which < 2;
                // A call that locks all memory would fail under this limit, because the limit is
                // too small.
                if which == 2 && self.locked_all {
                    return;
                }
                self.lock_limited |= which == 2;
                self.push("limit", &[which, value]);
            }
            12 if !self.filtered && self.rng.once_in(3) => {
                self.filtered = true;
                let numbers = [self.rng.below(12), self.rng.below(2)];
                self.push("filter", &numbers);
            }
            13 if !self.lock_limited && self.rng.once_in(4) => {
                self.locked_all = true;
                let flags = self.rng.pick(&[1, 2, 3, 4, 5, 6, 7, 0, 8]);
                self.push("lockall", &[flags]);
            }
            _ => self.push("descriptors", &[]),
        }
    }

    fn more(&mut self) {
        match self.rng.below(8) {
            0..=2 => {
                let size = self.rng.pick(&[70_000, 140_000, 300_000, 1 << 20, 5 << 20, 33 << 20]);
                let numbers = [size, self.rng.below(2), self.rng.below(2), self.rng.below(2)];
                self.push("vmsplice", &numbers);
            }
            3 | 4 => {
                let numbers = [self.rng.below(3), self.rng.below(2)];
                self.push("growsdown", &numbers);
            }
            5 => {
                let size = 16 * (1 + self.rng.below(20_000));
                self.push("sbrk", &[size]);
            }
            6 => self.push("trim", &[0]),
            _ => self.push("resident", &[]),
        }
    }
}
