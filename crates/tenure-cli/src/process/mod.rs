//! The facts about another process: its mappings, its pages, its figures.

pub mod family;
pub mod figures;
pub mod mapping;
pub mod memory;
pub mod names;
pub mod pages;
pub mod patience;
pub mod pressure;
pub mod range;
mod runs;
pub mod smaps;
