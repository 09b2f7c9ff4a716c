//! Pins and makers whose guards the program has forgotten, because it counts them itself, as the C
//! library does.

#![allow(unsafe_code, reason = "only the caller knows what refers to the bytes")]

use super::object::SharedVolatile;
use super::state::{Kind, State};
use crate::error::Result;
use crate::os::signal::Blocked;

impl SharedVolatile {
    /// Takes away a pin whose guard was given to [`std::mem::forget`], for callers that count their
    /// pins themselves, as the C library does. If it is the process's last pin and the process
    /// still makes the chunk, the chunk is gone. Returns `false` if this process does not have the
    /// chunk pinned.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// std::mem::forget(shared.get_or_make(0, |_| ())?);
    /// // SAFETY: the pin above was forgotten, and nothing refers to the bytes.
    /// assert!(unsafe { shared.unpin(0) }?);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Safety
    /// There is such a pin, or no pin at all, and nothing refers to the bytes through it any more.
    ///
    /// # Errors
    /// `EINVAL`: there is no such chunk.
    pub unsafe fn unpin(&self, chunk: usize) -> Result<bool> {
        self.check("SharedVolatile::unpin", chunk)?;
        Ok(self.region().unpin_forgotten(chunk))
    }

    /// Ends the making of a chunk whose [`Maker`](super::Maker) was given to
    /// [`std::mem::forget`]. `made`: the bytes are complete. The pin stays. Returns `false` if this
    /// process does not make the chunk.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// std::mem::forget(shared.pin(0)?);
    /// // SAFETY: the maker above was forgotten, and nothing refers to the bytes.
    /// assert!(unsafe { shared.end_making(0, true) }?);
    /// assert!(shared.read(0)?.is_some());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Safety
    /// No [`Maker`](super::Maker) of the chunk lives in this process, and nothing writes to its
    /// bytes.
    ///
    /// # Errors
    /// `EINVAL`: there is no such chunk. `EUSERS`: as [`SharedVolatile::pin`].
    pub unsafe fn end_making(&self, chunk: usize, made: bool) -> Result<bool> {
        let call = "SharedVolatile::end_making";
        self.check(call, chunk)?;
        let own = self.region().slots.own(call)?;
        let blocked = Blocked::all();
        let state = self.region().chunk(chunk).load();
        if state.kind() != Kind::Making || state.owner() != own {
            return Ok(false);
        }
        if made {
            self.region().settle(chunk, &blocked, State::intact);
        } else {
            let zero = self.region().discard(chunk, &blocked);
            self.region().settle(chunk, &blocked, |state| state.purged(true, zero));
        }
        Ok(true)
    }
}
