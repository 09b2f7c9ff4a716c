//! The caller's error for a refused offer.

use crate::error::{Error, ErrorKind};
use crate::range::PageRange;
use crate::tracking::offer::Refusal;
use rustix::io::Errno;

/// Makes the error. `wanted`: the reason why a thread has the range, and the remedy.
pub(super) fn error(
    call: &'static str,
    range: PageRange,
    refusal: Refusal,
    wanted: (&'static str, &'static str),
) -> Error {
    let (kind, why, remedy) = match refusal {
        Refusal::Wanted => (ErrorKind::NotMarked, wanted.0, wanted.1),
        Refusal::InsideHugePage => (
            ErrorKind::WrongMapping,
            "it is part of a huge page whose other parts are in use",
            "mark whole huge pages, or the neighbouring memory too",
        ),
        Refusal::TooManyMappings => (
            ErrorKind::TooManyMappings,
            "it would cut a mapping, and the process has half of vm.max_map_count already",
            "keep volatile memory together, or raise vm.max_map_count (sysctl)",
        ),
        Refusal::TooSparse => (
            ErrorKind::OutOfMemory,
            "the page tables of untouched pages, 2 MiB for each GiB, would take more than a sixteenth \
             of the memory limit",
            "mark the parts that have data, or unmap the unused parts",
        ),
        Refusal::Shared => {
            let why = "not tried: a process made by fork still shares the pages; the call";
            return Error::system(call, why, Errno::BUSY).on(range.start, range.len());
        }
        Refusal::Kernel(what, errno) => {
            // In a child that could open no descriptors; `errno` has the reason.
            let what = match crate::tracking::detection::is_missing() {
                true => "opening a userfaultfd, which is tried again at the next call,",
                false => what,
            };
            return Error::system(call, what, errno).on(range.start, range.len());
        }
    };
    Error::new(kind, call, why, remedy).on(range.start, range.len())
}
