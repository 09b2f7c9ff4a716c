//! Tests that each run in a process of their own, because they change the library's state. One
//! program, so that the tests that wait run side by side.
//!
//! Tests that change the system (swap, System V memory) are programs of their own, which run one
//! after another.

tenure_testkit::two_for_each_processor!();

#[path = "../lock_kit/mod.rs"]
mod lock_kit;
#[path = "../pool_kit/mod.rs"]
mod pool_kit;
#[macro_use]
#[path = "../promise_kit/mod.rs"]
mod promise_kit;
#[path = "../suite/raw.rs"]
mod raw;
#[path = "../retire_kit/mod.rs"]
mod retire_kit;

mod cache_counts;
mod cache_entries;
mod cache_forks;
mod cache_hostile;
mod cache_keys;
mod cache_left;
mod cache_lifetimes;
mod cache_limits;
mod cache_listener;
mod cache_offered_reads;
mod cache_panics;
mod cache_reuse;
mod cache_segments;
mod cache_sparse;
mod cache_worth;
mod changed_without_tenure;
mod children_and_shortages;
mod closed_descriptors;
mod closures_of_unmark;
mod discard_whole;
mod failed_unmarks;
mod fork_and_locks;
mod forks_at_first_use;
mod forks_in_handlers;
mod killed_syscalls;
mod lock_faults;
mod lock_late;
mod lock_more;
mod made_again;
mod many_processes;
mod mappings;
mod more_rights;
mod nth_failure;
mod own_threads;
mod pool_faults;
mod pool_growth;
mod pool_leak;
mod pool_locked;
mod pool_mapped;
mod pool_model;
mod pool_refused;
mod pool_sizes;
mod pool_time;
mod populate_edges;
mod pressure;
mod purged_access;
mod purged_access_chain;
mod purged_access_cuts;
mod purged_access_fill;
mod purged_access_forgotten;
mod purged_access_sent;
mod purges_and_splits;
mod quiet;
mod raw_clones;
mod refill_children;
mod refill_edges;
mod refill_threads;
mod registration;
mod retire_failed;
mod retire_limits;
mod retire_model;
mod retire_over;
mod retire_race;
mod retire_refused;
mod scale;
mod shared;
mod shared_alone;
mod shared_attacks;
mod shared_cache;
mod shared_changes;
mod shared_heirs;
mod shared_hostile;
mod shared_makers;
mod shared_overwrite;
mod shared_refill;
mod shared_stepped;
mod shared_unwatched;
mod threads_end;
mod truth_of_unmark;
mod unfit_for_a_while;
mod unmapped_in_handler;
mod unseen_group;
mod waits;
mod without_page_map;
