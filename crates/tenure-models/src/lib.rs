//! Models of tenure's core: [loom](https://docs.rs/loom) runs every interleaving of two or three
//! threads, up to a bound on how often a thread is interrupted, with every value that a load may
//! return.
//!
//! The core's files are compiled from their own source, with loom's types in place of the
//! processor's (`sync.rs`), above a small kernel of this crate (`fakes/os.rs`). `MODELS.md` lists
//! the models, their bounds, and for each a mistake that it finds.
#![cfg(test)]
#![deny(unsafe_code)]
#![allow(dead_code, reason = "no model uses all of the core's files")]
#![allow(
    clippy::reversed_empty_ranges,
    clippy::modulo_one,
    reason = "sizes of the core that are 0 or 1 here"
)]

mod cache;
mod fakes;
mod model;
mod range;
mod shared;
mod sync;

use fakes::{error, mapping, os};

mod runtime;

mod tracking;

mod models {
    mod claims;
    mod event;
    mod gate;
    mod mailbox;
    mod owned;
    mod raw;
    mod slab;
    mod waits;
}
