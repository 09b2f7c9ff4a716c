//! The ways of the kernel's own comparison, and tenure's.

#![allow(unsafe_code, reason = "touches memory of its own")]

use crate::backing::{unsupported, Fresh, Kind};
use rustix::fs::{fallocate, FallocateFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::io;
use tenure::populate::{Access, HugePages, Populate};

/// The operation on every page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// One byte is read.
    Read,
    /// One byte is written.
    Write,
    /// One byte is read and written back.
    ReadWrite,
    /// `MADV_POPULATE_READ`, one call.
    PopulateRead,
    /// `MADV_POPULATE_WRITE`, one call.
    PopulateWrite,
}

/// One way to make a mapping's pages ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Touching alone.
    Plain(Touch),
    /// `fallocate`, then touching.
    Allocate(Touch),
    /// `fallocate` alone, which leaves page tables empty.
    AllocateOnly,
    /// tenure's, for the state of the comparison.
    Ours(Ready),
}

/// The state that a comparison's ways leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// Every page can be read without a fault.
    Read,
    /// And the file has room on its disk for every page.
    ReadAllocated,
    /// Every page can be written without a fault (or, for a file on a disk, without needing room).
    Write,
}

impl Ready {
    pub const ALL: [Ready; 3] = [Ready::Read, Ready::ReadAllocated, Ready::Write];

    pub fn name(self) -> &'static str {
        match self {
            Ready::Read => "ready for reading",
            Ready::ReadAllocated => "ready for reading, room allocated",
            Ready::Write => "ready for writing",
        }
    }

    /// The ways that leave a mapping of this kind in this state, without tenure's.
    pub fn ways(self, kind: Kind, shared: bool) -> Vec<Way> {
        use Touch::{PopulateRead, PopulateWrite, Read, ReadWrite, Write};
        // fallocate does nothing for a private mapping.
        let file = shared && kind.has_file();
        let (plain, allocate): (&[Touch], &[Touch]) = match self {
            // In memory, reading a hole allocates its page: both leave the same behind.
            Ready::Read if file && kind != Kind::Disk => {
                (&[Read, PopulateRead], &[Read, PopulateRead])
            }
            Ready::Read => (&[Read, PopulateRead], &[]),
            Ready::ReadAllocated if file && kind == Kind::Disk => (&[], &[Read, PopulateRead]),
            Ready::ReadAllocated => (&[], &[]),
            Ready::Write if file => {
                (&[Write, ReadWrite, PopulateWrite], &[Write, ReadWrite, PopulateWrite])
            }
            Ready::Write => (&[Write, ReadWrite, PopulateWrite], &[]),
        };
        let plain = plain.iter().map(|&touch| Way::Plain(touch));
        plain.chain(allocate.iter().map(|&touch| Way::Allocate(touch))).collect()
    }
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Plain(Touch::Read) => "Read",
            Way::Plain(Touch::Write) => "Write",
            Way::Plain(Touch::ReadWrite) => "Read/Write",
            Way::Plain(Touch::PopulateRead) => "POPULATE_READ",
            Way::Plain(Touch::PopulateWrite) => "POPULATE_WRITE",
            Way::Allocate(Touch::Read) => "FALLOCATE+Read",
            Way::Allocate(Touch::Write) => "FALLOCATE+Write",
            Way::Allocate(Touch::ReadWrite) => "FALLOCATE+Read/Write",
            Way::Allocate(Touch::PopulateRead) => "FALLOCATE+POPULATE_READ",
            Way::Allocate(Touch::PopulateWrite) => "FALLOCATE+POPULATE_WRITE",
            Way::AllocateOnly => "(FALLOCATE alone)",
            Way::Ours(_) => "tenure",
        }
    }

    /// Runs the way, on one thread.
    pub fn perform(self, to: &Fresh) -> io::Result<()> {
        match self {
            Way::Plain(touch) => touch.perform(to),
            Way::Allocate(touch) => {
                allocate(to)?;
                touch.perform(to)
            }
            Way::AllocateOnly => allocate(to),
            Way::Ours(ready) => ours(to, ready),
        }
    }
}

impl Touch {
    fn perform(self, to: &Fresh) -> io::Result<()> {
        match self {
            // SAFETY: each page is inside the mapping, which only this thread uses. The read is
            // volatile because its result is not used.
            Touch::Read => to.each_page(|page| unsafe {
                page.read_volatile();
            }),
            // SAFETY: each page is inside the mapping, which this thread alone uses, so the zero
            // overwrites nothing that is needed.
            Touch::Write => to.each_page(|page| unsafe { page.write_volatile(0) }),
            // SAFETY: each page is inside the mapping, which this thread alone uses. It gets back
            // the byte that it had.
            Touch::ReadWrite => to.each_page(|page| unsafe {
                page.write_volatile(page.read_volatile());
            }),
            Touch::PopulateRead => to.advise(Advice::LinuxPopulateRead)?,
            Touch::PopulateWrite => to.advise(Advice::LinuxPopulateWrite)?,
        }
        Ok(())
    }
}

fn allocate(to: &Fresh) -> io::Result<()> {
    let file = to.file.as_ref().ok_or_else(|| io::Error::other("there is no file to allocate"))?;
    match fallocate(file, FallocateFlags::empty(), 0, to.len as u64) {
        Err(Errno::OPNOTSUPP) => Err(unsupported("this file system has no fallocate")),
        other => Ok(other?),
    }
}

fn ours(to: &Fresh, ready: Ready) -> io::Result<()> {
    let access = match ready {
        Ready::Read | Ready::ReadAllocated => Access::Read,
        Ready::Write => Access::Write,
    };
    let mut populate = Populate::new(to.addr, to.len, access).threads(1);
    if to.kind != Kind::AnonTransparent {
        // The rows are for the page size in their name.
        populate = populate.huge_pages(HugePages::Leave);
    }
    if let Some(file) = &to.file {
        populate = populate.file(file)?.allocate(ready != Ready::Read);
    }
    populate.run().map_err(tenure::Error::from)?;
    Ok(())
}

/// Returns an error unless the pages are in the state `ready`: touching them all takes (nearly) no
/// fault.
pub(super) fn check(to: &Fresh, ready: Ready) -> io::Result<()> {
    let before = faults();
    match ready {
        // The disk may have begun to write the pages out, which makes them read-only again.
        Ready::Write if to.kind != Kind::Disk => Touch::ReadWrite.perform(to)?,
        _ => Touch::Read.perform(to)?,
    }
    let faults = faults() - before;
    // 16: this thread's own stack and heap.
    let allowed = (to.len / to.kind.step() / 100) as u64 + 16;
    if faults > allowed {
        let pages = to.len / to.kind.step();
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("not {}: touching {pages} pages took {faults} faults", ready.name()),
        ));
    }
    Ok(())
}

/// Page faults of this thread so far that needed no input.
fn faults() -> u64 {
    // SAFETY: rusage is plain numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage into the one given.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_minflt as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::{Backing, HUGE_PAGE};
    use crate::harness::in_process;

    /// In a process of its own: a fork in another test's thread write-protects private pages.
    fn alone(body: impl FnOnce()) {
        in_process(|| {
            body();
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn ways_that_are_compared_leave_the_same_behind() {
        alone(every_way);
    }

    fn every_way() {
        let dir = crate::Options::default().dir();
        for (kind, shared) in [
            (Kind::Anon, false),
            (Kind::Anon, true),
            (Kind::Memfd, false),
            (Kind::Memfd, true),
            (Kind::Disk, true),
        ] {
            let backing = Backing::new(kind, shared, &dir);
            for ready in Ready::ALL {
                let ours = Way::Ours(ready);
                for way in ready.ways(kind, shared).into_iter().chain([ours]) {
                    let fresh = backing.fresh(HUGE_PAGE).unwrap();
                    match way.perform(&fresh).and_then(|()| check(&fresh, ready)) {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                        Err(error) => panic!("{kind:?}, {shared}: {way:?}: {error}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_check_sees_pages_that_are_not_ready() {
        alone(not_ready);
    }

    fn not_ready() {
        let backing = Backing::new(Kind::Anon, false, "/".as_ref());
        let untouched = backing.fresh(HUGE_PAGE).unwrap();
        assert!(check(&untouched, Ready::Read).is_err());
        let readable = backing.fresh(HUGE_PAGE).unwrap();
        Way::Plain(Touch::Read).perform(&readable).unwrap();
        check(&readable, Ready::Read).unwrap();
        assert!(check(&readable, Ready::Write).is_err());
    }
}
