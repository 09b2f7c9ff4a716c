//! The sets of options under which a plan runs.

use tenure_launch::variable;

/// One set.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// The name for `--options`.
    pub name: &'static str,
    /// The environment that `tenure run` would set.
    pub environment: &'static [(&'static str, &'static str)],
    /// Whether the pool serves mmap.
    pub maps: bool,
}

const POOL: &str = "pool:64K";

/// All sets.
pub const SETS: &[Set] = &[
    Set {
        name: "default",
        environment: &[(variable::LARGE, "pool"), (variable::UNMAP, "retire")],
        maps: false,
    },
    Set { name: "large", environment: &[(variable::LARGE, POOL)], maps: false },
    Set { name: "unmap", environment: &[(variable::UNMAP, "retire:4K")], maps: false },
    Set {
        name: "all",
        environment: &[
            (variable::LARGE, POOL),
            (variable::MMAP, POOL),
            (variable::UNMAP, "retire:4K"),
        ],
        maps: true,
    },
    Set { name: "mmap", environment: &[(variable::MMAP, POOL)], maps: true },
    Set {
        name: "populate",
        environment: &[
            (variable::LARGE, "pool"),
            (variable::UNMAP, "retire"),
            (variable::POPULATE, "2"),
            (variable::LOCK, "off"),
        ],
        maps: false,
    },
    Set {
        name: "disabled",
        environment: &[
            (variable::LARGE, POOL),
            (variable::MMAP, POOL),
            (variable::UNMAP, "retire:4K"),
            (variable::DISABLE, "1"),
        ],
        maps: false,
    },
];
