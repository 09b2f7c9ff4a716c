//! A key that leaves memory by none of four ways: it is not paged out, not in a core dump, not in a
//! forked child, and not in memory that the program has given back.
//!
//! `cargo run -p tenure-examples --example secret`

use std::io;
use std::sync::atomic::{compiler_fence, Ordering};
use tenure::Mapping;

/// Bytes that stay in this process. Read and write them in place: each copy is one more secret.
pub struct Secret {
    /// Locked on fault from the start, before anything is written to it.
    pages: Mapping,
}

impl Secret {
    /// Makes room for `len` bytes, all zeros.
    ///
    /// # Errors
    /// Over the limit of locked memory, or the kernel refuses one of the protections. Then no
    /// secret is made.
    pub fn new(len: usize) -> io::Result<Secret> {
        let mut pages = Mapping::anonymous_locked_on_fault(len)?;
        for advice in [libc::MADV_DONTDUMP, libc::MADV_WIPEONFORK] {
            // SAFETY: the range is the whole mapping, which this function owns, and the advice
            // changes no byte in this process.
            if unsafe { libc::madvise(pages.as_mut_ptr().cast(), len, advice) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Secret { pages })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.pages.as_slice()
    }

    /// Returns the bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut_slice()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        for byte in self.bytes_mut() {
            // SAFETY: a byte of this value's own mapping. The write is volatile, so that the
            // compiler does not remove it.
            unsafe { std::ptr::write_volatile(byte, 0) };
        }
        compiler_fence(Ordering::SeqCst);
    }
}

fn main() -> io::Result<()> {
    let mut key = Secret::new(32)?;
    key.bytes_mut().copy_from_slice(b"never on a disk, nor in a child.");
    print!("{}", tenure::lock::receipt(key.bytes().as_ptr(), 32)?);
    println!("the key has {} bytes, which are not printed", key.bytes().len());
    Ok(())
}

/// The kernel's flags of the mapping that a secret lies in. The kernel may have joined it with
/// another secret's.
#[cfg(test)]
fn flags(secret: &Secret) -> Vec<String> {
    let at = secret.bytes().as_ptr() as usize;
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let is_its = |line: &&str| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let [Some(start), Some(end)] = [range.map(|(start, _)| start), range.map(|(_, end)| end)]
            .map(|number| usize::from_str_radix(number?, 16).ok())
        else {
            return false;
        };
        (start..end).contains(&at)
    };
    let lines = smaps.lines().skip_while(|line| !is_its(line));
    let line = lines.filter_map(|line| line.strip_prefix("VmFlags: ")).next().unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn it_is_locked_not_dumped_and_wiped_in_a_child() {
    let mut secret = Secret::new(4096).unwrap();
    secret.bytes_mut().fill(7);
    let receipt = tenure::lock::receipt(secret.bytes().as_ptr(), 4096).unwrap();
    assert_eq!((receipt.on_fault_bytes(), receipt.resident_bytes()), (4096, 4096));
    let flags = flags(&secret);
    for flag in ["lo", "lf", "dd", "wf"] {
        assert!(flags.iter().any(|one| one == flag), "{flag} of {flags:?}");
    }
    // SAFETY: the child calls nothing but `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let wiped = secret.bytes().iter().all(|byte| *byte == 0);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!wiped)) };
    }
    let mut status = -1;
    // SAFETY: waits for this test's own child, and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child has seen the secret");
    assert!(secret.bytes().iter().all(|byte| *byte == 7));
}

#[test]
fn the_story_runs() {
    main().unwrap();
}
