//! Shared volatile memory and a shared cache: chunks made, purged, pinned by a child and by a
//! second handle.

use super::memory::{all_are, byte};
use crate::stage::{allowed, forked, is_failing, over};
use libc::{
    EACCES, EAGAIN, EDEADLK, EINVAL, EMFILE, ENFILE, ENOENT, ENOMEM, EOPNOTSUPP, EPERM, EPROTO,
    EUSERS,
};
use std::os::fd::{AsFd, OwnedFd};
use tenure::shared::{SharedCache, SharedPin, SharedVolatile};

const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 6;
const OPENS: &[i32] =
    &[EUSERS, EACCES, EPERM, ENOENT, ENOMEM, EMFILE, ENFILE, EINVAL, EPROTO, EOPNOTSUPP, EAGAIN];

fn duplicate(of: impl AsFd) -> Option<OwnedFd> {
    // The program's own call, which may fail as well.
    of.as_fd().try_clone_to_owned().ok()
}

fn use_all(memory: &SharedVolatile, what: &str) {
    for chunk in 0..CHUNKS {
        let made = memory.get_or_make(chunk, |bytes| {
            assert!(all_are(bytes, 0), "{what}: chunk {chunk} is to be made, and is not zero");
            bytes.fill(byte(chunk));
        });
        if let Some(made) = allowed(made, &[ENOMEM, EUSERS]) {
            assert!(all_are(&made, byte(chunk)), "{what}: chunk {chunk} holds {}", made[0]);
        }
    }
}

pub fn memory() {
    let built = SharedVolatile::builder(CHUNKS * CHUNK).chunk_size(CHUNK).build();
    let Some(memory) = allowed(built, OPENS) else { return };
    use_all(&memory, "new");
    let pinned = allowed(memory.pin(2), &[ENOMEM, EUSERS]).and_then(SharedPin::intact);
    if let Some(purged) = allowed(memory.purge_now(0..CHUNKS), &[EUSERS]) {
        assert!(purged <= CHUNKS);
    }
    if let Some(pinned) = &pinned {
        assert!(all_are(pinned, byte(2)), "a pinned chunk lost its bytes");
    }
    for chunk in 0..CHUNKS {
        if let Some(Some(intact)) = allowed(memory.read(chunk), &[EUSERS]) {
            assert!(all_are(&intact, byte(chunk)), "chunk {chunk} holds {}", intact[0]);
        }
    }
    let ended = forked(|| use_all(&memory, "in a child"));
    assert!(ended != Some(false), "the child was wrong");
    if let Some(descriptor) = duplicate(&memory) {
        // SAFETY: only this program has the descriptor.
        let second = unsafe { SharedVolatile::open(descriptor) };
        if let Some(second) = allowed(second, OPENS) {
            use_all(&second, "by a second handle");
            allowed(second.purge_now(0..2), &[EUSERS]);
            use_all(&second, "by a second handle, again");
        }
    }
    let had_errors = is_failing();
    over();
    if let Some(pinned) = &pinned {
        assert!(all_are(pinned, byte(2)), "a pinned chunk lost its bytes at the end");
    }
    drop(pinned);
    use_all(&memory, "after the failures");
    if had_errors {
        // A child without a slot of its own keeps its inherited pins for as long as its parent
        // lives.
        return;
    }
    allowed(memory.purge_now(0..CHUNKS), &[]);
    for chunk in 0..CHUNKS {
        assert!(memory.read(chunk).unwrap().is_none(), "chunk {chunk} stays pinned");
    }
}

fn value(key: usize) -> Vec<u8> {
    vec![byte(key); 500 + key * 700]
}

fn get(cache: &SharedCache, key: usize, what: &str) {
    let name = key.to_le_bytes();
    if let Some(Some(found)) = allowed(cache.get(&name), &[EUSERS]) {
        assert!(found[..] == value(key)[..], "{what}: key {key}, {} bytes", found.len());
    }
}

pub fn cache() {
    let built = SharedCache::builder().most(16 * CHUNK).chunk_size(CHUNK).build();
    let Some(cache) = allowed(built, OPENS) else { return };
    for key in 0..40usize {
        allowed(cache.insert(&key.to_le_bytes(), &value(key)), &[ENOMEM, EUSERS]);
        (0..=key).step_by(5).for_each(|old| get(&cache, old, "old"));
    }
    for key in (0..40usize).step_by(7) {
        let made = cache.get_or_insert_with(&key.to_le_bytes(), || value(key));
        if let Some(made) = allowed(made, &[ENOMEM, EDEADLK, EUSERS]) {
            assert!(made[..] == value(key)[..]);
        }
    }
    let ended = forked(|| (0..40).for_each(|key| get(&cache, key, "in a child")));
    assert!(ended != Some(false), "the child was wrong");
    if let Some(descriptor) = duplicate(&cache) {
        // SAFETY: only this program has the descriptor.
        if let Some(second) = allowed(unsafe { SharedCache::open(descriptor) }, OPENS) {
            (0..40).for_each(|key| get(&second, key, "by a second handle"));
            allowed(second.insert(&3usize.to_le_bytes(), &value(3)), &[ENOMEM, EUSERS]);
        }
    }
    allowed(cache.remove(&5usize.to_le_bytes()), &[EUSERS]);
    over();
    (0..40).for_each(|key| get(&cache, key, "after the failures"));
    assert!(allowed(cache.insert(&1usize.to_le_bytes(), &value(1)), &[]).is_some());
    allowed(cache.clear(), &[]);
}
