//! Names a process, and explains why one cannot be read.

use super::family::{Stat, NO_PROC};
use super::figures::Missing;
use crate::name::plain;
use std::io;
use std::path::Path;

/// The capability that lets its owner read every process of its user namespace.
const CAP_SYS_PTRACE: u32 = 19;

/// A remedy for a refused look at a process.
pub fn remedy() -> &'static str {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    remedy_of(rustix::process::geteuid().is_root(), effective(&status) >> CAP_SYS_PTRACE & 1 != 0)
}

/// The effective capabilities in `/proc/PID/status`.
fn effective(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

fn remedy_of(is_root: bool, may_trace: bool) -> &'static str {
    match (is_root, may_trace) {
        (_, true) => {
            "read it from outside this container, or allow it in the security module (SELinux, \
             AppArmor, Landlock)"
        }
        (true, false) => "give this container the capability CAP_SYS_PTRACE, or read it outside",
        (false, false) => "read processes of your own, or as root (sudo)",
    }
}

/// Parses the number of a process.
pub fn number(text: &str) -> Result<u32, String> {
    let expected = "expected the number of a process, 1 or more, which pidof prints for a name";
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| expected.into())
}

/// The remedy if a process of the reader's own was refused.
pub const REMEDY_YAMA: &str =
    "run it as root (sudo), or allow it: sysctl kernel.yama.ptrace_scope=0";

/// Returns whether the kernel lets only parents and root read another process's memory.
pub fn yama_refuses() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.is_ok_and(|scope| scope.trim() != "0")
}

/// Reads the state of a process that has memory to look at.
///
/// # Errors
/// The reason why it has none, and the remedy.
pub fn living(pid: u32) -> Result<Stat, String> {
    let stat = Stat::read(pid).map_err(|error| why(pid, "the state", &error))?;
    if !stat.is_zombie {
        return Ok(stat);
    }
    let name = plain(&stat.name);
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let mut threads = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    Err(match threads.find(|thread: &u32| *thread != pid) {
        Some(thread) => format!(
            "the main thread of process {pid} ({name}) has ended, and other threads run: give the \
             number of one of them, such as {thread}"
        ),
        None => format!(
            "process {pid} ({name}) has ended, and its parent has not waited for it (a zombie): end \
             the parent, or let it wait"
        ),
    })
}

/// The reason why the process cannot be read, and the remedy.
pub fn why(pid: u32, what: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if !Path::new("/proc/self").exists() => NO_PROC.into(),
        io::ErrorKind::NotFound => format!("there is no process {pid}"),
        io::ErrorKind::PermissionDenied => {
            format!("{what} of process {pid} cannot be read: permission denied; {}", remedy())
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
        let after = |error: &io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied if yama_refuses() => format!("; {REMEDY_YAMA}"),
            io::ErrorKind::PermissionDenied => format!("; {}", remedy()),
            _ => String::new(),
        };
        match self {
            Missing::NotUsed => None,
            Missing::Unknown(error) => Some(format!(
                "whether process {pid} uses tenure cannot be read: {error}{}",
                after(error)
            )),
            Missing::Unreadable(error) => Some(format!(
                "process {pid} uses tenure, and its figures cannot be read: {error}{}",
                after(error)
            )),
            Missing::Wrong(why) => {
                Some(format!("the figures of process {pid} are not valid: {why}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_be_root() {
        assert!(remedy_of(false, false).contains("sudo"));
        for may_trace in [false, true] {
            assert!(!remedy_of(true, may_trace).contains("root"), "{may_trace}");
        }
        assert_eq!(effective("Name:\tx\nCapPrm:\t1\nCapEff:\t0000000000080000\n"), 1 << 19);
        assert_eq!(effective(""), 0);
    }
}
