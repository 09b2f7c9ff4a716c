//! Shared memory that this process has open: the mapped memory, and the process's slot.

#![allow(unsafe_code, reason = "regions are in a list through themselves")]

use super::bar::Bar;
use super::chunk::{Found, MOST_PINS};
use super::function::FunctionPlace;
use super::layout::{Shape, Use};
use super::memory::Memory;
use super::slots::Slots;
use super::state::{Kind, State};
use super::threads::Threads;
use crate::error::{Error, ErrorKind, Result};
use crate::os::generation;
use crate::os::shared_file::SharedFile;
use crate::os::signal::Blocked;
use crate::runtime::fork;
use crate::sync::{AtomicU64, Ordering};
use crate::tracking::detection::{self, Detection, Kind as Watch};
use rustix::io::Errno;
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module's head. A process that has the file open twice has two regions.
pub(super) struct Region {
    memory: Memory,
    /// The program's view cannot be written.
    pub read_only: bool,
    /// Whether a pin makes a chunk young. In a cache a chunk is as old as its values.
    ages_by_use: bool,
    pub slots: Slots,
    /// How this process makes a chunk that is gone.
    pub refill: FunctionPlace,
    /// The descriptors' [`epoch`](detection::epoch) in which the view was registered. 0: it is not
    /// registered.
    watched: AtomicU64,
    /// Set in a child that userfaultfd cannot watch, of memory that needs it.
    bar: Bar,
    /// Where [`strays`](super::strays) goes on: an offset in the data.
    pub strays_at: AtomicU64,
    /// Another process was purging when this one last tried to purge.
    pub gave_way: AtomicBool,
    /// The threads of this process that make chunks.
    pub threads: Threads,
    /// The next in the list of regions. Only the list uses it, under its lock.
    pub next: UnsafeCell<Option<Arc<Region>>>,
}

// SAFETY: `next` is used only under the list's lock, and everything else can be shared.
unsafe impl Sync for Region {}
// SAFETY: any thread may use and drop the fields. `next` is used only under the list's lock.
unsafe impl Send for Region {}

/// After at most this time a waiter checks whether the process that it waits for lives.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// How many times a pin waits for another process's system call.
const PATIENCE: u32 = 20;

impl Deref for Region {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Region {
    /// Maps a file. The caller then [takes a slot](Slots::enter). `new`: see [`Memory::map`].
    pub fn map(
        call: &'static str,
        file: SharedFile,
        new: Option<Shape>,
        usage: Use,
        read_only: bool,
    ) -> Result<Region> {
        let memory = Memory::map(call, file, new, usage, read_only)?;
        Ok(Region {
            memory,
            read_only,
            ages_by_use: usage == Use::Chunks,
            slots: Slots::new(),
            refill: FunctionPlace::new(),
            watched: AtomicU64::new(0),
            bar: Bar::new(),
            strays_at: AtomicU64::new(0),
            gave_way: AtomicBool::new(false),
            threads: Threads::new(),
            next: UnsafeCell::new(None),
        })
    }

    /// Pins a chunk if it is intact, and this process has fewer than `most` pins of it. `false`: the
    /// chunk is not pinned, and [`pin`](Self::pin) finds the reason.
    ///
    /// The result is in a register, so a caller builds its guard in place. A guard inside two enums
    /// was copied through memory twice: 8 of 56 ns (Xeon).
    pub fn pin_intact(&self, chunk: usize, most: u16) -> bool {
        if self.count_one("pin", chunk, most).is_err() {
            return false;
        }
        let is_intact = self.chunk(chunk).look(None) == Found::Intact && self.has_access();
        if !is_intact {
            self.unpin(chunk);
        }
        is_intact
    }

    /// Counts a pin.
    #[inline]
    fn count_one(&self, call: &'static str, chunk: usize, most: u16) -> Result<()> {
        fork::look();
        let record = self.chunk(chunk);
        self.while_counting(chunk, || {
            // The private count first: a child that is made in between has the pin, and counts it
            // there.
            self.count(chunk).fetch_add(1, Ordering::Relaxed);
            let counted = self.slots.own_now(call).and_then(|own| match record.count(own, most) {
                true => Ok(()),
                false => Err(too_many_pins(call)),
            });
            if counted.is_err() {
                self.count(chunk).fetch_sub(1, Ordering::Relaxed);
            }
            counted
        })?;
        self.slots.inheritance.pinned();
        if self.ages_by_use {
            let tick = self.facts().tick.load(Ordering::Relaxed);
            if record.used.load(Ordering::Relaxed) != tick {
                record.used.store(tick, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Pins a chunk and looks at it. `make`: the caller makes a chunk that is gone, and first
    /// provides its memory.
    pub fn pin(&self, call: &'static str, chunk: usize, make: bool) -> Result<Found> {
        self.count_one(call, chunk, MOST_PINS)?;
        let record = self.chunk(chunk);
        let mut found = record.look(None);
        let mut patience = PATIENCE;
        loop {
            match found {
                Found::Gone(_) if make => {
                    found = self.look_to_make(call, chunk).inspect_err(|_| self.unpin(chunk))?;
                }
                // Another process is in a system call, or stopped in it.
                Found::Busy(state) if make && state.kind() != Kind::Making && patience > 0 => {
                    patience -= 1;
                    let _ = self.wait(chunk, state, None);
                    found = record.look(None);
                }
                _ => break,
            }
        }
        match found {
            Found::Gone(_) => self.unpin(chunk),
            Found::Damaged => {
                self.unpin(chunk);
                return Err(damaged(call));
            }
            Found::Intact if !self.has_access() => {
                self.unpin(chunk);
                return Err(needs_userfaultfd(call));
            }
            Found::Intact | Found::ToMake(..) | Found::Busy(_) => {}
        }
        Ok(found)
    }

    /// Looks at a chunk that the caller has pinned, to take the right to make it.
    #[cold]
    fn look_to_make(&self, call: &'static str, chunk: usize) -> Result<Found> {
        let _blocked = Blocked::all();
        if !self.has_access() {
            return Err(needs_userfaultfd(call));
        }
        let own = self.slots.own_now(call)?;
        Ok(self.chunk(chunk).look(Some((own, generation::current()))))
    }

    /// Takes a pin away.
    #[inline]
    pub fn unpin(&self, chunk: usize) {
        fork::look();
        self.while_counting(chunk, || {
            self.slots.before_uncount(self.chunk(chunk));
            self.uncount_one(chunk);
        });
    }

    #[inline]
    fn uncount_one(&self, chunk: usize) {
        // The private count first: a child that is made in between has no thread that would take
        // the pin away.
        let pins = self.count(chunk).fetch_sub(1, Ordering::Relaxed);
        self.close_if_barred(chunk, pins - 1);
        self.slots.uncount(self.chunk(chunk));
    }

    /// Takes away a pin whose guard was forgotten. If it is this process's last pin and the process
    /// still makes the chunk, then its maker was forgotten too, and the chunk is gone. Returns
    /// `false` if there is no such pin.
    pub fn unpin_forgotten(&self, chunk: usize) -> bool {
        fork::look();
        self.while_counting(chunk, || {
            let count = self.count(chunk);
            let mut pins = count.load(Ordering::Relaxed);
            loop {
                if pins == 0 {
                    return false;
                }
                self.slots.before_uncount(self.chunk(chunk));
                let state = self.chunk(chunk).load();
                // The private count first, as in `unpin`.
                let change =
                    count.compare_exchange(pins, pins - 1, Ordering::SeqCst, Ordering::Relaxed);
                match change {
                    Ok(1) => {
                        self.give_up(chunk, state);
                        break;
                    }
                    Ok(_) => break,
                    Err(now) => pins = now,
                }
            }
            self.close_if_barred(chunk, pins - 1);
            self.slots.uncount(self.chunk(chunk));
            true
        })
    }

    /// Gives up the making of a chunk. In the state `was`, no other thread of this process had a
    /// pin of the chunk or the right to make it. If this process still makes the chunk in that
    /// state, the chunk is gone. Another thread may be the maker by now, but only in another state,
    /// because other processes still see the caller's pin.
    fn give_up(&self, chunk: usize, was: State) {
        let blocked = Blocked::all();
        let is_it = self.chunk(chunk).load().awaited() == was.awaited();
        let own = self.slots.own_or_none();
        if is_it && was.kind() == Kind::Making && own == Some(was.owner()) {
            let zero = self.discard(chunk, &blocked);
            self.settle(chunk, &blocked, |state| state.purged(true, zero));
        }
    }

    /// Waits until the state changes, at most until `until`. If the process that must change it has
    /// died, removes what that process left.
    ///
    /// # Errors
    /// The errors of [`Memory::wait_no_longer_for_the_dead`]. The caller passes them to
    /// [`Waiting`](super::waiting::Waiting).
    pub fn wait(
        &self,
        chunk: usize,
        mut state: State,
        until: Option<Instant>,
    ) -> std::result::Result<(), Errno> {
        let record = self.chunk(chunk);
        if !state.is_awaited() {
            let awaited = state.awaited();
            let marked = record.state.compare_exchange(
                state.0,
                awaited.0,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if marked.is_err() {
                return Ok(());
            }
            state = awaited;
        }
        let left =
            until.map_or(LOOK_AFTER, |until| until.saturating_duration_since(Instant::now()));
        self.sleep(chunk, state, left.min(LOOK_AFTER));
        match record.load() == state {
            true => self.wait_no_longer_for_the_dead(state.owner()),
            false => Ok(()),
        }
    }

    /// Registers the view with userfaultfd, so that a touch of purged bytes raises SIGBUS. Runs on
    /// the background thread, or in a child.
    ///
    /// # Errors
    /// `ENOSYS`: this process does without userfaultfd. Others that [pass](detection::is_passing).
    pub fn watch(&self) -> std::result::Result<(), Errno> {
        // Users of kept chunks have mappings of their own.
        if self.shape.asked != 0 || !detection::by_userfaultfd() {
            return Err(Errno::NOSYS);
        }
        let epoch = detection::epoch();
        detection::register(Watch::Sigbus, self.view())?;
        self.watched.store(epoch, Ordering::Release);
        Ok(())
    }

    /// Tells all processes that this one has the memory open and is not watched. A process that is
    /// barred does no harm.
    pub fn tell_unwatched(&self) {
        if self.shape.asked == 0 && !self.bar.is_set() {
            self.facts().unwatched.store(1, Ordering::Relaxed);
        }
    }

    /// [Watches](Self::watch) a view whose watch has ended.
    pub fn watch_again(&self) {
        if self.bar.is_set() {
            self.unbar();
            return;
        }
        // If the program has closed the userfaultfd, this thread cannot replace it.
        if self.is_watched_here() || detection::is_lost() {
            return;
        }
        // If it was never watched, it is being opened, and the opener tells.
        let has_ended = self.watched.load(Ordering::Relaxed) != 0;
        match self.watch() {
            Err(errno) if has_ended && errno != Errno::AGAIN => self.tell_unwatched(),
            _ => {}
        }
    }

    /// [Watches](Self::watch) the view of a child.
    pub fn watch_in_child(&self) {
        self.bar.reset_in_child();
        match self.watch() {
            // A child of a child that was barred.
            Ok(()) if self.bar.is_set() => _ = self.unbar(),
            Ok(()) => {}
            Err(_) if self.needs_watch() => self.set_bar(),
            Err(_) => self.tell_unwatched(),
        }
    }

    /// Returns whether threads may touch the bytes without a pin, in any process, and refill
    /// functions make them. A page of zeros, which the touch of a process that is not watched puts
    /// into a chunk that is gone, would be wrong bytes for them.
    pub fn needs_watch(&self) -> bool {
        self.shape.refilled && self.facts().unwatched.load(Ordering::Relaxed) == 0
    }

    /// In a child: from now on this process can touch only the chunks that it has pinned and that
    /// are made, and can pin no more, until it is watched.
    fn set_bar(&self) {
        self.bar.set();
        let is_closed = |chunk: &usize| {
            let is_made =
                || matches!(self.chunk(*chunk).load().kind(), Kind::Intact | Kind::Checked);
            self.count(*chunk).load(Ordering::Relaxed) == 0 || !is_made()
        };
        let mut chunk = 0;
        while chunk < self.shape.chunks {
            let run = (chunk..self.shape.chunks).take_while(is_closed).count();
            if run > 0 && self.close(chunk..chunk + run).is_err() {
                // At the limit of mappings all of it is closed: that splits none.
                let _ = self.close(0..self.shape.chunks);
                return;
            }
            chunk += run.max(1);
        }
    }

    /// After a look has found the chunk intact, so that its pin keeps it so: whether this process
    /// may touch it. If a handler makes a child after this, the child has this access, too.
    #[inline]
    fn has_access(&self) -> bool {
        !self.bar.is_set() || self.unbar()
    }

    /// Ends the bar if the view can be watched by now.
    #[cold]
    fn unbar(&self) -> bool {
        let _blocked = Blocked::all();
        // A thread of a higher priority must not keep the others from running.
        let wait = || std::thread::sleep(Duration::from_micros(50));
        self.watch().is_ok() && self.bar.end(wait, || self.open(self.read_only).is_ok())
    }

    /// In a process that is barred the end of its last pin of a chunk ends its access. The pin
    /// still counts for other processes. `pins`: those that are left.
    #[inline]
    fn close_if_barred(&self, chunk: usize, pins: u32) {
        if pins == 0 && self.bar.is_set() {
            self.close_one(chunk);
        }
    }

    #[cold]
    fn close_one(&self, chunk: usize) {
        let _blocked = Blocked::all();
        self.bar.while_set(|| {
            if self.close(chunk..chunk + 1).is_err() {
                let _ = self.close(0..self.shape.chunks);
            }
        });
    }

    /// Returns whether userfaultfd watches the memory in this process.
    pub fn is_watched_here(&self) -> bool {
        self.watched.load(Ordering::Acquire) == detection::epoch()
            && detection::detection() == Detection::Userfaultfd
            && !detection::is_missing()
    }

    /// Returns whether a touch of purged bytes raises SIGBUS. Not if any process has the memory open
    /// that is not watched: its touch puts zeros there for all.
    pub fn is_watched(&self) -> bool {
        let is_told = self.facts().unwatched.load(Ordering::Relaxed) != 0;
        self.is_watched_here() && !is_told && !detection::is_lost()
    }
}

impl Region {
    /// Gives the process's slot back. The drop does that, too, but perhaps after the descriptor was
    /// closed.
    pub fn leave(&mut self) {
        self.slots.leave(&self.memory);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.leave();
    }
}

pub(super) fn damaged(call: &'static str) -> Error {
    let why = "the chunk's state is not one of tenure's: a process has overwritten it";
    Error::new(ErrorKind::BadHeader, call, why, "make the shared memory anew")
}

#[cold]
pub(super) fn needs_userfaultfd(call: &'static str) -> Error {
    let why = "refill functions make this memory, and threads touch it without pins; this process has no \
        userfaultfd, so its touch of bytes that are gone would put zeros there for all processes";
    let remedy =
        "allow userfaultfd (`tenure doctor`) and a free descriptor, and call start_worker in a \
        child; or make the memory without a refill function, or in a process without userfaultfd";
    Error::new(ErrorKind::Unsupported, call, why, remedy)
}

pub(super) fn too_many_pins(call: &'static str) -> Error {
    let why = "this process has the chunk pinned 32,000 times";
    Error::new(ErrorKind::TooMany, call, why, "drop guards that are not in use")
}
