//! What a pin of a chunk finds, and what the program does with it.

#![allow(unsafe_code, reason = "gives out the bytes of a chunk under a pin")]

use super::chunk::Found;
use super::purge;
use super::refill;
use super::region::Region;
use super::state::{Kind, State};
use super::waiting::Waiting;
use crate::error::{Error, ErrorKind, Result};
use crate::os::signal::Blocked;
use crate::os::{generation, populate};
use crate::runtime::refills::RefillError;
use crate::text::text;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// What a pin of a chunk found.
///
/// ```
/// use tenure::shared::{SharedPin, SharedVolatile};
/// let shared = SharedVolatile::new(1 << 20)?;
/// match shared.pin(0)? {
///     SharedPin::Intact(bytes) => println!("{}", bytes[0]),
///     SharedPin::ToMake(mut maker) => {
///         maker.fill(7); // only this caller has the right to make the bytes,
///         maker.finish()?; // and it publishes them
///     }
///     SharedPin::BeingMade(other) => drop(other), // or wait for it
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the chunk is pinned until this is dropped"]
pub enum SharedPin<'a> {
    /// Every byte is as its maker left it.
    Intact(SharedChunk<'a>),
    /// Its bytes are gone, or were never made. Only this caller gets the right to make them.
    ToMake(Maker<'a>),
    /// Another thread or process makes the bytes. (Or it gives their memory back, and is stopped
    /// meanwhile.)
    BeingMade(BeingMade<'a>),
}

/// The state of a chunk before its maker got it.
///
/// ```
/// use tenure::shared::{Before, SharedPin, SharedVolatile};
/// let shared = SharedVolatile::new(1 << 20)?;
/// let SharedPin::ToMake(maker) = shared.pin(0)? else { unreachable!() };
/// assert_eq!(maker.before(), Before::Fresh);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Before {
    /// It was never made.
    Fresh,
    /// It was made, and purged.
    Purged,
    /// A maker died or gave up before it had finished.
    HalfMade,
    /// It is intact, and its maker changes it in place ([`remake`](super::SharedVolatile::remake)).
    Intact,
}

impl Before {
    pub(super) fn of(was: State) -> Before {
        match was.kind() {
            _ if was.was_half_made() => Before::HalfMade,
            Kind::Fresh => Before::Fresh,
            _ => Before::Purged,
        }
    }
}

/// A pinned, intact chunk. The pin ends when this is dropped.
///
/// ```
/// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
/// let chunk = shared.get_or_make(0, |bytes| bytes.fill(7))?;
/// assert_eq!(chunk[100], 7);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedChunk<'a> {
    pin: Pin<'a>,
}

/// The right to make a chunk's bytes, which no other thread or process has. The chunk's memory is
/// there, and all zeros, unless [`remake`](super::SharedVolatile::remake) returned this. If it is
/// dropped without [`finish`](Maker::finish), the bytes are gone, and the next pin gets the right.
///
/// A child that is forked meanwhile has a copy of this, but not the right: `finish` fails there
/// with `EBUSY`, and a use as `&mut [u8]` panics.
///
/// ```
/// use tenure::shared::{SharedPin, SharedVolatile};
/// let shared = SharedVolatile::new(1 << 20)?;
/// let SharedPin::ToMake(mut maker) = shared.pin(3)? else { unreachable!() };
/// maker[..5].copy_from_slice(b"hello");
/// assert_eq!(&maker.finish()?[..5], b"hello");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the chunk's bytes are gone if this is dropped without finish()"]
pub struct Maker<'a> {
    pin: Pin<'a>,
    before: Before,
    /// The process that got the right. A child's copy makes nothing.
    process: u64,
}

/// A chunk that another thread or process makes. It is pinned, so it stays after it was made.
///
/// ```
/// use tenure::shared::{SharedPin, SharedVolatile};
/// let shared = SharedVolatile::new(1 << 20)?;
/// let SharedPin::ToMake(maker) = shared.pin(0)? else { unreachable!() };
/// let SharedPin::BeingMade(other) = shared.pin(0)? else { unreachable!() };
/// maker.finish()?;
/// assert!(matches!(other.wait(None)?, SharedPin::Intact(_)));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
pub struct BeingMade<'a> {
    pin: Pin<'a>,
}

impl<'a> SharedChunk<'a> {
    /// The guard of an intact chunk for which the caller has counted a pin.
    #[inline]
    pub(super) fn pinned(region: &'a Region, chunk: usize) -> SharedChunk<'a> {
        SharedChunk { pin: Pin { region, chunk } }
    }
}

#[derive(Debug)]
struct Pin<'a> {
    region: &'a Region,
    chunk: usize,
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.region.unpin(self.chunk);
    }
}

impl Pin<'_> {
    fn address(&self) -> usize {
        self.region.view_of(self.chunk).start
    }

    fn bytes(&self) -> &[u8] {
        let len = self.region.shape.chunk;
        // SAFETY: the view is mapped as long as the object lives, and the memory is there while the
        // chunk is pinned. Only a maker writes, and no chunk with a maker is intact. For other
        // processes see `SharedVolatile::open`.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, len) }
    }
}

impl<'a> SharedPin<'a> {
    /// Pins a chunk, and makes its memory if the caller gets the right to make the chunk.
    pub(super) fn take(
        call: &'static str,
        region: &'a Region,
        chunk: usize,
    ) -> Result<SharedPin<'a>> {
        if region.shape.refilled && !region.read_only {
            return SharedPin::take_refilled(call, region, chunk);
        }
        let found = region.pin(call, chunk, !region.read_only)?;
        if let Found::ToMake(was, process) = found {
            let maker = Maker::new(region, chunk, Before::of(was), process);
            return provide(call, region, chunk, was, maker).map(SharedPin::ToMake);
        }
        SharedPin::of(region, chunk, found).ok_or_else(|| {
            let why = text!("chunk {chunk} is gone, and the memory is open to read only");
            let remedy = "call read(), and let a process that may write make it";
            Error::new(ErrorKind::NoAccess, call, why, remedy)
        })
    }

    /// Pins a chunk, and makes it with this process's function, if there is one.
    fn take_refilled(
        call: &'static str,
        region: &'a Region,
        chunk: usize,
    ) -> Result<SharedPin<'a>> {
        loop {
            let found = region.pin(call, chunk, region.refill.is_set())?;
            match found {
                Found::ToMake(_, process) => {
                    let maker = Maker::new(region, chunk, Before::Purged, process);
                    let make = |bytes: &mut [u8]| region.refill.call(chunk, bytes);
                    if let Some(made) = make_by(call, maker, make)? {
                        return Ok(SharedPin::Intact(made));
                    }
                }
                Found::Busy(_) if region.refill.is_called_here_for(chunk) => {
                    region.unpin(chunk);
                    return Err(made_by_itself(call, chunk));
                }
                _ => {
                    let found = SharedPin::of(region, chunk, found);
                    return found.ok_or_else(|| refill::no_function(call, chunk));
                }
            }
        }
    }

    /// Returns the result for a chunk whose memory needs no work. Returns `None` in the other
    /// cases.
    pub(super) fn of(region: &'a Region, chunk: usize, found: Found) -> Option<SharedPin<'a>> {
        let pin = || Pin { region, chunk };
        Some(match found {
            Found::Intact => SharedPin::Intact(SharedChunk::pinned(region, chunk)),
            Found::Busy(_) => SharedPin::BeingMade(BeingMade { pin: pin() }),
            Found::ToMake(..) | Found::Gone(_) | Found::Damaged => return None,
        })
    }

    /// Ends the pin. A chunk that nobody has begun to make is as it was.
    pub(super) fn withdraw(self) {
        if let SharedPin::ToMake(maker) = self {
            maker.withdraw();
        }
    }

    /// Returns the chunk if it is intact.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// assert!(shared.pin(0)?.intact().is_none()); // it was never made
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[inline]
    pub fn intact(self) -> Option<SharedChunk<'a>> {
        match self {
            SharedPin::Intact(chunk) => Some(chunk),
            _ => None,
        }
    }
}

/// Pins a chunk of memory with refill functions. If it is gone, makes its bytes with `make`. If
/// another thread makes it, waits for that thread.
pub(super) fn get_or_fill<'a>(
    call: &'static str,
    region: &'a Region,
    chunk: usize,
    make: impl FnOnce(&mut [u8]) -> std::result::Result<(), RefillError>,
) -> Result<SharedChunk<'a>> {
    let mut make = Some(make);
    let mut waiting = Waiting::new();
    loop {
        match (region.pin(call, chunk, make.is_some())?, make.take()) {
            (Found::ToMake(_, process), Some(make)) => {
                let maker = Maker::new(region, chunk, Before::Purged, process);
                if let Some(made) = make_by(call, maker, make)? {
                    return Ok(made);
                }
            }
            (Found::Busy(state), unused) => {
                make = unused;
                if region.refill.is_called_here_for(chunk) {
                    region.unpin(chunk);
                    return Err(made_by_itself(call, chunk));
                }
                let asked = region.wait(chunk, state, None);
                region.unpin(chunk);
                waiting.looked(call, asked)?;
            }
            (found, unused) => {
                let found = SharedPin::of(region, chunk, found).and_then(SharedPin::intact);
                // While the pin is a local: if this drop panics, a pin that is already returned
                // would be lost, and last.
                drop(unused);
                // This is a child of `make`, and the parent made the chunk. It was purged since.
                return found.ok_or_else(|| refill::no_function(call, chunk));
            }
        }
    }
}

/// Makes a chunk with `make`. Returns `None` in a child that `make` has forked. After an error the
/// next pin finds the chunk gone.
fn make_by<'a>(
    call: &'static str,
    maker: Maker<'a>,
    make: impl FnOnce(&mut [u8]) -> std::result::Result<(), RefillError>,
) -> Result<Option<SharedChunk<'a>>> {
    let (region, chunk) = (maker.pin.region, maker.pin.chunk);
    purge::make_room(region, region.shape.chunk as u64);
    refill::fill(call, region, chunk, make, |put| _ = maker.act(put))?;
    let (made, mine) = maker.publish(State::intact);
    Ok(mine.then_some(made))
}

pub(super) fn made_by_itself(call: &'static str, chunk: usize) -> Error {
    let why = text!("chunk {chunk} is made by this thread, or by one that waits for it");
    let remedy = "let the function that makes a chunk write only the bytes that it gets";
    Error::new(ErrorKind::Deadlock, call, why, remedy)
}

/// Gives zeros as memory to a chunk that the caller will make. After an error the caller's pin has
/// ended, and the next pin finds what this one found.
#[cold]
fn provide<'a>(
    call: &'static str,
    region: &Region,
    chunk: usize,
    was: State,
    maker: Maker<'a>,
) -> Result<Maker<'a>> {
    let range = region.view_of(chunk);
    purge::make_room(region, range.len() as u64);
    if was.is_not_zero() {
        maker.act(|blocked| {
            if !region.discard(chunk, blocked) {
                // The kernel does not take its old memory.
                region.clear_bytes(chunk, blocked);
            }
        });
    }
    // Memory that the file allocates is there for userfaultfd, and only the view maps it: memory
    // that is mapped twice takes twice as long to give back. If the file would give pages of
    // another size, or the program has closed the descriptor, the other mapping makes the memory.
    let touched = || populate::populate(region.own_of(chunk), true).map_err(|stop| stop.errno);
    let provided = match region.by_touch {
        true => touched(),
        false => {
            region.file.allocate(region.offset_of(chunk), range.len() as u64).or_else(|_| touched())
        }
    };
    let provided =
        provided.and_then(|()| populate::populate(range, true).map_err(|stop| stop.errno));
    match provided {
        Ok(()) => Ok(maker),
        Err(errno) => {
            maker.withdraw();
            Err(Error::system(call, "making the chunk's memory resident", errno))
        }
    }
}

impl SharedChunk<'_> {
    /// Returns the chunk's number.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// assert_eq!(shared.get_or_make(2, |_| ())?.number(), 2);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn number(&self) -> usize {
        self.pin.chunk
    }
}

impl Deref for SharedChunk<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.pin.bytes()
    }
}

impl<'a> Maker<'a> {
    /// `process`: the process when it got the right, read with signals blocked.
    pub(super) fn new(region: &'a Region, chunk: usize, before: Before, process: u64) -> Maker<'a> {
        Maker { pin: Pin { region, chunk }, before, process }
    }

    /// Uses the right, if this process has it and not its parent. Signals are blocked, so no
    /// handler forks meanwhile. `false`: the parent has it.
    pub(super) fn act(&self, act: impl FnOnce(&Blocked)) -> bool {
        let blocked = Blocked::all();
        let mine = self.is_mine();
        if mine {
            act(&blocked);
        }
        mine
    }

    /// Sets the state of the chunk, which this maker has made. `false`: the parent makes it, and
    /// its state is as it was.
    pub(super) fn publish(self, to: impl Fn(State) -> State) -> (SharedChunk<'a>, bool) {
        let (region, chunk) = (self.pin.region, self.pin.chunk);
        let mine = self.act(|blocked| region.settle(chunk, blocked, to));
        std::mem::forget(self);
        (SharedChunk::pinned(region, chunk), mine)
    }

    /// Does the work of [`finish`](Self::finish) in a call of this name.
    pub(super) fn finish_in(self, call: &'static str) -> Result<SharedChunk<'a>> {
        let (made, mine) = self.publish(State::intact);
        if mine {
            return Ok(made);
        }
        let why = text!("the parent of this process makes chunk {}", made.number());
        let remedy = "in a child that was forked meanwhile, pin the chunk anew";
        Err(Error::new(ErrorKind::Busy, call, why, remedy))
    }

    /// The bytes to make.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.pin.region.shape.chunk;
        // SAFETY: mapped to write, because read-only memory gives no maker. The memory is there,
        // because the chunk is pinned. No other thread reads or writes a chunk while it has a
        // maker. In a child that has a copy of the maker the callers write nothing.
        unsafe { std::slice::from_raw_parts_mut(self.pin.address() as *mut u8, len) }
    }

    /// Returns the state of the chunk before this maker got it.
    ///
    /// ```
    /// use tenure::shared::{Before, SharedPin, SharedVolatile};
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// drop(shared.pin(0)?); // gives up
    /// let SharedPin::ToMake(maker) = shared.pin(0)? else { unreachable!() };
    /// assert_eq!(maker.before(), Before::HalfMade);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn before(&self) -> Before {
        self.before
    }

    /// Publishes the bytes: from now on others find them. Wakes the threads that wait for them.
    ///
    /// ```
    /// use tenure::shared::{SharedPin, SharedVolatile};
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// let SharedPin::ToMake(maker) = shared.pin(0)? else { unreachable!() };
    /// let chunk = maker.finish()?;
    /// assert_eq!(chunk[0], 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EBUSY`: this process was forked while its parent made the chunk. The parent still makes it.
    pub fn finish(self) -> Result<SharedChunk<'a>> {
        self.finish_in("Maker::finish")
    }

    /// Gives the right back. The maker has written nothing, and the next pin finds what this one
    /// found.
    pub(super) fn withdraw(self) {
        let (region, chunk) = (self.pin.region, self.pin.chunk);
        self.act(|blocked| {
            let _ = region.discard(chunk, blocked);
            region.settle(chunk, blocked, State::unmade);
        });
        std::mem::forget(self);
        region.unpin(chunk);
    }

    pub(super) fn is_mine(&self) -> bool {
        self.process == generation::current()
    }

    /// Returns the process that has the right.
    pub(super) fn process(&self) -> u64 {
        self.process
    }
}

impl Deref for Maker<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.pin.bytes()
    }
}

impl DerefMut for Maker<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(self.is_mine(), "the parent of this process makes the chunk: pin it anew");
        self.bytes_mut()
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        let (region, chunk) = (self.pin.region, self.pin.chunk);
        self.act(|blocked| {
            let zero = region.discard(chunk, blocked);
            region.settle(chunk, blocked, |state| state.purged(true, zero));
        });
    }
}

impl<'a> BeingMade<'a> {
    /// Waits until the chunk is made. If its maker has died or given up, one waiter gets the right
    /// to make it, and the others wait for that one: this never returns
    /// [`BeingMade`](SharedPin::BeingMade).
    ///
    /// ```
    /// use tenure::shared::{SharedPin, SharedVolatile};
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// let SharedPin::ToMake(maker) = shared.pin(0)? else { unreachable!() };
    /// let SharedPin::BeingMade(other) = shared.pin(0)? else { unreachable!() };
    /// let too_long = other.wait(Some(std::time::Duration::from_millis(1))).unwrap_err();
    /// assert_eq!(too_long.errno(), 110); // ETIMEDOUT
    /// # drop(maker);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ETIMEDOUT`. The errors of [`pin`](super::SharedVolatile::pin). `EBADF`, `EMFILE`: the
    /// program has closed the memory's descriptor, or may open no more files, so that for five
    /// seconds this thread could not find out whether the maker lives. If the waiting thread is
    /// itself the maker, a wait without a timeout never ends.
    pub fn wait(self, timeout: Option<Duration>) -> Result<SharedPin<'a>> {
        let call = "BeingMade::wait";
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (region, chunk) = (self.pin.region, self.pin.chunk);
        let mut waiting = Waiting::new();
        loop {
            let state = region.chunk(chunk).load();
            let waits = matches!(state.kind(), Kind::Making | Kind::Purging);
            if !waits || state.owner() >= region.shape.slots {
                match SharedPin::take(call, region, chunk)? {
                    // Another waiter has taken the right since the look.
                    SharedPin::BeingMade(_) => continue,
                    found => return Ok(found),
                }
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let why = text!("chunk {chunk} is still being made");
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    call,
                    why,
                    "wait longer, or make a copy",
                ));
            }
            waiting.looked(call, region.wait(chunk, state, until))?;
        }
    }

    /// Returns the address of the chunk's first byte, for programs that make a chunk together. They
    /// must agree on how they do it. The [`Maker`] calls `finish` when all bytes are made.
    ///
    /// ```
    /// use tenure::shared::{SharedPin, SharedVolatile};
    /// let shared = SharedVolatile::new(1 << 20)?;
    /// let SharedPin::ToMake(maker) = shared.pin(0)? else { unreachable!() };
    /// let SharedPin::BeingMade(helper) = shared.pin(0)? else { unreachable!() };
    /// assert_eq!(helper.as_ptr().cast_const(), maker.as_ptr());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_ptr(&self) -> *mut u8 {
        self.pin.address() as *mut u8
    }
}
