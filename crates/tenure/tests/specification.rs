//! SPECIFICATION.md names the tests that prove its promises. These exist, and each of them ran.
//!
//! CI checks after the suite that they ran, from the suite's output:
//! `TENURE_SUITE_OUTPUT=FILE cargo test -p tenure --test specification -- --ignored --nocapture`.

#[path = "specification_kit/promises.rs"]
mod promises;
#[path = "specification_kit/suite_output.rs"]
mod suite_output;
#[path = "specification_kit/tests_in_source.rs"]
mod tests_in_source;

use promises::{mistakes, promises};
use std::fs;
use std::path::{Path, PathBuf};
use suite_output::SuiteOutput;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn specification() -> String {
    fs::read_to_string(root().join("SPECIFICATION.md")).unwrap()
}

#[test]
fn each_promise_names_a_test_that_exists_or_is_pending() {
    let text = specification();
    let wrong = mistakes(&text, &tests_in_source::all(&root()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let promises = promises(&text);
    let named: usize = promises.iter().map(|promise| promise.tests.len()).sum();
    let pending = promises.iter().filter(|promise| promise.is_pending).count();
    println!("{} promises, {named} tests named, {pending} promises pending", promises.len());
    assert!(promises.len() > 100 && named > 150);
    assert!(text.lines().count() < 500, "it is to stay short");
}

#[test]
#[ignore = "reads what the whole suite has printed"]
fn each_test_that_is_named_ran() {
    let file = std::env::var("TENURE_SUITE_OUTPUT").expect("TENURE_SUITE_OUTPUT names a file");
    let output = SuiteOutput::read(&fs::read_to_string(&file).unwrap());
    let (mut missing, mut skipped, mut ran) = (Vec::new(), 0, 0);
    for promise in promises(&specification()) {
        for test in &promise.tests {
            match output.ran(test) {
                true => ran += 1,
                false => missing.push(format!("{}: {test} did not run", promise.number)),
            }
            if let Some(reason) = output.skipped(test) {
                skipped += 1;
                println!("{}: {test} was skipped here: {reason}", promise.number);
            }
        }
    }
    println!("of the tests named, {ran} ran, {skipped} of them were skipped");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// The checks find the mistakes for which they exist.
mod mistakes_are_found {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        mistakes(text, &tests_in_source::all(&root()))
    }

    const EXISTS: &str =
        "`tenure::specification::each_promise_names_a_test_that_exists_or_is_pending`";

    #[test]
    fn a_test_that_exists_is_none() {
        assert!(of(&format!("- **V1.** Something.\n  {EXISTS}\n")).is_empty());
        assert!(of("- **V1.** Something. [pending]\n").is_empty());
    }

    #[test]
    fn a_test_that_does_not_exist() {
        for wrong in [
            "`tenure::specification::there_is_no_such_test`",
            "`tenure::specification::mistakes_are_found::of`",
            "`tenure::no_program::a_test`",
            "`tenure_nothing::specification::a_test_that_exists_is_none`",
            "`tenure::specification::mistakes_are_found`",
        ] {
            let found = of(&format!("- **V1.** Something. {EXISTS} {wrong}\n"));
            assert_eq!(found.len(), 1, "{wrong}: {found:?}");
            assert!(found[0].contains(wrong.trim_matches('`')), "{found:?}");
        }
    }

    #[test]
    fn a_number_that_comes_twice() {
        let one = format!("- **V1.** Something. {EXISTS}\n");
        let found = of(&format!("{one}{one}"));
        assert_eq!(found, ["V1 comes twice"]);
        let found = of(&format!("{one}- **V3.** Something. [pending]\n"));
        assert_eq!(found, ["V3 comes after V1"]);
    }

    #[test]
    fn a_promise_that_names_nothing() {
        let found = of("- **V1.** Something.\n- **V2.** Else. [pending]\n");
        assert_eq!(found, ["V1 names no test, and is not [pending]"]);
    }

    #[test]
    fn a_promise_without_a_number() {
        assert_eq!(of("- Something. [pending]\n"), ["no promise: - Something. [pending]"]);
    }

    #[test]
    fn a_test_that_did_not_run() {
        let output = SuiteOutput::read(
            "     Running unittests src/lib.rs (target/debug/deps/tenure-0123456789abcdef)\n\
             test os::smaps::tests::names ... ok\n\
             test result: ok. 1 passed\n\
             \x20    Running tests/apart/main.rs (target/debug/deps/apart-0123456789abcdef)\n\
             test shared::a_purge ... ok\n\
             test shared::another ... ignored, takes long\n\
             test shared::alone ... what it prints\n\
             \n\
             skipped: 1\n\
             - apart::shared::a_purge: no userfaultfd: EPERM\n",
        );
        for ran in [
            "tenure::lib::os::smaps::tests::names",
            "tenure::apart::shared::a_purge",
            "tenure::apart::shared::alone",
        ] {
            assert!(output.ran(ran), "{ran}");
        }
        for not in [
            "tenure::smaps::os::smaps::tests::names",
            "tenure::apart::shared::another",
            "tenure::cache::shared::a_purge",
            "tenure::apart::a_purge",
            "tenure::apart::result",
        ] {
            assert!(!output.ran(not), "{not}");
        }
        assert_eq!(output.skipped("tenure::apart::shared::a_purge"), Some("no userfaultfd: EPERM"));
        assert_eq!(output.skipped("tenure::apart::shared::alone"), None);
    }
}
