//! The programs, and how to find each on this machine.

use super::place::{installed, prepare, Place};
use super::program::Program;
use super::servers::{postgres_sort, redis_evictions, redis_flush};
use std::ffi::OsString;
use std::process::Command;

/// A row of the bench.
pub(super) struct Entry {
    pub title: &'static str,
    /// Prepares it, or returns the missing part. The flag: smoke mode.
    pub ready: fn(&Place, bool) -> Result<Program, String>,
}

/// All of them.
pub(super) const CATALOG: &[Entry] = &[
    Entry { title: "a program that starts and ends", ready: start },
    Entry { title: "numpy, 1 MiB temporaries", ready: numpy_small },
    Entry { title: "numpy, 64 MiB temporaries", ready: numpy_large },
    Entry { title: "pandas, join, group and sort", ready: pandas },
    Entry { title: "pyarrow, its own allocator", ready: pyarrow },
    Entry { title: "pyarrow, the C library's allocator", ready: pyarrow_malloc },
    Entry { title: "Pillow, thumbnails", ready: pillow },
    Entry { title: "node, Buffers", ready: node },
    Entry { title: "java, direct buffers", ready: java },
    Entry { title: "perl, strings", ready: perl },
    Entry { title: "ruby, strings", ready: ruby },
    Entry { title: "redis, large values and FLUSHALL", ready: redis_flush },
    Entry { title: "redis, evictions at maxmemory", ready: redis_evictions },
    Entry { title: "PostgreSQL, a sort in memory", ready: postgres_sort },
    Entry { title: "ImageMagick, convert", ready: imagemagick },
    Entry { title: "a C++ compiler, heavy templates", ready: compiler },
];

fn words<const N: usize>(words: [OsString; N]) -> Program {
    Program { words: words.into(), ..Program::default() }
}

/// `full`, or `quick` in smoke mode.
fn rounds(smoke: bool, full: u32, quick: u32) -> OsString {
    if smoke { quick } else { full }.to_string().into()
}

/// The launcher's cost once in each program. The rows of programs that run for a second hide it.
fn start(_: &Place, _: bool) -> Result<Program, String> {
    Ok(words([installed("true")?]))
}

fn python(place: &Place, module: &str, name: &str, text: &str) -> Result<Program, String> {
    let python = place.python(module)?;
    let script = place.write(name, text).map_err(|error| error.to_string())?;
    Ok(words([python, script]))
}

fn numpy(place: &Place, mib: &str, rounds: OsString) -> Result<Program, String> {
    let text = include_str!("scripts/numpy_temporaries.py");
    let mut program = python(place, "numpy", "numpy_temporaries.py", text)?;
    program.words.extend([mib.into(), rounds]);
    Ok(program)
}

fn numpy_small(place: &Place, smoke: bool) -> Result<Program, String> {
    numpy(place, "1", rounds(smoke, 1500, 50))
}

fn numpy_large(place: &Place, smoke: bool) -> Result<Program, String> {
    numpy(place, "64", rounds(smoke, 8, 1))
}

fn pandas(place: &Place, smoke: bool) -> Result<Program, String> {
    let mut program = python(place, "pandas", "frames.py", include_str!("scripts/frames.py"))?;
    program.words.push(rounds(smoke, 4, 1));
    Ok(program)
}

fn pyarrow(place: &Place, smoke: bool) -> Result<Program, String> {
    let text = include_str!("scripts/columns.py");
    let mut program = python(place, "pyarrow.parquet", "columns.py", text)?;
    program.words.push(rounds(smoke, 3, 1));
    Ok(program)
}

fn pyarrow_malloc(place: &Place, smoke: bool) -> Result<Program, String> {
    let mut program = pyarrow(place, smoke)?;
    program.environment.push(("ARROW_DEFAULT_MEMORY_POOL", "system".into()));
    Ok(program)
}

fn pillow(place: &Place, smoke: bool) -> Result<Program, String> {
    let mut program =
        python(place, "PIL.Image", "pictures.py", include_str!("scripts/pictures.py"))?;
    program.words.push(rounds(smoke, 6, 1));
    Ok(program)
}

fn script(place: &Place, program: &str, name: &str, text: &str) -> Result<Program, String> {
    let program = installed(program)?;
    Ok(words([program, place.write(name, text).map_err(|error| error.to_string())?]))
}

fn node(place: &Place, smoke: bool) -> Result<Program, String> {
    let mut program = script(place, "node", "buffers.js", include_str!("scripts/buffers.js"))?;
    program.words.push(rounds(smoke, 2000, 50));
    Ok(program)
}

fn java(place: &Place, smoke: bool) -> Result<Program, String> {
    let (java, compiler) = (installed("java")?, installed("javac")?);
    let source = place
        .write("Direct.java", include_str!("scripts/Direct.java"))
        .map_err(|error| error.to_string())?;
    prepare(Command::new(compiler).arg("-d").arg(place.dir()).arg(source))?;
    let heap: OsString = "-XX:MaxDirectMemorySize=64m".into();
    let class = "Direct".into();
    let path = place.dir().into();
    Ok(words([java, heap, "-cp".into(), path, class, rounds(smoke, 3000, 50)]))
}

fn perl(place: &Place, smoke: bool) -> Result<Program, String> {
    let mut program = script(place, "perl", "strings.pl", include_str!("scripts/strings.pl"))?;
    program.words.push(rounds(smoke, 600, 5));
    Ok(program)
}

fn ruby(place: &Place, smoke: bool) -> Result<Program, String> {
    let mut program = script(place, "ruby", "strings.rb", include_str!("scripts/strings.rb"))?;
    program.words.push(rounds(smoke, 80, 3));
    Ok(program)
}

fn imagemagick(_: &Place, smoke: bool) -> Result<Program, String> {
    let names = ["magick", "convert-im6.q16", "convert"];
    let is_it = |path: &OsString| {
        prepare(Command::new(path).arg("--version")).is_ok_and(|said| said.contains("ImageMagick"))
    };
    let found = names.iter().filter_map(|name| installed(name).ok()).find(is_it);
    let convert = found.ok_or("no ImageMagick here")?;
    let size = if smoke { "300x200" } else { "2000x1500" };
    let steps =
        "plasma:fractal -resize 150% -blur 0x2 -rotate 90 -normalize -resize 40% -format %# info:";
    let mut program = words([convert, "-seed".into(), "7".into(), "-size".into(), size.into()]);
    program.words.extend(steps.split(' ').map(OsString::from));
    Ok(program)
}

fn compiler(place: &Place, smoke: bool) -> Result<Program, String> {
    let text = include_str!("scripts/heavy.cpp");
    let mut program = script(place, "g++", "heavy.cpp", text)?;
    let depth = format!("-DDEPTH={}", if smoke { 1 } else { 40 });
    let options = ["-std=c++17", "-O1", "-c", "-o", "/dev/null", &depth];
    program.words.extend(options.map(OsString::from));
    if smoke {
        program.words.push("-DSMOKE".into());
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_distinct() {
        let titles: std::collections::BTreeSet<_> =
            CATALOG.iter().map(|entry| entry.title).collect();
        assert_eq!(titles.len(), CATALOG.len());
    }

    #[test]
    fn smoke_mode_does_less() {
        assert_eq!((rounds(true, 9, 1), rounds(false, 9, 1)), ("1".into(), "9".into()));
    }
}
