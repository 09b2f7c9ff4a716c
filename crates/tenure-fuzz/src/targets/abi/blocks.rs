//! Blocks of the pool: only the owner changes their bytes.

use super::calls::{Calls, P};
use super::choose::{check, handle, odd, once_in};
use crate::os::page_size;
use arbitrary::Unstructured;

struct Block {
    at: usize,
    len: usize,
    tag: u64,
}

#[derive(Default)]
pub struct Blocks(Vec<Block>, u64);

/// Only the first part of a block is checked.
const MOST: usize = 1 << 20;

impl Block {
    /// The first word of each page, as far as one fits.
    fn words(&self) -> impl Iterator<Item = *mut u64> {
        let at = self.at;
        (0..self.len.min(MOST).saturating_sub(7))
            .step_by(page_size())
            .map(move |n| (at + n) as *mut u64)
    }

    fn fill(&self) {
        for (n, word) in self.words().enumerate() {
            // SAFETY: a word of a block that is in use.
            unsafe { word.write_volatile(self.tag + n as u64) };
        }
    }

    fn check(&self, len: usize) -> Result<(), String> {
        let shorter = Block { len: len.min(self.len), ..*self };
        for (n, word) in shorter.words().enumerate() {
            // SAFETY: words of a block that is in use.
            let found = unsafe { word.read_volatile() };
            let wanted = self.tag + n as u64;
            check(found == wanted, || {
                format!("WRONG BYTES: block page {n}: {found:#x}, not {wanted:#x}")
            })?;
        }
        Ok(())
    }
}

fn size(input: &mut Unstructured<'_>) -> usize {
    match input.int_in_range(0..=7).unwrap_or(1) {
        0 => odd(input),
        1 => input.int_in_range(0..=64).unwrap_or(1) << 20 >> 2,
        _ => input.int_in_range(0..=300_000).unwrap_or(1),
    }
}

impl Blocks {
    pub fn step(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        match input.int_in_range(0..=9).unwrap_or(0) {
            0..=3 => self.make(calls, input),
            4 | 5 => self.resize(calls, input),
            6 | 7 => self.free(calls, input),
            8 => self.ask(calls, input),
            _ => settings(calls, input),
        }
    }

    fn make(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        if self.0.len() >= 8 {
            return Ok(());
        }
        let (size, kind, align) = (size(input), input.int_in_range(0..=2).unwrap_or(0), odd(input));
        let count = if once_in(input, 8) { odd(input) } else { 1 };
        // SAFETY: every size is allowed.
        let at = unsafe {
            match kind {
                0 => (calls.alloc)(size),
                1 => (calls.calloc)(count, size),
                _ => (calls.aligned_alloc)(align, size),
            }
        };
        if at.is_null() {
            return Ok(());
        }
        let len = if kind == 1 { count.saturating_mul(size) } else { size };
        check(len <= 1 << 40, || format!("a block of {len:#x} bytes was made"))?;
        check(kind != 2 || at as usize % align == 0, || {
            format!("{at:?} is not aligned to {align}")
        })?;
        self.1 += 1 << 20;
        let block = Block { at: at as usize, len, tag: self.1 };
        if kind == 1 {
            // SAFETY: words of a block that is in use.
            let is_zero = block.words().all(|word| unsafe { word.read_volatile() } == 0);
            check(is_zero, || "WRONG BYTES: calloc's block is not zeros".into())?;
        }
        let overlaps = |other: &Block| {
            let ends = (block.at + block.len.max(1), other.at + other.len.max(1));
            block.at < ends.1 && other.at < ends.0
        };
        check(!self.0.iter().any(overlaps), || "WRONG BYTES: a block has two owners".into())?;
        block.fill();
        self.0.push(block);
        Ok(())
    }

    fn resize(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let size = size(input);
        let Some(at) = handle(input, self.0.len()) else { return Ok(()) };
        let block = &mut self.0[at];
        block.check(block.len)?;
        // SAFETY: a live block, which is used at its new place only.
        let new = unsafe { (calls.realloc)(block.at as P, size) };
        if new.is_null() {
            // It is unchanged; or size 0 has freed it, as realloc does.
            return check(size > 0, || "realloc to nothing returned NULL".into())
                .and_then(|()| block.check(block.len));
        }
        let before = block.len;
        (block.at, block.len) = (new as usize, size);
        block.check(before)?;
        block.fill();
        Ok(())
    }

    fn free(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let Some(at) = handle(input, self.0.len()) else {
            // SAFETY: NULL is allowed.
            unsafe { (calls.free)(std::ptr::null_mut()) };
            return Ok(());
        };
        let block = self.0.swap_remove(at);
        block.check(block.len)?;
        // SAFETY: a live block, which is not used any more.
        unsafe { (calls.free)(block.at as P) };
        Ok(())
    }

    fn ask(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let any = odd(input) as P;
        // SAFETY: both calls take any address, and read nothing there.
        let (usable, owns) = unsafe { ((calls.usable_size)(any), (calls.pool_owns)(any)) };
        check(usable == 0 && owns == 0, || format!("{any:?} is the pool's: {usable}, {owns}"))?;
        let Some(at) = handle(input, self.0.len()) else { return Ok(()) };
        let block = &self.0[at];
        // SAFETY: both calls take any address.
        let (usable, owns, inside) = unsafe {
            let at = block.at as P;
            ((calls.usable_size)(at), (calls.pool_owns)(at), (calls.usable_size)(at.byte_add(1)))
        };
        check(usable >= block.len && owns == 1 && inside == 0, || {
            format!("{usable}, {owns}, {inside}")
        })
    }

    pub fn end(self, calls: &Calls) -> Result<(), String> {
        for block in self.0 {
            block.check(block.len)?;
            // SAFETY: a live block, which is not used any more.
            unsafe { (calls.free)(block.at as P) };
        }
        // SAFETY: NULL restores the defaults.
        unsafe { (calls.pool_configure)(std::ptr::null_mut()) };
        Ok(())
    }
}

fn settings(calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
    let size = if once_in(input, 3) { odd(input).min(40) as u64 } else { 40 };
    let [offer, back, most, huge] = [0; 4].map(|_| odd(input) as u64);
    let opts = [size, offer, back, most, huge & 0x1_0000_0001];
    // SAFETY: the structure is as long as it says at least.
    let _ = unsafe {
        (calls.pool_trim)();
        (calls.pool_configure)(opts.as_ptr().cast_mut().cast())
    };
    Ok(())
}
