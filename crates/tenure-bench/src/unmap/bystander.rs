//! Threads that need the address space while another one unmaps.
//!
//! Each does one operation from time to time and sleeps in between. So they take no processor time
//! from the unmapping thread, and no thread waits for them: they wait only for the kernel's locks.

#![allow(unsafe_code, reason = "maps and unmaps memory, and reads the clock of a thread")]

use super::latency::{Counts, Latency};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use rustix::param::page_size;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The operation of a bystander.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Need {
    /// Maps and unmaps a page.
    Mmap,
    /// Touches a page for the first time.
    Fault,
    /// Creates a thread.
    Thread,
}

impl Need {
    pub const ALL: [Need; 3] = [Need::Mmap, Need::Fault, Need::Thread];

    pub fn name(self) -> &'static str {
        match self {
            Need::Mmap => "mmap",
            Need::Fault => "page fault",
            Need::Thread => "thread creation",
        }
    }

    /// How long it sleeps in between. Creating a thread costs more processor time, which would
    /// count as that of unmapping.
    fn pause(self) -> Duration {
        match self {
            Need::Mmap | Need::Fault => Duration::from_micros(100),
            Need::Thread => Duration::from_millis(2),
        }
    }
}

/// Memory for page faults: enough for seconds.
const FAULT_BYTES: usize = 64 << 20;

/// More than glibc's cache of stacks holds (40 MiB), so that each new thread needs a new mapping.
const STACK_BYTES: usize = 64 << 20;

/// A thread that watches until the end flag is set.
pub(super) struct Bystander {
    shared: Arc<Shared>,
    thread: JoinHandle<io::Result<Counts>>,
}

#[derive(Default)]
struct Shared {
    watching: AtomicBool,
    over: AtomicBool,
    done: AtomicU64,
}

impl Bystander {
    /// Starts one and waits until it works.
    pub fn start(need: Need) -> io::Result<Bystander> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = thread::Builder::new().spawn(move || match need {
            Need::Mmap => theirs.repeat(need, map_and_unmap),
            Need::Fault => {
                let mut pages = FreshPages::new()?;
                theirs.repeat(need, move || pages.touch())
            }
            Need::Thread => theirs.repeat(need, create_thread),
        })?;
        let bystander = Bystander { shared, thread };
        while bystander.shared.done.load(Relaxed) < 5 && !bystander.thread.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(bystander)
    }

    /// From now on its operations count.
    pub fn watch(&self) {
        self.shared.watching.store(true, Relaxed);
    }

    /// Processor time that it has used so far.
    pub fn cpu(&self) -> io::Result<Duration> {
        let mut clock = 0;
        // SAFETY: the thread has not been joined, so its handle is valid; one clock id is written.
        let failed =
            unsafe { libc::pthread_getcpuclockid(self.thread.as_pthread_t() as _, &mut clock) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: one timespec is written.
        match unsafe { libc::clock_gettime(clock, &mut time) } {
            0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Ends it and returns its counts.
    pub fn end(self) -> io::Result<Counts> {
        self.shared.over.store(true, Release);
        self.thread.join().map_err(|_| io::Error::other("a bystander panicked"))?
    }
}

impl Shared {
    fn repeat(
        &self,
        need: Need,
        mut act: impl FnMut() -> io::Result<Duration>,
    ) -> io::Result<Counts> {
        let mut latency = Latency::new()?;
        let pause = need.pause();
        // One that watched has seen an operation in the end, however busy the machine is.
        let saw = |latency: &Latency| !self.watching.load(Relaxed) || latency.number() > 0;
        while !self.over.load(Acquire) || !saw(&latency) {
            let took = act()?;
            // Also an operation that began before: the unmapping made it wait.
            if self.watching.load(Relaxed) {
                latency.record(took, pause);
            }
            self.done.fetch_add(1, Relaxed);
            thread::sleep(pause);
        }
        Ok(latency.counts())
    }
}

fn map_and_unmap() -> io::Result<Duration> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let start = Instant::now();
    // SAFETY: a new mapping at an address that the kernel chooses, unmapped untouched.
    unsafe {
        let page = mm::mmap_anonymous(ptr::null_mut(), page_size(), prot, MapFlags::PRIVATE)?;
        let took = start.elapsed();
        mm::munmap(page, page_size())?;
        Ok(took)
    }
}

/// Pages that are touched one after another, and given back when all have been.
struct FreshPages {
    addr: *mut u8,
    next: usize,
}

impl FreshPages {
    fn new() -> io::Result<FreshPages> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let addr =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), FAULT_BYTES, prot, MapFlags::PRIVATE)? };
        // SAFETY: the mapping just made. A kernel without huge pages refuses, and needs no advice.
        let _ = unsafe { mm::madvise(addr, FAULT_BYTES, Advice::LinuxNoHugepage) };
        Ok(FreshPages { addr: addr.cast(), next: 0 })
    }

    fn touch(&mut self) -> io::Result<Duration> {
        if self.next == FAULT_BYTES {
            // SAFETY: the mapping is this value's own, and nothing in it is read.
            unsafe { mm::madvise(self.addr.cast(), FAULT_BYTES, Advice::LinuxDontNeed)? };
            self.next = 0;
        }
        // SAFETY: inside the mapping.
        let page = unsafe { self.addr.add(self.next) };
        self.next += page_size();
        let start = Instant::now();
        // SAFETY: one byte inside the mapping, which this thread alone uses. The write is volatile
        // so that it falls between the two readings of the clock.
        unsafe { page.write_volatile(1) };
        Ok(start.elapsed())
    }
}

impl Drop for FreshPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { mm::munmap(self.addr.cast(), FAULT_BYTES) };
    }
}

fn create_thread() -> io::Result<Duration> {
    let start = Instant::now();
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(|| ())?;
    let took = start.elapsed();
    thread.join().map_err(|_| io::Error::other("an empty thread panicked"))?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sees_something_only_while_it_watches() {
        for need in Need::ALL {
            let bystander = Bystander::start(need).unwrap();
            assert!(bystander.cpu().unwrap() > Duration::ZERO);
            let Counts { .. } = Bystander::start(need).unwrap().end().unwrap();
            let Counts { .. } = bystander.end().unwrap();
            let bystander = Bystander::start(need).unwrap();
            bystander.watch();
            // At once: on a busy machine the thread may not run in any given time.
            let mut seen = Latency::new().unwrap();
            seen.add(&bystander.end().unwrap()).unwrap();
            assert!(seen.number() >= 1, "{need:?}");
            let mut unseen = Latency::new().unwrap();
            unseen.add(&Bystander::start(need).unwrap().end().unwrap()).unwrap();
            assert_eq!(unseen.number(), 0);
        }
    }
}
