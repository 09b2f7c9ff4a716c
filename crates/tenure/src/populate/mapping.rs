//! Populates and discards parts of an owned mapping.

#![allow(unsafe_code, reason = "drops part of a mapping that it borrows exclusively")]

use super::{discard, Access, Failed, HugePages, Populate, Report};
use crate::error::Result;
use crate::mapping::{Mapping, PageSize};
use crate::range::PageRange;

impl Mapping {
    /// Populates the pages that `[offset, offset + len)` of it touches, as
    /// [`Populate::run`](crate::populate::Populate::run) does.
    ///
    /// ```
    /// use tenure::populate::Access;
    /// let sparse = tenure::Mapping::anonymous(1 << 30)?;
    /// let report = sparse.populate(4 << 20, 1 << 20, Access::Write)?;
    /// assert_eq!(report.populated, 1 << 20);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for `Populate::run`.
    ///
    /// # Errors
    /// As for `Populate::run`; `EINVAL` also if the part is not inside the mapping.
    #[doc(alias = "MADV_POPULATE_WRITE")]
    #[doc(alias = "MAP_POPULATE")]
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

    /// Gives the pages of
    /// `[offset, offset + len)` back, as [`discard`](fn@crate::populate::discard) does: anonymous
    /// memory and memfds read as zeros afterwards, a private file mapping as its file.
    ///
    /// ```
    /// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
    /// memory.as_mut_slice().fill(7);
    /// memory.discard(0, 1 << 20)?;
    /// assert_eq!(memory.as_slice()[0], 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for `discard`.
    ///
    /// # Errors
    /// As for `discard`; `EINVAL` also if the part is not inside the mapping.
    #[doc(alias = "MADV_DONTNEED")]
    #[doc(alias = "MADV_REMOVE")]
    pub fn discard(&mut self, offset: usize, len: usize) -> Result<()> {
        let part = self.part("Mapping::discard", offset, len, PageRange::check)?;
        // SAFETY: `&mut self` is exclusive, so no other code refers to the bytes, and any bytes are
        // valid.
        unsafe { discard(part.start as *mut u8, part.len()) }
    }
}
