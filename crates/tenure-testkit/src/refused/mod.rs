//! Parts of the kernel refused as users meet them: single capabilities, and whole profiles.

mod capabilities;
pub mod expected;
mod lists;
mod profiles;
pub mod suite;

pub use capabilities::{capability, Capability, Manner, CAPABILITIES};
pub use profiles::{profile, Profile, PROFILES};
