//! The work of mimalloc-bench's malloc-large: twenty buffers of 5 to 25 MiB. A random one is
//! replaced by a new, zeroed one, again and again.

#![allow(unsafe_code, reason = "reads and writes blocks of its own")]

use super::memory::{Block, Source};
use super::random::Random;
use super::usage::{kept, Usage};
use super::{wrong, Answer};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Instant;

const BUFFERS: usize = 20;

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Large {
    /// Buffers replaced; 2000 in the original.
    pub replacements: u64,
    /// The smallest buffer, in bytes; 5 MiB in the original.
    pub min_bytes: usize,
    /// The largest, 25 MiB in the original.
    pub max_bytes: usize,
    /// When to read the resident memory, in milliseconds after everything was freed.
    pub look_after_ms: Vec<u64>,
}

impl Large {
    pub(super) fn run(&self) -> io::Result<Answer> {
        let mut random = Random::new(42);
        let mut buffers: [Option<Block>; BUFFERS] = [const { None }; BUFFERS];
        let (began, before) = (Instant::now(), Usage::now());
        for _ in 0..self.replacements {
            let at = random.below(BUFFERS);
            let len = self.min_bytes + random.below(self.max_bytes - self.min_bytes + 1);
            let block = Block::new(len, Source::Malloc)?;
            // As `make_unique<char[]>(len)` does, even for memory that is known to be zero.
            block.fill(0);
            // The new buffer exists before the old one goes, as in an assignment.
            buffers[at] = Some(block);
        }
        let (seconds, usage) = (began.elapsed().as_secs_f64(), Usage::now().since(before));
        for block in buffers.iter().flatten() {
            check(block)?;
        }
        drop(buffers);
        let kept = kept(&self.look_after_ms)?;
        Ok(Answer { done: self.replacements, seconds, usage, kept, ..Answer::default() })
    }
}

/// Checks a byte in each page, to find writes by other code.
fn check(block: &Block) -> io::Result<()> {
    for at in (0..block.len()).step_by(4096) {
        // SAFETY: in the block, which was filled.
        if unsafe { block.addr().add(at).read() } != 0 {
            return Err(wrong(format!("byte {at} of {} is not zero", block.len())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_replaced() {
        let large = Large {
            replacements: 60,
            min_bytes: 1 << 18,
            max_bytes: 1 << 20,
            look_after_ms: vec![0],
        };
        let answer = large.run().unwrap();
        assert_eq!((answer.done, answer.kept.len()), (60, 1));
        assert!(answer.seconds > 0.0);
    }

    #[test]
    fn a_strange_byte_is_noticed() {
        let block = Block::new(1 << 20, Source::Mmap).unwrap();
        check(&block).unwrap();
        // SAFETY: byte 8192 is inside the block, to which nothing refers.
        unsafe { block.addr().add(8192).write(1) };
        assert_eq!(check(&block).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
