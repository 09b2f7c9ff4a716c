//! Pieces of real files, and the values made from them.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;
use zstd::bulk::Compressor;

/// The most a piece takes of its file.
pub const PIECE: u64 = 64 << 10;

/// Part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its file's place in the list of files.
    pub file: u32,
    /// Where it starts.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
}

/// A piece with the facts about its value, from making the value once without a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Its source.
    pub source: Source,
    /// The value's length in bytes.
    pub value_len: u32,
    /// The value's checksum.
    pub sum: u64,
}

impl Piece {
    /// Returns whether `value` is, byte for byte, the value that was made first.
    pub fn matches(&self, value: &[u8]) -> bool {
        value.len() == self.value_len as usize && xxh3_64(value) == self.sum
    }
}

/// The pieces of the requests, the most popular first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pieces {
    /// Paths of the files they come from.
    pub files: Vec<String>,
    /// The pieces.
    pub list: Vec<Piece>,
}

impl Pieces {
    /// The length of all values together.
    pub fn value_bytes(&self) -> u64 {
        self.list.iter().map(|piece| u64::from(piece.value_len)).sum()
    }
}

/// Makes values: reads a piece and compresses it. One for each thread.
pub struct Maker {
    compressor: Compressor<'static>,
    source: Vec<u8>,
    value: Vec<u8>,
}

impl Maker {
    /// `level` is zstd's: the higher, the more a value costs to make.
    pub fn new(level: i32) -> io::Result<Maker> {
        let bound = zstd::zstd_safe::compress_bound(PIECE as usize);
        Ok(Maker {
            compressor: Compressor::new(level)?,
            source: vec![0; PIECE as usize],
            value: Vec::with_capacity(bound),
        })
    }

    /// Makes the value of `source` from its file. The same bytes always make the same value.
    pub fn make(&mut self, files: &[String], source: Source) -> io::Result<&[u8]> {
        let file = File::open(&files[source.file as usize])?;
        // The kernel must read nothing beside the piece ahead: in the demo's cgroup that would take
        // room.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        let piece = &mut self.source[..source.len as usize];
        file.read_exact_at(piece, source.offset)?;
        self.value.clear();
        self.compressor.compress_to_buffer(piece, &mut self.value)?;
        Ok(&self.value)
    }

    /// Makes the value and returns the piece with its length and checksum.
    pub fn learn(&mut self, files: &[String], source: Source) -> io::Result<Piece> {
        let value = self.make(files, source)?;
        Ok(Piece { source, value_len: value.len() as u32, sum: xxh3_64(value) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_each_time_and_decompress_to_the_piece() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..200_000u32).flat_map(|n| (n / 3).to_le_bytes()).collect();
        std::fs::write(&path, &bytes).unwrap();
        let files = [path.to_str().unwrap().to_owned()];
        let source = Source { file: 0, offset: 4096, len: 60_000 };
        let mut maker = Maker::new(3).unwrap();
        let piece = maker.learn(&files, source).unwrap();
        let other = Source { file: 0, offset: 0, len: 65_536 };
        maker.make(&files, other).unwrap();
        let value = maker.make(&files, source).unwrap().to_vec();
        assert!(piece.matches(&value));
        let back = zstd::bulk::decompress(&value, 60_000).unwrap();
        assert_eq!(back, bytes[4096..64_096]);

        let mut wrong = value.clone();
        wrong[10] ^= 1;
        assert!(!piece.matches(&wrong), "one wrong bit is seen");
        assert!(!piece.matches(&value[1..]));
        assert!(!piece.matches(&[]));
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [1; 100]).unwrap();
        let files = [path.to_str().unwrap().to_owned()];
        let mut maker = Maker::new(1).unwrap();
        assert!(maker.make(&files, Source { file: 0, offset: 50, len: 51 }).is_err());
    }
}
