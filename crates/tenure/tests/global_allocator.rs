//! The pool as the allocator of a whole program: this test's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tenure::pool::{self, Pool, WithSmall, MIN_RUN_BYTES};
use tenure_testkit::sweep;

/// The system's allocator, which counts its blocks and refuses none.
struct Counted;

static SMALL: AtomicUsize = AtomicUsize::new(0);
static LARGE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static GLOBAL: WithSmall<Counted> = Pool.with_small(Counted);

// SAFETY: the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let count = if layout.size() < MIN_RUN_BYTES { &SMALL } else { &LARGE };
        count.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller passes a layout whose size is not zero, as the system's allocator
        // requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        assert!(!pool::owns(p), "a block of the pool's came to the other allocator");
        // SAFETY: the caller passes a block of `alloc`, which is the system's, with its layout.
        unsafe { System.dealloc(p, layout) }
    }
}

fn is_pooled<T>(block: &[T]) -> bool {
    pool::owns(block.as_ptr().cast())
}

#[test]
fn large_blocks_are_the_pools_and_small_ones_are_not() {
    let before = SMALL.load(Ordering::Relaxed);
    assert!(!is_pooled(&vec![1u8; MIN_RUN_BYTES - 1]));
    assert!(SMALL.load(Ordering::Relaxed) > before);
    assert!(is_pooled(&vec![1u8; MIN_RUN_BYTES]));
    assert!(is_pooled(&vec![1u64; 1 << 20]));
    assert!(is_pooled(&vec![0u64; 1 << 20])); // by alloc_zeroed
    assert_eq!(LARGE.load(Ordering::Relaxed), 0);
}

#[test]
fn a_vector_keeps_its_bytes_over_the_bound_and_back() {
    let mut bytes: Vec<u8> = Vec::new();
    let mut next = 0u32;
    let wanted = |at: usize| (at as u32).wrapping_mul(2_654_435_761) as u8;
    for target in [10, 70_000, 300, 5_000_000, 65_536, 65_535, 40 << 20, 600_000, 1] {
        bytes.truncate(target);
        bytes.extend((bytes.len()..target).map(wanted));
        bytes.shrink_to_fit();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == wanted(at)), "{target}");
        assert_eq!(is_pooled(&bytes), target >= MIN_RUN_BYTES, "{target}");
        next += 1;
    }
    assert_eq!(next, 9);
}

#[test]
fn zeroed_is_zero_in_a_run_that_others_have_filled() {
    for size in [MIN_RUN_BYTES, 100_001, 1 << 20, 9 << 20] {
        let used = vec![0xffu8; size];
        let at = used.as_ptr();
        drop(used);
        let zeroed = vec![0u8; size];
        assert!(zeroed.iter().all(|byte| *byte == 0), "{size}");
        println!("{size}: the same run: {}", zeroed.as_ptr() == at);
    }
}

/// A type with an alignment above a page.
#[repr(align(32768))]
#[derive(Clone, Copy)]
struct Wide([u8; 32768]);

#[test]
fn alignments_hold_on_both_sides_of_the_bound_and_over_a_reallocation() {
    let mut wide = Vec::new();
    for count in 1..100usize {
        wide.push(Wide([count as u8; 32768]));
        assert_eq!(wide.as_ptr() as usize % 32768, 0);
        let counted = wide.iter().zip(1..);
        assert!(counted.clone().all(|(one, at)| one.0[0] == at && one.0[32767] == at), "{count}");
    }
    assert!(is_pooled(&wide));
    wide.truncate(1);
    wide.shrink_to_fit();
    assert!(wide.as_ptr() as usize % 32768 == 0 && !is_pooled(&wide) && wide[0].0[9] == 1);
}

/// One block, and its contents.
struct Held {
    p: *mut u8,
    layout: Layout,
    byte: u8,
}

impl Held {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: this test's own block, of that size, which was filled when it was made.
        unsafe { std::slice::from_raw_parts_mut(self.p, self.layout.size()) }
    }

    fn check(&mut self, up_to: usize) {
        let byte = self.byte;
        assert!(self.bytes()[..up_to].iter().all(|there| *there == byte));
        assert_eq!(self.p as usize % self.layout.align(), 0);
    }
}

/// Sizes around the bound and far from it.
fn size(random: u64) -> usize {
    match random % 4 {
        0 => 1 + random as usize % 5000,
        1 => MIN_RUN_BYTES - 50 + random as usize % 100,
        2 => MIN_RUN_BYTES + random as usize % (1 << 20),
        _ => 1 + random as usize % (200 << 10),
    }
}

#[test]
fn random_calls_keep_every_byte() {
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 8
    };
    let mut held: Vec<Held> = Vec::new();
    for round in 0..sweep(3_000, 60_000) {
        let byte = round as u8;
        match next() % 3 {
            0 if held.len() < 40 => {
                let align = 1 << (next() % 14);
                let layout = Layout::from_size_align(size(next()), align).unwrap();
                let zeroed = next() % 2 == 0;
                // SAFETY: the size is not 0.
                let p = unsafe {
                    if zeroed {
                        GLOBAL.alloc_zeroed(layout)
                    } else {
                        GLOBAL.alloc(layout)
                    }
                };
                assert!(!p.is_null());
                let mut new = Held { p, layout, byte: 0 };
                if zeroed {
                    new.check(layout.size());
                }
                // SAFETY: a new block of that size.
                unsafe { p.write_bytes(byte, layout.size()) };
                new.byte = byte;
                held.push(new);
            }
            1 if !held.is_empty() => {
                let at = next() as usize % held.len();
                let one = &mut held[at];
                let (old, new_size) = (one.layout, size(next()));
                // SAFETY: a block of this allocator's with its layout; the size is not 0.
                one.p = unsafe { GLOBAL.realloc(one.p, old, new_size) };
                assert!(!one.p.is_null());
                one.layout = Layout::from_size_align(new_size, old.align()).unwrap();
                one.check(old.size().min(new_size));
                // SAFETY: a block of that size.
                unsafe { one.p.write_bytes(byte, new_size) };
                one.byte = byte;
            }
            _ if !held.is_empty() => {
                let at = next() as usize % held.len();
                let mut one = held.swap_remove(at);
                one.check(one.layout.size());
                // SAFETY: a block of this allocator's with its layout, used no more.
                unsafe { GLOBAL.dealloc(one.p, one.layout) };
            }
            _ => {}
        }
    }
    for mut one in held {
        one.check(one.layout.size());
        // SAFETY: a block of this allocator's with its layout, used no more.
        unsafe { GLOBAL.dealloc(one.p, one.layout) };
    }
}

/// The pages of a dropped block are there for the next one, and a trim gives them back.
#[test]
fn freed_pages_are_reused_and_given_back() {
    pool::prepare().unwrap();
    let before = pool::stats();
    for _ in 0..10 {
        drop(std::hint::black_box(vec![7u8; 24 << 20]));
    }
    let now = pool::stats();
    let reused = now.warm_reuses + now.offered_reuses - before.warm_reuses - before.offered_reuses;
    assert!(reused >= 5, "{now:?}");
    pool::trim();
    assert!(pool::stats().returned_total_bytes > before.returned_total_bytes);
}

#[test]
fn threads_give_back_the_blocks_of_others() {
    let (send, receive) = std::sync::mpsc::sync_channel::<Vec<u8>>(4);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..200usize {
                send.send(vec![round as u8; MIN_RUN_BYTES / 2 + round * 1000]).unwrap();
            }
        });
        for (round, block) in receive.iter().enumerate() {
            assert!(block.iter().all(|byte| *byte == round as u8));
        }
    });
}
