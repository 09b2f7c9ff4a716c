//! The command `tenure` as a shell sees it. It is one test program, so that tests that wait do so
//! beside each other.

tenure_testkit::plain_output!();
tenure_testkit::two_for_each_processor!();

mod bench;
mod command_line;
mod demo;
mod guide;
mod inspect;
mod kit;
mod lock;
mod lock_follow;
mod lock_follow_room;
mod populate;
mod preloaded;
mod run;
mod sparse;
mod top;
