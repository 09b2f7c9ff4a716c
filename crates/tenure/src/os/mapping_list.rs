//! The process's mappings one after the other, without allocating: for code that runs inside an
//! allocator.

use super::brief::{self, Brief};
use super::maps;
use super::maps_line::{name_in_line, parse_line, Mapping};
use rustix::io::Errno;

/// Only this many bytes of a mapping's name are read.
const NAME: usize = 64;
/// The buffer lies on the caller's stack, of which a thread may have 16 KiB. Only the beginning of
/// a longer line is read.
const BUFFER: usize = 512;

/// One mapping, with the beginning of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub mapping: Mapping,
    /// Larger than the base page for hugetlbfs. `None`: the list was read as text (before 6.11),
    /// which does not say it.
    pub page_size: Option<usize>,
    name: [u8; NAME],
    length: usize,
}

impl Listed {
    /// The name as `/proc/self/maps` has it, cut off.
    pub fn name(&self) -> &[u8] {
        &self.name[..self.length]
    }

    fn queried((mapping, page_size, name): maps::Found<'_>) -> Listed {
        Listed::new(mapping, Some(page_size), name)
    }

    fn new(mapping: Mapping, page_size: Option<usize>, name: &[u8]) -> Listed {
        let mut listed =
            Listed { mapping, page_size, name: [0; NAME], length: name.len().min(NAME) };
        listed.name[..listed.length].copy_from_slice(&name[..listed.length]);
        listed
    }
}

/// Lists mappings in ascending order of address. It uses one PROCMAP_QUERY for each (6.11+, 0.5
/// µs). Before 6.11 it reads `/proc/self/maps`: 3 µs, and 0.3 µs for each mapping of the process.
pub(crate) struct Lister {
    /// The text, where the kernel has no PROCMAP_QUERY.
    text: Option<Text>,
}

struct Text {
    maps: Brief,
    buffer: [u8; BUFFER],
    filled: usize,
    taken: usize,
    /// The bytes up to the next line's end belong to a line that was read already.
    skips: bool,
    ended: bool,
}

/// [`Lister::at_or_after`] of one address. Not inlined: the buffer is gone from the stack when it returns, and with
/// it half of what the calls around this take.
#[inline(never)]
pub(crate) fn at_or_after(addr: usize) -> Result<Option<Listed>, Errno> {
    Lister::new().at_or_after(addr)
}

impl Lister {
    pub const fn new() -> Lister {
        Lister { text: None }
    }

    /// Lists the mappings in this file.
    pub fn of(maps: Brief) -> Lister {
        let text =
            Text { maps, buffer: [0; BUFFER], filled: 0, taken: 0, skips: false, ended: false };
        Lister { text: Some(text) }
    }

    /// Starts again from the lowest address.
    pub fn restart(&mut self) -> Result<(), Errno> {
        // Not by a seek: a child's would also move its parent's position.
        if self.text.take().is_some() {
            *self = Lister::of(brief::open("/proc/thread-self/maps")?);
        }
        Ok(())
    }

    /// Returns the mapping that holds `addr`, or the first one above it. Addresses ascend from call
    /// to call.
    pub fn at_or_after(&mut self, addr: usize) -> Result<Option<Listed>, Errno> {
        if self.text.is_none() && !maps::query_is_missing() {
            match query(addr) {
                Ok(found) => {
                    maps::query_is(true);
                    return Ok(found);
                }
                Err(errno) if maps::query_works() => return Err(errno),
                Err(_) => maps::query_is(false),
            }
        }
        self.read_at_or_after(addr)
    }

    /// By reading the file.
    #[cold]
    #[inline(never)]
    fn read_at_or_after(&mut self, addr: usize) -> Result<Option<Listed>, Errno> {
        if self.text.is_none() {
            *self = Lister::of(brief::open("/proc/thread-self/maps")?);
        }
        let Some(text) = &mut self.text else { return Ok(None) };
        loop {
            // The next call reads this line again if the mapping reaches past that call's address.
            let Some((line, after)) = text.line()? else { return Ok(None) };
            match parse_line(&text.buffer[line.clone()]) {
                Some(mapping) if mapping.end > addr => {
                    let name = name_in_line(&text.buffer[line]);
                    return Ok(Some(Listed::new(mapping, None, name)));
                }
                _ => text.pass(after),
            }
        }
    }
}

/// The kernel returns only whole names. A buffer for a long one takes room on the stack, which few
/// callers need.
fn query(addr: usize) -> Result<Option<Listed>, Errno> {
    match maps::query(addr, &mut [0; NAME]) {
        Err(Errno::NAMETOOLONG) => query_long(addr),
        found => Ok(found?.map(Listed::queried)),
    }
}

#[cold]
#[inline(never)]
fn query_long(addr: usize) -> Result<Option<Listed>, Errno> {
    Ok(maps::query_any(addr, &mut [0; 256])?.map(Listed::queried))
}

impl Text {
    /// Marks the line that ends there as read.
    fn pass(&mut self, after: usize) {
        self.skips = self.buffer[after - 1] != b'\n';
        self.taken = after;
    }

    /// Returns the place of the next line in the buffer, and the start of the one after it.
    fn line(&mut self) -> Result<Option<(std::ops::Range<usize>, usize)>, Errno> {
        loop {
            let rest = &self.buffer[self.taken..self.filled];
            match rest.iter().position(|byte| *byte == b'\n') {
                Some(length) if self.skips => self.pass(self.taken + length + 1),
                Some(length) => {
                    return Ok(Some((self.taken..self.taken + length, self.taken + length + 1)));
                }
                None if self.skips => self.taken = self.filled,
                None if rest.len() == BUFFER => return Ok(Some((0..BUFFER, BUFFER))),
                None => {}
            }
            if self.taken < self.filled && self.buffer[self.taken..self.filled].contains(&b'\n') {
                continue;
            }
            if self.ended {
                return Ok(None);
            }
            self.buffer.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
            match self.maps.read(&mut self.buffer[self.filled..]) {
                Ok(0) => self.ended = true,
                Ok(got) => self.filled += got,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use tenure_testkit::{in_child, this_test};

    fn all(text_only: bool) -> Vec<(usize, usize, Vec<u8>)> {
        let mut lister = Lister::new();
        if text_only {
            lister = Lister::of(brief::open("/proc/thread-self/maps").unwrap());
        }
        let (mut found, mut at) = (Vec::with_capacity(1000), 1);
        while let Some(listed) = lister.at_or_after(at).unwrap() {
            // The kernel's own page is not a mapping of the process.
            if listed.mapping.start >> 63 != 0 {
                break;
            }
            let mut name = listed.name().to_vec();
            if name.starts_with(b"/tmp/tenure-") || name == b"/..." {
                name = b"/".to_vec();
            }
            found.push((listed.mapping.start, listed.mapping.end, name));
            at = listed.mapping.end;
        }
        found
    }

    #[test]
    fn both_ways_list_the_same() {
        // Other tests' threads map files, too.
        in_child(this_test!(), &[], every_name);
    }

    fn every_name() {
        // Names that are longer than the buffer, and names that end where it ends.
        let directory = std::path::PathBuf::from(format!("/tmp/tenure-{}", std::process::id()));
        let mut mapped = Vec::new();
        for length in [300, 430, 440, 450, 460, 900, 2000, 3000] {
            let mut path = directory.clone();
            while path.as_os_str().len() + 200 < length {
                path.push("d".repeat(120));
            }
            std::fs::create_dir_all(&path).unwrap();
            path.push("f".repeat(length - path.as_os_str().len() - 1));
            std::fs::write(&path, [1]).unwrap();
            let file = std::fs::File::open(&path).unwrap();
            // SAFETY: a new mapping, of one page of a file that this test made.
            mapped.push(unsafe {
                let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
                libc::mmap(std::ptr::null_mut(), 1, read, private, file.as_raw_fd(), 0)
            });
        }
        std::fs::remove_dir_all(&directory).unwrap();
        let files = |list: Vec<(usize, usize, Vec<u8>)>| -> Vec<_> {
            list.into_iter().filter(|(.., name)| name.starts_with(b"/")).collect()
        };
        for _ in 0..100 {
            let before = files(all(false));
            let (read, after) = (files(all(true)), files(all(false)));
            if before == after {
                // A program that is linked statically has no libraries.
                let own = if cfg!(target_feature = "crt-static") { 2 } else { 5 };
                assert!(read.len() > own + mapped.len());
                assert_eq!(read, after);
                for at in mapped {
                    // SAFETY: this test has mapped the page above, and nothing refers to it.
                    unsafe { libc::munmap(at, 1) };
                }
                return;
            }
        }
        panic!("the mappings of files change all the time");
    }
}
