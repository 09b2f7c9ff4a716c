//! The differences that are known and documented. Each names its reason and its document. Every
//! other difference that the driver finds is a fault.

use crate::compare::Difference;
use crate::options::Set;

/// A known difference.
pub struct Known {
    /// The name in the summary.
    pub name: &'static str,
    /// The reason of the difference.
    pub reason: &'static str,
    /// The place in the documents.
    pub place: &'static str,
    /// Whether a difference is this one.
    pub is: fn(&Difference, &Set) -> bool,
}

/// All known differences.
pub const KNOWN: &[Known] = &[];

/// The entry that explains a difference.
pub fn explain(difference: &Difference, set: &Set) -> Option<&'static Known> {
    KNOWN.iter().find(|known| (known.is)(difference, set))
}
