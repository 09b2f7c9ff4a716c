//! Names a process, and explains why one cannot be read.

use super::figures::Missing;
use std::io;

/// A remedy for a refused look at a process.
pub const REMEDY: &str = "read processes of your own, or as root (sudo)";
/// The remedy if a process of the reader's own was refused.
pub const REMEDY_YAMA: &str =
    "run it as root (sudo), or allow it: sysctl kernel.yama.ptrace_scope=0";

/// Returns whether the kernel lets only parents and root read another process's memory.
pub fn yama_refuses() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.is_ok_and(|scope| scope.trim() != "0")
}

/// The reason why the process cannot be read, and the remedy.
pub fn why(pid: u32, what: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no process {pid}"),
        io::ErrorKind::PermissionDenied => {
            format!("{what} of process {pid} cannot be read: permission denied; {REMEDY}")
        }
        _ => match error.raw_os_error() {
            Some(libc::ESRCH) => format!("process {pid} has ended"),
            _ => format!("{what} of process {pid} cannot be read: {error}"),
        },
    }
}

impl Missing {
    /// A sentence without its full stop. `None`: the program does not use tenure, which needs no
    /// remedy.
    pub fn why(&self, pid: u32) -> Option<String> {
        let remedy = |error: &io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied if yama_refuses() => format!("; {REMEDY_YAMA}"),
            io::ErrorKind::PermissionDenied => format!("; {REMEDY}"),
            _ => String::new(),
        };
        match self {
            Missing::NotUsed => None,
            Missing::Unknown(error) => Some(format!(
                "whether process {pid} uses tenure cannot be read: {error}{}",
                remedy(error)
            )),
            Missing::Unreadable(error) => Some(format!(
                "process {pid} uses tenure, and its figures cannot be read: {error}{}",
                remedy(error)
            )),
            Missing::Wrong(why) => {
                Some(format!("the figures of process {pid} are not valid: {why}"))
            }
        }
    }
}
