//! Interleaved comparisons, their tables and their raw samples.

mod child;
mod compare;
mod document;
mod goal;
mod machine;
mod pace;
mod parallel;
mod process;
mod progress;
mod report;
mod row;
mod size;
mod stats;
mod sysctl;
mod table;

pub use child::{in_process, Child};
pub use compare::{Comparison, Contestant, Outcome, Sample};
pub use document::{Bench, Document, Histogram, HistogramRow, Peer, TimeSeries, TimeSeriesRow};
pub use goal::Goal;
pub use machine::{peer_versions, Machine};
pub(crate) use pace::interrupted;
pub use pace::Share;
pub use parallel::parallel;
pub use process::{minor_faults, settled_rss};
pub(crate) use report::create;
pub use report::Report;
pub(crate) use row::count;
pub use row::{Finding, Role, Row, Unit};
pub(crate) use size::size_name;
pub use stats::Stats;
pub use sysctl::Raised;
pub(crate) use table::{verdict, KILLED};
