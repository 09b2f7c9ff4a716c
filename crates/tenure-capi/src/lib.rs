//! The C ABI of tenure. `include/tenure.h` is generated from this crate. The documentation of each
//! item here becomes the header's, so it is written for C.
//!
//! Every function refuses bad pointers with `EINVAL`. It turns an error into -1 or NULL with
//! `errno` and a sentence for [`report::tenure_last_error`]. It lets no panic out, and no
//! `pthread_cancel` in. One wrapper ([`report`]) does the last three, and every function is a call
//! of it.

// The names are C's. Each function's documentation states the caller's duties in C's terms.
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
mod shared_worker;

pub mod ashmem;

pub mod lock;
pub mod populate;

pub mod lock_guard;
pub mod lock_more;
pub mod secret;

pub mod pool;
pub mod retire;

pub mod stats;

pub mod settings;

pub mod report;

mod allocator;
mod cancel;
mod key;
mod sized;
