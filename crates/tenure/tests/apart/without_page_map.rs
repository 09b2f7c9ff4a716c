//! A process that has dropped its privileges cannot read its page map: the untouched parts of a
//! range stay untouched when the range is taken back.

use crate::promise_kit::*;
use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use tenure::volatile::{self, Refill};
use tenure::{Mapping, Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{as_nobody, in_child, or_skip, skip, this_test};

const LEN: usize = 64 * MIB;
/// One page in so many holds data.
const STRIDE: usize = 256 * PAGE;

/// Drops privileges as a daemon does that begins as root.
fn drop_privileges() {
    or_skip!(as_nobody());
    // SAFETY: the call takes numbers only, and sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
    if File::open("/proc/self/pagemap").is_ok() {
        skip!("this process reads its page map all the same");
    }
}

fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn write(bytes: &mut [u8]) {
    bytes.chunks_mut(STRIDE).for_each(|part| part[..PAGE].fill(7));
    // A page of its own that holds zeros.
    bytes[PAGE..2 * PAGE].fill(7);
    bytes[PAGE..2 * PAGE].fill(0);
}

fn check(bytes: &[u8]) {
    for part in bytes.chunks(STRIDE) {
        assert!(part[..PAGE].iter().all(|byte| *byte == 7));
        assert!(part[PAGE..4 * PAGE].iter().all(|byte| *byte == 0));
    }
}

/// Checks, and checks again after the kernel has taken the pages that it may.
fn check_twice(bytes: &mut [u8], before: usize) {
    check(bytes);
    let more = resident().saturating_sub(before);
    assert!(more < LEN / 4, "{} MiB more are resident", more >> 20);
    reclaim(bytes.as_ptr() as usize, bytes.len());
    check(bytes);
    // No missing page of it is watched.
    bytes[PAGE] = 1;
    bytes[3 * PAGE] = 1;
    assert_eq!((bytes[PAGE], bytes[3 * PAGE]), (1, 1));
}

#[test]
fn a_range_that_is_taken_back_takes_what_it_had() {
    in_child(this_test!(), &[], || {
        drop_privileges();
        let mut map = Mapping::anonymous_with(LEN, PageSize::System).unwrap();
        write(map.as_mut_slice());
        let before = resident();
        // SAFETY: this test's own memory.
        unsafe {
            volatile::mark(map.as_mut_ptr(), LEN).unwrap();
            volatile::offer_now(map.as_mut_ptr(), LEN).unwrap();
            assert_eq!(volatile::unmark(map.as_mut_ptr(), LEN).unwrap(), Outcome::Intact);
        }
        check_twice(map.as_mut_slice(), before);
    });
}

#[test]
fn a_range_that_is_gone_in_part_is_taken_back_in_part() {
    needs_userfaultfd!();
    in_child(this_test!(), &[], || {
        drop_privileges();
        let mut map = Mapping::anonymous_with(LEN, PageSize::System).unwrap();
        write(map.as_mut_slice());
        let (at, before) = (map.as_mut_ptr(), resident());
        let mut gone = vec![false; LEN / PAGE];
        // SAFETY: this test's own memory.
        unsafe {
            volatile::mark(at, LEN).unwrap();
            volatile::offer_now(at, LEN).unwrap();
            reclaim(at as usize, LEN / 2);
            let told = |part: std::ops::Range<usize>| {
                gone[part.start / PAGE..part.end / PAGE].fill(true);
            };
            let _ = volatile::unmark_with_map(at, LEN, told).unwrap();
        }
        let bytes = map.as_mut_slice();
        for (page, gone) in gone.iter().enumerate().filter(|(page, _)| page * PAGE % STRIDE == 0) {
            assert_eq!(bytes[page * PAGE], if *gone { 0 } else { 7 }, "page {page}");
        }
        write(bytes);
        check_twice(bytes, before);
    });
}

fn pins_take_what_it_had(refill: Option<Refill>) {
    drop_privileges();
    let mut builder = Volatile::builder(LEN).pages(PageSize::System);
    if let Some(refill) = refill {
        builder = builder.refill(refill);
    }
    let mut buffer = builder.build().unwrap();
    write(&mut buffer.pin_mut().unwrap());
    let before = resident();
    for _ in 0..2 {
        buffer.offer_now().unwrap();
        let mut pinned = buffer.pin_mut().unwrap();
        assert_eq!(pinned.outcome(), Outcome::Intact);
        check_twice(&mut pinned, before);
        pinned[PAGE] = 0;
        pinned[3 * PAGE] = 0;
    }
}

#[test]
fn an_object_that_is_pinned_takes_what_it_had() {
    in_child(this_test!(), &[], || pins_take_what_it_had(None));
}

#[test]
fn an_object_with_a_refill_function_takes_what_it_had() {
    let none = || Refill::pages(|_, _| Err("nothing is lost".into()));
    in_child(this_test!(), &[], || pins_take_what_it_had(Some(none())));
}

/// Zeros that a program has written there stay zeros; the function does not make them again.
#[test]
fn zeros_of_an_object_with_a_refill_function_stay() {
    in_child(this_test!(), &[], || {
        drop_privileges();
        let refill = Refill::pages(|_, bytes| {
            bytes.fill(9);
            Ok(())
        });
        let builder = Volatile::builder(16 * PAGE).pages(PageSize::System).refill(refill);
        let mut buffer = builder.build().unwrap();
        buffer.pin_mut().unwrap()[..8 * PAGE].fill(0);
        buffer.offer_now().unwrap();
        let pinned = buffer.pin().unwrap();
        reclaim(pinned.as_ptr() as usize, pinned.len());
        assert!(pinned.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn what_is_purged_is_counted() {
    needs_userfaultfd!();
    in_child(this_test!(), &[], || {
        drop_privileges();
        let mut buffer = Volatile::builder(64 * PAGE).pages(PageSize::System).build().unwrap();
        buffer.pin_mut().unwrap().fill(7);
        let purged = buffer.purge_now().unwrap();
        let pinned = buffer.pin().unwrap();
        assert_eq!(pinned.iter().filter(|byte| **byte == 0).count(), purged);
        assert!(purged > 0, "nothing went in four tries");
    });
}

/// A loss that a touch repaired is still a loss for the next pin: the watch continues, and zeros
/// are kept.
#[test]
fn zeros_beside_a_loss_stay() {
    needs_userfaultfd!();
    static FAILS: AtomicBool = AtomicBool::new(true);
    in_child(this_test!(), &[], || {
        drop_privileges();
        let refill = Refill::pages(|_, bytes| {
            bytes.fill(7);
            if FAILS.load(Ordering::SeqCst) {
                Err("no".into())
            } else {
                Ok(())
            }
        });
        let builder = Volatile::builder(16 * PAGE).pages(PageSize::System).refill(refill);
        let mut buffer = builder.build().unwrap();
        let at = buffer.as_ptr();
        buffer.pin_mut().unwrap()[..PAGE].fill(7);
        buffer.pin_mut().unwrap()[PAGE..2 * PAGE].fill(0);
        buffer.offer_now().unwrap();
        reclaim(at as usize, PAGE);
        if buffer.pin().is_ok() {
            skip!("the kernel did not take the page");
        }
        FAILS.store(false, Ordering::SeqCst);
        // SAFETY: the byte is inside the buffer, which is mapped; a purged page is refilled.
        assert_eq!(unsafe { at.read_volatile() }, 7);
        buffer.offer_now().unwrap();
        let pinned = buffer.pin().unwrap();
        reclaim(at as usize + PAGE, PAGE);
        assert!(pinned[PAGE..].iter().all(|byte| *byte == 0));
    });
}

/// Where there is no /proc, the mappings of an object are not listed either. A child, too, finds all
/// that was not lost: also what was never written, which a fork does not copy by itself.
#[test]
fn an_object_is_offered_where_no_file_can_be_opened() {
    in_child(this_test!(), &[], || {
        let opens = [
            libc::SYS_openat,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open,
        ];
        let refuse = |filter: Filter, call| filter.refuse(Call::Number(call), Errno::NOENT);
        or_skip!(opens.into_iter().fold(Filter::new(), refuse).install_this_thread());
        let mut buffer = Volatile::builder(64 * PAGE).pages(PageSize::System).build().unwrap();
        buffer.pin_mut().unwrap()[..PAGE].fill(7);
        for _ in 0..2 {
            buffer.offer_now().unwrap();
            let ended = forked(|| {
                let pinned = buffer.pin().unwrap();
                assert_eq!(pinned.outcome(), Outcome::Intact);
                assert!(pinned[..PAGE].iter().all(|byte| *byte == 7));
                assert!(pinned[PAGE..].iter().all(|byte| *byte == 0));
            });
            assert_eq!(ended, Ended::Well);
            assert_eq!(buffer.pin().unwrap().outcome(), Outcome::Intact);
        }
    });
}
