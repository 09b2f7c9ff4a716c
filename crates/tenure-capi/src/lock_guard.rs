//! Counted locks, the locked state of a range, and whether more could be locked.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::lock::{kind, whole_pages};
use crate::report::{pointer, status, Failure};
use crate::sized;
use libc::{c_int, c_uint, c_void};
use tenure_core::lock::{self, Lock, State, Verdict};

/// A counted lock. Opaque.
pub struct tenure_held {
    _held: Lock,
}

/// Not locked.
pub const TENURE_LOCK_NONE: u32 = 0;
/// Locked in full: the pages that were resident at the lock, and every page from its first touch
/// on.
pub const TENURE_LOCK_FULL: u32 = 1;
/// Locked on fault: each page from its first touch on.
pub const TENURE_LOCK_ON_FAULT: u32 = 2;
/// Never paged out, locked or not: hugetlb, secretmem.
pub const TENURE_LOCK_ALWAYS_RESIDENT: u32 = 3;
/// The kernel's own calls succeed and lock nothing: MAP_DROPPABLE, device memory.
pub const TENURE_LOCK_IMPOSSIBLE: u32 = 4;
/// A state that this header does not name.
pub const TENURE_LOCK_OTHER: u32 = 5;

/// The lock on the part of a range in one mapping.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_lock_part {
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub len_bytes: u64,
    /// How many of its bytes are in memory, in pages of their own.
    pub resident_bytes: u64,
    /// One of TENURE_LOCK_NONE to TENURE_LOCK_OTHER.
    pub state: u32,
    /// 0.
    pub reserved: u32,
}

/// The limit allows it.
pub const TENURE_LOCK_FITS: u32 = 0;
/// No limit holds: it is unlimited, or CAP_IPC_LOCK lifts it.
pub const TENURE_LOCK_EXEMPT: u32 = 1;
/// The soft limit is too low, and the process may raise it by itself.
pub const TENURE_LOCK_RAISE_SOFT: u32 = 2;
/// The hard limit is too low: raise it where the process is started.
pub const TENURE_LOCK_RAISE_HARD: u32 = 3;

/// Whether a number of bytes more could be locked, and the numbers behind it. UINT64_MAX stands for
/// no limit.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_lock_answer {
    /// The bytes of the question, in whole pages.
    pub bytes: u64,
    /// Charged already (VmLck).
    pub locked_bytes: u64,
    /// The limit that would be enough.
    pub limit_needed_bytes: u64,
    /// The soft limit (RLIMIT_MEMLOCK) now.
    pub soft_limit_bytes: u64,
    /// The highest soft limit that the process may set.
    pub hard_limit_bytes: u64,
    /// The free memory of the machine, or of the tightest memory cgroup: the kernel may allow a
    /// lock of more, and then call its OOM killer.
    pub memory_free_bytes: u64,
    /// One of TENURE_LOCK_FITS to TENURE_LOCK_RAISE_HARD.
    pub verdict: u32,
    /// 1: the calling thread has CAP_IPC_LOCK, and capabilities lift the limit here.
    pub has_ipc_lock: u32,
}

/// Locks the pages that [addr, addr + len) touches, as tenure_mlock2 does, until tenure_unlock.
/// Locks count: where two overlap and one ends, the pages of the other stay locked. tenure_unlock
/// also leaves the locks of tenure_mlock2 and tenure_mlockall. Returns NULL on failure.
///
/// Errors: as tenure_mlock2. Others: part of the range is locked already, or not mapped, and
/// /proc/self/smaps could not be read. Nothing is locked then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_lock(
    addr: *const c_void,
    len: usize,
    flags: c_uint,
) -> *mut tenure_held {
    pointer("tenure_lock", || {
        let when = kind(flags)?;
        let (addr, len) = whole_pages(addr, len);
        let held = lock::lock(addr, len, when)?;
        Ok(Box::into_raw(Box::new(tenure_held { _held: held })))
    })
}

/// Ends a lock and frees the handle. NULL does nothing. The call may come before or after the unmap
/// of the memory. It must come before, if other code than tenure, or a future lock of tenure_mlockall,
/// will lock the next mapping at this place. It unlocks the range that was locked: pages that mremap
/// has moved away stay locked. A part that the kernel does not unlock (the process has too many
/// mappings to split one more) stays locked until a later lock call for the part, which tries again.
/// In a forked child it unlocks nothing, because a child inherits no locks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_unlock(l: *mut tenure_held) {
    status("tenure_unlock", || {
        if !l.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `tenure_lock`, and the C caller
            // gives a lock back only once.
            drop(unsafe { Box::from_raw(l) });
        }
        Ok(0)
    });
}

/// Writes the locks of [addr, addr + len), as the kernel reports them, mapping by mapping in order
/// of address: at most `room` parts of `part_size` bytes each (sizeof(struct tenure_lock_part)).
/// Between two parts that do not touch nothing is mapped. Returns the number of parts, which may be
/// more than `room`. `parts` may be NULL with a `room` of 0.
///
/// Cost: a reading of /proc/self/smaps up to the end of the range (10 ns for each resident page).
///
/// Errors: EINVAL: empty or wrapping; NULL with a room. E2BIG: part_size is more than
/// 4096. Others: /proc/self/smaps or /proc/self/pagemap could not be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_lock_receipt(
    addr: *const c_void,
    len: usize,
    parts: *mut tenure_lock_part,
    part_size: usize,
    room: usize,
) -> c_int {
    status("tenure_lock_receipt", || {
        let (addr, len) = whole_pages(addr, len);
        let receipt = lock::receipt(addr, len)?;
        for (at, part) in receipt.parts.iter().enumerate().take(room) {
            let part = tenure_lock_part {
                start: part.start as u64,
                len_bytes: part.len as u64,
                resident_bytes: part.resident_bytes,
                state: state(part.state),
                reserved: 0,
            };
            let to = parts.cast::<u8>().wrapping_add(at * part_size).cast();
            // SAFETY: the caller's array has `room` parts of that size; integers without padding.
            unsafe { sized::write(to, part_size, &part) }?;
        }
        Ok(c_int::try_from(receipt.parts.len()).unwrap_or(c_int::MAX))
    })
}

fn state(state: State) -> u32 {
    match state {
        State::Unlocked => TENURE_LOCK_NONE,
        State::Full => TENURE_LOCK_FULL,
        State::OnFault => TENURE_LOCK_ON_FAULT,
        State::AlwaysResident(_) => TENURE_LOCK_ALWAYS_RESIDENT,
        State::Impossible(_) => TENURE_LOCK_IMPOSSIBLE,
        _ => TENURE_LOCK_OTHER,
    }
}

/// Returns 0 if `bytes` more could be locked, and 1 if not, without locking anything. After 1
/// tenure_last_error() names the missing limit, and the lines that raise it for a shell, systemd,
/// Docker and Kubernetes. `out` may be NULL; otherwise it has `size` bytes
/// (sizeof(struct tenure_lock_answer)), and no byte beyond them is written. Cost: about 200 us.
///
/// Errors: E2BIG: `size` is more than 4096. Others: /proc is not mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_lock_explain(
    bytes: u64,
    out: *mut tenure_lock_answer,
    size: usize,
) -> c_int {
    status("tenure_lock_explain", || {
        let found = lock::explain(bytes)?;
        let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let account = found.account;
        let answer = tenure_lock_answer {
            bytes: found.bytes,
            locked_bytes: account.locked,
            limit_needed_bytes: found.limit_needed,
            soft_limit_bytes: limit(account.soft),
            hard_limit_bytes: limit(account.hard),
            memory_free_bytes: found.memory_free,
            verdict: match found.verdict {
                Verdict::Fits => TENURE_LOCK_FITS,
                Verdict::Exempt => TENURE_LOCK_EXEMPT,
                Verdict::RaiseSoft => TENURE_LOCK_RAISE_SOFT,
                _ => TENURE_LOCK_RAISE_HARD,
            },
            has_ipc_lock: u32::from(account.ipc_lock && account.first_user_namespace),
        };
        if !out.is_null() {
            // SAFETY: `out` is not NULL here, so the C caller passes `size` writable bytes. The
            // fields are integers without padding.
            unsafe { sized::write(out, size, &answer) }?;
        }
        if found.is_allowed() {
            return Ok(0);
        }
        crate::report::note(
            "tenure_lock_explain",
            Failure::new(libc::ENOMEM, format_args!("{found}")),
        );
        Ok(1)
    })
}
