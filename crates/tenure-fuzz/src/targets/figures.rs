//! Figures that a process publishes about itself, some of which are false. This process publishes
//! them, and reads them.

use super::promise::{holds, same};
use crate::os::figures_page;
use crate::process::figures::{Figures, Missing};
use arbitrary::Unstructured;
use tenure::published::{Root, MAGIC, PLACES, RANGES, WORDS};

/// The page can be made, and its process's memory can be read.
pub fn can_run() -> Result<(), String> {
    match Figures::read(std::process::id()) {
        Err(Missing::Unknown(error) | Missing::Unreadable(error)) => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// The words in which the figures lie.
const ARENA: usize = 4096;
/// The places of its parts, in words.
const OF_WORDS: usize = 64;
const OF_RANGES: usize = 96;
const NAMES: usize = 160;
const FIGURES: usize = 512;
const CHUNKS: usize = 1024;
const CHUNK: usize = 1100;
const TEXT: &[u8; 32] = b"marks unmarks longest_wait_ns x ";

/// A process as it is: four figures in two shards, and sixteen ranges in two chunks.
fn honest(words: &mut [u64; ARENA]) {
    let base = words.as_ptr() as u64;
    let at = |word: usize| base + 8 * word as u64;
    (words[0], words[1]) = (at(OF_WORDS), at(OF_RANGES));
    words[OF_WORDS..OF_WORDS + 7].copy_from_slice(&[
        WORDS as u64,
        at(FIGURES),
        at(NAMES),
        TEXT.len() as u64,
        4,
        2,
        64,
    ]);
    words[OF_RANGES..OF_RANGES + 20].copy_from_slice(&[
        RANGES as u64,
        at(CHUNKS),
        at(NAMES),
        0,
        // chunks, places, made, chunk, stride, word_at, start_at, len_at
        8,
        2,
        0,
        8,
        48,
        0,
        8,
        16,
        // pins, offered, free, one that is not used, age_at, seen_at, held, long
        (1 << 20) - 1,
        1 << 21,
        1 << 25,
        0,
        40,
        28,
        1 << 31,
        200,
    ]);
    for (word, text) in words[NAMES..].iter_mut().zip(TEXT.chunks(8)) {
        *word = text.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)).to_le();
    }
    (words[CHUNKS], words[CHUNKS + 1], words[CHUNKS + 2]) = (16, at(CHUNK), at(CHUNK + 48));
}

/// A number: any, a small one, an address of the arena's, or one that breaks arithmetic.
fn number(input: &mut Unstructured<'_>, base: u64) -> arbitrary::Result<u64> {
    const EDGES: [u64; 10] =
        [0, 1, 8, 64, 256, 4096, 1 << 20, 1 << 25, i64::MAX as u64, u64::MAX - 7];
    Ok(match input.int_in_range(0..=4)? {
        0 => input.arbitrary()?,
        1 => u64::from(input.arbitrary::<u8>()?),
        2 => base + u64::from(input.arbitrary::<u16>()? % 40_000),
        3 => EDGES[input.int_in_range(0..=EDGES.len() - 1)?],
        _ => EDGES[input.int_in_range(0..=EDGES.len() - 1)?].wrapping_neg(),
    })
}

fn lie(
    input: &mut Unstructured<'_>,
    root: &mut Root,
    words: &mut [u64; ARENA],
) -> arbitrary::Result<()> {
    let base = words.as_ptr() as u64;
    let place = match input.int_in_range(0..=9)? {
        0 => {
            let new = number(input, base)? as usize;
            match input.int_in_range(0..=3)? {
                0 => root.size = new,
                1 => root.parts = new,
                2 => root.places = new,
                _ => root.version = (new as u128 * 0x1_0001).to_ne_bytes(),
            }
            return Ok(());
        }
        1 => input.int_in_range(0..=31)?,
        2 | 3 => OF_WORDS + input.int_in_range(0..=19)?,
        4..=6 => OF_RANGES + input.int_in_range(0..=19)?,
        7 => NAMES + input.int_in_range(0..=3)?,
        8 => CHUNKS + input.int_in_range(0..=2)?,
        _ => input.int_in_range(0..=ARENA - 1)?,
    };
    words[place] = number(input, base)?;
    Ok(())
}

pub fn run(input: &[u8]) -> Result<(), String> {
    let mut input = Unstructured::new(input);
    let mut words = Box::new([0; ARENA]);
    honest(&mut words);
    let mut version = [0; 16];
    version[..5].copy_from_slice(b"0.0.7");
    let (size, parts) = (size_of::<Root>(), words.as_ptr() as usize);
    let mut root = Root { magic: MAGIC, size, parts, places: PLACES, version };
    let is_honest = input.is_empty();
    while !input.is_empty() && lie(&mut input, &mut root, &mut words).is_ok() {}
    let page = figures_page::make(root).ok_or("the page cannot be made")?;
    let read = Figures::read(std::process::id());
    figures_page::end(page);
    if let Ok(figures) = &read {
        holds("not too many ranges are listed", figures.ranges.len() <= 1 << 20)?;
        let in_order = figures.ranges.windows(2).all(|two| two[0].start <= two[1].start);
        holds("the ranges are in order", in_order)?;
        let shown = figures.versions.iter().all(|text| text.chars().all(|c| c.is_ascii_graphic()));
        holds("a version can be shown", shown)?;
        // The statistics made from them add numbers up.
        let _ = figures.stats();
        let mut sum = figures.clone();
        sum.add(figures.clone());
    }
    if is_honest {
        let figures = read.map_err(|missing| format!("honest figures are refused: {missing:?}"))?;
        same("the ranges", &figures.ranges.len(), &16)?;
        same("the version", &figures.versions, &vec!["0.0.7".to_owned()])?;
        holds("the names", figures.has("marks") && figures.has("x"))?;
    }
    Ok(())
}
