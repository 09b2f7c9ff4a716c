//! The metrics of caches.

use super::family::Metric;
use crate::cache::CacheStats;
use crate::shared::SharedCacheStats;

/// Calls `each` with all metrics of a cache.
pub(super) fn each(stats: &CacheStats, each: &mut dyn FnMut(Metric)) {
    let counters = [
        ("hits", "Gets that found their value.", stats.hits),
        ("misses", "Gets that did not find their value.", stats.misses),
        ("insertions", "Values put in.", stats.insertions),
        ("removals", "Values removed or overwritten.", stats.removals),
        ("evictions", "Values dropped to make room, or found purged together.", stats.evictions),
        ("purged_values", "Values that a get found purged.", stats.purged_values),
        ("expired_values", "Values that a get found after their time.", stats.expired_values),
        ("purged_bytes", "Bytes that the kernel took.", stats.purged_bytes),
        ("moved_values", "Values kept when their segment was emptied.", stats.moved_values),
    ];
    for (name, help, value) in counters {
        each(Metric::counter(&format!("tenure_cache_{name}"), help, value));
    }
    let gauges = [
        ("values", "Keys in the index now.", stats.values),
        ("footprint_bytes", "Bytes of the cache's segments now.", stats.footprint_bytes),
        ("held_bytes", "Bytes of segments with a value in use.", stats.held_bytes),
        ("target_bytes", "The footprint that free memory now allows.", stats.target_bytes),
        ("bookkeeping_bytes", "Bytes beside the values.", stats.bookkeeping_bytes),
        ("is_spared", "1: the kernel takes other caches first.", stats.is_spared.into()),
    ];
    for (name, help, value) in gauges {
        each(Metric::gauge(&format!("tenure_cache_{name}"), help, value as f64));
    }
    let cost = "The cost of a miss. 0: not known.";
    each(Metric::gauge("tenure_cache_miss_cost_seconds", cost, stats.miss_cost_ns as f64 / 1e9));
}

/// Calls `each` with all metrics of a shared cache.
pub(super) fn each_shared(stats: &SharedCacheStats, each: &mut dyn FnMut(Metric)) {
    let memory = &stats.memory;
    let counters = [
        ("hits", "Gets of this process that found a value.", stats.hits),
        ("misses", "Gets of this process that found no value.", stats.misses),
        ("inserts", "Values that all processes have inserted.", stats.inserts),
        ("displaced", "Values dropped because their line of the index was full.", stats.displaced),
        ("purges", "Chunks purged.", memory.purges),
        ("buried", "Processes that died with the cache open.", memory.buried),
    ];
    for (name, help, value) in counters {
        each(Metric::counter(&format!("tenure_shared_cache_{name}"), help, value));
    }
    let states = [
        ("fresh", memory.fresh),
        ("intact", memory.intact),
        ("purged", memory.purged),
        ("making", memory.making),
        ("damaged", memory.damaged),
    ];
    for (state, chunks) in states {
        let (name, help) = ("tenure_shared_cache_chunks", "Chunks now, by state.");
        each(Metric { state: Some(state), ..Metric::gauge(name, help, chunks as f64) });
    }
    let gauges = [
        ("chunk_bytes", "Bytes of a chunk.", memory.chunk_bytes),
        ("pinned_chunks", "Chunks that a process has pinned.", memory.pinned),
        ("processes", "Processes that have the cache open.", memory.processes),
    ];
    for (name, help, value) in gauges {
        each(Metric::gauge(&format!("tenure_shared_cache_{name}"), help, value as f64));
    }
}
