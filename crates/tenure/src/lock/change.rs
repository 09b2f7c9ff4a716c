//! Takes and gives back claims, so that the kernel's locks fit them. After a failure the kernel
//! has the locks that it had before.

use super::claims::{Claims, Level};
use super::diagnose::{self, NotLowered, Silent};
use super::inspect::{self, look, Piece, Special};
use super::ledger::{self, Ledger};
use super::{Kinds, When};
use crate::error::{Error, ErrorKind, Result};
use crate::os::lock_on_fault::lock_on_fault;
use crate::os::maps;
use crate::os::mlock::{self, Seen};
use crate::os::page_size;
use crate::range::PageRange;
use crate::runtime::services;
use rustix::io::Errno;

/// Locks a range for a guard. Returns the ledger's time, for [`Ledger::still`].
pub(super) fn take(call: &'static str, range: PageRange, when: When) -> Result<u64> {
    let (pieces, since) = {
        let mut ledger = ledger::open();
        pay(&mut ledger, range);
        let pieces = claim(&mut ledger, call, range, when, |claims| claims.taken(when))?;
        (pieces, ledger.guard_comes())
    };
    if when == When::OnFault {
        return Ok(since);
    }
    // Reading a large file in takes long, so this happens without the ledger's lock. The claims
    // already keep other callers from weakening these pages.
    let Err(errno) = fill(range, Some(&pieces)) else { return Ok(since) };
    let error = diagnose::unfilled(call, range, errno);
    let mut ledger = ledger::open();
    for part in ledger.still(range, since) {
        let _ = give_back(&mut ledger, part, when);
    }
    ledger.guard_goes(range, since);
    Err(error)
}

/// Locks on fault, for a guard, a mapping that was just made. Nothing about it has to be looked up: no
/// other code has it, and where it was locked from the start (`MCL_FUTURE`) this makes no difference.
pub(super) fn take_new(call: &'static str, range: PageRange) -> Result<u64> {
    let mut ledger = ledger::open();
    retry_locking(|| lock_on_fault(range))
        .map_err(|errno| diagnose::refused(call, range, errno, range.len(), 0))?;
    // A guard whose memory was unmapped without tenure has no claim on this mapping.
    ledger.forget_unmapped(range);
    ledger.set(range, Claims::default().taken(When::OnFault));
    Ok(ledger.guard_comes())
}

/// Tries once more after retired memory that was locked is torn down: it stays charged until then.
fn retry_locking(
    lock: impl FnMut() -> std::result::Result<(), Errno>,
) -> std::result::Result<(), Errno> {
    services::retry(lock, |errno| matches!(*errno, Errno::NOMEM | Errno::AGAIN | Errno::PERM))
}

/// Locks a range without a guard.
pub(super) fn take_uncounted(call: &'static str, range: PageRange, when: When) -> Result<()> {
    {
        let mut ledger = ledger::open();
        if ledger.was_asked(range, when) && inspect::locked_whole(range) {
            drop(ledger);
            // Programs may lock again a range that they are about to use. Then smaps need not be
            // read.
            return match when {
                When::OnFault => Ok(()),
                When::Now => fill(range, None).map_err(|e| diagnose::unfilled(call, range, e)),
            };
        }
        if when == When::OnFault {
            let with = |claims: Claims| Claims { base: claims.base.with(when), ..claims };
            return claim(&mut ledger, call, range, when, with).map(drop);
        }
    }
    // The lock is counted until it is complete. A failure then takes back this call's claim, and
    // nothing that another thread has claimed since.
    let since = take(call, range, when)?;
    keep(&mut ledger::open(), range, since, when);
    Ok(())
}

/// Charges a range, and changes its claims by `after`.
fn claim(
    ledger: &mut Ledger,
    call: &'static str,
    range: PageRange,
    when: When,
    after: impl Fn(Claims) -> Claims,
) -> Result<Vec<Piece>> {
    let mut pieces = look(ledger, range).map_err(|t| diagnose::trouble(call, range, t))?;
    for piece in &pieces {
        if let Some(Special::Impossible(why)) = piece.special {
            let silent = Silent::Nothing(piece.range.start, why);
            return Err(diagnose::silent(call, range, silent));
        }
    }
    if let Err(error) = charge(call, range, &unlocked(&pieces), when) {
        // The kernel compares with the limit also memory that it would not charge: huge pages of
        // the pool, devices. And a lock on fault of secret memory fails with ENOMEM where the kernel
        // does not show it as locked.
        pieces = without_resident(ledger, range, &error).ok_or(error)?;
        charge(call, range, &unlocked(&pieces), when)?;
    }
    for piece in &pieces {
        ledger.set(piece.range, after(piece.claims));
    }
    Ok(pieces)
}

/// Drops a guard's claim and keeps its pages locked.
pub(super) fn keep(ledger: &mut Ledger, range: PageRange, since: u64, when: When) {
    for part in ledger.still(range, since) {
        for (part, claims) in ledger.pieces(part) {
            let Some(claims) = claims else { continue };
            let mut after = claims.given_back(when);
            after.base = after.base.with(when);
            ledger.set(part, after);
        }
    }
    ledger.guard_goes(range, since);
}

/// Returns the pieces again, if the lock may have failed only because of memory that is always
/// resident.
fn without_resident(ledger: &Ledger, range: PageRange, error: &Error) -> Option<Vec<Piece>> {
    if !matches!(error.kind(), ErrorKind::LockLimit | ErrorKind::OutOfMemory) {
        return None;
    }
    let pieces = inspect::look_closely(ledger, range).ok()?;
    let resident = |p: &Piece| matches!(p.special, Some(Special::AlwaysResident(_)));
    pieces.iter().any(resident).then_some(pieces)
}

/// Returns the unlocked parts, with neighbours joined.
fn unlocked(pieces: &[Piece]) -> Vec<PageRange> {
    let is_unlocked = |p: &&Piece| p.kernel == Level::Unlocked && p.special.is_none();
    join(pieces.iter().filter(is_unlocked).map(|p| &p.range))
}

fn join<'a>(ranges: impl Iterator<Item = &'a PageRange>) -> Vec<PageRange> {
    let mut parts: Vec<PageRange> = Vec::new();
    for range in ranges {
        match parts.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => parts.push(*range),
        }
    }
    parts
}

/// Locks unlocked parts on fault, which charges them and makes nothing resident. If that is
/// refused, and the caller wants them locked in full, locks them in full.
fn charge(call: &'static str, range: PageRange, parts: &[PageRange], when: When) -> Result<()> {
    let needed: usize = parts.iter().map(PageRange::len).sum();
    for (done, part) in parts.iter().enumerate() {
        let mut in_full = false;
        let locked = retry_locking(|| match lock_on_fault(*part) {
            Err(errno) if when == When::Now && mlock::is_refused(errno) => {
                in_full = true;
                mlock::lock(*part)
            }
            done => done,
        });
        let failed = locked
            .map_err(|errno| {
                let charged = parts[..done].iter().map(PageRange::len).sum();
                let error = diagnose::refused(call, range, errno, needed, charged);
                match error.kind() {
                    ErrorKind::LockLimit => error,
                    _ if in_full && !mlock::is_refused(errno) => {
                        diagnose::unfilled(call, range, errno)
                    }
                    _ => error,
                }
            })
            .and_then(|()| verify(*part).map_err(|why| diagnose::silent(call, range, why)));
        if let Err(error) = failed {
            for part in &parts[..=done] {
                let _ = weaken(*part, Level::Unlocked);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Checks that each mapping of the part is locked, or need not be.
fn verify(part: PageRange) -> std::result::Result<(), Silent> {
    if part.len() == page_size() && mlock::seen(part) == Ok(Seen::Locked) {
        return Ok(()); // it cannot lie in two mappings
    }
    let mut doubtful = Vec::new();
    let listed = maps::each_mapping(part, |mapping| {
        let Some(within) = inspect::overlap(&mapping, part) else { return };
        if mlock::seen(within) != Ok(Seen::Locked) {
            doubtful.push(within);
        }
    });
    if let Err(errno) = listed {
        // Without /proc one call about the whole part must suffice.
        return match mlock::seen(part) {
            Ok(Seen::Locked) => Ok(()),
            _ => Err(Silent::Unknown(errno)),
        };
    }
    for within in doubtful {
        if let Some(why) = inspect::impossible(within) {
            return Err(Silent::Nothing(within.start, why));
        }
    }
    Ok(())
}

/// Locks in full the pages that are locked on fault, and makes them resident.
fn fill(range: PageRange, pieces: Option<&[Piece]>) -> std::result::Result<(), Errno> {
    let ordinary =
        |pieces: &[Piece]| join(pieces.iter().filter(|p| p.special.is_none()).map(|p| &p.range));
    let attempt = |parts: &[PageRange]| parts.iter().try_for_each(|part| mlock::lock(*part));
    let parts = pieces.map_or_else(|| vec![range], ordinary);
    let Err(errno) = attempt(&parts) else { return Ok(()) };
    // An earlier claim may have hidden special mappings from a quick look: secretmem fails here.
    let closely = inspect::look_closely(&ledger::open(), range);
    match closely {
        Ok(closely) if closely.iter().any(|p| p.special.is_some()) => attempt(&ordinary(&closely)),
        _ => Err(errno),
    }
}

/// Lowers the locks in a range that the kernel refused to lower before. Not those elsewhere: other
/// code may have locked the pages since, which tenure does not see.
pub(super) fn pay(ledger: &mut Ledger, range: PageRange) {
    if !ledger.owes {
        return;
    }
    for (part, claims) in ledger.owed(range) {
        if weaken(part, claims.wanted()).is_err() {
            return; // as it would refuse the others
        }
        ledger.set(part, Claims { owed: false, ..claims });
    }
}

/// Gives a guard's claim back. A part whose lock the kernel refuses to lower stays locked, and the
/// ledger tries again later: see [`pay`].
pub(super) fn give_back(
    ledger: &mut Ledger,
    range: PageRange,
    when: When,
) -> std::result::Result<(), NotLowered> {
    let mut result = Ok(());
    for (part, claims) in ledger.pieces(range) {
        let Some(claims) = claims else { continue };
        let mut after = claims.given_back(when);
        if after.wanted() < claims.wanted() {
            let weakened = weaken(part, after.wanted());
            after.owed = weakened.is_err();
            ledger.owes |= after.owed;
            result = result.and(weakened);
        }
        ledger.set(part, after);
    }
    result
}

/// Gives a guard's claim on fault back, or nothing: after an error everything is as it was.
pub(super) fn give_back_whole(
    ledger: &mut Ledger,
    range: PageRange,
    since: u64,
) -> std::result::Result<(), NotLowered> {
    lower_whole(ledger, range, since, |claims| claims.given_back(When::OnFault))?;
    ledger.guard_goes(range, since);
    Ok(())
}

/// Turns a guard's full claim into one on fault. After an error everything is as it was, unless the
/// kernel refuses to lock in full again the pages that it has just weakened.
pub(super) fn downgrade(
    ledger: &mut Ledger,
    range: PageRange,
    since: u64,
) -> std::result::Result<(), NotLowered> {
    lower_whole(ledger, range, since, |claims| claims.given_back(When::Now).taken(When::OnFault))
}

/// Changes a guard's claims by `after`, where the kernel lowers all locks for that.
fn lower_whole(
    ledger: &mut Ledger,
    range: PageRange,
    since: u64,
    after: impl Fn(Claims) -> Claims,
) -> std::result::Result<(), NotLowered> {
    let still = ledger.still(range, since);
    let pieces = still.into_iter().flat_map(|part| ledger.pieces(part));
    let claimed: Vec<_> = pieces.filter_map(|(part, claims)| Some((part, claims?))).collect();
    // Neighbours that change alike are changed together, so that fewer mappings are split.
    let mut changes: Vec<(PageRange, Level, Level)> = Vec::new();
    for (part, claims) in &claimed {
        let (from, to) = (claims.wanted(), after(*claims).wanted());
        match changes.last_mut() {
            _ if to >= from => {}
            Some((last, f, t)) if last.end == part.start && (*f, *t) == (from, to) => {
                last.end = part.end;
            }
            _ => changes.push((*part, from, to)),
        }
    }
    let mut done = Vec::new();
    for (part, from, to) in changes {
        let lowered = locked_in(part).and_then(|mappings| {
            mappings.into_iter().try_for_each(|mapping| {
                lower(mapping, to)?;
                done.push((mapping, from));
                Ok(())
            })
        });
        if let Err(error) = lowered {
            // These alone: in between other code may have mapped memory of its own, or none.
            for (mapping, from) in done {
                let _ = strengthen(mapping, from);
            }
            return Err(error);
        }
    }
    for (part, claims) in claimed {
        let mut after = after(claims);
        // Where the lock was lowered just now, nothing is owed any more.
        after.owed &= after.wanted() >= claims.wanted();
        ledger.set(part, after);
    }
    Ok(())
}

/// Clears kinds of uncounted locks. After an error everything is as it was.
pub(super) fn clear(
    ledger: &mut Ledger,
    range: PageRange,
    kinds: Kinds,
) -> std::result::Result<(), Uncleared> {
    pay(ledger, range);
    let guarded = |claims: Option<Claims>| claims.is_some_and(|c| c.now + c.on_fault > 0);
    if kinds == Kinds::ALL
        && inspect::one_mapping(range)
        && !ledger.pieces(range).into_iter().any(|(_, claims)| guarded(claims))
    {
        // All kinds are cleared, so the present kinds do not matter.
        let error = |errno| NotLowered { part: range, step: UNLOCKS, errno };
        mlock::unlock(range).map_err(|errno| Uncleared::Refused(error(errno)))?;
        ledger.set(range, Claims::default());
        return Ok(());
    }
    let pieces = match mlock::seen(range).map_err(inspect::Trouble::from)? {
        Seen::Locked => inspect::look_closely(ledger, range)?,
        _ => look(ledger, range)?,
    };
    clear_pieces(ledger, &pieces, kinds)
}

/// The reason why a lock could not be cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uncleared {
    Trouble(inspect::Trouble),
    Refused(NotLowered),
}

impl From<inspect::Trouble> for Uncleared {
    fn from(trouble: inspect::Trouble) -> Uncleared {
        Uncleared::Trouble(trouble)
    }
}

/// [`clear`] on pieces that were found already.
pub(super) fn clear_pieces(
    ledger: &mut Ledger,
    pieces: &[Piece],
    kinds: Kinds,
) -> std::result::Result<(), Uncleared> {
    let after = |piece: &Piece| {
        let base = piece.claims.base.without(kinds);
        Claims { base, owed: false, ..piece.claims }
    };
    for (done, piece) in pieces.iter().enumerate() {
        let level = after(piece).wanted();
        if piece.special.is_some() || level >= piece.kernel {
            continue;
        }
        if let Err(error) = weaken(piece.range, level) {
            for piece in pieces[..=done].iter().rev().filter(|p| p.special.is_none()) {
                let _ = strengthen(piece.range, piece.kernel);
            }
            return Err(Uncleared::Refused(error));
        }
    }
    for piece in pieces {
        ledger.set(piece.range, after(piece));
    }
    Ok(())
}

const UNLOCKS: &str = "munlock";
const LOOKS: &str = "looking up the mappings in /proc/self/maps";

/// Lowers the lock of the mapped and locked memory in the part.
pub(super) fn weaken(part: PageRange, to: Level) -> std::result::Result<(), NotLowered> {
    if to == Level::Full || (to == Level::Unlocked && mlock::unlock(part).is_ok()) {
        return Ok(());
    }
    let mut result = Ok(());
    for mapping in locked_in(part)? {
        result = result.and(lower(mapping, to));
    }
    result
}

/// Returns the parts of the range that are mapped and locked, each in one mapping. The others were
/// unmapped, or belong to another mapping by now: a change of their lock would lock them again.
fn locked_in(part: PageRange) -> std::result::Result<Vec<PageRange>, NotLowered> {
    let failed = |errno| NotLowered { part, step: LOOKS, errno };
    let mut within = Vec::new();
    maps::each_mapping(part, |mapping| within.extend(inspect::overlap(&mapping, part)))
        .map_err(failed)?;
    let mut locked = Vec::new();
    for piece in within {
        if mlock::seen(piece).map_err(failed)? == Seen::Locked {
            locked.push(piece);
        }
    }
    Ok(locked)
}

/// Lowers the lock of a part that lies in one mapping. After an error it is as it was, if no other
/// thread has unmapped some of it meanwhile.
fn lower(part: PageRange, to: Level) -> std::result::Result<(), NotLowered> {
    let (step, done) = match to {
        Level::Unlocked => (UNLOCKS, mlock::unlock(part)),
        _ => ("mlock2", lock_on_fault(part)),
    };
    done.map_err(|errno| NotLowered { part, step, errno })
}

/// Raises the lock of a part again that was lowered just before.
pub(super) fn strengthen(part: PageRange, to: Level) -> std::result::Result<(), Errno> {
    match to {
        Level::Unlocked => Ok(()),
        Level::OnFault => lock_on_fault(part),
        Level::Full => mlock::lock(part),
    }
}
