//! Of several caches, the kernel's own reclaim first takes from the one whose bytes save the least
//! time.

use crate::promise_kit::*;
use std::collections::HashMap;
use std::time::Duration;
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::{or_skip, this_test, Competitor};

const VALUE: usize = 16 << 10;
const SEGMENT: usize = 2 << 20;
/// Values of each cache: 72 MiB.
const VALUES: u64 = 72 * MIB as u64 / VALUE as u64;
const LIMIT: u64 = 256 << 20;
const CHEAP: Duration = Duration::from_micros(100);

fn cache(cost: Option<Duration>) -> Cache<u64> {
    let builder = Cache::<u64>::builder();
    match cost {
        Some(cost) => builder.miss_cost(cost),
        None => builder,
    }
    .build()
    .unwrap()
}

fn value(key: u64) -> [u8; VALUE] {
    [key as u8 | 1; VALUE]
}

/// Returns how many values are there; none is wrong.
fn present(cache: &Cache<u64>) -> u64 {
    let is_there = |key: &u64| match cache.get(key) {
        Some(found) => {
            assert!(found[..] == value(*key), "wrong bytes under {key}");
            true
        }
        None => false,
    };
    (0..VALUES).filter(is_there).count() as u64
}

/// Fills both caches alike, in turns, and gets each value equally often. Calls `last`. Then a
/// neighbour takes the free memory and 40 MiB more. Returns how many values each has lost.
fn lost(caches: [&Cache<u64>; 2], wanted: [bool; 2], last: impl FnOnce()) -> [u64; 2] {
    volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
    let mut segments = HashMap::new();
    for key in 0..VALUES {
        for (cache, wanted) in caches.iter().zip(wanted) {
            cache.insert(key, &value(key)).unwrap();
            let at = cache.get(&key).expect("there is room").as_ptr() as usize;
            segments.insert(at / SEGMENT, wanted);
        }
    }
    // All was offered before its worth is known: the order of offers is that of the values.
    assert!(waited(|| tenure::stats().marked_bytes == 0));
    let before = caches.map(present);
    let stats = || caches.map(|cache| cache.stats());
    assert_eq!(before, [VALUES, VALUES], "there is room for all of them: {:?}", stats());
    let compared = || {
        caches.iter().for_each(|cache| assert_eq!(present(cache), VALUES, "{:?}", stats()));
        caches.map(|cache| cache.stats().is_spared) == wanted
    };
    assert!(waited(compared), "{:?}", stats());
    assert!(waited(|| tenure::stats().marked_bytes == 0));
    last();
    if wanted.contains(&true) {
        let told = || wrongly_marked(&segments) <= 4 * MIB;
        assert!(waited(told), "{} bytes: {:?}", wrongly_marked(&segments), stats());
    }
    let free = LIMIT - room::used();
    let mut neighbour = Competitor::spawn(None).unwrap();
    neighbour.need(free + (40 << 20)).expect("its need is met from the caches");
    let lost = caches.map(|cache| VALUES - present(cache));
    println!("lost of {VALUES} values each: {lost:?}, spared: {wanted:?}");
    lost
}

/// The bytes of offered pages that look used to the kernel and should not, or the other way round.
/// `segments`: whether the pages of a segment should, by the segment's number in the address space.
fn wrongly_marked(segments: &HashMap<usize, bool>) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let [mut wanted, mut used, mut wrong] = [0; 3];
    for line in text.lines() {
        let address = |text| usize::from_str_radix(text, 16).ok();
        let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
        if let Some((Some(start), Some(end))) =
            ends.map(|(start, end)| (address(start), address(end)))
        {
            let of_mapping = start.div_ceil(SEGMENT)..end / SEGMENT;
            wanted = of_mapping.filter(|at| segments.get(at) == Some(&true)).count() * SEGMENT;
        }
        let field =
            |name| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<usize>().ok();
        if let Some(kib) = field("Referenced:") {
            used = kib << 10;
        }
        if field("LazyFree:").is_some_and(|kib| kib > 0) {
            wrong += used.abs_diff(wanted);
        }
    }
    wrong
}

/// The memory that the group uses, as the kernel counts it.
mod room {
    pub fn used() -> u64 {
        let directory = std::env::var(super::GROUP).unwrap();
        let read = |file: &str| std::fs::read_to_string(format!("{directory}/{file}")).ok();
        let text = read("memory.current").or_else(|| read("memory.usage_in_bytes")).unwrap();
        text.trim().parse().unwrap()
    }
}

/// The costly cache is the first that was made and filled, or the second: only its cost
/// distinguishes them.
fn the_cheap_one_gives(test: &'static str, costly: usize, last: Option<fn(&Cache<u64>)>) {
    let done = undisturbed_within(test, LIMIT, || {
        if last.is_some() {
            without_huge_pages();
        }
        let mut costs = [Some(CHEAP); 2];
        costs[costly] = Some(10 * CHEAP);
        let caches = costs.map(cache);
        let mut wanted = [false; 2];
        wanted[costly] = true;
        let lost = lost([&caches[0], &caches[1]], wanted, || {
            last.inspect(|last| last(&caches[1 - costly]));
        });
        let all = 40 * MIB as u64 / VALUE as u64;
        assert!(lost[1 - costly] * 10 >= all * 7, "the cheap one gave too little: {lost:?}");
        // The kernel's lists are not exact.
        assert!(lost[costly] * 10 <= lost[1 - costly], "the costly one gave, too: {lost:?}");
    });
    or_skip!(done);
}

#[test]
fn the_cheap_cache_gives_first_if_it_is_the_second() {
    the_cheap_one_gives(this_test!(), 0, None);
}

#[test]
fn the_cheap_cache_gives_first_if_it_is_the_first() {
    the_cheap_one_gives(this_test!(), 1, None);
}

/// The kernel takes used pages after the others, and such a get uses base pages.
#[test]
fn gets_that_copy_offered_values_of_the_cheap_cache_do_not_spare_it() {
    the_cheap_one_gives(
        this_test!(),
        0,
        Some(|cheap| {
            volatile::configure(Settings::default().with_unoffered_max(0));
            let copies = || tenure::stats().total.offered_reads;
            let before = copies();
            // Not all of each segment: one that is read often is taken back, as are others until the
            // next scan knows the bound.
            assert!(waited(|| {
                assert!((0..VALUES).step_by(8).all(|key| cheap.get(&key).is_some()));
                copies() - before > VALUES / 16
            }));
        }),
    );
}

/// If the costs are not known, no cache is spared, and both lose about as much.
#[test]
fn caches_of_unknown_cost_give_alike() {
    let done = undisturbed_within(this_test!(), LIMIT, || {
        let caches = [cache(None), cache(None)];
        let lost = lost([&caches[0], &caches[1]], [false; 2], || ());
        assert!(lost[0] > 0 && lost[1] > 0, "{lost:?}");
    });
    or_skip!(done);
}

/// The cost of a miss is measured in the calls that make values, of threads and of tasks.
#[test]
fn the_cost_of_a_miss_is_measured() {
    promised(this_test!(), || {
        let cost = |cache: &Cache<u64>| Duration::from_nanos(cache.stats().miss_cost_ns);
        let slow = |bytes: u8| {
            std::thread::sleep(Duration::from_millis(3));
            vec![bytes; 100]
        };
        let cache = Cache::<u64>::new().unwrap();
        cache.insert(0, &[0; 100]).unwrap();
        assert_eq!(cost(&cache), Duration::ZERO, "an insert tells nothing");
        drop(cache.get_or_insert_with(&1, || slow(1)).unwrap());
        assert!(cost(&cache) >= Duration::from_millis(3), "{:?}", cost(&cache));
        let before = cost(&cache);
        drop(cache.get_or_insert_with(&1, || slow(2)).unwrap());
        assert_eq!(cost(&cache), before, "it was there");
        let tasks = Cache::<u64>::new().unwrap();
        let make = tasks.get_or_insert_async(&1, async { slow(1) });
        drop(pollster(make).unwrap());
        assert!(cost(&tasks) >= Duration::from_millis(3), "{:?}", cost(&tasks));
        let given = Cache::<u64>::builder().miss_cost(Duration::from_secs(1)).build().unwrap();
        drop(given.get_or_insert_with(&1, || vec![1]).unwrap());
        assert_eq!(cost(&given), Duration::from_secs(1));
    });
}

/// Polls a future that never waits.
fn pollster<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("it waits for nothing"),
    }
}
