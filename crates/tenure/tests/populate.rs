//! Populating: what is there afterwards on every backing, by `MADV_POPULATE_*` and by the touch loop.

#[path = "suite/populate.rs"]
mod suite;

#[path = "suite/raw.rs"]
mod raw;

use tenure::populate::{Access, Populate, Step};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{run_child, this_test};

#[test]
fn every_page_of_anonymous_memory() {
    suite::every_page_of_anonymous_memory();
}

#[test]
fn contents_stay_on_every_backing() {
    suite::contents_stay_on_every_backing();
}

#[test]
fn reading_a_file_dirties_nothing_and_writing_a_private_one_copies() {
    suite::reading_a_file_dirties_nothing_and_writing_a_private_one_copies();
}

#[test]
fn holes_of_files_are_allocated() {
    suite::holes_of_files_are_allocated();
}

#[test]
fn a_part_may_span_mappings_of_many_kinds() {
    suite::a_part_may_span_mappings_of_many_kinds();
}

#[test]
fn writers_meanwhile_lose_nothing() {
    suite::writers_meanwhile_lose_nothing();
}

#[test]
fn parts_come_and_go_in_a_sparse_mapping() {
    suite::parts_come_and_go_in_a_sparse_mapping();
}

#[test]
fn each_kind_is_discarded_in_its_way() {
    suite::each_kind_is_discarded_in_its_way();
}

#[test]
fn volatile_memory_is_refused() {
    suite::volatile_memory_is_refused();
}

#[test]
fn locked_memory_is_populated() {
    suite::locked_memory_is_populated();
}

#[test]
fn bad_ranges_are_refused() {
    suite::bad_ranges_are_refused();
}

#[test]
fn odd_lengths_are_rounded_up() {
    suite::odd_lengths_are_rounded_up();
}

fn all_under(test: &'static str, errno: Errno) {
    let result = run_child(test, &[], || {
        Filter::new()
            .refuse(Call::Madvise(libc::MADV_POPULATE_READ), errno)
            .refuse(Call::Madvise(libc::MADV_POPULATE_WRITE), errno)
            .install_this_thread()
            .expect("a seccomp filter needs no rights");
        let raw = raw::Raw::anonymous(1);
        for (access, step) in [(Access::Write, Step::TouchWrite), (Access::Read, Step::TouchRead)] {
            let plan = Populate::new(raw.ptr(), raw.len, access).plan().unwrap();
            assert_eq!(plan.parts[0].steps[0].0, step, "{plan}");
        }
        for (name, run) in suite::ALL {
            println!("under the filter: {name}");
            run();
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
    assert_eq!(result.output.matches("under the filter: ").count(), suite::ALL.len());
}

#[test]
fn where_populate_is_unknown() {
    all_under(this_test!(), Errno::INVAL);
}

#[test]
fn where_populate_is_refused() {
    all_under(this_test!(), Errno::PERM);
}
