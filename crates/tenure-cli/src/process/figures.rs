//! The figures that a program with tenure publishes.
//!
//! The bytes read here belong to another program, which may have written anything there: every
//! address may be wrong, and every number too large. That gives an error, and every read is
//! bounded.

use super::mapping::Mapping;
use super::memory::{word, Memory};
use super::range::{wrong, Range, State, MOST_LISTED};
use super::runs;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use tenure::published::{self as layout, Part, Root};

impl Missing {
    /// Returns whether this user may not read them.
    pub fn is_refusal(&self) -> bool {
        match self {
            Missing::Unknown(error) | Missing::Unreadable(error) => {
                error.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }
}

/// The figures that a process has published.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The versions of tenure: a program and a library in it may each have one.
    pub versions: Vec<String>,
    values: BTreeMap<String, u64>,
    /// The tracked ranges and the pool's runs that hold memory, in order of address: a million of
    /// each kind at most.
    pub ranges: Vec<Range>,
    /// The pool's runs, until all is read.
    runs: Vec<Range>,
}

/// The reason why there are no figures.
#[derive(Debug)]
pub enum Missing {
    /// The program does not use tenure, or has not used it yet.
    NotUsed,
    /// The program may use tenure, but that cannot be read.
    Unknown(io::Error),
    /// It uses tenure, but the figures cannot be read.
    Unreadable(io::Error),
    /// The bytes make no sense.
    Wrong(String),
}

impl Figures {
    /// The value of a name; 0: there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// Returns whether there is such a name.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// What the launcher has counted, if it counts.
    pub fn of_launcher(&self) -> impl Iterator<Item = (&str, u64)> {
        self.values
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("launcher.")?, *value)))
    }

    /// The statistics as the program's own `tenure::stats()` would return them.
    pub fn stats(&self) -> tenure::Stats {
        // A program may have made the numbers up, so they are bounded: sums must not overflow.
        layout::stats_of(&|name| self.get(name).min(1 << 56))
    }

    /// Adds those of another process.
    pub fn add(&mut self, other: Figures) {
        self.versions.extend(other.versions);
        self.ranges.extend(other.ranges);
        for (name, value) in other.values {
            let largest = is_largest(&name);
            let sum = self.values.entry(name).or_default();
            *sum = if largest { value.max(*sum) } else { sum.wrapping_add(value) };
        }
    }

    /// Reads those of a process.
    pub fn read(pid: u32) -> Result<Figures, Missing> {
        Source::find(pid)?.read()
    }
}

/// The place of a process's figures, for repeated reads.
#[derive(Debug)]
pub struct Source {
    memory: Memory,
    pages: Vec<u64>,
}

impl Source {
    /// Looks for them in the process's list of mappings.
    pub fn find(pid: u32) -> Result<Source, Missing> {
        let maps = File::open(format!("/proc/{pid}/maps")).map_err(Missing::Unknown)?;
        let maps = BufReader::with_capacity(64 << 10, maps);
        let (mut pages, is_named) = candidates(maps).map_err(Missing::Unknown)?;
        if pages.is_empty() {
            return Err(Missing::NotUsed);
        }
        let unreadable = if is_named { Missing::Unreadable } else { Missing::Unknown };
        let memory = Memory::open(pid).map_err(unreadable)?;
        // A mapping of another program may look alike, or be gone by now.
        pages.retain(|page| {
            memory.begin();
            matches!(root(&memory, *page), Ok(Some(_)))
        });
        pages.truncate(MOST_COPIES);
        match pages.is_empty() {
            true if is_named => {
                Err(Missing::Wrong("the page belongs to another version of tenure".into()))
            }
            true => Err(Missing::NotUsed),
            false => Ok(Source { memory, pages }),
        }
    }

    /// Reads them. After an `exec` the caller must find the source again.
    pub fn read(&self) -> Result<Figures, Missing> {
        self.memory.begin();
        let mut all = Figures::default();
        for page in &self.pages {
            let Ok(Some(root)) = root(&self.memory, *page) else { continue };
            read_root(&self.memory, &root, &mut all).map_err(|why| match why.kind() {
                io::ErrorKind::InvalidData => Missing::Wrong(why.to_string()),
                _ => Missing::Wrong(format!("the addresses that it names cannot be read: {why}")),
            })?;
        }
        if all.versions.is_empty() {
            return Err(Missing::NotUsed);
        }
        all.ranges.append(&mut all.runs);
        all.ranges.sort_unstable_by_key(|range| range.start);
        Ok(all)
    }
}

/// The most pages that are read of one mapping: similar adjoining mappings are listed as one.
const MOST_PAGES: u64 = 64;
/// The most in a whole process: a quarter of a second.
const MOST_CANDIDATES: usize = 1 << 18;

/// The places where a page with figures may be, and whether one has the name. If none has (before
/// Linux 5.17), all read-only anonymous memory is searched: there is little of it.
pub fn candidates(mut maps: impl BufRead) -> io::Result<(Vec<u64>, bool)> {
    let named = format!("[anon:{}]", layout::NAME);
    let (mut by_name, mut others) = (Vec::new(), Vec::new());
    let mut line = Vec::new();
    let page = rustix::param::page_size() as u64;
    while maps.read_until(b'\n', &mut line)? > 0 {
        // Most lines do not match.
        let is_readable_only = line.windows(5).take(40).any(|part| part == b" r--p");
        if is_readable_only {
            let mapping = Mapping::parse(line.trim_ascii_end()).unwrap_or_default();
            let pages = (mapping.start..mapping.end).step_by(page as usize);
            if mapping.name == named {
                by_name.extend(pages.take(MOST_PAGES as usize));
            } else if mapping.inode == 0 && mapping.name.is_empty() {
                others.extend(pages.take(MOST_PAGES as usize));
            }
        }
        line.clear();
    }
    let is_named = !by_name.is_empty();
    let mut found = if is_named { by_name } else { others };
    found.truncate(MOST_CANDIDATES);
    Ok((found, is_named))
}

/// A program and the libraries in it that contain tenure.
const MOST_COPIES: usize = 8;

struct Found {
    parts: u64,
    places: usize,
    version: String,
}

const WORD: usize = 8;
const _: () = assert!(size_of::<Root>() % WORD == 0 && size_of::<Part>() == 20 * WORD);

fn root(memory: &Memory, page: u64) -> io::Result<Option<Found>> {
    let mut bytes = [0; size_of::<Root>()];
    memory.read(page, &mut bytes)?;
    if bytes[..16] != layout::MAGIC {
        return Ok(None);
    }
    let (size, parts, places) = (word(&bytes[16..]), word(&bytes[24..]), word(&bytes[32..]));
    if size < bytes.len() as u64 || places > 64 {
        return Ok(None);
    }
    let version = bytes[40..56].split(|byte| *byte == 0).next().unwrap_or_default();
    let version = String::from_utf8_lossy(version).into_owned();
    let plain = version.chars().all(|c| c.is_ascii_graphic());
    Ok(plain.then_some(Found { parts, places: places as usize, version }))
}

fn read_root(memory: &Memory, root: &Found, all: &mut Figures) -> io::Result<()> {
    let mut parts = memory.words(root.parts, root.places)?;
    parts.retain(|part| *part != 0);
    parts.sort_unstable();
    parts.dedup();
    for part in parts {
        let words = memory.words(part, size_of::<Part>() / WORD)?;
        let (kind, at, names, names_len) = (words[0], words[1], words[2], words[3]);
        if names_len > 4096 {
            return Err(wrong("a list of names is longer than 4096 bytes"));
        }
        let mut text = vec![0; names_len as usize];
        memory.read(names, &mut text)?;
        let text = String::from_utf8(text).map_err(|_| wrong("a name is no text"))?;
        match kind as usize {
            layout::WORDS => read_words(memory, at, &text, &words[4..], all)?,
            layout::RANGES => read_ranges(memory, at, &words[4..], all)?,
            layout::RUNS => runs::read(memory, at, &words[4..], &mut all.runs)?,
            // A kind of a newer version.
            _ => {}
        }
    }
    all.versions.push(root.version.clone());
    Ok(())
}

/// Names for which the largest value of several shards, and of several copies of tenure, counts.
fn is_largest(name: &str) -> bool {
    name.contains("longest")
}

fn read_words(
    memory: &Memory,
    at: u64,
    names: &str,
    numbers: &[u64],
    all: &mut Figures,
) -> io::Result<()> {
    let (count, shards, stride) = (numbers[0], numbers[1], numbers[2]);
    let names: Vec<&str> = names.split_ascii_whitespace().collect();
    if count > 256 || shards > 256 || stride > 1 << 20 || names.len() as u64 != count {
        return Err(wrong("there are too many figures, or not as many as names"));
    }
    for shard in 0..shards {
        let place =
            at.checked_add(shard * stride).ok_or_else(|| wrong("an address is too large"))?;
        for (name, value) in names.iter().zip(memory.words(place, count as usize)?) {
            let sum = all.values.entry((*name).to_owned()).or_default();
            *sum = match is_largest(name) {
                true => value.max(*sum),
                // One shard may count down an event that another has counted up.
                false => sum.wrapping_add(value),
            };
        }
    }
    Ok(())
}

/// The most ranges that tenure can track.
const MOST_RANGES: u64 = 1 << 25;

fn read_ranges(memory: &Memory, at: u64, numbers: &[u64], all: &mut Figures) -> io::Result<()> {
    let [chunks, places, made, chunk, stride, word_at, start_at, len_at, pins, offered, free, _, age_at, seen_at, held, long] =
        *numbers
    else {
        return Err(wrong("a part is too short"));
    };
    let too_large = || wrong("an address is too large");
    let fields = [(word_at, 8), (start_at, 8), (len_at, 8), (seen_at, 4), (age_at, 1)];
    let is_sane = (1..=1 << 16).contains(&chunk)
        && (8..=256).contains(&stride)
        && fields.iter().all(|(at, size)| at.checked_add(*size).is_some_and(|end| end <= stride))
        && places <= 1 << 20
        && places.checked_mul(chunk).is_some_and(|most| most <= MOST_RANGES);
    if !is_sane {
        return Err(wrong("the ranges cannot lie so"));
    }
    let mut four = [0; 4];
    memory.read(at.checked_add(made).ok_or_else(too_large)?, &mut four)?;
    let made = u64::from(u32::from_ne_bytes(four)).min(places * chunk);
    let begins = at.checked_add(chunks).ok_or_else(too_large)?;
    let chunks = memory.words(begins, made.div_ceil(chunk) as usize)?;
    let mut bytes = vec![0; (chunk * stride) as usize];
    let mut sums = Sums::default();
    for (number, address) in chunks.into_iter().enumerate() {
        let here = (made - number as u64 * chunk).min(chunk);
        let part = &mut bytes[..(here * stride) as usize];
        memory.read(address, part)?;
        for range in part.chunks_exact(stride as usize) {
            let field = |at: u64| word(&range[at as usize..]);
            let (value, start, len) = (field(word_at), field(start_at), field(len_at));
            if value & free != 0 {
                continue;
            }
            let state = match (value & offered != 0, value & pins) {
                (true, _) => State::Offered,
                (false, 0) => State::Marked,
                (false, _) => State::Pinned,
            };
            let uses = (value >> 32) as u32;
            let seen = &range[seen_at as usize..][..4];
            let seen = u32::from_ne_bytes([seen[0], seen[1], seen[2], seen[3]]);
            let is_long = state == State::Pinned
                && seen == uses ^ held as u32
                && u64::from(range[age_at as usize]) >= long;
            let range = Range { start, len, state, uses, is_long };
            sums.add(&range);
            if all.ranges.len() < MOST_LISTED {
                all.ranges.push(range);
            }
        }
    }
    sums.add_to(&mut all.values);
    Ok(())
}

/// Sums over ranges.
#[derive(Default)]
struct Sums {
    /// By state: the number, and the bytes.
    states: [(u64, u64); 3],
    long_bytes: u64,
    uses: u64,
}

impl Sums {
    fn add(&mut self, range: &Range) {
        let (count, bytes) = &mut self.states[range.state as usize];
        *count += 1;
        *bytes = bytes.saturating_add(range.len);
        self.uses += u64::from(range.uses);
        if range.is_long {
            self.long_bytes = self.long_bytes.saturating_add(range.len);
        }
    }

    fn add_to(&self, values: &mut BTreeMap<String, u64>) {
        let [pinned, marked, offered] = self.states;
        for (name, value) in [
            ("ranges", pinned.0 + marked.0 + offered.0),
            ("pinned", pinned.0),
            ("pinned_bytes", pinned.1),
            ("pinned_long_bytes", self.long_bytes),
            ("marked", marked.0),
            ("marked_bytes", marked.1),
            ("offered", offered.0),
            ("ranges.offered_bytes", offered.1),
            ("pins", self.uses),
        ] {
            let sum = values.entry(name.to_owned()).or_default();
            *sum = sum.saturating_add(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_found_by_its_name_or_among_the_few_that_may_be_it() {
        let page = rustix::param::page_size() as u64;
        let line = |start: u64, pages: u64, rest: &str| {
            format!("{start:x}-{:x} {rest}\n", start + pages * page)
        };
        let mut text = line(0x10_0000, 1, "r--p 00000000 fe:00 77 /lib/x");
        text += &line(0x20_0000, 2, "r--p 00000000 00:00 0 ");
        text += &line(0x30_0000, 1, "rw-p 00000000 00:00 0 ");
        text += &line(0x40_0000, 1, "r--p 00000000 00:00 0 [vvar]");
        let found = candidates(text.as_bytes()).unwrap();
        assert_eq!(found, (vec![0x20_0000, 0x20_0000 + page], false));
        text += &line(0x50_0000, 1, "r--p 00000000 00:00 0 [anon:tenure: figures]");
        assert_eq!(candidates(text.as_bytes()).unwrap(), (vec![0x50_0000], true));
    }
}
