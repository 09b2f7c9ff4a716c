//! Lists and boxes for notes that are made under a claim. They lie in tenure's own memory, and a
//! failed allocation is an error.

#![allow(unsafe_code, reason = "keeps values in memory of its own")]

use crate::os::pagemap::{Pagemap, Pages};
use crate::range::PageRange;
use crate::runtime::heap;
use rustix::io::Errno;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A growing list. The first few values lie in the list itself: most lists take no memory.
pub(crate) struct List<T> {
    few: [MaybeUninit<T>; FEW],
    /// The address of all values, once there are more than a few.
    at: NonNull<T>,
    len: usize,
    /// The number of values for which there is room at `at`; 0: they are in `few`.
    capacity: usize,
    owned: PhantomData<T>,
}

const FEW: usize = 4;

// SAFETY: the list owns its values, so they move to the other thread with it.
unsafe impl<T: Send> Send for List<T> {}
// SAFETY: the list owns its values, and a shared reference to it gives only shared references to
// them.
unsafe impl<T: Sync> Sync for List<T> {}

impl<T> List<T> {
    pub const fn new() -> List<T> {
        let few = [const { MaybeUninit::uninit() }; FEW];
        List { few, at: NonNull::dangling(), len: 0, capacity: 0, owned: PhantomData }
    }

    /// An empty list with room for so many values.
    ///
    /// # Errors
    /// `ENOMEM`, here and below. After an error the list is as it was.
    pub fn with_room(values: usize) -> Result<List<T>, Errno> {
        let mut list = List::new();
        list.reserve(values)?;
        Ok(list)
    }

    /// Makes room for so many additional values.
    pub fn reserve(&mut self, more: usize) -> Result<(), Errno> {
        let wanted = self.len.checked_add(more).ok_or(Errno::NOMEM)?;
        if wanted <= self.capacity() {
            return Ok(());
        }
        let wanted = wanted.max(self.capacity() * 2);
        let bytes = heap::usable(wanted.checked_mul(size_of::<T>()).ok_or(Errno::NOMEM)?);
        const { assert!(align_of::<T>() <= 64 && size_of::<T>() > 0) };
        let new = heap::allocate(bytes)?.cast::<T>();
        // SAFETY: both blocks hold so many values, and they are different blocks. The old block's
        // values are not used again.
        unsafe { std::ptr::copy_nonoverlapping(self.values(), new.as_ptr(), self.len) };
        self.give_back();
        (self.at, self.capacity) = (new, bytes / size_of::<T>());
        Ok(())
    }

    /// Returns for how many values there is room.
    pub fn capacity(&self) -> usize {
        self.capacity.max(FEW)
    }

    fn values(&self) -> *const T {
        match self.capacity {
            0 => self.few.as_ptr().cast(),
            _ => self.at.as_ptr(),
        }
    }

    fn values_mut(&mut self) -> *mut T {
        match self.capacity {
            0 => self.few.as_mut_ptr().cast(),
            _ => self.at.as_ptr(),
        }
    }

    pub fn push(&mut self, value: T) -> Result<(), Errno> {
        self.insert(self.len, value)
    }

    pub fn insert(&mut self, at: usize, value: T) -> Result<(), Errno> {
        assert!(at <= self.len, "tenure: place {at} of a list of {}", self.len);
        self.reserve(1)?;
        // SAFETY: there is room for one more value; the values behind the place move up.
        unsafe {
            let place = self.values_mut().add(at);
            std::ptr::copy(place, place.add(1), self.len - at);
            place.write(value);
        }
        self.len += 1;
        Ok(())
    }

    pub fn remove(&mut self, at: usize) -> T {
        assert!(at < self.len, "tenure: place {at} of a list of {}", self.len);
        self.len -= 1;
        // SAFETY: the value belongs to the list, which gives it up; the values behind it move down.
        unsafe {
            let place = self.values_mut().add(at);
            let value = place.read();
            std::ptr::copy(place.add(1), place, self.len - at);
            value
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        self.len.checked_sub(1).map(|last| self.remove(last))
    }

    /// Keeps the first `len` values.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            drop(self.pop());
        }
    }

    /// Keeps the values for which `wanted` holds.
    pub fn retain(&mut self, wanted: impl Fn(&T) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            if wanted(&self[at]) {
                self.swap(kept, at);
                kept += 1;
            }
        }
        self.truncate(kept);
    }

    fn give_back(&mut self) {
        if self.capacity > 0 {
            let bytes = self.capacity * size_of::<T>();
            // SAFETY: the list owns the block. So many values fill more than half of it, so the
            // block's size is that of so many bytes.
            unsafe { heap::free(self.at.cast(), bytes) };
        }
    }
}

impl<T: Copy> List<T> {
    /// A list of these values.
    ///
    /// # Errors
    /// `ENOMEM`, here and below.
    pub fn of(values: &[T]) -> Result<List<T>, Errno> {
        let mut list = List::new();
        list.extend(values)?;
        Ok(list)
    }

    pub fn extend(&mut self, values: &[T]) -> Result<(), Errno> {
        self.reserve(values.len())?;
        values.iter().try_for_each(|value| self.push(*value))
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        self.truncate(0);
        self.give_back();
    }
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List::new()
    }
}

impl<T> Deref for List<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: so many values were written there.
        unsafe { std::slice::from_raw_parts(self.values(), self.len) }
    }
}

impl<T> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: so many values were written there, and the list is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.values_mut(), self.len) }
    }
}

/// Iterates over its values by value, in order.
impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = Values<T>;
    fn into_iter(self) -> Values<T> {
        let mut list = self;
        list.reverse();
        Values(list)
    }
}

/// See [`List::into_iter`].
pub(crate) struct Values<T>(List<T>);

impl<T> Iterator for Values<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.0.pop()
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for List<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(f)
    }
}

/// One value in memory of its own.
pub(crate) struct Own<T> {
    at: NonNull<T>,
    owned: PhantomData<T>,
}

// SAFETY: only this owner reaches the value, and the value goes with it to the other thread.
unsafe impl<T: Send> Send for Own<T> {}

impl<T> Own<T> {
    /// # Errors
    /// `ENOMEM`.
    pub fn new(value: T) -> Result<Own<T>, Errno> {
        const { assert!(align_of::<T>() <= 64) };
        let at = heap::allocate(size_of::<T>())?.cast::<T>();
        // SAFETY: allocated just above, as large as the value, and aligned for it, as asserted.
        unsafe { at.write(value) };
        Ok(Own { at, owned: PhantomData })
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // SAFETY: `new` wrote the value, and no code uses it from here on.
        unsafe {
            self.at.drop_in_place();
            heap::free(self.at.cast(), size_of::<T>());
        }
    }
}

impl<T> Deref for Own<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `new` has written the value, and the block stays while `self` does.
        unsafe { self.at.as_ref() }
    }
}

impl<T> DerefMut for Own<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `new` wrote the value, which this owns and which is borrowed exclusively.
        unsafe { self.at.as_mut() }
    }
}

/// Returns the extents of a range that hold such pages.
pub(crate) fn listed(
    pagemap: &Pagemap,
    range: PageRange,
    pages: Pages,
) -> Result<List<PageRange>, Errno> {
    let (mut list, mut noted) = (List::new(), Ok(()));
    pagemap.extents(range, pages, |extent| {
        if noted.is_ok() {
            noted = list.push(extent);
        }
    })?;
    noted.map(|()| list)
}

/// Adds a page, which comes after all others.
pub(super) fn add_page(extents: &mut List<PageRange>, page: PageRange) -> Result<(), Errno> {
    match extents.last_mut() {
        Some(last) if last.end == page.start => last.end = page.end,
        _ => extents.push(page)?,
    }
    Ok(())
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::rc::Rc;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8),
        Insert(u8, usize),
        Remove(usize),
        Truncate(usize),
        RetainEven,
        Reverse,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => any::<u8>().prop_map(Step::Push),
            2 => (any::<u8>(), any::<usize>()).prop_map(|(value, at)| Step::Insert(value, at)),
            2 => any::<usize>().prop_map(Step::Remove),
            1 => any::<usize>().prop_map(Step::Truncate),
            1 => Just(Step::RetainEven),
            1 => Just(Step::Reverse),
        ];
        prop::collection::vec(step, 0..60)
    }

    /// A scan makes a list each time: a program that runs for months would lose its memory.
    #[test]
    fn memory_of_a_list_is_used_again() {
        const ROUNDS: usize = 200;
        let used: std::collections::HashSet<usize> = (0..ROUNDS)
            .map(|_| {
                let mut list = List::of(&[0u64; 8]).unwrap();
                list.reserve(1500).unwrap();
                list.as_ptr() as usize
            })
            .collect();
        // Tests beside this one may take a block in between.
        assert!(used.len() < ROUNDS / 2, "{} blocks for {ROUNDS} lists", used.len());
    }

    proptest! {
        #[test]
        fn behaves_as_a_vec_and_drops_each_value_once(steps in steps()) {
            let alive = Rc::new(());
            let made = |value: u8| (value, Rc::clone(&alive));
            let (mut list, mut model) = (List::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Push(value) => {
                        list.push(made(value)).unwrap();
                        model.push(value);
                    }
                    Step::Insert(value, at) => {
                        let at = at % (model.len() + 1);
                        list.insert(at, made(value)).unwrap();
                        model.insert(at, value);
                    }
                    Step::Remove(at) if !model.is_empty() => {
                        let at = at % model.len();
                        prop_assert_eq!(list.remove(at).0, model.remove(at));
                    }
                    Step::Remove(_) => prop_assert!(list.pop().is_none()),
                    Step::Truncate(len) => {
                        let len = len % (model.len() + 1);
                        list.truncate(len);
                        model.truncate(len);
                    }
                    Step::RetainEven => {
                        list.retain(|value| value.0 % 2 == 0);
                        model.retain(|value| value % 2 == 0);
                    }
                    Step::Reverse => {
                        list.reverse();
                        model.reverse();
                    }
                }
                let values: Vec<u8> = list.iter().map(|value| value.0).collect();
                prop_assert_eq!(&values, &model);
                prop_assert_eq!(Rc::strong_count(&alive), model.len() + 1);
            }
            let moved = list;
            let values: Vec<u8> = moved.into_iter().map(|value| value.0).collect();
            prop_assert_eq!(values, model);
            prop_assert_eq!(Rc::strong_count(&alive), 1);
        }
    }
}
