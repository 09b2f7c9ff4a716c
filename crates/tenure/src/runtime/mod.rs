//! The base of all promises: locks that forks can hold, one register of services, one background
//! thread, the memory budget, and counters.

pub(crate) mod budget;
#[cfg(feature = "tracing")]
pub(crate) mod causes;
pub(crate) mod counters;
pub(crate) mod ending;
pub(crate) mod event;
pub(crate) mod fork;
mod fork_state;
pub(crate) mod heap;
pub(crate) mod job;
mod listener;
pub(crate) mod lock;
pub(crate) mod mailbox;
pub(crate) mod mapping_room;
pub(crate) mod published;
mod rank;
pub(crate) mod refills;
pub(crate) mod services;
pub(crate) mod setting;
pub(crate) mod turn;
pub(crate) mod waits;
pub(crate) mod worker;
