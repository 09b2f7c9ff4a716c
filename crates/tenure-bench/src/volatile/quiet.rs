//! A worker that offers nothing by itself.

use std::time::Duration;
use tenure::volatile::{configure, settings, Settings};

/// While it lives, the worker offers no marked ranges. So a row about marking does not measure
/// offers, and a row about offers measures only its own.
pub(super) struct QuietKeeper(Settings);

impl QuietKeeper {
    pub fn new() -> QuietKeeper {
        let before = settings();
        set_wait(Duration::from_secs(3600));
        QuietKeeper(before)
    }

    /// While the result lives, the worker offers all marked ranges at once.
    pub fn interrupted(&self) -> impl Drop + use<> {
        let interruption = Interruption;
        set_wait(Duration::ZERO);
        interruption
    }
}

fn set_wait(wait: Duration) {
    configure(settings().with_offer_after(wait).with_unoffered_max(1 << 60));
}

struct Interruption;

impl Drop for Interruption {
    fn drop(&mut self) {
        set_wait(Duration::from_secs(3600));
    }
}

impl Drop for QuietKeeper {
    fn drop(&mut self) {
        configure(self.0);
    }
}
