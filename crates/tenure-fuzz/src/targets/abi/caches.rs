//! Caches: a get returns the value that was put last, or nothing.

use super::calls::{Calls, P};
use super::choose::{check, handle, odd, once_in};
use arbitrary::Unstructured;
use libc::{c_int, c_void};
use std::cell::Cell;

const KEYS: usize = 12;

struct Cache {
    at: P,
    /// The value that was put last under each key: its number and length.
    values: [Option<(u8, usize)>; KEYS],
    has_ttl: bool,
}

/// A handle to a value, and the value's contents.
struct Value {
    at: P,
    holds: (u8, usize),
}

#[derive(Default)]
pub struct Caches(Vec<Cache>, Vec<Value>, u8);

thread_local! {
    /// The result of a make callback: a number, a length, and the return code.
    static MAKES: Cell<(u8, usize, c_int)> = const { Cell::new((0, 0, 0)) };
    /// How many entries a callback has got, and the entry at which it requests an end.
    static SEEN: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static RESIZE: Cell<Option<unsafe extern "C" fn(P, usize) -> P>> = const { Cell::new(None) };
}

unsafe extern "C" fn make(_: *mut c_void, into: P) -> c_int {
    let (number, len, returns) = MAKES.get();
    let Some(resize) = RESIZE.get() else { return -1 };
    // SAFETY: the library's own function, with the arguments that it has passed.
    let bytes = unsafe { resize(into, len) };
    if bytes.is_null() {
        return -1;
    }
    // SAFETY: so many writable bytes.
    unsafe { std::ptr::write_bytes(bytes.cast::<u8>(), number, len) };
    returns
}

unsafe extern "C" fn each(_: *mut c_void, _: P, _: usize, _: P, _: usize) -> c_int {
    let (seen, end) = SEEN.get();
    SEEN.set((seen + 1, end));
    c_int::from(seen + 1 != end)
}

unsafe extern "C" fn each_key(_: *mut c_void, _: P, _: usize) -> c_int {
    let (seen, end) = SEEN.get();
    SEEN.set((seen + 1, end));
    c_int::from(seen + 1 != end)
}

fn key(number: usize) -> [u8; 9] {
    let mut key = *b"a key: 00";
    key[8] += number as u8;
    key
}

impl Caches {
    pub fn step(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        RESIZE.set(Some(calls.made_resize));
        let kind = input.int_in_range(0..=13).unwrap_or(0);
        self.2 = self.2.wrapping_add(1).max(1);
        match kind {
            0 => return self.make(calls, input),
            1 => return self.release(calls, input),
            _ => {}
        }
        let Some(at) = handle(input, self.0.len()) else { return nothing(calls) };
        if kind == 2 && once_in(input, 4) {
            let cache = self.0.swap_remove(at);
            // SAFETY: a live cache, which is not used any more; its values stay.
            unsafe { (calls.cache_free)(cache.at) };
            return Ok(());
        }
        let number = self.2;
        let cache = &mut self.0[at];
        let got = match kind {
            2..=5 => return cache.insert(calls, input, number),
            6..=8 => cache.get(calls, input)?,
            9 | 10 => cache.get_or_insert(calls, input, number)?,
            _ => return cache.others(calls, input),
        };
        match got {
            Some(value) if self.1.len() < 6 && once_in(input, 3) => self.1.push(value),
            // SAFETY: a live value, which is not used any more.
            Some(value) => unsafe { (calls.value_release)(value.at) },
            None => {}
        }
        Ok(())
    }

    fn make(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        if self.0.len() >= 2 {
            return Ok(());
        }
        let mut opts = [56, 4, 0, 0, 0, 0, 0];
        if once_in(input, 4) {
            opts = [
                odd(input).min(56) as u64,
                odd(input) as u64,
                odd(input) as u64,
                odd(input) as u64,
                0,
                0,
                0,
            ];
        }
        // SAFETY: the structure is at least as long as it says.
        let at = unsafe { (calls.cache_new)(opts.as_mut_ptr().cast()) };
        if !at.is_null() {
            self.0.push(Cache { at, values: [None; KEYS], has_ttl: opts[3] != 0 });
        }
        Ok(())
    }

    /// A value has its bytes until its last handle is released.
    fn release(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let Some(at) = handle(input, self.1.len()) else { return Ok(()) };
        let value = self.1.swap_remove(at);
        value.check(calls)?;
        // SAFETY: a live value; the copy is released as well.
        unsafe {
            let copy = (calls.value_clone)(value.at);
            let _ = (calls.value_is_cached)(value.at);
            (calls.value_release)(value.at);
            if !copy.is_null() {
                Value { at: copy, ..value }.check(calls)?;
            }
            (calls.value_release)(copy);
        }
        Ok(())
    }

    pub fn end(self, calls: &Calls) -> Result<(), String> {
        // SAFETY: live caches and values, which are not used any more. Values outlive their cache.
        unsafe {
            self.0.iter().for_each(|cache| (calls.cache_free)(cache.at));
            for value in self.1 {
                value.check(calls)?;
                (calls.value_release)(value.at);
            }
        }
        Ok(())
    }
}

fn nothing(calls: &Calls) -> Result<(), String> {
    let null = std::ptr::null_mut();
    // SAFETY: the header allows NULL in each, and documents that it is refused.
    let done = unsafe {
        (calls.cache_free)(null);
        (calls.value_release)(null);
        let got = (calls.cache_get)(null, null, 0, std::ptr::null_mut(), std::ptr::null_mut());
        let clone = (calls.value_clone)(null);
        (
            got.is_null() && clone.is_null(),
            (calls.cache_clear)(null),
            (calls.cache_insert)(null, null, 0, null, 0),
        )
    };
    check(done == (true, -1, -1), || format!("NULL: {done:?}"))
}

impl Value {
    fn check(&self, calls: &Calls) -> Result<(), String> {
        let mut len = 0;
        // SAFETY: a live value, and a place for a number.
        let bytes = unsafe { (calls.value_bytes)(self.at, &mut len) };
        let (number, wanted) = self.holds;
        check(len == wanted, || format!("WRONG BYTES: a value of {len} bytes for {wanted}"))?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the value's bytes, which stay while it is not released.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) };
        check(bytes.iter().all(|byte| *byte == number), || {
            format!("WRONG BYTES: a value is not {number}")
        })
    }
}

impl Cache {
    fn insert(
        &mut self,
        calls: &Calls,
        input: &mut Unstructured<'_>,
        number: u8,
    ) -> Result<(), String> {
        let at = input.int_in_range(0..=KEYS - 1).unwrap_or(0);
        let (mut key, len) = (key(at), length(input));
        let mut bytes = vec![number; len];
        let is_timed = once_in(input, 8);
        // SAFETY: a live cache, and bytes of these lengths.
        let done = unsafe {
            let (key, len_of_key, bytes) =
                (key.as_mut_ptr().cast(), key.len(), bytes.as_mut_ptr().cast());
            match is_timed {
                true => (calls.cache_insert_ttl)(
                    self.at,
                    key,
                    len_of_key,
                    bytes,
                    len,
                    odd(input) as u64,
                ),
                false => (calls.cache_insert)(self.at, key, len_of_key, bytes, len),
            }
        };
        match done {
            0 => self.values[at] = Some((number, len)),
            _ => check(done == -1, || format!("an insertion returned {done}"))?,
        }
        self.has_ttl |= is_timed;
        Ok(())
    }

    fn get(
        &mut self,
        calls: &Calls,
        input: &mut Unstructured<'_>,
    ) -> Result<Option<Value>, String> {
        let at = input.int_in_range(0..=KEYS - 1).unwrap_or(0);
        let (mut key, mut bytes, mut len) = (key(at), std::ptr::null_mut(), 0);
        // SAFETY: a live cache, a key of this length, and places for both results.
        let got = unsafe {
            (calls.cache_get)(self.at, key.as_mut_ptr().cast(), key.len(), &mut bytes, &mut len)
        };
        if got.is_null() {
            return Ok(None);
        }
        let Some(holds) = self.values[at] else {
            return Err("WRONG BYTES: a value nobody put in".into());
        };
        let value = Value { at: got, holds };
        check(len == holds.1, || format!("WRONG BYTES: a value of {len} bytes for {}", holds.1))?;
        value.check(calls).map(|()| Some(value))
    }

    fn get_or_insert(
        &mut self,
        calls: &Calls,
        input: &mut Unstructured<'_>,
        number: u8,
    ) -> Result<Option<Value>, String> {
        let at = input.int_in_range(0..=KEYS - 1).unwrap_or(0);
        let makes =
            (number, length(input), if once_in(input, 6) { odd(input) as c_int } else { 0 });
        MAKES.set(makes);
        let (mut key, mut bytes, mut len) = (key(at), std::ptr::null_mut(), 0);
        let (make, arg) = (make as *const c_void, std::ptr::null_mut());
        // SAFETY: a live cache, a key of this length, a callback of the header's type, and places
        // for both results.
        let got = unsafe {
            let (key, len_of_key) = (key.as_mut_ptr().cast(), key.len());
            (calls.cache_get_or_insert)(self.at, key, len_of_key, make, arg, &mut bytes, &mut len)
        };
        if got.is_null() {
            return check(makes.2 != 0 || makes.1 > 1 << 20, || "a value could not be made".into())
                .map(|()| None);
        }
        // The value that was there, or that was made just now.
        let made = Value { at: got, holds: (number, makes.1) };
        let value = match self.values[at] {
            Some(holds) if holds != made.holds && made.check(calls).is_err() => {
                Value { at: got, holds }
            }
            _ => made,
        };
        value.check(calls)?;
        self.values[at] = Some(value.holds);
        Ok(Some(value))
    }

    fn others(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let at = input.int_in_range(0..=KEYS - 1).unwrap_or(0);
        let (mut key, mut out) = (key(at), [0u64; 32]);
        let (end, null) = (odd(input), std::ptr::null_mut());
        SEEN.set((0, end));
        // SAFETY: a live cache; keys, places and callbacks as the header has them.
        let done = unsafe {
            match input.int_in_range(0..=5).unwrap_or(0) {
                0 => (calls.cache_remove)(self.at, key.as_mut_ptr().cast(), key.len()),
                1 => (calls.cache_clear)(self.at),
                2 => {
                    return done((calls.cache_stats)(
                        self.at,
                        out.as_mut_ptr().cast(),
                        end.min(256),
                    ))
                }
                3 => return done((calls.cache_each)(self.at, each as _, null)),
                4 => return done((calls.cache_each_key)(self.at, each_key as _, null)),
                // Keeps all but one.
                _ => return done((calls.cache_retain)(self.at, each as _, null)),
            }
        };
        if done < 0 {
            return Err(format!("a removal returned {done}"));
        }
        match input.is_empty() {
            _ if self.values[at].is_none() => Ok(()),
            _ => self.forget(calls, at),
        }
    }

    /// After a removal of one key, or of all.
    fn forget(&mut self, calls: &Calls, at: usize) -> Result<(), String> {
        let mut key = key(at);
        // SAFETY: a live cache and a key of this length.
        let got = unsafe {
            let (key, len) = (key.as_mut_ptr().cast(), key.len());
            (calls.cache_get)(self.at, key, len, std::ptr::null_mut(), std::ptr::null_mut())
        };
        check(got.is_null(), || "WRONG BYTES: a value that was removed is there".into())?;
        self.values[at] = None;
        Ok(())
    }
}

fn done(returned: c_int) -> Result<(), String> {
    check(returned >= -1, || format!("a call returned {returned}"))
}

fn length(input: &mut Unstructured<'_>) -> usize {
    match input.int_in_range(0..=5).unwrap_or(0) {
        0 => input.int_in_range(0..=700_000).unwrap_or(0),
        1 => odd(input).min(1 << 20),
        _ => input.int_in_range(0..=5000).unwrap_or(0),
    }
}
