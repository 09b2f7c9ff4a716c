//! Programs under the library. One test program, so that those that wait do so beside others.

mod kit;

mod cancellation;
mod confined;
mod locked;
mod pitfalls;
mod real_programs;
mod room_for_others;
mod symbols;
mod unmapped;
