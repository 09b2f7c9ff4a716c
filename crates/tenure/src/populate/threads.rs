//! How many threads work. The scheduler chooses where they run: it starts each on the idlest
//! processor, of all memory nodes. To bind them would take `sched_setaffinity`, for which a systemd
//! unit with `SystemCallFilter=~@resources` kills the process.

use crate::os::HUGE_PAGE;
use std::num::NonZeroUsize;

/// Below this a further thread costs more than it saves: starting one takes about 50 µs, and 32 MiB
/// of base pages at least 8 ms.
const PER_THREAD: usize = 32 << 20;
const MOST: usize = 1024;

/// Returns the number of threads, and the reason for it.
pub(super) fn useful(asked: usize, len: usize) -> (usize, String) {
    if asked > 0 {
        let pieces = len.div_ceil(HUGE_PAGE).min(MOST);
        return match asked <= pieces {
            true => (asked, "as asked".into()),
            false => (pieces, format!("{asked} asked, but there are {pieces} pieces")),
        };
    }
    let by_size = len.div_ceil(PER_THREAD);
    if by_size == 1 {
        return (1, "a second would cost more than it saves below 32 MiB".into());
    }
    // This reads the cgroup's quota, which may change. So it is read each time, for large ranges
    // only.
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if by_size < processors {
        (by_size, "one for each 32 MiB".into())
    } else {
        (processors.min(MOST), "one for each processor that the process may use".into())
    }
}
