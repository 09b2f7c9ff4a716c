//! No system call for marks, pins and gets of intact memory; an idle worker costs nothing.

use crate::promise_kit::{never_offer, promised, waited, waited_for};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Settings};
use tenure::{Cache, Mapping, Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{counting_syscalls, Call, Errno, Filter};
use tenure_testkit::{or_skip, this_test, undisturbed};

const PAGE: usize = 4096;
const MILLION: usize = 1_000_000;

/// How often the worker got a report that memory is short.
fn pressure() -> u64 {
    tenure::stats().total.pressure_events
}

#[test]
fn a_million_marks_and_unmarks_make_no_system_call() {
    undisturbed(this_test!(), pressure, || {
        never_offer();
        let ranges = 1000;
        let mut map = Mapping::anonymous_with(ranges * 2 * PAGE, PageSize::Base).unwrap();
        let base = map.as_mut_ptr() as usize;
        let calls = counting_syscalls(|count| {
            let each = |again: usize| {
                for i in 0..ranges * again {
                    let at = (base + i % ranges * 2 * PAGE) as *mut u8;
                    // SAFETY: inside the mapping, which lives on.
                    unsafe {
                        volatile::mark(at, PAGE).unwrap();
                        assert_eq!(volatile::unmark(at, PAGE), Ok(Outcome::Intact));
                    }
                }
            };
            each(1);
            let ((), calls) = count.of_this_thread(|| each(MILLION / ranges));
            assert_eq!(calls, 0, "{:?}", count.by_number());
        });
        calls.unwrap();
    });
}

#[test]
fn pins_and_gets_make_no_system_call() {
    undisturbed(this_test!(), pressure, || {
        never_offer();
        let objects: Vec<Volatile> =
            [PAGE, 1 << 20, 64 << 20].iter().map(|len| Volatile::new(*len).unwrap()).collect();
        let cache = Cache::<u64>::new().unwrap();
        for key in 0..1000 {
            cache.insert(key, &[key as u8; 1000]).unwrap();
        }
        let calls = counting_syscalls(|count| {
            let each = |times: u64| {
                for i in 0..times {
                    for object in &objects {
                        assert_eq!(object.pin().unwrap().outcome(), Outcome::Intact);
                    }
                    let value = cache.get(&(i % 1000)).unwrap();
                    assert_eq!(value[999], (i % 1000) as u8);
                }
            };
            each(10);
            let ((), calls) = count.of_this_thread(|| each(MILLION as u64));
            assert_eq!(calls, 0, "{:?}", count.by_number());
        });
        calls.unwrap();
    });
}

/// Processor time of the keeper's threads, in clock ticks (1/100 s).
fn keeper_ticks() -> u64 {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            let (name, rest) = stat.rsplit_once(')')?;
            let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
            name.contains("tenure-")
                .then(|| fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
        })
        .sum()
}

#[test]
fn an_idle_keeper_rests() {
    undisturbed(this_test!(), pressure, || {
        let object = Volatile::new(1 << 20).unwrap();
        // Offered, and nothing to do from then on.
        assert!(waited_for(Duration::from_secs(5), || tenure::stats().offered > 0));
        std::thread::sleep(Duration::from_millis(300));
        let (rounds, ticks) = (tenure::stats().total.keeper_rounds, keeper_ticks());
        let start = Instant::now();
        std::thread::sleep(Duration::from_secs(4));
        let pressure = tenure::stats().total.pressure_events;
        let rounds = tenure::stats().total.keeper_rounds - rounds;
        let most = 2 + start.elapsed().as_secs() + pressure;
        assert!(rounds <= most, "{rounds} rounds of at most {most}, {pressure} pressure events");
        let ticks = keeper_ticks().saturating_sub(ticks);
        assert!(ticks <= 2, "{} ms of processor", ticks * 10);
        drop(object);
        // With no range left it does not wake at all.
        std::thread::sleep(Duration::from_millis(1500));
        let rounds = tenure::stats().total.keeper_rounds;
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(tenure::stats().total.keeper_rounds, rounds);
        // It wakes again for the next one.
        let _object = Volatile::new(1 << 20).unwrap();
        assert!(waited_for(Duration::from_secs(5), || tenure::stats().offered > 0));
    });
}

/// The vDSO does not serve that clock.
#[test]
fn a_filter_that_refuses_the_clock_of_a_thread_stops_no_worker() {
    promised(this_test!(), || {
        let filter = Filter::new().refuse(Call::Number(libc::SYS_clock_gettime), Errno::PERM);
        or_skip!(filter.install_this_thread());
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let object = Volatile::new(PAGE).unwrap();
        assert!(waited(|| tenure::stats().offered == 1));
        drop(object.pin().unwrap());
        assert!(waited(|| tenure::stats().offered == 1), "not again");
    });
}
