//! The definition that a program's call reaches: it is the one that it would reach without the
//! library.

use crate::kit::{self, allocators, done, program, Program, DISABLED, LARGE, UNMAP};

/// The C++ library comes with the plugin, and only the plugin sees it. A second plugin has its own
/// operators.
#[test]
fn cpp_plugins_of_a_c_program() {
    // Without a compiler for C++ the test is skipped.
    drop(program!("operators.cpp"));
    let host = program!("host.c");
    let plain = host.plugin("plugin.cpp", "plugin.so", &[]);
    let own = host.plugin("plugin_own.cpp", "own.so", &[]);
    let output = host.with(&[&plain, &own, &plain]).same_under_all_options();
    assert_eq!(output.stdout, b"9\n202\n9\n");
}

/// Each of two plugins gets the functions of its own allocator. The library knows the names of
/// some.
#[test]
fn plugins_with_allocators_of_their_own() {
    let host = program!("host.c");
    let one = host.plugin("plugin_names.c", "one.so", &["-DNUMBER=64"]);
    let other = host.plugin("plugin_names.c", "other.so", &["-DNUMBER=4096"]);
    let output = host.with(&[&one, &other, &one]).same_under_all_options();
    assert_eq!(output.stdout, b"1004\n1004\n1004\n");
}

/// The library looks no definition up while the program runs: that would wait for a thread that loads a library, and
/// overwrite the loader's message. It also leaves the C library's heap to begin with the program.
#[test]
fn the_loader_is_the_programs() {
    // Without its mechanisms the library has made no call yet that would hide a lookup.
    let same = |program: &Program| {
        let expected = program.same_under_all_options();
        program.same(DISABLED, None, &expected);
    };
    let program = program!("loader.c");
    same(&program);
    for call in 0..9 {
        let plugin =
            program.plugin("loader_plugin.c", "waits.so", &[&format!("-DCALL={call}"), "-pthread"]);
        // A process for each call, which is its first one.
        same(&program!("loader_host.c").with(&[&plugin]));
    }
}

/// A program's own functions may need a lock under which it frees.
#[test]
fn functions_of_the_programs_own_are_not_called() {
    let program = program!("own_calls.c");
    let plugin = program.plugin("queue_raw.c", "libplugin.so", &[]);
    let program = program.with(&[&plugin]);
    let expected = program.same_under_all_options();
    // The pool, which is asked first, gives the memory to no other mechanism.
    program.same(&[UNMAP], None, &expected);
}

#[test]
fn functions_of_the_programs_own_may_call_others() {
    let program = program!("own_wrappers.c");
    let expected = program.same_under_all_options();
    program.same(DISABLED, None, &expected);
}

/// glibc's functions about its heap include the pool.
#[test]
fn trimming_and_counting() {
    program!("trim.c").same_under_all_options();
}

/// Allocators have their own operators new and delete, which do not call malloc.
#[test]
fn operators() {
    program!("operators.cpp").same_everywhere();
}

/// Forms of the operators that a program does not replace go through those that it does.
#[test]
fn replaced_operators() {
    program!("replaced.cpp").same_everywhere();
}

/// A block of the pool could come back through a name that the library does not know. So such an
/// allocator serves all of malloc itself, and the report says so.
#[test]
fn an_allocator_with_names_of_its_own_keeps_malloc() {
    let program = program!("deferral.c");
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    for allocator in allocators() {
        let mut alone = program.plain();
        alone.env("LD_PRELOAD", &allocator);
        if !kit::attempt(&mut alone).status.success() {
            continue;
        }
        let options = [LARGE, UNMAP, ("TENURE_REPORT", name)];
        done("reported", &mut program.under(&options, Some(&allocator)));
        let told = std::fs::read_to_string(&report).expect("there is a report");
        let file = allocator.file_name().expect("a file").to_string_lossy();
        assert!(told.contains(&format!("malloc is that of {file}")), "{allocator:?}: {told}");
        std::fs::remove_file(&report).expect("it was there");
    }
}
