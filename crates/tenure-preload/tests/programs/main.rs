//! Programs under the library. One test program, so that those that wait do so beside others.

mod kit;

mod confined;
mod locked;
mod pitfalls;
mod real_programs;
mod symbols;
mod unmapped;
