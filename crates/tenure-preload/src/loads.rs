//! Notices that a library was loaded while the program runs, without the loader's lock.
//!
//! `dlopen` has no hook: the C library looks at the file that calls it (for its `RUNPATH`), and that
//! would be this library. The loader counts what it loads. It tells the count only under a lock
//! (`dl_iterate_phdr`), and a free must not wait for that each time. In glibc the count is a word of
//! the variable `_rtld_global`. So the words there that equal the count are watched. While they stay
//! as they are, nothing was loaded. Each look drops the words that no longer equal the count. If none
//! is left, and with another C library, every call looks.

#![allow(unsafe_code, reason = "reads the loader's variable")]

use crate::{loader_lock, symbol};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The most words that are watched. A second one is the number of objects, until one is unloaded.
const MOST_WORDS: usize = 4;
/// No count of the loader's.
const UNKNOWN: u64 = u64::MAX;

struct Loads {
    is_watched: AtomicBool,
    /// Words of the loader's that may be its count; null: no more.
    words: [AtomicPtr<u64>; MOST_WORDS],
    /// The count at the last look.
    seen: AtomicU64,
    /// The objects in the constructor that the loader did not list: those of other namespaces.
    hidden: AtomicU64,
    /// The count at the last look, also after [`forget`], and where the last object has its headers.
    last: (AtomicU64, AtomicUsize),
}

/// For the whole process, as the loader is.
static LOADS: Loads = Loads {
    is_watched: AtomicBool::new(false),
    words: [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_WORDS],
    seen: AtomicU64::new(UNKNOWN),
    hidden: AtomicU64::new(0),
    last: (AtomicU64::new(UNKNOWN), AtomicUsize::new(0)),
};

/// Called in the constructor. From now on [`may_have_come`] notices new libraries.
pub fn watch() {
    let words = symbol::loaders_words();
    symbol::each_object(&mut |about| {
        let alike = words.clone().filter(|word| value(*word) == about.dlpi_adds);
        for (place, word) in LOADS.words.iter().zip(alike) {
            loader_lock::find(words.clone(), word);
            place.store(word.cast_mut(), Ordering::Relaxed);
        }
        false
    });
    let hidden = look(&|_| false).hidden;
    LOADS.hidden.store(hidden, Ordering::Relaxed);
    LOADS.seen.store(UNKNOWN, Ordering::Relaxed);
    LOADS.is_watched.store(true, Ordering::Relaxed);
}

/// From now on [`may_have_come`] returns `false`.
pub fn watch_no_more() {
    LOADS.is_watched.store(false, Ordering::Relaxed);
}

/// Whether a library may have been loaded since the last look. Costs a few loads.
#[inline]
pub fn may_have_come() -> bool {
    LOADS.is_watched.load(Ordering::Relaxed) && has_changed()
}

#[inline]
fn has_changed() -> bool {
    let seen = LOADS.seen.load(Ordering::Relaxed);
    let mut words = watched().peekable();
    words.peek().is_none() || words.any(|word| value(word) != seen)
}

#[inline]
fn watched() -> impl Iterator<Item = *const u64> {
    LOADS
        .words
        .iter()
        .map(|place| place.load(Ordering::Relaxed).cast_const())
        .filter(|word| !word.is_null())
}

fn value(word: *const u64) -> u64 {
    // SAFETY: an aligned word of a variable of the loader's (`loaders_words`), which is mapped for as
    // long as the process runs. The loader stores to it at any time, so the read is volatile. A word is
    // read at once.
    unsafe { word.read_volatile() }
}

/// Makes [`may_have_come`] return `true` until the next look.
pub fn forget() {
    LOADS.seen.store(UNKNOWN, Ordering::Relaxed);
}

/// The loaded objects.
struct Look {
    /// One is meant.
    is_meant: bool,
    /// The objects of other namespaces (`dlmopen`), which the loader does not list for this one.
    hidden: u64,
    /// An object was loaded since the last look, and is gone again or hidden.
    is_missing: bool,
}

/// Whether one of the objects loaded by now is meant, by the name of its file. If the loader does not
/// list all objects that it has loaded since the last look, it counts as one. `None`: another thread has the loader's lock. Takes that lock,
/// and a fork's child would find it taken. So no fork may be under way, and no signal may come.
pub fn has_come(is_meant: &dyn Fn(&[u8]) -> bool) -> Option<bool> {
    let _held = loader_lock::try_hold()?;
    let found = look(is_meant);
    let is_hidden = found.hidden > LOADS.hidden.load(Ordering::Relaxed);
    Some(found.is_meant || found.is_missing || is_hidden)
}

fn look(is_meant: &dyn Fn(&[u8]) -> bool) -> Look {
    let (last_count, last_object) = (&LOADS.last.0, &LOADS.last.1);
    let before = last_count.load(Ordering::Relaxed);
    let newest = last_object.load(Ordering::Relaxed);
    let (mut found, mut all, mut listed) = (false, 0, 0);
    let (mut count, mut object, mut new) = (before, newest, None);
    symbol::each_object(&mut |about| {
        if listed == 0 {
            count = about.dlpi_adds;
            if LOADS.seen.swap(count, Ordering::Relaxed) == count {
                count = before;
                return false;
            }
            // The loader's lock keeps the count as it is.
            for place in &LOADS.words {
                let word = place.load(Ordering::Relaxed).cast_const();
                if !word.is_null() && value(word) != count {
                    place.store(std::ptr::null_mut(), Ordering::Relaxed);
                }
            }
            all = count.wrapping_sub(about.dlpi_subs);
        }
        listed += 1;
        // The loader lists a new object behind those that it has.
        object = about.dlpi_phdr as usize;
        new = if object == newest { Some(0) } else { new.map(|new: u64| new + 1) };
        if !about.dlpi_name.is_null() {
            // SAFETY: the loader's terminated string, for the length of the call.
            let path = unsafe { CStr::from_ptr(about.dlpi_name) }.to_bytes();
            found |= is_meant(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path));
        }
        true
    });
    last_count.store(count, Ordering::Relaxed);
    last_object.store(object, Ordering::Relaxed);
    let is_missing = ![count, UNKNOWN].contains(&before) && new != Some(count - before);
    Look { is_meant: found, hidden: all.saturating_sub(listed), is_missing }
}
