//! Makes a chunk in its place with a function of the caller, or waits for its maker.

use super::pin::{made_by_itself, SharedChunk, SharedPin};
use super::region::Region;
use super::state::Kind;
use crate::error::{ErrorKind, Result};
use std::time::Duration;

/// After this time a waiter looks again which thread makes the chunk. It is longer than
/// [`Waiting`](super::waiting::Waiting) is for a process that cannot look.
const LOOK_AGAIN: Duration = Duration::from_secs(6);
/// As [`LOOK_AGAIN`], for a thread of this process: it notes the chunk a moment after it has begun.
const LOOK_SOON: Duration = Duration::from_millis(10);

/// Goes on with a pin of a chunk. If it is gone, makes it with `make`. If another thread makes it,
/// waits for that thread.
pub(super) fn get_or_make<'a>(
    call: &'static str,
    region: &'a Region,
    mut pin: SharedPin<'a>,
    chunk: usize,
    make: impl FnOnce(&mut [u8]),
) -> Result<SharedChunk<'a>> {
    loop {
        let other = match pin {
            SharedPin::Intact(chunk) => {
                // While the pin is a local: if this drop panics, a pin that is already returned
                // would be lost, and last.
                drop(make);
                return Ok(chunk);
            }
            SharedPin::ToMake(mut maker) => {
                let _making = region.threads.make(chunk);
                match maker.is_mine() {
                    true => make(maker.bytes_mut()),
                    false => drop(make),
                }
                return maker.finish_in(call);
            }
            SharedPin::BeingMade(other) => other,
        };
        let state = region.chunk(chunk).load();
        let is_here =
            state.kind() == Kind::Making && Some(state.owner()) == region.slots.own_or_none();
        pin = match is_here.then(|| region.threads.wait(chunk)).flatten() {
            Some(true) => SharedPin::take(call, region, chunk)?,
            Some(false) => return Err(made_by_itself(call, chunk)),
            None => match other.wait(Some(if is_here { LOOK_SOON } else { LOOK_AGAIN })) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    SharedPin::take(call, region, chunk)?
                }
                found => found?,
            },
        };
    }
}
