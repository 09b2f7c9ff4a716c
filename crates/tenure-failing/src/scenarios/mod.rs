//! The scenarios: each uses one promise, and allows errors while calls fail, but never a wrong
//! byte.

#![allow(unsafe_code, reason = "uses raw ranges, pools and mappings of its own")]

mod buffers;
mod caches;
mod locks;
mod memory;
mod pools;
mod populates;
mod ranges;
mod retires;
mod shared;

use crate::stage;
use std::time::Duration;
use tenure::volatile::{self, Settings};

/// One scenario.
#[derive(Debug)]
pub struct Scenario {
    /// Its name, as the command line takes it.
    pub name: &'static str,
    /// The environment of its process.
    pub environment: &'static [(&'static str, &'static str)],
    life: fn(),
}

/// All scenarios.
pub const ALL: &[Scenario] = &[
    Scenario { name: "ranges", environment: &[], life: ranges::life },
    Scenario { name: "buffers", environment: &[], life: buffers::life },
    Scenario { name: "caches", environment: &[("TENURE_PURGE", "always")], life: caches::life },
    Scenario { name: "locks", environment: &[], life: locks::life },
    Scenario { name: "populates", environment: &[], life: populates::life },
    Scenario { name: "pools", environment: &[], life: pools::life },
    Scenario { name: "retires", environment: &[], life: retires::life },
    Scenario { name: "shared", environment: &[], life: shared::memory },
    Scenario { name: "shared-cache", environment: &[], life: shared::cache },
];

/// The scenario of this name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// Runs a scenario in this process: once before failures begin if `warm`, once with them, once
/// after them.
pub fn live(scenario: &Scenario, warm: bool) {
    volatile::configure(Settings::default().with_offer_after(Duration::from_millis(1)));
    if warm {
        (scenario.life)();
    }
    stage::begin();
    (scenario.life)();
    stage::over();
    (scenario.life)();
    if std::env::var_os("TENURE_FAILING_SHOW").is_some() {
        stage::print_mappings();
    }
    stage::print_stock();
}
