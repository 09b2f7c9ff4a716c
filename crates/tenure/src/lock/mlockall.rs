//! Locks for the whole process: all present mappings, and all future ones.

#![allow(unsafe_code, reason = "maps a page to learn what mlockall(2) holds")]

use super::change::{clear_pieces, strengthen, weaken, Uncleared};
use super::claims::{Claims, Level};
use super::guard::refuse_volatile;
use super::inspect::{self, Piece};
use super::ledger::{self, Ledger};
use super::{diagnose, explain, Kinds, When};
use crate::error::{Error, ErrorKind, Result};
use crate::os::mlock::{self, Seen};
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::{limits, maps, page_size, reserve};
use crate::range::PageRange;
use crate::text::text;
use crate::tracking;
use crate::tracking::state::Word;
use rustix::io::Errno;

/// The mappings that [`mlockall`] locks and [`munlockall2`] clears: `MCL_CURRENT`, `MCL_FUTURE`,
/// `MCL_ONFAULT`.
///
/// ```
/// use tenure::lock::Scope;
/// let all_once_touched = Scope { current: true, future: true, on_fault: true };
/// # let _ = all_once_touched;
/// ```
#[doc(alias = "MCL_CURRENT")]
#[doc(alias = "MCL_FUTURE")]
#[doc(alias = "MCL_ONFAULT")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Everything that is mapped now.
    pub current: bool,
    /// Every mapping made from now on.
    pub future: bool,
    /// To lock: not now, but each page from its first touch on. To clear: locks on fault, present
    /// and future.
    pub on_fault: bool,
}

/// Locks everything that is mapped (`current`), everything that will be (`future`), or both; each
/// page from its first touch on with `on_fault`, else now.
///
/// As with the kernel's call, locks are not counted, and a call without `future` ends an earlier
/// future lock. Unlike the kernel's call it does not weaken full locks. With `future`, `mmap`
/// beyond the limit fails with `EAGAIN`, and memory mapped from then on cannot be marked volatile. A
/// `Volatile` or a cache works, but the kernel can take nothing of it before the lock ends.
/// With `current`, the kernel skips pages that it cannot make resident, without an error;
/// [`receipt_of_everything`](super::receipt_of_everything) shows them.
///
/// ```
/// use tenure::lock::{mlockall, munlockall2, Scope};
/// let scope = Scope { current: true, future: true, on_fault: true };
/// match mlockall(scope) {
///     Ok(()) => munlockall2(scope)?,
///     Err(error) => println!("{error}"), // over the limit, with the line that raises it
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// 0.2 ms and a walk over the resident pages; without `on_fault`, making everything resident. If
/// something is locked already, a reading of `/proc/self/smaps` before.
///
/// # Errors
/// After an error nothing is changed.
/// - `EINVAL`: neither `current` nor `future`; or memory is volatile (with `current`): raw ranges,
///   buffers and caches alike.
/// - `ENOMEM`: with `current`, more is mapped than the limit allows to be locked. `EPERM`: the
///   limit is 0.
#[doc(alias = "MCL_CURRENT")]
#[doc(alias = "MCL_FUTURE")]
#[doc(alias = "MCL_ONFAULT")]
pub fn mlockall(scope: Scope) -> Result<()> {
    let call = "mlockall";
    let Scope { current, future, on_fault } = scope;
    if !current && !future {
        return Err(Error::new(
            ErrorKind::BadRange,
            call,
            "the flags name neither present nor future mappings",
            "pass MCL_CURRENT, MCL_FUTURE or both",
        ));
    }
    if current {
        refuse_volatile(call, inspect::everything())?;
        let (mut count, mut bytes) = (0_usize, 0);
        tracking::each(|tracked, word| {
            if word.pins() == 0 || word.has(Word::OFFERED) {
                (count, bytes) = (count + 1, bytes + tracked.len());
            }
        });
        if count > 0 {
            let why = text!(
                "{bytes} bytes of buffers or caches are volatile, so the kernel may take them"
            );
            let remedy = "pin the buffers and drop the caches first, or lock ranges one by one";
            return Err(Error::new(ErrorKind::IsVolatile, call, why, remedy));
        }
    }
    let when = if on_fault { When::OnFault } else { When::Now };
    let mut ledger = ledger::open();
    let before = match current {
        true => locked_now(&mut ledger).map_err(|errno| unreadable(call, errno))?,
        false => Vec::new(),
    };
    mlock::lock_all(current, future, on_fault).map_err(|errno| refused_all(call, errno))?;
    ledger.future = future.then_some(when);
    for piece in before {
        if piece.special.is_some() {
            continue;
        }
        if on_fault && piece.kernel == Level::Full {
            // It was never unlocked, and is resident. So a failure means that it is unmapped by
            // now.
            let _ = strengthen(piece.range, Level::Full);
        }
        let base = piece.claims.base.with(when);
        ledger.set(piece.range, Claims { base, ..piece.claims });
    }
    Ok(())
}

/// Clears the locks that [`mlockall`] set, and none that guards hold. With `current` it clears full
/// locks of present mappings; with `on_fault`, locks on fault of present mappings, and future ones;
/// with `future`, the locking of future mappings, of either kind. Pages that stay locked are not
/// unlocked even for an instant.
///
/// ```
/// use tenure::lock::{munlockall2, Scope};
/// munlockall2(Scope { future: true, ..Scope::default() })?; // the locks of guards stay
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// A reading of `/proc/self/smaps` and a call for each mapping that changes; to end `future`, twice
/// that, and a walk over the resident pages.
///
/// # Errors
/// - `EINVAL`: nothing is named.
/// - `ENOMEM`: a future lock should end while something stays locked, and more is mapped than the
///   limit allows to be locked. The limit then refuses the only call that the kernel has for this.
///   Nothing is changed then.
/// - Others: `/proc/self/smaps` could not be read.
#[doc(alias = "munlockall")]
pub fn munlockall2(scope: Scope) -> Result<()> {
    let call = "munlockall2";
    let Scope { current, future, on_fault } = scope;
    if scope == Scope::default() {
        let (why, remedy) = ("nothing is named", "pass MCL_CURRENT, MCL_FUTURE or MCL_ONFAULT");
        return Err(Error::new(ErrorKind::BadRange, call, why, remedy));
    }
    let kinds = Kinds { now: current, on_fault };
    let mut ledger = ledger::open();
    let coming = coming(&ledger).map_err(|errno| unreadable(call, errno))?;
    let ends = coming.is_some_and(|when| future || (on_fault && when == When::OnFault));
    let mapped = mappings().map_err(|errno| unreadable(call, errno))?;
    let pieces = locked_now(&mut ledger).map_err(|errno| unreadable(call, errno))?;
    if let (true, Some(coming)) = (ends, coming) {
        end_future(call, &mapped, &pieces, kinds, coming)?;
    }
    let cleared = clear_pieces(&mut ledger, &pieces, kinds);
    if let (true, Some(coming), true) = (ends, coming, cleared.is_err()) {
        let _ = mlock::lock_all(false, true, coming == When::OnFault);
    }
    cleared.map_err(|uncleared| match uncleared {
        Uncleared::Trouble(trouble) => diagnose::trouble(call, inspect::everything(), trouble),
        Uncleared::Refused(error) => diagnose::not_weakened(call, error.part, error),
    })?;
    ledger.future = if ends { None } else { coming };
    Ok(())
}

/// Returns all mappings, in order.
fn mappings() -> std::result::Result<Vec<PageRange>, Errno> {
    let mut found = Vec::new();
    maps::each_mapping(inspect::everything(), |mapping| {
        found.extend(inspect::overlap(&mapping, inspect::everything()));
    })?;
    Ok(found)
}

/// Returns all pieces of locked mappings, and of mappings that the ledger knows. The ledger forgets
/// claims on mappings that are not locked any more.
fn locked_now(ledger: &mut Ledger) -> std::result::Result<Vec<Piece>, Errno> {
    if limits::locked_bytes() == Ok(0) && ledger.is_empty() {
        return Ok(Vec::new());
    }
    let mut pieces = inspect::look_everywhere(ledger)?;
    let counts = |piece: &Piece| piece.kernel > Level::Unlocked || !piece.claims.is_plain();
    for piece in pieces.iter().filter(|piece| !counts(piece)) {
        ledger.set(piece.range, Claims::default());
    }
    pieces.retain(counts);
    Ok(pieces)
}

/// Returns how a new mapping would be locked. It makes one to find out, because other code may have
/// called `mlockall`.
fn coming(ledger: &Ledger) -> std::result::Result<Option<When>, Errno> {
    let range = match reserve::map_own(page_size(), page_size()) {
        Ok(range) => range,
        // Over the limit, which bounds new mappings only while they are locked.
        Err(Errno::AGAIN) => return Ok(Some(ledger.future.unwrap_or(When::Now))),
        Err(errno) => return Err(errno),
    };
    let locked = mlock::seen(range) == Ok(Seen::Locked);
    let found = locked.then(|| {
        // A page that is locked now is resident now.
        let missing = Pagemap::open().and_then(|map| map.count(range, Pages::Missing));
        match missing {
            Ok(0) => When::Now,
            Ok(_) => When::OnFault,
            Err(_) => ledger.future.unwrap_or(When::Now),
        }
    });
    // SAFETY: the mapping was made above, and no other code knows it.
    let _ = unsafe { reserve::unmap(range) };
    Ok(found)
}

/// Ends the locking of future mappings. The kernel has two calls for that: one unlocks everything
/// as well, the other locks everything on fault. The latter leaves no instant in which a page is
/// not locked, and the code then restores its changes mapping by mapping.
fn end_future(
    call: &'static str,
    mapped: &[PageRange],
    pieces: &[Piece],
    kinds: Kinds,
    coming: When,
) -> Result<()> {
    let cleared = |claims: Claims| Claims { base: claims.base.without(kinds), ..claims };
    let stays = |piece: &Piece| cleared(piece.claims).wanted() > Level::Unlocked;
    if !pieces.iter().any(|piece| piece.special.is_none() && stays(piece)) {
        return mlock::unlock_all().map_err(|errno| refused_all(call, errno));
    }
    mlock::lock_all(true, false, true).map_err(|errno| refused_all(call, errno))?;
    // Mappings that were made since the first look got the future lock.
    let born =
        cleared(Claims { base: Kinds::default().with(coming), ..Claims::default() }).wanted();
    for mapping in mappings().map_err(|errno| unreadable(call, errno))? {
        let mut at = mapping.start;
        while at < mapping.end {
            let piece = pieces.get(pieces.partition_point(|piece| piece.range.end <= at));
            let known = mapped.get(mapped.partition_point(|mapping| mapping.end <= at));
            let (level, end) = match (piece, known) {
                (Some(piece), _) if piece.range.start <= at => (piece.kernel, piece.range.end),
                (piece, Some(known)) if known.start <= at => {
                    (Level::Unlocked, piece.map_or(known.end, |p| known.end.min(p.range.start)))
                }
                (_, known) => (born, known.map_or(mapping.end, |known| known.start)),
            };
            let part = PageRange::new(at, end.min(mapping.end));
            // A mapping may be gone by now, which does no harm.
            let _ = match level {
                Level::Unlocked => weaken(part, Level::Unlocked).map_err(|error| error.errno),
                Level::OnFault => Ok(()),
                Level::Full => strengthen(part, Level::Full),
            };
            at = part.end;
        }
    }
    Ok(())
}

fn unreadable(call: &'static str, errno: Errno) -> Error {
    Error::system(call, "looking at the process's mappings", errno)
}

fn refused_all(call: &'static str, errno: Errno) -> Error {
    let mapped = limits::mapped_bytes();
    if let (Errno::NOMEM | Errno::PERM, Ok(account), Ok(mapped)) = (errno, super::account(), mapped)
    {
        // A filter may refuse the call with the same error.
        let too_low = account.soft.is_some_and(|soft| match errno {
            Errno::PERM => soft == 0,
            _ => soft < mapped,
        });
        if !account.is_exempt() && too_low {
            let why = text!(
                "{mapped} bytes are mapped, more than the limit on locked memory \
                 (RLIMIT_MEMLOCK): {account}"
            );
            return Error::new(ErrorKind::LockLimit, call, why, explain::remedy(&account, mapped))
                .with_errno(errno.raw_os_error());
        }
    }
    Error::system(call, "mlockall", errno)
}
