//! An arena on the pool: a parser puts its objects for one request into large blocks, and drops all
//! of them at once. The blocks stay warm for the next request, and the kernel may take them when
//! there is none.
//!
//! `cargo run -p tenure-examples --example arena`

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use tenure::pool::{Buffer, MIN_RUN_BYTES};

/// Bytes of one block of the pool.
const BLOCK: usize = 1 << 20;
const _: () = assert!(BLOCK >= MIN_RUN_BYTES);

/// Gives out bytes that live as long as the arena does.
#[derive(Default)]
pub struct Arena {
    blocks: RefCell<Vec<Buffer>>,
    /// The start of the last block's free bytes.
    next: Cell<Option<NonNull<u8>>>,
    free: Cell<usize>,
}

impl Arena {
    /// Copies bytes into the arena.
    ///
    /// # Errors
    /// `ENOMEM`: the pool has no block.
    #[allow(clippy::mut_from_ref, reason = "each call gives out bytes that no other call does")]
    pub fn copy(&self, bytes: &[u8]) -> tenure::Result<&mut [u8]> {
        let at = match self.next.get() {
            Some(at) if bytes.len() <= self.free.get() => at,
            _ => self.add_block(bytes.len())?,
        };
        // SAFETY: `free` bytes of the last block from `at` on, at least as many as these, were not
        // given out yet. A `Buffer` does not move its bytes when the list of blocks moves it. It
        // keeps them until the arena is dropped, and that requires that all borrows of it have
        // ended.
        let given = unsafe {
            self.next.set(Some(at.add(bytes.len())));
            std::slice::from_raw_parts_mut(at.as_ptr(), bytes.len())
        };
        self.free.set(self.free.get() - bytes.len());
        given.copy_from_slice(bytes);
        Ok(given)
    }

    /// Adds a block with at least `least` bytes, and returns its start.
    fn add_block(&self, least: usize) -> tenure::Result<NonNull<u8>> {
        let mut block = Buffer::zeroed(BLOCK.max(least))?;
        let at = NonNull::new(block.as_mut_ptr()).expect("a buffer has bytes");
        self.free.set(block.len());
        self.blocks.borrow_mut().push(block);
        Ok(at)
    }

    /// Returns the number of its blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.borrow().len()
    }
}

/// A request: splits a text into words, and keeps them in capitals.
fn words<'a>(arena: &'a Arena, text: &str) -> tenure::Result<Vec<&'a str>> {
    text.split_whitespace()
        .map(|word| {
            let copy = arena.copy(word.as_bytes())?;
            copy.make_ascii_uppercase();
            Ok(std::str::from_utf8(copy).expect("capitals of UTF-8 are UTF-8"))
        })
        .collect()
}

fn main() -> tenure::Result<()> {
    let text = "some words of a request ".repeat(100_000);
    for request in 0..10 {
        let before = tenure::pool::stats();
        let arena = Arena::default();
        let count = words(&arena, &text)?.len();
        let now = tenure::pool::stats();
        println!(
            "request {request}: {count} words in {} blocks, {} of them warm from before",
            arena.blocks(),
            now.warm_reuses - before.warm_reuses
        );
    }
    Ok(())
}

#[test]
fn words_stay_as_they_are_while_the_arena_lives() {
    let arena = Arena::default();
    let found = words(&arena, &"a bc def ".repeat(200_000)).unwrap();
    assert!(arena.blocks() > 1);
    assert_eq!(found.len(), 600_000);
    assert!(found.chunks(3).all(|three| three == ["A", "BC", "DEF"]));
    assert_eq!(arena.copy(b"").unwrap().len(), 0);
    assert_eq!(arena.copy(&[7; BLOCK + 1]).unwrap().len(), BLOCK + 1); // one larger than a block
}

#[test]
fn the_next_request_finds_warm_blocks() {
    let request = || words(&Arena::default(), &"word ".repeat(500_000)).map(|words| words.len());
    request().unwrap();
    let before = tenure::pool::stats();
    request().unwrap();
    let after = tenure::pool::stats();
    let reused =
        after.warm_reuses + after.offered_reuses - before.warm_reuses - before.offered_reuses;
    assert!(reused >= 1, "{after:?}");
}

#[test]
fn the_story_runs() {
    main().unwrap();
}
