//! Structures of any size: no call reads or writes past the size that it got.

use super::calls::{Calls, P};
use super::choose::{check, odd, once_in};
use arbitrary::Unstructured;

const ROOM: usize = 2048;
const UNTOUCHED: u8 = 0xC5;

pub fn step(calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
    let mut out = [UNTOUCHED; ROOM];
    let size = match once_in(input, 2) {
        true => input.int_in_range(0..=ROOM - 64).unwrap_or(0),
        false => odd(input).min(ROOM - 64),
    };
    // At every alignment that the structures have.
    let at = out.as_ptr().align_offset(8);
    let room = out[at..].as_mut_ptr().cast();
    let kind = input.int_in_range(0..=9).unwrap_or(0);
    // SAFETY: there is space for so many bytes, and more; structures that are read contain their
    // own size.
    let done = unsafe {
        match kind {
            0 => (calls.stats)(room, size),
            1 => (calls.pool_stats)(room, size),
            2 => (calls.survey)(room, size),
            3 => (calls.settings)(room, size),
            4 => (calls.retire_settings)(room, size),
            5 => (calls.lock_explain)(odd(input) as u64, room, size),
            6 => configure(calls, input),
            7 => retire_configure(calls, input),
            8 => sentence(calls)?,
            _ => others(calls, input),
        }
    };
    let written = if kind < 6 && done == 0 { size } else { 0 };
    let is_right = out[at + written..].iter().all(|byte| *byte == UNTOUCHED);
    check(is_right, || format!("WRONG BYTES: call {kind} wrote past {size} bytes"))
}

unsafe fn configure(calls: &Calls, input: &mut Unstructured<'_>) -> i32 {
    let size = if once_in(input, 3) { odd(input).min(24) as u64 } else { 24 };
    let mut settings = [size, odd(input) as u64, odd(input) as u64];
    // SAFETY: the structure is at least as long as it says.
    unsafe { (calls.configure)(settings.as_mut_ptr().cast()) }
}

unsafe fn retire_configure(calls: &Calls, input: &mut Unstructured<'_>) -> i32 {
    let size = if once_in(input, 3) { odd(input).min(40) as u64 } else { 40 };
    let [least, stall, most, files] = [0; 4].map(|_| odd(input) as u64);
    let mut settings = [size, least, stall, most, files & 3];
    // SAFETY: the structure is at least as long as it says.
    unsafe { (calls.retire_configure)(settings.as_mut_ptr().cast()) }
}

/// The text about the last failure is valid text.
unsafe fn sentence(calls: &Calls) -> Result<i32, String> {
    // SAFETY: both return a terminated string, never NULL.
    let texts = unsafe {
        [(calls.last_error)(), (calls.version)()]
            .map(|text| std::ffi::CStr::from_ptr(text).to_str())
    };
    check(texts.iter().all(Result::is_ok), || format!("no text: {texts:?}")).map(|()| -1)
}

/// Calls that need little.
unsafe fn others(calls: &Calls, input: &mut Unstructured<'_>) -> i32 {
    let (number, null): (i32, P) = (odd(input) as i32, std::ptr::null_mut());
    // SAFETY: the calls take any number; the descriptors that they make are closed.
    unsafe {
        match input.int_in_range(0..=9).unwrap_or(0) {
            0 => drop((calls.munmap_prepare)()),
            1 => drop((calls.munmap_drain)(1)),
            2 => drop((calls.pool_prepare)()),
            3 => drop((calls.end_background_threads)()),
            4 => drop((calls.detection)()),
            5 => drop([(calls.ashmem_valid)(-1), (calls.ashmem_get_size_region)(0)]),
            6 => region(calls, input),
            7 => drop((calls.shared_open)(number.saturating_neg().min(0))),
            8 => drop((calls.stats)(null, odd(input))),
            _ => drop([(calls.configure)(null), (calls.retire_configure)(null)]),
        }
    }
    -1
}

unsafe fn region(calls: &Calls, input: &mut Unstructured<'_>) {
    let size = if once_in(input, 3) { odd(input) } else { 5 << 16 };
    // SAFETY: the name is terminated, or NULL; the descriptor is this function's, and open until it
    // is closed.
    unsafe {
        let fd = (calls.ashmem_create_region)(c"fuzz".as_ptr(), size);
        if fd < 0 {
            return;
        }
        for _ in 0..4 {
            let (offset, len) = (odd(input) & !4095, odd(input) & !4095);
            let _ = (calls.ashmem_pin_region)(fd, offset, len);
            let _ = (calls.ashmem_unpin_region)(fd, offset, len);
        }
        let _ = ((calls.ashmem_get_size_region)(fd), (calls.ashmem_purge_now)(fd));
        let _ = (calls.ashmem_set_prot_region)(fd, odd(input) as i32);
        libc::close(fd);
    }
}
