//! How many threads work, and where.

use crate::os::{numa, HUGE_PAGE};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Below this a further thread costs more than it saves: starting one takes about 50 µs, and 32 MiB
/// of base pages at least 8 ms.
const PER_THREAD: usize = 32 << 20;
const MOST: usize = 1024;

/// How many, and why.
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
    // Reads the cgroup's quota, which may change: asked anew each time, for large ranges only.
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if by_size < processors {
        (by_size, "one for each 32 MiB".into())
    } else {
        (processors.min(MOST), "one for each processor that the process may use".into())
    }
}

/// Where a helper works.
#[derive(Clone, Debug)]
pub(super) struct Place(Option<Arc<CpuSet>>);

impl Place {
    pub fn go_there(&self) {
        if let Some(processors) = &self.0 {
            // Refused where the affinity was narrowed meanwhile: then it works where it is.
            let _ = sched_setaffinity(None, processors);
        }
    }
}

/// A place for each helper. With several memory nodes they are spread evenly, each kept to one
/// node's processors, for memory comes from the node of the thread that touches it first; with one
/// node they are not bound at all.
pub(super) fn places(helpers: usize) -> Vec<Place> {
    let nodes = if helpers > 1 { allowed_by_node() } else { Vec::new() };
    (0..helpers)
        .map(|i| match nodes.len() {
            0 | 1 => Place(None),
            n => Place(Some(nodes[i % n].clone())),
        })
        .collect()
}

/// The processors that this thread may use, by memory node.
fn allowed_by_node() -> Vec<Arc<CpuSet>> {
    let lists = numa::processor_lists();
    if lists.len() < 2 {
        return Vec::new();
    }
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let of_node = |list: &Vec<usize>| {
        let mut set = CpuSet::new();
        list.iter()
            .filter(|cpu| **cpu < CpuSet::MAX_CPU && allowed.is_set(**cpu))
            .for_each(|cpu| set.set(*cpu));
        (set.count() > 0).then(|| Arc::new(set))
    };
    lists.iter().filter_map(of_node).collect()
}
