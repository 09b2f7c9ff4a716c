//! Allocating a run.

use super::central_list::{self, Wanted};
use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::{flag, state};
use super::settings::{settings, HugePages};
use super::{class, decay, forks, given_up, leave, room, split, thread_cache, zero};
use crate::os::{advise, page_size};
use crate::range::PageRange;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Where an area is used up, fresh runs are looked for in so many larger classes.
const REACH: usize = 16;
/// Blocks of this size and more, which no processor's cache holds, begin at different pages of
/// their runs. Runs begin at huge pages, and arrays at equal offsets in huge pages meet in the same
/// banks of memory. (Three arrays of 128 MiB, read and written side by side: 21 GB/s; at different
/// offsets: 26.)
const STAGGER_FROM: usize = 8 << 20;
const STAGGERS: usize = 16;

/// The size and the alignment that the caller asked for.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub size: usize,
    pub align: usize,
    class: usize,
    /// The page of the run at which the block begins: for pages that move from that page of another
    /// run.
    page: Option<usize>,
}

impl Request {
    /// `None`: too large for any run.
    pub fn new(reservation: &Reservation, size: usize, align: usize) -> Option<Request> {
        let size = size.max(1);
        let mut class = class::of(size);
        if Request::is_staggered(size, align) {
            class = class::of(size.checked_add((STAGGERS - 1) * page_size())?);
        }
        if align > page_size() {
            // A run fits whose size leaves the room to reach the next multiple of `align`. A
            // smaller run fits, too, if all runs of its class start at multiples.
            let roomy = class::of(size.checked_add(align - page_size())?);
            let last = roomy.min(reservation.classes - 1);
            class = (class..=last)
                .find(|class| {
                    let area = reservation.area(*class);
                    area.start % align == 0 && area.stride % align == 0
                })
                .unwrap_or(roomy);
        }
        (class < reservation.classes).then_some(Request { size, align, class, page: None })
    }

    fn is_staggered(size: usize, align: usize) -> bool {
        size >= STAGGER_FROM && align <= page_size()
    }

    /// The block begins at this page of its run, as in the run that its pages come from. At another
    /// offset the kernel would split their huge pages.
    pub fn at_page(self, page: usize) -> Request {
        Request { page: Some(page), ..self }
    }

    /// A request for a run that has at least `room` bytes.
    pub fn with_room(
        reservation: &Reservation,
        size: usize,
        align: usize,
        room: usize,
    ) -> Option<Request> {
        Request::new(reservation, room, align).map(|request| Request { size, ..request })
    }

    /// Where in the run the program's part starts; `None` if it does not fit.
    pub fn offset(&self, reservation: &Reservation, spot: Spot) -> Option<usize> {
        let start = reservation.start(spot);
        let stride = reservation.area(spot.class).stride;
        if Request::is_staggered(self.size, self.align) {
            let page = self.page.unwrap_or((spot.index as usize * 5 + spot.class) % STAGGERS);
            let offset = page * page_size();
            // A block of a size that is not staggered may grow to one that is: its run may have no
            // room for the offset.
            return (self.size <= stride).then_some(if offset + self.size <= stride {
                offset
            } else {
                0
            });
        }
        let offset = start.checked_next_multiple_of(self.align)? - start;
        (offset + self.size <= stride).then_some(offset)
    }
}

/// Takes a run and sets its state to `MOVING`. Returns the run and its former state. Runs with
/// pages come first.
pub(super) fn take(reservation: &Reservation, request: &Request) -> Option<(Spot, u32)> {
    with_pages(reservation, request).or_else(|| empty(reservation, request))
}

/// Takes a run with pages, if there is one.
pub(super) fn take_warm(reservation: &Reservation, request: &Request) -> Option<(Spot, u32)> {
    with_pages(reservation, request)
}

fn with_pages(reservation: &Reservation, request: &Request) -> Option<(Spot, u32)> {
    let fits = |spot| request.offset(reservation, spot).is_some();
    let near = thread_cache::take(reservation, request.class, fits).map(|spot| (spot, state::WARM));
    near.or_else(|| central_list::take(reservation, request.class, Wanted::Pages, fits))
}

fn empty(reservation: &Reservation, request: &Request) -> Option<(Spot, u32)> {
    decay::took_empty();
    let fits = |spot| request.offset(reservation, spot).is_some();
    let returned = central_list::take(reservation, request.class, Wanted::Empty, fits);
    returned.or_else(|| {
        let last = (request.class + REACH).min(reservation.classes - 1);
        let spot = (request.class..=last).find_map(|class| {
            central_list::take(reservation, class, Wanted::Empty, fits)
                .or_else(|| leave::take_back(reservation, class).map(|spot| (spot, state::FRESH)))
                .or_else(|| reservation.fresh(class).map(|spot| (spot, state::FRESH)))
        })?;
        if fits(spot.0) {
            return Some(spot);
        }
        central_list::put(reservation, spot.0, state::RETURNED);
        None
    })
}

/// See [`alloc`](super::alloc).
pub(super) fn alloc(size: usize, align: usize, zeroed: bool) -> Option<NonNull<u8>> {
    if !align.is_power_of_two() || given_up::is_over() {
        return None;
    }
    let reservation = forks::reservation()?;
    let taken = Request::new(reservation, size, align)
        .and_then(|request| Some((request, take(reservation, &request)?)));
    let Some((request, (spot, from))) = taken else {
        counters::add(Counter::Refused, 1);
        return None;
    };
    if reservation.run(spot).touched() == 0 {
        room::make(reservation, spot, size);
    }
    let (at, touched) = hand_out(reservation, &request, spot, from)?;
    if zeroed && touched > 0 {
        zero::run(reservation, spot, touched, at, request.size);
    }
    NonNull::new(at as *mut u8)
}

/// Gives a taken run to the program. Returns the address, and the number of its pages that may have
/// contents.
pub(super) fn hand_out(
    reservation: &Reservation,
    request: &Request,
    spot: Spot,
    from: u32,
) -> Option<(usize, usize)> {
    let page = page_size();
    let run = reservation.run(spot);
    let offset = request.offset(reservation, spot)?;
    let touched = run.touched();
    if run.is(flag::CLOSED) {
        if touched == 0 {
            // The kernel writes to unmapped memory for a debugger, and for a program that writes to
            // `/proc/self/mem`.
            zero::drop_pages(reservation.area(spot.class).range_of(spot.index));
        }
        if !leave::open(reservation, spot) {
            return None;
        }
    }
    if touched == 0 {
        prepare_empty(reservation, spot);
    }
    run.size.store(request.size as u64, Ordering::Relaxed);
    run.offset.store((offset / page) as u32, Ordering::Relaxed);
    run.set_touched(touched.max((offset + request.size).div_ceil(page)));
    run.set_state(state::IN_USE);
    counters::add(Counter::Allocs, 1);
    counters::add(Counter::AllocatedBytes, request.size as u64);
    let reused = match from {
        state::WARM => Some(Counter::WarmReuses),
        state::OFFERED => Some(Counter::OfferedReuses),
        _ => None,
    };
    if let Some(counter) = reused {
        counters::add(counter, 1);
        counters::add(Counter::ReusedBytes, (touched * page).min(request.size) as u64);
    }
    Some((reservation.start(spot) + offset, touched))
}

/// Prepares a run without pages before the program touches it.
fn prepare_empty(reservation: &Reservation, spot: Spot) {
    let (area, run) = (reservation.area(spot.class), reservation.run(spot));
    run.forks.store(crate::runtime::fork::count(), Ordering::Relaxed);
    let parted = area.huge != 0 && area.huge != area.stride;
    if !parted || run.is(flag::ADVISED) || settings().huge_pages != HugePages::Auto {
        return;
    }
    if !split::count_parted() {
        return;
    }
    let start = area.start_of(spot.index);
    if advise::want_huge_pages(PageRange::new(start, start + area.huge)).is_ok() {
        run.set(flag::ADVISED);
    }
}
