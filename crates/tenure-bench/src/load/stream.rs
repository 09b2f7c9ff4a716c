//! STREAM's work: measures the speed of memory, in four loops over long vectors.

#![allow(unsafe_code, reason = "reads and writes blocks of its own")]

use super::memory::{Block, Source};
use super::usage::Usage;
use super::{wrong, Answer};
use crate::harness::parallel;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Instant;

/// The size and the number of repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Threads, each with an equal part of each vector.
    pub threads: usize,
    /// Bytes of each of the three vectors: many times the last cache.
    pub vector_bytes: usize,
    /// How often each loop runs; the first is not counted.
    pub repeats: usize,
}

/// The result of a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// `copy`, `scale`, `add` or `triad`.
    pub kernel: String,
    /// Its shortest pass in nanoseconds.
    pub min_ns: f64,
    /// Bytes read and written by a pass, as STREAM counts them.
    pub bytes: u64,
}

const FACTOR: f64 = 3.0;

/// A loop, over parts of a, b and c of one length, and how many vectors it touches.
type Kernel = (&'static str, u64, fn(&mut [f64], &mut [f64], &mut [f64]));

const KERNELS: [Kernel; 4] = [
    ("copy", 2, |a, _, c| c.copy_from_slice(a)),
    ("scale", 2, |_, b, c| b.iter_mut().zip(c).for_each(|(b, c)| *b = FACTOR * *c)),
    ("add", 3, |a, b, c| {
        c.iter_mut().zip(a.iter().zip(b)).for_each(|(c, (a, b))| *c = *a + *b);
    }),
    ("triad", 3, |a, b, c| {
        a.iter_mut().zip(b.iter().zip(c)).for_each(|(a, (b, c))| *a = *b + FACTOR * *c);
    }),
];

impl Stream {
    pub(super) fn run(&self) -> io::Result<Answer> {
        let values = self.vector_bytes / size_of::<f64>() / self.threads.max(1);
        let blocks: Vec<Block> = (0..3)
            .map(|_| Block::new(self.vector_bytes, Source::Malloc))
            .collect::<io::Result<_>>()?;
        for (block, value) in blocks.iter().zip([1.0, 2.0, 0.0]) {
            for at in 0..self.vector_bytes / size_of::<f64>() {
                // SAFETY: in the block, which is aligned for any plain type.
                unsafe { block.addr().cast::<f64>().add(at).write(value) };
            }
        }
        let (began, before) = (Instant::now(), Usage::now());
        let (_, threads) = parallel(self.threads, |index| {
            let [a, b, c] = [0, 1, 2].map(|vector: usize| {
                // SAFETY: each thread has the index-th part of each vector to itself.
                unsafe {
                    let start = blocks[vector].addr().cast::<f64>().add(index * values);
                    std::slice::from_raw_parts_mut(start, values)
                }
            });
            let mut min = [f64::INFINITY; KERNELS.len()];
            for repeat in 0..self.repeats + 1 {
                for ((_, _, kernel), min) in KERNELS.iter().zip(&mut min) {
                    let start = Instant::now();
                    kernel(a, b, c);
                    if repeat > 0 {
                        *min = min.min(start.elapsed().as_nanos() as f64);
                    }
                }
            }
            check(a, b, c, self.repeats + 1).map(|()| min)
        });
        let (seconds, usage) = (began.elapsed().as_secs_f64(), Usage::now().since(before));
        let threads: Vec<_> = threads.into_iter().collect::<io::Result<_>>()?;
        let bandwidth = KERNELS
            .iter()
            .enumerate()
            .map(|(at, (kernel, vectors, _))| Bandwidth {
                kernel: (*kernel).into(),
                // The slowest thread's time: threads run the loops without waiting for each other.
                min_ns: threads.iter().map(|min| min[at]).fold(0.0, f64::max),
                bytes: vectors * self.vector_bytes as u64,
            })
            .collect();
        let done = self.repeats as u64;
        Ok(Answer { done, seconds, usage, bandwidth, ..Answer::default() })
    }
}

/// Repeats the steps on one value of each vector, and compares.
fn check(a: &[f64], b: &[f64], c: &[f64], passes: usize) -> io::Result<()> {
    let (mut x, mut y, mut z) = ([1.0], [2.0], [0.0]);
    for _ in 0..passes {
        for (_, _, kernel) in KERNELS {
            kernel(&mut x, &mut y, &mut z);
        }
    }
    for (vector, value) in [(a, x[0]), (b, y[0]), (c, z[0])] {
        if let Some(found) = vector.iter().find(|found| **found != value) {
            return Err(wrong(format!("a vector has {found} where {value} should be")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_has_a_time_and_the_right_result() {
        let answer = Stream { threads: 2, vector_bytes: 1 << 20, repeats: 2 }.run().unwrap();
        let kernels: Vec<_> = answer.bandwidth.iter().map(|b| b.kernel.as_str()).collect();
        assert_eq!(kernels, ["copy", "scale", "add", "triad"]);
        assert!(answer.bandwidth.iter().all(|b| b.min_ns > 0.0 && b.bytes >= 2 << 20));
        assert!(check(&[1.0], &[2.0], &[0.0], 1).is_err());
    }
}
