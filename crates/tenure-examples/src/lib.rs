//! The pages of the guide: their programs are compiled and run as documentation tests.

#![deny(unsafe_code)]

#[doc = include_str!("../../../docs/README.md")]
pub mod start {}
#[doc = include_str!("../../../docs/guide/caches.md")]
pub mod caches {}
#[doc = include_str!("../../../docs/guide/buffers.md")]
pub mod buffers {}
#[doc = include_str!("../../../docs/guide/shared.md")]
pub mod shared {}
#[doc = include_str!("../../../docs/guide/locks.md")]
pub mod locks {}
#[doc = include_str!("../../../docs/guide/populate.md")]
pub mod populate {}
#[doc = include_str!("../../../docs/guide/run.md")]
pub mod run {}
#[doc = include_str!("../../../docs/guide/retire.md")]
pub mod retire {}
#[doc = include_str!("../../../docs/guide/observe.md")]
pub mod observe {}
#[doc = include_str!("../../../docs/guide/choosing.md")]
pub mod choosing {}
#[doc = include_str!("../../../docs/guide/trouble.md")]
pub mod trouble {}
