//! A program that has more rights than the user that starts it (setuid) does not follow the
//! environment: it would write with those rights to a file that `MEMORY_PRESSURE_WATCH` names.

use crate::promise_kit::*;
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tenure::{on_pressure, Outcome, Volatile};
use tenure_testkit::build::copy_program;
use tenure_testkit::{skip, this_test};

const PART: &str = "TENURE_TEST_MORE_RIGHTS";
const NOBODY: u32 = 65534;
/// The bytes that the environment asks to write.
const WRITTEN: &str = "written";

/// In the program: uses the features that read the environment, and prints the result.
fn use_what_reads_the_environment() {
    // SAFETY: reads a number that the kernel gave the program at its start.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    println!("secure: {secure}");
    let told = on_pressure(|| ()).unwrap();
    let mut buffer = Volatile::new(PAGE).unwrap();
    buffer.pin_mut().unwrap().fill(1);
    println!("purged: {}", buffer.pin().unwrap().outcome() == Outcome::Purged);
    // The listening thread opens its sources, and writes to them.
    if secure == 0 {
        let watched = std::env::var_os("MEMORY_PRESSURE_WATCH").unwrap();
        let is_written = || std::fs::read_to_string(&watched).is_ok_and(|text| text == WRITTEN);
        assert!(waited(is_written));
    } else {
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(told);
}

/// Runs a copy of this program, with or without the bit. Returns its output, and the file's
/// contents.
fn run(directory: &Path, mode: u32) -> (String, String) {
    let program = directory.join(format!("program-{mode:o}"));
    copy_program(&std::env::current_exe().unwrap(), &program).unwrap();
    chown(&program, Some(NOBODY), None).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
    let file = directory.join("watched");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    let mut command = Command::new(&program);
    command.args([this_name(), "--exact", "--nocapture"]).env(PART, "1");
    command.env("MEMORY_PRESSURE_WATCH", &file).env("MEMORY_PRESSURE_WRITE", "d3JpdHRlbg==");
    let output = command.env("TENURE_PURGE", "always").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    (said, std::fs::read_to_string(&file).unwrap())
}

/// A directory that all users may enter.
struct Directory(std::path::PathBuf);

impl Directory {
    fn make() -> Directory {
        let name = format!("tenure-more-rights-{}", std::process::id());
        let made = Directory(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&made.0).unwrap();
        std::fs::set_permissions(&made.0, PermissionsExt::from_mode(0o755)).unwrap();
        made
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn this_name() -> &'static str {
    "more_rights::a_setuid_program_does_not_follow_the_environment"
}

#[test]
fn a_setuid_program_does_not_follow_the_environment() {
    assert_eq!(this_test!(), this_name());
    if std::env::var_os(PART).is_some() {
        return use_what_reads_the_environment();
    }
    // SAFETY: returns the effective user, and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skip!("giving a program to another user needs root");
    }
    let directory = Directory::make();
    let (plain, setuid) = (run(&directory.0, 0o755), run(&directory.0, 0o4755));
    assert!(plain.0.contains("secure: 0") && plain.0.contains("purged: true"), "{}", plain.0);
    assert_eq!(plain.1, WRITTEN);
    if !setuid.0.contains("secure: 1") {
        skip!("programs are not started as setuid here (nosuid)");
    }
    assert!(setuid.0.contains("purged: false"), "{}", setuid.0);
    assert_eq!(setuid.1, "", "the file was written to");
}
