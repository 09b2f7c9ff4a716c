//! Profiles refuse the calls that they name, and the core's tests under them are compared with the
//! list.

use std::process::{Command, Output};
use tenure_testkit::refused::{profile, PROFILES};
use tenure_testkit::skip;

fn under(profile: &str, program: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-under-filter"));
    command.args(["--profile", profile]).args(program).output().expect("the launcher starts")
}

/// The results of a program under a profile; `None`, with the reason recorded: the profile cannot
/// be made here.
fn found(profile: &str) -> Option<Vec<String>> {
    let own = std::env::current_exe().expect("a test has a path");
    let name = "what_is_there";
    let arguments = [own.to_str().expect("in UTF-8"), name, "--exact", "--nocapture", "--ignored"];
    let output = under(profile, &arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.code() == Some(127) {
        let reason = String::from_utf8_lossy(&output.stderr).into_owned();
        skip::record(&format!("refused::{profile}"), reason.trim());
        return None;
    }
    assert!(output.status.success(), "{profile}: {output:?}");
    let found = text.lines().filter_map(|line| line.strip_prefix("found: "));
    Some(found.map(str::to_owned).collect())
}

/// Not a test of its own: it runs under the profiles.
#[test]
#[ignore = "run under a profile by another test"]
fn what_is_there() {
    let say = |what: &str, errno: i32| println!("found: {what} {errno}");
    let last = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: makes a descriptor at most.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) };
    say("userfaultfd", if fd < 0 { last() } else { 0 });
    // SAFETY: an empty range at no address: nothing is changed.
    let free = unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_FREE) };
    say("MADV_FREE", if free < 0 { last() } else { 0 });
    // SAFETY: refused or not, the kernel does not accept this call without an argument.
    unsafe { libc::syscall(libc::SYS_clone3, 0, 0) };
    say("clone3", last());
    let empty =
        |path: &str| std::fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none());
    for path in ["/proc", "/sys", "/proc/pressure"] {
        say(path, i32::from(empty(path)));
    }
    // SAFETY: has no precondition.
    say("user", unsafe { libc::geteuid() } as i32);
}

#[test]
fn profiles_refuse_what_they_say() {
    let expected = [
        ("docker", &["userfaultfd 1", "MADV_FREE 0", "clone3 38"][..]),
        ("containerd", &["userfaultfd 1", "clone3 38"]),
        ("systemd-service", &["userfaultfd 0", "MADV_FREE 0", "clone3 22"]),
        ("gvisor", &["userfaultfd 38", "MADV_FREE 22"]),
        ("chromium", &["userfaultfd 1", "MADV_FREE 0", "clone3 38"]),
        ("selinux", &["userfaultfd 13"]),
        ("no-proc", &["/proc 1", "/sys 0"]),
        ("no-sys", &["/proc 0", "/sys 1"]),
        ("no-psi", &["/proc 0", "/proc/pressure 1"]),
        ("ordinary-user", &["user 65534"]),
    ];
    for (name, lines) in expected {
        let Some(found) = found(name) else { continue };
        for line in lines {
            assert!(found.iter().any(|found| found == line), "{name}: {line}: {found:?}");
        }
    }
}

#[test]
fn unknown_profiles_are_refused_and_all_are_named() {
    let output = under("nothing", &["/bin/true"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    for known in PROFILES {
        assert!(said.contains(known.name), "{said}");
        assert_eq!(profile(known.name).map(|profile| profile.about), Some(known.about));
    }
}

/// A sample: two programs under three profiles. docs/checks.md has the command for all of them.
#[test]
fn the_core_under_profiles() {
    let own = std::env::current_exe().expect("a test has a path");
    let built = own.parent().expect("in a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-refused"));
    command.args(["--programs", "freed,touch", "--profiles", "docker,old-kernel,chromium"]);
    let output = command.arg("--built").arg(built).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(2) {
        skip!("the core's tests are not built here: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(output.status.success(), "{}", output.status);
}
