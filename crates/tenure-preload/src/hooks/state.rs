//! Calls that name mappings, and change their state or look at them. The calls themselves are made as they are, after
//! the pool has let go of what [`super::rules`] says.

use super::rules::{let_go, let_go_of_pool, of_advice, touches_pool};
use super::{confine, ending, program_memory};
use crate::counters;
use crate::errno::Errno;
use crate::kernel::kernel;
use crate::limits;
use crate::real::known;
use crate::serving::MAPPINGS;
use crate::symbol::OfTheLibrary;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use tenure::pool::{self, mapped, mapped::Call};
use tenure::retire;

/// A raw call of `advice`.
unsafe fn raw_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_long {
    // SAFETY: the caller promises that the program gave this advice itself, or one that loses no
    // contents.
    unsafe { kernel!(libc::SYS_madvise, at, len, advice) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    counters::MADVISES.one();
    if touches_pool(at as usize, len) {
        // Every large array of numpy's asks for huge pages: that takes none out of the pool.
        let huge = advice == libc::MADV_HUGEPAGE && mapped::may_have_huge_pages(at as usize, len);
        if !huge {
            let_go_of_pool(at as usize, len, of_advice(advice));
        }
    }
    // SAFETY: the program gives this advice itself.
    unsafe { raw_madvise(at, len, advice) as c_int }
}

/// Answers an error number and leaves `errno` alone. POSIX_MADV_DONTNEED does nothing, as in the C
/// library: the kernel's would lose the contents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let_go(at, len, of_advice(advice));
    let _errno = Errno::keep();
    // SAFETY: the program gives this advice itself; the one that would lose contents was left out.
    match unsafe { raw_madvise(at, len, advice) } {
        0 => 0,
        // SAFETY: the C library gives the address of the calling thread's own errno.
        _ => unsafe { *libc::__errno_location() },
    }
}

/// Of what a vector names, perhaps of another process, whose addresses then take a run out of the pool for
/// nothing. Before the call, for one that fails may have changed some of them.
pub fn let_go_of_each(vector: *const libc::iovec, count: usize, advice: c_int) {
    for at in 0..count.min(libc::UIO_MAXIOV as usize) {
        let part = vector.wrapping_add(at);
        // SAFETY: two whole words, which hold any bytes; what cannot be read is found out.
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

/// Calls `(address, length, …)`, and what they do there.
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

/// The C library's own definition makes the call: where the kernel lacks it, that one answers for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(at: *mut c_void, len: usize, flags: c_uint) -> c_int {
    let_go(at, len, Call::Changes);
    match known!(mlock2) {
        // SAFETY: the C library's function of that name, which gets the program's own arguments
        // unchanged.
        Some(next) => unsafe { next(at, len, flags) },
        // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
        // unchanged.
        None => unsafe { kernel!(libc::SYS_mlock2, at, len, flags) as c_int },
    }
}

/// A cancellation point: the C library's own, through which a thread's end may unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn msync(at: *mut c_void, len: usize, flags: c_int) -> c_int {
    let_go(at, len, Call::Uses);
    static NEXT: OfTheLibrary = OfTheLibrary::new(c"msync");
    type Function = unsafe extern "C-unwind" fn(*mut c_void, usize, c_int) -> c_int;
    match NEXT.get() {
        // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
        // unchanged.
        next if next.is_null() => unsafe { kernel!(libc::SYS_msync, at, len, flags) as c_int },
        // SAFETY: the C library's function of that name, which gets the program's own arguments
        // unchanged.
        next => unsafe { std::mem::transmute::<*mut c_void, Function>(next)(at, len, flags) },
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
    // The kernel may lack keys; without one the C library makes the plain call.
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

/// Names of mappings last. C declares variable arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    confine::prctl_comes(option, a, b);
    if option == libc::PR_SET_VMA {
        let_go(b as *const c_void, c as usize, Call::Changes);
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    unsafe { kernel!(libc::SYS_prctl, option, a, b, c, d) as c_int }
}

/// Watched by userfaultfd, a run would wait for a handler that knows nothing of its next owner; and the
/// handler is to be asked for each page that the program has not touched, though the run's are there.
///
/// The same number may mean something else to another descriptor, and the argument be no pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    const UFFDIO_API: c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
    const MODE_MISSING: u64 = 1;
    if request == UFFDIO_REGISTER {
        // A range's start and length, and what is to be told.
        // SAFETY: whole words; the program's structure, if it is one.
        let about = unsafe { program_memory::read(argument.cast::<[u64; 3]>()) };
        if let Some([start, len, mode]) = about {
            let (start, len) = (start as usize, len as usize);
            if mode & MODE_MISSING != 0 {
                mapped::drop_zeros(start, len);
            }
            let_go(start as *const c_void, len, Call::Changes);
        }
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let done = unsafe { kernel!(libc::SYS_ioctl, fd, request as c_long, argument) as c_int };
    if done == 0 && request == UFFDIO_API {
        // What it maps from here on it may want to be asked for, page by page.
        MAPPINGS.serve_no_more();
    }
    done
}

/// With SHM_REMAP it replaces what is mapped there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    if flags & libc::SHM_REMAP != 0 && touches_pool(at as usize, 1) {
        let mut about = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
        // SAFETY: the kernel fills in the structure, or fails, as the call itself then will.
        let size = unsafe {
            libc::shmctl(id, libc::IPC_STAT, about.as_mut_ptr());
            about.assume_init().shm_segsz
        };
        let_go_of_pool(at as usize, size, Call::Replaces);
        // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
        // unchanged.
        let attached = unsafe { kernel!(libc::SYS_shmat, id, at, flags) as *mut c_void };
        if attached == libc::MAP_FAILED {
            mapped::was_refused(at as usize, size);
        }
        return attached;
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    unsafe { kernel!(libc::SYS_shmat, id, at, flags) as *mut c_void }
}

/// What is locked cannot be offered, and what may be accessed becomes resident: the pool ends.
///
/// Before the call, if it will be allowed: afterwards all of it would be resident, and Linux counts a mapping of 16
/// TiB as none when it locks it and as 16 TiB when it unmaps it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let call = || unsafe { kernel!(libc::SYS_mlockall, flags) as c_int };
    ending::around(is_allowed(flags), call)
}

/// Whether the kernel will allow it once the pool has ended. Under a finite RLIMIT_MEMLOCK all that is mapped
/// counts, also what the pool has reserved and keeps free, and what waits to be torn down.
fn is_allowed(flags: c_int) -> bool {
    const ALL: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    if flags & !ALL != 0 || flags & !libc::MCL_ONFAULT == 0 {
        return false;
    }
    let _errno = Errno::keep();
    let memlock = limits::of(libc::RLIMIT_MEMLOCK).map(|limit| limit.rlim_cur);
    // Where a filter refuses the question it will refuse the lock, too, and else the kernel says what it allows.
    let memlock = memlock.filter(|limit| *limit != libc::RLIM64_INFINITY);
    let (Some(limit), Some(mapped)) = (memlock, mapped_bytes()) else { return memlock.is_none() };
    let ours = pool::unused_address_bytes() + retire::pending().bytes;
    let fits = flags & libc::MCL_CURRENT == 0 || mapped.saturating_sub(ours) <= limit;
    limit > 0 && fits || may_exceed(limit)
}

/// Whether this thread may lock more than its limit. The kernel says: it looks for the right in the first user
/// namespace.
fn may_exceed(limit: u64) -> bool {
    // A longer mapping is counted wrong; and no process has so much memory.
    const FAR: u64 = 1 << 42;
    let page = rustix::param::page_size() as u64;
    let len = (limit.min(FAR) / page + 1) * page;
    let (none, kind) =
        (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping where nothing is, and locked on fault: it never has a page.
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
