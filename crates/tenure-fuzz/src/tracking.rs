//! The core's interval map and its lists.

#[path = "../../tenure/src/tracking/list.rs"]
pub(crate) mod list;
#[path = "../../tenure/src/tracking/map.rs"]
pub(crate) mod map;
#[path = "../../tenure/src/tracking/word.rs"]
mod word;

pub(crate) mod state {
    pub(crate) use super::word::RangeId;
}
