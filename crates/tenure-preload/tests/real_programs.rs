//! Programs as they come with a system, their own load unchanged, with every option: the same output.

mod kit;

use kit::{done, preload, ALL};
use std::path::Path;
use std::process::Command;
use tenure_testkit::build::text;
use tenure_testkit::skip;

fn is_there(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program} >/dev/null")])
        .status()
        .is_ok_and(|s| s.success())
}

/// Runs a script as it is and under the library; its output must be the same.
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
    for n in 0..1500 {
        source += &format!(
            "int f{n}(int a) {{ return a * {n} + (a % 7 ? f{}(a - 1) : 3); }}\n",
            n.max(1) - 1
        );
    }
    source += "int main(void) { printf(\"%d\\n\", f1499(50) != 0); return 0; }\n";
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
    // By a socket: no port to collide with others.
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
    let script = "stress-ng --malloc 1 --mmap 1 --mmap-bytes 64M --fork 1 --munmap 1 --mremap 1 --mremap-bytes 32M \
        --madvise 1 --vm 1 --vm-bytes 64M --verify -t 3 >log 2>&1; echo $?; grep -c 'successful run' log";
    same("stress-ng", script, dir.path());
}

#[test]
fn postgresql() {
    needs!("pgbench", "pg_config");
    let dir = tempfile::tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).expect("it is ours");
    // The server refuses root.
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
