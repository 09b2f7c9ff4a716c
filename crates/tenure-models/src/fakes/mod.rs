//! Minimal substitutes for parts that the core's files use and that no model is about.

pub(crate) mod heap;
pub(crate) mod os;

/// The interval map's lock, and those of a cache's table and of the waits. The order of locks is
/// not asserted here.
pub(crate) mod lock {
    use std::ops::{Deref, DerefMut};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Rank {
        IntervalMap,
        CacheShard,
        Waits,
    }

    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);
    pub(crate) struct Guard<'a, T>(loom::sync::MutexGuard<'a, T>);

    impl<T> Lock<T> {
        pub fn new(_rank: Rank, value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        pub fn lock_unless_mine(&self) -> Option<Guard<'_, T>> {
            Some(self.lock())
        }
        pub fn lock(&self) -> Guard<'_, T> {
            Guard(self.0.lock().unwrap())
        }

        /// There are no signals.
        pub fn lock_signals_blocked(&self) -> Guard<'_, T> {
            self.lock()
        }

        pub fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock().ok().map(Guard)
        }

        /// No signal handler interrupts a thread here.
        pub fn is_mine(&self) -> bool {
            false
        }
    }

    /// The same.
    pub(crate) fn may_lock(_rank: Rank) -> bool {
        true
    }

    /// Forks are not modelled.
    impl<T> Lock<T> {
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap()
        }

        pub fn hold(&self) {
            unreachable!()
        }

        pub fn release(&self) {
            unreachable!()
        }

        pub fn reset_in_child(&self) -> bool {
            unreachable!()
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }

    pub(crate) fn assert_none_held() {}
}

pub(crate) mod fork {
    pub(crate) fn count() -> u32 {
        0
    }

    pub(crate) fn look() {}
}

pub(crate) mod services {
    pub(crate) fn retry<T, E>(
        mut attempt: impl FnMut() -> Result<T, E>,
        _wanting: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        attempt()
    }
}

pub(crate) mod worker {
    /// The model's thread that calls this acts as the worker.
    pub(crate) fn on_worker<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
        Some(act())
    }

    pub(crate) fn is_worker() -> bool {
        true
    }

    pub(crate) fn running() -> bool {
        true
    }
}

pub(crate) mod backpressure {
    pub(crate) fn count(_bytes: u64) {}
    pub(crate) fn exposed(_bytes: u64) {}
}

pub(crate) mod settings {
    pub(crate) struct Priority;

    impl Priority {
        pub const DEFAULT: Priority = Priority;
        pub fn level(self) -> u8 {
            1
        }
    }

    pub(crate) fn purge_always() -> bool {
        false
    }
}

/// Detection by userfaultfd.
pub(crate) mod detection {
    use crate::os::KERNEL;
    use crate::range::PageRange;
    use rustix::io::Errno;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Kind {
        Sigbus,
        Refill,
    }

    pub(crate) fn by_userfaultfd() -> bool {
        true
    }

    /// No descriptor is ever closed.
    pub(crate) fn is_of_descriptor(_errno: Errno) -> bool {
        false
    }

    pub(crate) fn epoch() -> u64 {
        0
    }

    pub(crate) fn wait_until_replaced() {}

    pub(crate) fn register(_kind: Kind, range: PageRange) -> Result<(), Errno> {
        KERNEL.watch(range);
        Ok(())
    }

    /// There is one process.
    pub(crate) fn have_forks_copy(_kind: Kind, _page: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// The program maps nothing in the place of offered memory.
    pub(crate) fn is_watched(_kind: Kind, _page: usize) -> bool {
        true
    }

    pub(crate) fn unregister(_kind: Kind, range: PageRange) -> Result<(), Errno> {
        KERNEL.end_watch(range)
    }

    pub(crate) fn is_closed(_errno: Errno) -> bool {
        false
    }

    pub(crate) fn is_lost() -> bool {
        false
    }

    pub(crate) fn is_missing() -> bool {
        false
    }

    pub(crate) fn recover(_give_up: impl Fn() + Sync) {}
}

pub(crate) mod error {
    #[derive(Debug)]
    pub(crate) enum ErrorKind {
        OutOfMemory,
    }

    #[derive(Debug)]
    pub(crate) struct Error;

    impl Error {
        pub fn new(_: ErrorKind, _: &'static str, _: &'static str, _: &'static str) -> Error {
            Error
        }
    }

    pub(crate) type Result<T> = std::result::Result<T, Error>;
}

/// Owned memory: the kernel knows it from `map` on, and it is unmapped on drop.
pub(crate) mod mapping {
    use crate::os::KERNEL;
    use crate::range::PageRange;

    #[derive(Debug)]
    pub(crate) struct Mapping(PageRange);

    impl Mapping {
        pub fn map(range: PageRange) -> Mapping {
            KERNEL.map(range);
            Mapping(range)
        }

        pub fn range(&self) -> PageRange {
            self.0
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            KERNEL.unmap(self.0);
        }
    }
}

/// Always room.
pub(crate) mod mapping_room {
    use crate::range::PageRange;

    pub(crate) struct MappingRoom;

    impl MappingRoom {
        pub const fn new(_share: usize) -> MappingRoom {
            MappingRoom
        }

        pub fn may_cut(&self, _range: PageRange) -> bool {
            true
        }
    }
}

/// Everything fits.
pub(crate) mod budget {
    pub(crate) fn limit_at_last_look() -> u64 {
        u64::MAX
    }
}
