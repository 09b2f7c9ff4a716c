//! The core's `runtime`, as far as the interval map needs it.

#[path = "../../tenure-models/src/fakes/heap.rs"]
pub(crate) mod heap;
