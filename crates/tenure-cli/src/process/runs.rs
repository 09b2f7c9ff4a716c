//! The pool's runs, as the program publishes them.

use super::memory::{word, Memory};
use super::range::{wrong, Range, State, MOST_LISTED};
use std::io;

/// The most records that are read at once.
const BATCH: u64 = 1 << 12;

/// Adds the runs that hold memory.
pub fn read(memory: &Memory, at: u64, numbers: &[u64], all: &mut Vec<Range>) -> io::Result<()> {
    let [classes_at, most, areas_at, area_size, start_at, stride_at, runs_at, used_at, run_size, state_at, size_at, in_use, warm, offered, trimmed, _] =
        *numbers
    else {
        return Err(wrong("a part is too short"));
    };
    let fits =
        |at: u64, size: u64, whole: u64| at.checked_add(size).is_some_and(|end| end <= whole);
    let is_sane = most <= 256
        && area_size <= 4096
        && run_size <= 4096
        && [start_at, stride_at, runs_at].iter().all(|at| fits(*at, 8, area_size))
        && fits(used_at, 4, area_size)
        && fits(state_at, 4, run_size)
        && fits(size_at, 8, run_size);
    if !is_sane {
        return Err(wrong("the pool's runs cannot lie so"));
    }
    let place =
        |offset: u64| at.checked_add(offset).ok_or_else(|| wrong("an address is too large"));
    let classes = memory.words(place(classes_at)?, 1)?[0].min(most);
    let mut areas = vec![0; (classes * area_size) as usize];
    memory.read(place(areas_at)?, &mut areas)?;
    let first = all.len();
    for area in areas.chunks_exact((area_size as usize).max(1)) {
        let field = |at: u64| word(&area[at as usize..]);
        let (start, stride, runs) = (field(start_at), field(stride_at), field(runs_at));
        let used = u64::from(short_word(&area[used_at as usize..]));
        for batch in (0..used).step_by(BATCH as usize) {
            let mut records = vec![0; ((used - batch).min(BATCH) * run_size) as usize];
            let from = batch.checked_mul(run_size).and_then(|offset| runs.checked_add(offset));
            memory.read(from.ok_or_else(|| wrong("an address is too large"))?, &mut records)?;
            for (number, record) in records.chunks_exact((run_size as usize).max(1)).enumerate() {
                let state = u64::from(short_word(&record[state_at as usize..]));
                let state = match state {
                    _ if state == in_use || state == trimmed => State::InUse,
                    _ if state == warm => State::Warm,
                    _ if state == offered => State::FreeOffered,
                    _ => continue,
                };
                let before = (batch + number as u64).checked_mul(stride);
                let Some(start) = before.and_then(|before| start.checked_add(before)) else {
                    break;
                };
                let size = word(&record[size_at as usize..]);
                let len = if state == State::InUse { size.min(stride) } else { stride };
                if all.len() - first < MOST_LISTED {
                    all.push(Range { start, len, state, uses: 0, is_long: false });
                }
            }
        }
    }
    Ok(())
}

/// The word of 32 bits that begins with the first byte; there are four.
fn short_word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
