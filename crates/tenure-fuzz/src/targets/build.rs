//! The directory of the tested build.

use std::path::PathBuf;
use std::sync::OnceLock;

/// For the whole process: it tests one build.
static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Sets the directory in which tenure is built.
pub fn built_in(directory: Option<PathBuf>) {
    let _ = BUILT.set(directory);
}

/// Returns a file of the tested build: in the option's directory, or beside this program.
pub(super) fn built(name: &str) -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let beside = exe.parent().map(std::path::Path::to_owned).unwrap_or_default();
    let path = BUILT.get().cloned().flatten().unwrap_or(beside).join(name);
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) => {
            Err(format!("{}: {error} (cargo build --release --workspace)", path.display()))
        }
    }
}
