//! The processes that have the memory open. Each process has a slot: a place among the pins of
//! every chunk, and a lock that ends with the process. Any other process may remove what a dead
//! process left in its slot.

#![allow(unsafe_code, reason = "changes the process's slot in a forked child")]

use super::chunk::Chunk;
use super::inherit::Inheritance;
use super::layout::slot;
use super::memory::Memory;
use crate::error::{Error, ErrorKind, Result};
use crate::os::generation;
use crate::os::life_lock::LifeLock;
use crate::os::signal::Blocked;
use crate::runtime::fork;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::text::text;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicBool;

pub(super) struct Slots {
    /// The slot's number, or [`NONE`].
    own: AtomicU32,
    /// The process whose slot it is.
    process: AtomicU64,
    /// A child without a slot is being made: this slot keeps what the child inherits.
    keeps: AtomicBool,
    /// Such a child may live. The slot is not given back, and neither are the pins that the child
    /// may have.
    kept: AtomicBool,
    /// Such a child lives, and its end will not be visible.
    kept_for_good: AtomicBool,
    /// What a child that is being made inherits.
    pub inheritance: Inheritance,
    /// The thread that opens the memory changes it, and forks do, one at a time.
    lives: UnsafeCell<Lives>,
}

struct Lives {
    own: Option<LifeLock>,
    /// The lock of a child that is about to be made.
    of_child: Option<(LifeLock, u32)>,
    /// The lock of a child for which there is no slot.
    of_heir: Option<LifeLock>,
}

// SAFETY: `enter` uses `lives` before the region is shared, `leave` uses it when only the caller
// has the region, and forks use it. Only one fork runs at a time, and it holds the list of regions.
unsafe impl Sync for Slots {}
// SAFETY: any thread may use `lives`, and only one does at a time: see `Sync`.
unsafe impl Send for Slots {}

const NONE: u32 = u32::MAX;

impl Slots {
    pub fn new() -> Slots {
        Slots {
            own: AtomicU32::new(NONE),
            process: AtomicU64::new(0),
            keeps: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            kept_for_good: AtomicBool::new(false),
            inheritance: Inheritance::new(),
            lives: UnsafeCell::new(Lives { own: None, of_child: None, of_heir: None }),
        }
    }

    /// Takes a slot for this process. `new`: no other process has had the file yet.
    ///
    /// # Errors
    /// `EUSERS`: all slots are taken. The errors of opening `/proc/thread-self/fd`.
    pub fn enter(&self, call: &'static str, memory: &Memory, new: bool) -> Result<()> {
        let slots = memory.shape.slots;
        let taken = LifeLock::take(&memory.file, slots)
            .map_err(|errno| Error::system(call, "opening the file anew through /proc", errno))?;
        let Some((life, number)) = taken else {
            let why = text!("{slots} processes have the memory open, as many as its maker allowed");
            return Err(Error::new(ErrorKind::TooMany, call, why, "allow more (processes())"));
        };
        life.only_here();
        memory.clear(number, slot::USED, !new);
        // SAFETY: only this thread has the region yet, or this is the only thread of a child.
        unsafe { (*self.lives.get()).own = Some(life) };
        self.own.store(number, Ordering::Release);
        self.process.store(generation::current(), Ordering::Relaxed);
        Ok(())
    }

    /// Gives the slot back, at the region's end.
    pub fn leave(&self, memory: &Memory) {
        // A handler's child that went on here would remove what a later process has in the slot.
        let _blocked = Blocked::all();
        let own = self.own.swap(NONE, Ordering::AcqRel);
        // SAFETY: only the caller has the region.
        let lives = unsafe { &mut *self.lives.get() };
        if self.process.load(Ordering::Relaxed) != generation::current() {
            // A child of a handler that forked when the region was listed no more. Its parent's lock
            // is not mapped here.
            std::mem::forget(lives.own.take());
            return;
        }
        if own != NONE && !self.kept.load(Ordering::Relaxed) {
            memory.leave(own);
        }
        lives.own = None;
    }

    /// Returns this process's number. First it notices a fork whose handlers did not run: the child
    /// would act in its parent's slot, and others would wait for a dead child because the parent
    /// lives.
    ///
    /// # Errors
    /// `EUSERS`: this process is a child that got no slot.
    pub fn own(&self, call: &'static str) -> Result<u32> {
        fork::look();
        self.own_now(call)
    }

    /// The same, for a caller that has [looked](fork::look) and is in the midst of a pin.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    #[inline]
    pub fn own_now(&self, call: &'static str) -> Result<u32> {
        match self.own.load(Ordering::Relaxed) {
            NONE => Err(not_entered(call)),
            own => Ok(own),
        }
    }

    /// Keeps a pin for a child that is being made, before this process uncounts its own: the child
    /// may have that pin. After the uncount would be too late, because the fork may have ended in
    /// between and found no pin.
    #[inline]
    pub fn before_uncount(&self, chunk: Chunk<'_>) {
        if self.keeps.load(Ordering::SeqCst) {
            self.own_or_none().into_iter().for_each(|own| chunk.keep(own));
        }
    }

    /// Takes away a pin that this process has.
    #[inline]
    pub fn uncount(&self, chunk: Chunk<'_>) {
        // A child without a slot has no counted pin: its parent keeps them.
        self.own_or_none().into_iter().for_each(|own| chunk.uncount(own));
    }

    /// Returns this process's number, or `None` in a child that got no slot.
    #[inline]
    pub fn own_or_none(&self) -> Option<u32> {
        let own = self.own.load(Ordering::Relaxed);
        (own != NONE).then_some(own)
    }

    /// Before a fork: takes a slot for the child. The slot holds everything until the child's pins
    /// are noted in it.
    pub fn before_fork(&self, memory: &Memory) {
        let Some(own) = self.own_or_none() else { return };
        // A signal handler forks. The child continues with the count, and perhaps with this
        // process's slot.
        if let Some(chunk) = memory.counting() {
            memory.chunk(chunk).spare(own);
        }
        // SAFETY: one fork at a time comes here, and holds the list of regions.
        let lives = unsafe { &mut *self.lives.get() };
        match LifeLock::take(&memory.file, memory.shape.slots) {
            Ok(Some((life, number))) => {
                memory.clear(number, slot::USED | slot::HOLDS_ALL, false);
                // After the flag: a process that looks for pins before and after it must find one
                // of the two.
                memory.facts().forks.fetch_add(1, Ordering::SeqCst);
                self.inheritance.begin();
                for chunk in pinned(memory) {
                    memory.noted(chunk).store(1, Ordering::Relaxed);
                    memory.chunk(chunk).pins[number as usize].store(1, Ordering::SeqCst);
                }
                lives.of_child = Some((life, number));
            }
            // All slots are taken, or the program has closed the descriptor: the child can pin
            // nothing. What it inherits stays pinned in this process's slot until the child has
            // ended.
            Ok(None) | Err(_) => {
                self.kept.store(true, Ordering::Relaxed);
                self.keeps.store(true, Ordering::SeqCst);
                keep_all(memory, own);
                lives.of_heir = LifeLock::of_heirs(&memory.file, own).ok();
                if lives.of_heir.is_none() {
                    // The end of the child alone is not visible then: the pins stay until both
                    // processes have ended.
                    self.kept_for_good.store(true, Ordering::Relaxed);
                    lives.own.iter().for_each(LifeLock::also_in_children);
                }
            }
        }
    }

    /// After a fork, in parent and child. The child's lock continues in the child, if there is one.
    pub fn after_fork(&self, memory: &Memory) {
        let Some(own) = self.own_or_none() else { return };
        // SAFETY: one fork at a time comes here, and holds the list of regions.
        let lives = unsafe { &mut *self.lives.get() };
        if let Some((_life, number)) = lives.of_child.take() {
            let flags = &memory.flags()[number as usize];
            if self.inheritance.end() {
                // The child may have done it itself. No other process has the slot, because this
                // process also has its lock.
                let (from, to) = (slot::USED | slot::HOLDS_ALL, slot::USED);
                let _ = flags.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
            }
            for chunk in 0..memory.shape.chunks {
                memory.take_note(chunk);
            }
        }
        if self.keeps.load(Ordering::Relaxed) {
            // The child may also have the pins that other threads have taken since.
            keep_all(memory, own);
            self.keeps.store(false, Ordering::SeqCst);
            lives.own.iter().for_each(LifeLock::only_here);
            lives.of_heir = None;
        }
    }

    /// Releases what children without a slot had pinned, if all of them have ended. The caller
    /// makes sure that no fork is in progress.
    pub fn let_go(&self, memory: &Memory) {
        let Some(own) = self.own_or_none() else { return };
        let may_end =
            self.kept.load(Ordering::Relaxed) && !self.kept_for_good.load(Ordering::Relaxed);
        if may_end && memory.file.has_heirs(own) == Ok(false) {
            memory.each_recorded(|chunk| memory.chunk(chunk).no_longer_keep(own));
            self.kept.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether there may be pins to release.
    pub fn keeps_for_children(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    fn forget_kept(&self) {
        self.kept.store(false, Ordering::Relaxed);
        self.kept_for_good.store(false, Ordering::Relaxed);
    }

    /// In a child: takes over the slot that was prepared for it. `missed`: no handler ran, so no
    /// slot was prepared.
    pub fn in_child(&self, memory: &Memory, missed: bool) {
        // SAFETY: a child has one thread.
        let lives = unsafe { &mut *self.lives.get() };
        self.process.store(generation::current(), Ordering::Relaxed);
        self.inheritance.end();
        if missed {
            // Its parent's lock is not mapped here.
            std::mem::forget((lives.own.take(), lives.of_child.take(), lives.of_heir.take()));
            self.own.store(NONE, Ordering::Release);
            self.forget_kept();
            self.keeps.store(false, Ordering::Relaxed);
            if self.enter("fork", memory, false).is_err() {
                return;
            }
        } else if let Some((life, number)) = lives.of_child.take() {
            life.only_here();
            std::mem::forget(lives.own.replace(life));
            self.own.store(number, Ordering::Release);
            self.forget_kept();
        } else {
            // Its parent's slot stays as long as this process, and the children that it forks, have
            // the lock of heirs mapped. Its parent's own lock is not mapped here then.
            if let Some(heir) = lives.of_heir.take() {
                std::mem::forget((heir, lives.own.take()));
            }
            self.own.store(NONE, Ordering::Release);
            return;
        }
        let own = self.own.load(Ordering::Relaxed);
        for chunk in 0..memory.shape.chunks {
            let count = memory.count(chunk).load(Ordering::Relaxed);
            if memory.take_note(chunk) || count > 0 {
                let count = u16::try_from(count).unwrap_or(u16::MAX / 2);
                memory.chunk(chunk).pins[own as usize].store(count, Ordering::SeqCst);
            }
        }
        if let Some(chunk) = memory.counting() {
            memory.chunk(chunk).spare(own);
        }
        memory.flags()[own as usize].store(slot::USED, Ordering::SeqCst);
    }
}

/// Keeps what this process has pinned until [`Slots::let_go`].
fn keep_all(memory: &Memory, own: u32) {
    pinned(memory).for_each(|chunk| memory.chunk(chunk).keep(own));
}

/// Returns the chunks that this process has pinned.
fn pinned(memory: &Memory) -> impl Iterator<Item = usize> + '_ {
    (0..memory.shape.chunks).filter(|chunk| memory.count(*chunk).load(Ordering::Relaxed) > 0)
}

#[cold]
fn not_entered(call: &'static str) -> Error {
    let why = "at this process's fork as many processes had the memory open as its maker allowed, \
        or its parent had closed the descriptor";
    Error::new(
        ErrorKind::TooMany,
        call,
        why,
        "allow more (processes()), or open the descriptor anew",
    )
}
