//! The truth machine: a seeded driver that uses tenure's public calls for volatile memory from
//! several threads at once, and compares every byte that it gets back with a model of the writes
//! and reports.
//!
//! - [`model`]: the oracle. [`ranges`], [`overlap`], [`crowd`], [`objects`], [`shared_objects`],
//!   [`caches`]: the driven parts. [`refill`], [`closures`], [`panics`], [`keys`]: the code that
//!   tenure calls, and its misbehaviour.
//! - [`blocks`], [`many`]: the pool, and a hundred thousand objects.
//! - [`forks`], [`first_use`], [`faults`], [`pressure`], [`foreign`], [`sigbus`]: the events
//!   meanwhile.
//! - [`workers`]: processes that share volatile memory, and are killed.
//! - [`soak`], [`conditions`], [`fixed`]: all of it for an hour, under everything that a machine
//!   may do to a program.
//! - [`disturb`], [`starved`]: stops, kills, and a worker without a processor.
//! - [`config`], [`heavy`], [`launch`], [`driver`], [`doing`](mod@doing), [`watchdog`], [`tally`],
//!   [`wrong`](mod@wrong), [`report`]: the machine.

#![deny(unsafe_code)]

pub mod blocks;
pub mod caches;
pub mod closures;
pub mod conditions;
pub mod config;
pub mod crowd;
pub mod disturb;
pub mod doing;
pub mod driver;
pub mod faults;
pub mod first_use;
pub mod fixed;
pub mod foreign;
pub mod forks;
pub mod gate;
pub mod heavy;
pub mod keys;
pub mod launch;
pub mod many;
pub mod model;
pub mod objects;
pub mod overlap;
pub mod panics;
pub mod pressure;
pub mod ranges;
pub mod refill;
pub mod report;
pub mod rng;
pub mod setting;
pub mod shared_objects;
pub mod sigbus;
pub mod soak;
pub mod starved;
pub mod sys;
pub mod tally;
pub mod watchdog;
pub mod workers;
pub mod wrong;
