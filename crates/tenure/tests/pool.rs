//! The pool's interface and errors.

use std::alloc::Layout;
use std::ptr::NonNull;
use tenure::pool::{self, Buffer, Pool, MIN_RUN_BYTES};

fn take(size: usize) -> NonNull<u8> {
    pool::alloc(size, 1, false).expect("there is room")
}

fn bytes<'a>(p: NonNull<u8>, len: usize) -> &'a mut [u8] {
    // SAFETY: the test's own run, of at least that size; filled before it is read.
    unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), len) }
}

fn give(p: NonNull<u8>) {
    // SAFETY: the test's own run, used no more.
    unsafe { pool::free(p) }
}

#[test]
fn a_run_is_reused_last_in_first_out() {
    let a = take(300_000);
    bytes(a, 300_000).fill(1);
    assert!(pool::owns(a.as_ptr()));
    assert!(!pool::owns(&0u8));
    // SAFETY: the test's own run, here and below.
    let size = unsafe { pool::usable_size(a) }.unwrap();
    assert!((300_000..=300_000 * 9 / 8 + 4096).contains(&size), "{size}");
    give(a);
    let b = take(300_000);
    assert_eq!(a, b);
    give(b);
}

#[test]
fn every_size_has_room() {
    let mut held = Vec::new();
    let mut size = 1;
    while size <= 64 << 20 {
        for size in [size, size + 1, size + size / 3] {
            let p = take(size);
            assert_eq!(p.as_ptr() as usize % 4096, 0);
            bytes(p, size)[0] = 1;
            bytes(p, size)[size - 1] = 2;
            held.push((p, size));
        }
        size *= 2;
    }
    held.sort();
    for pair in held.windows(2) {
        assert!(pair[0].0.as_ptr() as usize + pair[0].1 <= pair[1].0.as_ptr() as usize);
    }
    held.into_iter().for_each(|(p, _)| give(p));
}

#[test]
fn alignments_up_to_64_mib() {
    for shift in 0..27 {
        let align = 1usize << shift;
        for size in [1, MIN_RUN_BYTES, 100_000, 5 << 20] {
            let p = pool::alloc(size, align, true).unwrap();
            assert_eq!(p.as_ptr() as usize % align, 0, "{size} at {align}");
            // SAFETY: the test's own run.
            assert!(unsafe { pool::usable_size(p) }.unwrap() >= size);
            bytes(p, size)[size - 1] = 1;
            give(p);
        }
    }
    assert_eq!(pool::alloc(1 << 20, 3, false), None);
}

#[test]
fn zeroed_is_zero_whatever_was_there() {
    for size in [70_000, 200_000, 1 << 20, 5_000_000, 20 << 20] {
        let p = take(size);
        bytes(p, size).fill(0xff);
        give(p);
        for ask in [size, size - 4097, size / 2 + 1] {
            let p = pool::alloc(ask, 1, true).unwrap();
            assert!(bytes(p, ask).iter().all(|b| *b == 0), "{ask} of {size}");
            bytes(p, ask).fill(0xee);
            give(p);
        }
    }
}

#[test]
fn the_allocator_shape() {
    let layout = Layout::from_size_align(1 << 20, 64).unwrap();
    let p = Pool.alloc(layout).unwrap();
    assert_eq!(p.len(), 1 << 20);
    bytes(p.cast(), 1 << 20).fill(5);
    let larger = Layout::from_size_align(9 << 20, 64).unwrap();
    // SAFETY: the test's own block, with its layout.
    unsafe {
        let p = Pool.grow_zeroed(p.cast(), layout, larger).unwrap();
        assert!(bytes(p.cast(), 1 << 20).iter().all(|b| *b == 5));
        assert!(bytes(p.cast(), 9 << 20)[1 << 20..].iter().all(|b| *b == 0));
        let p = Pool.shrink(p.cast(), larger, layout).unwrap();
        assert!(bytes(p.cast(), 1 << 20).iter().all(|b| *b == 5));
        Pool.dealloc(p.cast(), layout);
    }
    let huge = Layout::from_size_align(1 << 60, 1).unwrap();
    let error = Pool.alloc(huge).unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM);
    assert!(error.to_string().contains("largest run"), "{error}");
}

#[test]
fn a_buffer_keeps_its_bytes() {
    let mut buffer = Buffer::copy_of(&[7; 100_000]).unwrap();
    for size in [150_000, 1 << 20, 9 << 20, 80_000, 2 << 20] {
        let old = buffer.len();
        buffer.resize(size).unwrap();
        assert!(buffer[..old.min(size)].iter().all(|b| *b == 7));
        assert!(buffer[old.min(size)..].iter().all(|b| *b == 0));
        assert!(buffer.capacity() >= size);
        buffer.fill(7);
    }
    assert_eq!(Buffer::zeroed(0).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(buffer.resize(0).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(Buffer::zeroed(usize::MAX).unwrap_err().errno(), libc::ENOMEM);
    assert!(buffer.iter().all(|b| *b == 7));
}

#[test]
fn what_usable_size_grants_survives_a_reallocation() {
    for size in [70_000, 300_000, 1_100_000, 2_200_000] {
        let p = take(size);
        // SAFETY: the test's own run.
        let room = unsafe { pool::usable_size(p) }.unwrap();
        assert!(room > size);
        bytes(p, room).fill(7);
        // SAFETY: the test's own run; its old address is used no more.
        let q = unsafe { pool::realloc(p, 4 * room, 1, true) }.unwrap();
        let all = bytes(q, 4 * room);
        assert!(all[..room].iter().all(|byte| *byte == 7), "{size}");
        assert!(all[room..].iter().all(|byte| *byte == 0), "{size}");
        give(q);
    }
}

/// Arrays that begin at one offset of their huge pages meet in the same banks of memory. An array
/// that grows keeps its offset, or its huge pages would be split on the way.
#[test]
fn large_blocks_do_not_lie_alike() {
    const HUGE: usize = 2 << 20;
    let place = |p: NonNull<u8>| p.as_ptr() as usize % HUGE;
    let blocks: Vec<_> = (0..3).map(|_| take(128 << 20)).collect();
    assert!(blocks.iter().all(|p| place(*p) < 16 * 4096 && place(*p) % 4096 == 0));
    let mut places: Vec<_> = blocks.iter().map(|p| place(*p)).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 3, "{blocks:?}");
    for p in blocks {
        let before = place(p);
        // SAFETY: the test's own run; its old address is used no more.
        let q = unsafe { pool::realloc(p, 300 << 20, 1, false) }.unwrap();
        assert_eq!((q == p, place(q)), (false, before));
        give(q);
    }
    // A requested alignment is respected.
    let aligned = pool::alloc(128 << 20, HUGE, false).unwrap();
    assert_eq!(place(aligned), 0);
    give(aligned);
}
