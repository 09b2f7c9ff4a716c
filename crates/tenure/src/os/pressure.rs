//! Being told that memory runs short: by what the service manager names, or else by PSI triggers, cgroup v1
//! pressure levels and cgroup v2 events.

use super::memory_limit::MemoryGroup;
use super::pressure_told::Told;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{open, Mode, OFlags};
use std::path::Path;

/// Where pressure is heard of.
pub(crate) struct PressureWatch {
    sources: Vec<Source>,
}

/// Ends a thread's wait. It is in the descriptor table that the threads of tenure's share, where the program cannot
/// close it.
#[derive(Clone, Copy)]
pub(crate) struct Bell(RawFd);

impl Bell {
    /// Made by a thread with a table of its own, for a thread that inherits it.
    pub fn new() -> Option<Bell> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        Some(Bell(event.into_raw_fd()))
    }

    pub fn descriptor(self) -> RawFd {
        self.0
    }

    /// By the thread that made it, which has it no longer.
    pub fn ring_and_close(self) {
        // SAFETY: this thread's table is its own, and the descriptor was made in it and not closed.
        let event = unsafe { OwnedFd::from_raw_fd(self.0) };
        let _ = rustix::io::write(&event, &1u64.to_ne_bytes());
    }
}

/// What the sources said, the weightiest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    Nothing,
    /// Memory runs short.
    Pressure,
    /// A source has ended: its group was removed, after the process had been moved to another, or the peer of its
    /// socket went. It is always ready from then on and says nothing any more. All are to be opened anew.
    Gone,
    /// The bell was rung.
    Bell,
}

struct Source {
    name: &'static str,
    fd: OwnedFd,
    flags: PollFlags,
}

/// 70 ms of stall within 1 s. Below 2 s windows an unprivileged trigger is refused (6.5+), so that
/// one is tried second.
const TRIGGERS: [&str; 2] = ["some 70000 1000000", "some 150000 2000000"];

impl PressureWatch {
    /// Opens the source that the service manager names, and no other. Where it names none, or one that cannot be
    /// opened: every source that this kernel and this user's rights offer.
    pub fn as_told(told: &Told, group: Option<&MemoryGroup>) -> PressureWatch {
        match told.open() {
            Some((fd, flags)) => {
                PressureWatch { sources: vec![Source { name: "MEMORY_PRESSURE_WATCH", fd, flags }] }
            }
            None if *told == Told::Off => PressureWatch { sources: Vec::new() },
            None => PressureWatch::open(group),
        }
    }

    /// Opens every source that this kernel and this user's rights offer.
    pub fn open(group: Option<&MemoryGroup>) -> PressureWatch {
        let mut sources = Vec::new();
        let mut add = |name, source: Option<(OwnedFd, PollFlags)>| {
            if let Some((fd, flags)) = source {
                sources.push(Source { name, fd, flags });
            }
        };
        add("psi", psi(Path::new("/proc/pressure/memory")));
        if let Some(group) = group {
            if group.v2 {
                add("cgroup psi", psi(&group.path.join("memory.pressure")));
                add("cgroup events", v2_events(&group.path));
            } else {
                add("cgroup pressure_level", v1_level(&group.path));
            }
        }
        PressureWatch { sources }
    }

    /// Whether there is any source at all.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Waits, for as long as it takes, until one of the sources has something to say.
    pub fn wait(&self, bell: Option<Bell>) -> Heard {
        let mut fds: Vec<PollFd<'_>> =
            self.sources.iter().map(|s| PollFd::from_borrowed_fd(s.fd.as_fd(), s.flags)).collect();
        if let Some(bell) = bell {
            // SAFETY: the calling thread's table has it until the thread ends.
            let event = unsafe { BorrowedFd::borrow_raw(bell.0) };
            fds.push(PollFd::from_borrowed_fd(event, PollFlags::IN));
        }
        if poll(&mut fds, None).is_err() {
            return Heard::Nothing;
        }
        if bell.is_some() && fds.pop().is_some_and(|event| !event.revents().is_empty()) {
            return Heard::Bell;
        }
        let mut heard = Heard::Nothing;
        for (fd, source) in fds.iter().zip(&self.sources) {
            if !fd.revents().is_empty() {
                heard = heard.max(source.answer(fd.revents()));
            }
        }
        heard
    }
}

impl Source {
    /// Has it report the next change too, and tells what this one was.
    fn answer(&self, revents: PollFlags) -> Heard {
        let mut buffer = [0u8; 512];
        let alive = if self.flags.contains(PollFlags::IN) {
            // v1 rings the bell once more when the group goes; it is quiet afterwards. Whoever writes without end is
            // asked again at the next wait.
            let mut reads = (0..64).map(|_| rustix::io::read(&self.fd, &mut buffer));
            !matches!(reads.find(|read| !matches!(read, Ok(1..))), Some(Ok(0)))
        } else if self.name == "cgroup events" {
            // kernfs reports a change, always as an error too, until the file is read again; the
            // file of a group that is gone cannot be read.
            rustix::io::pread(&self.fd, &mut buffer, 0).is_ok()
        } else {
            !revents.contains(PollFlags::ERR)
        };
        match alive {
            false => Heard::Gone,
            true if revents.intersects(self.flags) => Heard::Pressure,
            true => Heard::Nothing,
        }
    }
}

fn psi(path: &Path) -> Option<(OwnedFd, PollFlags)> {
    TRIGGERS.iter().find_map(|trigger| {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).ok()?;
        // The terminating NUL is part of what the kernel documents.
        let mut text = trigger.as_bytes().to_vec();
        text.push(0);
        rustix::io::write(&fd, &text).ok()?;
        Some((fd, PollFlags::PRI))
    })
}

fn v2_events(group: &Path) -> Option<(OwnedFd, PollFlags)> {
    let path = group.join("memory.events");
    let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0u8; 512];
    rustix::io::pread(&fd, &mut buffer, 0).ok()?;
    Some((fd, PollFlags::PRI))
}

fn v1_level(group: &Path) -> Option<(OwnedFd, PollFlags)> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let level =
        open(group.join("memory.pressure_level"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .ok()?;
    let control =
        open(group.join("cgroup.event_control"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .ok()?;
    // "low": the kernel is reclaiming. It comes while there is still something to reclaim. The
    // default mode also hears of pressure in groups above.
    let line = format!("{} {} low", event.as_raw_fd(), level.as_raw_fd());
    rustix::io::write(&control, line.as_bytes()).ok()?;
    Some((event, PollFlags::IN))
}
