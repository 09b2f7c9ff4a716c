//! The function that makes purged bytes again.

use crate::runtime::refills;

pub use crate::runtime::refills::RefillError;

type Function = Box<dyn Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync>;

/// How an object's purged bytes are made again.
///
/// The function runs under no lock: it may panic, fork, and use other objects, caches and ranges.
/// If it pins its own object, or waits for a thread that does, the pin fails with `EDEADLK`.
///
/// ```
/// use tenure::volatile::Refill;
/// let sevens = Refill::pages(|_offset, bytes| {
///     bytes.fill(7);
///     Ok(())
/// });
/// let mut buffer = tenure::Volatile::builder(1 << 20).refill(sevens).build()?;
/// buffer.pin_mut()?.fill(7); // a new buffer holds zeros
/// buffer.purge_now()?;
/// assert_eq!(buffer.pin()?[..4], [7, 7, 7, 7]); // made again, or still there
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct Refill {
    whole: bool,
    function: Function,
}

impl Refill {
    /// Makes purged bytes by `function(offset, bytes)`, which makes the bytes from `offset` on. It
    /// is called for single pages and for longer extents of up to 1 MiB (cut where an address is a
    /// multiple of 1 MiB), always page-aligned.
    ///
    /// ```
    /// use tenure::volatile::Refill;
    /// let refill = Refill::pages(|offset, bytes| {
    ///     bytes.fill((offset >> 12) as u8); // the number of the page that `offset` lies in
    ///     Ok(())
    /// });
    /// # let _ = refill;
    /// ```
    #[doc(alias = "userfaultfd")]
    pub fn pages(
        function: impl Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
    ) -> Refill {
        Refill { whole: false, function: Box::new(function) }
    }

    /// Makes purged bytes by `function(0, bytes)`, which makes the whole object. Only the purged
    /// pages of it are used. It needs the object's size in memory beside the rest of the object:
    /// [`Refill::pages`] serves large objects better.
    ///
    /// ```
    /// use tenure::volatile::Refill;
    /// let refill = Refill::whole(|offset, bytes| {
    ///     assert_eq!(offset, 0);
    ///     bytes.fill(7);
    ///     Ok(())
    /// });
    /// # let _ = refill;
    /// ```
    pub fn whole(
        function: impl Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
    ) -> Refill {
        Refill { whole: true, function: Box::new(function) }
    }

    /// Returns whether the function makes the whole object.
    pub(super) fn makes_whole(&self) -> bool {
        self.whole
    }

    /// Calls the function. A panic counts as a failure.
    pub(super) fn call(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RefillError> {
        refills::attempt(bytes, |bytes| (self.function)(offset, bytes))
    }
}

impl std::fmt::Debug for Refill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refill").field("whole", &self.whole).finish_non_exhaustive()
    }
}
