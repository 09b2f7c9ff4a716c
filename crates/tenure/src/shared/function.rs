//! The function with which a process makes chunks.

#![allow(
    unsafe_code,
    reason = "values that outlive no handle or call, without a lock that forks hold"
)]

use crate::runtime::refills::{self, RefillError};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

pub(super) type Made = std::result::Result<(), RefillError>;

type Makes = dyn Fn(usize, &mut [u8]) -> Made + Send + Sync;

/// See the module's head.
#[derive(Clone)]
pub(super) struct Function(Arc<Makes>);

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}

impl Function {
    pub fn new(function: impl Fn(usize, &mut [u8]) -> Made + Send + Sync + 'static) -> Function {
        Function(Arc::new(function))
    }

    /// Makes a chunk's bytes with the function. A panic counts as a failure.
    fn call(&self, place: &FunctionPlace, chunk: usize, bytes: &mut [u8]) -> Made {
        let mine = (std::ptr::from_ref(place) as usize, chunk);
        change(|all| all.push(mine));
        let made = refills::attempt(bytes, |bytes| (self.0)(chunk, bytes));
        // Not the last one, if the function has changed to another stack.
        change(|all| all.iter().rposition(|other| *other == mine).map(|at| all.remove(at)));
        made
    }
}

type Making = ManuallyDrop<Vec<(usize, usize)>>;
const NOTHING: Making = ManuallyDrop::new(Vec::new());

thread_local! {
    // Without a destructor, as for the background thread: see `services::Task`. An empty one has no
    // memory.
    /// Each thread's own: a thread that waited for one of these chunks would wait for itself. The
    /// chunks whose function it is running, the innermost last.
    static MAKING: Cell<Making> = const { Cell::new(NOTHING) };
}

fn change<R>(act: impl FnOnce(&mut Vec<(usize, usize)>) -> R) -> R {
    let mut all = MAKING.replace(NOTHING);
    let done = act(&mut all);
    if all.is_empty() {
        drop(ManuallyDrop::into_inner(all));
    } else {
        MAKING.set(all);
    }
    done
}

/// A value that is set once.
pub(super) struct Once<T>(AtomicPtr<T>);

impl<T> Once<T> {
    pub fn new() -> Once<T> {
        Once(AtomicPtr::new(null_mut()))
    }

    /// Returns `false` if the value is set already.
    pub fn set(&self, value: T) -> bool {
        let new = Box::into_raw(Box::new(value));
        let set = self.0.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Relaxed);
        if set.is_err() {
            // SAFETY: made above, and not published.
            drop(unsafe { Box::from_raw(new) });
        }
        set.is_ok()
    }

    fn get(&self) -> Option<&T> {
        // SAFETY: the pointer is null, or a box that is published once and freed with this value.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        let value = *self.0.get_mut();
        if !value.is_null() {
            // SAFETY: from `Box::into_raw`, and no reference to it exists any more.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl<T> std::fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Once").field(&self.get().is_some()).finish()
    }
}

/// How a region finds its function. The handle owns the function, so the captured values are
/// dropped on the program's threads. The worker must not drop them: it has other descriptors, and
/// may be the last to hold the region.
pub(super) struct FunctionPlace(Once<Weak<Makes>>);

impl FunctionPlace {
    pub fn new() -> FunctionPlace {
        FunctionPlace(Once::new())
    }

    /// Returns `false` if a function is set already.
    pub fn set(&self, function: &Function) -> bool {
        self.0.set(Arc::downgrade(&function.0))
    }

    fn get(&self) -> Option<Function> {
        self.0.get()?.upgrade().map(Function)
    }

    pub fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    pub fn call(&self, chunk: usize, bytes: &mut [u8]) -> Made {
        match self.get() {
            Some(function) => function.call(self, chunk, bytes),
            None => Err("there is no refill function".into()),
        }
    }

    /// Returns whether the calling thread runs the function for this chunk. It would then wait for
    /// itself.
    pub fn is_called_here_for(&self, chunk: usize) -> bool {
        change(|all| all.contains(&(std::ptr::from_ref(self) as usize, chunk)))
    }
}
