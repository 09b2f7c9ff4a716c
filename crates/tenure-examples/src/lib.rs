//! Pages of the documents whose programs are compiled.

#[doc = include_str!("../../../docs/from-moka.md")]
pub mod from_moka {}
