//! A key and its value, as they lie in a chunk.

#![allow(unsafe_code, reason = "reads and writes records in shared memory")]

use super::room;
use crate::sync::{AtomicU32, Ordering};

/// The bytes before the key.
#[repr(C)]
pub(super) struct Head {
    hash: u64,
    /// Milliseconds of the machine's clock. 0: it never ends.
    expires: u64,
    key: u32,
    value: u32,
    /// Gets that found it, up to [`MOST_HITS`].
    hits: AtomicU32,
    /// An [`Origin`].
    origin: AtomicU32,
}

/// How a value came into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Inserted,
    /// It was made because it was missing.
    Made,
    /// It was made, and its key may have changed meanwhile. No get finds it.
    Pending,
}

/// The largest number of gets that count.
const MOST_HITS: u32 = 3;
/// The length of a head.
pub(super) const HEAD: usize = size_of::<Head>();

/// Returns the length of a record.
pub(super) fn len_of(key: &[u8], value: usize) -> usize {
    HEAD + key.len() + value
}

/// Returns the machine's clock in milliseconds.
pub(super) fn now() -> u64 {
    room::now() / 1000
}

/// A record that was found in a chunk that is pinned for `'a`.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    head: &'a Head,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the record at an address. At most `room` bytes belong to the chunk. Returns `None`
    /// if there is no record.
    ///
    /// # Safety
    /// The bytes are mapped, aligned to 8, and do not change during `'a`.
    pub unsafe fn at(address: usize, room: usize) -> Option<Record<'a>> {
        if room < HEAD {
            return None;
        }
        // SAFETY: the caller promises the bytes, and there are enough for a head.
        let head = unsafe { &*(address as *const Head) };
        // Read once: a process that breaks the rules could change them after the check.
        // SAFETY: both are fields of the head, which is valid.
        let (key, value) = unsafe {
            ((&raw const head.key).read_volatile(), (&raw const head.value).read_volatile())
        };
        let len = (key as usize).checked_add(value as usize)?;
        if len > room - HEAD {
            return None;
        }
        // SAFETY: the check above found that this many bytes follow.
        let rest = unsafe { std::slice::from_raw_parts((address + HEAD) as *const u8, len) };
        let (key, value) = rest.split_at(key as usize);
        Some(Record { head, key, value })
    }

    pub fn is_of(&self, hash: u64, key: &[u8]) -> bool {
        self.head.hash == hash && self.key == key
    }

    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    pub fn expires(&self) -> u64 {
        self.head.expires
    }

    /// Returns whether the value's time to live has ended.
    pub fn has_expired(&self) -> bool {
        self.expires() != 0 && self.expires() <= now()
    }

    pub fn hash(&self) -> u64 {
        self.head.hash
    }

    /// Returns whether nothing was ever written here: all bytes are zeros.
    pub fn is_none(&self) -> bool {
        self.head.hash == 0 && self.key.is_empty() && self.value.is_empty()
    }

    /// Returns the length of the whole record.
    pub fn len(&self) -> usize {
        HEAD + self.key.len() + self.value.len()
    }

    /// Counts a get, up to [`MOST_HITS`].
    pub fn hit(&self) {
        let hits = self.hits();
        if hits < MOST_HITS {
            self.head.hits.store(hits + 1, Ordering::Relaxed);
        }
    }

    /// Returns the number of gets that found it.
    pub fn hits(&self) -> u32 {
        self.head.hits.load(Ordering::Relaxed)
    }

    pub fn origin(&self) -> Origin {
        match self.head.origin.load(Ordering::Acquire) {
            there if there == Origin::Made as u32 => Origin::Made,
            there if there == Origin::Pending as u32 => Origin::Pending,
            _ => Origin::Inserted,
        }
    }

    pub fn set_origin(&self, origin: Origin) {
        self.head.origin.store(origin as u32, Ordering::Release);
    }

    /// Sets the number of gets that count.
    pub fn set_hits(&self, hits: u32) {
        self.head.hits.store(hits, Ordering::Relaxed);
    }
}

/// Writes a record.
///
/// # Safety
/// The [`len_of`] bytes from `address` on are mapped, aligned to 8, and only the caller uses them.
pub(super) unsafe fn write(address: usize, hash: u64, expires: u64, key: &[u8], value: &[u8]) {
    let head = Head {
        hash,
        expires,
        key: key.len() as u32,
        value: value.len() as u32,
        hits: AtomicU32::new(0),
        origin: AtomicU32::new(Origin::Inserted as u32),
    };
    // SAFETY: the caller promises room for the head, the key and the value.
    unsafe {
        (address as *mut Head).write(head);
        std::ptr::copy_nonoverlapping(key.as_ptr(), (address + HEAD) as *mut u8, key.len());
        let at = (address + HEAD + key.len()) as *mut u8;
        std::ptr::copy_nonoverlapping(value.as_ptr(), at, value.len());
    }
}
