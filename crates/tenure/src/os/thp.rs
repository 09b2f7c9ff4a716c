//! The system's settings of transparent huge pages.

use super::{page_size, small_file};
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// When the kernel uses huge pages of 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Never, or the kernel has none.
    Never,
    /// Where the program advises it (`MADV_HUGEPAGE`).
    Advised,
    /// Without advice.
    Always,
}

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";
/// The largest transparent huge page of any architecture: 512 MiB, with base pages of 64 KiB.
const LARGEST: usize = 512 << 20;

pub(crate) fn chosen(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word)
}

pub(crate) fn setting_of(word: &str) -> Setting {
    match word {
        "madvise" | "advise" => Setting::Advised,
        "always" | "within_size" | "force" => Setting::Always,
        _ => Setting::Never,
    }
}

/// Returns the setting for anonymous memory at the first call.
pub(crate) fn first_anonymous() -> Setting {
    KNOWN.first.get(false, anonymous_now)
}

/// Returns the present setting, read without allocating: two small files, some microseconds.
pub(crate) fn anonymous_now() -> Setting {
    let (by_size, general) = (&mut [0; 64], &mut [0; 64]);
    let by_size =
        small_file::read(c"/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", by_size);
    match chosen(by_size.unwrap_or_default()) {
        "" | "inherit" => {
            let general = small_file::read(c"/sys/kernel/mm/transparent_hugepage/enabled", general);
            setting_of(chosen(general.unwrap_or_default()))
        }
        word => setting_of(word),
    }
}

/// Since 6.8 each size has a setting of its own, "inherit" by default.
fn read(own: &str, general: &str) -> Setting {
    let text = |name: &str| small_file::text(format!("{DIRECTORY}/{name}")).unwrap_or_default();
    let by_size = text(&format!("hugepages-2048kB/{own}"));
    match chosen(&by_size) {
        "" | "inherit" => setting_of(chosen(&text(general))),
        word => setting_of(word),
    }
}

/// A setting that was read, plus one; 0: not read yet.
struct Remembered(AtomicU8);

impl Remembered {
    const fn nothing() -> Remembered {
        Remembered(AtomicU8::new(0))
    }

    fn get(&self, fresh: bool, read: impl Fn() -> Setting) -> Setting {
        let known = if fresh { 0 } else { self.0.load(Ordering::Relaxed) };
        match known {
            1 => Setting::Never,
            2 => Setting::Advised,
            3 => Setting::Always,
            _ => {
                let setting = read();
                self.0.store(setting as u8 + 1, Ordering::Relaxed);
                setting
            }
        }
    }
}

/// The settings that were read.
struct Known {
    /// The one at the first call of [`first_anonymous`].
    first: Remembered,
    anonymous: Remembered,
    shared: Remembered,
}

/// For the whole process: the settings belong to the system.
static KNOWN: Known = Known {
    first: Remembered::nothing(),
    anonymous: Remembered::nothing(),
    shared: Remembered::nothing(),
};

/// Returns the setting for anonymous memory. Reading it takes longer (10 µs) than populating a huge
/// page. So it is remembered, until a caller that has the time wants a `fresh` one.
pub(crate) fn anonymous(fresh: bool) -> Setting {
    KNOWN.anonymous.get(fresh, || read("enabled", "enabled"))
}

/// Returns the setting for memfds and shared anonymous memory.
pub(crate) fn shared(fresh: bool) -> Setting {
    KNOWN.shared.get(fresh, || read("shmem_enabled", "shmem_enabled"))
}

/// Returns whether shared memory gets larger pages, of any size, without advice. Reads a dozen
/// small files, without allocating: a signal handler may fork meanwhile, and the C library's `fork`
/// would wait for a lock of malloc that the interrupted thread has.
pub(crate) fn shared_unasked() -> bool {
    let is_always = |path: &CStr| {
        let mut text = [0; 128];
        match chosen(small_file::read(path, &mut text).unwrap_or_default()) {
            "" => None,
            "inherit" => Some(None),
            word => Some(Some(setting_of(word) == Setting::Always)),
        }
    };
    let general =
        is_always(c"/sys/kernel/mm/transparent_hugepage/shmem_enabled") == Some(Some(true));
    let by_size = |size: usize| {
        let mut path = [0u8; 128];
        write!(&mut path[..], "{DIRECTORY}/hugepages-{}kB/shmem_enabled", size >> 10).ok()?;
        is_always(CStr::from_bytes_until_nul(&path).ok()?)
    };
    let mut set = sizes().filter_map(by_size).peekable();
    // Before 6.14 there is no setting for each size.
    if set.peek().is_none() {
        return general;
    }
    set.any(|own| own.unwrap_or(general))
}

/// Returns the sizes that a page larger than the base page can have, in bytes.
fn sizes() -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(2 * page_size()), |size| Some(size * 2));
    doubled.take_while(|size| *size <= LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_that_the_system_has_is_among_the_sizes() {
        let names = std::fs::read_dir(DIRECTORY).into_iter().flatten();
        for name in names.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
            let kib = name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB"));
            let Some(kib) = kib.map(|kib| kib.parse::<usize>().unwrap()) else { continue };
            assert!(sizes().any(|size| size == kib << 10), "{name}");
        }
    }

    #[test]
    fn the_word_in_brackets_decides() {
        assert_eq!(setting_of(chosen("always [madvise] never\n")), Setting::Advised);
        assert_eq!(setting_of(chosen("[always] madvise never\n")), Setting::Always);
        assert_eq!(setting_of(chosen("always within_size [advise] never")), Setting::Advised);
        assert_eq!(setting_of(chosen("always madvise [never]\n")), Setting::Never);
        assert_eq!(setting_of(chosen("")), Setting::Never);
    }
}
