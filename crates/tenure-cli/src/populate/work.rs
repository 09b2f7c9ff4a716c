//! Inspects the files and reads their missing parts.

use super::outcome::{Ending, Outcome};
use crate::files::fill::{Filling, Unfilled};
use crate::files::part::Part;
use crate::files::{self, pool, FileAt};
use crate::interrupt::Interrupt;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// The settings that all files share.
pub struct Work<'a> {
    /// The part of each file.
    pub part: Part,
    /// 0: as many as are useful.
    pub threads: usize,
    /// The interrupt that ends it.
    pub interrupt: &'a Interrupt,
}

/// The result of reading a file.
struct Read {
    bytes: u64,
    ended: Option<Ending>,
    trouble: Option<String>,
    gone: bool,
}

impl Work<'_> {
    /// Inspects each file, several at a time, because their inodes and extents may have to be read.
    pub fn look(&self, files: &[FileAt]) -> Vec<Outcome> {
        let look = |file: &FileAt, _: usize| {
            let mut outcome = Outcome {
                path: file.path.clone(),
                look: files::Look::default(),
                read: 0,
                after: None,
                trouble: None,
                gone: false,
            };
            if self.interrupt.is_set() {
                return outcome;
            }
            match files::open(&file.path) {
                Ok((opened, _, stamp)) => match files::look(&opened, stamp.size, self.part) {
                    Ok(look) => outcome.look = look,
                    Err(error) => outcome.trouble = Some(error.to_string()),
                },
                Err(error) if file.is_gone(&error) => outcome.gone = true,
                Err(error) => outcome.trouble = Some(error.to_string()),
            }
            outcome.after = outcome.look.resident;
            outcome
        };
        pool::run(files, self.threads, |_| false, look, || {})
    }

    /// Reads the missing parts.
    pub fn fill(
        &self,
        files: &[FileAt],
        outcomes: &mut [Outcome],
        until: Option<Instant>,
        done: &AtomicU64,
        tick: impl FnMut(),
    ) -> Ending {
        let filling = Filling { stop: self.interrupt.flag(), until, done };
        let jobs: Vec<(&FileAt, &Outcome)> = files.iter().zip(&*outcomes).collect();
        let is_large = |job: &(&FileAt, &Outcome)| job.1.look.missing_bytes() >= files::LARGE;
        let read =
            |job: &(&FileAt, &Outcome), threads: usize| read(&filling, job.0, job.1, threads);
        let reads = pool::run(&jobs, self.threads, is_large, read, tick);
        let mut ending = Ending::Done;
        for (outcome, read) in outcomes.iter_mut().zip(reads) {
            outcome.read = read.bytes;
            outcome.gone |= read.gone;
            if read.trouble.is_some() {
                outcome.trouble = read.trouble;
            }
            ending = read.ended.unwrap_or(ending);
        }
        ending
    }

    /// Inspects again, at the end: later files may have pushed earlier ones out.
    pub fn look_again(&self, files: &[FileAt], outcomes: &mut [Outcome]) {
        for (file, outcome) in files.iter().zip(outcomes) {
            if outcome.look.resident.is_none() {
                continue;
            }
            outcome.after = files::open(&file.path)
                .ok()
                .and_then(|(opened, _, _)| files::resident_bytes(&opened, &outcome.look.data));
        }
    }
}

fn read(filling: &Filling<'_>, at: &FileAt, outcome: &Outcome, threads: usize) -> Read {
    let mut read = Read { bytes: 0, ended: None, trouble: None, gone: false };
    if outcome.look.missing.is_empty() {
        return read;
    }
    if let Err(why) = read_parts(filling, at, outcome, threads, &mut read) {
        match why {
            Unfilled::Stopped => read.ended = Some(Ending::Interrupted),
            Unfilled::TimedOut => read.ended = Some(Ending::OutOfTime),
            Unfilled::Broken(why) => read.trouble = Some(why),
            Unfilled::Failed(error) => read.trouble = Some(error.to_string()),
        }
    }
    read
}

fn read_parts(
    filling: &Filling<'_>,
    at: &FileAt,
    outcome: &Outcome,
    threads: usize,
    read: &mut Read,
) -> Result<(), Unfilled> {
    if let Some(over) = filling.over() {
        return Err(over);
    }
    let broken = |error: std::io::Error| Unfilled::Broken(error.to_string());
    let (file, id, _) = match files::open(&at.path) {
        Err(error) if at.is_gone(&error) => {
            read.gone = true;
            return Ok(());
        }
        opened => opened.map_err(broken)?,
    };
    if id != at.id {
        return Err(Unfilled::Broken("it was replaced meanwhile; run this again".into()));
    }
    let result;
    (read.bytes, result) = filling.read(&file, &outcome.look.missing, threads);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileId, Stamp};
    use std::sync::atomic::AtomicU64;

    #[test]
    fn what_is_gone_since_the_walk_is_a_problem_only_if_the_user_named_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("temporary");
        std::fs::write(&path, vec![1; 5000]).unwrap();
        let metadata = path.metadata().unwrap();
        let (id, stamp) = (FileId::of(&metadata), Stamp::of(&metadata));
        let file = |named| FileAt { path: path.clone(), id, stamp, named };
        let files = [file(false), file(true)];
        let interrupt = Interrupt::catch().unwrap();
        let work = Work { part: Part::default(), threads: 1, interrupt: &interrupt };
        // The file is removed after the inspection: it counts as if nothing had been there.
        let mut outcomes = work.look(&files);
        std::fs::remove_file(&path).unwrap();
        for outcome in &mut outcomes {
            outcome.look.missing = outcome.look.data.clone();
        }
        work.fill(&files, &mut outcomes, None, &AtomicU64::new(0), || {});
        let of = |outcome: &Outcome| (outcome.gone, outcome.trouble.is_some());
        assert_eq!(outcomes.iter().map(of).collect::<Vec<_>>(), [(true, false), (false, true)]);
        // The file is removed before the inspection.
        let outcomes = work.look(&files);
        assert_eq!(outcomes.iter().map(of).collect::<Vec<_>>(), [(true, false), (false, true)]);
    }
}
