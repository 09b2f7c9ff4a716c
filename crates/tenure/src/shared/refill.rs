//! Chunks that a refill function makes, and that threads may touch without a pin.
//!
//! A chunk's pages are visible to all processes as soon as they are there, and a touch of them
//! raises no signal. So such a chunk is never made in its place. Its maker makes the bytes beside
//! it, and then puts each page in place whole (`UFFDIO_COPY`): a touch finds a page missing or
//! complete. That holds for every maker of the memory, in every process: the page of facts says how
//! its chunks are made, and no process gets a [`Maker`](super::Maker) of them.

#![allow(unsafe_code, reason = "gives single pages back")]

use super::function::Made;
use super::region::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use crate::os::page_size;
use crate::os::shared_file::punch;
use crate::os::signal::Blocked;
use crate::range::PageRange;
use crate::runtime::fork;
use crate::text::text;
use crate::tracking::detection::{self, Kind};
use crate::tracking::with_descriptors;
use rustix::io::Errno;

/// Makes the bytes of a chunk and puts them in place. The caller has the right to make the chunk.
///
/// `act` calls its argument if this process has the right. `make` may fork and return in the child:
/// there nothing is put in place, and `Ok` has no meaning.
pub(super) fn fill(
    call: &'static str,
    region: &Region,
    chunk: usize,
    make: impl FnOnce(&mut [u8]) -> Made,
    act: impl FnOnce(&mut dyn FnMut(&Blocked)),
) -> Result<()> {
    let mut bytes = Mapping::anonymous(region.shape.chunk)?;
    make(bytes.as_mut_slice()).map_err(|cause| {
        let why = text!("the refill of chunk {chunk} failed: {cause}");
        Error::new(ErrorKind::RefillFailed, call, why, "the next pin tries again")
    })?;
    // The function may have made a child without fork handlers.
    fork::look();
    let mut done = Ok(());
    act(&mut |blocked| done = put(region, chunk, bytes.as_slice(), blocked));
    done.map_err(|errno| Error::system(call, "putting the chunk's pages in place", errno))
}

fn put(
    region: &Region,
    chunk: usize,
    bytes: &[u8],
    blocked: &Blocked,
) -> std::result::Result<(), Errno> {
    if region.is_watched_here() {
        let placed = with_descriptors(|| place(region, chunk, bytes));
        // `ENOENT`: the view is not watched, because its watch is being renewed.
        if placed != Err(Errno::NOENT) {
            return placed;
        }
    }
    // The kernel writes a page that is missing in the file under the page's lock, so others also
    // find it whole.
    if !region.discard(chunk, blocked) {
        return Err(Errno::NOMEM);
    }
    region.file.write(region.offset_of(chunk), bytes)
}

/// How often a page is removed again. If a page is there in a chunk that is gone, a process that
/// does not watch the memory has touched it. More pages come only while such touches go on.
const TRIES: u32 = 100;

fn place(region: &Region, chunk: usize, bytes: &[u8]) -> std::result::Result<(), Errno> {
    let page = page_size();
    for (number, contents) in bytes.chunks(page).enumerate() {
        let at = number * page;
        let mut tries = 0;
        loop {
            match detection::copy_page(Kind::Sigbus, region.view_of(chunk).start + at, contents) {
                Ok(()) => break,
                Err(Errno::EXIST) if tries < TRIES => {
                    tries += 1;
                    let start = region.own_of(chunk).start + at;
                    // SAFETY: a page of a chunk that this process makes. This process has not put
                    // it there, so its contents are not needed.
                    unsafe { punch(PageRange::new(start, start + page))? };
                }
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

/// Returns the error if the chunk is gone and this process cannot make it.
pub(super) fn no_function(call: &'static str, chunk: usize) -> Error {
    let why = text!("chunk {chunk} is gone, and this process has no refill function");
    Error::new(ErrorKind::NoAccess, call, why, "set one (set_refill), or call get_or_make")
}

/// Returns the error if functions make the chunks of this memory.
pub(super) fn not_in_place(call: &'static str) -> Error {
    let why = "refill functions make this memory: its chunks cannot be changed in place";
    Error::new(
        ErrorKind::Unsupported,
        call,
        why,
        "purge the chunk, and let the refill function make it again",
    )
}
