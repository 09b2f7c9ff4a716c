//! Builds files that cargo does not build for a test by itself: libraries to which no Rust program
//! can link, and programs in C.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Copies a program or a script that the test executes afterwards.
///
/// Another process copies it. If this one wrote the file, a child that another test forks at that
/// moment would have it open for writing, and nothing could execute it (`ETXTBSY`; seen in CI).
///
/// # Errors
/// `cp` cannot be started, or has failed.
pub fn copy_program(from: &Path, to: &Path) -> std::io::Result<()> {
    let done = Command::new("cp").arg("--").arg(from).arg(to).output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()))
}

/// Builds a package's libraries as the calling test was built, and returns their directory.
///
/// # Panics
/// If they cannot be built, or one of `files` is not there afterwards.
pub fn libraries_of(package: &str, files: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile_dir = test.parent().and_then(Path::parent).expect("it lies in deps");
    let name =
        profile_dir.file_name().and_then(|name| name.to_str()).expect("a profile has a name");
    // With a target given there is one more directory, and cargo must get the one above.
    let above = profile_dir.parent().expect("a profile lies in a target directory");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    cargo.args(["build", "-p", package, "--quiet"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["--profile", if name == "debug" { "dev" } else { name }]);
    // A copied target directory may have lost its tag: then the new one gets none either.
    let tagged = |dir: &Path| dir.join("CACHEDIR.TAG").exists();
    match above.parent() {
        Some(target_dir) if tagged(target_dir) && !tagged(above) => {
            cargo.arg("--target-dir").arg(target_dir);
            cargo.arg("--target").arg(above.file_name().expect("a target's name"));
        }
        _ => {
            cargo.arg("--target-dir").arg(above);
        }
    }
    let built = cargo.output().expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for file in files {
        assert!(profile_dir.join(file).exists(), "no {file} in {}", profile_dir.display());
    }
    profile_dir.to_owned()
}

/// Returns the compiler that an environment variable names, or `default`; or the reason why there
/// is none.
pub fn compiler(variable: &str, default: &str) -> Result<String, String> {
    let name = std::env::var(variable).unwrap_or_else(|_| default.into());
    match Command::new(&name).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(name),
        Ok(output) => Err(format!("{name} --version ended with {}", output.status)),
        Err(error) => Err(format!("no compiler {name}: {error}")),
    }
}

/// Formats how a program ended and its output, for a message.
pub fn text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
