//! A file of random data, and its page cache made warm or cold.

#![allow(unsafe_code, reason = "maps a file, and asks what of it is in memory")]

use crate::harness::in_process;
use rustix::fs::{fadvise, fdatasync, fstatvfs, open, Advice, Mode, OFlags};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::param::page_size;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;
use tenure_command::call::failed_at;

const BLOCK: usize = 4 << 20;

/// The 64 bits at word `index`: computed, so that the sum over any accesses is known without
/// reading the file (splitmix64).
fn word(index: u64) -> u64 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The byte at `offset` of every such file.
pub(super) fn byte(offset: usize) -> u8 {
    word(offset as u64 / 8).to_le_bytes()[offset % 8]
}

/// The page cache before a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageCache {
    /// Holds the whole file, as sequential reads left it.
    Warm,
    /// Holds less than a hundredth of it.
    Cold,
}

/// The file. It has no name, so it ends with the process, however the process ends.
pub(super) struct RandomFile {
    file: File,
    len: usize,
}

impl RandomFile {
    /// Writes `len` bytes to a new file in `dir`.
    ///
    /// # Errors
    /// `Unsupported` if the file system has no room for it, or the machine has no memory to hold it
    /// locked; otherwise an error of the file system.
    pub fn create(dir: &Path, len: usize) -> io::Result<RandomFile> {
        check_memory(len)?;
        let mut file = unnamed(dir).map_err(|error| failed_at(dir, "making a file", error))?;
        let vfs = fstatvfs(&file)?;
        let room = vfs.f_bavail * vfs.f_frsize;
        // A little more, because full file systems read slowly.
        if room < len as u64 + (64 << 20) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{} has {} MiB left, needed: {}", dir.display(), room >> 20, len >> 20),
            ));
        }
        let mut block = Vec::with_capacity(BLOCK);
        for start in (0..len).step_by(BLOCK) {
            block.clear();
            let words = start as u64 / 8..((start + BLOCK).min(len) as u64).div_ceil(8);
            words.for_each(|index| block.extend_from_slice(&word(index).to_le_bytes()));
            file.write_all(&block[..BLOCK.min(len - start)])?;
        }
        fdatasync(&file)?;
        let mut file = RandomFile { file, len };
        // Dropped and read in again: buffered writes leave folios of up to 2 MiB behind. These map
        // faster than the page cache of a program that did not write the file itself.
        file.make_cold()?;
        file.make_warm()?;
        Ok(file)
    }

    pub fn prepare(&mut self, state: PageCache) -> io::Result<()> {
        match state {
            PageCache::Warm => self.make_warm(),
            PageCache::Cold => {
                self.make_cold()?;
                // A little more: for page tables, and for other programs meanwhile.
                back_free_memory(self.len + self.len / 16)
            }
        }
    }

    fn make_warm(&mut self) -> io::Result<()> {
        for _ in 0..3 {
            if self.resident()? == self.len {
                return Ok(());
            }
            let mut block = vec![0; 1 << 20];
            self.file.rewind()?;
            while self.file.read(&mut block)? > 0 {}
        }
        Err(unsupported("the page cache does not hold the whole file: too little free memory"))
    }

    fn make_cold(&mut self) -> io::Result<()> {
        // Memory that a process had locked when it ended may still be on its way to the lists from
        // which the kernel can drop it.
        for pause in [0, 20, 100, 500] {
            std::thread::sleep(std::time::Duration::from_millis(pause));
            fadvise(&self.file, 0, None, Advice::DontNeed)?;
            if self.resident()? * 100 < self.len {
                return Ok(());
            }
        }
        Err(unsupported("the file stays in the page cache (no disk behind it?)"))
    }

    /// Bytes of the file in the page cache.
    fn resident(&self) -> io::Result<usize> {
        let map = Mapped::new(&self.file, self.len, ProtFlags::READ)?;
        let mut pages = vec![0u8; self.len.div_ceil(page_size())];
        // SAFETY: the kernel writes one byte for each page of the mapping into `pages`.
        match unsafe { libc::mincore(map.addr.cast(), self.len, pages.as_mut_ptr()) } {
            0 => {}
            _ => return Err(io::Error::last_os_error()),
        }
        Ok(pages.iter().filter(|page| **page & 1 == 1).count() * page_size())
    }

    /// Maps all of it, shared.
    pub fn map(&self, prot: ProtFlags) -> io::Result<Mapped> {
        Mapped::new(&self.file, self.len, prot)
    }
}

/// A mapping of the file, with reserved addresses behind it, so that a batch that runs over its end
/// reaches no other mapping.
pub(super) struct Mapped {
    addr: *mut u8,
    len: usize,
}

const BEHIND: usize = 1 << 20;

impl Mapped {
    fn new(file: impl AsFd, len: usize, prot: ProtFlags) -> io::Result<Mapped> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let reserved = unsafe {
            mm::mmap_anonymous(
                ptr::null_mut(),
                len + BEHIND,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let map = Mapped { addr: reserved.cast(), len };
        // SAFETY: over the reservation just made, to which nothing refers.
        unsafe { mm::mmap(reserved, len, prot, MapFlags::SHARED | MapFlags::FIXED, file, 0)? };
        Ok(map)
    }

    pub fn addr(&self) -> *mut u8 {
        self.addr
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping and the reservation behind it belong to this value.
        let _ = unsafe { mm::munmap(self.addr.cast(), self.len + BEHIND) };
    }
}

/// A file without a name, or one whose name is removed at once if `O_TMPFILE` is not available.
fn unnamed(dir: &Path) -> io::Result<File> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    if let Ok(fd) = open(dir, flags | OFlags::TMPFILE, mode) {
        return Ok(fd.into());
    }
    let path = dir.join(format!("tenure-bench-{}", std::process::id()));
    let fd = open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    fs::remove_file(path)?;
    Ok(fd.into())
}

/// Has a process touch free memory and end, so that the next sample finds it usable.
///
/// A guest's free memory goes back to its host after some seconds, and each page's next first touch
/// then costs 12 µs. That was 6.5 s for 2 GiB just locked, without a single fault in the guest, for
/// whichever way got those pages.
/// whichever way has the bad luck to be given those pages.
fn back_free_memory(len: usize) -> io::Result<()> {
    // Not all free memory: this would take it from the page caches of other programs.
    let len = len.min(meminfo("MemFree")? / 4 * 3) / page_size() * page_size();
    if len == 0 {
        return Ok(());
    }
    in_process(|| {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; it ends with the process.
        let memory = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE)? };
        // SAFETY: this process's own memory. Advice only: base pages take longer.
        let _ = unsafe { mm::madvise(memory, len, mm::Advice::LinuxHugepage) };
        for offset in (0..len).step_by(page_size()) {
            // SAFETY: inside the mapping, which is writable.
            unsafe { memory.cast::<u8>().add(offset).write_volatile(1) };
        }
        Ok(())
    })
}

/// Returns an error unless `len` locked bytes and a fifth more are free. Otherwise the
/// out-of-memory killer would end a process.
fn check_memory(len: usize) -> io::Result<()> {
    let available = meminfo("MemAvailable")?;
    if available / 6 < len / 5 {
        return Err(unsupported(&format!(
            "{} MiB are to be locked, and {} MiB of memory are available",
            len >> 20,
            available >> 20
        )));
    }
    Ok(())
}

/// A line of `/proc/meminfo`, in bytes; 0 if there is none of that name.
fn meminfo(name: &str) -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/meminfo")?
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<usize>().ok())
        .map_or(0, |kib| kib << 10))
}

pub(super) fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_what_is_said_and_goes_cold_and_warm() {
        let len = BLOCK + 3 * page_size();
        let mut file = RandomFile::create(&crate::Options::default().dir(), len).unwrap();
        assert_eq!(file.resident().unwrap(), len);
        match file.prepare(PageCache::Cold) {
            Ok(()) => assert!(file.resident().unwrap() < len / 100),
            // A directory in memory cannot be cold.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
        file.prepare(PageCache::Warm).unwrap();
        let map = file.map(ProtFlags::READ).unwrap();
        for offset in [0, 1, 7, 8, BLOCK - 1, BLOCK, len - 1] {
            // SAFETY: inside the mapping of the file, which no other process can write or truncate.
            assert_eq!(unsafe { map.addr().add(offset).read() }, byte(offset), "{offset}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = RandomFile::create(Path::new("/"), usize::MAX / 4).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
