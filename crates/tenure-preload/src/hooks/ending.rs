//! The end of the pool, for a program with which it would interfere.

use crate::errno::Errno;
use crate::serving::{ALLOCATIONS, MAPPINGS};
use std::time::Duration;
use tenure::{pool, retire};

/// How long what was unmapped is waited for. It takes as long only where the kernel refuses to unmap it.
const LONGEST_TEARDOWN: Duration = Duration::from_secs(60);

/// Nothing of the pool's stays but what the program has, and from here on requests go to the next allocator. What
/// waits to be torn down goes first, too.
pub fn end_the_pool() {
    let _errno = Errno::keep();
    ALLOCATIONS.serve_no_more();
    MAPPINGS.serve_no_more();
    pool::end();
    retire::drain(Some(LONGEST_TEARDOWN));
}
