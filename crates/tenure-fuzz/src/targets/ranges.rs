//! Range arithmetic, compared with arithmetic in 128 bits.

use super::promise::{holds, same};
use crate::os::{page_size, HUGE_PAGE};
use crate::range::PageRange;
use arbitrary::Unstructured;

/// A number, mostly near values that break arithmetic.
fn number(input: &mut Unstructured<'_>) -> arbitrary::Result<usize> {
    const EDGES: [usize; 8] =
        [0, 4096, 1 << 21, 1 << 47, isize::MAX as usize, 1 << 63, usize::MAX, usize::MAX - 4095];
    let edge = EDGES[input.int_in_range(0..=EDGES.len() - 1)?];
    Ok(match input.int_in_range(0..=4)? {
        0 => input.arbitrary()?,
        1 => edge,
        2 => edge.wrapping_add(input.int_in_range(0..=9000)?),
        3 => edge.wrapping_sub(input.int_in_range(0..=9000)?),
        _ => edge.wrapping_add(input.int_in_range(0..=3000)? * page_size()),
    })
}

pub fn run(input: &[u8]) -> Result<(), String> {
    let mut input = Unstructured::new(input);
    while !input.is_empty() {
        let (Ok(addr), Ok(len)) = (number(&mut input), number(&mut input)) else { break };
        let Ok(step) = input.int_in_range(1..=1024) else { break };
        checked(addr, len)?;
        touched(addr, len)?;
        if let Ok(range) = PageRange::check("fuzz", addr as *const u8, len) {
            parts(range, step * page_size())?;
        }
    }
    Ok(())
}

/// The range that the kernel would accept, in numbers that cannot wrap.
fn model(addr: usize, len: usize) -> Option<(u128, u128)> {
    let (page, start, end) = (page_size() as u128, addr as u128, addr as u128 + len as u128);
    let fits = start > 0 && len > 0 && end <= isize::MAX as u128;
    (fits && start % page == 0 && end % page == 0).then_some((start, end))
}

fn wide(range: Result<PageRange, crate::error::Error>) -> Option<(u128, u128)> {
    range.ok().map(|range| (range.start as u128, range.end as u128))
}

fn checked(addr: usize, len: usize) -> Result<(), String> {
    let got = PageRange::check("fuzz", addr as *const u8, len);
    if let Err(error) = &got {
        same("the error's number", &error.errno(), &libc::EINVAL)?;
        holds("the error names the call", error.to_string().contains("fuzz"))?;
    }
    same(&format!("check({addr:#x}, {len:#x})"), &wide(got), &model(addr, len))
}

fn touched(addr: usize, len: usize) -> Result<(), String> {
    let got = PageRange::touched("fuzz", addr as *const u8, len);
    let page = page_size() as u128;
    let whole = usize::try_from((len as u128).div_ceil(page) * page).ok();
    let wanted = whole.filter(|_| len > 0).and_then(|whole| model(addr, whole));
    same(&format!("touched({addr:#x}, {len:#x})"), &wide(got), &wanted)
}

fn parts(range: PageRange, step: usize) -> Result<(), String> {
    let huge = range.huge_part();
    let first = (range.start as u128).div_ceil(HUGE_PAGE as u128) * HUGE_PAGE as u128;
    let last = range.end as u128 / HUGE_PAGE as u128 * HUGE_PAGE as u128;
    let wanted = (first < last).then_some((first, last));
    let got = huge.map(|part| (part.start as u128, part.end as u128));
    same(&format!("the huge pages of {range:?}"), &got, &wanted)?;
    // A vast range has more pieces than the time allows.
    let mut at = range.start;
    for piece in range.pieces(step).take(200) {
        same("a piece's start", &piece.start, &at)?;
        holds("a piece has bytes", piece.end > piece.start)?;
        let cut = piece.end % step == 0 || piece.end == range.end;
        holds("a piece ends at a multiple of the step", cut && piece.len() <= step)?;
        at = piece.end;
    }
    let all = (range.end - range.start).div_ceil(step) + 1;
    holds("the pieces end with the range", at == range.end || all > 200)
}
