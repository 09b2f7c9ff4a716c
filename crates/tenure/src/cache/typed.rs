//! Values of plain data: slices of numbers, pixels, records.

#![allow(unsafe_code, reason = "shows bytes as plain data")]

use super::header::{HEADER, TIME};
use super::place::UNIT;
use super::{Cache, OwnedValue, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::text::text;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// A type that consists of nothing but its bytes: a number, an array of them, a structure of them.
///
/// Numbers and arrays of plain types implement it. For a type of your own:
///
/// ```
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Point {
///     x: f32,
///     y: f32,
/// }
/// // SAFETY: two numbers of one size: no padding, and any bytes are a `Point`.
/// unsafe impl tenure::cache::Plain for Point {}
/// ```
///
/// # Safety
/// Any bytes are a valid value of the type, it has no padding, and no code can change it through a
/// shared reference. (`bytemuck::Pod` has the same conditions.)
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($number:ty)*) => {
        $(
            // SAFETY: a number of the machine: no padding, and any bytes are one.
            unsafe impl Plain for $number {}
        )*
    };
}

plain!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64);

// SAFETY: an array has nothing between its elements, which are plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A [`Cache`] whose values are slices of `T`. A get lends a `[T]` and copies nothing.
///
/// It is a handle to the cache from which [`Cache::typed`] made it. The cache ends with the last
/// handle of either kind. [`TypedCache::cache`] returns the cache of bytes, for calls that this
/// type does not have.
///
/// ```
/// let embeddings = tenure::Cache::<u64>::new()?.typed::<f32>();
/// embeddings.insert(7, &[0.25; 768])?;
/// if let Some(embedding) = embeddings.get(&7) {
///     assert_eq!(embedding.iter().sum::<f32>(), 192.0); // a `[f32]`, in the cache's own memory
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct TypedCache<K, T, S = super::DefaultHasher> {
    cache: Cache<K, S>,
    values: PhantomData<fn() -> T>,
}

impl<K, T, S> Clone for TypedCache<K, T, S> {
    fn clone(&self) -> Self {
        TypedCache { cache: self.cache.clone(), values: PhantomData }
    }
}

impl<K, T, S> fmt::Debug for TypedCache<K, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedCache").finish_non_exhaustive()
    }
}

/// A value's bytes follow its header and its times, so they begin at a multiple of the unit.
const _: () = assert!(HEADER % UNIT == 0 && TIME % UNIT == 0);

/// Checks that the cache can lend a `T`. Fails the build for other types.
const fn fits<T>() {
    assert!(size_of::<T>() > 0, "a value of a cache has bytes: this type has none");
    assert!(align_of::<T>() <= UNIT, "values lie at multiples of 8 bytes: this type needs more");
}

fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the bytes are those of the slice, which is borrowed as long. A plain type has no
    // padding, so all of them are written.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Returns whether a `T` may lie at the address of the bytes.
fn is_aligned<T>(bytes: &[u8]) -> bool {
    bytes.as_ptr().cast::<T>().is_aligned()
}

/// Returns the bytes as values. They are [aligned](is_aligned).
fn shown<T: Plain>(bytes: &[u8]) -> &[T] {
    assert!(is_aligned::<T>(bytes));
    // SAFETY: the bytes are borrowed as long as the slice. They are aligned for it, as asserted,
    // and long enough for that many values. Any bytes are a value of a plain type, and no code can
    // change it through the reference.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

fn copied<T: Plain>(bytes: &[u8]) -> Arc<[T]> {
    let value = |bytes: &[u8]| {
        assert_eq!(bytes.len(), size_of::<T>());
        // SAFETY: there are as many bytes as a `T` has, as asserted. Any bytes are a value of a
        // plain type, and `read_unaligned` needs no alignment.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    };
    bytes.chunks_exact(size_of::<T>()).map(value).collect()
}

/// A slice of `T` that a [`TypedCache`] lends, as [`Value`] lends bytes. It does not change while
/// this lives.
///
/// ```
/// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
/// let squares = cache.get_or_insert_with(&1, || (0..10).map(|n| n * n).collect())?;
/// assert_eq!(squares[9], 81);
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct TypedValue<'a, T> {
    value: Value<'a>,
    /// Aligned values, used instead if the value is an unaligned copy outside the cache.
    aligned: Option<Arc<[T]>>,
}

/// A slice of `T` that does not borrow its cache, as [`OwnedValue`], for tasks and other threads.
/// Its clones are handles to the same memory.
///
/// ```
/// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
/// let squares = cache.get_or_insert_with(&1, || vec![0, 1, 4, 9])?.into_owned();
/// let sum = std::thread::spawn(move || squares.iter().sum::<u32>());
/// assert_eq!(sum.join().unwrap(), 14);
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct OwnedTypedValue<T> {
    value: OwnedValue,
    aligned: Option<Arc<[T]>>,
}

impl<'a, T: Plain> TypedValue<'a, T> {
    /// Returns `None` if the bytes are not a whole number of `T`s.
    fn new(value: Value<'a>) -> Option<Self> {
        if value.len() % size_of::<T>() != 0 {
            return None;
        }
        let aligned = (!is_aligned::<T>(&value)).then(|| copied(&value));
        Some(TypedValue { value, aligned })
    }

    /// Returns whether the value is in the cache: see [`Value::is_cached`].
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
    /// assert!(cache.get_or_insert_with(&1, || vec![1, 2])?.is_cached());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_cached(&self) -> bool {
        self.value.is_cached()
    }

    /// Returns the value without its borrow of the cache, as [`Value::into_owned`].
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
    /// let value = cache.get_or_insert_with(&1, || vec![1, 2])?.into_owned();
    /// drop(cache);
    /// assert_eq!(value[..], [1, 2]);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn into_owned(self) -> OwnedTypedValue<T> {
        OwnedTypedValue { value: self.value.into_owned(), aligned: self.aligned }
    }
}

impl<T: Plain> Deref for TypedValue<'_, T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        self.aligned.as_deref().unwrap_or_else(|| shown(&self.value))
    }
}

impl<T: Plain> Deref for OwnedTypedValue<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        self.aligned.as_deref().unwrap_or_else(|| shown(&self.value))
    }
}

impl<T> Clone for OwnedTypedValue<T> {
    fn clone(&self) -> Self {
        OwnedTypedValue { value: self.value.clone(), aligned: self.aligned.clone() }
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for TypedValue<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for OwnedTypedValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// Returns this handle as one whose values are slices of `T`: numbers, arrays, or your own
    /// [`Plain`] type. A type without bytes, or one that needs more than 8 bytes of alignment, does
    /// not compile.
    ///
    /// ```
    /// use std::time::Duration;
    /// let samples = tenure::Cache::<String>::builder()
    ///     .time_to_live(Duration::from_secs(60))
    ///     .build()?
    ///     .typed::<i16>();
    /// samples.insert("piano/c4".to_owned(), &[0, 120, 240])?;
    /// assert_eq!(samples.get("piano/c4").unwrap()[2], 240);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn typed<T: Plain>(self) -> TypedCache<K, T, S> {
        const { fits::<T>() };
        TypedCache { cache: self, values: PhantomData }
    }
}

impl<K: Hash + Eq, T: Plain, S: BuildHasher> TypedCache<K, T, S> {
    /// Returns the cache of bytes, for calls that need no type: keys, removal, statistics.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
    /// cache.insert(1, &[1, 2])?;
    /// assert_eq!(cache.cache().get(&1).unwrap().len(), 8); // bytes
    /// assert!(cache.cache().remove(&1));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn cache(&self) -> &Cache<K, S> {
        &self.cache
    }

    /// Returns the value under a key, pinned, as [`Cache::get`]. Also returns `None` if the value
    /// was put in as bytes that are not a whole number of `T`s.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?.typed::<f64>();
    /// cache.insert(1, &[0.5, 1.5])?;
    /// let value = cache.get(&1).expect("nothing needed the memory meanwhile");
    /// assert_eq!(value[1], 1.5);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`Cache::get`]. The values are not copied, except when a get of bytes returns a copy
    /// ([`Value::is_copy`]).
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<TypedValue<'_, T>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        TypedValue::new(self.cache.get(key)?)
    }

    /// Puts a copy of the values under a key. It replaces the values that the key had.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
    /// cache.insert(1, &[1, 2, 3])?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`Cache::insert`].
    ///
    /// # Errors
    /// As [`Cache::insert`].
    pub fn insert(&self, key: K, values: &[T]) -> Result<()> {
        self.cache.insert(key, bytes_of(values))
    }

    /// Returns the value under a key. If there is none, `make` makes it, as for
    /// [`Cache::get_or_insert_with`].
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
    /// let value = cache.get_or_insert_with(&1, || vec![1, 2, 3])?;
    /// assert_eq!(value[..], [1, 2, 3]);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`Cache::get_or_insert_with`], and one more copy of the made values.
    ///
    /// # Errors
    /// As [`Cache::get_or_insert_with`]. Also `EINVAL`: the present value was put in as bytes that
    /// are not a whole number of `T`s.
    ///
    /// # Panics
    /// If `make` does.
    pub fn get_or_insert_with<Q>(
        &self,
        key: &Q,
        make: impl FnOnce() -> Vec<T>,
    ) -> Result<TypedValue<'_, T>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.get_or_try_insert_with(key, || Ok(make()))
    }

    /// Does what [`TypedCache::get_or_insert_with`] does, for a `make` that can fail.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?.typed::<u32>();
    /// let failed = cache.get_or_try_insert_with(&1, || Err(std::io::Error::other("no source")));
    /// assert!(failed.is_err());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`TypedCache::get_or_insert_with`].
    ///
    /// # Errors
    /// What `make` returned, or as [`TypedCache::get_or_insert_with`].
    ///
    /// # Panics
    /// If `make` does.
    pub fn get_or_try_insert_with<Q, E>(
        &self,
        key: &Q,
        make: impl FnOnce() -> std::result::Result<Vec<T>, E>,
    ) -> std::result::Result<TypedValue<'_, T>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: From<Error>,
    {
        let made = || Ok(bytes_of(&make()?).to_vec());
        let value = self.cache.get_or_try_insert_with::<Q, E>(key, made)?;
        let len = value.len();
        TypedValue::new(value).ok_or_else(|| E::from(not_whole::<T>(len)))
    }
}

fn not_whole<T>(len: usize) -> Error {
    let why = text!("the value has {len} bytes, no whole number of {}", size_of::<T>());
    let remedy = "insert values as this type only, or remove the key first";
    Error::new(ErrorKind::BadRange, "TypedCache::get_or_insert_with", why, remedy)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_aligned_are_copied() {
        let bytes: Vec<u8> = (0..64).collect();
        for from in 0..8 {
            let mut own = vec![0; from];
            own.extend_from_slice(&bytes);
            let some = &own[from..];
            let values: Vec<u64> =
                if is_aligned::<u64>(some) { shown(some).to_vec() } else { copied(some).to_vec() };
            assert_eq!(bytes_of(&values), &bytes[..]);
        }
    }
}
