//! The pool's runs, as the program publishes them.

use super::memory::{word, Memory};
use super::range::{wrong, Range, State, MOST_LISTED};
use std::io;

/// The most records that are read at once.
const BATCH: u64 = 1 << 12;

/// The places of the fields, which the program publishes.
struct Layout {
    area_size: u64,
    start_at: u64,
    stride_at: u64,
    runs_at: u64,
    used_at: u64,
    run_size: u64,
    state_at: u64,
    size_at: u64,
    /// The numbers of these states in a record; [`TRIMMED`] is in use, too.
    states: [u64; 4],
}

const IN_USE: usize = 0;
const WARM: usize = 1;
const OFFERED: usize = 2;
const TRIMMED: usize = 3;

impl Layout {
    fn is_sane(&self) -> bool {
        let fits =
            |at: u64, len: u64, whole: u64| at.checked_add(len).is_some_and(|end| end <= whole);
        let words = [self.start_at, self.stride_at, self.runs_at];
        (8..=4096).contains(&self.area_size)
            && (8..=4096).contains(&self.run_size)
            && words.iter().all(|at| fits(*at, 8, self.area_size))
            && fits(self.used_at, 4, self.area_size)
            && fits(self.state_at, 4, self.run_size)
            && fits(self.size_at, 8, self.run_size)
    }

    /// The run of a record, if it holds memory.
    fn run(&self, record: &[u8], start: u64, stride: u64) -> Option<Range> {
        let number = u64::from(short_word(&record[self.state_at as usize..]));
        let state = match self.states.iter().position(|state| *state == number)? {
            IN_USE | TRIMMED => State::InUse,
            WARM => State::Warm,
            OFFERED => State::FreeOffered,
            _ => return None,
        };
        let size = word(&record[self.size_at as usize..]);
        let len = if state == State::InUse { size.min(stride) } else { stride };
        Some(Range { start, len, state, uses: 0, is_long: false })
    }

    /// Adds the runs of an area.
    fn area(&self, memory: &Memory, area: &[u8], all: &mut Vec<Range>) -> io::Result<()> {
        let field = |at: u64| word(&area[at as usize..]);
        let (start, stride, runs) =
            (field(self.start_at), field(self.stride_at), field(self.runs_at));
        let used = u64::from(short_word(&area[self.used_at as usize..]));
        for batch in (0..used).step_by(BATCH as usize) {
            if all.len() >= MOST_LISTED {
                return Ok(());
            }
            let mut records = vec![0; ((used - batch).min(BATCH) * self.run_size) as usize];
            memory.read(place(runs, batch, self.run_size)?, &mut records)?;
            for (number, record) in (batch..).zip(records.chunks_exact(self.run_size as usize)) {
                all.extend(self.run(record, place(start, number, stride)?, stride));
            }
        }
        Ok(())
    }
}

/// Adds the runs that hold memory.
pub fn read(memory: &Memory, at: u64, numbers: &[u64], all: &mut Vec<Range>) -> io::Result<()> {
    let [classes_at, most, areas_at, area_size, start_at, stride_at, runs_at, used_at, run_size, state_at, size_at, states @ ..] =
        numbers
    else {
        return Err(wrong("a part is too short"));
    };
    let layout = Layout {
        area_size: *area_size,
        start_at: *start_at,
        stride_at: *stride_at,
        runs_at: *runs_at,
        used_at: *used_at,
        run_size: *run_size,
        state_at: *state_at,
        size_at: *size_at,
        states: *states.first_chunk().ok_or_else(|| wrong("a part is too short"))?,
    };
    if !layout.is_sane() || *most > 256 {
        return Err(wrong("the pool's runs cannot lie so"));
    }
    let classes = memory.words(place(at, *classes_at, 1)?, 1)?[0].min(*most);
    let mut areas = vec![0; (classes * area_size) as usize];
    memory.read(place(at, *areas_at, 1)?, &mut areas)?;
    areas.chunks_exact(*area_size as usize).try_for_each(|area| layout.area(memory, area, all))
}

/// The address of an element.
fn place(first: u64, number: u64, stride: u64) -> io::Result<u64> {
    let place = number.checked_mul(stride).and_then(|offset| first.checked_add(offset));
    place.ok_or_else(|| wrong("an address is too large"))
}

/// The word of 32 bits that begins with the first byte; there are four.
fn short_word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
