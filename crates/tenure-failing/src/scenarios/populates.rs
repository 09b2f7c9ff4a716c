//! Populates of anonymous memory and files; discards; the progress of a failed populate.

use super::memory::{assert_filled, byte, fill, filled, PAGE};
use crate::stage::{allowed, forked, is_failing, over};
use libc::{EACCES, EAGAIN, EBUSY, EFAULT, EHWPOISON, EINVAL, EMFILE, ENFILE, ENOMEM, ENOSPC};
use std::time::Duration;
use tenure::populate::{Access, Failed, Populate, Report};
use tenure::{Error, Mapping};

const PAGES: usize = 64;
const LEN: usize = PAGES * PAGE;
const DOCUMENTED: &[i32] = &[EINVAL, ENOMEM, EACCES, EFAULT, ENOSPC, EHWPOISON, EBUSY];

/// Whether the pages before this address are resident.
fn are_there(map: &Mapping, end: usize) -> bool {
    let start = map.as_ptr() as usize;
    let mut there = [0u8; 4 * PAGES];
    let pages = (end - start) / PAGE;
    // SAFETY: `there` has a byte for each page.
    let asked = unsafe { libc::mincore(start as *mut _, pages * PAGE, there.as_mut_ptr()) };
    asked != 0 || there[..pages].iter().all(|there| there & 1 == 1)
}

fn judged(map: &Mapping, result: Result<Report, Failed>) -> bool {
    let end = map.as_ptr() as usize + map.len();
    match result {
        Ok(_) => {
            assert!(are_there(map, end), "a populate that succeeded left a page out");
            true
        }
        Err(failed) => {
            let missing = failed.report.first_missing;
            allowed(Err::<(), Error>(failed.error), DOCUMENTED);
            if let Some(missing) = missing {
                assert!(are_there(map, missing), "a page before the first missing one is missing");
            }
            false
        }
    }
}

fn anonymous() {
    let Some(mut map) = filled(PAGES) else { return };
    let run = |map: &Mapping, access| Populate::new(map.as_ptr(), map.len(), access).run();
    judged(&map, run(&map, Access::Read));
    assert_filled(map.as_slice(), "after a populate");
    let Some(fresh) = allowed(Mapping::anonymous(LEN), &[ENOMEM]) else { return };
    let work = Populate::new(fresh.as_ptr(), LEN, Access::Write).threads(2).within_room(true);
    judged(&fresh, work.run());
    assert!(fresh.as_slice().iter().all(|b| *b == 0));
    if let Some(discarded) = allowed(map.discard(0, LEN), &[EINVAL, EACCES, ENOMEM]) {
        let () = discarded;
        assert!(map.as_slice().iter().all(|b| *b == 0), "discarded memory is not zero");
        fill(map.as_mut_slice());
    } else {
        // Nothing is discarded if the call cannot discard all of it.
        let zeroed = map.as_slice().chunks(PAGE).filter(|page| page[0] == 0).count();
        assert!(zeroed == 0 || zeroed == PAGES, "a discard that failed took {zeroed} pages");
        fill(map.as_mut_slice());
    }
    let background = Populate::new(fresh.as_ptr(), LEN, Access::Write).start();
    if let Some(background) = allowed(background, &[EINVAL, ENOMEM, ENOSPC, EAGAIN]) {
        assert!(background.wait_timeout(Duration::from_secs(30)), "a populate does not end");
        judged(&fresh, background.wait());
    }
    let ended = forked(|| {
        judged(&map, run(&map, Access::Write));
        assert_filled(map.as_slice(), "in a child");
    });
    assert!(ended != Some(false), "the child was wrong");
    let plan = Populate::new(map.as_ptr(), LEN, Access::Write);
    allowed(plan.plan(), DOCUMENTED);
    allowed(plan.room(), DOCUMENTED);
    over();
    assert!(judged(&map, run(&map, Access::Write)) || is_failing());
    assert_filled(map.as_slice(), "at the end");
}

fn of_file() {
    let map = Mapping::memfd("populate", LEN);
    let Some(mut map) = allowed(map, &[EINVAL, ENOMEM, EMFILE, ENFILE]) else { return };
    let write = Populate::new(map.as_ptr(), LEN, Access::Write).run();
    judged(&map, write);
    assert!(map.as_slice().iter().all(|b| *b == 0));
    fill(map.as_mut_slice());
    judged(&map, Populate::new(map.as_ptr(), LEN, Access::Read).run());
    assert_eq!(map.as_slice()[5 * PAGE], byte(5));
    assert_filled(map.as_slice(), "a file");
}

pub fn life() {
    of_file();
    anonymous();
    let _ = is_failing();
}
