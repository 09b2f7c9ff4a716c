//! Buffers: pins, losses, refills, touches, children.

use super::memory::{all_are, assert_filled, byte, fill, peek, PAGE};
use crate::stage::{self, allowed, forked, is_failing, over, refuses, soon};
use libc::{EAGAIN, EBUSY, EINVAL, EIO, ENOMEM, EOPNOTSUPP};
use tenure::volatile::{detection, Detection, Refill};
use tenure::{Outcome, Volatile};

const PAGES: usize = 24;
const LEN: usize = PAGES * PAGE;
const OFFERS: &[i32] = &[EINVAL, EBUSY, ENOMEM];

fn plain() {
    let built = Volatile::new(LEN);
    let Some(mut buffer) = allowed(built, &[EINVAL, ENOMEM, EOPNOTSUPP, EAGAIN]) else { return };
    let Some(mut pinned) = allowed(buffer.pin_mut(), &[EIO, ENOMEM]) else { return };
    fill(&mut pinned);
    drop(pinned);
    allowed(buffer.purge_now(), OFFERS);
    for _ in 0..2 {
        let Some(pinned) = allowed(buffer.pin(), &[EIO, ENOMEM]) else {
            assert!(is_failing());
            over();
            continue;
        };
        let lost = pinned.lost();
        assert_eq!(pinned.outcome() == Outcome::Purged, !lost.is_empty());
        for (page, bytes) in pinned.chunks(PAGE).enumerate() {
            let is_lost = lost.iter().any(|extent| extent.contains(&(page * PAGE)));
            let right = if is_lost { 0 } else { byte(page) };
            let kept = stage::says_gone() && all_are(bytes, byte(page));
            assert!(kept || all_are(bytes, right), "page {page} holds {}, not {right}", bytes[0]);
        }
        break;
    }
}

fn refilled() {
    let refill = Refill::pages(|offset, bytes| {
        for (i, bytes) in bytes.chunks_mut(PAGE).enumerate() {
            bytes.fill(byte(offset / PAGE + i));
        }
        Ok(())
    });
    let built = Volatile::builder(LEN).refill(refill).build();
    let Some(mut buffer) = allowed(built, &[EINVAL, ENOMEM, EOPNOTSUPP, EAGAIN]) else { return };
    let Some(mut pinned) = allowed(buffer.pin_mut(), &[EIO, ENOMEM]) else { return };
    fill(&mut pinned);
    drop(pinned);
    for round in 0..3 {
        match round {
            0 => drop(allowed(buffer.purge_now(), OFFERS)),
            1 => drop(allowed(buffer.offer_now(), OFFERS)),
            _ => drop(soon(|| tenure::stats().offered > 0)),
        }
        if round == 0 {
            // A touch without a pin waits for the function, or is refused. Without userfaultfd it
            // may read zero.
            let touched = peek(buffer.as_ptr().wrapping_add(3 * PAGE));
            let zero = (detection() == Detection::Words).then_some(0);
            assert!(touched.is_none_or(|b| b == byte(3) || Some(b) == zero), "{touched:?}");
            allowed(buffer.purge_now(), OFFERS);
            let ended = forked(|| match buffer.pin() {
                Ok(pinned) => assert_filled(&pinned, "a child's refilled buffer"),
                Err(error) => assert!(is_failing(), "{error}"),
            });
            assert!(ended != Some(false), "the child was wrong");
        }
        match allowed(buffer.pin(), &[EIO, ENOMEM]) {
            Some(pinned) => assert_filled(&pinned, "a refilled buffer"),
            None => {
                over();
                let again = buffer.pin();
                if !(again.is_err() && refuses("uffd-copy")) {
                    assert_filled(&again.unwrap(), "a refilled buffer after an error");
                }
            }
        }
    }
}

pub fn life() {
    refilled();
    plain();
}
