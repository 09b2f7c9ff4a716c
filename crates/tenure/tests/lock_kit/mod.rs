//! Shared parts of the tests of locks: the kernel's own account of each page, users without
//! privileges, memory mapped by hand.
#![allow(dead_code)]

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use rustix::thread::{capabilities, set_capabilities, CapabilitySet};
use tenure_testkit::pages::smaps_over;
use tenure_testkit::{as_nobody, run_child, Unavailable};

pub const PAGE: usize = 4096;

/// The kernel's lock on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Not,
    OnFault,
    Full,
    Hole,
}

/// The kernel's lock on each page of a range, from smaps.
pub fn held(addr: usize, pages: usize) -> Vec<Held> {
    let mut held = vec![Held::Hole; pages];
    for map in smaps_over(addr, pages * PAGE) {
        let how = match (map.has_flag("lo"), map.is_locked_on_fault()) {
            (true, true) => Held::OnFault,
            (true, false) => Held::Full,
            _ => Held::Not,
        };
        let from = map.range.start.max(addr);
        let to = map.range.end.min(addr + pages * PAGE);
        held[(from - addr) / PAGE..(to - addr) / PAGE].fill(how);
    }
    held
}

/// Bytes charged, as /proc reports them.
pub fn vm_lck() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Memory mapped by hand, unmapped at the end.
pub struct Area {
    pub at: usize,
    pub pages: usize,
}

impl Area {
    pub fn new(pages: usize) -> Area {
        Area::with(pages, RW, ANONYMOUS, -1).unwrap()
    }

    pub fn with(pages: usize, prot: i32, flags: i32, fd: i32) -> std::io::Result<Area> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, prot, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Area { at: at as usize, pages })
    }

    /// Between two pages that stay when the area ends. The kernel joins it with no neighbour, so each
    /// change of a part needs one mapping more.
    pub fn apart(pages: usize) -> Area {
        let whole = Area::with(pages + 2, libc::PROT_NONE, ANONYMOUS, -1).unwrap();
        let area = Area { at: std::mem::ManuallyDrop::new(whole).at + PAGE, pages };
        // SAFETY: the test's own mapping, which is new.
        done(unsafe { libc::mprotect(area.page(0).cast(), pages * PAGE, RW) }).unwrap();
        area
    }

    pub fn page(&self, i: usize) -> *mut u8 {
        (self.at + i * PAGE) as *mut u8
    }

    pub fn held(&self) -> Vec<Held> {
        held(self.at, self.pages)
    }

    pub fn unmap(&self, from: usize, pages: usize) {
        // SAFETY: inside the area, which is this test's alone.
        assert_eq!(unsafe { libc::munmap(self.page(from).cast(), pages * PAGE) }, 0);
    }

    /// The kernel's own calls.
    pub fn mlock(&self, from: usize, pages: usize) -> Result<(), i32> {
        // SAFETY: the kernel checks the range.
        done(unsafe { libc::mlock(self.page(from).cast(), pages * PAGE) })
    }

    pub fn mlock_on_fault(&self, from: usize, pages: usize) -> Result<(), i32> {
        // SAFETY: the kernel checks the range, and a lock changes no contents.
        done(unsafe { libc::mlock2(self.page(from).cast(), pages * PAGE, libc::MLOCK_ONFAULT) })
    }

    pub fn munlock(&self, from: usize, pages: usize) -> Result<(), i32> {
        // SAFETY: the kernel checks the range, and an unlock changes no contents.
        done(unsafe { libc::munlock(self.page(from).cast(), pages * PAGE) })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area's own mapping; holes in it do not matter.
        unsafe { libc::munmap(self.at as *mut _, self.pages * PAGE) };
    }
}

pub fn done(result: i32) -> Result<(), i32> {
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

/// From here on RLIMIT_MEMLOCK holds for this thread and those it starts.
pub fn drop_ipc_lock() -> Result<(), Unavailable> {
    tenure_testkit::seccomp::may_call("capset")?;
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    sets.permitted.remove(CapabilitySet::IPC_LOCK);
    sets.inheritable.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    Ok(())
}

/// Whether this user may lock so much. An ordinary user's limit is 8 MiB.
pub fn may_lock(bytes: usize) -> Result<(), String> {
    let explanation = tenure::lock::explain(bytes as u64).unwrap();
    if explanation.is_allowed() {
        Ok(())
    } else {
        Err(explanation.to_string())
    }
}

pub fn set_limit(soft: u64, hard: u64) {
    let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
    setrlimit(Resource::Memlock, limit).unwrap();
}

pub fn soft_limit() -> u64 {
    getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX)
}

/// Runs `body` in a child of its own, twice: as the present user without CAP_IPC_LOCK, and as an
/// ordinary user.
pub fn as_each_user(test: &str, body: fn()) {
    const WHO: &str = "TENURE_TEST_WHO";
    for who in ["without the capability", "an ordinary user"] {
        let result = run_child(test, &[(WHO, who)], || {
            let done = match std::env::var(WHO).as_deref() {
                Ok("an ordinary user") => {
                    // Before 5.16 a machine starts with a limit of 64 KiB, and only root raises it.
                    let soft = getrlimit(Resource::Memlock).current;
                    let _ = setrlimit(Resource::Memlock, Rlimit { current: soft, maximum: None });
                    as_nobody()
                }
                _ => drop_ipc_lock(),
            };
            if let Err(reason) = done {
                tenure_testkit::skip!("{reason}");
            }
            body();
        });
        println!("--- {who}\n{}", result.output);
        assert!(result.finished(), "{who}: {}\n{}", result.status, result.output);
    }
}

/// Ends the threads of a test, also where an assertion fails.
pub struct Stop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
