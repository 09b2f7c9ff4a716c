//! What calls do when the program has closed tenure's descriptors.

use super::detection::{self, Kind};
use super::state::{flag, Word};
use super::{watch_again, TRACKING};
use crate::runtime::lock::assert_none_held;
use crate::runtime::{fork, worker};
use rustix::io::Errno;

/// How often a call is tried again, each time because the descriptors were closed meanwhile. A
/// program that closes them every 200 µs made four tries fail in 5 of 8,000 calls.
const TRIES: usize = 100;

/// Makes a call, again as long as it fails for want of a descriptor. The background thread has
/// copies that the program cannot close, so it makes the call. If that thread has ended meanwhile,
/// or another thread has opened new descriptors, the call is made here again. The caller holds no
/// lock and no claim.
pub(crate) fn with_descriptors<R: Send>(
    mut act: impl FnMut() -> Result<R, Errno> + Send,
) -> Result<R, Errno> {
    let mut epoch = detection::epoch();
    let mut result = act();
    for _ in 0..TRIES {
        let errno = match result {
            Err(errno) if detection::is_of_descriptor(errno) => errno,
            other => return other,
        };
        if detection::is_closed(errno) {
            result = match worker::on_worker(&mut act) {
                // Its copies are tenure's own, so the memory is the reason.
                Some(Err(Errno::INVAL)) => return Err(Errno::INVAL),
                Some(done) => done,
                None => Err(errno),
            };
            continue;
        }
        if !detection::is_lost() && detection::epoch() == epoch {
            break;
        }
        before_claiming();
        epoch = detection::epoch();
        result = act();
    }
    result
}

/// Does the work that must precede any claim: notices a fork whose handlers did not run, and
/// replaces lost descriptors.
pub(crate) fn before_claiming() {
    assert_none_held();
    fork::look();
    if detection::is_lost() && !worker::is_worker() {
        detection::recover(|| {
            TRACKING.slab.each(|_, tracked, _| {
                let watched = tracked.is(flag::WATCHED | flag::WHOLLY_WATCHED);
                let refilled = tracked.is(flag::REFILLED);
                tracked.not_watched();
                tracked.not_refilled();
                // A thread may have claimed it in order to offer it as watched. This check comes
                // after the flags are cleared, so a thread that claims it later does not find them.
                if tracked.load().has(Word::OFFERED | Word::CLAIMED) {
                    tracked.suspect();
                }
                if watched {
                    // After the claim: a thread that takes the range back and finds it intact then
                    // asks whether it is suspect.
                    let kind = if refilled { Kind::Refill } else { Kind::Sigbus };
                    let _ = detection::unregister(kind, tracked.range());
                }
            });
        });
        watch_again::all();
    }
}
