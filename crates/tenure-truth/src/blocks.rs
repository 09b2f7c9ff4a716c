//! Blocks of the pool that one thread owns: allocated, filled, grown, freed. Only the owner may
//! change a block's bytes.

#![allow(unsafe_code, reason = "asks for memory and gives it back")]

use crate::rng::{mix, Rng};
use crate::tally::{add, tally};
use crate::{doing, wrong};
use std::ptr::NonNull;
use tenure::pool;

struct Block {
    at: NonNull<u8>,
    len: usize,
    salt: u64,
}

/// The blocks of a thread.
#[derive(Default)]
pub struct Blocks(Vec<Block>);

const MOST: usize = 12;
const MOST_BYTES: usize = 12 << 20;
/// Words that are written and checked in each block, besides the first and the last.
const SAMPLE: usize = 64;

impl Block {
    fn word(&self, n: usize) -> u64 {
        mix(self.salt, n as u64) | 1
    }

    /// The places of the checked words: all of them in a small block.
    fn places(&self) -> impl Iterator<Item = usize> {
        let words = self.len / 8;
        let step = (words / SAMPLE).max(1);
        (0..words).step_by(step).chain([words - 1])
    }

    fn write(&self) {
        for n in self.places() {
            // SAFETY: inside the block, which this value owns, and aligned: a block starts at a
            // page's boundary.
            unsafe { self.at.as_ptr().cast::<u64>().add(n).write(self.word(n)) };
        }
    }

    fn read(&self, n: usize) -> u64 {
        // SAFETY: inside the block, which this value owns, and aligned: a block starts at a page's
        // boundary.
        unsafe { self.at.as_ptr().cast::<u64>().add(n).read() }
    }

    fn check(&self, when: &str) {
        let mut words = 0;
        for n in self.places() {
            words += 1;
            if self.read(n) != self.word(n) {
                wrong!("word {n} of a block of {} bytes, {when}: {:#x}", self.len, self.read(n));
            }
        }
        add(&tally().pages, self.len.div_ceil(crate::sys::page_bytes()) as u64);
        add(&tally().bytes, words * 8);
    }

    fn expect_zeros(&self, from: usize) {
        for n in self.places().filter(|n| n * 8 >= from) {
            if self.read(n) != 0 {
                wrong!("word {n} of a zeroed block of {} bytes: {:#x}", self.len, self.read(n));
            }
        }
    }
}

impl Blocks {
    /// One operation that the random numbers choose.
    pub fn step(&mut self, rng: &mut Rng) {
        match rng.below(10) {
            0..=3 => self.ask(rng),
            4..=6 => self.give_back(rng),
            7 => self.grow(rng),
            8 => {
                if let Some(block) = self.0.first() {
                    block.check("looked at");
                }
            }
            _ if rng.once_in(20) => {
                doing!("pool::trim");
                pool::trim();
            }
            _ => {}
        }
    }

    fn ask(&mut self, rng: &mut Rng) {
        let held: usize = self.0.iter().map(|block| block.len).sum();
        let len = ((64 << 10) << rng.below(6)) | (8 * rng.below(1000));
        if self.0.len() >= MOST || held + len > MOST_BYTES {
            return self.give_back(rng);
        }
        let zeroed = rng.once_in(2);
        doing!("pool::alloc");
        let Some(at) = pool::alloc(len, 64, zeroed) else {
            add(&tally().errors, 1);
            return;
        };
        let block = Block { at, len, salt: rng.draw() };
        if zeroed {
            block.expect_zeros(0);
        }
        block.write();
        self.0.push(block);
    }

    fn give_back(&mut self, rng: &mut Rng) {
        if self.0.is_empty() {
            return;
        }
        let block = self.0.swap_remove(rng.below(self.0.len()));
        block.check("given back");
        doing!("pool::free");
        // SAFETY: the block belongs to this thread, and is used no more.
        unsafe { pool::free(block.at) };
    }

    fn grow(&mut self, rng: &mut Rng) {
        if self.0.is_empty() {
            return;
        }
        let which = rng.below(self.0.len());
        let block = &mut self.0[which];
        block.check("to be grown");
        let (old, len) = (block.len, block.len + (4096 << rng.below(7)));
        doing!("pool::realloc");
        // SAFETY: the block belongs to this thread, and its old address is used no more.
        let Some(at) = (unsafe { pool::realloc(block.at, len, 64, true) }) else { return };
        block.at = at;
        // The old bytes at the places of the old length, and zeros behind them.
        block.check("grown");
        block.len = len;
        block.expect_zeros(old.next_multiple_of(8));
        block.write();
    }

    /// Checks all of them and frees them.
    pub fn finish(&mut self) {
        while let Some(block) = self.0.pop() {
            block.check("at the end");
            doing!("pool::free at the end");
            // SAFETY: the block belongs to this thread, and is used no more.
            unsafe { pool::free(block.at) };
        }
    }

    /// In a child: checks that all of them are there.
    pub fn verify(&self) {
        self.0.iter().for_each(|block| block.check("in a child"));
    }
}
