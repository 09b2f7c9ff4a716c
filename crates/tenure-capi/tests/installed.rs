//! The C library as the packaging script installs it, and as cargo-c does if it is installed. A C
//! program is built only with the flags that pkg-config prints.

use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tenure_testkit::build::{compiler, text};
use tenure_testkit::skip;

const SONAME: &str = "libtenure.so.0";
const PREFIX: &str = "/opt/tenure";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it is there")
}

fn has(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|done| done.status.success())
}

#[track_caller]
fn done(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    output
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = include_str!("../include/tenure.h");
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#']));
    let code: Vec<&str> = code.collect();
    let code = code.join("\n");
    let before = |at: usize| code[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
    let names = code.match_indices('(').filter_map(|(at, _)| before(at));
    names.filter(|name| name.starts_with("tenure_")).map(str::to_owned).collect()
}

/// Checks the installation below `root`. Its prefix is [`PREFIX`].
fn check(root: &Path) {
    let prefix = root.join(&PREFIX[1..]);
    let file = std::fs::canonicalize(prefix.join("lib").join(SONAME)).expect("it is installed");
    let bytes = std::fs::read(&file).expect("it can be read");
    let library = object::File::parse(&*bytes).expect("it is an ELF file");
    let exported: BTreeSet<String> = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| symbol.name().expect("it has a name").to_owned())
        .filter(|name| name != SONAME)
        .collect();
    // Every function has a version. The version's own symbol has the library's name.
    let readelf = text(&done(Command::new("readelf").arg("-W").arg("--dyn-syms").arg(&file)));
    for name in &exported {
        assert!(readelf.contains(&format!("{name}@@{SONAME}")), "{name} has no version");
    }
    for name in declared() {
        assert!(exported.contains(&name), "{name} is declared, and not exported");
    }
    let dynamic = text(&done(Command::new("readelf").arg("-d").arg(&file)));
    assert!(dynamic.contains(&format!("Library soname: [{SONAME}]")), "{dynamic}");

    let flags = |more: &[&str]| -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(["--cflags", "--libs"]).args(more).arg("tenure");
        command
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", root);
        text_of(&done(&mut command)).split_whitespace().map(str::to_owned).collect()
    };
    let cc = compiler("CC", "cc").expect("it was there");
    let program = root.join("program");
    let build = |flags: &[String]| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/eight_lines.c");
        done(Command::new(&cc).arg("-o").arg(&program).arg(source).args(flags));
    };
    build(&flags(&[]));
    done(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    let needed = text(&done(Command::new("readelf").arg("-d").arg(&program)));
    assert!(needed.contains(&format!("Shared library: [{SONAME}]")), "{needed}");
    // Without the shared library the static one is linked.
    for name in ["libtenure.so", SONAME] {
        std::fs::remove_file(prefix.join("lib").join(name)).expect("it is ours");
    }
    build(&flags(&["--static"]));
    done(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The programs that both tests need.
fn missing() -> Option<&'static str> {
    let tools = [("pkg-config", "--version"), ("readelf", "--version"), ("ld.bfd", "--version")];
    let tool = tools.iter().find(|(program, argument)| !has(program, argument));
    tool.map(|(program, _)| *program).or_else(|| compiler("CC", "cc").err().map(|_| "a C compiler"))
}

#[test]
fn a_program_is_built_through_pkg_config() {
    if let Some(tool) = missing() {
        skip!("there is no {tool}");
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let staged = dir.path().join("staged");
    let stage = repository().join("packaging/stage");
    done(Command::new(stage).args(["--only-c", "--profile", "dev"]).arg(&staged));
    let root = dir.path().join("root");
    let install = |argument: &str| {
        let mut command = Command::new(staged.join("install.sh"));
        command.arg(argument).env("DESTDIR", &root).env("PREFIX", PREFIX).env_remove("LIBDIR");
        done(&mut command);
    };
    install("install");
    check(&root);
    install("uninstall");
    let left = done(Command::new("find").arg(root.join("opt")).args(["!", "-type", "d"]));
    assert_eq!(text_of(&left), "");
}

#[test]
fn cargo_c_installs_the_same() {
    if let Some(tool) = missing() {
        skip!("there is no {tool}");
    }
    if !has("cargo-cinstall", "--version") {
        skip!("there is no cargo-c (cargo install cargo-c)");
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut command = Command::new("cargo");
    command.args(["cinstall", "-p", "tenure-capi", "--debug"]);
    command.arg("--target-dir").arg(repository().join("target/packages"));
    command
        .args(["--prefix", PREFIX, "--libdir"])
        .arg(format!("{PREFIX}/lib"))
        .arg("--destdir")
        .arg(dir.path());
    let output = command.current_dir(repository()).output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stderr);
    // cargo-c contains the cargo of Debian 12. The cargo that runs this test has parsed this
    // manifest.
    if text.contains("failed to parse manifest") {
        skip!("the cargo-c here is too old for this workspace (cargo install cargo-c)");
    }
    assert!(output.status.success(), "{text}");
    check(dir.path());
}
