//! Fails each system call that tenure makes, in turn, and checks what the program then reads and is told.
//!
//! A **scenario** is a program that uses one promise and checks every byte. A **run** is one scenario in a process of
//! its own. A seccomp filter asks this process about the calls of one **kind** (`mmap`, `madvise`, …), and this
//! process fails the Nth of them, or the Nth and all later ones, with one `errno` of the call's manual page. The real
//! kernel makes all others. A **sweep** counts N up until a run ends in which nothing was made to fail.
//!
//! [`refused`] refuses parts of the kernel for good instead, each and each pair of them, from the first use on. What could be
//! made under that must work.
//!
//! After the failures end ([`stage::over`]) the scenario must work without an error, with everything that was not
//! reported lost still there. [`judge`] holds what is left (mappings, descriptors, threads, locked memory) against a
//! run in which nothing failed.

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
