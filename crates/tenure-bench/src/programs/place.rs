//! The programs' directory, and the search for installed programs.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tenure_command::call::failed;

/// A directory, removed in the end.
pub(crate) struct Place {
    dir: TempDir,
    python: Option<PathBuf>,
}

impl Place {
    /// Makes the directory. Any user may enter it, because PostgreSQL does not run as root.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(python: Option<PathBuf>) -> io::Result<Place> {
        let readable = fs::Permissions::from_mode(0o755);
        let dir =
            tempfile::Builder::new().prefix("tenure-bench-").permissions(readable).tempdir()?;
        Ok(Place { dir, python })
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file there.
    pub fn write(&self, name: &str, text: &str) -> io::Result<OsString> {
        let path = self.dir().join(name);
        fs::write(&path, text)?;
        Ok(path.into())
    }

    /// Returns the Python interpreter's own path, because `python3` may be a shell script that
    /// looks for it; or the reason why a module cannot be used.
    pub fn python(&self, module: &str) -> Result<OsString, String> {
        let named = self.python.clone().unwrap_or_else(|| "python3".into());
        let script = format!("import sys, {module}; print(sys.executable)");
        let output = Command::new(&named).args(["-c", &script]).stderr(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => {
                let said = String::from_utf8_lossy(&output.stdout);
                Ok(said.lines().last().unwrap_or("").trim().into())
            }
            Ok(_) => Err(format!("{} has no {module}", named.display())),
            Err(error) => Err(format!(
                "{}: {}; --python or TENURE_BENCH_PYTHON names another",
                named.display(),
                failed("exec", error)
            )),
        }
    }
}

/// A program's path, or that it is not installed.
pub(crate) fn installed(name: &str) -> Result<OsString, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| {
            fs::metadata(file)
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
        .map(Into::into)
        .ok_or_else(|| format!("no {name} here"))
}

/// Runs a command that prepares a program. Returns its output, or the reason of its failure.
pub(crate) fn prepare(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {}", failed("exec", error)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("(silent)").trim();
        return Err(format!("{name}: {}: {line}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said() {
        assert!(installed("sh").is_ok());
        assert!(installed("no-such-program-9").unwrap_err().contains("no-such-program-9"));
        let place = Place::new(Some("/nonexistent/python".into())).unwrap();
        assert!(place.python("numpy").unwrap_err().contains("/nonexistent/python"));
        assert!(prepare(Command::new("sh").args(["-c", "echo no >&2; exit 4"]))
            .unwrap_err()
            .contains("exit status: 4: no"));
    }

    #[test]
    fn the_directory_is_removed() {
        let place = Place::new(None).unwrap();
        place.write("file", "text").unwrap();
        let dir = place.dir().to_owned();
        assert!(dir.join("file").exists());
        drop(place);
        assert!(!dir.exists());
    }
}
