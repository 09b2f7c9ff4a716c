//! tenure's cache, with the bytes that the others get as its ceiling, and real values.

use super::caching::{Caching, Sizes};
use crate::cache::store::{blank, check, stamp};
use std::io;

pub(super) struct Ours {
    cache: tenure::Cache<u32>,
    sizes: Sizes,
    /// Stamped for each value that is put in.
    value: Vec<u8>,
    wrong: u64,
    refused: u64,
}

impl Ours {
    pub fn new(bytes: u64, sizes: &Sizes) -> io::Result<Ours> {
        let largest = sizes.iter().max().map_or(16, |size| *size as usize);
        Ok(Ours {
            cache: tenure::Cache::builder().ceiling(bytes).build()?,
            sizes: sizes.clone(),
            value: blank(largest),
            wrong: 0,
            refused: 0,
        })
    }
}

impl Caching for Ours {
    fn request(&mut self, key: u32) -> bool {
        if let Some(value) = self.cache.get(&key) {
            self.wrong += u64::from(!check(&value, key.into()));
            return true;
        }
        let len = self.sizes[key as usize] as usize;
        let bytes = &mut self.value[..len];
        let last = bytes[len - 8..].to_vec();
        stamp(bytes, key.into());
        self.refused += u64::from(self.cache.insert(key, bytes).is_err());
        bytes[len - 8..].copy_from_slice(&last);
        false
    }

    fn verdict(&mut self) -> io::Result<()> {
        if self.wrong > 0 {
            let why = format!("{} values had wrong bytes", self.wrong);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let stats = self.cache.stats();
        if self.refused > 0 || stats.purged_values > 0 {
            let why = format!(
                "{} values were refused and {} purged: the machine has too little memory free",
                self.refused, stats.purged_values
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(())
    }
}
