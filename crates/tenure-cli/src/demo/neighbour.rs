//! The other process in the demo's cgroup: it needs memory, now more and now less of it.

use super::wire::{self, Hold, Holds};
use memmap2::MmapMut;
use std::io;
use std::time::Instant;

/// The neighbour takes and gives back memory in mappings of this size, so that the amount is exact
/// and does not depend on an allocator.
const BLOCK: usize = 1 << 20;

/// Holds the requested memory, until the demo is gone.
pub fn run() -> anyhow::Result<()> {
    super::process::ignore_interrupts()?;
    let mut from = io::stdin().lock();
    let mut held: Vec<MmapMut> = Vec::new();
    while let Some(Hold { bytes }) = wire::receive(&mut from)? {
        let started = Instant::now();
        let blocks = bytes as usize / BLOCK;
        held.truncate(blocks);
        while held.len() < blocks {
            held.push(block()?);
        }
        let bytes = (held.len() * BLOCK) as u64;
        let seconds = started.elapsed().as_secs_f64();
        wire::send(&mut io::stdout(), &Holds { bytes, seconds })?;
    }
    Ok(())
}

/// A block with every page written: in use, and no page of it is the zero page.
fn block() -> io::Result<MmapMut> {
    let mut block = MmapMut::map_anon(BLOCK)?;
    for page in block.chunks_mut(4096) {
        page[0] = 0xA5;
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_block_is_resident() {
        let block = super::block().unwrap();
        let range = (block.as_ptr() as usize, block.len());
        let resident = tenure_measure::pages::present_pages(range.0, range.1);
        assert!(resident.iter().all(|present| *present));
    }
}
