//! A program that needs much memory from time to time, and none in between.

#![allow(unsafe_code, reason = "reads blocks of its own")]

use super::memory::{Block, Source};
use super::{wrong, Answer};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::time::Instant;

/// The memory of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Bytes needed at once.
    pub bytes: usize,
    /// The size of a buffer.
    pub block_bytes: usize,
}

impl Burst {
    /// Does one turn for each byte that arrives, and sends a byte back, until no more arrive.
    pub(super) fn run(&self, go: &mut impl Read, done: &mut impl Write) -> io::Result<Answer> {
        let mut turns = 0;
        let mut seconds = 0.0;
        let mut byte = [0];
        while go.read(&mut byte)? == 1 {
            let start = Instant::now();
            self.turn(turns as u8 | 1)?;
            seconds += start.elapsed().as_secs_f64();
            turns += 1;
            done.write_all(b".")?;
            done.flush()?;
        }
        Ok(Answer { done: turns, seconds, ..Answer::default() })
    }

    /// Takes the memory, fills it, checks it, frees it.
    fn turn(&self, byte: u8) -> io::Result<()> {
        let blocks: Vec<Block> = (0..self.bytes / self.block_bytes)
            .map(|_| {
                let block = Block::new(self.block_bytes, Source::Malloc)?;
                block.fill(byte);
                Ok(block)
            })
            .collect::<io::Result<_>>()?;
        for block in &blocks {
            for at in (0..block.len()).step_by(4096) {
                // SAFETY: in the block, which was filled.
                let found = unsafe { block.addr().add(at).read() };
                if found != byte {
                    return Err(wrong(format!("byte {at} of a buffer is {found}, was {byte}")));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_for_each_byte() {
        let burst = Burst { bytes: 4 << 20, block_bytes: 1 << 20 };
        let mut said = Vec::new();
        let answer = burst.run(&mut &b"gogo"[..], &mut said).unwrap();
        assert_eq!((answer.done, said.as_slice()), (4, &b"...."[..]));
    }
}
