//! `get_or_insert_with`, for a key that is there and for one that is not.

use crate::cache::store::{blank, check, stamp};
use crate::harness::{Comparison, Contestant, Report, Role, Sample, Unit};
use crate::Options;
use std::cell::Cell;
use std::io;
use std::time::Instant;
use tenure::shared::SharedCache;

const VALUE: usize = 1 << 10;

/// Keys of a round: the same ones, or new ones.
fn first_key(is_there: bool, round: &Cell<u64>) -> u64 {
    round.set(round.get() + 1);
    if is_there {
        0
    } else {
        round.get() << 32
    }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a value had wrong bytes")
}

fn time(
    keys: std::ops::Range<u64>,
    mut one: impl FnMut(u64) -> io::Result<bool>,
) -> io::Result<Sample> {
    let number = (keys.end - keys.start) as f64;
    let begun = Instant::now();
    for key in keys {
        if !one(key)? {
            return Err(wrong());
        }
    }
    Ok((begun.elapsed().as_nanos() as f64 / number).into())
}

pub(super) fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let count = options.size(20_000, 500) as u64;
    for is_there in [true, false] {
        let what = if is_there { "a key that is there" } else { "a new key" };
        let title = format!("get_or_insert_with of {what}, 1 KiB values, 1 worker");
        if !options.wants(&title) {
            continue;
        }
        let (shared, private) = (SharedCache::new()?, tenure::Cache::<u64>::new()?);
        let (ours, theirs) = (Cell::new(0), Cell::new(0));
        let made = |key| {
            let mut value = blank(VALUE);
            stamp(&mut value, key);
            value
        };
        let comparison = Comparison::new(title, Unit::Nanoseconds)
            .with(Contestant::new("tenure, one SharedCache", Role::Ours, || {
                let first = first_key(is_there, &ours);
                time(first..first + count, |key| {
                    let value = shared.get_or_insert_with(&key.to_le_bytes(), || made(key))?;
                    Ok(check(&value, key))
                })
            }))
            .with(Contestant::new("tenure, a private Cache each", Role::Reference, || {
                let first = first_key(is_there, &theirs);
                time(first..first + count, |key| {
                    let value = private.get_or_insert_with(&key, || made(key))?;
                    Ok(check(&value, key))
                })
            }));
        report.compare(comparison, 9)?;
    }
    Ok(())
}
