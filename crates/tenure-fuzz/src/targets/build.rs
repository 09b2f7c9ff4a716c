//! Where what is tried was built.

use std::path::PathBuf;
use std::sync::OnceLock;

/// For the whole process: it tries one build.
static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Says where tenure is built.
pub fn built_in(directory: Option<PathBuf>) {
    let _ = BUILT.set(directory);
}

/// A file of the build that is tried: where the option says, or beside this program.
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
