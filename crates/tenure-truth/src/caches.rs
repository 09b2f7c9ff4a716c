//! Caches that all threads use. Each key has one thread that writes it, so the possible results of
//! a get are known: nothing older than the last write that was over before, nothing newer than the
//! last write that has begun.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::closures::Wild;
use crate::keys::{armed, Called, Key, Mischief, Spot, TruthHasher};
use crate::rng::{mix, Rng};
use crate::setting::{self, is, judge};
use crate::sys;
use crate::tally::{add, tally};
use crate::{doing, panics, wrong};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tenure::cache::Value;
use tenure::Cache;

/// The sizes of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// 0 bytes to 20 KiB.
    Small,
    /// Up to 6 MiB, most above 512 KiB.
    Large,
    /// All of these.
    Mixed,
}

/// One cache with the known facts about its keys.
struct One {
    cache: Cache<Key, TruthHasher>,
    salt: u64,
    sizes: Sizes,
    ceiling: Option<u64>,
    ttl_ms: Option<u64>,
    keys: Vec<State>,
    identity: bool,
    /// Begins and ends of `clear`.
    clears: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The last write that began.
    begun: AtomicU64,
    /// The last write that is over: no get returns an older one.
    over: AtomicU64,
    /// The time of that write.
    over_ms: AtomicU64,
    /// The number of the last finished write at the beginning of a `clear` that is over.
    cleared: AtomicU64,
}

/// All caches of a process.
pub struct Caches {
    all: Vec<One>,
    threads: usize,
    plan: Plan,
}

/// A value that a thread keeps.
pub struct Held {
    value: Value<'static>,
    cache: usize,
    key: u64,
    version: u64,
}

/// The way to make and use caches.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The sizes of values.
    pub sizes: Sizes,
    /// Bytes that a cache may take.
    pub ceiling: Option<u64>,
    /// Keys misbehave.
    pub mischief: bool,
    /// Values are made inside the making of values.
    pub recursion: bool,
    /// Values that do not fit test the ceiling and the room.
    pub limits: bool,
}

/// Keys that one thread writes.
const OWN: usize = 48;
/// Keys whose value every thread may make. The bytes are always the same.
const COMMON: usize = 24;
const COMMON_VERSION: u64 = 1;

/// Bytes of values that one thread holds.
const MOST_HELD: usize = 6 << 20;
/// Longer than any run.
const HOUR: Duration = Duration::from_secs(1 << 30);

/// The reason why a value was not made.
enum Unmade {
    Tenure(tenure::Error),
    Refused,
}

impl From<tenure::Error> for Unmade {
    fn from(error: tenure::Error) -> Unmade {
        Unmade::Tenure(error)
    }
}

impl One {
    fn len_of(&self, key: u64, version: u64) -> usize {
        // Every other key's values have one of four lengths, so that they take one another's places.
        let (like, of) = if key % 2 == 0 { (key % 8, 0) } else { (key, version) };
        let x = mix(mix(self.salt, like), of.wrapping_mul(5));
        let pick = |low: usize, high: usize| low + (x >> 16) as usize % (high - low);
        match (self.sizes, x % 16) {
            (Sizes::Small, 0) => 0,
            (Sizes::Small, 1..=4) => pick(1, 64),
            (Sizes::Small, 5..=10) => pick(64, 3000),
            (Sizes::Small, _) => pick(3000, 20_000),
            (Sizes::Large, 0..=3) => pick(500_000, 540_000),
            (Sizes::Large, 4..=10) => pick(540_000, 2 << 20),
            (Sizes::Large, 11..=13) => pick(2 << 20, 6 << 20),
            (Sizes::Large, _) => pick(1000, 300_000),
            (Sizes::Mixed, 0) => pick(0, 2),
            (Sizes::Mixed, 1..=9) => pick(1, 30_000),
            (Sizes::Mixed, 10..=13) => pick(30_000, 300_000),
            (Sizes::Mixed, _) => pick(500_000, 3 << 20),
        }
    }

    fn word(&self, key: u64, version: u64, n: usize) -> u64 {
        let base = mix(mix(self.salt ^ 0xCAC4E, key), version);
        base.wrapping_add((n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C16)) | 1
    }

    fn bytes(&self, key: u64, version: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.len_of(key, version)];
        for (n, word) in bytes.chunks_mut(8).enumerate() {
            word.copy_from_slice(&self.word(key, version, n).to_ne_bytes()[..word.len()]);
        }
        bytes
    }

    /// Returns whether a value is exactly that version; otherwise the first word that differs.
    fn compare(&self, value: &[u8], key: u64, version: u64) -> Result<(), usize> {
        if value.len() != self.len_of(key, version) {
            return Err(0);
        }
        match value
            .chunks(8)
            .enumerate()
            .find(|(n, word)| *word != &self.word(key, version, *n).to_ne_bytes()[..word.len()])
        {
            None => Ok(()),
            Some((n, _)) => Err(n),
        }
    }

    fn count(&self, value: &[u8]) {
        add(&tally().bytes, value.len() as u64);
        add(&tally().pages, value.len().div_ceil(sys::page_bytes()) as u64);
    }

    /// Returns the version of a value, from the newest possible one down to the oldest allowed one.
    fn version_of(&self, value: &[u8], key: u64, oldest: u64, newest: u64) -> Option<u64> {
        (oldest..=newest).rev().take(300).find(|version| self.compare(value, key, *version).is_ok())
    }

    fn key(key: u64, identity: bool) -> Key {
        // Keys of an identity hasher that differ in their high bits only.
        Key(if identity { key << 40 } else { key })
    }
}

impl Caches {
    /// The caches of a configuration.
    pub fn new(seed: u64, threads: usize, plan: Plan) -> Caches {
        let make = |n: usize| {
            let identity = n == 2;
            let hasher = match identity {
                true => TruthHasher::Identity,
                false => TruthHasher::Good(foldhash::fast::RandomState::default()),
            };
            let ttl_ms = (n == 1).then_some(40);
            let build = || {
                let mut builder = Cache::builder().hasher(hasher.clone());
                if let Some(ceiling) = plan.ceiling {
                    builder = builder.ceiling(ceiling);
                }
                if let Some(ms) = ttl_ms {
                    builder = builder.time_to_live(Duration::from_millis(ms));
                }
                if n == 2 {
                    builder = builder.time_to_idle(HOUR);
                }
                builder.build()
            };
            let mut built = build();
            for _ in 0..200 {
                let Err(error) = &built else { break };
                judge("Cache::build", error, &[]);
                sys::nap_us(1000);
                built = build();
            }
            let cache = built.expect("a cache, at the 200th try");
            let keys = (0..threads * OWN + COMMON).map(|_| State::default()).collect::<Vec<_>>();
            for state in &keys[threads * OWN..] {
                state.begun.store(COMMON_VERSION, Ordering::SeqCst);
            }
            let salt = mix(seed, 900 + n as u64);
            let (sizes, ceiling) = (plan.sizes, plan.ceiling);
            One { cache, salt, sizes, ceiling, ttl_ms, keys, identity, clears: AtomicU64::new(0) }
        };
        let all = (0..3).map(make).collect();
        Caches { all, threads, plan }
    }

    fn some_key(&self, rng: &mut Rng) -> u64 {
        rng.below(self.threads * OWN + COMMON) as u64
    }

    fn common_key(&self, rng: &mut Rng) -> u64 {
        (self.threads * OWN + rng.below(COMMON)) as u64
    }

    /// One operation that the random numbers choose, by thread number `thread`.
    pub fn step(&'static self, rng: &mut Rng, thread: usize, held: &mut VecDeque<Held>) {
        let cache = rng.below(self.all.len());
        let own = (thread * OWN + rng.below(OWN)) as u64;
        let mischief = (self.plan.mischief && rng.once_in(3)).then(|| {
            let what = [Mischief::Panic, Mischief::Call][rng.below(2)];
            let spot = [Spot::Hash, Spot::Eq, Spot::Drop][rng.below(3)];
            (what, spot, rng.below(4) as u32)
        });
        match rng.below(24) {
            0..=8 => {
                let key = if rng.once_in(3) { own } else { self.some_key(rng) };
                self.guarded(mischief, cache, || {
                    let Some((value, version)) = self.get(cache, key) else { return };
                    // Bounded in bytes, because the driver takes the held values from the machine.
                    let bytes: usize = held.iter().map(|held| held.value.len()).sum();
                    let most = if self.plan.limits { 60 } else { 12 };
                    let fits = held.len() < most && bytes + value.len() < MOST_HELD;
                    if rng.once_in(if self.plan.limits { 2 } else { 4 }) && fits {
                        held.push_back(Held { value, cache, key, version });
                    }
                });
            }
            9..=15 => self.guarded(mischief, cache, || self.insert(cache, own)),
            16 => self.guarded(mischief, cache, || self.remove(cache, own)),
            17..=19 => {
                let key = self.common_key(rng);
                self.guarded(mischief, cache, || self.make(rng, cache, key));
            }
            20 => {
                if let Some(held) = held.pop_front() {
                    self.check_held(&held);
                }
            }
            21 => held.iter().for_each(|held| self.check_held(held)),
            22 if rng.once_in(20) => self.guarded(mischief, cache, || self.clear(cache)),
            22 if self.plan.limits => self.huge(rng, cache),
            _ => self.look_at_stats(cache),
        }
    }

    fn guarded(&self, mischief: Option<(Mischief, Spot, u32)>, cache: usize, run: impl FnOnce()) {
        match mischief {
            None => run(),
            Some(mischief) => {
                let _ = armed(mischief, (self, cache), run);
            }
        }
    }

    /// A get, checked against the known facts.
    fn get(&self, cache: usize, key: u64) -> Option<(Value<'_>, u64)> {
        doing!("Cache::get");
        let one = &self.all[cache];
        let state = &one.keys[key as usize];
        let over = state.over.load(Ordering::SeqCst);
        let over_ms = state.over_ms.load(Ordering::SeqCst);
        let over_again = state.over.load(Ordering::SeqCst);
        let cleared = state.cleared.load(Ordering::SeqCst);
        let before = sys::now_ms();
        let value = one.cache.get(&One::key(key, one.identity))?;
        let begun = state.begun.load(Ordering::SeqCst);
        doing!("check of a cache's value");
        add(&tally().hits, 1);
        let version = self.judge(cache, key, &value, over, begun, cleared)?;
        if let (Some(ttl), true) = (one.ttl_ms, over == over_again && version == over) {
            if before > over_ms + ttl + 5 && over_ms > 0 {
                let late = before - over_ms;
                wrong!("a value came back {late} ms after it was put in, to live {ttl} ms");
            }
        }
        Some((value, version))
    }

    fn judge(
        &self,
        cache: usize,
        key: u64,
        value: &[u8],
        over: u64,
        begun: u64,
        cleared: u64,
    ) -> Option<u64> {
        let one = &self.all[cache];
        one.count(value);
        if key as usize >= self.threads * OWN {
            // The bytes are always the same; versions play no part.
            match one.compare(value, key, COMMON_VERSION) {
                Ok(()) => return Some(COMMON_VERSION),
                Err(n) => {
                    self.complain(cache, key, value, n, "the only one");
                    return None;
                }
            }
        }
        let oldest = over.max(cleared + 1).max(1);
        if let Some(version) = one.version_of(value, key, oldest, begun) {
            return Some(version);
        }
        match one.version_of(value, key, 1, begun) {
            Some(version) => {
                wrong!(
                    "cache {cache}, key {key}: a get returned write {version}, but {over} was over and all up to {cleared} were cleared before it began"
                );
            }
            None => {
                let n = one.compare(value, key, begun).err().unwrap_or(0);
                self.complain(cache, key, value, n, "any");
            }
        }
        None
    }

    fn complain(&self, cache: usize, key: u64, value: &[u8], n: usize, which: &str) {
        let zeros = value.iter().all(|byte| *byte == 0);
        let whose = (0..self.all.len()).find_map(|cache| {
            let one = &self.all[cache];
            (0..one.keys.len() as u64).find_map(|other| {
                let begun = one.keys[other as usize].begun.load(Ordering::SeqCst);
                let version = one.version_of(value, other, 1, begun)?;
                Some((cache, other, version))
            })
        });
        let len = value.len();
        wrong!(
            "cache {cache}, key {key}: {len} bytes that are not {which} value of it, from word {n} (zeros: {zeros}; cache, key and write they belong to: {whose:?})"
        );
    }

    fn begin(&self, cache: usize, key: u64) -> u64 {
        // Two numbers for each write, so that a failed write differs from the next one.
        self.all[cache].keys[key as usize].begun.fetch_add(2, Ordering::SeqCst) + 2
    }

    fn end(&self, cache: usize, key: u64, version: u64) {
        let state = &self.all[cache].keys[key as usize];
        state.over_ms.store(sys::now_ms(), Ordering::SeqCst);
        state.over.store(version, Ordering::SeqCst);
    }

    fn insert(&self, cache: usize, key: u64) {
        let one = &self.all[cache];
        let version = self.begin(cache, key);
        let bytes = one.bytes(key, version);
        doing!("Cache::insert");
        let wrapped = One::key(key, one.identity);
        // Some beside others, in the same segments, as if there were no times.
        let put = match version % 8 == 0 && one.ttl_ms.is_none() {
            true => one.cache.insert_with_time_to_live(wrapped, &bytes, HOUR),
            false => one.cache.insert(wrapped, &bytes),
        };
        match put {
            Ok(()) => self.end(cache, key, version),
            Err(error) => {
                // The key has no value now.
                self.end(cache, key, version + 1);
                let tight = one.ceiling.is_some() || is(&setting::SHORT);
                judge("Cache::insert", &error, if tight { &[libc::ENOMEM] } else { &[] });
            }
        }
    }

    fn remove(&self, cache: usize, key: u64) {
        let one = &self.all[cache];
        let version = self.begin(cache, key);
        doing!("Cache::remove");
        one.cache.remove(&One::key(key, one.identity));
        self.end(cache, key, version + 1);
        let again = one.cache.get(&One::key(key, one.identity)).is_some();
        if again {
            wrong!("cache {cache}, key {key}: a get found what its only writer had removed");
        }
    }

    fn clear(&self, cache: usize) {
        let one = &self.all[cache];
        let over: Vec<_> = one.keys.iter().map(|s| s.over.load(Ordering::SeqCst)).collect();
        doing!("Cache::clear");
        one.clears.fetch_add(1, Ordering::SeqCst);
        one.cache.clear();
        one.clears.fetch_add(1, Ordering::SeqCst);
        for (state, over) in one.keys[..self.threads * OWN].iter().zip(over) {
            state.cleared.fetch_max(over, Ordering::SeqCst);
        }
    }

    fn make(&self, rng: &mut Rng, cache: usize, key: u64) {
        let one = &self.all[cache];
        let wild = Wild::choose(rng);
        let other = self.common_key(rng);
        let how = rng.below(if self.plan.recursion { 8 } else { 5 });
        let wrapped = |key| One::key(key, one.identity);
        let value = || one.bytes(key, COMMON_VERSION);
        doing!("Cache::get_or_insert_with");
        let made = panics::catching(|| match how {
            0 => one.cache.get_or_try_insert_with(&wrapped(key), || Err(Unmade::Refused)),
            1 => one.cache.get_or_try_insert_with(&wrapped(key), || {
                wild.act();
                let _ = self.get(cache, other);
                doing!("Cache::get_or_try_insert_with, after a get inside");
                Ok(value())
            }),
            5 => one.cache.get_or_try_insert_with(&wrapped(key), || {
                doing!("making of a value inside its own making");
                if one.cache.get_or_insert_with(&wrapped(key), value).is_ok() {
                    wrong!("a value was made inside its own making");
                }
                Ok(value())
            }),
            6 | 7 => one.cache.get_or_try_insert_with(&wrapped(key), || {
                doing!("making of a value inside another's making");
                let other_value = || one.bytes(other, COMMON_VERSION);
                let _ = one.cache.get_or_insert_with(&wrapped(other), other_value);
                Ok(value())
            }),
            _ => one
                .cache
                .get_or_insert_with(&wrapped(key), || {
                    wild.act();
                    value()
                })
                .map_err(Unmade::from),
        });
        match made {
            None | Some(Err(Unmade::Refused)) => {}
            Some(Err(Unmade::Tenure(error))) => {
                let allowed: &[i32] = if self.plan.recursion { &[libc::EDEADLK] } else { &[] };
                judge("Cache::get_or_insert_with", &error, allowed);
            }
            Some(Ok(value)) => {
                doing!("check of a made value");
                self.judge(cache, key, &value, 0, COMMON_VERSION, 0);
            }
        }
    }

    /// A value larger than the ceiling, or than the room that is left: it is refused, and nothing
    /// is evicted.
    fn huge(&self, rng: &mut Rng, cache: usize) {
        let one = &self.all[cache];
        let limit = one.ceiling.unwrap_or(u64::MAX).min(match is(&setting::SHORT) {
            true => 300 << 20,
            false => u64::MAX,
        });
        if limit > 600 << 20 || !rng.once_in(6) {
            return;
        }
        let len = limit as usize + (8 << 20);
        let access = libc::PROT_READ;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return;
        }
        // SAFETY: the mapping made above, unmapped below; zeros that take no memory.
        let value = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
        let clears = one.clears.load(Ordering::SeqCst);
        let values = one.cache.stats().values;
        doing!("Cache::insert of more than there is room for");
        let result = one.cache.insert(One::key(1 << 20, one.identity), value);
        doing!("after an insert of more than there is room for");
        match result {
            Ok(()) => wrong!("a value of {len} bytes was let in where there is room for {limit}"),
            Err(error) => judge("Cache::insert", &error, &[libc::ENOMEM]),
        }
        let after = one.cache.stats().values;
        let cleared = clears % 2 == 1 || one.clears.load(Ordering::SeqCst) != clears;
        if !cleared && values > 20 && after < values / 4 && !is(&setting::SHORT) {
            wrong!("a value that does not fit emptied the cache: {values} values, then {after}");
        }
        sys::unmap(at as usize, len);
    }

    fn look_at_stats(&self, cache: usize) {
        doing!("Cache::stats");
        let one = &self.all[cache];
        let stats = one.cache.stats();
        if let (Some(ceiling), true) = (one.ceiling, self.plan.limits) {
            // A documented amount above it: the open segments and one value.
            let most = ceiling + ceiling / 4 + (32 << 20);
            if stats.footprint_bytes > most {
                wrong!("a cache with a ceiling of {ceiling} bytes takes {}", stats.footprint_bytes);
            }
        }
        if stats.values > one.keys.len() as u64 + 8 {
            wrong!("a cache of {} keys says that it has {}", one.keys.len(), stats.values);
        }
    }

    fn check_held(&self, held: &Held) {
        doing!("check of a held value");
        let one = &self.all[held.cache];
        one.count(&held.value);
        if let Err(n) = one.compare(&held.value, held.key, held.version) {
            let zeros = held.value.iter().all(|byte| *byte == 0);
            wrong!(
                "cache {}, key {}: a value changed while it was held, from word {n} (zeros: {zeros})",
                held.cache,
                held.key
            );
        }
    }

    /// A child's check: gets only, and a few writes of its thread's own keys.
    pub fn verify(&self, rng: &mut Rng, thread: usize, held: &VecDeque<Held>) {
        held.iter().for_each(|held| self.check_held(held));
        for n in 0..40 {
            let cache = rng.below(self.all.len());
            if n % 4 == 0 {
                self.insert(cache, (thread * OWN + rng.below(OWN)) as u64);
            }
            let key = self.some_key(rng);
            let _ = self.get(cache, key);
        }
    }

    /// Values that gets found purged.
    pub fn purged(&self) -> u64 {
        self.all.iter().map(|one| one.cache.stats().purged_values).sum()
    }
}

impl Called for Caches {
    /// A call of the cache from a key's code, inside another call of that cache.
    fn inside(&self, cache: usize) {
        doing!("call of a cache in a key's code");
        let one = &self.all[cache];
        let key = self.threads * OWN;
        let _ = one.cache.get(&One::key(key as u64, one.identity));
        let _ = one.cache.contains_key(&One::key(key as u64 + 1, one.identity));
        let _ = one.cache.stats();
        doing!("call of a cache after a key's code called it");
    }
}
