//! The cache, with everything that this kernel offers.

#[path = "suite/cache.rs"]
mod suite;

#[test]
fn values_of_every_size_come_back() {
    suite::values_of_every_size_come_back();
}

#[test]
fn a_ceiling_holds_and_what_is_used_stays() {
    suite::a_ceiling_holds_and_what_is_used_stays();
}

#[test]
fn overwriting_gives_space_back() {
    suite::overwriting_gives_space_back();
}

#[test]
fn a_held_value_survives_everything() {
    suite::a_held_value_survives_everything();
}

#[test]
fn values_end() {
    suite::values_end();
}

#[test]
fn a_missing_value_is_made_once() {
    suite::a_missing_value_is_made_once();
}

#[test]
fn bookkeeping_stays_below_one_percent() {
    suite::bookkeeping_stays_below_one_percent();
}

#[test]
fn threads_never_see_wrong_bytes_while_segments_are_reused() {
    suite::threads_never_see_wrong_bytes_while_segments_are_reused();
}
