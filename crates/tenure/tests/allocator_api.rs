//! The pool as an `Allocator` of the `allocator-api2` crate.

use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use std::alloc::{Layout, System};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use tenure::pool::{self, Pool, WithSmall, MIN_RUN_BYTES};
use tenure_testkit::sweep;

const POOL: WithSmall<System> = Pool.with_small(System);

/// An allocator that always fails.
#[derive(Clone, Copy)]
struct Empty;

// SAFETY: it gives out no block.
unsafe impl Allocator for Empty {
    fn allocate(&self, _: Layout) -> Result<NonNull<[u8]>, AllocError> {
        Err(AllocError)
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: Layout) {
        panic!("nothing was given out")
    }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn bytes(block: NonNull<[u8]>) -> &'static mut [u8] {
    // SAFETY: the test's own block. It is used while it is allocated, and filled or zeroed before
    // it is read.
    unsafe { &mut *block.as_ptr() }
}

#[test]
fn a_collection_has_its_large_blocks_from_the_pool() {
    let mut frame: Vec<u8, WithSmall<System>> = Vec::new_in(POOL);
    frame.resize(100, 1);
    assert!(!pool::owns(frame.as_ptr()));
    frame.resize(5 << 20, 2);
    assert!(pool::owns(frame.as_ptr()));
    assert!(pool::keeper_runs());
    assert!(frame[..100].iter().all(|byte| *byte == 1) && frame[100..].iter().all(|b| *b == 2));
    frame.truncate(100);
    frame.shrink_to_fit();
    assert!(!pool::owns(frame.as_ptr()) && frame.iter().all(|byte| *byte == 1));
    let boxed = Box::new_in([3u8; 100_000], POOL);
    assert!(pool::owns(boxed.as_ptr()) && boxed.iter().all(|byte| *byte == 3));
    let nothing: Vec<(), WithSmall<System>> = Vec::new_in(POOL);
    assert_eq!(nothing.len(), 0);
}

#[test]
fn blocks_of_no_bytes_grow_and_shrink() {
    for (size, align) in [(100, 1), (MIN_RUN_BYTES, 64), (1 << 20, 8192)] {
        let (none, some) = (layout(0, align), layout(size, align));
        let p = POOL.allocate(none).unwrap();
        assert_eq!(p.len(), 0);
        // SAFETY: each block is the pool's, with its present layout, and is used no more
        // afterwards.
        unsafe {
            let grown = POOL.grow_zeroed(p.cast(), none, some).unwrap();
            assert!(grown.len() >= size && bytes(grown).iter().all(|byte| *byte == 0));
            assert_eq!(grown.cast::<u8>().as_ptr() as usize % align, 0);
            let shrunk = POOL.shrink(grown.cast(), some, none).unwrap();
            POOL.deallocate(shrunk.cast(), none);
        }
    }
}

#[test]
fn a_block_gets_another_alignment_as_it_grows_and_shrinks() {
    let (small, large) = (layout(MIN_RUN_BYTES, 1), layout(3 << 20, 2 << 20));
    let p = POOL.allocate(small).unwrap();
    bytes(p).fill(7);
    // SAFETY: each block is the pool's, with its present layout, and is used no more afterwards.
    unsafe {
        let p = POOL.grow_zeroed(p.cast(), small, large).unwrap();
        assert_eq!(p.cast::<u8>().as_ptr() as usize % (2 << 20), 0);
        assert!(bytes(p)[..MIN_RUN_BYTES].iter().all(|byte| *byte == 7));
        assert!(bytes(p)[MIN_RUN_BYTES..].iter().all(|byte| *byte == 0));
        let wide = layout(100, 4096);
        let p = POOL.shrink(p.cast(), large, wide).unwrap();
        assert_eq!(p.cast::<u8>().as_ptr() as usize % 4096, 0);
        assert!(bytes(p)[..100].iter().all(|byte| *byte == 7));
        POOL.deallocate(p.cast(), wide);
    }
}

#[test]
fn where_the_other_allocator_has_nothing_a_block_stays_as_it_is() {
    let only_large: WithSmall<Empty> = Pool.with_small(Empty);
    let large = layout(1 << 20, 1);
    assert!(only_large.allocate(layout(100, 1)).is_err());
    let p = only_large.allocate(large).unwrap();
    bytes(p).fill(7);
    // SAFETY: the block is the allocator's, with this layout.
    unsafe {
        assert!(only_large.shrink(p.cast(), large, layout(100, 1)).is_err());
        assert!(bytes(p).iter().all(|byte| *byte == 7));
        assert!(only_large.grow(p.cast(), large, layout(isize::MAX as usize, 1)).is_err());
        assert!(bytes(p).iter().all(|byte| *byte == 7));
        only_large.deallocate(p.cast(), large);
    }
}

/// Compared with a map of each block's contents.
#[test]
fn random_calls_keep_every_byte() {
    let mut random = 0x0dd_ba11_5eed_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 8) as usize
    };
    let mut size = {
        let mut next = next;
        move || match next() % 4 {
            0 => next() % 5000,
            1 => MIN_RUN_BYTES - 50 + next() % 100,
            2 => MIN_RUN_BYTES + next() % (1 << 20),
            _ => next() % (200 << 10),
        }
    };
    let mut held: BTreeMap<usize, (NonNull<u8>, Layout, u8)> = BTreeMap::new();
    let check = |p: NonNull<u8>, len: usize, byte: u8| {
        let there = bytes(NonNull::slice_from_raw_parts(p, len));
        assert!(there.iter().all(|found| *found == byte));
    };
    for round in 0..sweep(3_000, 60_000) as usize {
        let byte = round as u8;
        let zeroed = next() % 2 == 0;
        let wanted = layout(size(), 1 << (next() % 14));
        let one = held.keys().nth(next() % 40).copied();
        // SAFETY: blocks are the allocator's, with the layout in the map, and are used no more
        // after they were freed or resized.
        let new = unsafe {
            match one.map(|one| held.remove(&one).expect("just found")) {
                None => {
                    let p =
                        if zeroed { POOL.allocate_zeroed(wanted) } else { POOL.allocate(wanted) };
                    let p = p.unwrap();
                    assert!(!zeroed || bytes(p).iter().all(|byte| *byte == 0));
                    Some(p)
                }
                Some((p, old, was)) if next() % 3 > 0 => {
                    check(p, old.size(), was);
                    let grown = match wanted.size() >= old.size() {
                        true if zeroed => POOL.grow_zeroed(p, old, wanted),
                        true => POOL.grow(p, old, wanted),
                        false => POOL.shrink(p, old, wanted),
                    };
                    let grown = grown.unwrap();
                    check(grown.cast(), old.size().min(wanted.size()), was);
                    if zeroed && wanted.size() > old.size() {
                        let added = &bytes(grown)[old.size()..wanted.size()];
                        assert!(added.iter().all(|byte| *byte == 0));
                    }
                    Some(grown)
                }
                Some((p, old, was)) => {
                    check(p, old.size(), was);
                    POOL.deallocate(p, old);
                    None
                }
            }
        };
        if let Some(p) = new {
            assert_eq!(p.cast::<u8>().as_ptr() as usize % wanted.align(), 0);
            assert!(p.len() >= wanted.size());
            bytes(p)[..wanted.size()].fill(byte);
            held.insert(round, (p.cast(), wanted, byte));
        }
    }
    for (p, layout, byte) in held.into_values() {
        check(p, layout.size(), byte);
        // SAFETY: the block is the allocator's, with the layout in the map, and is used no more.
        unsafe { POOL.deallocate(p, layout) };
    }
}
