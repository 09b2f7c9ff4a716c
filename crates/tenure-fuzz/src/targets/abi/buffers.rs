//! Volatile buffers: a pin has the bytes that were written last, or reports which are gone.

use super::calls::{Calls, P};
use super::choose::{check, handle, odd, once_in};
use crate::os::page_size;
use arbitrary::Unstructured;
use libc::{c_int, c_void};
use std::cell::Cell;

struct Buffer {
    at: P,
    bytes: usize,
    pages: usize,
    pins: usize,
    is_made_again: bool,
    /// At each page's start.
    tags: Vec<u64>,
    /// Something was lost, and not restored yet.
    is_lost: bool,
}

#[derive(Default)]
pub struct Buffers(Vec<Buffer>, u64);

thread_local! {
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

/// The word that a refill callback makes for a page.
fn made(offset: usize) -> u64 {
    0x5EED_0000_0000_0000 | offset as u64
}

unsafe extern "C" fn refill(
    _: *mut c_void,
    offset: usize,
    bytes: *mut c_void,
    len: usize,
) -> c_int {
    if FAILS.get() {
        return 1;
    }
    for at in (0..len / page_size() * page_size()).step_by(page_size()) {
        // SAFETY: the library passes so many writable bytes.
        unsafe { bytes.byte_add(at).cast::<u64>().write_unaligned(made(offset + at)) };
    }
    0
}

unsafe extern "C" fn gone(offset: usize, len: usize, list: *mut c_void) {
    // SAFETY: the list that `lost` passes, during its call.
    unsafe { (*list.cast::<Vec<(usize, usize)>>()).push((offset, len)) };
}

impl Buffers {
    pub fn step(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let kind = input.int_in_range(0..=9).unwrap_or(0);
        if kind == 0 {
            return self.make(calls, input);
        }
        let Some(at) = handle(input, self.0.len()) else { return nothing(calls) };
        if kind == 1 && once_in(input, 3) {
            let buffer = self.0.swap_remove(at);
            // SAFETY: a live buffer, which is not used any more.
            unsafe { (calls.volatile_free)(buffer.at) };
            return Ok(());
        }
        self.1 += 1;
        let buffer = &mut self.0[at];
        match kind {
            2..=4 => buffer.pin(calls, input, self.1),
            5 | 6 => buffer.unpin(calls),
            7 | 8 => buffer.purge(calls, input),
            _ => buffer.ask(calls, input),
        }
    }

    fn make(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        if self.0.len() >= 4 {
            return Ok(());
        }
        let len = match once_in(input, 6) {
            true => odd(input),
            false => input.int_in_range(1..=20).unwrap_or(1) * page_size(),
        };
        let is_made_again = once_in(input, 2);
        let refill = if is_made_again { refill as *const () as u64 } else { 0 };
        let mut opts = [40, 4, refill, 0, 0];
        if once_in(input, 6) {
            opts[0] = odd(input).min(40) as u64;
        }
        if once_in(input, 6) {
            opts[1] = odd(input) as u64;
        }
        // SAFETY: the structure is at least as long as it says; the callback takes the
        // arguments of its calls.
        let at = unsafe { (calls.volatile_new_with)(len, opts.as_mut_ptr().cast()) };
        if at.is_null() {
            return Ok(());
        }
        check(len > 0 && len < 1 << 47, || format!("a buffer of {len:#x} bytes was made"))?;
        // Only buffers with few pages are written, and only the pages that are theirs whole.
        let pages = (len / page_size()).min(64);
        let tags = vec![0; pages];
        let mut buffer =
            Buffer { at, bytes: 0, pages, pins: 0, is_made_again, tags, is_lost: false };
        let mut bytes = std::ptr::null_mut();
        // SAFETY: a live buffer, and a place for an address.
        let pinned = unsafe { (calls.volatile_pin)(at, &mut bytes) };
        check(pinned == 0, || format!("the first pin returned {pinned}"))?;
        buffer.bytes = bytes as usize;
        // A short structure has no callback.
        buffer.is_made_again &= opts[0] >= 24;
        for page in 0..pages {
            check(buffer.read(page) == 0, || "WRONG BYTES: a new buffer is not zeros".into())?;
            buffer.write(page, made(page * page_size()));
        }
        // SAFETY: the pin of this function's.
        let unpinned = unsafe { (calls.volatile_unpin)(at) };
        self.0.push(buffer);
        check(unpinned == 0, || format!("an unpin returned {unpinned}"))
    }

    pub fn end(self, calls: &Calls) -> Result<(), String> {
        // SAFETY: live buffers, which are not used any more, pinned or not.
        self.0.iter().for_each(|buffer| unsafe { (calls.volatile_free)(buffer.at) });
        Ok(())
    }
}

/// Every call takes NULL.
fn nothing(calls: &Calls) -> Result<(), String> {
    let null = std::ptr::null_mut();
    // SAFETY: the header allows NULL in each.
    let done = unsafe {
        (calls.volatile_free)(null);
        [
            (calls.volatile_pin)(null, std::ptr::null_mut()),
            (calls.volatile_unpin)(null),
            (calls.volatile_restored)(null),
            (calls.volatile_purge_now)(null, std::ptr::null_mut()),
        ]
    };
    check(done == [-1; 4], || format!("NULL: {done:?}"))
}

impl Buffer {
    fn place(&self, page: usize) -> *mut u64 {
        (self.bytes + page * page_size()) as *mut u64
    }

    fn read(&self, page: usize) -> u64 {
        // SAFETY: a page of the buffer, which is pinned.
        unsafe { self.place(page).read_volatile() }
    }

    fn write(&mut self, page: usize, tag: u64) {
        // SAFETY: a page of the buffer, which is pinned.
        unsafe { self.place(page).write_volatile(tag) };
        self.tags[page] = tag;
    }

    fn pin(&mut self, calls: &Calls, input: &mut Unstructured<'_>, tag: u64) -> Result<(), String> {
        FAILS.set(once_in(input, 8));
        // SAFETY: a live buffer; NULL is allowed for the address.
        let pinned = unsafe { (calls.volatile_pin)(self.at, std::ptr::null_mut()) };
        FAILS.set(false);
        if pinned == -1 {
            return check(self.is_made_again, || "a pin failed".into());
        }
        self.pins += 1;
        let mut lost: Vec<(usize, usize)> = Vec::new();
        let list = (&raw mut lost).cast();
        // SAFETY: a live buffer that is pinned; the callback gets the list.
        let told = unsafe { (calls.volatile_lost)(self.at, gone as _, list) };
        check(told == pinned, || format!("the pin says {pinned}, and lost says {told}: {lost:?}"))?;
        check((told == 1) != lost.is_empty(), || format!("{told}, and lost: {lost:?}"))?;
        check(!self.is_lost || pinned == 1, || "a loss is not told until it is restored".into())?;
        self.is_lost = pinned == 1;
        for page in 0..self.pages {
            let offset = page * page_size();
            let is_lost = lost.iter().any(|(at, len)| (*at..at + len).contains(&offset));
            // A lost page may have been written since the report.
            let found = self.read(page);
            let is_right = found == self.tags[page] || is_lost && found == 0;
            check(is_right, || {
                format!("WRONG BYTES: buffer page {page}: {found:#x}, lost {lost:?}")
            })?;
            if is_lost {
                self.tags[page] = found;
            }
        }
        if self.is_lost && once_in(input, 2) {
            // SAFETY: a live buffer that is pinned.
            let restored = unsafe { (calls.volatile_restored)(self.at) };
            self.is_lost = restored != 0;
        }
        // The callback always makes the same bytes.
        if !self.is_made_again {
            (0..self.pages).for_each(|page| self.write(page, tag << 8 | page as u64));
        }
        if once_in(input, 2) {
            self.unpin(calls)?;
        }
        Ok(())
    }

    fn unpin(&mut self, calls: &Calls) -> Result<(), String> {
        // SAFETY: a live buffer; one pin too many is refused.
        let done = unsafe { (calls.volatile_unpin)(self.at) };
        check((done == 0) == (self.pins > 0), || format!("unpin of {} pins: {done}", self.pins))?;
        self.pins = self.pins.saturating_sub(1);
        Ok(())
    }

    fn purge(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let mut gone = 0;
        // SAFETY: a live buffer, and a place for a number.
        let done = unsafe {
            match once_in(input, 3) {
                true => (calls.volatile_offer_now)(self.at),
                false => (calls.volatile_purge_now)(self.at, &mut gone),
            }
        };
        check(done == -1 || self.pins == 0, || "a pinned buffer was offered".into())
    }

    fn ask(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        // SAFETY: a live buffer.
        let (len, at, set) = unsafe {
            let set = (calls.volatile_set_priority)(self.at, odd(input) as u32);
            ((calls.volatile_len)(self.at), (calls.volatile_address)(self.at), set)
        };
        check(len >= self.pages && at as usize == self.bytes && set <= 0, || {
            format!("{len}, {at:?}")
        })
    }
}
