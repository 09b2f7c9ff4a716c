//! All locked files, and rounds that bring them up to date.

use super::budget::Budget;
use super::locked_file::{self, LockedFile, Means, Mode};
use super::trouble::Trouble;
use crate::files::fill::Filling;
use crate::files::{self, pool, FileAt, FileId, Found, Stamp};
use crate::interrupt::Interrupt;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tenure::lock::When;

/// How long a deleted file stays locked, in case it is written again.
pub const GRACE: Duration = Duration::from_secs(1);

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A file was locked for the first time.
    Locked(PathBuf, u64),
    /// The locked part of a file is larger or smaller than before, or has other pages.
    Changed(PathBuf, u64, u64),
    /// A file is no longer locked.
    Released(PathBuf, u64, &'static str),
    /// A file could not be locked, or not all of it.
    Trouble(PathBuf, String),
}

/// The reason for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A file or directory was changed.
    Event,
    /// Time has passed: failed files are tried again, and new pages in the page cache are found.
    Time,
}

/// The locked files.
pub struct LockSet<'a> {
    mode: Mode,
    threads: usize,
    interrupt: &'a Interrupt,
    budget: Budget,
    files: BTreeMap<FileId, LockedFile>,
    troubles: HashMap<FileId, (Stamp, Trouble)>,
    gone: HashMap<FileId, Instant>,
}

impl<'a> LockSet<'a> {
    /// Makes an empty set.
    pub fn new(
        mode: Mode,
        threads: usize,
        interrupt: &'a Interrupt,
        budget: Budget,
    ) -> LockSet<'a> {
        LockSet {
            mode,
            threads,
            interrupt,
            budget,
            files: BTreeMap::new(),
            troubles: HashMap::new(),
            gone: HashMap::new(),
        }
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = &LockedFile> {
        self.files.values()
    }

    /// Bytes charged.
    pub fn charged(&self) -> u64 {
        self.files().map(LockedFile::charged).sum()
    }

    /// Bytes of data that should be resident, in whole pages.
    pub fn data(&self) -> u64 {
        self.files().map(LockedFile::data).sum()
    }

    /// The files that could not be locked, as of the last round.
    pub fn troubles(&self) -> impl Iterator<Item = &Trouble> {
        self.troubles.values().map(|(_, trouble)| trouble)
    }

    /// When the next round is due without an event.
    pub fn due(&self) -> Option<Instant> {
        self.gone.values().min().map(|since| *since + GRACE)
    }

    /// Makes the locked files equal to the found ones. New files are locked before the files that
    /// they replace are released, unless there is no room for both.
    pub fn round(
        &mut self,
        found: &Found,
        reason: Reason,
        done: &AtomicU64,
        mut tick: impl FnMut(),
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let ids: HashSet<FileId> = found.files.iter().map(|at| at.id).collect();
        self.troubles.retain(|id, _| ids.contains(id));
        for at in &found.files {
            self.follow(at, reason, done, &mut events);
        }
        let fresh: Vec<&FileAt> = found
            .files
            .iter()
            .filter(|at| !self.files.contains_key(&at.id) && self.is_due(at, reason))
            .collect();
        // Reported once: the numbers in it differ with every try.
        let is_told = |set: &Self, at: &FileAt| {
            set.troubles.get(&at.id).is_some_and(|(_, trouble)| trouble.is_want())
        };
        let known: HashSet<FileId> =
            fresh.iter().filter(|at| is_told(self, at)).map(|at| at.id).collect();
        let mut no_room = self.hold(&fresh, done, &mut events, &mut tick);
        if self.release(found, &ids, &mut events) {
            // Released files may have made the room.
            no_room = self.hold(&no_room, done, &mut events, &mut tick);
        }
        for (at, why) in no_room.iter().filter_map(|at| Some((at, self.troubles.get(&at.id)?))) {
            if !known.contains(&at.id) {
                events.push(Event::Trouble(at.path.clone(), why.1.why().to_owned()));
            }
        }
        events
    }

    fn means<'b>(&'b self, done: &'b AtomicU64) -> Means<'b> {
        let filling = Filling { stop: self.interrupt.flag(), until: None, done };
        Means { mode: self.mode, filling, budget: &self.budget }
    }

    /// Returns whether a failed file is worth another try.
    fn is_due(&self, at: &FileAt, reason: Reason) -> bool {
        reason == Reason::Time
            || self.troubles.get(&at.id).is_none_or(|(then, _)| *then != at.stamp)
    }

    fn follow(&mut self, at: &FileAt, reason: Reason, done: &AtomicU64, events: &mut Vec<Event>) {
        let due = self.is_due(at, reason);
        let Some(mut file) = self.files.remove(&at.id) else { return };
        file.path.clone_from(&at.path);
        let changed = (file.stamp != at.stamp || !file.settled) && due;
        // Other programs may have brought more of it into the page cache.
        let fuller = self.mode.when == When::OnFault && reason == Reason::Time;
        if (changed || fuller) && !self.interrupt.is_set() {
            let before = file.charged();
            match file.follow(at, self.threads, &self.means(done)) {
                Ok(()) => {
                    self.troubles.remove(&at.id);
                    if changed {
                        let after = file.charged();
                        events.push(Event::Changed(at.path.clone(), before, after));
                    }
                }
                Err(trouble) => self.trouble(at, trouble, events),
            }
        }
        self.files.insert(at.id, file);
    }

    /// Returns the files for which the limit, or memory, has no room.
    fn hold<'b>(
        &mut self,
        fresh: &[&'b FileAt],
        done: &AtomicU64,
        events: &mut Vec<Event>,
        tick: &mut impl FnMut(),
    ) -> Vec<&'b FileAt> {
        let means = self.means(done);
        let hold = |at: &&FileAt, threads: usize| match means.filling.over() {
            Some(over) => Err(over.into()),
            None => locked_file::hold(at, threads, &means),
        };
        let is_large = |at: &&FileAt| self.mode.part.of(at.stamp.size).end >= files::LARGE;
        let results = pool::run(fresh, self.threads, is_large, hold, tick);
        let mut no_room = Vec::new();
        for (at, result) in fresh.iter().zip(results) {
            match result {
                Ok(file) => {
                    self.troubles.remove(&at.id);
                    events.push(Event::Locked(at.path.clone(), file.charged()));
                    self.files.insert(file.id, file);
                }
                Err(want) if want.is_want() => {
                    self.troubles.insert(at.id, (at.stamp, want));
                    no_room.push(*at);
                }
                Err(trouble) => self.trouble(at, trouble, events),
            }
        }
        no_room
    }

    fn trouble(&mut self, at: &FileAt, trouble: Trouble, events: &mut Vec<Event>) {
        match trouble {
            Trouble::Gone => {
                // The next walk does not find it.
                self.troubles.remove(&at.id);
                return;
            }
            // The user ended the round. That is no fact about the file, so its state stays.
            Trouble::Stopped => return,
            _ => {}
        }
        let same_kind = |then: &Trouble| match (then, &trouble) {
            (Trouble::Limit(_), Trouble::Limit(_)) | (Trouble::Room(_), Trouble::Room(_)) => true,
            (then, now) => then == now,
        };
        let known = self.troubles.get(&at.id).is_some_and(|(_, then)| same_kind(then));
        if !known {
            events.push(Event::Trouble(at.path.clone(), trouble.why().to_owned()));
        }
        self.troubles.insert(at.id, (at.stamp, trouble));
    }

    /// Returns whether any file was released.
    fn release(&mut self, found: &Found, ids: &HashSet<FileId>, events: &mut Vec<Event>) -> bool {
        let before = self.files.len();
        let paths: HashSet<&Path> = found.files.iter().map(|at| at.path.as_path()).collect();
        let now = Instant::now();
        self.gone.retain(|id, _| !ids.contains(id));
        let lost: Vec<FileId> = self.files.keys().filter(|id| !ids.contains(id)).copied().collect();
        for id in lost {
            let path = self.files[&id].path.clone();
            let why = if paths.contains(path.as_path()) {
                "replaced"
            } else {
                match std::fs::metadata(&path) {
                    Ok(metadata) if FileId::of(&metadata) == id => "left out now",
                    Ok(_) => "replaced",
                    Err(e)
                        if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                    {
                        "deleted"
                    }
                    // It cannot be inspected, which does not mean that it is gone.
                    Err(_) => continue,
                }
            };
            let since = *self.gone.entry(id).or_insert(now);
            if why == "deleted" && now < since + GRACE {
                continue;
            }
            self.gone.remove(&id);
            if let Some(file) = self.files.remove(&id) {
                events.push(Event::Released(path, file.charged(), why));
            }
        }
        self.files.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Selection;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_is_gone_since_the_walk_is_trouble_only_if_the_user_named_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("temporary");
        std::fs::write(&path, b"1").unwrap();
        let interrupt = Interrupt::catch().unwrap();
        let found = [dir.path(), &path].map(|path| walk(path, &interrupt));
        std::fs::remove_file(&path).unwrap();
        for (found, troubles) in found.iter().zip([0, 1]) {
            let mut set = empty(&interrupt);
            let events = set.round(found, Reason::Time, &AtomicU64::new(0), || {});
            assert_eq!((events.len(), set.troubles().count()), (troubles, troubles));
        }
    }

    /// Ctrl-C in the middle of a round of `--follow` gave exit code 1, without a reason.
    #[test]
    fn a_round_that_the_user_ends_is_no_trouble_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("new"), b"1").unwrap();
        let interrupt = Interrupt::catch().unwrap();
        let found = walk(dir.path(), &interrupt);
        let mut set = empty(&interrupt);
        interrupt.flag().store(true, Ordering::Relaxed);
        let events = set.round(&found, Reason::Event, &AtomicU64::new(0), || {});
        assert_eq!((events, set.files().count(), set.troubles().count()), (vec![], 0, 0));
    }

    fn walk(path: &Path, interrupt: &Interrupt) -> Found {
        let selection = Selection {
            paths: vec![path.to_owned()],
            dereference: false,
            one_file_system: false,
            max_file_size: None,
            range: Default::default(),
        };
        files::walk(&selection, interrupt.flag())
    }

    fn empty(interrupt: &Interrupt) -> LockSet<'_> {
        let mode = Mode { when: When::Now, part: Default::default() };
        LockSet::new(mode, 1, interrupt, Budget::new(false))
    }
}
