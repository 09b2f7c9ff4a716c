//! The errors of populating, each provoked for real, by `MADV_POPULATE_*` and by the touch loop.

#[path = "suite/populate_errors.rs"]
mod suite;

#[path = "suite/raw.rs"]
mod raw;

use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::tests_under;

fn suite_under(errno: Errno) {
    let filter = Filter::new()
        .refuse(Call::Madvise(libc::MADV_POPULATE_READ), errno)
        .refuse(Call::Madvise(libc::MADV_POPULATE_WRITE), errno);
    tests_under(&filter, &["suite::"], &[]);
}

#[test]
fn where_populate_is_unknown() {
    suite_under(Errno::INVAL);
}

#[test]
fn where_populate_is_refused() {
    suite_under(Errno::PERM);
}
