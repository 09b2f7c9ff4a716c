//! Locked memory: the memory that counts as locked, and the memory that an `mlockall` makes
//! resident.

use crate::kit::*;
use tenure_testkit::skip;

const DEFAULTS: &[(&str, &str)] = &[("TENURE_LARGE", "pool"), ("TENURE_UNMAP", "retire")];

#[test]
fn what_is_locked_counts_as_without_and_nothing_else_becomes_resident() {
    let program = program!("locked.c");
    let expected = done("locked", &mut program.plain());
    std::thread::scope(|scope| {
        for options in [DEFAULTS, ALL] {
            scope.spawn(|| program.same(options, None, &expected));
        }
    });
    if String::from_utf8_lossy(&expected.stdout).contains("may not lock") {
        skip!("this user may not lock so much memory: RLIMIT_MEMLOCK");
    }
}
