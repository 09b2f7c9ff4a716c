//! Finds the library to preload.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tenure_command::call::failed;
use tenure_launch::{LIBRARY, LIBRARY_OF_CARGO};

/// Names the library, for the case that it is elsewhere.
const VARIABLE: &str = "TENURE_PRELOAD";

fn is_elf(path: &Path) -> std::io::Result<bool> {
    let mut magic = Vec::new();
    std::fs::File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == object::elf::ELFMAG)
}

/// The possible places of the library, relative to the directory of this program: as packages
/// install it, as cargo installs it, and as cargo builds it.
const PLACES: [(&str, &str); 5] = [
    ("../lib/tenure", LIBRARY),
    ("../lib", LIBRARY),
    ("", LIBRARY_OF_CARGO),
    ("", LIBRARY),
    ("deps", LIBRARY),
];

/// Refuses a library that another user could have put there: `../lib` may be a directory in which
/// all users may write, such as /tmp/lib. It must belong to root, to this user, or to the owner of
/// this program.
fn trusted(library: &Path, program: &Path) -> std::io::Result<Result<(), String>> {
    let file = library.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let owners = [0, own, program.metadata().map_or(own, |program| program.uid())];
    if !owners.contains(&file.uid()) {
        return Ok(Err(format!("it belongs to another user (uid {})", file.uid())));
    }
    if file.mode() & 0o002 != 0 {
        return Ok(Err("all users may write to it".into()));
    }
    Ok(Ok(()))
}

/// Returns the library that `TENURE_PRELOAD` names; else the first of [`PLACES`] that has one.
///
/// # Errors
/// The searched places, or the reason why the found library is not used.
pub fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        let path = Path::new(&named);
        let wrong = |why: &dyn std::fmt::Display| format!("{VARIABLE}={}: {why}", path.display());
        // For a file that it cannot load, the loader only prints a message, and runs the program
        // without it.
        return match path.canonicalize().and_then(|path| Ok((is_elf(&path)?, path))) {
            Ok((true, path)) => Ok(path),
            Ok((false, _)) => Err(wrong(&format_args!("it is no library; name {LIBRARY} there"))),
            Err(e) => Err(wrong(&failed("open", e))),
        };
    }
    let own = std::env::current_exe()
        .map_err(|e| format!("/proc/self/exe: {}", failed("readlink", e)))?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let places = PLACES.map(|(place, name)| directory.join(place).join(name));
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        return Err(format!(
            "there is no {LIBRARY_OF_CARGO} beside {}, and no {LIBRARY} beside it, in deps beside it, in ../lib or \
             in ../lib/tenure; install both (cargo install --path crates/tenure-cli, or a package), build both (cargo \
             build --release), or name the library in {VARIABLE}",
            own.display()
        ));
    };
    let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", found.display());
    match found.canonicalize().and_then(|path| Ok((trusted(&path, &own)?, path))) {
        Ok((Ok(()), path)) => Ok(path),
        Ok((Err(why), _)) => Err(wrong(&why)),
        Err(e) => Err(wrong(&failed("stat", e))),
    }
}
