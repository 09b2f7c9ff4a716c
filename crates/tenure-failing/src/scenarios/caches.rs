//! A cache: values of many sizes, held ones, made ones, purges, children.

use super::memory::{all_are, byte};
use crate::stage::{allowed, forked, over, soon};
use libc::{EAGAIN, EDEADLK, ENOMEM, EOPNOTSUPP};
use tenure::Cache;

const KEYS: usize = 40;

fn length(key: usize) -> usize {
    match key {
        7 | 8 => 700_000,
        _ => 300 + key * 2_000,
    }
}

fn value(key: usize) -> Vec<u8> {
    vec![byte(key); length(key)]
}

fn check(key: usize, bytes: &[u8]) {
    let right = bytes.len() == length(key) && all_are(bytes, byte(key));
    assert!(right, "key {key}: {} bytes, first {:?}", bytes.len(), bytes.first());
}

pub fn life() {
    let built = Cache::<usize>::builder().ceiling(12 << 20).build();
    let Some(cache) = allowed(built, &[EAGAIN, ENOMEM, EOPNOTSUPP]) else { return };
    let mut held = Vec::new();
    for key in 0..KEYS {
        if allowed(cache.insert(key, &value(key)), &[ENOMEM]).is_none() {
            assert!(cache.get(&key).is_none(), "an insert that failed left a value");
        }
        if key % 8 == 0 {
            held.extend(cache.get(&key).map(|value| (key, value.into_owned())));
        }
        if key % 16 == 15 {
            // The worker's turn: its offers are purged at once.
            soon(|| tenure::stats().offered > 0);
        }
        for old in (0..=key).step_by(3) {
            if let Some(value) = cache.get(&old) {
                check(old, &value);
            }
        }
    }
    for key in (0..KEYS).step_by(2) {
        let made = cache.get_or_insert_with(&key, || value(key));
        if let Some(value) = allowed(made, &[EDEADLK, ENOMEM]) {
            check(key, &value);
        }
    }
    let ended = forked(|| {
        (0..KEYS).for_each(|key| cache.get(&key).iter().for_each(|value| check(key, value)));
        let _ = cache.insert(99, &value(99));
        cache.get(&99).iter().for_each(|value| check(99, value));
    });
    assert!(ended != Some(false), "the child was wrong");
    cache.remove(&3);
    assert!(cache.get(&3).is_none());
    over();
    cache.clear();
    for (key, value) in &held {
        check(*key, value);
    }
    // When the failures end, the errors end, too.
    for key in 0..4 {
        allowed(cache.insert(key, &value(key)), &[]);
        let made = cache.get_or_insert_with(&key, || value(key));
        check(key, &allowed(made, &[]).unwrap());
    }
}
