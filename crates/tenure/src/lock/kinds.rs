//! When pages are locked, and the kinds of lock.

/// When pages are locked.
///
/// ```
/// use tenure::lock::{lock, When};
/// let memory = tenure::Mapping::anonymous(8192)?;
/// let key = lock(memory.as_ptr(), 4096, When::Now)?; // resident when this returns
/// let table = lock(memory.as_ptr().wrapping_add(4096), 4096, When::OnFault)?; // once touched
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "MLOCK_ONFAULT")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// All of them now; they are made resident first.
    Now,
    /// Each when it is first touched (`MLOCK_ONFAULT`, 4.4+).
    OnFault,
}

/// A set of kinds of lock.
///
/// ```
/// use tenure::lock::{munlock2, Kinds};
/// let memory = tenure::Mapping::anonymous(4096)?;
/// munlock2(memory.as_ptr(), 4096, Kinds { now: true, on_fault: false })?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kinds {
    /// Locks made with [`When::Now`], `mlock`, `mlockall(MCL_CURRENT)` or `MAP_LOCKED`.
    pub now: bool,
    /// Locks made with [`When::OnFault`], `MLOCK_ONFAULT`, `MCL_ONFAULT` or `MAP_LOCKONFAULT`.
    pub on_fault: bool,
}

impl Kinds {
    /// Both kinds.
    ///
    /// ```
    /// use tenure::lock::Kinds;
    /// assert!(Kinds::ALL.now && Kinds::ALL.on_fault);
    /// ```
    pub const ALL: Kinds = Kinds { now: true, on_fault: true };

    pub(super) fn has(self, when: When) -> bool {
        match when {
            When::Now => self.now,
            When::OnFault => self.on_fault,
        }
    }

    pub(super) fn with(self, when: When) -> Kinds {
        match when {
            When::Now => Kinds { now: true, ..self },
            When::OnFault => Kinds { on_fault: true, ..self },
        }
    }

    pub(super) fn without(self, other: Kinds) -> Kinds {
        Kinds { now: self.now && !other.now, on_fault: self.on_fault && !other.on_fault }
    }
}
