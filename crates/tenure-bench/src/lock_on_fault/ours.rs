//! tenure's way: locked on fault, and populated behind.

use super::file::Mapped;
use std::io;
use tenure::lock::{gradually, Gradual};

pub(super) fn hold(map: &Mapped) -> io::Result<Gradual> {
    Ok(gradually(map.addr(), map.len())?)
}
