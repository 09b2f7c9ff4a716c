//! The kernel's facts about real pages: smaps and pagemap.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// One mapping as /proc/self/smaps describes it. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Smaps {
    /// The addresses of the mapping.
    pub range: Range<usize>,
    /// The permissions, such as `rw-p`.
    pub perms: String,
    /// The file or the kernel's name for the mapping; empty if it is anonymous.
    pub name: String,
    /// Resident pages.
    pub rss: u64,
    /// Resident pages divided by the number of processes that map them.
    pub pss: u64,
    /// Pages that belong to no file.
    pub anonymous: u64,
    /// Pages that MADV_FREE has given up and the kernel still has. The kernel moves them in
    /// batches, so the last few dozen of each processor are not counted yet.
    pub lazy_free: u64,
    /// Anonymous memory in huge pages mapped as such.
    pub anon_huge: u64,
    /// Dirty pages that only this process maps.
    pub private_dirty: u64,
    /// Pages in swap.
    pub swap: u64,
    /// Locked resident pages.
    pub locked: u64,
    /// Two-letter flags of the mapping: `lo` locked, `lf` locked on fault, `um` userfaultfd
    /// missing, `hg` huge pages advised, `wf` wiped on fork, and so on.
    pub vm_flags: Vec<String>,
}

impl Smaps {
    /// Whether the mapping has this two-letter flag.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.vm_flags.iter().any(|f| f == flag)
    }

    /// Returns whether it is locked on fault. Before Linux 6.2 that flag has no name and shows as
    /// `??`, before other such flags.
    pub fn is_locked_on_fault(&self) -> bool {
        let first_unnamed = self.vm_flags.iter().position(|f| f == "??");
        // The flags that follow it, in the order of the bits.
        let behind = |f: &String| {
            matches!(
                &f[..],
                "ac" | "nr" | "ht" | "sf" | "ar" | "wf" | "dd" | "sd" | "mm" | "hg" | "nh" | "mg"
            )
        };
        let unnamed = first_unnamed.is_some_and(|at| !self.vm_flags[..at].iter().any(behind));
        self.has_flag("lo") && (self.has_flag("lf") || unnamed)
    }

    fn add_line(&mut self, line: &str) {
        let Some((key, value)) = line.split_once(':') else {
            return;
        };
        if key == "VmFlags" {
            self.vm_flags = value.split_whitespace().map(str::to_owned).collect();
            return;
        }
        let field = match key {
            "Rss" => &mut self.rss,
            "Pss" => &mut self.pss,
            "Anonymous" => &mut self.anonymous,
            "LazyFree" => &mut self.lazy_free,
            "AnonHugePages" => &mut self.anon_huge,
            "Private_Dirty" => &mut self.private_dirty,
            "Swap" => &mut self.swap,
            "Locked" => &mut self.locked,
            _ => return,
        };
        let kib = value.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        *field = kib.unwrap_or(0) * 1024;
    }
}

/// The mapping that holds `addr`; `None` where nothing is mapped.
pub fn smaps_of(addr: usize) -> Option<Smaps> {
    smaps_over(addr, 1).into_iter().next()
}

/// The mappings that share a page with `[addr, addr + len)`, in order. Each is described whole.
pub fn smaps_over(addr: usize, len: usize) -> Vec<Smaps> {
    let Ok(file) = File::open("/proc/self/smaps") else {
        return Vec::new();
    };
    let mut found: Vec<Smaps> = Vec::new();
    let mut inside = false;
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        // A mapped file may have any name.
        let line = String::from_utf8_lossy(&line);
        if let Some(head) = parse_head(&line) {
            if head.range.start >= addr.saturating_add(len) {
                break;
            }
            inside = head.range.end > addr;
            if inside {
                found.push(head);
            }
        } else if let (true, Some(last)) = (inside, found.last_mut()) {
            last.add_line(&line);
        }
    }
    found
}

/// `55d0…-55d1… rw-p 00000000 00:00 0   [heap]`; attribute lines have no such first word.
fn parse_head(line: &str) -> Option<Smaps> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |s| usize::from_str_radix(s, 16).ok();
    let range = hex(start)?..hex(end)?;
    let perms = words.next()?.to_owned();
    let name = words.skip(3).collect::<Vec<_>>().join(" ");
    Some(Smaps { range, perms, name, ..Smaps::default() })
}

/// One page's word in /proc/self/pagemap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagemapEntry(pub u64);

impl PagemapEntry {
    fn bit(self, n: u32) -> bool {
        self.0 >> n & 1 == 1
    }

    /// In memory; also true of the shared zero page.
    pub fn present(self) -> bool {
        self.bit(63)
    }

    /// In swap, or under migration at this moment.
    pub fn swapped(self) -> bool {
        self.bit(62)
    }

    /// Of a file or of shared memory.
    pub fn file_or_shared(self) -> bool {
        self.bit(61)
    }

    /// Write-protected by userfaultfd.
    pub fn uffd_wp(self) -> bool {
        self.bit(57)
    }

    /// Mapped by this process alone.
    pub fn exclusive(self) -> bool {
        self.bit(56)
    }

    /// Has data: in memory or in swap.
    pub fn populated(self) -> bool {
        self.present() || self.swapped()
    }
}

/// The pagemap words of the pages of `[addr, addr + len)`.
pub fn pagemap(addr: usize, len: usize) -> io::Result<Vec<PagemapEntry>> {
    let page = rustix::param::page_size();
    let (first, last) = (addr / page, (addr + len).div_ceil(page));
    let mut bytes = vec![0; (last - first) * 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut bytes, first as u64 * 8)?;
    let words = bytes.chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().expect("8 bytes")));
    Ok(words.map(PagemapEntry).collect())
}

/// For each page of `[addr, addr + len)` whether it is in memory or in swap.
///
/// # Panics
/// If the kernel does not show this process its own page map: then no check could be trusted.
pub fn present_pages(addr: usize, len: usize) -> Vec<bool> {
    match pagemap(addr, len) {
        Ok(entries) => entries.into_iter().map(PagemapEntry::populated).collect(),
        Err(e) => panic!("cannot read /proc/self/pagemap at {addr:#x}: {e}"),
    }
}

/// How many mappings this process has: the number that vm.max_map_count bounds.
pub fn map_count() -> usize {
    mappings().count()
}

/// The parts of `[addr, addr + len)` that are mapped, as start and end.
pub fn mapped(addr: usize, len: usize) -> Vec<(usize, usize)> {
    let end = addr + len;
    let overlapping = mappings().filter(|found| found.start < end && found.end > addr);
    overlapping.map(|found| (found.start.max(addr), found.end.min(end))).collect()
}

/// Reads line by line: the text of 65,000 mappings takes 4 MiB, for which malloc would make a
/// mapping, perhaps where a test checks that nothing is mapped.
fn mappings() -> impl Iterator<Item = Range<usize>> {
    let file = File::open("/proc/self/maps").expect("/proc/self/maps is readable");
    let lines = BufReader::new(file).split(b'\n').map(|line| line.expect("the list of mappings"));
    lines.filter_map(|line| Some(parse_head(&String::from_utf8_lossy(&line))?.range))
}

/// Resident bytes of this process, counted page by page: the counters behind statm are late by a
/// batch for each processor.
pub fn rss() -> u64 {
    rollup("self", "Rss:")
}

/// Resident bytes of another process; 0 if it is gone or this process may not read them.
pub fn rss_of(pid: u32) -> u64 {
    rollup(&pid.to_string(), "Rss:")
}

/// Bytes of this process that MADV_FREE has given up and that the kernel still has.
pub fn lazyfree_total() -> u64 {
    rollup("self", "LazyFree:")
}

fn rollup(process: &str, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let value = text.lines().find_map(|l| l.strip_prefix(key)?.split_whitespace().next());
    value.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_parsed_with_its_attributes() {
        let head = parse_head("7f00-9f00 rw-p 00000000 00:00 0    [anon: a b]");
        let mut s = head.expect("a head line");
        assert_eq!((s.range.clone(), s.name.as_str()), (0x7f00..0x9f00, "[anon: a b]"));
        for line in ["LazyFree:   12 kB", "Rss:   20 kB", "VmFlags: rd wr lo lf "] {
            assert_eq!(parse_head(line), None, "{line}");
            s.add_line(line);
        }
        assert_eq!((s.lazy_free, s.rss), (12 << 10, 20 << 10));
        assert!(s.has_flag("lf") && !s.has_flag("um"));
    }
}
