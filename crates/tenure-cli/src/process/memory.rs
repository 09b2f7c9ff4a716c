//! The memory of a process, read and never written.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of one process. Only a reader that may trace the process can open it.
#[derive(Debug)]
pub struct Memory {
    file: File,
    left: Cell<u64>,
}

/// The most bytes that are read of one process, whatever its figures claim: a second's work.
const MOST: u64 = 4 << 30;

impl Memory {
    /// Opens it.
    pub fn open(pid: u32) -> io::Result<Memory> {
        let file = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Memory { file, left: Cell::new(MOST) })
    }

    /// Resets the count of bytes that were read.
    pub fn begin(&self) {
        self.left.set(MOST);
    }

    /// Reads all of the bytes from the address on. Fails where one of them is not mapped.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        // The kernel takes an offset above 2^63 for a negative one.
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // A call costs as much as a page.
        let cost = bytes.len().max(4096) as u64;
        let left = self.left.get().checked_sub(cost).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "it is longer than it can be")
        })?;
        self.left.set(left);
        self.file.read_exact_at(bytes, at)
    }

    /// Reads whole words of 64 bits.
    pub fn words(&self, at: u64, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.read(at, &mut bytes)?;
        Ok(bytes.chunks_exact(8).map(word).collect())
    }
}

/// The word that begins with the first byte; there are eight.
pub fn word(bytes: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[..8]);
    u64::from_ne_bytes(eight)
}
