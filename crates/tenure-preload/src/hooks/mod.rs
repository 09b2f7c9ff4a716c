//! The functions that programs call.

#![allow(
    unsafe_code,
    reason = "defines the C library's functions, which take the program's pointers"
)]

mod by_number;
mod confine;
mod ending;
pub mod exit;
pub mod in_flight;
pub mod malloc;
mod map;
mod program_memory;
mod remap;
mod rlimit;
mod rules;
mod state;
mod threads;
mod trim;
