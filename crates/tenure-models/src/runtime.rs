//! The core's `runtime`, as far as it is modelled.

#[path = "../../tenure/src/runtime/counters.rs"]
pub(crate) mod counters;
#[path = "../../tenure/src/runtime/event.rs"]
pub(crate) mod event;
#[path = "../../tenure/src/runtime/mailbox.rs"]
pub(crate) mod mailbox;
#[path = "../../tenure/src/runtime/turn.rs"]
pub(crate) mod turn;
#[path = "../../tenure/src/runtime/waits.rs"]
pub(crate) mod waits;

pub(crate) use crate::fakes::{budget, fork, heap, lock, mapping_room, services, worker};
