//! Notices when directories change (inotify).
//!
//! An event is only a reason to look: a new walk finds the files to lock. So a lost event, or an
//! overflow of the queue, costs only time.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The time between looks without an event: network file systems send none, a program may write
/// another name of a file, and a directory may exceed the number of watches.
pub const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Watched directories.
pub struct Watch {
    fd: OwnedFd,
    watched: HashMap<i32, PathBuf>,
}

impl Watch {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Watch> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Watch { fd, watched: HashMap::new() })
    }

    /// Readable when an event is there.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Watches these directories and no others. Returns whether one is new, in which case an event
    /// in it may have been missed, and the first that could not be watched.
    pub fn set(&mut self, directories: &BTreeSet<PathBuf>) -> (bool, Option<(PathBuf, Errno)>) {
        let flags = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        let mut watched = HashMap::new();
        let mut new = false;
        let mut refused = None;
        for directory in directories {
            // For a watched inode this gives its number again, so that a directory put in another
            // one's place is noticed.
            match inotify::add_watch(&self.fd, directory, flags) {
                Ok(number) => {
                    new |= !self.watched.contains_key(&number);
                    watched.insert(number, directory.clone());
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {} // gone since the walk
                Err(errno) => refused = refused.or(Some((directory.clone(), errno))),
            }
        }
        for number in self.watched.keys().filter(|number| !watched.contains_key(number)) {
            // If the directory is gone, the kernel has done this already.
            let _ = inotify::remove_watch(&self.fd, *number);
        }
        self.watched = watched;
        (new, refused)
    }

    /// Takes all events; `true`: one of them matters.
    pub fn drain(&mut self) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut events = inotify::Reader::new(&self.fd, &mut buffer);
        let mut matters = false;
        loop {
            match events.next() {
                // IGNORED follows every watch that this process removes itself.
                Ok(event) => matters |= event.events() != ReadFlags::IGNORED,
                Err(Errno::AGAIN) => return Ok(matters),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The directories in which a change can make `path` mean another file: its own, and that of every
/// symbolic link on the way; if a directory is missing, the last one that exists.
pub fn anchors(path: &Path, into: &mut BTreeSet<PathBuf>) {
    // As many links as the kernel follows.
    anchors_of(path, into, &mut 40);
}

fn anchors_of(path: &Path, into: &mut BTreeSet<PathBuf>, links_left: &mut u32) {
    let mut at = match path.is_absolute() {
        true => PathBuf::new(),
        false => PathBuf::from("."),
    };
    let mut components = path.components().peekable();
    while let Some(component) = components.next() {
        let directory = at.clone();
        at.push(component);
        if !matches!(component, Component::Normal(_)) {
            continue;
        }
        let Ok(metadata) = std::fs::symlink_metadata(&at) else {
            into.insert(directory);
            return;
        };
        if metadata.is_symlink() {
            into.insert(directory.clone());
            if *links_left == 0 {
                return;
            }
            *links_left -= 1;
            if let Ok(target) = std::fs::read_link(&at) {
                let rest: PathBuf = components.collect();
                anchors_of(&directory.join(target).join(rest), into, links_left);
            }
            return;
        }
        if components.peek().is_none() {
            into.insert(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_link_on_the_way_is_an_anchor() {
        let dir = tempfile::tempdir().unwrap();
        // The test's own directory may be behind a link itself.
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("v1/deep")).unwrap();
        std::fs::write(top.join("v1/deep/file"), b"x").unwrap();
        symlink("v1", top.join("current")).unwrap();
        symlink("current/deep/file", top.join("name")).unwrap();
        let found = |path: &Path| {
            let mut anchors_found = BTreeSet::new();
            anchors(path, &mut anchors_found);
            anchors_found.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(&top.join("v1/deep/file")), [top.join("v1/deep")]);
        // Beside the link, beside the link inside its target, and beside the file.
        assert_eq!(found(&top.join("name")), [top.clone(), top.join("v1/deep")]);
        assert_eq!(found(&top.join("v1/missing/file")), [top.join("v1")]);
        symlink("loop", top.join("loop")).unwrap();
        assert_eq!(found(&top.join("loop")), std::slice::from_ref(&top));
    }

    #[test]
    fn changes_are_told_and_new_directories_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new().unwrap();
        let one = BTreeSet::from([dir.path().to_owned()]);
        assert!(matches!(watch.set(&one), (true, None)));
        assert!(matches!(watch.set(&one), (false, None)));
        assert!(!watch.drain().unwrap());
        std::fs::write(dir.path().join("a"), b"1").unwrap();
        assert!(watch.drain().unwrap());
        assert!(!watch.drain().unwrap());
        assert!(matches!(watch.set(&BTreeSet::new()), (false, None)));
        assert!(!watch.drain().unwrap(), "what we removed ourselves is no news");
        std::fs::write(dir.path().join("a"), b"2").unwrap();
        assert!(!watch.drain().unwrap());
    }
}
