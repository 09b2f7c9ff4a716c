//! Populating and discarding an owned mapping.

use super::{discard, Access, Failed, HugePages, Populate, Report};
use crate::error::Result;
use crate::mapping::{Mapping, PageSize};
use crate::range::PageRange;

impl Mapping {
    /// Populates the pages that `[offset, offset + len)` of it touches, as
    /// [`Populate::run`](crate::populate::Populate::run) does.
    ///
    /// # Errors
    /// As there; `EINVAL` also where the part is not inside the mapping.
    pub fn populate(
        &self,
        offset: usize,
        len: usize,
        access: Access,
    ) -> std::result::Result<Report, Failed> {
        let part = self.part("Mapping::populate", offset, len, PageRange::touched)?;
        let populate = Populate::new(part.start as *const u8, part.len(), access);
        // A mapping that was made with base pages keeps them.
        match self.pages() {
            PageSize::Base => populate.huge_pages(HugePages::Leave).run(),
            _ => populate.run(),
        }
    }

    /// Gives the pages of `[offset, offset + len)` back, as [`discard`](fn@crate::populate::discard)
    /// does: anonymous memory and memfds read as zeros afterwards, a private file mapping as its
    /// file.
    ///
    /// # Errors
    /// As there; `EINVAL` also where the part is not inside the mapping.
    pub fn discard(&mut self, offset: usize, len: usize) -> Result<()> {
        let part = self.part("Mapping::discard", offset, len, PageRange::check)?;
        // SAFETY: `&mut self`: nobody else refers to the bytes, and any bytes are valid ones.
        unsafe { discard(part.start as *mut u8, part.len()) }
    }
}
