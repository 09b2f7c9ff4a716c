//! The memory of a cache beyond its values' bytes.

use super::contestants::{Maker, MAKERS};
use super::store::{blank, Store};
use crate::harness::{settled_rss, Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::Options;
use std::io;

const VALUE_LEN: usize = 4 << 10;

/// Bookkeeping may take 1 % of the bytes of a cache of 4 KiB values.
const GOAL: f64 = VALUE_LEN as f64 / 100.0;

/// Bytes beyond the values' own, per value of 4 KiB: the growth of the process's resident memory
/// (so that allocator rounding, unfilled segments and tables all count) and, if a cache has one,
/// its own count.
pub(super) fn per_value(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let values = options.size(50_000, 10_000);
    let mut grown =
        Comparison::new("resident bytes beyond the value, per 4 KiB value", Unit::Bytes);
    for &(name, role, make) in MAKERS {
        grown = grown.with(Contestant::new(name, role, move || growth(make, values)));
    }
    report.compare_times(grown, 3)?;

    let mut own = Comparison::new("bookkeeping bytes by own count, per 4 KiB value", Unit::Bytes);
    for &(name, _, make) in MAKERS.iter().filter(|(_, role, _)| *role == Role::Ours) {
        own = own.with(
            Contestant::new(name, Role::Ours, move || own_count(make, values))
                .goal(Goal::AtMost(GOAL)),
        );
    }
    report.compare_times(own, 1)
}

fn growth(make: Maker, values: usize) -> io::Result<Sample> {
    let before = settled_rss();
    let store = filled(make, values)?;
    let held = store.settled_len();
    let grown = settled_rss().saturating_sub(before) as f64;
    drop(store);
    Ok(Sample::from((grown - (held * VALUE_LEN) as f64) / held as f64).with("values", held as f64))
}

fn own_count(make: Maker, values: usize) -> io::Result<Sample> {
    let store = filled(make, values)?;
    let held = store.settled_len();
    let bytes = store.own_bookkeeping().ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "it does not count its bookkeeping")
    })?;
    Ok(Sample::from(bytes as f64 / held as f64).with("values", held as f64))
}

fn filled(make: Maker, values: usize) -> io::Result<Box<dyn Store>> {
    let store = make(values, VALUE_LEN)?;
    let keys: Vec<u64> = (0..values as u64).collect();
    store.write_each(&keys, &mut blank(VALUE_LEN))?;
    if store.settled_len() == 0 {
        return Err(io::Error::other("the cache kept no value at all"));
    }
    Ok(store)
}
