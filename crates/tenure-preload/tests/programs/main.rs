//! Programs with the library. They are one test program, so that programs that wait do so beside
//! others.

tenure_testkit::two_for_each_processor!();

mod kit;

mod cancellation;
mod confined;
mod in_flight;
mod locked;
mod pitfalls;
mod real_programs;
mod room_for_others;
mod symbols;
mod unmapped;
