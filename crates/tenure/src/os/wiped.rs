//! Arguments of system calls that only this process may make.
//!
//! A userfaultfd acts on the memory of the process that opened it, whichever process calls it. A
//! signal handler may make a child between the check of the process's number and the call, and the
//! child continues there. So the call's argument lies in a page that the kernel wipes in a child.
//! The child's call then has an argument of zeros, which requests nothing. This needs no system
//! call, where blocking signals would take two. It also holds for signals that cannot be blocked.

use super::generation;
use super::signal::Blocked;
use std::sync::atomic::{compiler_fence, AtomicUsize, Ordering};

/// A place for an argument. The pages come zeroed from the kernel, so all places are free at first.
#[repr(C, align(64))]
struct Place {
    /// The address of the user's argument on its stack, which no other user has at the same time;
    /// 0: the place is free.
    user: AtomicUsize,
    room: [u64; ROOM],
}

/// The size of an argument in words.
const ROOM: usize = 7;
/// The first place follows the number of the process in its page.
const PLACES: usize = 32;
const _: () =
    assert!(generation::USED <= size_of::<Place>() && size_of::<[Place; PLACES + 1]>() <= 4096);

/// Frees a place when it is dropped, unless the kernel has freed it in a child: another thread of
/// the child may have it by then.
struct Taken {
    place: *mut Place,
    user: usize,
}

impl Taken {
    /// Takes a place. `None`: none is free, or the kernel wipes no page.
    fn new(user: usize) -> Option<Taken> {
        let page = generation::wiped_page()?;
        // Each thread has a stack of its own, so threads mostly find different places.
        let first = (user >> 8) ^ (user >> 16);
        (0..PLACES).find_map(|n| {
            let place = (page as *mut Place).wrapping_add(1 + first.wrapping_add(n) % PLACES);
            // SAFETY: the word is inside the page, which is mapped for ever, zeroed at first and
            // aligned. All code uses this word as an atomic only.
            let word = unsafe { &(*place).user };
            let mine = word.compare_exchange(0, user, Ordering::Acquire, Ordering::Relaxed);
            mine.is_ok().then_some(Taken { place, user })
        })
    }

    fn room<T>(&self) -> *mut T {
        const { assert!(size_of::<T>() <= size_of::<[u64; ROOM]>() && align_of::<T>() <= 8) };
        // SAFETY: `place` lies inside the page, which is mapped for ever. Only its address is
        // taken.
        unsafe { (&raw mut (*self.place).room).cast() }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: `place` lies inside the page, which is mapped for ever and aligned. All code uses
        // this word as an atomic only.
        let word = unsafe { &(*self.place).user };
        let _ = word.compare_exchange(self.user, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Makes a call with the argument if this is that [process](generation::current). `None`: it is
/// another. If the number differs afterwards, either the parent has made the call before, or the
/// call had an argument of zeros.
pub(super) fn call_in<T: Copy, R>(
    process: u64,
    argument: &mut T,
    call: impl FnOnce(*mut T) -> R,
) -> Option<R> {
    let here = || generation::current() == process;
    let Some(taken) = Taken::new(std::ptr::from_mut(argument) as usize) else {
        let _no_handler = Blocked::all();
        return here().then(|| call(argument));
    };
    let room = taken.room::<T>();
    // SAFETY: this call has the place, which is large enough. A child may find the bytes wiped, but
    // it never reads them as a `T`.
    unsafe { room.write_volatile(*argument) };
    // First the argument, then the check. A child that is made before the check finds another
    // number. A child that is made after it finds zeros.
    compiler_fence(Ordering::SeqCst);
    if !here() {
        return None;
    }
    compiler_fence(Ordering::SeqCst);
    Some(call(room))
}
