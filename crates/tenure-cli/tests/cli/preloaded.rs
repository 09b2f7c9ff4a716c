//! The library that `cargo install` installs beside `tenure`, and the library that `tenure run`
//! selects.

use crate::kit::{is_root, parts, text};
use object::{Object, ObjectKind, ObjectSymbol, ObjectSymbolTable, RelocationTarget};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tenure_testkit::build::{copy_program, libraries_of};
use tenure_testkit::skip;

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
const LIBRARY: &str = env!("CARGO_BIN_EXE_tenure-preload");

/// The symbols that a library defines for others.
fn exports(path: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(path).expect("it is there");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    assert_eq!(file.kind(), ObjectKind::Dynamic, "{}", path.display());
    let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    defined.map(|symbol| symbol.name().expect("it has a name").to_owned()).collect()
}

/// `preload.map` is written by hand, so it may miss a symbol.
#[test]
fn it_defines_what_the_library_of_the_workspace_defines() {
    let built = libraries_of("tenure-preload", &["libtenure_preload.so"]);
    let expected = exports(&built.join("libtenure_preload.so"));
    assert!(expected.contains("malloc"), "{expected:?}");
    assert_eq!(exports(Path::new(LIBRARY)), expected);
}

/// A hook that calls another function by its exported name reaches the program's own definition of it,
/// which may have called the hook.
#[test]
fn its_calls_of_exported_names_are_known() {
    let known = [
        // The C library allocates for a new thread by the program's malloc: whether it has memory.
        "malloc",
        "free",
        // The standard library, for the report of a panic.
        "mmap64",
        "munmap",
        "realloc",
        // A copy of tenure that is not the launcher's.
        "mmap",
        "syscall",
        "pthread_create",
    ];
    let built = libraries_of("tenure-preload", &["libtenure_preload.so"]);
    for library in [&built.join("libtenure_preload.so"), Path::new(LIBRARY)] {
        let bytes = std::fs::read(library).expect("it is there");
        let file = object::File::parse(&*bytes).expect("it is an ELF file");
        let symbols = file.dynamic_symbol_table().expect("it has one");
        let of = |relocation: object::Relocation| match relocation.target() {
            RelocationTarget::Symbol(index) => symbols.symbol_by_index(index).ok(),
            _ => None,
        };
        let relocations = file.dynamic_relocations().expect("it has some");
        let named = relocations.filter_map(|(_, relocation)| of(relocation));
        let own = named.filter(|symbol| symbol.is_definition());
        let own: BTreeSet<_> = own.map(|symbol| symbol.name().expect("a name")).collect();
        assert!(own.contains("syscall"), "{own:?}");
        let unknown: Vec<_> = own.iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

#[test]
fn started_as_a_program_it_says_what_it_is() {
    let (code, out, errors) = parts(&Command::new(LIBRARY).output().expect("it starts"));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(errors.matches('\n').count(), 1, "{errors}");
    assert!(errors.contains("`tenure run` preloads"), "{errors}");
}

/// An installation: a directory with `bin/tenure`.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Installed {
        let installed = Installed(tempfile::tempdir().expect("a directory"));
        installed.add(TENURE, "bin/tenure");
        installed
    }

    fn add(&self, from: &str, to: &str) -> PathBuf {
        let to = self.0.path().join(to);
        std::fs::create_dir_all(to.parent().expect("it is in a directory")).expect("it is ours");
        copy_program(from.as_ref(), &to).expect("it is copied");
        to
    }

    /// Runs a shell that prints LD_PRELOAD.
    fn run(&self) -> Output {
        let mut command = Command::new(self.0.path().join("bin/tenure"));
        command.args(["run", "-q", "--", "sh", "-c", "echo $LD_PRELOAD"]);
        command.env_remove("LD_PRELOAD").env_remove("TENURE_PRELOAD");
        command.output().expect("it starts")
    }
}

#[test]
fn a_package_s_library_comes_first_then_the_one_that_cargo_installed() {
    let installed = Installed::new();
    let (code, _, errors) = parts(&installed.run());
    assert_eq!(code, Some(125));
    assert!(errors.contains("cargo install --path crates/tenure-cli"), "{errors}");
    for place in ["bin/tenure-preload", "lib/tenure/libtenure_preload.so"] {
        let expected = installed.add(LIBRARY, place).canonicalize().expect("it is there");
        let done = installed.run();
        assert_eq!(text(&done.stdout).trim(), expected.to_str().expect("plain"), "{place}");
        assert_eq!(text(&done.stderr), "", "{place}");
    }
}

#[test]
fn what_others_may_have_put_there_is_refused() {
    let installed = Installed::new();
    let library = installed.add(LIBRARY, "lib/libtenure_preload.so");
    let refused = |word: &str| {
        let (code, out, errors) = parts(&installed.run());
        assert_eq!((code, out.as_str()), (Some(125), ""), "{errors}");
        assert!(errors.contains(word), "{errors}");
    };
    std::fs::set_permissions(&library, PermissionsExt::from_mode(0o757)).expect("it is ours");
    refused("all users may write");
    std::fs::set_permissions(&library, PermissionsExt::from_mode(0o755)).expect("it is ours");
    assert!(installed.run().status.success());
    if !is_root() {
        skip!("only root can give a file to another user");
    }
    std::os::unix::fs::chown(&library, Some(12345), None).expect("root may");
    refused("uid 12345");
}
