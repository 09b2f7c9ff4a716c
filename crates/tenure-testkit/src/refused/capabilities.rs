//! The kernel features that tenure uses, each as a filter can refuse it.

use crate::seccomp::{Call, Errno, Filter};
use libc::{EACCES, EINVAL, ENOSYS, ENOTTY, EPERM};

/// One feature.
#[derive(Debug)]
pub struct Capability {
    /// Its name, as the command line takes it.
    pub name: &'static str,
    /// The calls.
    calls: &'static [Call],
    /// The error of a kernel that does not have it.
    unknown: i32,
}

/// The manner in which it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As by a kernel that does not have it: `ENOSYS`, `EINVAL` or `ENOTTY`.
    Unknown,
    /// As by a container's filter: `EPERM`.
    Forbidden,
    /// As by a security module: `EACCES`.
    Denied,
}

impl Manner {
    /// All manners.
    pub const ALL: [Manner; 3] = [Manner::Unknown, Manner::Forbidden, Manner::Denied];

    /// Its name, as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Manner::Unknown => "unknown",
            Manner::Forbidden => "EPERM",
            Manner::Denied => "EACCES",
        }
    }
}

impl Capability {
    /// The error that its calls fail with.
    pub fn errno(&self, manner: Manner) -> i32 {
        match manner {
            Manner::Unknown => self.unknown,
            Manner::Forbidden => EPERM,
            Manner::Denied => EACCES,
        }
    }

    /// The filter with these calls refused, too.
    pub fn refuse(&self, filter: Filter, manner: Manner) -> Filter {
        let errno = Errno::from_raw_os_error(self.errno(manner));
        self.calls.iter().fold(filter, |filter, call| filter.refuse(*call, errno))
    }
}

/// The capability of this name.
pub fn capability(name: &str) -> Option<&'static Capability> {
    CAPABILITIES.iter().find(|capability| capability.name == name)
}

const fn of(name: &'static str, calls: &'static [Call], unknown: i32) -> Capability {
    Capability { name, calls, unknown }
}

macro_rules! system_call {
    ($name:literal, $($number:ident)*) => { of($name, &[$(Call::Number(libc::$number)),*], ENOSYS) };
}
macro_rules! advice {
    ($name:literal, $advice:expr) => {
        of($name, &[Call::Madvise($advice)], EINVAL)
    };
}
macro_rules! request {
    ($name:literal, $request:literal) => {
        of($name, &[Call::Ioctl($request)], EINVAL)
    };
}

#[cfg(target_arch = "x86_64")]
const OPENS: &[Call] = &[
    Call::Number(libc::SYS_openat),
    Call::Number(libc::SYS_openat2),
    Call::Number(libc::SYS_open),
];
#[cfg(not(target_arch = "x86_64"))]
const OPENS: &[Call] = &[Call::Number(libc::SYS_openat), Call::Number(libc::SYS_openat2)];

/// All features.
pub const CAPABILITIES: &[Capability] = &[
    // Both ways to get a userfaultfd.
    of("userfaultfd", &[Call::Userfaultfd, Call::UserfaultfdDevice], ENOSYS),
    request!("uffd-api", 0xC018_AA3F),
    request!("uffd-register", 0xC020_AA00),
    request!("uffd-copy", 0xC028_AA03),
    request!("uffd-poison", 0xC020_AA08),
    of("pagemap-scan", &[Call::PagemapScan], ENOTTY),
    of("procmap-query", &[Call::ProcmapQuery], ENOTTY),
    of("ioctl", &[Call::Number(libc::SYS_ioctl)], ENOTTY),
    advice!("madv-free", libc::MADV_FREE),
    advice!("madv-pageout", libc::MADV_PAGEOUT),
    advice!("madv-populate-read", libc::MADV_POPULATE_READ),
    advice!("madv-populate-write", libc::MADV_POPULATE_WRITE),
    advice!("madv-dontneed", libc::MADV_DONTNEED),
    advice!("madv-dontneed-locked", 24),
    advice!("madv-remove", libc::MADV_REMOVE),
    advice!("madv-hugepage", libc::MADV_HUGEPAGE),
    advice!("madv-nohugepage", libc::MADV_NOHUGEPAGE),
    advice!("madv-collapse", 25),
    advice!("madv-wipeonfork", libc::MADV_WIPEONFORK),
    advice!("madv-dontfork", libc::MADV_DONTFORK),
    advice!("madv-dontdump", libc::MADV_DONTDUMP),
    system_call!("process_madvise", SYS_process_madvise),
    system_call!("mlock2", SYS_mlock2),
    system_call!("mlock", SYS_mlock SYS_mlockall),
    system_call!("munlock", SYS_munlock SYS_munlockall),
    system_call!("mremap", SYS_mremap),
    // MREMAP_MAYMOVE | MREMAP_DONTUNMAP.
    of("mremap-dontunmap", &[Call::WithArgument(libc::SYS_mremap, 3, 5)], EINVAL),
    system_call!("mprotect", SYS_mprotect),
    system_call!("mincore", SYS_mincore),
    system_call!("msync", SYS_msync),
    system_call!("memfd_create", SYS_memfd_create),
    system_call!("fallocate", SYS_fallocate),
    system_call!("fcntl", SYS_fcntl),
    of("opens", OPENS, EACCES),
    system_call!("close_range", SYS_close_range),
    system_call!("unshare", SYS_unshare),
    system_call!("process_vm_readv", SYS_process_vm_readv),
    system_call!("prlimit64", SYS_prlimit64),
    system_call!("sysinfo", SYS_sysinfo),
    system_call!("eventfd2", SYS_eventfd2),
    system_call!("pipe2", SYS_pipe2),
    system_call!("socket", SYS_socket SYS_socketpair),
    system_call!("prctl", SYS_prctl),
    system_call!("capget", SYS_capget),
    system_call!("sched_getaffinity", SYS_sched_getaffinity),
    system_call!("membarrier", SYS_membarrier),
    system_call!("fstatfs", SYS_fstatfs SYS_statfs),
    system_call!("fadvise64", SYS_fadvise64),
    system_call!("pidfd", SYS_pidfd_open SYS_pidfd_send_signal SYS_pidfd_getfd),
    system_call!("clone", SYS_clone SYS_clone3),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single() {
        for capability in CAPABILITIES {
            let named = CAPABILITIES.iter().filter(|other| other.name == capability.name);
            assert_eq!(named.count(), 1, "{}", capability.name);
            assert_eq!(self::capability(capability.name).unwrap().name, capability.name);
        }
        assert!(self::capability("nothing").is_none());
    }
}
