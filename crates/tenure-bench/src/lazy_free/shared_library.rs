//! Finds a shared library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The usual library directories, for a machine without `ldconfig`.
const USUAL: &[&str] = &["/usr/lib64", "/usr/lib", "/lib64", "/lib", "/usr/local/lib"];

/// Returns the library of this name that the loader would load.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let asked = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .find_map(|program| Command::new(program).arg("-p").output().ok())
        .and_then(|output| in_cache(&String::from_utf8_lossy(&output.stdout), name));
    asked.or_else(|| {
        let arch = format!("{}-linux-gnu", std::env::consts::ARCH);
        USUAL
            .iter()
            .flat_map(|dir| [Path::new(dir).join(&arch), PathBuf::from(dir)])
            .map(|dir| dir.join(name))
            .find(|path| path.exists())
    })
}

/// Parses lines such as
/// `libjemalloc.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libjemalloc.so.2`. There may be one
/// for another word size.
fn in_cache(listing: &str, name: &str) -> Option<PathBuf> {
    let wide = cfg!(target_pointer_width = "64");
    listing.lines().find_map(|line| {
        let (file, rest) = line.trim().split_once(' ')?;
        let (kind, path) = rest.split_once(" => ")?;
        let fits = kind.contains("64") == wide;
        (file == name && fits).then(|| path.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_read_by_name_and_word_size() {
        let listing = "2 libs found in cache\n\
            \tlibx.so.2 (libc6) => /lib32/libx.so.2\n\
            \tlibx.so.2 (libc6,x86-64) => /lib64/libx.so.2\n\
            \tlibx.so.22 (libc6,x86-64) => /lib64/libx.so.22\n";
        if cfg!(target_pointer_width = "64") {
            assert_eq!(in_cache(listing, "libx.so.2"), Some("/lib64/libx.so.2".into()));
        }
        assert_eq!(in_cache(listing, "liby.so"), None);
    }

    #[test]
    fn what_is_nowhere_is_not_found() {
        assert_eq!(find("libnonexistent.so.9"), None);
    }
}
