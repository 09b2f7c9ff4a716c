//! A SIGBUS that a process sends has the effect that it would have without tenure, and takes
//! nothing from tenure's handler.

use crate::promise_kit::*;
use tenure::volatile::{self, Purged};
use tenure_testkit::this_test;

fn fill(purged: Purged) -> bool {
    purged.fill(&[7; PAGE]).is_ok()
}

/// Installs after the disposition that the program has chosen: `None` leaves that of Rust's
/// runtime.
fn installed_after(disposition: Option<libc::sighandler_t>) {
    if let Some(disposition) = disposition {
        // SAFETY: sets the default action or ignores the signal, so no function is called for it.
        unsafe { libc::signal(libc::SIGBUS, disposition) };
    }
    volatile::on_purged_access(fill).unwrap();
}

fn send() {
    // SAFETY: the call takes a number only. The signal has the disposition that the test has set.
    assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
}

fn a_purged_page_is_filled() {
    let at = plain(16 * PAGE) as *mut u8;
    // SAFETY: this test's own memory, which stays.
    unsafe {
        at.write_bytes(9, 16 * PAGE);
        volatile::mark(at, 16 * PAGE).unwrap();
        assert!(purge(at, 16 * PAGE));
        assert_eq!(at.read_volatile(), 7);
    }
}

#[test]
fn it_is_ignored_where_the_program_ignores_it() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        installed_after(Some(libc::SIG_IGN));
        (0..3).for_each(|_| send());
        a_purged_page_is_filled();
    });
}

#[test]
fn it_kills_by_default() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        installed_after(Some(libc::SIG_DFL));
        a_purged_page_is_filled();
        assert_eq!(forked(send), Ended::Signal(libc::SIGBUS));
    });
}

/// The handler of Rust's runtime gives way to the default at a signal that is not its own.
#[test]
fn a_handler_that_gives_way_leaves_tenure_s_in_place() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        installed_after(None);
        send();
        a_purged_page_is_filled();
        assert_eq!(forked(send), Ended::Signal(libc::SIGBUS));
    });
}
