//! The C library's functions, found by their names in a library that is loaded at run time.

use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Any pointer.
pub type P = *mut c_void;
/// Any callback.
pub type F = *const c_void;

macro_rules! calls {
    ($($name:ident($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions, under their names without `tenure_`.
        pub struct Calls {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Calls {
            /// Loads the library, which stays.
            pub fn load(path: &Path) -> Result<Calls, String> {
                let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
                // SAFETY: a terminated name, of the library under test, whose constructors do
                // nothing.
                let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return Err(format!("{} cannot be loaded", path.display()));
                }
                Ok(Calls {
                    $($name: {
                        let name = concat!("tenure_", stringify!($name), "\0");
                        // SAFETY: a terminated name, and a library that is loaded.
                        let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                        if found.is_null() {
                            return Err(format!("{} lacks {name}", path.display()));
                        }
                        // SAFETY: the library's header declares the function so. Structures are
                        // passed as pointers, and a callback is as large as one.
                        unsafe { std::mem::transmute::<P, unsafe extern "C" fn($($arg),*) -> $ret>(found) }
                    },)*
                })
            }
        }
    };
}

calls! {
    mvolatile(P, usize) -> c_int;
    mvolatile_priority(P, usize, c_uint) -> c_int;
    mnovolatile(P, usize) -> c_int;
    mnovolatile_map(P, usize, F, P) -> c_int;
    offer_now(P, usize) -> c_int;
    purge_now(P, usize) -> c_int;
    forget(P, usize) -> c_int;
    is_volatile(P, usize) -> c_int;
    detection() -> c_int;
    volatile_new(usize) -> P;
    volatile_new_with(usize, P) -> P;
    volatile_free(P) -> ();
    volatile_pin(P, *mut P) -> c_int;
    volatile_unpin(P) -> c_int;
    volatile_lost(P, F, P) -> c_int;
    volatile_restored(P) -> c_int;
    volatile_set_priority(P, c_uint) -> c_int;
    volatile_len(P) -> usize;
    volatile_address(P) -> P;
    volatile_offer_now(P) -> c_int;
    volatile_purge_now(P, *mut usize) -> c_int;
    cache_new(P) -> P;
    cache_free(P) -> ();
    cache_insert(P, P, usize, P, usize) -> c_int;
    cache_insert_ttl(P, P, usize, P, usize, u64) -> c_int;
    cache_get(P, P, usize, *mut P, *mut usize) -> P;
    cache_get_or_insert(P, P, usize, F, P, *mut P, *mut usize) -> P;
    made_resize(P, usize) -> P;
    value_is_cached(P) -> c_int;
    value_clone(P) -> P;
    value_bytes(P, *mut usize) -> P;
    value_release(P) -> ();
    cache_remove(P, P, usize) -> c_int;
    cache_clear(P) -> c_int;
    cache_stats(P, P, usize) -> c_int;
    cache_each(P, F, P) -> c_int;
    cache_each_key(P, F, P) -> c_int;
    cache_retain(P, F, P) -> c_int;
    shared_new(usize, P) -> P;
    shared_open(c_int) -> P;
    shared_open_read_only(c_int) -> P;
    shared_free(P) -> ();
    shared_fd(P) -> c_int;
    shared_len(P) -> usize;
    shared_chunks(P) -> usize;
    shared_chunk_size(P) -> usize;
    shared_addr(P, usize) -> P;
    shared_is_watched(P) -> c_int;
    shared_pin(P, usize, usize, *mut u8) -> c_int;
    shared_unpin(P, usize, usize) -> c_int;
    shared_read(P, usize) -> c_int;
    shared_finish(P, usize) -> c_int;
    shared_abandon(P, usize) -> c_int;
    shared_wait(P, usize, c_int) -> c_int;
    shared_remake(P, usize) -> c_int;
    shared_set_priority(P, usize, c_uint) -> c_int;
    shared_priority(P, usize) -> c_int;
    shared_purge_now(P, usize, usize) -> isize;
    shared_stats(P, P, usize) -> c_int;
    ashmem_create_region(*const c_char, usize) -> c_int;
    ashmem_valid(c_int) -> c_int;
    ashmem_get_size_region(c_int) -> c_int;
    ashmem_set_prot_region(c_int, c_int) -> c_int;
    ashmem_pin_region(c_int, usize, usize) -> c_int;
    ashmem_unpin_region(c_int, usize, usize) -> c_int;
    ashmem_purge_now(c_int) -> isize;
    mlock2(P, usize, c_uint) -> c_int;
    munlock2(P, usize, c_uint) -> c_int;
    mlockall(c_int) -> c_int;
    munlockall2(c_int) -> c_int;
    mmap(P, usize, c_int, c_int, c_int, i64) -> P;
    populate(P, usize, c_int, P, P) -> c_int;
    populate_start(P, usize, c_int, P) -> P;
    populate_progress(P, P, usize) -> c_int;
    populate_cancel(P) -> c_int;
    populate_wait(P, c_int) -> c_int;
    populate_end(P, P) -> c_int;
    discard(P, usize) -> c_int;
    lock(P, usize, c_uint) -> P;
    unlock(P) -> ();
    lock_receipt(P, usize, P, usize, usize) -> c_int;
    lock_explain(u64, P, usize) -> c_int;
    lock_gradually(P, usize) -> P;
    gradual_progress(P, P, usize) -> c_int;
    gradual_wait(P, c_int, P) -> c_int;
    gradual_end(P) -> ();
    lock_within(P, usize, usize) -> P;
    within_status(P, P, usize) -> c_int;
    within_end(P) -> ();
    alloc(usize) -> P;
    calloc(usize, usize) -> P;
    aligned_alloc(usize, usize) -> P;
    realloc(P, usize) -> P;
    free(P) -> ();
    usable_size(P) -> usize;
    pool_owns(P) -> c_int;
    pool_trim() -> c_int;
    pool_prepare() -> c_int;
    pool_configure(P) -> c_int;
    pool_stats(P, usize) -> c_int;
    munmap(P, usize) -> c_int;
    munmap_raw(P, usize) -> c_int;
    munmap_prepare() -> c_int;
    munmap_drain(c_int) -> c_int;
    retire_settings(P, usize) -> c_int;
    retire_configure(P) -> c_int;
    stats(P, usize) -> c_int;
    survey(P, usize) -> c_int;
    settings(P, usize) -> c_int;
    configure(P) -> c_int;
    end_background_threads() -> c_int;
    last_error() -> *const c_char;
    version() -> *const c_char;
}
