//! What of a file is in the page cache, found without reading it.

use super::data;
use super::part::Part;
use std::fs::File;
use std::ops::Range;
use tenure::{page_cache, ErrorKind};

/// A file as it is now.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Where it has data.
    pub data: Vec<Range<u64>>,
    /// Bytes of holes.
    pub holes: u64,
    /// Bytes of data in the page cache; `None` where the kernel does not tell this user.
    pub resident: Option<u64>,
    /// Where data is missing: everywhere, if it is not known.
    pub missing: Vec<Range<u64>>,
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

    /// The same in whole pages.
    pub fn missing_pages(&self) -> u64 {
        self.missing.iter().map(|part| super::whole_pages(part.end - part.start)).sum()
    }

    /// Where data is in the page cache; nowhere, if it is not known.
    pub fn resident_parts(&self) -> Vec<Range<u64>> {
        data::without(&self.data, &self.missing)
    }
}

/// Looks at `part` of a file of `size` bytes.
pub fn look(file: &File, size: u64, part: Part) -> tenure::Result<Look> {
    let range = part.of(size);
    let data = data::parts(file, range.clone());
    let bytes = data::total(&data);
    let holes = range.end - range.start - bytes;
    let mut resident = Vec::new();
    for part in &data {
        match page_cache::resident_parts(file, part.clone()) {
            Ok(Some(parts)) => resident.extend(parts),
            // Huge pages of the pool: always resident.
            Err(error) if error.kind() == ErrorKind::Unsupported => resident.push(part.clone()),
            Err(error) => return Err(error),
            Ok(None) => return Ok(Look { missing: data.clone(), data, holes, resident: None }),
        }
    }
    let missing = data::without(&data, &resident);
    Ok(Look { data, holes, resident: Some(data::total(&resident)), missing })
}
