//! The errors of populating, each provoked for real, by `MADV_POPULATE_*` and by the touch loop.

#[path = "suite/populate_errors.rs"]
mod suite;

#[path = "suite/raw.rs"]
mod raw;

use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{run_child, this_test};

#[test]
fn holes() {
    suite::holes_at_the_beginning_in_the_middle_and_at_the_end();
}

#[test]
fn protection() {
    suite::protection();
}

#[test]
fn past_the_end_of_a_file() {
    suite::past_the_end_of_a_file();
}

#[test]
fn a_guard_region() {
    suite::a_guard_region();
}

#[test]
fn secret_memory() {
    suite::secret_memory();
}

#[test]
fn a_page_that_userfaultfd_watches() {
    suite::a_page_that_userfaultfd_watches();
}

#[test]
fn a_poisoned_page() {
    suite::a_poisoned_page();
}

#[test]
fn a_full_tmpfs() {
    suite::a_full_tmpfs();
}

#[test]
fn a_pool_of_huge_pages_used_up() {
    suite::a_pool_of_huge_pages_used_up();
}

#[test]
fn huge_pages_of_the_pool_come_and_go() {
    suite::huge_pages_of_the_pool_come_and_go();
}

#[test]
fn a_full_disk() {
    suite::a_full_disk();
}

fn all_under(test: &'static str, errno: Errno) {
    let result = run_child(test, &[], || {
        Filter::new()
            .refuse(Call::Madvise(libc::MADV_POPULATE_READ), errno)
            .refuse(Call::Madvise(libc::MADV_POPULATE_WRITE), errno)
            .install_this_thread()
            .expect("a seccomp filter needs no rights");
        for (name, run) in suite::ALL {
            println!("under the filter: {name}");
            run();
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
    println!("{}", result.output);
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
