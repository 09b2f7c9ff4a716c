//! Interleaved comparisons, their tables and their raw samples.

mod child;
mod compare;
mod goal;
mod machine;
mod parallel;
mod process;
mod report;
mod row;
mod size;
mod stats;
mod sysctl;
mod table;

pub use child::{in_process, Child};
pub use compare::{Comparison, Contestant, Outcome, Sample};
pub use goal::Goal;
pub use machine::{peer_versions, Machine};
pub use parallel::parallel;
pub use process::{minor_faults, settled_rss};
pub use report::Report;
pub use row::{Finding, Role, Row, Unit};
pub(crate) use size::size_name;
pub use stats::Stats;
pub use sysctl::Raised;
