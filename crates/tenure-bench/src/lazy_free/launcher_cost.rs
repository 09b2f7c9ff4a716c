//! The launcher's cost for a program that it does not help: memory bandwidth and a compiler.

use super::contestant::{check, unsupported, Programs, Setup, GLIBC};
use crate::harness::{Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::load::{Load, Stream};
use crate::Options;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

const NONE: &str = "no launcher";

/// At most this multiple of the time without it.
const LIMIT: f64 = 1.01;

/// Each option, and all of them together.
const OPTIONS: &[(&str, &[&str])] = &[
    ("--large=pool", &["--large=pool"]),
    ("--mmap=pool", &["--mmap=pool"]),
    ("--unmap=retire", &["--unmap=retire"]),
    ("--populate", &["--populate"]),
    ("--lock=on-fault", &["--lock=on-fault"]),
    ("--lock=all", &["--lock=all"]),
    ("all but lock", &["--large=pool", "--mmap=pool", "--unmap=retire", "--populate"]),
];

/// The launcher must be allowed to lock its memory, and as much again for the programs here.
const LOCKED_BYTES: u64 = 1 << 30;

/// Returns the reason why an option cannot be tried here.
fn is_possible(setup: &Setup) -> io::Result<()> {
    if !setup.name.starts_with("--lock") {
        return Ok(());
    }
    let found = tenure::lock::explain(LOCKED_BYTES).map_err(io::Error::other)?;
    match found.is_allowed() {
        true => Ok(()),
        false => Err(unsupported("RLIMIT_MEMLOCK is below 1 GiB, and there is no CAP_IPC_LOCK")),
    }
}

/// Bandwidth on one core and on all, and a compiler run.
pub(super) fn tables(
    options: &Options,
    programs: &Programs<'_>,
    report: &mut Report<'_>,
) -> io::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = vec![1, cores];
    threads.dedup();
    if options.quick {
        threads.truncate(1);
    }
    for threads in threads {
        bandwidth(options, programs, report, threads)?;
    }
    compile(options, programs, report)
}

fn setups() -> impl Iterator<Item = Setup> {
    let none = Setup { name: NONE.into(), ..Setup::plain(GLIBC, Role::Reference) };
    let ours = OPTIONS.iter().map(|(name, launcher)| Setup::ours(*name, GLIBC, launcher));
    std::iter::once(none).chain(ours)
}

fn add<'a>(
    mut comparison: Comparison<'a>,
    measure: impl Fn(&Setup) -> io::Result<Sample> + Copy + 'a,
) -> Comparison<'a> {
    for setup in setups() {
        let (name, role) = (setup.name.clone(), setup.role);
        let measured = move || is_possible(&setup).and_then(|()| measure(&setup));
        let mut contestant = Contestant::new(name, role, measured);
        if role == Role::Ours {
            contestant = contestant.goal(Goal::TimesOf(NONE, LIMIT));
        }
        comparison = comparison.with(contestant);
    }
    comparison.baseline(NONE)
}

fn bandwidth(
    options: &Options,
    programs: &Programs<'_>,
    report: &mut Report<'_>,
    threads: usize,
) -> io::Result<()> {
    let vector_bytes = options.size(128 << 20, 8 << 20);
    let load = Load::Stream(Stream { threads, vector_bytes, repeats: options.scaled(10, 4, 2) });
    let plural = if threads == 1 { "" } else { "s" };
    let title = format!(
        "launcher's cost: copy, scale, add and triad of {} MiB, {threads} thread{plural}, best pass",
        vector_bytes >> 20
    );
    let measure = &|setup: &Setup| {
        let answer = programs.run(setup, &load)?;
        let total: f64 = answer.bandwidth.iter().map(|pass| pass.min_ns / 1e6).sum();
        let mut sample = Sample::from(total);
        for (kernel, column) in [
            ("copy", "copy GB/s"),
            ("scale", "scale GB/s"),
            ("add", "add GB/s"),
            ("triad", "triad GB/s"),
        ] {
            let pass = answer.bandwidth.iter().find(|pass| pass.kernel == kernel);
            let pass = pass.ok_or_else(|| io::Error::other(format!("no {kernel}")))?;
            sample = sample.with(column, pass.bytes as f64 / pass.min_ns);
        }
        Ok(sample)
    };
    report.compare(add(Comparison::new(title, Unit::Milliseconds), measure), 9)
}

fn compile(options: &Options, programs: &Programs<'_>, report: &mut Report<'_>) -> io::Result<()> {
    let functions = options.scaled(250, 100, 25);
    let title = format!("launcher's cost: cc -O2 of {functions} functions");
    if !options.wants(&title) {
        return Ok(());
    }
    let source = Source::write(&options.dir(), functions)?;
    let measure = &|setup: &Setup| {
        let program = ["cc", "-O2", "-c", "-o", "/dev/null"].map(Into::into);
        let program: Vec<_> = program.into_iter().chain([source.path.clone().into()]).collect();
        let mut command = programs.command(setup, &program)?;
        let start = Instant::now();
        let output = command.output().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => unsupported("no cc here: install a C compiler"),
            _ => error,
        })?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        check(output.status, &String::from_utf8_lossy(&output.stderr))?;
        Ok(Sample::from(ms))
    };
    report.compare(add(Comparison::new(title, Unit::Milliseconds), measure), 9)
}

/// A C file, removed in the end.
struct Source {
    path: PathBuf,
}

impl Source {
    fn write(dir: &Path, functions: usize) -> io::Result<Source> {
        let mut text = String::from("#include <stddef.h>\n");
        for number in 0..functions {
            let _ = write!(
                text,
                "struct node{number} {{ struct node{number} *next; double value[{}]; int key; }};\n\
                 double sum{number}(const struct node{number} *n, int key) {{\n\
                     double total = {number};\n\
                     for (; n; n = n->next) {{\n\
                         switch ((n->key ^ key) & 7) {{\n\
                         case 0: total += n->value[0]; break;\n\
                         case 1: total *= n->value[1] - key; break;\n\
                         case 3: for (int i = 0; i < {}; i++) total += n->value[i] * i; break;\n\
                         default: total -= key;\n\
                         }}\n\
                     }}\n\
                     return total;\n\
                 }}\n",
                2 + number % 13,
                2 + number % 13,
            );
        }
        let path = dir.join(format!("tenure-bench-{}.c", std::process::id()));
        fs::write(&path, text)?;
        Ok(Source { path })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
