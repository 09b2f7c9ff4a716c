//! The caller's error for a refused mark, offer or unmark.

use crate::error::{Error, ErrorKind};
use crate::os::maps::Unfit;
use crate::range::PageRange;
use crate::text::{text, Text};
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
        Refusal::Changed(found) => return unfit(call, range, found),
        Refusal::Replaced => (
            ErrorKind::WrongMapping,
            "the program has mapped other memory there since it was offered",
            "forget memory before it is unmapped, and mark the other memory",
        ),
        Refusal::Kernel(Refusal::WATCHING, Errno::BUSY) => (
            ErrorKind::WrongMapping,
            "another userfaultfd of the program watches part of it",
            "end that registration (UFFDIO_UNREGISTER), or mark other memory",
        ),
        Refusal::Kernel(Refusal::WATCHING, Errno::INVAL) => (
            ErrorKind::WrongMapping,
            "userfaultfd cannot watch memory of this kind, for example MAP_DROPPABLE",
            "use MAP_PRIVATE|MAP_ANONYMOUS memory",
        ),
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

/// Returns the error for memory that cannot be volatile.
pub(super) fn unfit(call: &'static str, range: PageRange, unfit: Unfit) -> Error {
    let error = |kind, why: Text, remedy: &'static str| Error::new(kind, call, why, remedy);
    match unfit {
        Unfit::Hole(at) => error(
            ErrorKind::NotMapped,
            text!("nothing is mapped at {at:#x}"),
            "pass only mapped memory",
        ),
        Unfit::Locked => error(
            ErrorKind::Locked,
            "part of it is locked in memory, so the kernel may not take it".into(),
            "munlock it first, or leave it out of mlockall",
        ),
        Unfit::Shared(at) => error(
            ErrorKind::WrongMapping,
            text!("the memory at {at:#x} is mapped shared, and the kernel discards private anonymous memory only"),
            "use MAP_PRIVATE|MAP_ANONYMOUS memory",
        ),
        Unfit::File(at, inode) => error(
            ErrorKind::WrongMapping,
            text!("the memory at {at:#x} belongs to a file, memfd or device (inode {inode})"),
            "use MAP_PRIVATE|MAP_ANONYMOUS memory; the kernel discards file pages by itself",
        ),
        Unfit::Protection(at) => error(
            ErrorKind::WrongMapping,
            text!("the memory at {at:#x} is not both readable and writable"),
            "mprotect it to PROT_READ|PROT_WRITE first",
        ),
        Unfit::Unknown(errno @ (Errno::NOENT | Errno::ACCESS)) => error(
            ErrorKind::System,
            text!("/proc/self/maps, which says what kind of memory it is, cannot be read"),
            "mount /proc, or use a Volatile object or a Cache, whose memory is tenure's own",
        )
        .with_errno(errno.raw_os_error()),
        Unfit::Unknown(errno) => {
            Error::system(call, "looking up the mapping in /proc/self/maps", errno)
        }
    }
    .on(range.start, range.len())
}
