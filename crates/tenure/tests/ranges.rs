//! Raw ranges, with everything that this kernel offers.

#[path = "suite/ranges.rs"]
mod suite;

#[test]
fn intact_pages_keep_their_bytes() {
    suite::intact_pages_keep_their_bytes();
}

#[test]
fn a_purge_is_told_with_exactly_its_pages() {
    suite::a_purge_is_told_with_exactly_its_pages();
}

#[test]
fn untouched_pages_are_not_purged() {
    suite::untouched_pages_are_not_purged();
}

#[test]
fn what_cannot_be_volatile_is_refused_with_its_reason() {
    suite::what_cannot_be_volatile_is_refused_with_its_reason();
}

#[test]
fn sub_ranges_split_and_merge_as_locks_do() {
    suite::sub_ranges_split_and_merge_as_locks_do();
}

#[test]
fn the_keeper_offers_by_itself() {
    suite::the_keeper_offers_by_itself();
}
