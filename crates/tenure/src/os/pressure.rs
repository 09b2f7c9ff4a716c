//! Hears that memory runs short: from the source that the service manager names, or else from PSI
//! triggers, cgroup v1 pressure levels and cgroup v2 events.

use super::bell::Bell;
use super::memory_group::MemoryGroup;
use super::pressure_told::Told;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// The sources of pressure reports.
pub(crate) struct PressureWatch {
    sources: Vec<Source>,
}

/// The result of a wait; the most important report is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    Nothing,
    /// Memory runs short.
    Pressure,
    /// A source has ended: its group was removed after the process was moved to another, or the
    /// peer of its socket has closed it. It is always ready from then on and reports nothing any
    /// more. The caller opens all sources anew.
    Gone,
    /// The bell was rung, or no wait can succeed any more.
    Bell,
}

struct Source {
    name: &'static str,
    fd: OwnedFd,
    flags: PollFlags,
}

const PSI: &str = "/proc/pressure/memory";

/// 70 ms of stall within 1 s. The kernel refuses an unprivileged trigger whose window is no
/// multiple of 2 s (6.5+). The second trigger has such a window, and is tried next.
const TRIGGERS: [&str; 2] = ["some 70000 1000000", "some 150000 2000000"];

impl PressureWatch {
    /// Opens the source that the service manager names, and no other. If it names none, or one that
    /// cannot be opened, opens every source that this kernel and this user's rights allow.
    pub fn as_told(told: &Told, group: Option<&MemoryGroup>) -> PressureWatch {
        match told.open() {
            Some((fd, flags)) => {
                PressureWatch { sources: vec![Source { name: "MEMORY_PRESSURE_WATCH", fd, flags }] }
            }
            None if *told == Told::Off => PressureWatch { sources: Vec::new() },
            None => PressureWatch::open(group),
        }
    }

    /// Returns whether the kernel reports the machine's pressure.
    pub fn has_psi() -> bool {
        Path::new(PSI).exists()
    }

    /// Opens every source that this kernel and this user's rights allow.
    pub fn open(group: Option<&MemoryGroup>) -> PressureWatch {
        let mut sources = Vec::new();
        let mut add = |name, source: Option<(OwnedFd, PollFlags)>| {
            if let Some((fd, flags)) = source {
                sources.push(Source { name, fd, flags });
            }
        };
        add("psi", psi(Path::new(PSI)));
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

    /// Returns whether there is no source.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Waits, without a timeout, until one of the sources has a report.
    pub fn wait(&self, bell: Option<Bell>) -> Heard {
        let mut fds: Vec<PollFd<'_>> =
            self.sources.iter().map(|s| PollFd::from_borrowed_fd(s.fd.as_fd(), s.flags)).collect();
        // SAFETY: the calling thread's table has the descriptor until the thread ends.
        let event = bell.as_ref().map(|bell| unsafe { bell.event() });
        fds.extend(event.map(|event| PollFd::from_borrowed_fd(event, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) => {}
            // The program has lowered RLIMIT_NOFILE below the number of sources, so no wait can
            // succeed. Without this thread pressure is noticed at the next visit.
            Err(Errno::INVAL) => return Heard::Bell,
            Err(_) => return Heard::Nothing,
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
    /// Prepares the source for its next change, and returns this change.
    fn answer(&self, revents: PollFlags) -> Heard {
        let mut buffer = [0u8; 512];
        let alive = if self.flags.contains(PollFlags::IN) {
            // v1 rings the bell once more when the group goes, and is quiet afterwards. The reads
            // are bounded: a peer that writes without end is read again at the next wait.
            let mut reads = (0..64).map(|_| rustix::io::read(&self.fd, &mut buffer));
            !matches!(reads.find(|read| !matches!(read, Ok(1..))), Some(Ok(0)))
        } else if self.name == "cgroup events" {
            // kernfs reports a change, always as an error too, until the file is read again. The
            // file of a removed group cannot be read.
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
        // The kernel's documentation includes the terminating NUL in the text.
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
    // "low": the kernel is reclaiming. This event comes while there is still memory to reclaim. The
    // default mode also reports pressure in groups above.
    let line = format!("{} {} low", event.as_raw_fd(), level.as_raw_fd());
    rustix::io::write(&control, line.as_bytes()).ok()?;
    Some((event, PollFlags::IN))
}
