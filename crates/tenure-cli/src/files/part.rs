//! A part of a file, as the user of `--range` names it.

use super::page::page;
use crate::size;
use std::ops::Range;

/// From a byte on, to a byte or the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    start: u64,
    end: Option<u64>,
}

impl Part {
    /// Returns this part of a file of `size` bytes, from a page boundary on.
    pub fn of(self, size: u64) -> Range<u64> {
        let end = self.end.unwrap_or(size).min(size);
        let start = self.start / page() * page();
        start.min(end)..end
    }
}

/// Reads `1M..2M`, `1M..` or `..2M`.
pub fn parse(text: &str) -> Result<Part, String> {
    let (start, end) =
        text.split_once("..").ok_or("expected A..B, A.. or ..B, with sizes such as 4096 or 64M")?;
    let size = |text: &str| size::parse(text).map_err(|why| format!("\"{text}\": {why}"));
    let start = if start.trim().is_empty() { 0 } else { size(start)? };
    let end = if end.trim().is_empty() { None } else { Some(size(end)?) };
    if end.is_some_and(|end| end <= start) {
        return Err("it ends where it begins, or before; expected A..B with B above A".into());
    }
    Ok(Part { start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_clipped() {
        let page = page();
        assert_eq!(parse("..").unwrap().of(5000), 0..5000);
        assert_eq!(parse("..1k").unwrap().of(5000), 0..1024);
        assert_eq!(parse("1M..2M").unwrap().of(3 << 20), 1 << 20..2 << 20);
        assert_eq!(parse("1M..2M").unwrap().of(5000), 5000..5000);
        let inside = parse(&format!("{}..", page + 1)).unwrap();
        assert_eq!(inside.of(3 * page), page..3 * page, "whole pages");
        for wrong in ["", "5", "2M..1M", "x..", "1..1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
