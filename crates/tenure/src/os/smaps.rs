//! Facts about mappings that only `/proc/self/smaps` has: locked, locked on fault, special.
//!
//! A read walks the page tables of every mapping up to the end of the requested range (about 10 ns
//! a mapped page). So it serves only questions for which [`super::maps`] and `msync` do not
//! suffice.

use super::maps_line::{name_in_line, parse_line, Mapping};
use crate::range::PageRange;
use rustix::io::Errno;

/// A mapping with the facts that only smaps has. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub mapping: Mapping,
    /// Path of the file, `[heap]`, `[anon:name]`, or nothing.
    pub name: String,
    /// Size of the pages of the mapping: larger than the base page for hugetlbfs.
    pub page_size: usize,
    /// Resident.
    pub rss: u64,
    /// Resident and locked, as the kernel counts it: its share of shared pages.
    pub locked: u64,
    flags: String,
}

impl Entry {
    /// Whether `VmFlags` has this two-letter flag: `lo` locked, `lf` on fault (named so from 6.2
    /// on), `io` and `pf` device memory, `ht` hugetlbfs, `dd` and `dp` (droppable, 6.11+), `sf`
    /// secretmem has none of its own.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|f| f == flag)
    }

    /// Locked, each page from its first touch on.
    pub fn locked_on_fault(&self) -> bool {
        self.has("lo") && (self.has("lf") || self.has_unnamed_lock_on_fault())
    }

    /// Locked in full.
    pub fn locked_fully(&self) -> bool {
        self.has("lo") && !self.locked_on_fault()
    }

    /// Before 6.2 `VM_LOCKONFAULT` has no name and shows as `??`, in the order of the bits. It is
    /// the 19th bit, and each lower bit has a name. So it is the `??` that follows only these
    /// names.
    fn has_unnamed_lock_on_fault(&self) -> bool {
        const BELOW: [&str; 20] = [
            "rd", "wr", "ex", "sh", "mr", "mw", "me", "ms", "gd", "gu", "um", "pf", "dw", "uw",
            "lo", "io", "sr", "rr", "dc", "de",
        ];
        let mut flags = self.flags.split_ascii_whitespace();
        flags.find(|flag| !BELOW.contains(flag)) == Some("??")
    }
}

/// Calls `each` with the mappings that overlap the range, in order of address.
pub(crate) fn each_entry(range: PageRange, each: impl FnMut(Entry)) -> Result<(), Errno> {
    let fd = super::brief::open("/proc/thread-self/smaps")?;
    each_entry_of(|buffer| fd.read(buffer), range, each)
}

/// Calls `each` with the mappings in the text that `read` delivers.
pub(crate) fn each_entry_of(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    range: PageRange,
    mut each: impl FnMut(Entry),
) -> Result<(), Errno> {
    let mut buffer = vec![0u8; 64 << 10];
    let mut filled = 0;
    let mut current: Option<Entry> = None;
    loop {
        if filled == buffer.len() {
            buffer.resize(buffer.len() * 2, 0); // a longer line: a very long path
        }
        let got = match read(&mut buffer[filled..]) {
            Ok(got) => got,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        filled += got;
        let whole = match got {
            0 => filled,
            _ => buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        };
        for line in buffer[..whole].split(|byte| *byte == b'\n') {
            if !take_line(line, range, &mut current, &mut each) {
                return Ok(()); // past the range, so the rest need not be walked
            }
        }
        if got == 0 {
            if let Some(entry) = current {
                each(entry);
            }
            return Ok(());
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// Takes a line in. `false`: the line begins a mapping past the range.
fn take_line(
    line: &[u8],
    range: PageRange,
    current: &mut Option<Entry>,
    each: &mut impl FnMut(Entry),
) -> bool {
    // A mapping's first line begins with an address, in small hexadecimal digits. The other lines
    // begin with a name that has a capital.
    let begins = line.first().is_some_and(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    if begins {
        // Whatever this mapping is, the lines from here on no longer belong to the one before.
        if let Some(entry) = current.take() {
            each(entry);
        }
        if let Some(mapping) = parse_line(line) {
            if mapping.start >= range.end {
                return false;
            }
            if mapping.end > range.start {
                *current = Some(Entry {
                    mapping,
                    name: String::from_utf8_lossy(name_in_line(line)).into_owned(),
                    page_size: super::page_size(),
                    rss: 0,
                    locked: 0,
                    flags: String::new(),
                });
            }
        }
        return true;
    }
    if let Some(entry) = current {
        let Ok(text) = std::str::from_utf8(line) else { return true };
        let Some((field, value)) = text.split_once(':') else { return true };
        let bytes = || {
            let number = value.split_ascii_whitespace().next().and_then(|n| n.parse::<u64>().ok());
            number.unwrap_or(0) << 10
        };
        match field {
            "KernelPageSize" => entry.page_size = bytes() as usize,
            "Rss" => entry.rss = bytes(),
            "Locked" => entry.locked = bytes(),
            "VmFlags" => entry.flags = value.trim().to_owned(),
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::lock_on_fault::lock_on_fault;
    use crate::os::reserve::Scratch;
    use crate::os::{mlock, page_size};

    fn entries(range: PageRange) -> Vec<Entry> {
        let mut found = Vec::new();
        each_entry(range, |entry| found.push(entry)).unwrap();
        found
    }

    #[test]
    fn locks_of_either_kind_are_seen() {
        let mut scratch = Scratch::new(6 * page_size(), false).unwrap();
        scratch.bytes().fill(1);
        let (start, page) = (scratch.range().start, page_size());
        mlock::lock(PageRange::new(start, start + page)).unwrap();
        lock_on_fault(PageRange::new(start + 2 * page, start + 4 * page)).unwrap();
        let found = entries(scratch.range());
        let kind = |at: usize| {
            let entry = found
                .iter()
                .find(|e| e.mapping.start <= start + at * page && start + at * page < e.mapping.end)
                .unwrap();
            (entry.locked_fully(), entry.locked_on_fault())
        };
        let kinds: Vec<_> = (0..6).map(kind).collect();
        let (none, full, on_fault) = ((false, false), (true, false), (false, true));
        assert_eq!(kinds, [full, none, on_fault, on_fault, none, none]);
        assert!(found.iter().all(|entry| entry.page_size == page));
    }

    #[test]
    fn before_6_2_locks_on_fault_have_no_name() {
        let kind = |flags: &str| {
            let text = format!(
                "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: {flags} \n"
            );
            let range = PageRange::new(0x7f00_0000_0000, 0x7f00_0000_1000);
            let mut current = None;
            for line in text.split('\n') {
                take_line(line.as_bytes(), range, &mut current, &mut |_| {});
            }
            let entry = current.unwrap();
            (entry.locked_fully(), entry.locked_on_fault())
        };
        let (none, full, on_fault) = ((false, false), (true, false), (false, true));
        // Flags as 5.10 and 6.1 have them, then as 6.2 has.
        assert_eq!(kind("rd wr mr mw me lo ?? ac sd"), on_fault);
        assert_eq!(kind("rd mr me dw lo sr ?? nr"), on_fault);
        assert_eq!(kind("rd sh mr mw me ms lo ?? sd"), on_fault);
        assert_eq!(kind("rd wr mr mw me lo ac sd"), full);
        assert_eq!(kind("rd wr mr mw me lo ac ?? sd"), full, "a bit above it");
        assert_eq!(kind("rd wr mr mw me ?? ac sd"), none);
        assert_eq!(kind("rd wr mr mw me lo lf ac sd"), on_fault);
    }

    #[test]
    fn what_is_said_of_one_mapping_is_not_taken_for_its_neighbours() {
        let text: &[u8] = b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \nVmFlags: rd wr lo \n\
            7f0000001000-7f0000002000 r--s 00000000 00:1f 7 /tmp/caf\xe9 x\nVmFlags: rd sh \n\
            7f0000002000 of a kernel to come\nVmFlags: rd ht \n";
        let range = PageRange::new(0x7f00_0000_0000, 0x7f00_0000_3000);
        let (mut current, mut found) = (None, Vec::new());
        for line in text.split(|byte| *byte == b'\n') {
            take_line(line, range, &mut current, &mut |entry: Entry| found.push(entry));
        }
        found.extend(current);
        let [locked, named] = &found[..] else { panic!("{found:?}") };
        assert!(locked.locked_fully());
        assert_eq!(named.name, "/tmp/caf\u{fffd} x");
        assert!(named.has("sh") && !named.has("lo") && !named.has("ht"));
    }

    #[test]
    fn names_and_sizes_are_read() {
        let here = entries as *const () as usize / page_size() * page_size();
        let found = entries(PageRange::new(here, here + page_size()));
        assert_eq!(found.len(), 1);
        let program = std::env::current_exe().unwrap();
        assert_eq!(found[0].name, program.to_str().unwrap());
        assert!(found[0].rss > 0 && found[0].mapping.readable && !found[0].has("lo"));
    }
}
