//! Lists of mappings, by all readers, compared with a strict reading of the kernel's format.

use super::promise::{holds, same};
use crate::os::maps_line::{name_in_line, parse_line};
use crate::os::{brief, mapping_list, page_size, small_file, smaps};
use crate::process;
use crate::range::PageRange;
use rustix::io::Errno;
use std::io::{Seek, Write};
use tempfile::NamedTempFile;
use tenure_differ::rng::Rng;

/// A line as the kernel writes it: addresses, permissions, and nothing else.
#[derive(Debug, PartialEq, Eq)]
struct Strict {
    start: u64,
    end: u64,
    permissions: [u8; 4],
    inode: u64,
}

fn strict(line: &[u8]) -> Option<Strict> {
    let text = std::str::from_utf8(line.get(..line.len().min(160))?).ok()?;
    let mut fields = text.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions: [u8; 4] = fields.next()?.as_bytes().try_into().ok()?;
    let known = permissions.iter().zip([b"r-", b"w-", b"x-", b"ps"]);
    let is_known = known.into_iter().all(|(byte, known)| known.contains(byte));
    let (offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let hexadecimal = |text: &str, most: usize| {
        let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_plain = !text.is_empty() && text.len() <= most && text.bytes().all(digits);
        is_plain.then(|| u64::from_str_radix(text, 16).ok())?
    };
    let (major, minor) = device.split_once(':')?;
    let _ = (hexadecimal(offset, 16)?, hexadecimal(major, 8)?, hexadecimal(minor, 8)?);
    let is_decimal =
        (1..=20).contains(&inode.len()) && inode.bytes().all(|byte| byte.is_ascii_digit());
    let (start, end) = (hexadecimal(start, 16)?, hexadecimal(end, 16)?);
    let inode = is_decimal.then(|| inode.parse().ok())??;
    (is_known && start < end).then_some(Strict { start, end, permissions, inode })
}

/// `/proc/PID/maps`.
pub fn lines(input: &[u8]) -> Result<(), String> {
    for line in input.split(|byte| *byte == b'\n') {
        one(line)?;
    }
    windows(input)?;
    // No address makes a reader of figures loop for ever.
    let (pages, _) = process::figures::candidates(input).map_err(|error| error.to_string())?;
    holds("not too many pages are looked at", pages.len() <= 1 << 18)
}

fn one(line: &[u8]) -> Result<(), String> {
    let text = line.escape_ascii();
    let (core, other) = (parse_line(line), process::mapping::Mapping::parse(line));
    let rest = name_in_line(line);
    holds("a name is a part of its line", line.ends_with(rest) || rest.is_empty())?;
    if let Some(mapping) = &core {
        holds(&format!("the core's mapping has bytes: {text}"), mapping.start < mapping.end)?;
    }
    let Some(wanted) = strict(line) else { return Ok(()) };
    let core = core.map(|mapping| {
        let flags = [mapping.readable, mapping.writable, mapping.shared];
        (mapping.start as u64, mapping.end as u64, flags, mapping.inode)
    });
    let [r, w, _, s] = wanted.permissions;
    let flags = [r == b'r', w == b'w', s == b's'];
    same(
        &format!("{text} by the core"),
        &core,
        &Some((wanted.start, wanted.end, flags, wanted.inode)),
    )?;
    let other = other.map(|m| Strict {
        start: m.start,
        end: m.end,
        permissions: m.permissions,
        inode: m.inode,
    });
    same(&format!("{text} by the command"), &other, &Some(wanted))
}

/// Returns the input in pieces of sizes that the input chooses.
fn pieces(input: &[u8]) -> impl FnMut(&mut [u8]) -> Result<usize, Errno> + '_ {
    let mut rng = Rng::new(input.len() as u64);
    let mut at = 0;
    move |buffer| {
        if rng.once_in(8) {
            return Err(Errno::INTR);
        }
        let most = [1, 7, 300, 4096, usize::MAX][rng.below(5) as usize];
        let len = (input.len() - at).min(buffer.len()).min(most);
        buffer[..len].copy_from_slice(&input[at..at + len]);
        at += len;
        Ok(len)
    }
}

/// The readers with a window of 512 bytes see each line, or its beginning.
fn windows(input: &[u8]) -> Result<(), String> {
    const WINDOW: usize = 512;
    let mut wanted: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    // A line without an end does not count, but its beginning is read if it fills the window.
    if wanted.last().is_some_and(|last| last.len() < WINDOW) {
        wanted.pop();
    }
    wanted.iter_mut().for_each(|line| *line = &line[..line.len().min(WINDOW)]);
    let mut found = Vec::new();
    let read = small_file::each_line(pieces(input), |line| {
        found.push(line.to_vec());
        true
    });
    holds("lines are read", read.is_ok())?;
    same("the lines", &found.iter().map(Vec::as_slice).collect(), &wanted)?;
    let mut file = NamedTempFile::new().map_err(|error| error.to_string())?;
    file.write_all(input).and_then(|()| file.rewind()).map_err(|error| error.to_string())?;
    let opened = brief::open(file.path()).map_err(|error| error.to_string())?;
    let mut lister = mapping_list::Lister::of(opened);
    let mut at = 1;
    for line in wanted {
        let Some(mapping) = parse_line(line).filter(|mapping| mapping.end > at) else { continue };
        let listed = lister.at_or_after(at).map_err(|error| error.to_string())?;
        same("the mapping listed next", &listed.map(|listed| listed.mapping), &Some(mapping))?;
        at = mapping.end;
    }
    let last = lister.at_or_after(at).map_err(|error| error.to_string())?;
    holds("nothing is listed after the last one", last.is_none())
}

type Found = Vec<(u64, u64, Option<bool>)>;
type Source<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>;

/// `smaps`, by the core's reader and the command's.
pub fn smaps(input: &[u8]) -> Result<(), String> {
    let page = page_size();
    let range = PageRange::new(page, isize::MAX as usize / page * page);
    let read = |source: Source<'_>| {
        let mut found = Vec::new();
        let read = smaps::each_entry_of(source, range, |entry| found.push(entry));
        holds("smaps is read", read.is_ok()).map(|()| found)
    };
    let mut rest = input;
    let mut at_once = move |buffer: &mut [u8]| {
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        rest = &rest[len..];
        Ok(len)
    };
    let core = read(&mut at_once)?;
    let in_pieces = read(&mut pieces(input))?;
    same("smaps read in pieces", &in_pieces, &core)?;
    let mut other = Vec::new();
    process::smaps::read(input, |entry| other.push(entry)).map_err(|error| error.to_string())?;
    let mut sum = process::smaps::Amounts::default();
    other.iter().for_each(|entry| sum += entry.amounts);
    let begins =
        |line: &[u8]| line.first().is_some_and(|b| b.is_ascii_digit() || b"abcdef".contains(b));
    let lines = || input.split(|byte| *byte == b'\n');
    // The core reads a last line without an end; the command does not.
    let is_plain = input.is_ascii() && !input.iter().any(|byte| b"\t\r\x0b\x0c".contains(byte));
    let all_strict = lines().filter(|line| begins(line)).all(|line| strict(line).is_some());
    if !(is_plain && all_strict && input.ends_with(b"\n")) {
        return Ok(());
    }
    let lock = |full: bool, on_fault: bool| (full || on_fault).then_some(full);
    let by_core: Found = core
        .iter()
        .map(|entry| {
            let (start, end) = (entry.mapping.start as u64, entry.mapping.end as u64);
            (start, end, lock(entry.locked_fully(), entry.locked_on_fault()))
        })
        .collect();
    let by_command: Found = other
        .iter()
        .take_while(|entry| entry.mapping.start < range.end as u64)
        .filter(|entry| entry.mapping.end > range.start as u64)
        .map(|entry| {
            let lock = entry.lock.map(|lock| lock == process::smaps::Lock::Full);
            (entry.mapping.start, entry.mapping.end, lock)
        })
        .collect();
    same("smaps by the core, and by the command", &by_core, &by_command)
}
