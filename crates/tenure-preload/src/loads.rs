//! Notices that a library was loaded while the program runs, and asks no loader: a thread that has its
//! lock may wait for the one that asks.
//!
//! `dlopen` has no hook: the C library looks at the file that calls it (for its `RUNPATH`), and that
//! would be this library. But the loader counts what it loads. In glibc the count is a word of the
//! variable `_rtld_global`. So the words there that equal the count at the start are watched. While
//! they stay as they are, nothing was loaded. If they have changed, the kernel tells which files are
//! mapped. Where no word is found, as with another C library, each free of a large block may ask it.

#![allow(unsafe_code, reason = "reads the loader's variable")]

use crate::symbol;
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU64, Ordering};
use tenure::launcher;

/// The most words that are watched. A second one is the number of objects in the first namespace. With
/// more that are alike, none is: the count might be left out.
const MOST_WORDS: usize = 8;
/// No count of the loader's.
const UNKNOWN: u64 = u64::MAX;

/// A word of the loader's that may be its count.
struct Word {
    /// Null: no more.
    at: AtomicPtr<u64>,
    /// Its value at the last look.
    seen: AtomicU64,
}

impl Word {
    /// Its value. The count never falls: what falls is not watched any more.
    fn now(&self) -> u64 {
        // Read before the value: another thread may look, too, and store a later one.
        let seen = self.seen.load(Ordering::Relaxed);
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            return UNKNOWN;
        }
        fence(Ordering::Acquire);
        let now = value(at);
        if seen != UNKNOWN && now < seen {
            self.at.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        now
    }
}

struct Loads {
    is_watched: AtomicBool,
    words: [Word; MOST_WORDS],
}

/// For the whole process, as the loader is.
static LOADS: Loads = Loads {
    is_watched: AtomicBool::new(false),
    words: [const { Word { at: AtomicPtr::new(std::ptr::null_mut()), seen: AtomicU64::new(UNKNOWN) } };
        MOST_WORDS],
};

/// Called in the constructor. Whether one of the loaded libraries is meant, by the name of its file.
/// From now on [`may_have_come`] notices new ones.
pub fn watch(is_meant: &dyn Fn(&[u8]) -> bool) -> bool {
    let words = symbol::loaders_words();
    let (mut found, mut listed, mut all) = (false, 0, 0);
    symbol::each_object(&mut |about| {
        let count = about.dlpi_adds;
        if listed == 0 {
            let alike = words.clone().filter(|word| value(*word) == count);
            let alike = alike.clone().nth(MOST_WORDS).is_none().then_some(alike);
            for (word, at) in LOADS.words.iter().zip(alike.into_iter().flatten()) {
                word.seen.store(count, Ordering::Relaxed);
                word.at.store(at.cast_mut(), Ordering::Relaxed);
            }
            all = count.wrapping_sub(about.dlpi_subs);
        }
        listed += 1;
        if !about.dlpi_name.is_null() {
            // SAFETY: the loader's terminated string, for the length of the call.
            let path = unsafe { CStr::from_ptr(about.dlpi_name) }.to_bytes();
            found |= is_meant(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path));
        }
        true
    });
    if listed == 0 || all < listed || all > 1 << 20 {
        // A function of the program's, which does not tell the loader's count.
        LOADS.words.iter().for_each(|word| word.at.store(std::ptr::null_mut(), Ordering::Relaxed));
    }
    if listed != all {
        // The loader does not list those of other namespaces (`dlmopen`).
        LOADS.words.iter().for_each(|word| word.seen.store(UNKNOWN, Ordering::Relaxed));
    }
    LOADS.is_watched.store(true, Ordering::Relaxed);
    found
}

/// From now on [`may_have_come`] returns `false`.
pub fn watch_no_more() {
    // Whoever sees that also sees that no page is used again.
    LOADS.is_watched.store(false, Ordering::Release);
}

/// Whether a library may have been loaded since the last look. Costs a few loads.
#[inline]
pub fn may_have_come() -> bool {
    LOADS.is_watched.load(Ordering::Acquire) && has_changed()
}

#[inline]
fn has_changed() -> bool {
    let mut words = watched().peekable();
    words.peek().is_none() || words.any(|(at, word)| value(at) != word.seen.load(Ordering::Relaxed))
}

#[inline]
fn watched() -> impl Iterator<Item = (*const u64, &'static Word)> {
    LOADS
        .words
        .iter()
        .map(|word| (word.at.load(Ordering::Relaxed).cast_const(), word))
        .filter(|(at, _)| !at.is_null())
}

fn value(word: *const u64) -> u64 {
    // SAFETY: an aligned word of a variable of the loader's (`loaders_words`), which is mapped for as
    // long as the process runs. The loader stores to it at any time, so the read is volatile. A word is
    // read at once.
    unsafe { word.read_volatile() }
}

/// Whether one of the files that are mapped by now is meant, by the first 16 bytes of its name. Fails
/// if the kernel does not tell. If none is meant, [`may_have_come`] returns `false` until the next
/// load.
pub fn look(is_meant: &dyn Fn(&[u8]) -> bool) -> Result<bool, Errno> {
    let values = LOADS.words.each_ref().map(Word::now);
    // The loader counts an object after it has mapped it, so all that are counted so far are found.
    fence(Ordering::Acquire);
    let found = launcher::any_mapped_file(is_meant)?;
    if !found {
        let words = LOADS.words.iter().zip(values);
        words.for_each(|(word, now)| word.seen.store(now, Ordering::Relaxed));
    }
    Ok(found)
}
