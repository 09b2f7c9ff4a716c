//! Calls that leave a lasting state on a mapping. A run of the pool's that one of them touches is
//! mapped anew before anybody else gets it. The calls themselves are made as they are.

use super::map::{raw_madvise, touches_pool};
use super::{program_memory, Errno};
use crate::seen;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use tenure::pool::{self, mapped};

#[inline]
fn lasting(at: *const c_void, len: usize) {
    if touches_pool(at as usize, len) {
        taint(at, len);
    }
}

#[cold]
#[inline(never)]
fn taint(at: *const c_void, len: usize) {
    let _errno = Errno::keep();
    if mapped::taint(at as usize, len) {
        seen::TAINTED.one();
    }
}

/// Whether an advice changes the mapping rather than its pages. What is not known is taken to.
fn lasts(advice: c_int) -> bool {
    const POPULATE_READ: c_int = 22;
    const POPULATE_WRITE: c_int = 23;
    const DONTNEED_LOCKED: c_int = 24;
    const COLLAPSE: c_int = 25;
    !matches!(
        advice,
        libc::MADV_WILLNEED
            | libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | POPULATE_READ
            | POPULATE_WRITE
            | DONTNEED_LOCKED
            | COLLAPSE
    )
}

#[no_mangle]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    seen::MADVISES.one();
    if touches_pool(at as usize, len) && lasts(advice) {
        // Every large array of numpy's asks for huge pages: that takes none out of the pool.
        let huge = advice == libc::MADV_HUGEPAGE && mapped::may_have_huge_pages(at as usize, len);
        if !huge {
            taint(at, len);
        }
    }
    // SAFETY: the program's call.
    unsafe { raw_madvise(at, len, advice) as c_int }
}

/// Answers an error number and leaves `errno` alone. POSIX_MADV_DONTNEED does nothing, as in the C
/// library: the kernel's would lose the contents.
#[no_mangle]
pub unsafe extern "C" fn posix_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    if lasts(advice) {
        lasting(at, len);
    }
    let _errno = Errno::keep();
    // SAFETY: the program's call.
    match unsafe { raw_madvise(at, len, advice) } {
        0 => 0,
        // SAFETY: this thread's errno.
        _ => unsafe { *libc::__errno_location() },
    }
}

#[no_mangle]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    vector: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    if lasts(advice) {
        // Perhaps of another process, whose addresses then take a run out of the pool for nothing. Before the
        // call, for one that fails may have changed some of them.
        for at in 0..count.min(libc::UIO_MAXIOV as usize) {
            let part = vector.wrapping_add(at);
            // SAFETY: the program passes so many, or the kernel refuses the vector.
            let Some(part) = (unsafe { program_memory::read(part) }) else { break };
            lasting(part.iov_base, part.iov_len);
        }
    }
    // SAFETY: the program's call.
    unsafe {
        libc::syscall(libc::SYS_process_madvise, pidfd, vector, count, advice, flags) as isize
    }
}

/// Calls `(address, length, …)` that leave a state.
macro_rules! lasting {
    ($($name:ident = $number:ident ($($more:ident: $kind:ty),*);)*) => {
        $(
            #[no_mangle]
            pub unsafe extern "C" fn $name(at: *mut c_void, len: usize $(, $more: $kind)*) -> c_int {
                lasting(at, len);
                // SAFETY: the program's call.
                unsafe { libc::syscall(libc::$number, at, len $(, $more)*) as c_int }
            }
        )*
    };
}

lasting! {
    mprotect = SYS_mprotect(protection: c_int);
    mlock = SYS_mlock();
    mlock2 = SYS_mlock2(flags: c_uint);
    munlock = SYS_munlock();
    mbind = SYS_mbind(
        mode: c_int, nodes: *const c_ulong, most: c_ulong, flags: c_uint
    );
    mseal = SYS_mseal(flags: c_ulong);
    remap_file_pages = SYS_remap_file_pages(protection: c_int, offset: usize, flags: c_int);
}

#[no_mangle]
pub unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    lasting(at, len);
    // The kernel may lack keys; without one the C library makes the plain call.
    // SAFETY: the program's call.
    unsafe {
        if key == -1 {
            libc::syscall(libc::SYS_mprotect, at, len, protection) as c_int
        } else {
            libc::syscall(libc::SYS_pkey_mprotect, at, len, protection, key) as c_int
        }
    }
}

/// Names of mappings last. C declares variable arguments.
#[no_mangle]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    super::confine::prctl_comes(option);
    if option == libc::PR_SET_VMA {
        lasting(b as *const c_void, c as usize);
    }
    // SAFETY: the program's call.
    unsafe { libc::syscall(libc::SYS_prctl, option, a, b, c, d) as c_int }
}

/// Watched by userfaultfd, a run would wait for a handler that knows nothing of its next owner; and the
/// handler is to be asked for each page that the program has not touched, though the run's are there.
///
/// The same number may mean something else to another descriptor, and the argument be no pointer.
#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    const UFFDIO_API: c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
    const MODE_MISSING: u64 = 1;
    let mut registered = None;
    if request == UFFDIO_REGISTER {
        // A range's start and length, and what is to be told.
        // SAFETY: whole words; the program's structure, if it is one.
        let about = unsafe { program_memory::read(argument.cast::<[u64; 3]>()) };
        if let Some([start, len, mode]) = about {
            let (start, len) = (start as usize, len as usize);
            if touches_pool(start, len) {
                registered = Some((start, len));
                if mode & MODE_MISSING != 0 {
                    mapped::drop_zeros(start, len);
                }
            }
        }
    }
    // SAFETY: the program's call.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, fd, request as c_long, argument) as c_int };
    if done == 0 {
        if let Some((start, len)) = registered {
            taint(start as *const c_void, len);
        }
        if request == UFFDIO_API {
            // What it maps from here on it may want to be asked for, page by page.
            super::map::serve_no_more();
        }
    }
    done
}

/// With SHM_REMAP it replaces what is mapped there.
#[no_mangle]
pub unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    if flags & libc::SHM_REMAP != 0 && touches_pool(at as usize, 1) {
        let mut about = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
        // SAFETY: the kernel fills in the structure, or fails, as the call itself then will.
        let size = unsafe {
            libc::shmctl(id, libc::IPC_STAT, about.as_mut_ptr());
            about.assume_init().shm_segsz
        };
        mapped::place(at as usize, size);
        taint(at, size);
    }
    // SAFETY: the program's call.
    unsafe { libc::syscall(libc::SYS_shmat, id, at, flags) as *mut c_void }
}

/// What is locked cannot be offered: from here on requests go to the next allocator.
#[no_mangle]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the program's call.
    let call = || unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int };
    let mut done = call();
    if done != 0 && without_the_pool_it_is_allowed() {
        done = call();
    }
    if done == 0 {
        super::malloc::serve_no_more();
        super::map::serve_no_more();
    }
    done
}

/// After a refusal: under a finite RLIMIT_MEMLOCK all that is mapped counts, the pool's reservation too. If
/// the rest is below the limit, gives the reservation up.
#[cold]
fn without_the_pool_it_is_allowed() -> bool {
    let _errno = Errno::keep();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let (Some(limit), Some(mapped)) = (limit, mapped_bytes()) else { return false };
    mapped.saturating_sub(pool::spare_address_bytes()) <= limit && pool::give_up_addresses()
}

/// All that is mapped, by the first number of statm.
fn mapped_bytes() -> Option<u64> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/statm", flags, Mode::empty()).ok()?;
    let mut bytes = [0; 64];
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    let pages: u64 = text.split(' ').next()?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
