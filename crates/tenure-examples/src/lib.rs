//! Pages of the documents whose programs are compiled.

#![deny(unsafe_code)]

#[doc = include_str!("../../../docs/from-moka.md")]
pub mod from_moka {}
