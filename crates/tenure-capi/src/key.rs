//! Keys made of bytes.

#![allow(unsafe_code, reason = "takes bytes for a key")]

use std::borrow::Borrow;

/// A key that the cache keeps: two words, where a `Vec` would take three.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key(Box<[u8]>);

impl Key {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A key to look up. [`Key`] hashes and compares as it does, as [`Borrow`] asks for.
#[derive(PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct Bytes([u8]);

impl Bytes {
    pub fn new(bytes: &[u8]) -> &Bytes {
        // SAFETY: `Bytes` is a transparent wrapper of `[u8]`.
        unsafe { &*(std::ptr::from_ref(bytes) as *const Bytes) }
    }
}

impl Borrow<Bytes> for Key {
    fn borrow(&self) -> &Bytes {
        Bytes::new(&self.0)
    }
}

impl ToOwned for Bytes {
    type Owned = Key;

    fn to_owned(&self) -> Key {
        Key(self.0.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, RandomState};

    #[test]
    fn both_forms_of_a_key_hash_alike() {
        let hasher = RandomState::new();
        for bytes in [&b""[..], b"k", b"a longer key \0 with a zero"] {
            let key = Bytes::new(bytes).to_owned();
            assert_eq!(hasher.hash_one(&key), hasher.hash_one(Bytes::new(bytes)));
            let borrowed: &Bytes = key.borrow();
            assert!(borrowed == Bytes::new(bytes));
        }
    }
}
