//! Finds the regular files under the names on the command line.

use super::{FileId, Selection, Stamp};
use serde::Serialize;
use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tenure_command::call::failed;
use walkdir::{DirEntry, WalkDir};

/// A regular file as it was found.
#[derive(Clone, Debug)]
pub struct FileAt {
    /// The first name under which it was found.
    pub path: PathBuf,
    /// Its identity.
    pub id: FileId,
    /// Its state at that time.
    pub stamp: Stamp,
    /// Whether the user gave the name, or the walk found it.
    pub named: bool,
}

impl FileAt {
    /// Returns whether opening it failed only because it was removed since the walk, as temporary
    /// files are. If the user did not give its name, that is no problem.
    pub fn is_gone(&self, error: &io::Error) -> bool {
        !self.named && is_gone(error)
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// An action that failed, and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file or directory. As text, because JSON has no other names.
    pub path: String,
    /// The reason.
    pub why: String,
}

/// The reason why a name was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A pipe, socket or device.
    Special,
    /// A symbolic link.
    Link,
    /// Another name of a file that was counted already.
    Duplicate,
    /// Above `--max-file-size`.
    TooLarge,
}

impl Reason {
    /// `special file`
    pub fn what(self) -> &'static str {
        match self {
            Reason::Special => "special file",
            Reason::Link => "symbolic link",
            Reason::Duplicate => "further name",
            Reason::TooLarge => "too large file",
        }
    }
}

/// The skipped names, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Pipes, sockets, devices that were met; those named as FILE are problems.
    pub special: usize,
    /// Symbolic links inside directories, without `--dereference`; with it, those that lead nowhere
    /// or to a directory that contains them.
    pub links: usize,
    /// Further names of a file that was counted already.
    pub duplicates: usize,
    /// Above `--max-file-size`.
    pub too_large: usize,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub struct Found {
    /// Each file once, in order of name.
    pub files: Vec<FileAt>,
    /// The directories walked through.
    pub directories: Vec<PathBuf>,
    /// The numbers of skipped names.
    pub skipped: Skipped,
    /// The skipped names.
    pub passed_over: Vec<(PathBuf, Reason)>,
    /// Names that could not be inspected.
    pub problems: Vec<Problem>,
    seen: HashSet<FileId>,
}

/// Finds the files. Continues past unreadable ones; ends early, with the files found so far, once
/// `stop` is set.
pub fn walk(selection: &Selection, stop: &AtomicBool) -> Found {
    let mut found = Found::default();
    for path in &selection.paths {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => found.walk_directory(selection, path, stop),
            Ok(metadata) if metadata.is_file() => found.take(selection, path, &metadata, true),
            Ok(_) => found.problem(path, "neither a regular file nor a directory"),
            Err(error) => found.problem(path, failed("stat", error)),
        }
    }
    found
}

impl Found {
    fn walk_directory(&mut self, selection: &Selection, top: &Path, stop: &AtomicBool) {
        let entries = WalkDir::new(top)
            .follow_links(selection.dereference)
            .same_file_system(selection.one_file_system)
            .sort_by_file_name();
        for entry in entries {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            match entry {
                Ok(entry) => self.meet(selection, top, entry),
                Err(error) => self.walk_error(selection, top, &error),
            }
        }
    }

    fn meet(&mut self, selection: &Selection, top: &Path, entry: DirEntry) {
        if entry.file_type().is_dir() {
            self.directories.push(entry.into_path());
        } else if entry.file_type().is_symlink() {
            self.pass_over(entry.path(), Reason::Link);
        } else {
            match entry.metadata() {
                Ok(metadata) => self.take(selection, entry.path(), &metadata, false),
                Err(error) => self.walk_error(selection, top, &error),
            }
        }
    }

    fn walk_error(&mut self, selection: &Selection, top: &Path, error: &walkdir::Error) {
        let path = error.path().unwrap_or(top);
        let gone = error.io_error().is_some_and(is_gone);
        let dangling = gone && std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink());
        if error.loop_ancestor().is_some() || (selection.dereference && dangling) {
            self.pass_over(path, Reason::Link);
        } else if gone && path != top {
            // Removed since its directory was read.
        } else if let Some(error) = error.io_error() {
            let again = error.raw_os_error().map(io::Error::from_raw_os_error);
            self.problem(path, failed("read", again.unwrap_or_else(|| error.kind().into())));
        }
    }

    fn take(&mut self, selection: &Selection, path: &Path, metadata: &Metadata, named: bool) {
        if !metadata.is_file() {
            self.pass_over(path, Reason::Special);
        } else if !self.seen.insert(FileId::of(metadata)) {
            self.pass_over(path, Reason::Duplicate);
        } else if selection.max_file_size.is_some_and(|most| metadata.len() > most) {
            self.pass_over(path, Reason::TooLarge);
        } else {
            let (id, stamp) = (FileId::of(metadata), Stamp::of(metadata));
            self.files.push(FileAt { path: path.to_owned(), id, stamp, named });
        }
    }

    fn pass_over(&mut self, path: &Path, reason: Reason) {
        self.passed_over.push((path.to_owned(), reason));
        *match reason {
            Reason::Special => &mut self.skipped.special,
            Reason::Link => &mut self.skipped.links,
            Reason::Duplicate => &mut self.skipped.duplicates,
            Reason::TooLarge => &mut self.skipped.too_large,
        } += 1;
    }

    fn problem(&mut self, path: &Path, why: impl ToString) {
        self.problems.push(Problem { path: path.display().to_string(), why: why.to_string() });
    }
}

impl Skipped {
    /// `2 special files, 1 symbolic link`; nothing if there is nothing to say.
    pub fn text(&self) -> String {
        let parts = [
            (self.special, Reason::Special),
            (self.links, Reason::Link),
            (self.duplicates, Reason::Duplicate),
            (self.too_large, Reason::TooLarge),
        ];
        let parts = parts.iter().filter(|(number, _)| *number > 0);
        parts
            .map(|(number, reason)| super::counted(*number, reason.what()))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn selection(path: &Path) -> Selection {
        Selection {
            paths: vec![path.to_owned()],
            dereference: false,
            one_file_system: false,
            max_file_size: None,
            range: Default::default(),
        }
    }

    #[test]
    fn each_file_is_found_once_and_the_rest_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("sub/b"), b"2").unwrap();
        std::fs::write(at(".a"), b"1").unwrap();
        std::fs::write(at("large"), vec![0; 5000]).unwrap();
        std::fs::hard_link(at("sub/b"), at("sub/c")).unwrap();
        symlink(dir.path(), at("sub/loop")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        symlink(".a", at("z")).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();

        let mut wanted = selection(dir.path());
        wanted.max_file_size = Some(4999);
        let found = walk(&wanted, &AtomicBool::new(false));
        let names: Vec<_> = found.files.iter().map(|f| f.path.clone()).collect();
        assert_eq!(names, [at(".a"), at("sub/b")]);
        assert_eq!(found.directories, [dir.path().to_owned(), at("sub")]);
        let skipped = Skipped { special: 1, links: 3, duplicates: 1, too_large: 1 };
        assert_eq!((found.skipped, found.problems.len()), (skipped, 0));

        wanted.dereference = true;
        let found = walk(&wanted, &AtomicBool::new(false));
        assert_eq!(found.files.len(), 2);
        let skipped = Skipped { special: 1, links: 2, duplicates: 2, too_large: 1 };
        assert_eq!((found.skipped, found.problems.len()), (skipped, 0));
    }

    #[test]
    fn a_named_link_is_followed_and_a_missing_name_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), b"1").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        let mut wanted = selection(&dir.path().join("link"));
        wanted.paths.push(dir.path().join("missing"));
        let found = walk(&wanted, &AtomicBool::new(false));
        assert_eq!(found.files.len(), 1);
        assert_eq!(found.problems.len(), 1);
        assert!(found.problems[0].path.ends_with("/missing"));
    }

    #[test]
    fn a_name_that_was_met_and_is_gone_is_no_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("temporary");
        std::fs::write(&path, b"1").unwrap();
        let wanted = selection(dir.path());
        let entries: Vec<_> = WalkDir::new(dir.path()).into_iter().map(Result::unwrap).collect();
        let mut found = walk(&wanted, &AtomicBool::new(false));
        std::fs::remove_file(&path).unwrap();
        let error = super::super::open(&path).unwrap_err();
        assert!(found.files[0].is_gone(&error));
        found.files[0].named = true;
        assert!(!found.files[0].is_gone(&error));
        for entry in entries {
            found.meet(&wanted, dir.path(), entry);
        }
        assert_eq!(found.problems, []);
    }

    #[test]
    fn an_interrupt_ends_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), b"1").unwrap();
        let mut wanted = selection(dir.path());
        let stop = AtomicBool::new(true);
        let found = walk(&wanted, &stop);
        assert!(found.files.is_empty() && found.directories.is_empty());
        let mut found = Found::default();
        found.walk_directory(&wanted, dir.path(), &stop);
        assert!(found.files.is_empty() && found.directories.is_empty());
        wanted.paths.push(dir.path().join("missing"));
        assert_eq!(walk(&wanted, &stop).problems, []);
    }
}
