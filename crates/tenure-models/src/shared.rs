//! The core's `shared`, as far as it is modelled.

#[path = "../../tenure/src/shared/bar.rs"]
mod bar;
#[path = "../../tenure/src/shared/chunk.rs"]
mod chunk;
#[path = "../../tenure/src/shared/inherit.rs"]
mod inherit;
#[path = "../../tenure/src/shared/state.rs"]
mod state;

#[path = "models/shared.rs"]
mod shared_models;

/// Constants of the core's file.
mod layout {
    pub(super) const MOST_SLOTS: u32 = 1024;
}
