//! Values of plain types.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tenure::cache::Plain;
use tenure::{Cache, ErrorKind};

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Record {
    id: u64,
    weight: f32,
    flags: [u16; 2],
}
// SAFETY: 8, 4 and 4 bytes: no padding, and any bytes are a `Record`.
unsafe impl Plain for Record {}

fn record(id: u64) -> Record {
    Record { id, weight: id as f32 / 2.0, flags: [id as u16, !(id as u16)] }
}

#[test]
fn values_of_a_type_come_back_as_they_were_wherever_they_lie() {
    // With every combination of times before the value.
    let hour = Duration::from_secs(3600);
    for caches in [
        Cache::<u64>::builder(),
        Cache::builder().time_to_live(hour),
        Cache::builder().time_to_idle(hour),
    ] {
        let cache = caches.build().unwrap();
        let records = cache.clone().typed::<Record>();
        // Byte lengths among them: the next value still begins at a multiple of 8. 40,000 records
        // have a segment of their own.
        for (key, count) in [0, 1, 3, 1000, 40_000].into_iter().enumerate() {
            cache.insert(1000 + key as u64, &vec![1; 13 + key]).unwrap();
            let values: Vec<Record> = (0..count).map(record).collect();
            records.insert(key as u64, &values).unwrap();
        }
        for (key, count) in [0, 1, 3, 1000, 40_000].into_iter().enumerate() {
            let found = records.get(&(key as u64)).unwrap();
            assert_eq!(found.len(), count as usize);
            assert_eq!(found.as_ptr() as usize % align_of::<Record>(), 0);
            assert!((0..count).all(|id| found[id as usize] == record(id)));
            let bytes = cache.get(&(key as u64)).unwrap();
            assert_eq!(bytes.as_ptr(), found.as_ptr().cast(), "the cache's own memory");
        }
    }
}

#[test]
fn a_value_is_made_once_and_outlives_its_cache() {
    let cache = Cache::<u64>::new().unwrap().typed::<f64>();
    let made = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let value = cache.get_or_insert_with(&1, || {
                    made.fetch_add(1, Ordering::Relaxed);
                    vec![0.5; 100]
                });
                assert_eq!(value.unwrap()[..], [0.5; 100]);
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
    let owned = cache.get(&1).unwrap().into_owned();
    let other = owned.clone();
    drop((cache, owned));
    std::thread::spawn(move || assert_eq!(other[..], [0.5; 100])).join().unwrap();
}

#[test]
fn values_that_are_not_in_the_cache_are_shown_all_the_same() {
    let cache = Cache::<u64>::new().unwrap().typed::<u64>();
    for len in 0..40 {
        let value = cache
            .get_or_insert_with(&len, || {
                cache.cache().remove(&len); // so that it is not kept
                (0..len).collect()
            })
            .unwrap();
        assert!(value.iter().copied().eq(0..len));
        assert_eq!(value.as_ptr() as usize % 8, 0);
        assert!(value.into_owned().iter().copied().eq(0..len));
    }
}

#[test]
fn bytes_that_are_no_whole_number_of_values_are_refused() {
    let cache = Cache::<u64>::new().unwrap();
    let typed = cache.clone().typed::<u32>();
    cache.insert(1, b"seven b").unwrap();
    assert!(typed.get(&1).is_none());
    let refused = typed.get_or_insert_with(&1, || vec![7]).unwrap_err();
    assert_eq!((refused.kind(), refused.errno()), (ErrorKind::BadRange, libc::EINVAL));
    assert!(refused.to_string().contains("7 bytes"), "{refused}");
    assert!(cache.remove(&1));
    assert_eq!(typed.get_or_insert_with(&1, || vec![7]).unwrap()[..], [7]);
}
