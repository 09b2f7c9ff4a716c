//! A kernel setting that is raised for as long as a measurement needs it.

#![allow(unsafe_code, reason = "forks")]

use rustix::pipe::pipe;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A number under `/proc/sys`, raised until this is dropped.
///
/// A process of its own restores it, also when this one is killed: an interrupted benchmark must
/// not leave the machine changed. A value that another program has set meanwhile stays.
pub struct Raised {
    path: PathBuf,
    keeper: Option<(File, libc::pid_t)>,
}

impl Raised {
    /// Raises the number in `path` to at least `wanted`.
    ///
    /// # Errors
    /// `Unsupported`, with the present value and the needed one, if the file may not be written or
    /// the value did not become high enough (huge pages can be too few).
    pub fn at_least(path: impl AsRef<Path>, wanted: u64) -> io::Result<Raised> {
        Self::raise(path.as_ref(), wanted, false)
    }

    /// Adds `more` to the number in `path`.
    ///
    /// # Errors
    /// As for [`at_least`](Raised::at_least).
    pub fn by(path: impl AsRef<Path>, more: u64) -> io::Result<Raised> {
        Self::raise(path.as_ref(), more, true)
    }

    fn raise(path: &Path, number: u64, add: bool) -> io::Result<Raised> {
        let refused = |why: String| {
            io::Error::new(io::ErrorKind::Unsupported, format!("{}: {why}", path.display()))
        };
        let mut raised = Raised { path: path.to_owned(), keeper: None };
        let read = || read(path).map_err(|error| refused(error.to_string()));
        let wanted = |before: u64| if add { before + number } else { number.max(before) };
        if !add && read()? >= number {
            return Ok(raised);
        }
        let alone = Alone::with(path).or_else(|error| {
            let before = read()?;
            Err(refused(format!("is {before}, needed: {}: {error}", wanted(before))))
        })?;
        let before = read()?;
        let wanted = wanted(before);
        let undo = if add { Undo::Less } else { Undo::Back { to: before } };
        raised.keeper = Some(restorer(path, undo, &alone)?);
        let written = fs::write(path, wanted.to_string());
        let now = read()?;
        if let Some((pipe, _)) = &mut raised.keeper {
            pipe.write_all(&now.saturating_sub(before).to_le_bytes())?;
        }
        drop(alone);
        written.map_err(|error| refused(format!("is {before}, needed: {wanted}: {error}")))?;
        match now {
            now if now < wanted => {
                Err(refused(format!("became {now} of the {wanted} that are needed")))
            }
            _ => Ok(raised),
        }
    }

    /// Returns the present value.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn now(&self) -> io::Result<u64> {
        read(&self.path)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some((mut pipe, pid)) = self.keeper.take() {
            // A message, because the end of the pipe may not come: any process forked since has it
            // open, too.
            let _ = pipe.write_all(&[0]);
            drop(pipe);
            // SAFETY: a child of this process; nothing is written.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }
}

fn read(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("\"{}\" is no number", text.trim())))
}

/// No other benchmark changes the number while this lives: it would read the number before a change of
/// this one's, and write it after that.
struct Alone(File);

impl Alone {
    fn with(path: &Path) -> io::Result<Alone> {
        let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
        Alone::lock(&file, libc::F_WRLCK)?;
        Ok(Alone(file))
    }

    /// The lock belongs to the open file, which a forked child has, too.
    fn lock(file: &File, kind: libc::c_int) -> io::Result<()> {
        // SAFETY: all fields are numbers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        // SAFETY: the kernel reads the structure, which outlives the call.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &lock) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = Alone::lock(&self.0, libc::F_UNLCK);
    }
}

/// The way to restore a number.
#[derive(Clone, Copy)]
enum Undo {
    /// The added amount is subtracted: other programs may have added theirs.
    Less,
    /// It is set back, if it still has the raised value.
    Back { to: u64 },
}

impl Undo {
    /// `risen`: the amount by which it rose, which may be less than requested.
    fn apply(self, path: &Path, risen: u64) -> io::Result<()> {
        let _alone = Alone::with(path)?;
        let now = read(path)?;
        match self {
            Undo::Less => fs::write(path, now.saturating_sub(risen).to_string()),
            Undo::Back { to } if now == to + risen => fs::write(path, to.to_string()),
            Undo::Back { .. } => Ok(()),
        }
    }
}

/// Starts a process that does `undo` at a message, or when the other end of its pipe is closed.
fn restorer(path: &Path, undo: Undo, alone: &Alone) -> io::Result<(File, libc::pid_t)> {
    let (reader, writer) = pipe()?;
    let mut reader = File::from(reader);
    // SAFETY: the child only waits, writes a file and exits; glibc keeps its allocator usable
    // there.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(writer);
            // If the parent is killed, its lock must end.
            // SAFETY: this process's own copy, which it does not use.
            unsafe { libc::close(alone.0.as_raw_fd()) };
            // A session of its own: the terminal's Ctrl-C is for the benchmark.
            let _ = rustix::process::setsid();
            let mut risen = [0; 8];
            if reader.read_exact(&mut risen).is_ok() {
                let _ = reader.read(&mut [0]);
                let _ = undo.apply(path, u64::from_le_bytes(risen));
            }
            // SAFETY: ends this process at once, without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid => Ok((writer.into(), pid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str, value: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
        fs::write(&path, value).unwrap();
        path
    }

    #[test]
    fn it_is_put_back() {
        let path = scratch("raised", "7\n");
        let raised = Raised::at_least(&path, 9).unwrap();
        assert_eq!(raised.now().unwrap(), 9);
        {
            let more = Raised::by(&path, 3).unwrap();
            assert_eq!(more.now().unwrap(), 12);
        }
        assert_eq!(raised.now().unwrap(), 9);
        // Nothing is written if the value is high enough.
        assert!(Raised::at_least(&path, 5).unwrap().keeper.is_none());
        drop(raised);
        assert_eq!(fs::read_to_string(&path).unwrap(), "7");
        // Of two overlapping raises each subtracts its own amount; a number that another program
        // has set stays.
        let (first, second) = (Raised::by(&path, 2).unwrap(), Raised::by(&path, 10).unwrap());
        drop(first);
        assert_eq!(second.now().unwrap(), 17);
        drop(second);
        let raised = Raised::at_least(&path, 20).unwrap();
        fs::write(&path, "30").unwrap();
        drop(raised);
        assert_eq!(fs::read_to_string(&path).unwrap(), "30");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn raises_at_the_same_time_are_all_put_back() {
        let path = scratch("raised-together", "7");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| drop(Raised::by(&path, 3).unwrap())));
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), "7");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_cannot_be_raised_is_named() {
        let error = Raised::at_least("/proc/sys/kernel/nonexistent", 1).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("nonexistent"), "{error}");
        // This file can be read, but no user can write it.
        let error = Raised::by("/proc/sys/kernel/ngroups_max", 1).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("ngroups_max: is "), "{error}");
    }
}
