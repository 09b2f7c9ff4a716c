//! The C ABI from C: every program of `tests/c` with both libraries, with userfaultfd and without.

tenure_testkit::two_for_each_processor!();

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tenure_testkit::build::{compiler, libraries_of, text};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{output_within, skip, Deadline};

/// The exit code of a program that cannot do its work on this machine. It prints the reason on
/// standard error.
const SKIPPED: i32 = 77;
/// The time of a program that does not hang.
const PATIENCE: Duration = Duration::from_secs(120);
/// The libraries that Rust's standard library needs, for programs that link the static library.
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

fn libraries() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| libraries_of("tenure-capi", &["libtenure.so", "libtenure.a"]))
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
            // Stripped, because writing the debug information of Rust's whole library takes longer
            // than the rest.
            cc.arg(libraries().join("libtenure.a")).args(STATIC_NEEDS).arg("-Wl,--strip-debug");
        }
    }
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{source}, {link:?}: {}", text(&output));
}

/// How a program is built and run: the compiler's name, its flags, the file, and variables.
#[derive(Clone, Copy)]
struct Program<'a> {
    compiler: &'a str,
    flags: &'a [&'a str],
    source: &'a str,
    env: &'a [(&'a str, &'a str)],
}

impl Program<'_> {
    /// Runs it with both libraries, under each of the filters. Returns the reason if it cannot do
    /// its work here.
    fn run(self, filters: &[Option<&Filter>]) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let mut said = Ok(());
        for link in [Link::Shared, Link::Static] {
            let program = dir.path().join(format!("{link:?}"));
            compile(self.compiler, self.flags, self.source, link, &program);
            for filter in filters {
                // A program that cannot do its work under a filter may do it without.
                said = said.and(self.once(&program, link, *filter));
            }
        }
        said
    }

    fn once(self, program: &Path, link: Link, filter: Option<&Filter>) -> Result<(), String> {
        // On a separate thread, because a filter stays, and the processes that the thread starts
        // inherit it.
        let output = std::thread::scope(|scope| {
            let start = || {
                if let Some(filter) = filter {
                    filter.install_this_thread().map_err(|reason| reason.to_string())?;
                }
                // The loader must take this build's library and no other. The test sets all
                // settings.
                let mut command = Command::new(program);
                command.env_remove("LD_LIBRARY_PATH").env_remove("TENURE_PURGE");
                command.env_remove("TENURE_OFFER_AFTER_MS").envs(self.env.iter().copied());
                Ok::<_, String>(output_within(&mut command, PATIENCE).unwrap())
            };
            scope.spawn(start).join().expect("it does not panic")
        })?;
        let filtered = if filter.is_some() { "without userfaultfd" } else { "as it is" };
        match output.status.code() {
            Some(0) => Ok(()),
            Some(SKIPPED) => {
                let reason = String::from_utf8_lossy(&output.stderr);
                Err(format!("{filtered}: {}", reason.trim()))
            }
            _ => panic!("{}, {link:?}, {filtered}: {}", self.source, text(&output)),
        }
    }
}

/// The body of a test: compile and run, or skip with the reason.
macro_rules! program {
    ($compiler:expr, $flags:expr, $source:expr) => {
        program!($compiler, $flags, $source, &[], &[None])
    };
    ($compiler:expr, $flags:expr, $source:expr, $env:expr, $filters:expr) => {{
        let compiler = match $compiler {
            Ok(compiler) => compiler,
            Err(reason) => skip!("{reason}"),
        };
        let program = Program { compiler: &compiler, flags: $flags, source: $source, env: $env };
        if let Err(reason) = program.run($filters) {
            skip!("{reason}");
        }
    }};
}

/// A test for each program: without a filter, and with userfaultfd refused, as in many containers.
macro_rules! programs {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                program!(
                    compiler("CC", "cc"),
                    &C_WARNINGS,
                    concat!("tests/c/", stringify!($name), ".c"),
                    &[],
                    &[None, Some(&without_userfaultfd())]
                );
            }
        )*
    };
}

fn without_userfaultfd() -> Filter {
    Filter::new()
        .refuse(Call::Userfaultfd, Errno::PERM)
        .refuse(Call::UserfaultfdDevice, Errno::PERM)
}

programs!(
    ranges,
    sigbus,
    leaving,
    buffer,
    refill,
    cache,
    cache_more,
    cancel,
    sizes,
    errors,
    fork,
    exhausted,
    sentences,
    shortage,
    threads,
    threads_end,
    lock,
    lock_guard,
    lock_more,
    no_main,
    own_hole,
    own_malloc,
    populate,
    pool,
    retire,
    secret,
    shared,
    unpins
);

#[test]
fn old_names() {
    let mut flags = C_WARNINGS.to_vec();
    flags.extend(["-include", "tenure_compat.h"]);
    program!(compiler("CC", "cc"), &flags, "tests/c/old_names.c");
}

/// The proposal's lock calls, with the header before all others, after the system's, and with large
/// file offsets, for which the C library declares mmap in another way.
#[test]
fn old_names_of_locks() {
    for more in [
        &["-include", "tenure_compat.h"][..],
        &["-DINCLUDE_LATE"],
        &["-include", "tenure_compat.h", "-D_FILE_OFFSET_BITS=64"],
        &["-DINCLUDE_LATE", "-D_FILE_OFFSET_BITS=64"],
    ] {
        let mut flags = C_WARNINGS.to_vec();
        flags.extend(more);
        program!(compiler("CC", "cc"), &flags, "tests/c/lock_old_names.c");
    }
}

/// A program for Android, of which only the include path is changed.
#[test]
fn ashmem() {
    let mut flags = C_WARNINGS.to_vec();
    flags.push("-Iinclude/android");
    let filters = &[None, Some(&without_userfaultfd())];
    program!(compiler("CC", "cc"), &flags, "tests/c/ashmem.c", &[], filters);
}

#[test]
fn plus_plus() {
    program!(compiler("CXX", "c++"), &CPP_WARNINGS, "tests/c/plus_plus.cpp");
}

/// The process ends in five ways while threads use caches and objects. Handlers at exit, and
/// destructors of static and thread-local objects, use and free them.
#[test]
fn exits() {
    let filters = &[None, Some(&without_userfaultfd())];
    program!(compiler("CXX", "c++"), &CPP_WARNINGS, "tests/c/exits.cpp", &[], filters);
}

/// Also under the launcher, which has a copy of tenure of its own.
#[test]
fn launched() {
    const LIBRARY: &str = "libtenure_preload.so";
    let library = libraries_of("tenure-preload", &[LIBRARY]).join(LIBRARY);
    let library = library.to_str().unwrap();
    let filters = &[None, Some(&without_userfaultfd())];
    let everything = [
        ("LD_PRELOAD", library),
        ("TENURE_LARGE", "pool:64K"),
        ("TENURE_MMAP", "pool:64K"),
        ("TENURE_UNMAP", "retire:1M"),
    ];
    for env in [&everything[..0], &everything[..2], &everything[..3], &everything[..]] {
        program!(compiler("CC", "cc"), &C_WARNINGS, "tests/c/launched.c", env, filters);
    }
}

#[test]
fn eight_lines() {
    program!(compiler("CC", "cc"), &C_WARNINGS, "examples/eight_lines.c");
}

/// In the debug mode that purges everything at each unpin the example makes its data again, and its
/// output is right.
#[test]
fn eight_lines_when_everything_is_lost() {
    program!(
        compiler("CC", "cc"),
        &C_WARNINGS,
        "examples/eight_lines.c",
        &[("TENURE_PURGE", "always")],
        &[None]
    );
}

/// The example's daemon makes a table once, serves it twice, and ends at SIGTERM. It also works
/// where everything is purged at once.
#[test]
fn the_daemon_serves_and_ends() {
    let compiler = match compiler("CC", "cc") {
        Ok(compiler) => compiler,
        Err(reason) => skip!("{reason}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("daemon");
    compile(&compiler, &C_WARNINGS, "examples/daemon.c", Link::Shared, &program);
    let socket = dir.path().join("socket");
    for (purge, counted) in [("never", "hits 1 misses 1 purged 0\n"), ("always", "")] {
        let mut command = Command::new(&program);
        command.arg(&socket).env_remove("LD_LIBRARY_PATH").env("TENURE_PURGE", purge);
        let daemon = command.stdout(Stdio::piped()).spawn().unwrap();
        let first = ask(&socket, "7\n");
        assert_eq!((first.len(), first[9]), (64 << 10, ((7 * 9) >> 3) as u8));
        assert!(ask(&socket, "7\n") == first, "another table");
        assert!(ask(&socket, "stats\n").ends_with(counted.as_bytes()));
        let id = daemon.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let output = daemon.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(output.stdout.starts_with(b"hits "), "{}", text(&output));
        assert!(!socket.exists());
    }
}

/// Returns the daemon's reply, once the daemon listens.
fn ask(socket: &Path, request: &str) -> Vec<u8> {
    let deadline = Deadline::after(Duration::from_secs(20));
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(!deadline.is_over(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// The library exports the functions of the header, and no other symbol.
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
