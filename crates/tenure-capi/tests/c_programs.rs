//! The C ABI, used from C: every program of `tests/c` against both libraries, with userfaultfd and
//! without.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{in_child, skip, this_test};

/// What a program answers that cannot do its work here; its reason is on standard error.
const SKIPPED: i32 = 77;
/// What Rust's standard library needs of the system, for those who link the static library.
const STATIC_NEEDS: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

const C_WARNINGS: [&str; 7] =
    ["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Wstrict-prototypes", "-Werror"];
const CPP_WARNINGS: [&str; 6] =
    ["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Werror"];

#[derive(Clone, Copy, Debug)]
enum Link {
    Shared,
    Static,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the libraries are, built as this test was: cargo does not build them for it, because no
/// Rust program can link to them.
fn libraries() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile_dir = test.parent().and_then(Path::parent).unwrap();
        let name = profile_dir.file_name().unwrap().to_str().unwrap();
        // With a target given there is one more directory, which cargo has to be told of.
        let above = profile_dir.parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-p", "tenure-capi", "--quiet"]).current_dir(root());
        cargo.args(["--profile", if name == "debug" { "dev" } else { name }]);
        if above.join("CACHEDIR.TAG").exists() {
            cargo.arg("--target-dir").arg(above);
        } else {
            cargo.arg("--target-dir").arg(above.parent().unwrap());
            cargo.arg("--target").arg(above.file_name().unwrap());
        }
        let built = cargo.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        for name in ["libtenure.so", "libtenure.a"] {
            assert!(profile_dir.join(name).exists(), "no {name} in {}", profile_dir.display());
        }
        profile_dir.to_owned()
    })
}

/// The C compiler, or why there is none.
fn compiler(variable: &str, default: &str) -> Result<String, String> {
    let name = std::env::var(variable).unwrap_or_else(|_| default.into());
    match Command::new(&name).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(name),
        Ok(output) => Err(format!("{name} --version ended with {}", output.status)),
        Err(error) => Err(format!("no compiler {name}: {error}")),
    }
}

/// Compiles a file of this crate into `to`.
fn compile(compiler: &str, flags: &[&str], source: &str, link: Link, to: &Path) {
    let mut cc = Command::new(compiler);
    cc.args(flags).args(["-O2", "-g", "-pthread"]).current_dir(root());
    cc.args(["-Iinclude", "-Itests/c", "-o"]).arg(to).arg(source);
    match link {
        Link::Shared => {
            let mut path = std::ffi::OsString::from("-Wl,-rpath,");
            path.push(libraries());
            cc.arg("-L").arg(libraries()).arg("-ltenure").arg(path);
        }
        Link::Static => {
            cc.arg(libraries().join("libtenure.a")).args(STATIC_NEEDS);
        }
    }
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{source}, {link:?}: {}", text(&output));
}

fn text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a program of this crate with both libraries; the reason, if it cannot do its work here.
fn run(compiler: &str, flags: &[&str], source: &str, env: &[(&str, &str)]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    for link in [Link::Shared, Link::Static] {
        let program = dir.path().join("program");
        compile(compiler, flags, source, link, &program);
        // The loader must take our library and no other; settings are what the test says.
        let output = Command::new(&program)
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("TENURE_PURGE")
            .env_remove("TENURE_OFFER_AFTER_MS")
            .envs(env.iter().copied())
            .output()
            .unwrap();
        match output.status.code() {
            Some(0) => {}
            Some(SKIPPED) => return Err(String::from_utf8_lossy(&output.stderr).trim().into()),
            _ => panic!("{source}, {link:?}: {}", text(&output)),
        }
    }
    Ok(())
}

/// The body of a test: compile and run, or skip with the reason.
macro_rules! program {
    ($compiler:expr, $flags:expr, $source:expr) => {{
        let compiler = match $compiler {
            Ok(compiler) => compiler,
            Err(reason) => skip!("{reason}"),
        };
        if let Err(reason) = run(&compiler, $flags, $source, &[]) {
            skip!("{reason}");
        }
    }};
}

/// A test for each program, and the same with userfaultfd refused, as in many containers.
macro_rules! programs {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                program!(compiler("CC", "cc"), &C_WARNINGS, concat!("tests/c/", stringify!($name), ".c"));
            }
        )*

        mod without_userfaultfd {
            use super::*;
            $(
                #[test]
                fn $name() {
                    // Built outside: the filter is for the program.
                    libraries();
                    in_child(this_test!(), &[], || {
                        if let Err(reason) = refuse_userfaultfd() {
                            skip!("{reason}");
                        }
                        program!(
                            compiler("CC", "cc"),
                            &C_WARNINGS,
                            concat!("tests/c/", stringify!($name), ".c")
                        );
                    });
                }
            )*
        }
    };
}

fn refuse_userfaultfd() -> Result<(), String> {
    Filter::new()
        .refuse(Call::Userfaultfd, Errno::PERM)
        .refuse(Call::UserfaultfdDevice, Errno::PERM)
        .install_this_thread()
        .map_err(|reason| reason.to_string())
}

programs!(ranges, sigbus, buffer, refill, cache, sizes, errors, fork, threads);

#[test]
fn old_names() {
    let mut flags = C_WARNINGS.to_vec();
    flags.extend(["-include", "tenure_compat.h"]);
    program!(compiler("CC", "cc"), &flags, "tests/c/old_names.c");
}

#[test]
fn plus_plus() {
    program!(compiler("CXX", "c++"), &CPP_WARNINGS, "tests/c/plus_plus.cpp");
}

#[test]
fn eight_lines() {
    program!(compiler("CC", "cc"), &C_WARNINGS, "examples/eight_lines.c");
}

/// In the debug mode that loses everything at each unpin the example makes it again, and is right.
#[test]
fn eight_lines_when_everything_is_lost() {
    let compiler = match compiler("CC", "cc") {
        Ok(compiler) => compiler,
        Err(reason) => skip!("{reason}"),
    };
    run(&compiler, &C_WARNINGS, "examples/eight_lines.c", &[("TENURE_PURGE", "always")]).unwrap();
}

/// What is exported is what the header says, and nothing else.
#[test]
fn the_library_exports_what_the_header_declares() {
    let header = std::fs::read_to_string(root().join("include/tenure.h")).unwrap();
    let code: String = header.split("/*").map(|part| part.split("*/").last().unwrap()).collect();
    let mut declared: Vec<&str> = code
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("tenure_") && !name.ends_with("_fn"))
        .collect();
    declared.sort_unstable();
    assert!(declared.len() > 30, "{declared:?}");
    let output = match Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(libraries().join("libtenure.so"))
        .output()
    {
        Ok(output) => output,
        Err(error) => skip!("no nm: {error}"),
    };
    let symbols = String::from_utf8(output.stdout).unwrap();
    let mut exported: Vec<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    exported.sort_unstable();
    assert_eq!(exported, declared);
}
