//! Configurations with much of something: blocks, objects, threads, children.

use crate::config::{self, Config, Weights, ALL_WEIGHTS, BASE, NONE, PLAN};
use crate::pressure::NEED;

/// All configurations.
pub fn all() -> Vec<Config> {
    [config::all(), configs()].concat()
}

fn configs() -> Vec<Config> {
    let pool = Weights { pool: 40, ranges: 4, foreign: 2, forks: 1, ..NONE };
    vec![
        Config { name: "pool", about: "blocks of the pool, and children", weights: pool, ..BASE },
        Config {
            name: "pool-pressure",
            about: "the same in a memory cgroup",
            weights: Weights { forks: 0, ..pool },
            pressure: Some(NEED),
            ..BASE
        },
        Config {
            name: "many",
            about: "100,000 objects in a memory cgroup that has no room for them",
            weights: Weights { many: 20, ..NONE },
            objects: 100_000,
            pressure: Some(NEED),
            ..BASE
        },
        Config {
            name: "pins",
            about: "1,000 threads that pin at once",
            weights: Weights { pins: 1, many: 20, caches: 10, ..NONE },
            objects: 2000,
            ..BASE
        },
        Config {
            name: "storm",
            about: "children all the time",
            weights: Weights { forks: 60, pool: 10, ..ALL_WEIGHTS },
            plan: crate::caches::Plan { ceiling: Some(8 << 20), ..PLAN },
            ..BASE
        },
    ]
}
