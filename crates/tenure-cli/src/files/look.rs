//! Finds which parts of a file are in the page cache, without reading the file.

use super::data;
use super::hugetlb::{self, Huge};
use super::part::Part;
use std::fs::File;
use std::ops::Range;
use tenure::page_cache;

/// A file as it is now.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The parts with data.
    pub data: Vec<Range<u64>>,
    /// Bytes of holes.
    pub holes: u64,
    /// Bytes of data in the page cache; `None`: the kernel does not tell this user.
    pub resident: Option<u64>,
    /// The missing parts of the data: all of it, if that is not known.
    pub missing: Vec<Range<u64>>,
    /// Whether its pages come from a pool of huge pages, and not from free memory.
    pub pooled: bool,
}

impl Look {
    /// Bytes of data.
    pub fn bytes(&self) -> u64 {
        data::total(&self.data)
    }

    /// Bytes of data that are missing, or may be.
    pub fn missing_bytes(&self) -> u64 {
        data::total(&self.missing)
    }

    /// The missing bytes in whole pages, as far as they take free memory.
    pub fn missing_pages(&self) -> u64 {
        if self.pooled {
            return 0;
        }
        self.missing.iter().map(|part| super::whole_pages(part.end - part.start)).sum()
    }

    /// The parts of the data in the page cache; none, if that is not known.
    pub fn resident_parts(&self) -> Vec<Range<u64>> {
        data::without(&self.data, &self.missing)
    }
}

/// Looks at `part` of a file of `size` bytes.
pub fn look(file: &File, size: u64, part: Part) -> tenure::Result<Look> {
    let range = part.of(size);
    if let Some(huge) = hugetlb::of(file) {
        return Ok(pooled(huge, range, size));
    }
    let data = data::parts(file, range.clone());
    let bytes = data::total(&data);
    let holes = range.end - range.start - bytes;
    let mut resident = Vec::new();
    for part in &data {
        match page_cache::resident_parts(file, part.clone()) {
            Ok(Some(parts)) => resident.extend(parts),
            Err(error) => return Err(error),
            Ok(None) => {
                let missing = data.clone();
                return Ok(Look { data, holes, resident: None, missing, pooled: false });
            }
        }
    }
    let missing = data::without(&data, &resident);
    Ok(Look { data, holes, resident: Some(data::total(&resident)), missing, pooled: false })
}

/// Bytes of `data` that are resident now; `None`: the kernel does not tell this user.
pub fn resident_bytes(file: &File, data: &[Range<u64>]) -> Option<u64> {
    if let Some(huge) = hugetlb::of(file) {
        return Some(huge.allocated.min(data::total(data)));
    }
    let resident =
        |part: &Range<u64>| page_cache::resident_bytes(file, part.clone()).ok().flatten();
    data.iter().map(resident).sum()
}

/// A file on hugetlbfs. The kernel does not report which of its pages are allocated. Unless all
/// are, each may be missing, and to populate a present page costs nothing.
fn pooled(huge: Huge, range: Range<u64>, size: u64) -> Look {
    let start = range.start / huge.page * huge.page;
    let range = start..range.end.next_multiple_of(huge.page).min(size);
    let data = if range.is_empty() { Vec::new() } else { vec![range] };
    let bytes = data::total(&data);
    let missing = if huge.allocated >= size { Vec::new() } else { data.clone() };
    Look { data, holes: 0, resident: Some(huge.allocated.min(bytes)), missing, pooled: true }
}
