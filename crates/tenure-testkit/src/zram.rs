//! Swap on compressed memory, for as long as it is needed.

#![allow(unsafe_code, reason = "adds and removes swap")]

use crate::Unavailable;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/sys/class/zram-control";
/// SWAP_FLAG_PREFER with the highest priority: pages go here first, whatever other swap the machine has.
const FIRST_OF_ALL: libc::c_int = 0x8000 | 0x7fff;

/// A zram device that the whole machine uses as swap, removed on drop.
///
/// Groups that [`MemoryCgroup`](crate::MemoryCgroup) makes do not use it unless they allow swap.
#[derive(Debug)]
pub struct ZramSwap {
    device: PathBuf,
    sys: PathBuf,
    /// The number of a device that was added for this; a device that was found unused stays.
    added: Option<u32>,
    on: bool,
    creator: u32,
}

impl ZramSwap {
    /// Swap for `bytes` bytes of pages. Needs root.
    pub fn create(bytes: u64) -> Result<ZramSwap, Unavailable> {
        if !rustix::process::geteuid().is_root() {
            return Err(Unavailable::new("making zram swap needs root"));
        }
        crate::seccomp::may_call("swapon")?;
        let (number, added) = match fs::read_to_string(Path::new(CONTROL).join("hot_add")) {
            Ok(text) => {
                let number = text.trim().parse().map_err(|e| {
                    Unavailable::new(format!("zram hot_add answered {text:?}: {e}"))
                })?;
                (number, Some(number))
            }
            Err(e) => {
                let size = fs::read_to_string("/sys/block/zram0/disksize").unwrap_or_default();
                if size.trim() != "0" {
                    return Err(Unavailable::new(format!(
                        "no zram device can be added ({e}) and /dev/zram0 is missing or in use"
                    )));
                }
                (0, None)
            }
        };
        let mut swap = ZramSwap {
            device: format!("/dev/zram{number}").into(),
            sys: format!("/sys/block/zram{number}").into(),
            added,
            on: false,
            creator: std::process::id(),
        };
        swap.start(bytes).map_err(|e| {
            Unavailable::new(format!("{} cannot serve as swap: {e}", swap.device.display()))
        })?;
        Ok(swap)
    }

    fn start(&mut self, bytes: u64) -> io::Result<()> {
        let page = rustix::param::page_size() as u64;
        let pages = bytes.div_ceil(page) + 1;
        fs::write(self.sys.join("disksize"), (pages * page).to_string())?;
        self.make_node()?;
        let header = swap_header(page as usize, pages);
        OpenOptions::new().write(true).open(&self.device)?.write_all_at(&header, 0)?;
        let path = self.path()?;
        // SAFETY: a path that lives through the call.
        if unsafe { libc::swapon(path.as_ptr(), FIRST_OF_ALL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        self.on = true;
        Ok(())
    }

    /// Makes the device's node, if no devtmpfs or udev does it.
    fn make_node(&self) -> io::Result<()> {
        if self.device.exists() {
            return Ok(());
        }
        let text = fs::read_to_string(self.sys.join("dev"))?;
        let numbers = text.trim().split_once(':').and_then(|(major, minor)| {
            Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
        });
        let device = numbers.ok_or_else(|| io::Error::other(format!("odd device {text:?}")))?;
        let (kind, mode) = (rustix::fs::FileType::BlockDevice, rustix::fs::Mode::from(0o600));
        Ok(rustix::fs::mknodat(rustix::fs::CWD, &self.device, kind, mode, device)?)
    }

    fn path(&self) -> io::Result<CString> {
        Ok(CString::new(self.device.as_os_str().as_encoded_bytes())?)
    }

    /// The device's path.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Bytes swapped out to it, by /proc/swaps.
    pub fn used(&self) -> u64 {
        let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let device = self.device.to_string_lossy();
        let line = text.lines().find(|l| l.split_whitespace().next() == Some(&*device));
        let kib = line.and_then(|l| l.split_whitespace().nth(3)?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        if std::process::id() != self.creator {
            return;
        }
        if self.on {
            let Ok(path) = self.path() else { return };
            // SAFETY: a path that lives through the call.
            if unsafe { libc::swapoff(path.as_ptr()) } != 0 {
                // A device still in use must be neither reset nor removed.
                let e = io::Error::last_os_error();
                eprintln!("swap on {} stays on: {e}", self.device.display());
                return;
            }
        }
        let _ = fs::write(self.sys.join("reset"), "1");
        if let Some(number) = self.added {
            let _ = fs::write(Path::new(CONTROL).join("hot_remove"), number.to_string());
        }
    }
}

/// The first page of a swap area, as linux/swap.h has it: version, last page and number of bad
/// pages from byte 1024 on, the magic word at the page's very end.
fn swap_header(page: usize, pages: u64) -> Vec<u8> {
    let mut header = vec![0; page];
    let last = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last.to_ne_bytes());
    let magic = b"SWAPSPACE2";
    header[page - magic.len()..].copy_from_slice(magic);
    header
}
