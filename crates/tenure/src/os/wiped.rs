//! Arguments of system calls that only this process may make.
//!
//! A userfaultfd acts on the memory of the process that opened it, whichever process calls it. A signal's handler may make a
//! child between a look at what process this is and the call behind that look, and the child goes on there. So the
//! call's argument lies in a page that the kernel wipes in a child: the child's call has an argument of zeros, which
//! asks for nothing. No system call for it, where keeping signals away would take two; and it holds for signals that
//! cannot be kept away, too.

use super::generation;
use super::signal::Blocked;
use std::sync::atomic::{compiler_fence, AtomicUsize, Ordering};

/// A place for an argument. The kernel's pages of zeros are free places.
#[repr(C, align(64))]
struct Place {
    /// Where its user has the argument on its stack, which no other user at the same time has; 0: it is free.
    user: AtomicUsize,
    room: [u64; ROOM],
}

/// Words.
const ROOM: usize = 7;
/// The first place's page has the number of the process before it.
const PLACES: usize = 32;
const _: () =
    assert!(generation::USED <= size_of::<Place>() && size_of::<[Place; PLACES + 1]>() <= 4096);

/// Frees a place when it is dropped, unless the kernel has: another thread of a child may have it by then.
struct Taken {
    place: *mut Place,
    user: usize,
}

impl Taken {
    /// `None`: none is free, or the kernel wipes no page.
    fn new(user: usize) -> Option<Taken> {
        let page = generation::wiped_page()?;
        // Threads have their stacks apart from one another, so they mostly find different places.
        let first = (user >> 8) ^ (user >> 16);
        (0..PLACES).find_map(|n| {
            let place = (page as *mut Place).wrapping_add(1 + first.wrapping_add(n) % PLACES);
            // SAFETY: inside the page, which is mapped for ever, zeroed at first and aligned; all use this word as an
            // atomic only.
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
        // SAFETY: `place` lies inside the page, which is mapped for ever and aligned; all use this
        // word as an atomic only.
        let word = unsafe { &(*self.place).user };
        let _ = word.compare_exchange(self.user, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Makes a call with the argument if this is that [process](generation::current). `None`: it is another. If the
/// number is another one afterwards, the call may have been made by the parent before, or with an argument of zeros.
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
    // SAFETY: the place is this call's, and has the room. Bytes that a child finds wiped are of a `T` that is not read.
    unsafe { room.write_volatile(*argument) };
    // First the argument, then the look: a child that is made before the look finds another number, and one that is
    // made after it finds zeros.
    compiler_fence(Ordering::SeqCst);
    if !here() {
        return None;
    }
    compiler_fence(Ordering::SeqCst);
    Some(call(room))
}
