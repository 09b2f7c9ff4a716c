//! Calls that name mappings, and change or read their state. They go on unchanged, after the pool
//! has let go of the range that [`super::rules`] names.

use super::rules::{let_go, let_go_before_advice, let_go_of_pool, of_advice, touches_pool};
use super::{confine, ending, program_memory};
use crate::counters;
use crate::errno::Errno;
use crate::kernel::kernel;
use crate::limits;
use crate::real::{self, known};
use crate::serving::MAPPINGS;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use tenure::launcher::REGISTERED_BY_TENURE;
use tenure::pool::{self, mapped, mapped::Call};
use tenure::retire;

/// Makes a raw call of `advice`.
unsafe fn raw_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_long {
    // SAFETY: the caller promises that the program gave this advice itself, or that the advice
    // keeps the contents.
    unsafe { kernel!(libc::SYS_madvise, at, len, advice) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    counters::MADVISES.one();
    let_go_before_advice(at, len, advice);
    // SAFETY: the program gives this advice itself.
    unsafe { raw_madvise(at, len, advice) as c_int }
}

/// Returns an error number and leaves `errno` alone. POSIX_MADV_DONTNEED does nothing, as in the C
/// library: the kernel's would lose the contents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let_go(at, len, of_advice(advice));
    let _errno = Errno::keep();
    // SAFETY: the program gives this advice itself, and the advice that would lose contents has
    // returned above.
    match unsafe { raw_madvise(at, len, advice) } {
        0 => 0,
        // SAFETY: the C library gives the address of the calling thread's own errno.
        _ => unsafe { *libc::__errno_location() },
    }
}

/// Lets go of each range in a vector. If the vector is for another process, this may take a run out
/// of the pool without need. It comes before the call, because a call that fails may have changed
/// some of the ranges.
pub fn let_go_of_each(vector: *const libc::iovec, count: usize, advice: c_int) {
    for at in 0..count.min(libc::UIO_MAXIOV as usize) {
        let part = vector.wrapping_add(at);
        // SAFETY: two whole words, and any bytes are valid for them. The read reports memory that
        // cannot be read, and the program does not unmap it during its own call.
        let Some(part) = (unsafe { program_memory::read(part) }) else { break };
        let_go(part.iov_base, part.iov_len, of_advice(advice));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    vector: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let_go_of_each(vector, count, advice);
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    unsafe { kernel!(libc::SYS_process_madvise, pidfd, vector, count, advice, flags) as isize }
}

/// Calls `(address, length, …)`, and their effect on the range.
macro_rules! calls {
    ($($name:ident $call:ident = $number:ident ($($more:ident: $kind:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(at: *mut c_void, len: usize $(, $more: $kind)*) -> c_int {
                let_go(at, len, Call::$call);
                // SAFETY: the program makes this call itself, and it goes to the kernel with its
                // arguments unchanged.
                unsafe { kernel!(libc::$number, at, len $(, $more)*) as c_int }
            }
        )*
    };
}

calls! {
    mprotect Changes = SYS_mprotect(protection: c_int);
    mlock Changes = SYS_mlock();
    munlock Changes = SYS_munlock();
    mbind Changes = SYS_mbind(
        mode: c_int, nodes: *const c_ulong, most: c_ulong, flags: c_uint
    );
    mseal Changes = SYS_mseal(flags: c_ulong);
    remap_file_pages Changes = SYS_remap_file_pages(
        protection: c_int, offset: usize, flags: c_int
    );
    mincore Uses = SYS_mincore(pages: *mut u8);
}

/// The C library's own definition makes the call: if the kernel lacks mlock2, that definition
/// handles it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(at: *mut c_void, len: usize, flags: c_uint) -> c_int {
    let_go(at, len, Call::Changes);
    match known!(mlock2) {
        // SAFETY: `next` is the C library's function of that name, and it gets the program's own
        // arguments unchanged.
        Some(next) => unsafe { next(at, len, flags) },
        // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
        // unchanged.
        None => unsafe { kernel!(libc::SYS_mlock2, at, len, flags) as c_int },
    }
}

/// It is a cancellation point. The C library's own definition makes the call, and a thread's end
/// may unwind through it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn msync(at: *mut c_void, len: usize, flags: c_int) -> c_int {
    let_go(at, len, Call::Uses);
    match real::msync() {
        // SAFETY: `next` is the C library's function of that name, and it gets the program's own
        // arguments unchanged.
        Some(next) => unsafe { next(at, len, flags) },
        // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
        // unchanged.
        None => unsafe { kernel!(libc::SYS_msync, at, len, flags) as c_int },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let_go(at, len, Call::Changes);
    // The kernel may lack keys; without a key the C library makes the plain call.
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    unsafe {
        if key == -1 {
            kernel!(libc::SYS_mprotect, at, len, protection) as c_int
        } else {
            kernel!(libc::SYS_pkey_mprotect, at, len, protection, key) as c_int
        }
    }
}

/// The name of a mapping is a lasting state. C declares variable arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    let becomes_strict = confine::prctl_comes(option, a, b);
    if option == libc::PR_SET_VMA {
        let_go(b as *const c_void, c as usize, Call::Changes);
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let done = unsafe { kernel!(libc::SYS_prctl, option, a, b, c, d) as c_int };
    if done == 0 && becomes_strict {
        confine::strict_mode_begins();
    }
    done
}

const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;

/// Whether the hook of `ioctl` looks at such a request.
pub fn is_of_userfaultfd(request: c_ulong) -> bool {
    [UFFDIO_API, UFFDIO_REGISTER].contains(&(request as u32))
}

/// If userfaultfd watched a run, its next owner would wait for a handler that does not know the
/// run. Also, the handler must get an event for each page that the program has not touched, but the
/// run may have that page. (Tenure in the program wants no such event: to it a page that is missing
/// was purged.)
///
/// Another descriptor may give this number another meaning, and the argument may be no pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the program makes this call itself.
    unsafe { ioctl_of_program(fd, request, argument) }
}

/// Not under its exported name, like each function here that another hook calls: a program that
/// defines that name, and calls `syscall` in it, would come back to itself.
pub unsafe fn ioctl_of_program(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    const MODE_MISSING: u64 = 1;
    // The kernel takes 32 bits. A program that keeps the request in an `int` passes others beyond them.
    let kind = request as u32;
    if kind == UFFDIO_REGISTER {
        // A range's start and length, and the kinds of events.
        // SAFETY: whole words, and any bytes are valid for them. The read reports memory that
        // cannot be read, and the program does not unmap it during its own call.
        let about = unsafe { program_memory::read(argument.cast::<[u64; 3]>()) };
        if let Some([start, len, mode]) = about {
            let (start, len) = (start as usize, len as usize);
            // SAFETY: as above; the kernel reads the words above only.
            let by = unsafe { program_memory::read(argument.cast::<u64>().wrapping_add(3)) };
            if mode & MODE_MISSING != 0 && by != Some(REGISTERED_BY_TENURE) {
                // SAFETY: the program registers its own memory. (What another thread of it writes at
                // this moment may be lost: docs/limits.md.)
                unsafe { mapped::drop_zeros(start, len) };
            }
            let_go(start as *const c_void, len, Call::Changes);
        }
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let done = unsafe { kernel!(libc::SYS_ioctl, fd, request as c_long, argument) as c_int };
    if done == 0 && kind == UFFDIO_API {
        // The program may want an event for each page of its later mappings.
        MAPPINGS.serve_no_more();
    }
    done
}

/// With SHM_REMAP the call replaces the mappings there. Otherwise an address that it names must be free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: the program makes this call itself.
    unsafe { shmat_of_program(id, at, flags) }
}

pub unsafe fn shmat_of_program(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    // A filter may allow no other call, and the pool has ended before it.
    let is_asked = !at.is_null() && !ending::has_ended_before_filter();
    let size = if is_asked { segment_bytes(id) } else { 0 };
    let in_pool = size > 0 && touches_pool(at as usize, size);
    let replaces = flags & libc::SHM_REMAP != 0;
    if in_pool {
        let call = if replaces { Call::Replaces } else { Call::Uses };
        let_go_of_pool(at as usize, size, call);
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let attached = unsafe { kernel!(libc::SYS_shmat, id, at, flags) as *mut c_void };
    if in_pool && replaces && attached == libc::MAP_FAILED {
        mapped::was_refused(at as usize, size);
    }
    attached
}

/// The size of a segment. 0: the kernel does not tell, and refuses to attach it, too.
fn segment_bytes(id: c_int) -> usize {
    let _errno = Errno::keep();
    let mut about = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: the kernel fills in the structure, or the call fails. The structure began as zeros, which
    // are valid.
    unsafe {
        libc::shmctl(id, libc::IPC_STAT, about.as_mut_ptr());
        about.assume_init().shm_segsz
    }
}

/// Locked pages cannot be offered, and all accessible memory becomes resident. So the pool ends.
///
/// It ends before the call, if the kernel will allow the call. Afterwards all of the pool would be
/// resident. Also, Linux counts a mapping of 16 TiB as 0 when it locks it and as 16 TiB when it
/// unmaps it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the program makes this call itself.
    unsafe { mlockall_of_program(flags) }
}

pub unsafe fn mlockall_of_program(flags: c_int) -> c_int {
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let call = || unsafe { kernel!(libc::SYS_mlockall, flags) as c_int };
    if ending::has_ended_before_filter() {
        return call();
    }
    ending::around(is_allowed(flags), call)
}

/// Whether the kernel will allow the call once the pool has ended. A finite RLIMIT_MEMLOCK counts
/// all mappings, also the memory that the pool has reserved and keeps free, and the memory that
/// waits to be torn down.
fn is_allowed(flags: c_int) -> bool {
    const ALL: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    if flags & !ALL != 0 || flags & !libc::MCL_ONFAULT == 0 {
        return false;
    }
    let _errno = Errno::keep();
    let memlock = limits::of(libc::RLIMIT_MEMLOCK).map(|limit| limit.rlim_cur);
    // If a filter refuses to read the limit it will refuse the lock, too. Otherwise the kernel
    // returns the limit.
    let memlock = memlock.filter(|limit| *limit != libc::RLIM64_INFINITY);
    let (Some(limit), Some(mapped)) = (memlock, mapped_bytes()) else { return memlock.is_none() };
    let ours = pool::unused_address_bytes() + retire::pending().bytes;
    let fits = flags & libc::MCL_CURRENT == 0 || mapped.saturating_sub(ours) <= limit;
    limit > 0 && fits || may_exceed(limit)
}

/// Whether this thread may lock more than its limit. Only the kernel can tell: it checks the right
/// in the first user namespace.
fn may_exceed(limit: u64) -> bool {
    // The kernel counts a longer mapping wrong, and no process has so much memory.
    const FAR: u64 = 1 << 42;
    let page = tenure::launcher::page_size() as u64;
    let len = (limit.min(FAR) / page + 1) * page;
    let (none, kind) =
        (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping at a free address, and locked on fault: it never has a page.
    unsafe {
        let at = kernel!(libc::SYS_mmap, 0, len, none, kind, -1, 0);
        if at == -1 {
            return false;
        }
        let may = kernel!(libc::SYS_mlock2, at, len, libc::MLOCK_ONFAULT) == 0;
        kernel!(libc::SYS_munmap, at, len);
        may
    }
}

/// The bytes of all mappings: the first number of statm.
fn mapped_bytes() -> Option<u64> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/statm", flags, Mode::empty()).ok()?;
    let mut bytes = [0; 64];
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    let pages: u64 = text.split(' ').next()?.parse().ok()?;
    Some(pages * tenure::launcher::page_size() as u64)
}
