//! A mapped file may be called anything: its name is neither what it is, nor a reason not to see it.

mod lock_kit;

use lock_kit::*;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tenure::lock::{self, Kinds, State, When};
use tenure_testkit::{in_child, this_test};
use Held::{Full, Not, OnFault};

const NOW: Kinds = Kinds { now: true, on_fault: false };
const ON_FAULT: Kinds = Kinds { now: false, on_fault: true };

/// A file of sevens, removed at the end with its directory if that was made for it.
struct Named(PathBuf, File, bool);

impl Named {
    fn new(path: &Path) -> std::io::Result<Named> {
        let directory = path.parent().unwrap();
        let made = !directory.exists();
        if made {
            std::fs::create_dir(directory)?;
        }
        std::fs::write(path, vec![7; 2 * PAGE])?;
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Named(path.to_owned(), file, made))
    }

    /// Mapped shared, in place of the area's pages from `at` on.
    fn map_over(&self, area: &Area, at: usize) -> Area {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: inside the area, which is this test's alone.
        let done =
            unsafe { libc::mmap(area.page(at).cast(), 2 * PAGE, RW, flags, self.1.as_raw_fd(), 0) };
        assert_eq!(done, area.page(at).cast());
        Area { at: area.page(at) as usize, pages: 2 }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        if self.2 {
            let _ = std::fs::remove_dir(self.0.parent().unwrap());
        }
    }
}

#[test]
fn a_name_that_is_no_utf_8_hides_neither_its_file_nor_its_neighbours() {
    in_child(this_test!(), &[], || {
        let mut name = format!("tenure-{}-caf", std::process::id()).into_bytes();
        name.push(0xe9);
        let file = Named::new(&std::env::temp_dir().join(OsStr::from_bytes(&name))).unwrap();
        let area = Area::new(6);
        let mapped = std::mem::ManuallyDrop::new(file.map_over(&area, 2));
        // The neighbour's lock is found, and taken page by page.
        area.mlock(0, 2).unwrap();
        lock::munlock2(area.page(0), PAGE, NOW).unwrap();
        assert_eq!(area.held(), [Not, Full, Not, Not, Not, Not]);
        // So is the file's own, whoever made it.
        mapped.mlock(0, 2).unwrap();
        lock::mlock2(mapped.page(0), 2 * PAGE, When::Now).unwrap();
        let receipt = lock::receipt(area.page(0), 6 * PAGE).unwrap();
        let part = receipt.parts.iter().find(|part| part.start == mapped.at).unwrap();
        assert_eq!((part.len, part.state), (2 * PAGE, State::Full), "{receipt}");
        assert!(part.name.contains("-caf\u{fffd}"), "{receipt}");
        lock::munlock2(mapped.page(0), 2 * PAGE, NOW).unwrap();
        lock::mlock2(mapped.page(0), 2 * PAGE, When::OnFault).unwrap();
        assert_eq!(area.held(), [Not, Full, OnFault, OnFault, Not, Not]);
        lock::munlock2(mapped.page(1), PAGE, ON_FAULT).unwrap();
        assert_eq!(area.held(), [Not, Full, OnFault, Not, Not, Not]);
        lock::munlock2(area.page(0), 6 * PAGE, Kinds::ALL).unwrap();
        assert_eq!((area.held(), vm_lck()), (vec![Not; 6], 0));
    });
}
