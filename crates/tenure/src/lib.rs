//! tenure.
