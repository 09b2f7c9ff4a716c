//! Makes purged bytes again: at a pin, or when a thread touches them without a pin.

#![allow(unsafe_code, reason = "fills and drops pages of a buffer")]

use super::object::Object;
use super::refill::{Refill, RefillError};
use crate::error::{Error, ErrorKind};
use crate::mapping::Mapping;
use crate::os::{advise, page_size};
use crate::range::PageRange;
use crate::runtime::turn::Attempt;
use crate::runtime::{budget, fork};
use crate::text::text;
use crate::tracking::detection::{self, Kind};
use crate::tracking::{touched, with_descriptors};
use rustix::io::Errno;
use std::time::Instant;

/// The most bytes of one call of a function for pages: they take memory beside the object's own.
const PIECE: usize = 1 << 20;

/// Makes the lost pages of a pinned object again, or waits until another thread has done so.
pub(super) fn make_again(object: &Object, refill: &Refill) -> Result<(), Error> {
    loop {
        match object.refilling.attempt() {
            Attempt::Mine(turn) => {
                turn.goes_on_in_child();
                return make_lost(object, refill).map_err(RefillFailure::explain);
            }
            Attempt::Nested => return Err(deadlock()),
            Attempt::Busy => {
                if !object.refilling.wait() {
                    return Err(deadlock());
                }
                if !object.memory.has_losses() {
                    return Ok(());
                }
            }
        }
    }
}

fn deadlock() -> Error {
    Error::new(
        ErrorKind::Deadlock,
        "Volatile::pin",
        "this thread, or a thread that waits for it, refills the object",
        "let the refill function write only the bytes that it gets",
    )
}

/// The reason why an object could not be made again.
pub(super) enum RefillFailure {
    /// The function failed or panicked.
    Function(RefillError),
    /// The bytes that it makes would not fit.
    NoRoom { needed: u64, free: u64 },
    /// There is no buffer for the bytes, or they could not be put in place.
    System(Error),
}

impl RefillFailure {
    fn explain(self) -> Error {
        let call = "Volatile::pin";
        match self {
            RefillFailure::Function(cause) => Error::new(
                ErrorKind::RefillFailed,
                call,
                text!("the refill failed: {cause}"),
                "the next pin tries again",
            ),
            RefillFailure::NoRoom { needed, free } => Error::new(
                ErrorKind::OutOfMemory,
                call,
                text!(
                    "the refill makes the whole object, {needed} bytes, beside itself, and {free} are free"
                ),
                "make it in pieces, with Refill::pages",
            ),
            RefillFailure::System(error) => error,
        }
    }
}

impl From<RefillError> for RefillFailure {
    fn from(cause: RefillError) -> RefillFailure {
        RefillFailure::Function(cause)
    }
}

fn make_lost(object: &Object, refill: &Refill) -> Result<(), RefillFailure> {
    // Another thread may have made them before this one began.
    if object.memory.has_losses() {
        object.memory.watch_losses().map_err(not_put)?;
        make(object, refill, &object.memory.losses().map_err(not_put)?)?;
        object.memory.restored();
    }
    Ok(())
}

/// Makes extents of an object again. The caller has the right to do so.
pub(super) fn make(
    object: &Object,
    refill: &Refill,
    lost: &[PageRange],
) -> Result<(), RefillFailure> {
    if refill.makes_whole() {
        return make_whole(object, refill, lost);
    }
    let longest = lost.iter().map(|extent| extent.len().min(PIECE)).max().unwrap_or(0);
    if longest == 0 {
        return Ok(());
    }
    let mut buffer = Mapping::anonymous(longest).map_err(RefillFailure::System)?;
    for piece in lost.iter().flat_map(|extent| extent.pieces(PIECE)) {
        let Some((from, to)) = offsets(object, piece) else { continue };
        let bytes = &mut buffer.as_mut_slice()[..to - from];
        bytes.fill(0);
        refill.call(from, bytes)?;
        put(object, from, bytes).map_err(not_put)?;
    }
    Ok(())
}

/// Makes the whole object, and frees the copy in pieces as soon as they are in place: so an object
/// that is lost as a whole is never in memory twice.
fn make_whole(object: &Object, refill: &Refill, lost: &[PageRange]) -> Result<(), RefillFailure> {
    let needed = object.len as u64;
    let free = budget::room(Instant::now()).free;
    if free < needed {
        return Err(RefillFailure::NoRoom { needed, free });
    }
    let mut buffer = Mapping::anonymous(object.len).map_err(RefillFailure::System)?;
    refill.call(0, buffer.as_mut_slice())?;
    for piece in lost.iter().flat_map(|extent| extent.pieces(PIECE)) {
        let Some((from, to)) = offsets(object, piece) else { continue };
        put(object, from, &buffer.as_slice()[from..to]).map_err(not_put)?;
        let start = buffer.range().start + from;
        let used = PageRange { start, end: start + piece.len() };
        // SAFETY: the buffer's bytes of this piece are in place, and not read again.
        let _ = unsafe { advise::drop_pages(used) };
    }
    Ok(())
}

/// Returns the offsets of an extent in its object: the last page may reach past the object's end.
fn offsets(object: &Object, extent: PageRange) -> Option<(usize, usize)> {
    let base = object.range().start;
    let (from, to) = (extent.start - base, (extent.end - base).min(object.len));
    (from < to).then_some((from, to))
}

fn not_put(errno: Errno) -> RefillFailure {
    RefillFailure::System(Error::system("Volatile::pin", "putting refilled pages in place", errno))
}

/// Puts bytes in place. If threads may touch the object without a pin, each page comes as a whole.
/// A page that is there already stays as it is.
fn put(object: &Object, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
    // The program's function may have made a child without fork handlers.
    fork::look();
    let start = object.range().start + offset;
    if detection::by_userfaultfd() {
        let placed = with_descriptors(|| place(object, start, bytes));
        // After a failure a part may be in place.
        touched::made_again(object.memory.tracked(), bytes.len());
        // Not watched: the watch could not be kept, or a signal handler has forked just now.
        if placed != Err(Errno::NOENT) || object.memory.is_refilled() {
            return placed;
        }
    }
    let end = (start + bytes.len()).next_multiple_of(page_size());
    let pages = PageRange::new(start, end);
    match advise::populate_write(pages) {
        // The parent's refill thread has failed to make one of them.
        // SAFETY: the pages are lost, and are made just below.
        Err(Errno::HWPOISON) => unsafe { advise::drop_pages(pages)? },
        // Another thread has had the pages watched meanwhile.
        Err(Errno::FAULT) => return Err(Errno::FAULT),
        _ => {}
    }
    // SAFETY: inside the mapping, which is writable while the object lives. These bytes are lost:
    // no pin returns them before they are made, and only this thread makes them.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, bytes.len());
    }
    Ok(())
}

/// Puts bytes into missing pages of a watched range.
fn place(object: &Object, start: usize, bytes: &[u8]) -> Result<(), Errno> {
    let page = page_size();
    let kind = if object.memory.is_refilled() { Kind::Refill } else { Kind::Sigbus };
    let mut padded = Vec::new();
    for (i, chunk) in bytes.chunks(page).enumerate() {
        let at = start + i * page;
        let chunk = if chunk.len() == page {
            chunk
        } else {
            padded.clear();
            padded.extend_from_slice(chunk);
            padded.resize(page, 0);
            &padded
        };
        match detection::copy_page(kind, at, chunk) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let there = PageRange::new(at, at + page);
                if advise::populate_read(there) == Err(Errno::HWPOISON) {
                    // A refill that failed before has poisoned the page. A handler of touches may
                    // be about to replace it, too: the first of the two does.
                    touched::fill_page(at, chunk)?;
                }
                detection::wake(kind, there)?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::uffd;
    use crate::runtime::turn::Turn;
    use crate::tracking::owned::{Losses, OwnedRange};
    use crate::tracking::ready;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tenure_testkit::{in_child, skip, this_test};

    /// As when another thread replaces lost descriptors: a write would raise SIGBUS.
    #[test]
    fn a_page_that_is_watched_from_now_on_is_put_in_place_or_refused() {
        const ROUNDS: usize = 20_000;
        in_child(this_test!(), &[], || {
            ready("test").unwrap();
            if !detection::by_userfaultfd() {
                skip!("no userfaultfd");
            }
            let page = page_size();
            let memory = Mapping::anonymous(page).unwrap();
            let memory = OwnedRange::new("test", memory, 4, Losses::AreMadeAgain).unwrap();
            let range = memory.range();
            if advise::populate_write(range).is_err() {
                skip!("MADV_POPULATE_WRITE needs Linux 5.14");
            }
            let object = Object { memory, len: page, refill: None, refilling: Turn::new() };
            let fd = uffd::open(uffd::feature::SIGBUS).unwrap().into_number();
            let watcher = uffd::Watcher::of_this_process(fd);
            let (is_over, mut put_in_place) = (AtomicBool::new(false), 0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let _ = uffd::register(watcher, range);
                        let _ = uffd::unregister(watcher, range);
                    }
                });
                for _ in 0..ROUNDS {
                    // SAFETY: nothing refers to the bytes.
                    unsafe { advise::drop_pages(range) }.unwrap();
                    if put(&object, 0, &vec![7; page]).is_ok() {
                        // SAFETY: the page was put in place, and only this thread drops it.
                        assert_eq!(unsafe { (range.start as *const u8).read_volatile() }, 7);
                        put_in_place += 1;
                    }
                }
                is_over.store(true, Ordering::Relaxed);
            });
            assert!(put_in_place > 0);
        });
    }
}
