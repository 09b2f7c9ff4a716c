//! Runs a test program's own tests once more where part of the kernel is refused.

use crate::child::run_harness;
use crate::seccomp::Filter;

/// Runs the calling program's tests whose names contain one of `names` once more, one after
/// another, in a process of its own under the filter.
///
/// # Panics
/// If a test fails, or none has such a name.
pub fn tests_under(filter: &Filter, names: &[&str], env: &[(&str, &str)]) {
    // On a thread of its own, because a filter cannot be removed.
    let result = std::thread::scope(|scope| {
        let run = || {
            filter.install_this_thread().expect("a seccomp filter needs no rights");
            run_harness(names, env)
        };
        scope.spawn(run).join().expect("it does not panic")
    });
    let result = result.unwrap_or_else(|e| panic!("this program does not run again: {e}"));
    println!("{}", result.output);
    let passed = |line: &str| line.starts_with("test result: ok.") && !line.contains(" 0 passed");
    assert!(result.status.success() && result.output.lines().any(passed), "{}", result.status);
}
