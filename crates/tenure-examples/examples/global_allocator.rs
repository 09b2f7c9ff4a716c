//! The pool as the allocator of a whole program: a picture service whose frames come and go as
//! plain `Vec`s. Frames come from the pool, and small blocks from the system.
//!
//! `cargo run --release -p tenure-examples --example global_allocator`

use std::alloc::{GlobalAlloc, Layout, System};
use std::time::{Duration, Instant};
use tenure::pool::{Pool, WithSmall};

#[global_allocator]
static GLOBAL: WithSmall<System> = Pool.with_small(System); // in place of `System`: mimalloc, jemalloc, ...

/// A frame of 1080p.
const FRAME: usize = 1920 * 1080 * 4;

/// A decoder: three frames that are alive together, and some small blocks.
fn decode(number: u8) -> u64 {
    let luma = vec![number; FRAME];
    let chroma = vec![number / 2; FRAME / 2];
    let mut out: Vec<u8> = Vec::new();
    // Grows as it is filled: from some size on the pool moves its pages, and copies nothing.
    for line in luma.chunks(1920 * 4).zip(chroma.chunks(1920 * 2)) {
        out.extend_from_slice(line.0);
        out.extend_from_slice(line.1);
    }
    let name = format!("frame {number}");
    out.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>() + name.len() as u64
}

/// Page faults of this thread so far.
fn faults() -> i64 {
    // SAFETY: the kernel fills a structure of this function's, all of whose fields are numbers.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt
    }
}

/// Two blocks of a frame's size that are alive together, filled and freed, again and again. Returns
/// how long a round took, and how many page faults it had.
fn blocks(allocator: &impl GlobalAlloc, rounds: u8) -> (Duration, i64) {
    let layout = Layout::array::<u8>(FRAME).expect("a frame fits into memory");
    let (start, before) = (Instant::now(), faults());
    for number in 0..rounds {
        // SAFETY: the layout is not empty; each block has it, is filled within it, and is freed
        // once.
        unsafe {
            let two = [allocator.alloc(layout), allocator.alloc(layout)];
            for block in two {
                assert!(!block.is_null());
                std::hint::black_box(block).write_bytes(number, FRAME);
            }
            two.iter().for_each(|block| allocator.dealloc(*block, layout));
        }
    }
    (start.elapsed() / u32::from(rounds), (faults() - before) / i64::from(rounds))
}

fn main() -> tenure::Result<()> {
    tenure::pool::prepare()?; // the thread that gives idle frames to the kernel
    (0..10).for_each(|number| _ = std::hint::black_box(decode(number)));
    let stats = tenure::pool::stats();
    println!("10 frames: {} blocks, {} of them warm from before", stats.allocs, stats.warm_reuses);
    for (name, (time, faults)) in
        [("the pool", blocks(&GLOBAL, 60)), ("the system's allocator", blocks(&System, 60))]
    {
        println!("two blocks of a frame's size by {name}: {time:?}, {faults} page faults");
    }
    Ok(())
}

#[test]
fn frames_are_the_pools_and_small_blocks_are_not() {
    assert!(tenure::pool::owns(vec![1u8; FRAME].as_ptr()));
    assert!(tenure::pool::owns(vec![0u64; FRAME].as_ptr().cast()));
    assert!(!tenure::pool::owns(vec![1u8; 1000].as_ptr()));
}

#[test]
fn a_frame_finds_its_pages_there() {
    tenure::pool::prepare().unwrap();
    let before = tenure::pool::stats();
    (0..10).for_each(|number| _ = std::hint::black_box(decode(number)));
    let now = tenure::pool::stats();
    let reused = now.warm_reuses + now.offered_reuses - before.warm_reuses - before.offered_reuses;
    assert!(reused >= 20, "{now:?}");
}

#[test]
fn the_story_runs() {
    main().unwrap();
}
