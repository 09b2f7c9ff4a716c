//! The workers' use of a shared cache. The values of a key have growing numbers, so that a check
//! finds an old value that comes back: the value of a get is no older than the last change that had
//! ended before the get began.

use super::board::{Board, KEYS};
use super::bytes;
use crate::rng::Rng;
use std::sync::atomic::Ordering;
use tenure::shared::{SharedCache, SharedValue};

/// Calls in a row.
const CALLS: usize = 200;
/// Values that are held at a time.
const HELD: usize = 6;
const LONGEST: usize = 8000;

/// The calls of one worker on the cache.
pub struct Calls<'a> {
    pub board: &'static Board,
    pub cache: &'a SharedCache,
    pub life: u32,
    /// A grandchild changes nothing.
    pub only_gets: bool,
}

impl Calls<'_> {
    /// Makes some calls. Returns how many values were found correct.
    pub fn run(&self, rng: &mut Rng) -> u64 {
        let mut held: Vec<(usize, SharedValue<'_>)> = Vec::new();
        let mut right = 0;
        for _ in 0..CALLS {
            let key = rng.below(KEYS);
            let act = if self.only_gets { 99 } else { rng.below(100) };
            let value = match act {
                0..=14 => self.change(key, rng),
                _ => self.get(key),
            };
            let Some(value) = value else { continue };
            right += u64::from(self.is_right(key, &value, rng));
            if held.len() < HELD {
                held.push((key, value));
            } else if rng.once_in(8) {
                // If a pin did not keep them, they were purged or overwritten meanwhile.
                for (key, value) in held.drain(..) {
                    self.is_right(key, &value, rng);
                }
            }
        }
        right
    }

    /// Returns whether its bytes are those of its number.
    fn is_right(&self, key: usize, value: &[u8], rng: &mut Rng) -> bool {
        let number = number_of(value);
        let wrong = bytes::find_wrong(&value[8..], key, number, rng);
        if let Some((at, found, right)) = wrong {
            self.board.wrong(format_args!(
                "key {key}, number {number}, word {at}: {found:#x}, not {right:#x}"
            ));
        }
        wrong.is_none()
    }

    fn get(&self, key: usize) -> Option<SharedValue<'_>> {
        let least = self.board.settled[key].load(Ordering::SeqCst);
        let found = self.cache.get(&name(key)).unwrap_or_else(|error| self.unexplained(&error));
        self.look(key, least, found)
    }

    fn look<'v>(
        &self,
        key: usize,
        least: u64,
        found: Option<SharedValue<'v>>,
    ) -> Option<SharedValue<'v>> {
        let value = found?;
        let (number, most) = (number_of(&value), self.board.begun[key].load(Ordering::SeqCst));
        if !(least..=most).contains(&number) {
            self.board.wrong(format_args!(
                "key {key}: the value of number {number}, where {least} had ended and {most} begun"
            ));
        }
        Some(value)
    }

    /// Changes a key. One process changes a key at a time, and another continues if that process
    /// has died.
    fn change(&self, key: usize, rng: &mut Rng) -> Option<SharedValue<'_>> {
        let changer = &self.board.changers[key];
        let before = changer.load(Ordering::SeqCst);
        if before != 0 && !self.board.is_gone(before)
            || changer
                .compare_exchange(before, self.life, Ordering::SeqCst, Ordering::SeqCst)
                .is_err()
        {
            return None;
        }
        let settled = &self.board.settled[key];
        let number = self.board.begun[key].fetch_add(1, Ordering::SeqCst) + 1;
        let value = value(key, number, rng);
        let found = match rng.below(8) {
            0 => match self.cache.remove(&name(key)) {
                Ok(_) => {
                    settled.store(number, Ordering::SeqCst);
                    self.get(key)
                }
                Err(error) => self.unexplained(&error),
            },
            1 | 2 => {
                let least = settled.load(Ordering::SeqCst);
                match self.cache.get_or_insert_with(&name(key), || &value) {
                    Ok(found) => self.look(key, least, Some(found)),
                    Err(error) => self.unexplained(&error),
                }
            }
            _ => match self.cache.insert(&name(key), &value) {
                Ok(()) => {
                    settled.store(number, Ordering::SeqCst);
                    self.get(key)
                }
                Err(error) => self.unexplained(&error),
            },
        };
        changer.store(0, Ordering::SeqCst);
        found
    }

    /// If every chunk is pinned, or no memory is left, a value is refused.
    fn unexplained<T>(&self, error: &tenure::Error) -> Option<T> {
        if error.errno() != libc::ENOMEM {
            self.board.wrong(format_args!("an error that nothing explains: {error}"));
        }
        None
    }
}

fn name(key: usize) -> [u8; 8] {
    (key as u64).to_ne_bytes()
}

fn number_of(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |number| u64::from_ne_bytes(*number))
}

fn value(key: usize, number: u64, rng: &mut Rng) -> Vec<u8> {
    let words = 2 + rng.below(LONGEST / 8);
    let mut value = vec![0; 8 * words];
    value[..8].copy_from_slice(&number.to_ne_bytes());
    bytes::write(&mut value[8..], key, number, words - 1);
    value
}
