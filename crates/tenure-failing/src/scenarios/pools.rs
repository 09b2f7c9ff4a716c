//! The pool: blocks of many sizes, growth, zeroed ones, trims, children, buffers.

use super::memory::{all_are, MIB};
use crate::stage::{allowed, forked, over, refuses};
use libc::{EAGAIN, ENOMEM};
use std::ptr::NonNull;
use std::time::Duration;
use tenure::pool::{self, Buffer, Settings};

struct Block {
    at: NonNull<u8>,
    size: usize,
    seed: u8,
}

impl Block {
    fn new(size: usize, seed: u8, zeroed: bool) -> Option<Block> {
        let block = Block { at: pool::alloc(size, 64, zeroed)?, size, seed };
        assert!(!zeroed || all_are(block.bytes(), 0), "a zeroed block is not zero");
        block.sign();
        Some(block)
    }

    #[allow(clippy::mut_from_ref)] // raw memory that one function uses at a time
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: the block belongs to this value, and is large enough.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.size) }
    }

    fn sign(&self) {
        self.bytes().fill(self.seed);
    }

    fn check(&self) {
        assert!(all_are(self.bytes(), self.seed), "block {} of {} bytes", self.seed, self.size);
    }

    fn grow(&mut self, size: usize) {
        // SAFETY: the block belongs to this value, and its old address is used no more.
        let Some(at) = (unsafe { pool::realloc(self.at, size, 64, true) }) else { return };
        let old = std::mem::replace(&mut self.size, size);
        self.at = at;
        let kept = old.min(size);
        assert!(all_are(&self.bytes()[..kept], self.seed), "a block that grew lost its bytes");
        assert!(all_are(&self.bytes()[kept..], 0), "a block that grew is not zero");
        self.sign();
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the block belongs to this value, and is used no more.
        unsafe { pool::free(self.at) };
    }
}

pub fn life() {
    let settings = Settings::default()
        .with_offer_after(Duration::ZERO)
        .with_return_after(Duration::from_millis(2));
    pool::configure(settings);
    allowed(pool::prepare(), &[EAGAIN, ENOMEM]);
    let mut held: Vec<Block> = Vec::with_capacity(16);
    for seed in 1..=24u8 {
        let size = [70_000, 130_000, 300_000, 600_000, MIB][seed as usize % 5];
        held.extend(Block::new(size, seed, seed % 3 == 0));
        if seed % 4 == 0 && !held.is_empty() {
            let which = seed as usize % held.len();
            let size = held[which].size * 3 / 2 + 4096;
            held[which].grow(size);
        }
        if held.len() > 4 {
            drop(held.swap_remove(seed as usize % 4));
        }
        if seed % 13 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        if seed == 16 {
            let ended = forked(|| {
                held.iter().for_each(Block::check);
                drop(Block::new(300_000, 200, true));
                held.clear();
            });
            assert!(ended != Some(false), "the child was wrong");
            pool::trim();
        }
    }
    if let Some(mut buffer) = allowed(Buffer::zeroed(MIB), &[ENOMEM]) {
        assert!(all_are(&buffer, 0));
        buffer.fill(9);
        allowed(buffer.resize(2 * MIB), &[ENOMEM]);
        assert!(all_are(&buffer[..MIB], 9));
    }
    over();
    held.iter().for_each(Block::check);
    held.clear();
    // Memory is available again. After a moment tenure asks again for resources that the kernel
    // refused at the first use.
    std::thread::sleep(Duration::from_millis(20));
    for seed in [0, 1] {
        // Reserved memory is made accessible by mprotect.
        let is_there = Block::new(MIB, seed, true).is_some() || refuses("mprotect");
        assert!(is_there, "no block after the failures");
    }
    pool::trim();
}
