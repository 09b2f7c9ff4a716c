//! Raw ranges: with all features of this kernel, and again with parts of it refused.

#[path = "suite/refused.rs"]
mod refused;
#[path = "suite/ranges.rs"]
mod suite;
