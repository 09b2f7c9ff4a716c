//! The kinds of system call that are made to fail, and their errors.

use libc::{
    E2BIG, EACCES, EAGAIN, EBADF, EBUSY, EDEADLK, EEXIST, EFAULT, EFBIG, EHWPOISON, EINTR, EINVAL,
    EIO, EISDIR, EMFILE, ENFILE, ENODEV, ENOENT, ENOLCK, ENOMEM, ENOSPC, ENOSYS, ENOTTY,
    EOPNOTSUPP, EOVERFLOW, EPERM, ESRCH, ETXTBSY, EUSERS,
};
use tenure_measure::seccomp::Call;

/// System calls that fail alike.
#[derive(Debug)]
pub struct Kind {
    /// Its name, as the command line takes it.
    pub name: &'static str,
    /// The calls' numbers.
    numbers: &'static [i64],
    /// The argument that is compared, and its values; none: all calls of these numbers.
    argument: Option<(u32, &'static [u32])>,
    /// The errors that the manual page names.
    pub errnos: &'static [i32],
}

impl Kind {
    /// The calls about which the filter asks.
    pub fn calls(&self) -> Vec<Call> {
        let of = |number: &i64| match self.argument {
            None => vec![Call::Number(*number)],
            Some((index, values)) => {
                values.iter().map(|value| Call::WithArgument(*number, index, *value)).collect()
            }
        };
        self.numbers.iter().flat_map(of).collect()
    }

    const fn all(name: &'static str, numbers: &'static [i64], errnos: &'static [i32]) -> Kind {
        Kind { name, numbers, argument: None, errnos }
    }
}

/// The kind of this name.
pub fn named(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}

#[cfg(target_arch = "x86_64")]
const OPEN: &[i64] = &[libc::SYS_open, libc::SYS_openat, libc::SYS_openat2];
#[cfg(not(target_arch = "x86_64"))]
const OPEN: &[i64] = &[libc::SYS_openat, libc::SYS_openat2];

#[cfg(target_arch = "x86_64")]
const POLL: &[i64] = &[libc::SYS_poll, libc::SYS_ppoll];
#[cfg(not(target_arch = "x86_64"))]
const POLL: &[i64] = &[libc::SYS_ppoll];

/// FUTEX_WAIT and FUTEX_WAIT_BITSET, shared and private, with either clock. A failed wake would
/// hang the C library's own locks.
const WAITS: &[u32] = &[0, 128, 9, 137, 256 + 9, 256 + 137];

/// All kinds.
pub const ALL: &[Kind] = &[
    Kind::all(
        "mmap",
        &[libc::SYS_mmap],
        &[ENOMEM, EAGAIN, EPERM, EINVAL, EACCES, EEXIST, ENFILE, EOVERFLOW, ENODEV, EBADF, ETXTBSY],
    ),
    Kind::all("munmap", &[libc::SYS_munmap], &[ENOMEM, EINVAL, EPERM]),
    Kind::all("mremap", &[libc::SYS_mremap], &[ENOMEM, EFAULT, EINVAL, EAGAIN, EPERM]),
    Kind::all(
        "madvise",
        &[libc::SYS_madvise],
        &[ENOMEM, EINVAL, EAGAIN, EFAULT, EPERM, EACCES, EIO, EHWPOISON, EBADF, EBUSY],
    ),
    Kind::all(
        "process_madvise",
        &[libc::SYS_process_madvise],
        &[EPERM, EINVAL, ENOMEM, ESRCH, EFAULT, EBADF],
    ),
    Kind::all("mprotect", &[libc::SYS_mprotect], &[ENOMEM, EINVAL, EACCES]),
    Kind::all(
        "mlock",
        &[libc::SYS_mlock2, libc::SYS_mlock, libc::SYS_mlockall],
        &[ENOMEM, EPERM, EAGAIN, EINVAL],
    ),
    Kind::all(
        "munlock",
        &[libc::SYS_munlock, libc::SYS_munlockall],
        &[ENOMEM, EPERM, EINVAL, EAGAIN],
    ),
    Kind::all("userfaultfd", &[libc::SYS_userfaultfd], &[EPERM, EMFILE, ENFILE, ENOMEM, EINVAL]),
    Kind::all(
        "ioctl",
        &[libc::SYS_ioctl],
        // Not EEXIST, which UFFDIO_COPY returns for a page that is there, nor ENOENT, which
        // PROCMAP_QUERY returns where nothing is mapped.
        &[ENOMEM, EAGAIN, EINVAL, EFAULT, EBUSY, ESRCH, ENOTTY, EBADF, EPERM, ENOSPC, E2BIG],
    ),
    Kind::all("open", OPEN, &[EMFILE, ENFILE, ENOENT, EACCES, ENOMEM, EINTR, EPERM]),
    Kind::all(
        "read",
        &[libc::SYS_read, libc::SYS_pread64, libc::SYS_readv, libc::SYS_process_vm_readv],
        &[EINTR, EIO, EAGAIN, EFAULT, EBADF, EINVAL, EISDIR, ENOMEM, EPERM, ESRCH],
    ),
    Kind::all(
        "clone",
        &[libc::SYS_clone, libc::SYS_clone3],
        &[EAGAIN, ENOMEM, EPERM, ENOSPC, EUSERS, EINVAL],
    ),
    Kind {
        name: "futex",
        numbers: &[libc::SYS_futex],
        argument: Some((1, WAITS)),
        errnos: &[EINTR, EAGAIN],
    },
    Kind::all(
        "memfd_create",
        &[libc::SYS_memfd_create],
        &[EMFILE, ENFILE, ENOMEM, EINVAL, EPERM, EFAULT],
    ),
    Kind::all(
        "fallocate",
        &[libc::SYS_fallocate, libc::SYS_ftruncate],
        &[ENOSPC, EINTR, EOPNOTSUPP, EPERM, EIO, ENOSYS, EINVAL, EFBIG, EBADF, ENODEV],
    ),
    Kind::all(
        "fcntl",
        &[libc::SYS_fcntl],
        // Not EBADF: the standard library ends a debug build that finds a descriptor closed when it
        // closes it.
        &[EMFILE, EAGAIN, EACCES, ENOLCK, EINVAL, EINTR, EPERM, EBUSY, EDEADLK],
    ),
    Kind::all("prctl", &[libc::SYS_prctl], &[EINVAL, EPERM, EFAULT, EACCES, ENODEV]),
    // Calls that the list of promises does not name, and that tenure also makes.
    // Not ENOMEM, which both return if a part is not mapped.
    Kind::all("mincore", &[libc::SYS_mincore], &[EAGAIN, EFAULT, EINVAL, EPERM]),
    Kind::all("msync", &[libc::SYS_msync], &[EBUSY, EINVAL, ENOSYS, EPERM]),
    // fstat shows whether a descriptor is still the file that tenure has opened, or another file
    // that the program has put under the number. If fstat fails, tenure neither uses nor closes the
    // descriptor.
    Kind::all("fstat", &[libc::SYS_fstat], &[EBADF]),
    Kind::all("lseek", &[libc::SYS_lseek], &[EINVAL, EBADF]),
    Kind::all("poll", POLL, &[EINTR, EINVAL, ENOMEM, EFAULT]),
    Kind::all("eventfd", &[libc::SYS_eventfd2], &[EMFILE, ENFILE, ENODEV, ENOMEM, EINVAL]),
    Kind::all(
        "descriptors",
        &[libc::SYS_close_range, libc::SYS_unshare, libc::SYS_dup, libc::SYS_dup3],
        &[EMFILE, ENOMEM, EINVAL, EPERM, ENOSYS],
    ),
    Kind::all("sysinfo", &[libc::SYS_prlimit64, libc::SYS_sysinfo], &[EPERM, EFAULT, EINVAL]),
];
