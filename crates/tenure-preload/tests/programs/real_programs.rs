//! Programs of a system, with their own unchanged load and every option: the output is as without
//! the library.

use crate::kit::{done, preload, ALL};
use std::path::Path;
use std::process::Command;
use tenure_testkit::build::text;
use tenure_testkit::{skip, sweep};

fn is_there(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program} >/dev/null")])
        .status()
        .is_ok_and(|s| s.success())
}

/// Runs a script without and with the library. The output must not differ.
fn same(name: &str, script: &str, directory: &Path) {
    let shell = || {
        let mut shell = Command::new("/bin/bash");
        shell.args(["-c", script]).current_dir(directory).env_remove("LD_PRELOAD");
        shell
    };
    let expected = done(name, &mut shell());
    assert!(!expected.stdout.is_empty(), "{name} says nothing");
    let mut under = shell();
    let report = directory.join("report");
    let report = report.to_str().expect("plain");
    let mut options = ALL.to_vec();
    options.push(("TENURE_REPORT", report));
    preload(&mut under, &options, None);
    let output = done(name, &mut under);
    assert_eq!(text(&output), text(&expected), "{name}");
    let said = std::fs::read_to_string(report).expect("there is a report");
    assert!(said.contains("tenure: report of"), "{said}");
}

macro_rules! needs {
    ($($program:literal),*) => {
        $(if !is_there($program) {
            skip!("no {}", $program);
        })*
    };
}

#[test]
fn python_with_large_arrays() {
    let dir = tempfile::tempdir().expect("a directory");
    let numpy = "import numpy as n\nfor i in range(80):\n a=n.arange(700000+i*9999,dtype='u8'); b=a*i+n.roll(a,i); print(int(b.sum()), int(n.zeros(900000+i).sum()))";
    let plain = "x={}\nfor i in range(300):\n x[i%17]=bytearray(b'%d,'%i*90000); print(len(x[i%17]), x[i%17][-5:], sum(bytearray(300000)))";
    std::fs::write(dir.path().join("plain.py"), plain).expect("it is written");
    std::fs::write(dir.path().join("arrays.py"), numpy).expect("it is written");
    let python = match ["/usr/bin/python3", "python3"].into_iter().find(|p| is_there(p)) {
        Some(python) => python,
        None => skip!("no python3"),
    };
    same("python", &format!("{python} plain.py"), dir.path());
    let has = Command::new(python).args(["-c", "import numpy"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        skip!("no numpy");
    }
    same("numpy", &format!("{python} arrays.py"), dir.path());
}

/// An interpreter: the one that `TENURE_BENCH_PYTHON` names, or another that has the module. It is
/// the real path, because `python3` may be a shell script that looks for it.
fn python_with(module: &str) -> Option<String> {
    let named = std::env::var("TENURE_BENCH_PYTHON").ok();
    let usual = ["python3", "/usr/bin/python3"].map(String::from);
    named.into_iter().chain(usual).find_map(|python| {
        let script = format!("import sys, {module}; print(sys.executable)");
        let output = Command::new(python).args(["-c", &script]).output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| said.trim().to_owned())
    })
}

/// The script that `tenure bench programs` measures, with a small load.
fn bench_script(name: &str) -> String {
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-bench/src/programs/scripts");
    format!("'{scripts}/{name}'")
}

/// A module's program. Without the module the test is skipped.
macro_rules! wheel {
    ($test:ident, $module:literal, $script:literal, $arguments:literal) => {
        #[test]
        fn $test() {
            let Some(python) = python_with($module) else {
                skip!("no python3 with {}: see .ci/programs --venv", $module);
            };
            let dir = tempfile::tempdir().expect("a directory");
            let script = bench_script($script);
            same($module, &format!("'{python}' {script} {}", $arguments), dir.path());
        }
    };
}

wheel!(numpy_with_temporaries, "numpy", "numpy_temporaries.py", "1 60");
wheel!(pandas, "pandas", "frames.py", "1");
wheel!(pyarrow, "pyarrow.parquet", "columns.py", "1");
wheel!(pillow, "PIL.Image", "pictures.py", "1");

#[test]
fn pyarrow_by_malloc() {
    let Some(python) = python_with("pyarrow.parquet") else {
        skip!("no python3 with pyarrow: see .ci/programs --venv");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let setting = "ARROW_DEFAULT_MEMORY_POOL=system";
    let script = format!("{setting} '{python}' {} 1", bench_script("columns.py"));
    same("pyarrow", &script, dir.path());
}

/// CPython's own tests; the longer ones and numpy's are in `.ci/programs`.
#[test]
fn tests_of_cpython() {
    let Some(python) = python_with("test.test_mmap, test.test_array") else {
        skip!("no python3 with its tests");
    };
    let dir = tempfile::tempdir().expect("a directory");
    // The result of each test, without the times.
    let script = format!(
        "'{python}' -m test -v test_mmap test_array test_fork1 2>&1 | grep -E ' \\.\\.\\. |^(OK|FAILED)' | sed 's/ in [0-9.]* *m*s.*//'"
    );
    same("CPython's tests", &script, dir.path());
}

#[test]
fn node_with_buffers() {
    needs!("node");
    let dir = tempfile::tempdir().expect("a directory");
    same("node", &format!("node {} 200", bench_script("buffers.js")), dir.path());
}

#[test]
fn java_with_direct_buffers() {
    needs!("java", "javac");
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "[ -e Direct.class ] || javac -d . {}; java -XX:MaxDirectMemorySize=64m -cp . Direct 200",
        bench_script("Direct.java")
    );
    same("java", &script, dir.path());
}

#[test]
fn perl_and_ruby() {
    needs!("perl");
    let dir = tempfile::tempdir().expect("a directory");
    same("perl", &format!("perl {} 10", bench_script("strings.pl")), dir.path());
    needs!("ruby");
    same("ruby", &format!("ruby {} 5", bench_script("strings.rb")), dir.path());
}

#[test]
fn a_compiler_of_c_plus_plus() {
    needs!("g++");
    let dir = tempfile::tempdir().expect("a directory");
    let source = bench_script("heavy.cpp");
    let depth = sweep(2, 4);
    let compile = format!("g++ -std=c++17 -DDEPTH={depth} -O1 -c {source} -o a.o && cksum < a.o");
    same("g++", &compile, dir.path());
}

#[test]
fn git_gc() {
    needs!("git");
    let dir = tempfile::tempdir().expect("a directory");
    let script = "rm -rf r; git init -q r; cd r; git config user.email a@b; git config user.name a; \
        for i in $(seq 1 8); do head -c 700000 /dev/zero | tr '\\0' $i > f$i; seq $i 60000 > s; git add .; \
        git commit -q -m $i --date=2000-01-01T00:00:0$i; done; git gc -q --aggressive; git fsck --strict 2>&1; \
        git log --format=%T; git cat-file --batch-check --batch-all-objects | sort | grep -v commit";
    same("git", script, dir.path());
}

#[test]
fn a_compiler() {
    needs!("cc");
    let dir = tempfile::tempdir().expect("a directory");
    let mut source = String::from("#include <stdio.h>\n");
    let functions = sweep(800, 1500);
    for n in 0..functions {
        source += &format!(
            "int f{n}(int a) {{ return a * {n} + (a % 7 ? f{}(a - 1) : 3); }}\n",
            n.max(1) - 1
        );
    }
    let last = functions - 1;
    source += &format!("int main(void) {{ printf(\"%d\\n\", f{last}(50) != 0); return 0; }}\n");
    std::fs::write(dir.path().join("big.c"), source).expect("it is written");
    same("cc", "cc -w -O1 -c big.c -o big.o && cksum < big.o", dir.path());
}

#[test]
fn valgrind() {
    needs!("cc", "valgrind");
    let dir = tempfile::tempdir().expect("a directory");
    let source = "#include <stdlib.h>\nint main(void) { char *a = malloc(1 << 20); a[7] = 3; return a[7]; }\n";
    std::fs::write(dir.path().join("a.c"), source).expect("it is written");
    same("valgrind", "cc -O0 -g a.c -o a && valgrind -q ./a; echo $?", dir.path());
}

#[test]
fn redis() {
    needs!("redis-server", "redis-cli", "redis-benchmark");
    let dir = tempfile::tempdir().expect("a directory");
    // Over a socket, because a port may be in use.
    let script = "rm -f dump.rdb s; redis-server --port 0 --unixsocket s --save '' --appendonly no --daemonize no >log 2>&1 & \
        for i in $(seq 100); do redis-cli -s s ping 2>/dev/null | grep -q PONG && break; sleep 0.1; done; \
        redis-benchmark -s s -n 600 -d 300000 -c 8 -r 100 -t set,get -q >/dev/null; \
        head -c 3000000 /dev/zero | tr '\\0' v | redis-cli -s s -x set large; redis-cli -s s get large | cksum; \
        redis-cli -s s append large tail; redis-cli -s s setrange large 9000000 x; redis-cli -s s get large | cksum; \
        redis-cli -s s bgsave >/dev/null; sleep 0.5; redis-cli -s s flushall; redis-cli -s s dbsize; \
        redis-cli -s s shutdown nosave; wait; grep -c -i -E 'crash|assert' log; true";
    same("redis", script, dir.path());
}

#[test]
fn stress() {
    needs!("stress-ng");
    let dir = tempfile::tempdir().expect("a directory");
    let seconds = sweep(2, 3);
    let script = format!(
        "stress-ng --malloc 1 --mmap 1 --mmap-bytes 64M --fork 1 --munmap 1 --mremap 1 --mremap-bytes 32M \
        --madvise 1 --vm 1 --vm-bytes 64M --verify -t {seconds} >log 2>&1; echo $?; grep -c 'successful run' log"
    );
    same("stress-ng", &script, dir.path());
}

#[test]
fn postgresql() {
    needs!("pgbench", "pg_config");
    let dir = tempfile::tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).expect("it is ours");
    // The server refuses to run as root.
    let run = "B=$(pg_config --bindir); A=''; [ $(id -u) = 0 ] && A='setpriv --reuid=65534 --regid=65534 --clear-groups'; \
        rm -rf d; $A $B/initdb -D d -A trust -U u --no-sync >/dev/null 2>&1 || exit 9; \
        $A $B/pg_ctl -D d -w -l d/log -o \"-k $PWD -h ''\" start >/dev/null || exit 8; \
        pgbench -h $PWD -U u -i -s 2 postgres >/dev/null 2>&1; pgbench -h $PWD -U u -n -c 4 -t 60 postgres 2>&1 | grep 'actually processed'; \
        psql -h $PWD -U u postgres -Atc \"select count(*), sum(length(repeat(md5(i::text), 9000))) from generate_series(1,200) i\"; \
        psql -h $PWD -U u postgres -Atc \"set work_mem='64MB'; select sum(a) from (select i*7%1000 a from generate_series(1,300000) i order by 1) x\"; \
        $A $B/pg_ctl -D d -w -m fast stop >/dev/null; grep -c PANIC d/log; true";
    let usable = Command::new("/bin/bash").args(["-c", run]).current_dir(dir.path()).output();
    if !usable.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("processed")) {
        skip!("PostgreSQL cannot be run here");
    }
    same("postgresql", run, dir.path());
}
