//! Before the first run: finds pieces of files and makes every value once.
//!
//! It runs outside the demo's cgroup. So it learns the checksums with which every later get is
//! compared, and the true size of the working set. It also brings the files into the page cache at
//! this process's expense: the kernel charges a page of a file to the group that read it first. So
//! the workers' own reads later take almost none of the room for the caches.

use super::piece::{Maker, Piece, Pieces, Source, PIECE};
use crate::size;
use anyhow::{bail, Context};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use walkdir::WalkDir;

/// Smaller files are left out: the demo measures values, not the opening of files.
const SMALLEST_FILE: u64 = 16 << 10;
/// Enough to choose from, whatever directory the user names.
const MOST_FILES: usize = 150_000;
const WALK: Duration = Duration::from_secs(3);
/// Threads that read files and make values, even with fewer processors: a disk serves many reads at a
/// time. With nothing in the page cache, 288 MiB of values take 4.6 and 5.9 s; with 2 threads 7.5 and
/// 9.7 s (2 processors, zstd's level 1).
const LEAST_MAKERS: usize = 16;

/// The requirements.
pub struct Wanted<'a> {
    /// The directory to search.
    pub dir: &'a Path,
    /// Chooses the pieces.
    pub seed: u64,
    /// Bytes of values, all together.
    pub value_bytes: u64,
    /// With fewer bytes the demo needs a smaller limit.
    pub enough_value_bytes: u64,
    /// With fewer bytes the demo would show nothing.
    pub least_value_bytes: u64,
    /// zstd's level.
    pub level: i32,
    /// After this time the existing values are used, if they are enough; a little later, if they
    /// are more than the least; after three times that otherwise.
    pub patience: Duration,
}

/// The pieces, and why there are no more.
pub struct Prepared {
    /// The pieces.
    pub pieces: Pieces,
    /// The time was up before there were enough.
    pub was_late: bool,
}

/// Chooses pieces and makes their values once, and calls `progress` with the bytes made so far.
pub fn prepare(
    wanted: &Wanted<'_>,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<Prepared> {
    let started = Instant::now();
    let (files, sizes) = walk(wanted.dir)?;
    let saw_all = started.elapsed() < WALK;
    let sources = sources(&sizes, wanted.seed, wanted.value_bytes.saturating_mul(4));

    let work = Work {
        wanted,
        stop,
        started,
        next: AtomicUsize::new(0),
        made_bytes: AtomicU64::new(0),
        made: Mutex::new(Vec::new()),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).max(LEAST_MAKERS);
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let makers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| work.make_values(&files, &sources))).collect();
        while makers.iter().any(|maker| !maker.is_finished()) {
            progress(work.made_bytes.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(50));
        }
        for maker in makers {
            maker.join().expect("a maker thread does not panic")?;
        }
        Ok(())
    })?;
    let was_late = work.time_is_up() || !saw_all;
    let mut made = work.made.into_inner().expect("no maker panicked");
    // In the order of the shuffle, whichever thread was faster.
    made.sort_unstable_by_key(|(at, _)| *at);
    let pieces = Pieces { files, list: made.into_iter().map(|(_, piece)| piece).collect() };
    let bytes = pieces.value_bytes();
    if bytes < wanted.least_value_bytes && !stop.load(Ordering::Relaxed) {
        let (made, needed) = (size::show(bytes), size::show(wanted.least_value_bytes));
        let seconds = started.elapsed().as_secs_f64();
        if was_late {
            bail!(
                "this machine makes only {made} of values in {seconds:.0} s, and the demo needs \
                 {needed}; compress faster with --level 1, or name a lower --limit"
            );
        }
        bail!(
            "the files of {} give only {made} of values, and the demo needs {needed}; \
             name a larger --dir or a lower --limit",
            wanted.dir.display(),
        );
    }
    Ok(Prepared { pieces: shorten(pieces), was_late })
}

struct Work<'a> {
    wanted: &'a Wanted<'a>,
    stop: &'a AtomicBool,
    started: Instant,
    next: AtomicUsize,
    made_bytes: AtomicU64,
    made: Mutex<Vec<(usize, Piece)>>,
}

impl Work<'_> {
    /// On a slow or busy machine a late start is better than too few values.
    fn time_is_up(&self) -> bool {
        let patience = match self.made_bytes.load(Ordering::Relaxed) {
            made if made >= self.wanted.enough_value_bytes => 1.0,
            made if made >= self.wanted.least_value_bytes => 1.4,
            _ => 3.0,
        };
        self.started.elapsed() >= self.wanted.patience.mul_f64(patience)
    }

    fn make_values(&self, files: &[String], sources: &[Source]) -> anyhow::Result<()> {
        let mut maker = Maker::new(self.wanted.level).context("zstd")?;
        while self.made_bytes.load(Ordering::Relaxed) < self.wanted.value_bytes
            && !self.stop.load(Ordering::Relaxed)
            && !self.time_is_up()
        {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(source) = sources.get(at) else { break };
            // Unreadable, or changed since the walk: other files replace it.
            let Ok(piece) = maker.learn(files, *source) else {
                continue;
            };
            self.made_bytes.fetch_add(u64::from(piece.value_len), Ordering::Relaxed);
            self.made.lock().expect("no maker panics").push((at, piece));
        }
        Ok(())
    }
}

/// The files under `dir` and their sizes.
fn walk(dir: &Path) -> anyhow::Result<(Vec<String>, Vec<u64>)> {
    let deadline = Instant::now() + WALK;
    // One file system, so that the walk does not enter a network share or /proc by accident.
    let files = WalkDir::new(dir).same_file_system(true).sort_by_file_name().into_iter().flatten();
    Ok(files
        .take_while(|_| Instant::now() < deadline)
        .filter(|entry| entry.file_type().is_file())
        .filter_map(|entry| {
            let size = entry.metadata().ok()?.len();
            let path = entry.into_path().into_os_string().into_string().ok()?;
            (size >= SMALLEST_FILE).then_some((path, size))
        })
        .take(MOST_FILES)
        .unzip())
}

/// Pieces in random order. Every file is cut up. If that gives less than `enough` bytes, the files
/// are cut again at other places, so that a small directory makes a working set, too.
fn sources(sizes: &[u64], seed: u64, enough: u64) -> Vec<Source> {
    const SHIFTS: [u64; 8] = [0, 32, 16, 48, 8, 40, 24, 56];
    let mut rng = StdRng::seed_from_u64(seed);
    let mut sources = Vec::new();
    let mut bytes = 0;
    for shift in SHIFTS {
        if bytes >= enough {
            break;
        }
        let first = sources.len();
        for (file, &size) in sizes.iter().enumerate() {
            for offset in (shift << 10..size).step_by(PIECE as usize) {
                let len = PIECE.min(size - offset);
                if len >= SMALLEST_FILE {
                    sources.push(Source { file: file as u32, offset, len: len as u32 });
                    bytes += len;
                }
            }
        }
        sources[first..].shuffle(&mut rng);
    }
    sources
}

/// Drops the files from which no piece comes, because the list goes to the worker, inside the
/// cgroup.
fn shorten(pieces: Pieces) -> Pieces {
    let mut new_place = vec![None; pieces.files.len()];
    let mut short = Pieces::default();
    for mut piece in pieces.list {
        let file = piece.source.file as usize;
        piece.source.file = *new_place[file].get_or_insert_with(|| {
            short.files.push(pieces.files[file].clone());
            short.files.len() as u32 - 1
        });
        short.list.push(piece);
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(dir: &Path) -> Wanted<'_> {
        Wanted {
            dir,
            seed: 5,
            value_bytes: 100 << 10,
            enough_value_bytes: 1 << 10,
            least_value_bytes: 1 << 10,
            level: 1,
            patience: Duration::from_secs(20),
        }
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        for (name, size) in [("a", 200_000u32), ("b", 70_000), ("sub/c", 40_000), ("small", 900)] {
            let bytes: Vec<u8> =
                (0..size).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        dir
    }

    #[test]
    fn pieces_cover_files_and_leave_small_ones_out() {
        let dir = tree();
        let (files, sizes) = walk(dir.path()).unwrap();
        assert_eq!(sizes, [200_000, 70_000, 40_000], "{files:?}");
        let pieces = sources(&sizes, 1, 1);
        // 200,000 = 3 x 65,536 + 3,392 and 70,000 = 65,536 + 4,464: those ends are too small.
        assert_eq!(pieces.len(), 3 + 1 + 1);
        let more = sources(&sizes, 1, 1 << 30);
        assert_eq!(more[..5], pieces, "more pieces are added behind");
        assert!(more.len() > 5 * 5);
        assert!(more.iter().all(|p| p.offset + u64::from(p.len) <= sizes[p.file as usize]));
        let different: std::collections::HashSet<_> =
            more.iter().map(|p| (p.file, p.offset)).collect();
        assert_eq!(different.len(), more.len());
    }

    #[test]
    fn a_seed_chooses_the_same_pieces_and_they_match() {
        let dir = tree();
        let stop = AtomicBool::new(false);
        let all = Wanted { value_bytes: u64::MAX, ..wanted(dir.path()) };
        let first = prepare(&all, &stop, |_| {}).unwrap().pieces;
        let second = prepare(&all, &stop, |_| {}).unwrap().pieces;
        assert_eq!(first.list, second.list);
        assert!(first.list.len() > 20);
        let mut maker = Maker::new(1).unwrap();
        for piece in &first.list {
            assert!(piece.matches(maker.make(&first.files, piece.source).unwrap()));
        }
    }

    #[test]
    fn a_slow_machine_starts_with_fewer_values() {
        let dir = tree();
        let late = Wanted {
            enough_value_bytes: u64::MAX,
            least_value_bytes: 0,
            value_bytes: u64::MAX,
            patience: Duration::ZERO,
            ..wanted(dir.path())
        };
        let stop = AtomicBool::new(false);
        let started = Instant::now();
        let work = Work {
            wanted: &late,
            stop: &stop,
            started,
            next: AtomicUsize::new(0),
            made_bytes: AtomicU64::new(0),
            made: Mutex::default(),
        };
        assert!(work.time_is_up());
        let patient = Wanted { patience: Duration::from_secs(600), ..wanted(dir.path()) };
        assert!(!Work { wanted: &patient, ..work }.time_is_up());
        let prepared = prepare(&late, &stop, |_| {}).unwrap();
        assert!(prepared.was_late && prepared.pieces.value_bytes() < 100 << 10);
        let few = Wanted { patience: Duration::from_secs(600), value_bytes: u64::MAX, ..late };
        assert!(!prepare(&few, &stop, |_| {}).unwrap().was_late, "there are no more files");
    }

    #[test]
    fn too_little_is_said_with_a_remedy() {
        let dir = tree();
        let needs_more = Wanted { least_value_bytes: 1 << 40, ..wanted(dir.path()) };
        let error = prepare(&needs_more, &AtomicBool::new(false), |_| {}).map(|_| ());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("--dir") && error.contains("--limit"), "{error}");
        let nowhere = wanted(Path::new("/nonexistent"));
        assert!(prepare(&nowhere, &AtomicBool::new(false), |_| {}).is_err());
    }
}
