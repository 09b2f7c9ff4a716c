//! The facts about each mapping in `/proc/PID/smaps`.
//!
//! For a process with 100,000 mappings it has 80 MB. So lines are read as bytes, and only the
//! needed ones are parsed.

use super::mapping::{decimal, Mapping};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::ops::AddAssign;

/// Bytes of one mapping, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts {
    /// Addresses.
    pub size: u64,
    /// In memory.
    pub resident: u64,
    /// In memory and locked, in a mapping that is locked in full. Shared pages count in part.
    pub locked: u64,
    /// In memory and locked, in a mapping whose pages are locked from their first touch on.
    pub locked_on_fault: u64,
    /// In memory, and the kernel may discard them.
    pub lazy_free: u64,
    /// On a swap device.
    pub swapped: u64,
    /// In memory in huge pages.
    pub huge: u64,
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Amounts) {
        add(&mut self.size, other.size);
        add(&mut self.resident, other.resident);
        add(&mut self.locked, other.locked);
        add(&mut self.locked_on_fault, other.locked_on_fault);
        add(&mut self.lazy_free, other.lazy_free);
        add(&mut self.swapped, other.swapped);
        add(&mut self.huge, other.huge);
    }
}

/// Adds numbers without overflow, because another kernel may give them another meaning.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// A mapping and its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its addresses and name.
    pub mapping: Mapping,
    /// Its amounts.
    pub amounts: Amounts,
    /// Locked in full, or on fault.
    pub lock: Option<Lock>,
}

/// How a mapping is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    /// All pages.
    Full,
    /// Each page from its first touch on.
    OnFault,
}

/// Calls `each` with every mapping of the process, in order of address.
pub fn each(pid: u32, each: impl FnMut(Entry)) -> io::Result<()> {
    read(File::open(format!("/proc/{pid}/smaps"))?, each)
}

/// The sum over all mappings. The kernel adds up, so no list is read. `size` and the locks are not
/// known.
pub fn sum(pid: u32) -> io::Result<Amounts> {
    let mut sum = Amounts::default();
    read(File::open(format!("/proc/{pid}/smaps_rollup"))?, |entry| sum += entry.amounts)?;
    // The first and the last address are those of the process.
    Ok(Amounts { size: 0, ..sum })
}

/// Calls `each` with every mapping in the reader's text.
pub fn read(mut file: impl Read, mut each: impl FnMut(Entry)) -> io::Result<()> {
    let mut buffer = vec![0u8; 256 << 10];
    let (mut filled, mut current) = (0, Current::default());
    loop {
        if filled == buffer.len() {
            buffer.resize(buffer.len() * 2, 0); // one line, with a very long path
        }
        let got = match file.read(&mut buffer[filled..]) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        filled += got;
        let mut at = 0;
        while let Some(len) = buffer[at..filled].iter().position(|byte| *byte == b'\n') {
            current.take(&buffer[at..at + len], &mut each);
            at += len + 1;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        if got == 0 {
            current.end(&mut each);
            return Ok(());
        }
    }
}

#[derive(Default)]
struct Current {
    entry: Option<Entry>,
    locked: u64,
}

impl Current {
    fn take(&mut self, line: &[u8], each: &mut impl FnMut(Entry)) {
        let Some(first) = line.first() else { return };
        if first.is_ascii_digit() || (b'a'..=b'f').contains(first) {
            self.end(each);
            self.entry = Mapping::parse(line).map(|mapping| Entry {
                amounts: Amounts { size: mapping.size(), ..Amounts::default() },
                mapping,
                lock: None,
            });
            return;
        }
        let Some(entry) = &mut self.entry else { return };
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let kib = || decimal(value.strip_suffix(b" kB").unwrap_or(value)).unwrap_or(0);
        let bytes = || kib().saturating_mul(1 << 10);
        let amounts = &mut entry.amounts;
        match name {
            b"Rss" => add(&mut amounts.resident, bytes()),
            b"Locked" => self.locked = bytes(),
            b"LazyFree" => amounts.lazy_free = bytes(),
            b"Swap" => amounts.swapped = bytes(),
            b"AnonHugePages" | b"ShmemPmdMapped" | b"FilePmdMapped" => {
                add(&mut amounts.huge, bytes());
            }
            // Those of hugetlbfs, which are no part of `Rss`.
            b"Shared_Hugetlb" | b"Private_Hugetlb" => {
                add(&mut amounts.huge, bytes());
                add(&mut amounts.resident, bytes());
            }
            b"VmFlags" => entry.lock = lock(value),
            _ => {}
        }
    }

    fn end(&mut self, each: &mut impl FnMut(Entry)) {
        let locked = std::mem::take(&mut self.locked);
        let Some(mut entry) = self.entry.take() else { return };
        match entry.lock {
            Some(Lock::Full) => entry.amounts.locked = locked,
            Some(Lock::OnFault) => entry.amounts.locked_on_fault = locked,
            None => {}
        }
        each(entry);
    }
}

/// Before Linux 6.2 `VM_LOCKONFAULT` has no name and shows as `??`, in the order of the bits. Each
/// lower bit has a name, so it is the `??` that follows only these names.
fn lock(flags: &[u8]) -> Option<Lock> {
    const BELOW: [&[u8]; 20] = [
        b"rd", b"wr", b"ex", b"sh", b"mr", b"mw", b"me", b"ms", b"gd", b"gu", b"um", b"pf", b"dw",
        b"uw", b"lo", b"io", b"sr", b"rr", b"dc", b"de",
    ];
    let words = || flags.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    if !words().any(|word| word == b"lo") {
        return None;
    }
    let unnamed = || words().find(|word| !BELOW.contains(word)) == Some(b"??");
    match words().any(|word| word == b"lf") || unnamed() {
        true => Some(Lock::OnFault),
        false => Some(Lock::Full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart_and_their_locks_too() {
        let text = b"7f0000000000-7f0000004000 rw-p 00000000 00:00 0 [anon:x]\nRss: 8 kB\n\
            Locked: 8 kB\nLazyFree: 4 kB\nSwap:  4 kB\nVmFlags: rd wr mr mw me lo ?? ac sd \n\
            7f0000004000-7f0000006000 rw-p 00000000 00:00 0 \nLocked: 4 kB\nVmFlags: rd lo ac\n\
            nonsense\n7f0000200000-7f0000400000 rw-p 00000000 00:10 0 /h\nPrivate_Hugetlb: 2048 kB\n\
            VmFlags: rd ht\n";
        let mut found = Vec::new();
        read(&text[..], |entry| found.push(entry)).unwrap();
        let [first, second, third] = &found[..] else { panic!("{found:?}") };
        assert_eq!(first.lock, Some(Lock::OnFault));
        let amounts = Amounts {
            size: 0x4000,
            resident: 8192,
            locked: 0,
            locked_on_fault: 8192,
            lazy_free: 4096,
            swapped: 4096,
            huge: 0,
        };
        assert_eq!(first.amounts, amounts);
        assert_eq!((second.lock, second.amounts.locked), (Some(Lock::Full), 4096));
        assert_eq!((third.amounts.huge, third.amounts.resident), (2 << 20, 2 << 20));
    }

    #[test]
    fn what_no_kernel_writes_ends_nothing() {
        let most = "18446744073709551615 kB";
        let text = format!(
            "1000-2000 rw-p 0 0:0 0\nRss: {most}\nPrivate_Hugetlb: {most}\nVmFlags: lo  ??\n"
        );
        let mut sum = Amounts::default();
        read(text.repeat(2).as_bytes(), |entry| {
            sum += entry.amounts;
            assert_eq!((entry.amounts.resident, entry.lock), (u64::MAX, Some(Lock::OnFault)));
        })
        .unwrap();
        assert_eq!((sum.resident, sum.size), (u64::MAX, 0x2000));
    }
}
