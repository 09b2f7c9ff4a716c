//! A running `tenure lock`, and the kernel's figures about it.

use super::*;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdout};

/// A running `tenure lock`, which ends with the test.
pub struct Locker {
    pub child: Child,
    out: BufReader<ChildStdout>,
    /// The output up to "ready".
    pub said: String,
}

impl Locker {
    pub fn start(mut command: Command) -> Locker {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut locker = Locker { child, out, said: String::new() };
        loop {
            let before = locker.said.len();
            if locker.out.read_line(&mut locker.said).expect("it writes text") == 0 {
                let mut err = String::new();
                let _ = locker.child.stderr.take().expect("piped").read_to_string(&mut err);
                panic!("it ended with {:?}: {}{err}", locker.child.wait(), locker.said);
            }
            let line = &locker.said[before..];
            if line.starts_with("ready: ") || line.contains(r#""event":"ready""#) {
                return locker;
            }
        }
    }

    pub fn on(arguments: &[&str], paths: &[&Path]) -> Locker {
        let mut command = tenure();
        command.arg("lock").args(arguments).args(paths);
        Locker::start(command)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Bytes that count against the limit.
    pub fn charged(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        kib.expect("the kernel counts it") << 10
    }

    /// The inodes that it maps.
    pub fn inodes(&self) -> Vec<u64> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("it runs");
        maps.lines().filter_map(|line| line.split_whitespace().nth(4)?.parse().ok()).collect()
    }

    pub fn maps_inode(&self, inode: u64) -> bool {
        self.inodes().contains(&inode)
    }

    /// Waits for a line with all of these words.
    #[track_caller]
    pub fn says(&mut self, words: &[&str]) {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).expect("text"), 0, "no {words:?} in {all}");
            if words.iter().all(|word| line.contains(word)) {
                return;
            }
            all += &line;
        }
    }

    /// Ends it as Ctrl-C does. Returns the exit code, and the output since then.
    pub fn interrupt(mut self) -> (Option<i32>, String, String) {
        signal(self.pid(), rustix::process::Signal::INT);
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).expect("text");
        self.child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
        (self.child.wait().expect("it ends").code(), out, err)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(page())
}

pub fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").ino()
}

pub fn replace(path: &Path, len: usize) -> u64 {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes(len)).unwrap();
    std::fs::rename(&new, path).unwrap();
    inode(path)
}

/// Drops the pages that can be dropped, and returns how many bytes stayed.
pub fn after_dropping(path: &Path) -> u64 {
    drop_pages(path, 0..std::fs::metadata(path).unwrap().len());
    resident(path)
}
