//! Populating: the resident pages afterwards on every backing, by `MADV_POPULATE_*` and by the
//! touch loop.

#[path = "suite/populate.rs"]
mod suite;

#[path = "suite/raw.rs"]
mod raw;

use tenure::populate::{Access, Populate, Step};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::tests_under;

/// Marks a run under a filter.
const TOUCHES: &str = "TENURE_TEST_TOUCHES";

fn suite_under(errno: Errno) {
    let filter = Filter::new()
        .refuse(Call::Madvise(libc::MADV_POPULATE_READ), errno)
        .refuse(Call::Madvise(libc::MADV_POPULATE_WRITE), errno);
    tests_under(&filter, &["suite::", "the_filter_leaves_the_touch_loop"], &[(TOUCHES, "1")]);
}

/// A run without a filter has nothing to check.
#[test]
fn the_filter_leaves_the_touch_loop() {
    if std::env::var_os(TOUCHES).is_none() {
        return;
    }
    let raw = raw::Raw::anonymous(1);
    for (access, step) in [(Access::Write, Step::TouchWrite), (Access::Read, Step::TouchRead)] {
        let plan = Populate::new(raw.ptr(), raw.len, access).plan().unwrap();
        assert_eq!(plan.parts[0].steps[0].0, step, "{plan}");
    }
}

#[test]
fn where_populate_is_unknown() {
    suite_under(Errno::INVAL);
}

#[test]
fn where_populate_is_refused() {
    suite_under(Errno::PERM);
}

/// As a security module refuses it.
#[test]
fn where_populate_is_denied() {
    suite_under(Errno::ACCESS);
}
