//! The C ABI of tenure. `include/tenure.h` is generated from this crate, and the documentation of
//! each item here is the header's: it is written for C.
//!
//! What every function does: refuse bad pointers with `EINVAL`, turn an error into -1 or NULL with
//! `errno` and a sentence for [`report::tenure_last_error`], let no panic out, and let no
//! `pthread_cancel` in. The last three are done by one wrapper ([`report`]), which every function is a
//! call of.

// The names are C's. What a caller must hold to is in each function's documentation, in C's terms.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]
#![deny(unsafe_code)]

// The header has the items in this order; the blank lines keep rustfmt from sorting it.
pub mod ranges;

pub mod sigbus;

pub mod volatile;

pub mod cache;
pub mod cache_each;
pub mod cache_listener;

pub mod shared;
pub mod shared_refill;
pub mod shared_stats;

pub mod ashmem;

pub mod lock;
pub mod populate;

pub mod lock_guard;
pub mod lock_more;

pub mod pool;
pub mod retire;

pub mod stats;

pub mod settings;

pub mod report;

mod cancel;
mod key;
mod sized;
