//! The C library's allocation calls, as a C program makes them.

#![allow(unsafe_code, reason = "allocates as a C program does")]

use std::hint::black_box;
use std::io;
use std::ptr::{self, NonNull};

/// The source of a generator's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Malloc,
    /// A private anonymous mapping for each.
    Mmap,
}

/// A buffer, freed as it was allocated.
pub(super) struct Block {
    addr: NonNull<u8>,
    len: usize,
    source: Source,
}

// SAFETY: a block owns its memory, and any thread may free a block that another one allocated.
unsafe impl Send for Block {}
// SAFETY: a shared block gives out only its address.
unsafe impl Sync for Block {}

impl Block {
    pub fn new(len: usize, source: Source) -> io::Result<Block> {
        // Hidden from the optimiser, which would join malloc and a following memset to calloc.
        let addr = black_box(match source {
            // SAFETY: malloc has no precondition.
            Source::Malloc => unsafe { libc::malloc(len) },
            // SAFETY: a new mapping wherever there is room.
            Source::Mmap => unsafe {
                let prot = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                match libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) {
                    libc::MAP_FAILED => ptr::null_mut(),
                    addr => addr,
                }
            },
        });
        let addr = NonNull::new(addr.cast()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::OutOfMemory, format!("{len} bytes cannot be allocated"))
        })?;
        Ok(Block { addr, len, source })
    }

    pub fn addr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: the block's own bytes, to which no code holds a reference.
        unsafe { self.addr().write_bytes(byte, self.len) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let addr = black_box(self.addr.as_ptr()).cast();
        match self.source {
            // SAFETY: from malloc, and freed only here.
            Source::Malloc => unsafe { libc::free(addr) },
            // SAFETY: the mapping belongs to the block. The call cannot fail, because the addresses
            // are a mapping's.
            Source::Mmap => unsafe {
                libc::munmap(addr, self.len);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_writable_and_new_mappings_zero() {
        for source in [Source::Malloc, Source::Mmap] {
            for _ in 0..3 {
                let block = Block::new(1 << 20, source).unwrap();
                if source == Source::Mmap {
                    // SAFETY: in the block; a mapping's bytes have values from the start.
                    assert_eq!(unsafe { block.addr().add(4096).read() }, 0);
                }
                block.fill(9);
                // SAFETY: in the block, and just written.
                assert_eq!(unsafe { block.addr().add(block.len() - 1).read() }, 9);
            }
        }
    }

    #[test]
    fn what_is_not_to_be_had_is_an_error() {
        for source in [Source::Malloc, Source::Mmap] {
            let error = Block::new(1 << 62, source).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        }
    }
}
