//! A handler for touches of purged pages.

#![allow(unsafe_code, reason = "keeps the program's handler as an address")]

use crate::error::{Error, ErrorKind, Result};
use crate::os::signal::{self, Touches};
use crate::os::{page_size, populate};
use crate::range::PageRange;
use crate::text::text;
use crate::tracking::backpressure;
use crate::tracking::touched::{self, look_at, Standing};
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A touch of a purged page.
///
/// ```
/// use tenure::volatile::{on_purged_access, Purged};
/// fn handler(purged: Purged) -> bool {
///     let (start, len) = purged.range;
///     purged.page >= start && purged.page < start + len && purged.fill(&[0; 4096]).is_ok()
/// }
/// on_purged_access(handler)?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// The address that was touched.
    pub address: usize,
    /// The first byte of its page.
    pub page: usize,
    /// The volatile range that holds it, as tenure knows it (neighbouring marks may have been
    /// merged): start and length in bytes.
    pub range: (usize, usize),
}

impl Purged {
    /// Makes the contents of the touched page in one step: other threads find the page purged, or
    /// find these bytes, and never read zeros. The range stays volatile, and the page counts as
    /// intact from then on. The kernel may take it again after the wait of
    /// [`super::Settings::offer_after`]. Like an unmark, this call waits if pages are made faster
    /// than the worker offers them. If another thread has made the page already, it stays as it is.
    ///
    /// ```
    /// use tenure::volatile::{on_purged_access, Purged};
    /// fn make_again(purged: Purged) -> bool {
    ///     purged.fill(&[7; 4096]).is_ok()
    /// }
    /// # fn main() -> tenure::Result<()> {
    /// on_purged_access(make_again)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cost
    /// One system call, and a copy of the page.
    ///
    /// # Errors
    /// `EINVAL`: `bytes` does not have the length of a page. `ENOMEM`: there is no memory for it.
    /// `EFAULT`: the page cannot be read, for a reason other than tenure. After `Ok` the page was
    /// there.
    pub fn fill(&self, bytes: &[u8]) -> Result<()> {
        let call = "Purged::fill";
        if bytes.len() != page_size() {
            let why = text!("{} bytes are not a page of {}", bytes.len(), page_size());
            return Err(Error::new(ErrorKind::BadRange, call, why, "pass the whole page's bytes"));
        }
        touched::fill_page(self.page, bytes)
            .map_err(|errno| Error::system(call, "putting a page in place", errno))?;
        backpressure::hold_back();
        Ok(())
    }
}

/// For the whole process: a signal handler belongs to the process. The function that
/// [`on_purged_access`] got; null: none.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Calls `handler` on the thread that touches a purged page of a volatile range. If the handler
/// returns `true`, the access is tried again: the handler has made the page ([`Purged::fill`]), or
/// it has unmarked the range and made its contents. If it returns `false`, the signal goes to the
/// SIGBUS handler that was installed before, or to the default, which kills the process.
///
/// The handler runs inside a signal handler, at the instruction that touched the page. It may call
/// tenure, and everything else that the touching code could call at that point. If several threads
/// touch one page at once, each of them calls the handler. If the handler unmarks the range, other
/// threads read zeros until it has made the contents. With `Purged::fill` there is no such moment.
///
/// A thread that blocks SIGBUS, or is in a signal handler whose mask has it, must not touch a purged
/// page: the kernel ends the process with SIGBUS, and calls no handler.
///
/// tenure installs no signal handler before this call. A second call replaces the function. A
/// signal handler that the program installs later comes first, and must call the one that was there
/// before it.
///
/// A SIGBUS that a process sends, or that has another cause, goes to the signal handler that was
/// there before, or has its default effect. Some handlers restore the default first, as that of
/// Rust's runtime does. If another thread touches a purged page in these microseconds, the process
/// is killed.
///
/// ```
/// use tenure::volatile::{on_purged_access, Purged};
/// fn handler(purged: Purged) -> bool {
///     purged.fill(&[7; 4096]).is_ok() // the touch is tried again, and reads 7
/// }
/// on_purged_access(handler)?;
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// One system call here. A touch of a purged page costs a signal.
///
/// # Errors
/// Those of `sigaction`. If [`super::detection`] is [`super::Detection::Words`], purged pages raise
/// no SIGBUS and the handler is never called.
#[doc(alias = "SIGBUS")]
#[doc(alias = "sigaction")]
#[doc(alias = "userfaultfd")]
pub fn on_purged_access(handler: fn(Purged) -> bool) -> Result<()> {
    HANDLER.store(handler as *mut (), Ordering::Release);
    signal::install(Touches::Private, on_bus)
        .map_err(|errno| Error::system("on_purged_access", "sigaction(SIGBUS)", errno))
}

/// How often the handler looks again at a page that is present according to its range and missing
/// according to the kernel, and how often it tries an access again although nothing has changed.
/// The bound is for a page whose memory has failed, which stays so.
const LOOKS: u32 = 10;

/// How often the access of one page is tried again in a row. Each time the page was taken back
/// between the touch and the look. The bound is for a page that raises SIGBUS for another reason
/// while other threads change ranges all the time. It is reached after some tenths of a second.
const TRIES: u32 = 100_000;

/// The access that this thread has tried again last.
#[derive(Clone, Copy)]
struct Tried {
    page: usize,
    /// The `changes` that [`look_at`] returned for it.
    changes: u64,
    /// The number of tries since then, and in all.
    unchanged: u32,
    in_a_row: u32,
}

impl Tried {
    const NOTHING: Tried = Tried { page: 0, changes: 0, unchanged: 0, in_a_row: 0 };
}

thread_local! {
    /// Each thread's own: it is the access of one thread.
    static TRIED: Cell<Tried> = const { Cell::new(Tried::NOTHING) };
}

/// Returns whether the access of a page that is there now should be tried again.
fn may_try_again(page: usize, changes: u64) -> bool {
    let mut tried = TRIED.get();
    if tried.page != page {
        tried = Tried { page, ..Tried::NOTHING };
    }
    if tried.changes != changes {
        tried = Tried { changes, unchanged: 0, ..tried };
    }
    tried.unchanged += 1;
    tried.in_a_row += 1;
    let may = tried.unchanged <= LOOKS && tried.in_a_row <= TRIES;
    TRIED.set(if may { tried } else { Tried::NOTHING });
    may
}

fn on_bus(address: usize) -> bool {
    let handler = HANDLER.load(Ordering::Acquire);
    let page = address / page_size() * page_size();
    let mut is_foreign = false;
    for _ in 0..LOOKS {
        let look = look_at(address);
        let taken_back = match look.holder {
            Some((range, Standing::Offered)) if !handler.is_null() => {
                TRIED.set(Tried::NOTHING);
                // SAFETY: `HANDLER` only ever holds a pointer made from such a function.
                let handler: fn(Purged) -> bool = unsafe { std::mem::transmute(handler) };
                return handler(Purged { address, page, range: (range.start, range.len()) });
            }
            Some((_, Standing::Offered)) => return false,
            Some((_, Standing::TakenBack)) => true,
            None => false,
        };
        // Another thread has taken the range back since the touch, or has also forgotten it. The
        // kernel shows whether the page is there.
        if populate::for_reading(PageRange::new(page, page + page_size())).is_ok() {
            return may_try_again(page, look.changes);
        }
        // If not, it may have been offered and purged again since the look. For a page that no
        // range holds, one more look decides: it may have been forgotten, marked and purged.
        if !taken_back && is_foreign {
            return false;
        }
        is_foreign = !taken_back;
    }
    false
}
