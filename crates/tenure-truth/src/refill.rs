//! Refill functions: good ones, failing ones, panicking ones, and their bytes.

use crate::closures::Wild;
use crate::model;
use crate::panics;
use crate::rng::Rng;
use crate::sys::page_bytes;
use crate::wrong;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use tenure::volatile::Refill;

/// The version of the bytes that refill functions make.
pub const MADE: u64 = u64::MAX;

/// The present behaviour of a refill function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mood {
    /// It makes the bytes.
    Good,
    /// It writes something wrong and fails.
    Fails,
    /// It writes something wrong and panics.
    Panics,
    /// It calls tenure, forks, or takes its time, and makes the bytes.
    Wild,
}

/// The state that a refill function and its owner share.
pub struct Maker {
    salt: u64,
    len: usize,
    mood: AtomicU32,
    made: Vec<AtomicBool>,
    calls: AtomicU64,
}

impl Maker {
    /// For an object of so many bytes.
    pub fn new(salt: u64, len: usize) -> Arc<Maker> {
        let made = (0..len.div_ceil(page_bytes())).map(|_| AtomicBool::new(false)).collect();
        let (mood, calls) = (AtomicU32::new(Mood::Good as u32), AtomicU64::new(0));
        Arc::new(Maker { salt, len, mood, made, calls })
    }

    /// The refill function.
    pub fn refill(self: &Arc<Maker>, whole: bool) -> Refill {
        let maker = Arc::clone(self);
        let make = move |offset: usize, bytes: &mut [u8]| {
            if maker.make(offset, bytes) {
                Ok(())
            } else {
                Err("it fails at the moment".into())
            }
        };
        if whole {
            Refill::whole(make)
        } else {
            Refill::pages(make)
        }
    }

    /// Changes its behaviour.
    pub fn set(&self, mood: Mood) {
        self.mood.store(mood as u32, Ordering::SeqCst);
    }

    /// Its behaviour.
    pub fn mood(&self) -> Mood {
        match self.mood.load(Ordering::SeqCst) {
            0 => Mood::Good,
            1 => Mood::Fails,
            2 => Mood::Panics,
            _ => Mood::Wild,
        }
    }

    /// Whether the function has ever made this page.
    pub fn has_made(&self, page: usize) -> bool {
        self.made[page].load(Ordering::SeqCst)
    }

    fn make(&self, offset: usize, bytes: &mut [u8]) -> bool {
        if offset % page_bytes() != 0 || offset + bytes.len() > self.len || bytes.is_empty() {
            wrong!("a refill function was asked for {} bytes from {offset}", bytes.len());
            return false;
        }
        match self.mood() {
            Mood::Good => {}
            Mood::Fails => {
                bytes.fill(0xBD);
                return false;
            }
            Mood::Panics => {
                bytes.fill(0xBD);
                panics::panic_now();
            }
            Mood::Wild => {
                let call = self.calls.fetch_add(1, Ordering::Relaxed);
                let wild = Wild::choose(&mut Rng::of_operation(self.salt, 77, call));
                if wild != Wild::Panic {
                    wild.act();
                }
            }
        }
        for page in offset / page_bytes()..(offset + bytes.len()).div_ceil(page_bytes()) {
            self.made[page].store(true, Ordering::SeqCst);
        }
        for (n, word) in bytes.chunks_mut(8).enumerate() {
            let (page, at) =
                (offset / page_bytes() + n / model::page_words(), n % model::page_words());
            let pattern = model::pattern(self.salt, page, MADE, at).to_ne_bytes();
            word.copy_from_slice(&pattern[..word.len()]);
        }
        true
    }
}
