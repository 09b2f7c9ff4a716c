//! A cache of byte values under byte keys.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::cache_listener::{tenure_removed_fn, Listener};
use crate::key::{Bytes, Key};
use crate::ranges::{priority, TENURE_PRIORITY_DEFAULT};
use crate::report::{pointer, status, Failure, Outcome};
use crate::sized::{self, Versioned};
use crate::volatile::tenure_free_fn;
use libc::{c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::time::Duration;
use tenure_core::cache::Value;
use tenure_core::Cache;

/// A cache without a size: it grows while there is room, and shrinks when other programs need the
/// memory. A get returns the inserted bytes, or nothing; it never returns wrong or partial bytes.
pub struct tenure_cache {
    cache: Arc<Cache<Key>>,
}

/// A value that a get has found. Its bytes stay as they are until it is released, whatever happens to
/// its key and its cache meanwhile. Any thread may read it and release it.
pub struct tenure_value {
    // The value is declared first, so it is dropped first: its drop needs the cache.
    value: Value<'static>,
    _cache: Arc<Cache<Key>>,
}

/// The place where a make callback puts the value that it makes.
pub struct tenure_made {
    bytes: Vec<u8>,
}

/// Makes the value that tenure_cache_get_or_insert did not find: it asks tenure_made_resize for
/// room and fills that. (If it does not ask, the value is empty.) Returns 0, or another number if
/// there is no value.
pub type tenure_make_fn =
    Option<unsafe extern "C" fn(arg: *mut c_void, into: *mut tenure_made) -> c_int>;

/// The options of tenure_cache_new. Start from TENURE_CACHE_OPTS_INIT.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_cache_opts {
    /// sizeof(struct tenure_cache_opts).
    pub size: usize,
    /// When the kernel takes the cache's memory, compared with other volatile memory of the
    /// process: from 0 (first) to 7 (last).
    pub priority: c_uint,
    /// Must be 0.
    pub reserved: c_uint,
    /// The most bytes of memory that the cache may take. 0: as much as the machine and the memory
    /// cgroup allow. The cache takes a few segments of 2 MiB in any case.
    pub ceiling: u64,
    /// How long the cache returns a value after its insert, in milliseconds. 0: without end.
    pub ttl_ms: u64,
    /// tenure calls it for each value that leaves the cache, once. NULL: no call.
    ///
    /// The call comes a little later than the value leaves, on a thread that calls the cache just
    /// then (never on tenure's own threads), and under no lock. It may use the cache, and then
    /// tenure may call it inside itself. tenure notices a value that the kernel took, or that has
    /// ended, only by a look: a get or an iteration, a search for room, or a replacement or removal
    /// of the value under its key. The end of the cache causes no call.
    pub removed: tenure_removed_fn,
    /// Passed to removed.
    pub arg: *mut c_void,
    /// Called once with arg when removed will not be called again: when the cache is freed and its last value is
    /// released, by the thread that does so. It is not called if the cache could not be made, or where removed is
    /// NULL. May be NULL.
    pub free_arg: tenure_free_fn,
    /// The cost of a miss, in nanoseconds. 0: tenure measures it, in tenure_cache_get_or_insert. Of
    /// several caches of the process the kernel first takes those whose bytes save the least time.
    pub miss_cost_ns: u64,
}

// SAFETY: `repr(C)`, starts with its size. The other fields are integers, a pointer, and functions
// that the C caller gave, or NULL.
unsafe impl Versioned for tenure_cache_opts {
    const FIRST: usize = offset_of!(tenure_cache_opts, removed);
}

impl Default for tenure_cache_opts {
    fn default() -> Self {
        tenure_cache_opts {
            size: size_of::<tenure_cache_opts>(),
            priority: TENURE_PRIORITY_DEFAULT,
            reserved: 0,
            ceiling: 0,
            ttl_ms: 0,
            removed: None,
            arg: std::ptr::null_mut(),
            free_arg: None,
            miss_cost_ns: 0,
        }
    }
}

/// Counters of a cache since it was made, and its present contents. tenure_cache_stats writes them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_cache_stats {
    /// Gets that found their value.
    pub hits: u64,
    /// Gets that did not find their value, for any reason.
    pub misses: u64,
    /// Values inserted.
    pub insertions: u64,
    /// Values removed or overwritten.
    pub removals: u64,
    /// Values that the cache dropped to make room, or whose segment was found wholly purged.
    pub evictions: u64,
    /// Values that a get found purged.
    pub purged_values: u64,
    /// Bytes of segments that the kernel took, as far as the cache has noticed.
    pub purged_bytes: u64,
    /// Values that were moved because they were used, when their segment was emptied.
    pub moved_values: u64,
    /// Keys that are in the index now. Some may lead to values that are gone.
    pub values: u64,
    /// Bytes of the segments now, filled or not, without the segments that the cache knows to be
    /// purged.
    pub footprint_bytes: u64,
    /// The footprint that purges and free memory now allow without asking again.
    pub target_bytes: u64,
    /// Bytes that the cache takes now beside its segments, and of the headers inside them. A key that
    /// is kept takes its own bytes as well.
    pub bookkeeping_bytes: u64,
}

/// # Safety
/// NULL, or from `tenure_cache_new` and not freed.
pub(crate) unsafe fn cache<'a>(c: *const tenure_cache) -> Outcome<&'a Arc<Cache<Key>>> {
    // SAFETY: `c` is NULL, or a live cache from `tenure_cache_new`, as this function requires.
    let c = unsafe { c.as_ref() };
    c.map(|c| &c.cache).ok_or_else(|| Failure::invalid("the cache is NULL; make one first"))
}

/// # Safety
/// `bytes` is NULL or points to `len` bytes that do not change during `'a`.
unsafe fn slice<'a>(what: &str, bytes: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() || len > isize::MAX as usize {
        return Err(Failure::invalid(format_args!(
            "the {what} is {len} bytes at {bytes:p}, where no {len} bytes can lie"
        )));
    }
    // SAFETY: `bytes` is not NULL here, so it points to `len` bytes that do not change during `'a`,
    // as this function requires. `len` is at most `isize::MAX`.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

/// Hands a value to C and says where its bytes are.
///
/// # Safety
/// `value` is of `cache`. `bytes` and `len` are NULL or writable.
unsafe fn hand_out(
    cache: &Arc<Cache<Key>>,
    value: Value<'_>,
    bytes: *mut *const c_void,
    len: *mut usize,
) -> *mut tenure_value {
    if !bytes.is_null() {
        // SAFETY: `bytes` is not NULL here, so it is writable, as this function requires.
        unsafe { bytes.write(value.as_ptr().cast()) };
    }
    if !len.is_null() {
        // SAFETY: `len` is not NULL here, so it is writable, as this function requires.
        unsafe { len.write(value.len()) };
    }
    // SAFETY: only the lifetime changes. The value refers to the cache behind the Arc. This
    // structure holds that Arc, and drops it after the value.
    let value = unsafe { std::mem::transmute::<Value<'_>, Value<'static>>(value) };
    Arc::into_raw(Arc::new(tenure_value { value, _cache: cache.clone() })).cast_mut()
}

/// Makes a cache. It takes no memory before the first insert. `opts` may be NULL. Free it with
/// tenure_cache_free.
///
/// Errors (NULL): EINVAL: a wrong size or priority. E2BIG: something is set that this version does not
/// know. EOPNOTSUPP: the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_cache_new(opts: *const tenure_cache_opts) -> *mut tenure_cache {
    pointer("tenure_cache_new", || {
        // SAFETY: the C caller passes NULL, or a structure that is as long as its size field says.
        let opts = unsafe { sized::read(opts, tenure_cache_opts::default())? };
        if opts.reserved != 0 {
            return Err(Failure::new(libc::E2BIG, "the reserved field is set; zero it"));
        }
        let mut builder = Cache::<Key>::builder().priority(priority(opts.priority)?);
        if opts.ceiling != 0 {
            builder = builder.ceiling(opts.ceiling);
        }
        if opts.ttl_ms != 0 {
            builder = builder.time_to_live(Duration::from_millis(opts.ttl_ms));
        }
        if opts.miss_cost_ns != 0 {
            builder = builder.miss_cost(Duration::from_nanos(opts.miss_cost_ns));
        }
        let listener = Listener::new(opts.removed, opts.arg, opts.free_arg);
        if let Some(listener) = listener.clone() {
            builder = builder.eviction_listener(move |key, cause| listener.tell(key, cause));
        }
        let cache = Arc::new(builder.build()?);
        if let Some(listener) = listener {
            listener.own();
        }
        Ok(Box::into_raw(Box::new(tenure_cache { cache })))
    })
}

/// Frees a cache. NULL does nothing. No other thread may be in a call on the cache. Values that a
/// get has returned stay valid until the program releases them, and the memory goes with the last
/// of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_free(c: *mut tenure_cache) {
    status("tenure_cache_free", || {
        if !c.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `tenure_cache_new`, and the C caller
            // frees a cache only once, when no other call uses it.
            drop(unsafe { Box::from_raw(c) });
        }
        Ok(0)
    });
}

/// Puts a copy of the value under a copy of the key, in the place of the value before. Both may be of
/// length 0, and then NULL.
///
/// Errors: EINVAL: NULL with a length; a value longer than 4 GiB. ENOMEM: the kernel or the ceiling
/// has no room for it, even after evictions. The key has no value then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_insert(
    c: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> c_int {
    status("tenure_cache_insert", || {
        // SAFETY: the C caller promises a live cache, and a key and a value with as many readable
        // bytes as their lengths say.
        unsafe { insert(c, (key, key_len), (value, value_len), 0) }
    })
}

/// As tenure_cache_insert, for a value with a time to live of its own: `ttl_ms` milliseconds,
/// shorter or longer than the cache's. 0: the cache's.
///
/// Errors: as tenure_cache_insert.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_insert_ttl(
    c: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl_ms: u64,
) -> c_int {
    status("tenure_cache_insert_ttl", || {
        // SAFETY: the C caller promises a live cache, and a key and a value with as many readable
        // bytes as their lengths say.
        unsafe { insert(c, (key, key_len), (value, value_len), ttl_ms) }
    })
}

/// # Safety
/// A live cache, and for the key and the value as many readable bytes as the lengths say, which do not change
/// during the call.
unsafe fn insert(
    c: *mut tenure_cache,
    key: (*const c_void, usize),
    value: (*const c_void, usize),
    ttl_ms: u64,
) -> Outcome<c_int> {
    // SAFETY: the caller promises a live cache.
    let cache = unsafe { cache(c)? };
    // SAFETY: the caller promises that the bytes of the key and the value are readable and do not
    // change.
    let (key, value) = unsafe { (slice("key", key.0, key.1)?, slice("value", value.0, value.1)?) };
    let key = Bytes::new(key).to_owned();
    match ttl_ms {
        0 => cache.insert(key, value)?,
        _ => cache.insert_with_time_to_live(key, value, Duration::from_millis(ttl_ms))?,
    }
    Ok(0)
}

/// Returns the value under a key, pinned. Its bytes are at `*bytes`, and there are `*len` of them
/// (`bytes` and `len` may be NULL). Release it soon with tenure_value_release: while the program
/// holds it, the kernel cannot take the 2 MiB segment that it lies in. While the program holds very
/// many values, the bytes are a copy.
///
/// Returns NULL with errno ENOENT, and leaves tenure_last_error() as it was, if there is no value:
/// it was never there, it was evicted or purged, or its time is over.
///
/// Cost: a pin and an unpin, two atomic instructions for the index, and a small allocation. If the
/// segment was offered to the kernel, taking it back: 0.6 us (huge page) or 70 us.
///
/// Errors (NULL): EINVAL: NULL with a length.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_cache_get(
    c: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
    bytes: *mut *const c_void,
    len: *mut usize,
) -> *mut tenure_value {
    pointer("tenure_cache_get", || {
        // SAFETY: the C caller passes a live cache, and a key with as many readable bytes as
        // `key_len` says.
        let (cache, key) = unsafe { (cache(c)?, slice("key", key, key_len)?) };
        let value = cache.get(Bytes::new(key));
        let value = value.ok_or_else(|| Failure::unexplained(libc::ENOENT))?;
        // SAFETY: the value is of this cache, and the C caller passes NULL or writable places for
        // `bytes` and `len`.
        Ok(unsafe { hand_out(cache, value, bytes, len) })
    })
}

/// As tenure_cache_get, and makes a missing value: it calls `make` with `arg` on the calling
/// thread, once, even if many threads ask for the key meanwhile. They wait. If the cache has no
/// room for the value, the call returns the value all the same (see tenure_value_is_cached). If
/// `make` fails, a thread that waited calls its own.
///
/// Errors (NULL): EINVAL: NULL with a length, or `make` is NULL; the value made is longer than 4
/// GiB. EIO: `make` failed. EDEADLK: this thread makes the value already, or its maker waits for
/// this thread, for another value or for a buffer's refill.
///
/// An insert, a removal or a clear of the key that comes while `make` runs wins: the call returns
/// the value of `make`, and the cache does not keep it.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_cache_get_or_insert(
    c: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
    make: tenure_make_fn,
    arg: *mut c_void,
    bytes: *mut *const c_void,
    len: *mut usize,
) -> *mut tenure_value {
    pointer("tenure_cache_get_or_insert", || {
        // SAFETY: the C caller passes a live cache, and a key with as many readable bytes as
        // `key_len` says, which do not change during the call.
        let (cache, key) = unsafe { (cache(c)?, slice("key", key, key_len)?) };
        let make = make.ok_or_else(|| Failure::invalid("make is NULL; use tenure_cache_get"))?;
        let value = cache.get_or_try_insert_with(Bytes::new(key), || {
            let mut made = tenure_made { bytes: Vec::new() };
            // SAFETY: this is the C caller's own function. It gets its own argument, and a value
            // that lives until it returns.
            match unsafe { make(arg, &mut made) } {
                0 => Ok(made.bytes),
                answer => Err(Failure::new(
                    libc::EIO,
                    format_args!("the make callback returned {answer}"),
                )),
            }
        })?;
        // SAFETY: the value is of this cache, and the C caller passes NULL or writable places for
        // `bytes` and `len`.
        Ok(unsafe { hand_out(cache, value, bytes, len) })
    })
}

/// Returns room for the value that a make callback is making: `len` bytes, zeroed where they are
/// new. The callback may call it again, to grow or to shrink: the written bytes stay, but may lie
/// elsewhere. Call it only inside the callback.
///
/// Errors (NULL): EINVAL: NULL. ENOMEM: no memory; the bytes from before stay.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_made_resize(into: *mut tenure_made, len: usize) -> *mut c_void {
    pointer("tenure_made_resize", || {
        // SAFETY: `into` is NULL, or the structure that the `make` callback received. While the
        // callback runs, only that callback has a pointer to it.
        let made = unsafe { into.as_mut() }
            .ok_or_else(|| Failure::invalid("NULL; pass the maker that the make callback got"))?;
        let more = len.saturating_sub(made.bytes.len());
        if made.bytes.try_reserve_exact(more).is_err() {
            return Err(Failure::new(
                libc::ENOMEM,
                format_args!("no memory for {len} bytes; make a smaller value"),
            ));
        }
        made.bytes.resize(len, 0);
        Ok(made.bytes.as_mut_ptr().cast())
    })
}

/// Returns 1 if the value is in the cache. Returns 0 if tenure_cache_get_or_insert made it and
/// found no room, or the key was changed meanwhile, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_value_is_cached(value: *const tenure_value) -> c_int {
    status("tenure_value_is_cached", || {
        // SAFETY: the C caller passes NULL, or a value that is not released yet.
        Ok(unsafe { value.as_ref() }.map_or(0, |value| c_int::from(value.value.is_cached())))
    })
}

/// Returns a second handle to a value, for another owner: another thread, or a response that is
/// still being sent. It copies no byte. The bytes stay until the program releases both handles,
/// each once, on any thread. (Both may be the same pointer.)
///
/// Errors (NULL): EINVAL: NULL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_value_clone(value: *const tenure_value) -> *mut tenure_value {
    pointer("tenure_value_clone", || {
        if value.is_null() {
            return Err(Failure::invalid("the value is NULL; get one first"));
        }
        // SAFETY: the pointer came from `Arc::into_raw` in `hand_out`, and the C caller has not
        // released it, so the count is at least 1.
        unsafe { Arc::increment_strong_count(value) };
        Ok(value.cast_mut())
    })
}

/// Returns the address of a value's bytes, and writes their number to `*len` (which may be NULL).
///
/// Errors (NULL): EINVAL: NULL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_value_bytes(
    value: *const tenure_value,
    len: *mut usize,
) -> *const c_void {
    pointer("tenure_value_bytes", || {
        // SAFETY: the C caller passes NULL, or a value that is not released yet.
        let value = unsafe { value.as_ref() }
            .ok_or_else(|| Failure::invalid("the value is NULL; get one first"))?;
        if !len.is_null() {
            // SAFETY: `len` is not NULL here, so the C caller passes a writable place.
            unsafe { len.write(value.value.len()) };
        }
        Ok(value.value.as_ptr().cast_mut().cast::<c_void>())
    })
}

/// Releases a handle to a value, on any thread. NULL does nothing. The program must not touch its bytes
/// through this handle afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_value_release(value: *mut tenure_value) {
    status("tenure_value_release", || {
        if !value.is_null() {
            // SAFETY: the pointer came from `Arc::into_raw` in `hand_out`. The C caller releases it
            // once for the get and once for each `tenure_value_clone`, and does not use that handle
            // afterwards.
            drop(unsafe { Arc::from_raw(value.cast_const()) });
        }
        Ok(0)
    });
}

/// Removes a key and its value. Returns 1, or 0 if there was none. The space is free when the last
/// value of its segment is released.
///
/// Errors: EINVAL: NULL with a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_remove(
    c: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    status("tenure_cache_remove", || {
        // SAFETY: the C caller passes a live cache, and a key with as many readable bytes as
        // `key_len` says.
        let (cache, key) = unsafe { (cache(c)?, slice("key", key, key_len)?) };
        Ok(c_int::from(cache.remove(Bytes::new(key))))
    })
}

/// Removes everything.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_clear(c: *mut tenure_cache) -> c_int {
    status("tenure_cache_clear", || {
        // SAFETY: the C caller passes NULL or a live cache.
        unsafe { cache(c)? }.clear();
        Ok(0)
    })
}

/// Writes the statistics of the cache to `*out`, which has `size` bytes, as tenure_stats does.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_stats(
    c: *mut tenure_cache,
    out: *mut tenure_cache_stats,
    size: usize,
) -> c_int {
    status("tenure_cache_stats", || {
        // SAFETY: the C caller passes NULL or a live cache.
        let now = unsafe { cache(c)? }.stats();
        let stats = tenure_cache_stats {
            hits: now.hits,
            misses: now.misses,
            insertions: now.insertions,
            removals: now.removals,
            evictions: now.evictions,
            purged_values: now.purged_values,
            purged_bytes: now.purged_bytes,
            moved_values: now.moved_values,
            values: now.values,
            footprint_bytes: now.footprint_bytes,
            target_bytes: now.target_bytes,
            bookkeeping_bytes: now.bookkeeping_bytes,
        };
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &stats) }
    })
}
