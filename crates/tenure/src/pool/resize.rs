//! Makes a run larger or smaller: in place, or by moving its pages to another run.

#![allow(unsafe_code, reason = "copies and moves blocks")]

use super::alloc_run::{self, Request};
use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::{flag, state, Run, BORDERS};
use super::{free_run, given_up, locked, lookup, misuse, room, split, zero};
use crate::os::arena::{self, NotMoved};
use crate::os::{advise, page_size, HUGE_PAGE};
use crate::range::PageRange;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// From this size on pages are moved. For 256 KiB a move takes 4 to 8 µs, a copy into a warm run 5
/// µs, and a copy into a fresh one 65 to 95 µs.
const MOVE_FROM: usize = 512 << 10;
/// Up to this size pages are copied.
pub(super) const COPY_UP_TO: usize = MOVE_FROM - 1;
/// Pages move into a warm run only from this size on. The kernel frees the warm run's own pages
/// then, so later blocks lack them.
const MOVE_OVER_FROM: usize = 32 << 20;
/// A smaller block gives its remaining pages back only from this size on.
const TAIL_FROM: usize = 64 << 10;

/// See [`realloc`](super::realloc). `own`: how many bytes the owner has, if it says so. Only these keep
/// their contents then, and with `zeroed` the others are zero, whatever the pool counts: a block of
/// no bytes has one byte, and `usable_size` grants whole pages.
///
/// # Safety
/// The promise of [`realloc`](super::realloc).
pub(super) unsafe fn realloc(
    at: usize,
    own: Option<usize>,
    new_size: usize,
    align: usize,
    zeroed: bool,
) -> Option<NonNull<u8>> {
    let Some((reservation, spot)) = lookup::find(at) else {
        misuse::not_an_allocation("realloc", at, None);
    };
    if !align.is_power_of_two() {
        return None;
    }
    let new_size = new_size.max(1);
    let run = reservation.run(spot);
    // In the state `MOVING` a second free or realloc of the run ends the process with a message.
    free_run::claim("realloc", at, reservation, spot, run);
    let old_size = own.unwrap_or_else(|| run.size());
    let room = match given_up::is_over() {
        true => old_size.next_multiple_of(page_size()),
        false => reservation.start(spot) + reservation.area(spot.class).stride - at,
    };
    if new_size > room && given_up::is_over() {
        counters::add(Counter::Refused, 1);
        run.set_state(state::IN_USE);
        return None;
    }
    if new_size <= room && at % align == 0 {
        resize_in_place(reservation, spot, at, (old_size, new_size), zeroed);
        counters::add(Counter::InPlace, 1);
        run.set_state(state::IN_USE);
        return NonNull::new(at as *mut u8);
    }
    let may_move = old_size >= MOVE_FROM && !run.is(flag::TAINTED) && split::may_move();
    let is_locked = may_move && locked::is_locked(lookup::live(reservation, spot));
    let movable = may_move && !is_locked;
    let page = run.offset.load(Ordering::Relaxed) as usize;
    let taken = match movable && new_size > old_size {
        true => take_to_grow(reservation, new_size, align, page),
        false => Request::new(reservation, new_size, align)
            .map(|request| request.at_page(page))
            .and_then(|request| Some((request, alloc_run::take(reservation, &request)?))),
    };
    let taken = taken.and_then(|(request, (to, from))| {
        if reservation.run(to).touched() == 0 {
            room::make(
                reservation,
                to,
                if movable { new_size - old_size.min(new_size) } else { new_size },
            );
        }
        let (new, touched) = alloc_run::hand_out(reservation, &request, to, from)?;
        Some((to, new, touched))
    });
    let Some((to, new, touched)) = taken else {
        counters::add(Counter::Refused, 1);
        run.set_state(state::IN_USE);
        return None;
    };
    let kept = old_size.min(new_size);
    let is_warm = touched * page_size() >= new_size;
    let moved = match movable && !(is_warm && kept < MOVE_OVER_FROM) {
        true => move_pages(reservation, spot, at, to, new, kept),
        false => Moved::none(),
    };
    if moved.target_lost {
        move_back(reservation, at, to, new, moved.bytes.min(kept));
        split::stop_moving();
        run.set_state(state::IN_USE);
        // SAFETY: the run is back at its place, and the caller uses only the address that this
        // returns.
        return unsafe { realloc(at, own, new_size, align, zeroed) };
    }
    let moved = moved.bytes;
    if moved < kept {
        // SAFETY: the caller's block and the new run are this thread's for now, and they do not
        // overlap.
        unsafe {
            let (from, to) = ((at + moved) as *const u8, (new + moved) as *mut u8);
            std::ptr::copy_nonoverlapping(from, to, kept - moved);
        }
    }
    if zeroed && new_size > old_size {
        // The moved pages may hold any bytes past the old size.
        let pages = (new + old_size - reservation.start(to)).div_ceil(page_size());
        let start = new + old_size;
        zero::run(reservation, to, touched.max(pages), start, new_size - old_size);
    }
    if is_locked {
        locked::unlock(run, reservation.area(spot.class).range_of(spot.index));
    }
    free_run::put(reservation, spot);
    NonNull::new(new as *mut u8)
}

/// Takes a warm run first: if growth took fresh runs, the runs that it grew out of would stay
/// unused. Otherwise it takes a run in which the size may double: the addresses cost nothing, and
/// each move makes a mapping.
fn take_to_grow(
    reservation: &Reservation,
    size: usize,
    align: usize,
    page: usize,
) -> Option<(Request, (Spot, u32))> {
    let exact = Request::new(reservation, size, align)?.at_page(page);
    if let Some(warm) = alloc_run::take_warm(reservation, &exact) {
        return Some((exact, warm));
    }
    size.checked_mul(2)
        .and_then(|room| Request::with_room(reservation, size, align, room))
        .map(|roomy| roomy.at_page(page))
        .and_then(|roomy| Some((roomy, alloc_run::take(reservation, &roomy)?)))
        .or_else(|| Some((exact, alloc_run::take(reservation, &exact)?)))
}

fn resize_in_place(
    reservation: &Reservation,
    spot: Spot,
    at: usize,
    (old_size, new_size): (usize, usize),
    zeroed: bool,
) {
    let page = page_size();
    let run = reservation.run(spot);
    let touched = run.touched();
    let start = reservation.start(spot);
    if new_size > old_size {
        if zeroed {
            let more = new_size - old_size;
            zero::run(reservation, spot, touched, at + old_size, more);
        }
        run.set_touched(touched.max((at + new_size - start).div_ceil(page)));
    } else {
        give_tail_back(reservation, spot, at + new_size);
    }
    let counted = run.size.swap(new_size as u64, Ordering::Relaxed);
    // Neither sum falls: see `room::in_use`.
    match (new_size as u64).checked_sub(counted) {
        Some(more) => counters::add(Counter::AllocatedBytes, more),
        None => counters::add(Counter::FreedBytes, counted - new_size as u64),
    }
}

/// Gives the pages past `end` back, if that is worth a system call and splits no huge page.
fn give_tail_back(reservation: &Reservation, spot: Spot, end: usize) {
    let page = page_size();
    let (area, run) = (reservation.area(spot.class), reservation.run(spot));
    let start = reservation.start(spot);
    let mut from = end.next_multiple_of(page);
    if from < start + area.huge {
        from = from.next_multiple_of(HUGE_PAGE);
    }
    let to = start + run.touched() * page;
    if to < from + TAIL_FROM || run.is(flag::TAINTED) {
        return;
    }
    let tail = PageRange::new(from, to);
    // SAFETY: the pages lie past the end of a block that its owner has made smaller.
    let drop_pages = || unsafe { advise::drop_pages(tail) }.is_ok();
    // The kernel refuses if the program has locked the block.
    if drop_pages() || locked::unlock(run, tail) && drop_pages() {
        counters::add(Counter::ReturnedBytes, (to - from) as u64);
        run.set_touched((from - start) / page);
    }
}

/// The result of moving pages.
struct Moved {
    /// How many bytes are at the new place, from the first on.
    bytes: usize,
    /// See [`NotMoved::TargetLost`].
    target_lost: bool,
}

impl Moved {
    fn none() -> Moved {
        Moved { bytes: 0, target_lost: false }
    }
}

/// Gives up the run `to`, because the pool cannot know its mappings any more. The moved bytes are
/// copied back, and the pool hands the run out no more.
fn move_back(reservation: &Reservation, at: usize, to: Spot, new: usize, bytes: usize) {
    // SAFETY: the moved bytes lie at the new place, and this thread alone has that run. Their old
    // place is mapped and empty.
    unsafe { std::ptr::copy_nonoverlapping(new as *const u8, at as *mut u8, bytes) };
    let pages = bytes.next_multiple_of(page_size());
    if pages > 0 {
        // SAFETY: the bytes were copied back, and the run is this thread's alone.
        let _ = unsafe { advise::drop_pages(PageRange::new(new, new + pages)) };
    }
    let run = reservation.run(to);
    counters::add(Counter::Frees, 1);
    counters::add(Counter::FreedBytes, run.size() as u64);
    run.set_state(state::LEFT);
}

/// Moves the pages of `[at, at + len)` to `new`. Returns how many bytes are there now: all, or
/// fewer if the kernel refused. Each call moves one mapping, because only Linux 6.17 and later
/// moves several at once. If the run's record has no room for another border, its first mappings,
/// which are the smallest, are copied instead.
fn move_pages(
    reservation: &Reservation,
    from: Spot,
    at: usize,
    to: Spot,
    new: usize,
    len: usize,
) -> Moved {
    let page = page_size();
    let (source, target) = (reservation.run(from), reservation.run(to));
    let end = at + len.next_multiple_of(page);
    let mut ends = [end; BORDERS + 2];
    let mut count = 0;
    let start = reservation.start(from);
    let huge = start + reservation.area(from.class).huge;
    for border in borders(source).map(|border| start + border * page).chain([huge]) {
        if border > at && border < end {
            ends[count] = border;
            count += 1;
        }
    }
    ends[..count].sort_unstable();
    let lead = match count + 2 < BORDERS {
        true => 0,
        false => ends[count / 2] - at,
    };
    // SAFETY: both runs are this thread's for now, do not overlap, and have that many bytes.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, new as *mut u8, lead.min(len)) };
    let mut moved = lead;
    for end in ends[..=count].iter().filter(|end| **end > at + lead) {
        let range = PageRange { start: at + moved, end: *end };
        if range.start == range.end {
            continue;
        }
        // SAFETY: both runs are this thread's for now, and no owner needs the pages that are
        // replaced at the new place.
        match unsafe { arena::move_pages(range, new + moved) } {
            Ok(()) => moved += range.len(),
            Err(NotMoved::Unchanged) => break,
            Err(NotMoved::TargetLost) => return Moved { bytes: moved, target_lost: true },
        }
    }
    if moved == lead {
        return Moved { bytes: lead.min(len), target_lost: false };
    }
    let offset = (new - reservation.start(to)) / page;
    let news = ends[..=count].iter().map(|end| end - at);
    let news = news.filter(|end| (lead.max(1)..=moved).contains(end));
    split::note_moved(target);
    set_borders(target, news.map(|end| offset + end / page), offset + moved / page);
    target.forks.store(source.forks.load(Ordering::Relaxed), Ordering::Relaxed);
    if (at - start + moved) / page >= source.touched() {
        // The pages before the program's part may hold bytes of an earlier use.
        source.set_touched((at - start + lead) / page);
    }
    counters::add(Counter::Moved, 1);
    counters::add(Counter::MovedBytes, (moved - lead) as u64);
    Moved { bytes: moved.min(len), target_lost: false }
}

/// The borders of a run, in pages from its start.
fn borders(run: &Run) -> impl Iterator<Item = usize> + '_ {
    run.borders.iter().map(|at| at.load(Ordering::Relaxed) as usize).take_while(|at| *at != 0)
}

/// Sets the borders up to `end`, and keeps those beyond it.
fn set_borders(run: &Run, news: impl Iterator<Item = usize>, end: usize) {
    let mut all = [0; 2 * BORDERS + 2];
    let later = borders(run).filter(|at| *at > end);
    for (place, border) in all.iter_mut().zip(news.chain(later)) {
        *place = border;
    }
    // A border that is left out only makes a later move fail; that block is copied then.
    for (place, border) in run.borders.iter().zip(all) {
        place.store(border as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::reservation;
    use super::*;
    use tenure_testkit::{in_child, this_test};

    #[test]
    fn a_block_that_loses_64_kib_gives_them_back_and_one_that_loses_less_keeps_them() {
        in_child(this_test!(), &[], || {
            let returned = || counters::get(Counter::ReturnedBytes);
            let block = super::super::alloc(256 << 10, 16, false).expect("there is room");
            // SAFETY: the block has these bytes, and shrinks in place.
            let shrink = |to: usize| unsafe {
                block.write_bytes(1, to);
                assert_eq!(super::super::realloc(block, to, 16, false), Some(block));
            };
            shrink(256 << 10);
            shrink(192 << 10);
            assert_eq!(returned(), 64 << 10);
            shrink(132 << 10);
            assert_eq!(returned(), 64 << 10);
        });
    }

    /// A border that is not recorded makes a later move stop there, and copy the rest.
    #[test]
    fn a_run_of_many_pieces_moves_with_all_its_borders() {
        const LEN: usize = 17 << 20;
        in_child(this_test!(), &[], || {
            let page = page_size();
            let [from, to] = [(); 2].map(|()| {
                let block = super::super::alloc(LEN, page, false).expect("there is room");
                // SAFETY: the block has these bytes.
                unsafe { block.write_bytes(3, LEN) };
                block.as_ptr() as usize
            });
            let reservation = reservation::known().expect("it has runs");
            let spot = |at| lookup::find(at).expect("a run's address").1;
            // As after sixteen moves, each with another mebibyte.
            let offset = (from - reservation.start(spot(from))) / page;
            for (n, border) in reservation.run(spot(from)).borders.iter().enumerate() {
                border.store((offset + ((n + 1) << 20) / page) as u32, Ordering::Relaxed);
            }
            // SAFETY: the block has these bytes.
            let bytes = |at| unsafe { std::slice::from_raw_parts_mut(at as *mut u8, LEN) };
            for (n, byte) in bytes(from).iter_mut().enumerate() {
                *byte = (n >> 12) as u8;
            }
            let moved = move_pages(reservation, spot(from), from, spot(to), to, LEN);
            if moved.bytes < LEN {
                tenure_testkit::skip!("the kernel moves no pages here");
            }
            assert!(bytes(to).iter().enumerate().all(|(n, byte)| *byte == (n >> 12) as u8));
            let target = reservation.run(spot(to));
            let end = (to - reservation.start(spot(to)) + LEN) / page;
            assert_eq!(borders(target).last(), Some(end));
            assert!(borders(target).count() < BORDERS);
        });
    }
}
