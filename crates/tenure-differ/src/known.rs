//! The differences that are known and documented. Each says why it is so and which document says so;
//! everything else that the driver finds is a fault.

use crate::compare::Difference;
use crate::options::Set;

/// One of them.
pub struct Known {
    /// For the summary.
    pub name: &'static str,
    /// Why it is so.
    pub reason: &'static str,
    /// Where the documents say so.
    pub place: &'static str,
    /// Whether a difference is this one.
    pub is: fn(&Difference, &Set) -> bool,
}

/// All of them.
pub const KNOWN: &[Known] = &[];

/// The entry that explains a difference.
pub fn explain(difference: &Difference, set: &Set) -> Option<&'static Known> {
    KNOWN.iter().find(|known| (known.is)(difference, set))
}
