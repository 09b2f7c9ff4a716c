//! Fails each system call that tenure makes, in turn, and checks the bytes and errors that the
//! program then gets.
//!
//! A **scenario** is a program that uses one promise and checks every byte. A **run** is one
//! scenario in a process of its own. A seccomp filter asks this process about the calls of one
//! **kind** (`mmap`, `madvise`, …), and this process fails the Nth of them, or the Nth and all
//! later ones, with one `errno` of the call's manual page. The real kernel makes all others. A
//! **sweep** counts N up until no call fails in a run.
//!
//! [`refused`] instead refuses parts of the kernel for good, each and each pair of them, from the
//! first use on. Objects that could be made under that must work.
//!
//! After the failures end ([`stage::over`]) the scenario must work without an error, and everything
//! that was not reported lost must still be there. [`judge`] compares the remaining resources
//! (mappings, descriptors, threads, locked memory) with those of a run in which nothing failed.

#![deny(unsafe_code)]

pub mod command_line;
pub mod judge;
pub mod kinds;
pub mod programs;
pub mod refused;
pub mod run;
pub mod scenarios;
pub mod stage;
pub mod sweep;
