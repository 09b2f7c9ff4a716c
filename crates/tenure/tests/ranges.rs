//! Raw ranges: with everything that this kernel offers, and again with parts of it refused.

#[path = "suite/refused.rs"]
mod refused;
#[path = "suite/ranges.rs"]
mod suite;
