//! Pages for a run that has none, or too few: those of free runs of other sizes, which are moved to it.
//!
//! Without them a program whose sizes change would keep the memory of each size beside that of the others. A page that
//! is moved takes 10 to 20 ns; one that the kernel makes takes 500.

use super::counters::{self, Counter};
use super::run::{flag, state, Run, BORDERS};
use super::settings::{settings, HugePages};
use super::territory::{Spot, Territory};
use super::{class, depot, leave, release, split};
use crate::os::arena::{self, NotMoved};
use crate::os::{advise, page_size, thp, HUGE_PAGE};
use crate::range::PageRange;
use crate::runtime::fork;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A move takes 15 µs besides its pages: it pays where it spares so many faults.
const LEAST: usize = 512 << 10;
/// What may lie free beside a run that takes new pages: a program that goes back and forth between two sizes need not
/// move their pages.
const MAY_LIE_FREE: u64 = 4 << 20;
/// Of what the program has, the part that may lie free.
const PART_FREE: u64 = 16;
/// Moved in one system call, for which the lock of all mappings is held: 250 µs of base pages.
const SLICE: usize = 64 << 20;
/// So many runs are tried in vain.
const FAILURES: usize = 4;

/// What is mapped at the run cannot be told any more: it is nobody's from now on.
pub(super) struct Lost;

/// Moves pages of free runs to a run of state `MOVING`, for its first `wanted` pages.
pub(super) fn gather(territory: &Territory, to: Spot, wanted: usize) -> Result<(), Lost> {
    let run = territory.run(to);
    let least = LEAST / page_size();
    if wanted < run.touched() + least || !may_gather(territory, run) {
        return Ok(());
    }
    let Some(unit) = unit(territory, to.class) else { return Ok(()) };
    let end = wanted.next_multiple_of(unit);
    let mut failures = 0;
    while failures < FAILURES {
        let at = run.touched().next_multiple_of(unit);
        if at + least > wanted {
            break;
        }
        let Some((from, was)) = take_free(territory) else { break };
        let all = territory.run(from).touched();
        let cut = all.next_multiple_of(unit).saturating_sub(end - at);
        let moved = match may_give(territory, from, unit) {
            true => move_tail(territory, from, cut..all, to, at),
            false => Ok(0),
        };
        put_back(territory, from, was);
        match moved {
            Ok(0) => failures += 1,
            Ok(_) => {}
            Err(Lost) => {
                abandon(run, territory.start(to));
                return Err(Lost);
            }
        }
    }
    Ok(())
}

fn may_gather(territory: &Territory, run: &Run) -> bool {
    let spare = depot::free_bytes();
    let has_large = || depot::filled(territory.classes).any(|class| class::bytes(class) >= LEAST);
    spare > MAY_LIE_FREE
        && !run.is(flag::TAINTED | flag::CLOSED)
        && split::may_move()
        && has_large()
        && spare > in_use() / PART_FREE
}

fn in_use() -> u64 {
    counters::get(Counter::AllocatedBytes).wrapping_sub(counters::get(Counter::FreedBytes))
}

/// In so many pages the runs of a class give and take: a huge page stays whole. `None`: only a part of each has huge
/// pages, and mappings of another state would come along.
fn unit(territory: &Territory, class: usize) -> Option<usize> {
    let area = territory.area(class);
    let has_huge_pages = match settings().huge_pages {
        HugePages::Never => false,
        HugePages::Auto if area.huge > 0 && area.huge < area.stride => return None,
        HugePages::Auto => area.huge > 0,
        HugePages::System => {
            area.stride >= HUGE_PAGE && thp::first_anonymous() == thp::Setting::Always
        }
    };
    Some(if has_huge_pages { HUGE_PAGE / page_size() } else { 1 })
}

/// Whether the run's mapping and pages are as those of one that takes pages in such units.
fn may_give(territory: &Territory, from: Spot, unit_of_target: usize) -> bool {
    let run = territory.run(from);
    !run.is(flag::TAINTED | flag::CLOSED | flag::ADVISED)
        && run.forks.load(Ordering::Relaxed) == fork::count()
        && unit(territory, from.class) == Some(unit_of_target)
}

/// The run that was freed longest ago, of the largest class that has any; `MOVING` then. Answers it with its state.
fn take_free(territory: &Territory) -> Option<(Spot, u32)> {
    [state::OFFERED, state::WARM].into_iter().find_map(|from| {
        let large = depot::filled(territory.classes).rev();
        let mut large = large.take_while(|class| class::bytes(*class) >= LEAST);
        large.find_map(|class| {
            let spot = depot::take_oldest(territory, class, from, state::MOVING, |_| true)?;
            Some((spot, from))
        })
    })
}

fn put_back(territory: &Territory, spot: Spot, was: u32) {
    if release::is_over() {
        leave::whole(territory, spot);
        return;
    }
    let is_empty = territory.run(spot).touched() == 0;
    depot::put(territory, spot, if is_empty { state::RETURNED } else { was });
}

/// Moves the last pages of a run to the pages from `at` on of another. Answers how many came.
fn move_tail(
    territory: &Territory,
    from: Spot,
    pages: Range<usize>,
    to: Spot,
    at: usize,
) -> Result<usize, Lost> {
    let page = page_size();
    let (source, target) = (territory.run(from), territory.run(to));
    let (old, new) = (territory.start(from), territory.start(to));
    let inside = |border: &usize| pages.contains(border) && *border > pages.start;
    let place = |page: usize| at + page - pages.start;
    let mut moved = pages.start;
    let mut news = [0; BORDERS];
    let room = (BORDERS - 1).saturating_sub(target.borders().filter(|border| *border < at).count());
    let ends = source.borders().filter(inside).chain([pages.end]);
    // One mapping at a time.
    'all: for (end, border) in ends.zip(&mut news[..room]) {
        *border = place(moved);
        while moved < end {
            let to = end.min(moved + SLICE / page);
            let slice = PageRange::new(old + moved * page, old + to * page);
            // SAFETY: both runs are this thread's, hold nothing that anybody wants, and lie apart; the target has
            // room up to the end of what is wanted.
            match unsafe { arena::move_pages(slice, new + place(moved) * page) } {
                Ok(()) => moved = to,
                Err(NotMoved::Unchanged) => break 'all,
                Err(NotMoved::TargetLost) => return Err(Lost),
            }
            target.set_touched(place(moved));
        }
    }
    if moved == pages.start {
        return Ok(0);
    }
    split::note_moved(target);
    let starts = news.into_iter().filter(|border| (at.max(1)..place(moved)).contains(border));
    target.replace_borders(at, place(moved), starts.chain([place(moved)]));
    if moved == pages.end {
        source.set_touched(pages.start);
    }
    counters::add(Counter::Gathered, 1);
    counters::add(Counter::GatheredBytes, ((moved - pages.start) * page) as u64);
    Ok(moved - pages.start)
}

/// A run whose mapping cannot be told any more, past the pages that were moved to it.
fn abandon(run: &Run, start: usize) {
    split::stop_moving();
    let pages = run.touched() * page_size();
    if pages > 0 {
        // SAFETY: moved there before, and nobody wants what they hold.
        let _ = unsafe { advise::drop_pages(PageRange::new(start, start + pages)) };
    }
    run.set_state(state::LEFT);
}
