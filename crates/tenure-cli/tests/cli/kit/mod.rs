//! Shared by the tests of `populate` and `lock`: files on a disk, the program, other users.

#![allow(dead_code)] // each test binary uses a part of it

pub mod locker;

use rustix::fs::{fadvise, fstatfs, Advice, FsWord};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tenure_testkit::build::copy_program;
use tenure_testkit::{Deadline, Unavailable};

pub const NOBODY: u32 = 65534;
const TMPFS: FsWord = 0x0102_1994;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// A directory for one test, on a file system with a page cache.
pub fn directory() -> Result<TempDir, Unavailable> {
    let top = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kind = File::open(top).and_then(|dir| Ok(fstatfs(dir)?));
    match kind {
        Ok(kind) if kind.f_type == TMPFS => {
            Err(Unavailable::new("the build is on a tmpfs, whose pages cannot be dropped"))
        }
        _ => tempfile::tempdir_in(top).map_err(|e| Unavailable::new(format!("no directory: {e}"))),
    }
}

/// Bytes that a file system cannot shrink.
pub fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Writes a file and drops it from the page cache.
pub fn cold(path: &Path, len: usize) {
    std::fs::write(path, bytes(len)).expect("the file is written");
    drop_pages(path, 0..len as u64);
    assert_eq!(resident(path), 0, "{} is still resident", path.display());
}

pub fn drop_pages(path: &Path, range: std::ops::Range<u64>) {
    let file = File::open(path).expect("the file is there");
    file.sync_all().expect("the file is on the disk");
    let len = NonZeroU64::new(range.end - range.start);
    fadvise(&file, range.start, len, Advice::DontNeed).expect("fadvise");
}

/// The resident bytes of the whole file.
pub fn resident(path: &Path) -> u64 {
    let file = File::open(path).expect("the file is there");
    let len = file.metadata().expect("it has a size").len();
    let bytes = tenure::page_cache::resident_bytes(&file, 0..len).expect("it can be asked");
    bytes.expect("it is this user's")
}

pub fn tenure() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.stdin(Stdio::null());
    command
}

/// The program as an ordinary user, with a directory that such a user can reach.
pub struct AsUser {
    pub dir: TempDir,
    program: PathBuf,
}

impl AsUser {
    pub fn new() -> Result<AsUser, Unavailable> {
        let dir =
            tempfile::tempdir().map_err(|e| Unavailable::new(format!("no directory: {e}")))?;
        let program = dir.path().join("tenure");
        // The build may lie in a directory that only root can enter.
        copy_program(env!("CARGO_BIN_EXE_tenure").as_ref(), &program)
            .map_err(|e| Unavailable::new(format!("the program cannot be copied: {e}")))?;
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open_to_all).expect("it is ours");
        Ok(AsUser { dir, program })
    }

    pub fn tenure(&self) -> Command {
        as_user(Command::new(&self.program))
    }

    /// The program with a hard limit of so many bytes for locked memory.
    pub fn tenure_with_limit(&self, bytes: u64) -> Command {
        self.with_limit(&format!("-l {}", bytes >> 10))
    }

    /// The program with a limit in the form of the shell's `ulimit`.
    pub fn with_limit(&self, limit: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
        shell.args(["-c", &script]).arg(&self.program);
        as_user(shell)
    }
}

fn as_user(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code, standard output, standard error.
pub fn parts(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!("{e}: {}\n{}", text(&output.stdout), text(&output.stderr));
    })
}

/// Waits until the condition is true.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Deadline::after(Duration::from_secs(30));
    while !is_so() {
        assert!(!deadline.is_over(), "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a child has an id");
    rustix::process::kill_process(pid, signal).expect("the child is there");
}

/// Whether the process has the file mapped.
pub fn maps(pid: u32, path: &Path) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let name = path.to_str().expect("a plain name");
    text.lines().any(|line| line.ends_with(name))
}
