//! The bounds that the kernel tells: of locked memory (`RLIMIT_MEMLOCK`, the bytes charged against it, and
//! the exempt processes), of files, and the machine's memory.

use super::{kernel, small_file};
use rustix::io::Errno;
use rustix::thread::{capabilities, CapabilitySet};
use std::ffi::c_long;
use std::fs;

/// The limit on locked bytes; `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memlock {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// Returns one of the process's limits, soft and hard; `None`: no limit. A filter may refuse the
/// question.
///
/// `resource` is one of libc's numbers, which have a sign under musl and none under glibc.
pub(crate) fn limit(resource: impl Into<i64>) -> Result<(Option<u64>, Option<u64>), Errno> {
    let resource: i64 = resource.into();
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // Not by the C library's function, which a program may have replaced.
    let arguments = [0, resource as c_long, 0, (&raw mut limit).addr() as c_long, 0, 0];
    // SAFETY: the kernel writes one structure of its own layout, which lives through the call.
    unsafe { kernel::call(libc::SYS_prlimit64, arguments) }?;
    let finite = |bytes: u64| (bytes != libc::RLIM64_INFINITY).then_some(bytes);
    Ok((finite(limit.rlim_cur), finite(limit.rlim_max)))
}

/// Reads `RLIMIT_MEMLOCK`.
pub(crate) fn memlock() -> Result<Memlock, Errno> {
    limit(libc::RLIMIT_MEMLOCK).map(|(soft, hard)| Memlock { soft, hard })
}

/// Returns how long a file may become (`RLIMIT_FSIZE`); `None`: no limit, or a filter refuses the
/// question.
pub(crate) fn file_bytes() -> Option<u64> {
    limit(libc::RLIMIT_FSIZE).ok()?.0
}

/// The machine's memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub memory: u64,
    /// Without the file pages that the kernel can drop.
    pub free: u64,
    pub swap: u64,
}

/// Asks the kernel; `None`: a filter refuses the question. (rustix takes the call for one that
/// cannot fail, and would return what was on the stack.)
pub(crate) fn machine() -> Option<Machine> {
    let mut info = std::mem::MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY: the kernel writes one structure of its own layout, which lives through the call.
    if unsafe { libc::sysinfo(info.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so the kernel has written all of it.
    let info = unsafe { info.assume_init() };
    let bytes = |units: libc::c_ulong| units.saturating_mul(info.mem_unit.into());
    Some(Machine {
        memory: bytes(info.totalram),
        free: bytes(info.freeram + info.bufferram),
        swap: bytes(info.totalswap),
    })
}

/// Returns a line of `/proc/thread-self/status` in kB, as bytes. It reads the thread's own file,
/// because the main thread may have ended, and capabilities belong to threads.
fn status_bytes(key: &str) -> Result<u64, Errno> {
    small_file::kib_of(c"/proc/thread-self/status", key)
}

/// Bytes charged against the limit (`VmLck`).
pub(crate) fn locked_bytes() -> Result<u64, Errno> {
    status_bytes("VmLck:")
}

/// Bytes mapped, locked or not (`VmSize`). `mlockall` compares this number with the limit.
pub(crate) fn mapped_bytes() -> Result<u64, Errno> {
    status_bytes("VmSize:")
}

/// Whether the calling thread has `CAP_IPC_LOCK` in effect.
pub(crate) fn has_ipc_lock() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

/// Returns whether this is the machine's first user namespace. In any other, a capability does not
/// lift the limit: the kernel checks for `CAP_IPC_LOCK` in the first.
pub(crate) fn in_first_user_namespace() -> bool {
    // PROC_USER_INIT_INO. If /proc cannot be read, tenure assumes that the limit holds.
    fs::read_link("/proc/thread-self/ns/user")
        .is_ok_and(|target| target.as_os_str() == "user:[4026531837]")
}

/// How many mappings a process may have (`vm.max_map_count`).
pub(crate) fn max_mappings() -> Option<usize> {
    let mut buffer = [0; 32];
    small_file::read(c"/proc/sys/vm/max_map_count", &mut buffer).ok()?.trim().parse().ok()
}

/// Returns whether address space of retired mappings could make another mapping fail: `RLIMIT_AS`
/// or `RLIMIT_DATA` is set.
pub(crate) fn address_space_is_limited() -> bool {
    let limits = [limit(libc::RLIMIT_AS), limit(libc::RLIMIT_DATA)];
    limits.iter().any(|limit| matches!(limit, Ok((Some(_), _))))
}
