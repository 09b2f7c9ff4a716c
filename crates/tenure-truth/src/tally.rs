//! Counters and findings in memory that forked processes and the launcher share, so that they
//! survive a crash.

#![allow(unsafe_code, reason = "shares memory with its child processes")]

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, Ordering};

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The common counts of one configuration's processes.
        #[repr(C)]
        pub struct Tally { $($(#[$doc])* pub $name: AtomicU64,)*
            /// The present action of a child, as an address of the forking process.
            pub child_doing: [AtomicU64; CHILDREN],
            text_len: AtomicU64,
            text: [AtomicU8; TEXT],
        }

        /// A copy of the counters.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Tally {
            /// A copy of the counters.
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counts {
            /// Adds another configuration's.
            pub fn add(&mut self, other: &Counts) { $(self.$name += other.$name;)* }
            /// Names and values, in order.
            pub fn each(&self) -> Vec<(&'static str, u64)> { vec![$((stringify!($name), self.$name),)*] }
        }
    };
}

const TEXT: usize = 48 << 10;
/// Children whose doings are shared.
pub const CHILDREN: usize = 8;

tally! {
    /// Operations of the driver.
    operations,
    /// Pages held against the model.
    pages,
    /// Bytes held against the model.
    bytes,
    /// Pages reported purged, and values found purged.
    purged,
    /// Calls that reported a loss.
    reports,
    /// Children of fork.
    forks,
    /// Children of a raw clone.
    clones,
    /// Children of vfork that executed another program.
    vforks,
    /// Forks inside a signal handler.
    handler_forks,
    /// Forks inside a closure that tenure called.
    closure_forks,
    /// System calls made to fail.
    failures,
    /// Errors that calls returned.
    errors,
    /// Panics thrown into tenure.
    panics,
    /// SIGBUS delivered to the driver.
    sigbus,
    /// Descriptors closed behind tenure's back.
    closed,
    /// Cache gets that found their value.
    hits,
    /// Broken promises.
    wrong,
    /// Broken promises that were described in words.
    said,
    /// Calls or processes that did not end.
    hangs,
    /// Processes that died.
    kills,
}

static TALLY: AtomicPtr<Tally> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the tally's memory: shared with children, and through `fd` with a program that is
/// executed. Without a descriptor it is this process's and its children's.
pub fn map(fd: Option<i32>) -> std::io::Result<&'static Tally> {
    let (flags, fd) = match fd {
        Some(fd) => (libc::MAP_SHARED, fd),
        None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), std::mem::size_of::<Tally>(), access, flags, fd, 0)
    };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping is large enough, zeroed or written by the same program, never unmapped,
    // and atomics of all bit patterns are valid.
    Ok(unsafe { &*at.cast::<Tally>() })
}

/// Makes `tally` the one that this process counts in.
pub fn install(tally: &'static Tally) {
    TALLY.store(std::ptr::from_ref(tally).cast_mut(), Ordering::Release);
}

/// The one that this process counts in.
pub fn tally() -> &'static Tally {
    let mut at = TALLY.load(Ordering::Acquire);
    if at.is_null() {
        install(map(None).expect("a page of memory"));
        at = TALLY.load(Ordering::Acquire);
    }
    // SAFETY: `install` stored a reference that lives for ever.
    unsafe { &*at }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Tally {
    /// The text of the findings so far.
    pub fn text(&self) -> String {
        let len = (self.text_len.load(Ordering::Acquire) as usize).min(TEXT);
        let bytes: Vec<u8> = self.text[..len].iter().map(|b| b.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Keeps a line; allocates nothing.
    pub fn say(&self, line: fmt::Arguments<'_>) {
        let mut buffer = Line { bytes: [0; 480], len: 0 };
        let _ = buffer.write_fmt(line);
        buffer.bytes[buffer.len] = b'\n';
        let bytes = &buffer.bytes[..=buffer.len];
        let at = self.text_len.fetch_add(bytes.len() as u64, Ordering::AcqRel) as usize;
        for (i, byte) in bytes.iter().enumerate() {
            if let Some(place) = self.text.get(at + i) {
                place.store(*byte, Ordering::Relaxed);
            }
        }
    }
}

struct Line {
    bytes: [u8; 481 - 1],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            if self.len + 1 < self.bytes.len() {
                self.bytes[self.len] = byte;
                self.len += 1;
            }
        }
        Ok(())
    }
}
