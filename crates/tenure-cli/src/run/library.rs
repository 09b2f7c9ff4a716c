//! Where the library to preload is.

use std::io::Read;
use std::path::{Path, PathBuf};
use tenure_launch::LIBRARY;

/// Names it, for the case that it lies elsewhere.
const VARIABLE: &str = "TENURE_PRELOAD";

fn is_elf(path: &Path) -> std::io::Result<bool> {
    let mut magic = Vec::new();
    std::fs::File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == object::elf::ELFMAG)
}

/// What `TENURE_PRELOAD` names; else beside this executable, in `deps` beside it (where cargo leaves it), or
/// in `../lib` and `../lib/tenure`.
///
/// # Errors
/// Where it was looked for.
pub fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        let path = Path::new(&named);
        let wrong = |why: &dyn std::fmt::Display| format!("{VARIABLE}={}: {why}", path.display());
        // The loader only complains of what it cannot load, and runs the program without.
        return match path.canonicalize().and_then(|path| Ok((is_elf(&path)?, path))) {
            Ok((true, path)) => Ok(path),
            Ok((false, _)) => Err(wrong(&format_args!("it is no library; name {LIBRARY} there"))),
            Err(e) => Err(wrong(&e)),
        };
    }
    let own = std::env::current_exe().map_err(|e| format!("where this program lies: {e}"))?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let places = ["", "deps", "../lib", "../lib/tenure"].map(|place| directory.join(place));
    let found = places.iter().map(|place| place.join(LIBRARY)).find(|path| path.is_file());
    match found.map(|path| path.canonicalize()) {
        Some(Ok(path)) => Ok(path),
        Some(Err(e)) => Err(format!("{LIBRARY}: {e}")),
        None => Err(format!(
            "there is no {LIBRARY} beside {}, in deps beside it, or in ../lib; build it (cargo build \
             --release), install it there, or name it in {VARIABLE}",
            own.display()
        )),
    }
}
