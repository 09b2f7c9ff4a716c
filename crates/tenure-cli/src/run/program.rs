//! Checks whether a library can be preloaded into a program, before it runs. Otherwise the loader
//! would leave the library out silently, or fail half way.

use crate::failure::CannotRun;
use crate::name::shown;
use object::elf;
use object::read::elf::{Dyn, ElfFile, ProgramHeader};
use object::{Endianness, ReadCache};
use rustix::fs::{access, getxattr, statvfs, Access, StatVfsMountFlags};
use rustix::process::{getgid, getuid};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tenure_command::call::failed;

/// Scripts may be interpreted by scripts; the kernel follows this many.
const MOST_SCRIPTS: usize = 5;

/// The file that exec would run, found by the shell's search.
pub fn find(name: &OsStr) -> Result<PathBuf, CannotRun> {
    let missing =
        |code, why: &str| CannotRun { code, why: format!("{}: {why}", name.to_string_lossy()) };
    let check = |path: PathBuf| match path.metadata() {
        Ok(about) if about.is_dir() => Err(missing(126, "it is a directory")),
        Ok(_) if access(&path, Access::EXEC_OK).is_err() => Err(missing(126, "not executable")),
        Ok(_) => Ok(path),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(missing(127, "no such program")),
        Err(e) => Err(missing(126, &failed("stat", e).to_string())),
    };
    if name.as_bytes().contains(&b'/') {
        return check(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let places = std::env::split_paths(&path).map(|place| place.join(name));
    let mut found: Vec<PathBuf> = places.filter(|path| path.is_file()).collect();
    let first_executable = found.iter().position(|path| access(path, Access::EXEC_OK).is_ok());
    match first_executable {
        Some(at) => Ok(found.swap_remove(at)),
        None if !found.is_empty() => Err(missing(126, "not executable")),
        // `--large 1M`: the option takes its own size, and 1M is the program.
        None if crate::size::parse(&name.to_string_lossy()).is_ok() => {
            Err(missing(127, "no such program; an option has its size after =, as in --large=1M"))
        }
        None => Err(missing(127, "no such program")),
    }
}

/// Refuses programs into which the loader would not load the library.
pub fn check(path: &Path) -> Result<(), CannotRun> {
    let mut path = path.to_owned();
    for _ in 0..MOST_SCRIPTS {
        gains_no_rights(&path)?;
        match interpreter_of_script(&path)? {
            Some(interpreter) => path = interpreter,
            None => return check_elf(&path),
        }
    }
    Err(refused(&path, "its interpreters are scripts that interpret each other without end"))
}

fn refused(path: &Path, why: impl std::fmt::Display) -> CannotRun {
    CannotRun::refused(format!("{}: {why}", shown(path)))
}

/// The loader ignores LD_PRELOAD if a program starts with more rights than its caller's.
fn gains_no_rights(path: &Path) -> Result<(), CannotRun> {
    let about = path.metadata().map_err(|e| refused(path, failed("stat", e)))?;
    let ignored = statvfs(path).is_ok_and(|on| on.f_flag.contains(StatVfsMountFlags::NOSUID));
    if ignored {
        return Ok(());
    }
    let sets_user = about.mode() & 0o4000 != 0 && about.uid() != getuid().as_raw();
    let sets_group = about.mode() & 0o2010 == 0o2010 && about.gid() != getgid().as_raw();
    let capable = !getuid().is_root()
        && getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok_and(|len| len > 0);
    let why = match (sets_user || sets_group, capable) {
        (true, _) => "it is setuid or setgid",
        (_, true) => "it has file capabilities",
        _ => return Ok(()),
    };
    Err(refused(path, format_args!("{why}, and the loader preloads nothing into such a program")))
}

/// The interpreter that `#!` names; `None`: no script.
fn interpreter_of_script(path: &Path) -> Result<Option<PathBuf>, CannotRun> {
    let file = match File::open(path) {
        Ok(file) => file,
        // Executable and not readable: exec will report its kind.
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(refused(
                path,
                "the command cannot read it, so it cannot check whether the loader would preload into it",
            ))
        }
        Err(e) => return Err(refused(path, failed("open", e))),
    };
    let mut line = Vec::new();
    // The kernel reads this much.
    let mut reader = BufReader::new(file.take(256));
    reader.read_until(b'\n', &mut line).map_err(|e| refused(path, failed("read", e)))?;
    let Some(rest) = line.strip_prefix(b"#!") else { return Ok(None) };
    let mut words = rest.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let Some(interpreter) = words.next() else {
        return Err(refused(path, "its first line names no interpreter"));
    };
    let interpreter = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
    if !interpreter.exists() {
        let why = format_args!("its interpreter {} is missing", shown(&interpreter)).to_string();
        return Err(CannotRun { code: 126, why: format!("{}: {why}", shown(path)) });
    }
    Ok(Some(interpreter))
}

fn check_elf(path: &Path) -> Result<(), CannotRun> {
    let mut file = File::open(path).map_err(|e| refused(path, failed("open", e)))?;
    let mut magic = [0; 20];
    let read = file.read(&mut magic).map_err(|e| refused(path, failed("read", e)))?;
    if read < magic.len() || magic[..4] != elf::ELFMAG {
        // A file that the shell runs as a script without a first line, or another binary format.
        return Err(CannotRun {
            code: 126,
            why: format!("{}: neither a program nor a script with a #! line", shown(path)),
        });
    }
    let own = std::env::current_exe().and_then(|own| {
        let mut own = File::open(own)?;
        let mut magic = [0; 20];
        own.read_exact(&mut magic)?;
        Ok(magic)
    });
    // Class and byte order, and the machine.
    let kind = |magic: &[u8; 20]| (magic[4], magic[5], magic[18], magic[19]);
    if own.is_ok_and(|own| kind(&own) != kind(&magic)) {
        return Err(refused(path, "it is a program for another architecture than the library"));
    }
    file.rewind().map_err(|e| refused(path, failed("lseek", e)))?;
    let about = about(file).map_err(|why| refused(path, why))?;
    if let Some(sanitizer) = about.needed.iter().find(|name| is_sanitizer(name)) {
        let name = String::from_utf8_lossy(sanitizer);
        return Err(refused(
            path,
            format_args!(
                "it is built with a sanitizer ({name}), which replaces malloc itself and must be \
                 loaded first"
            ),
        ));
    }
    match about.loader {
        // If the loader is started by its name, it loads a program, and preloads the library into
        // that.
        None if is_own_loader(path) => Ok(()),
        None => Err(refused(
            path,
            "it is linked statically, so no loader could preload a library into it",
        )),
        Some(loader) if !Path::new(&loader).exists() => Err(CannotRun {
            code: 126,
            why: format!("{}: its loader {} is missing", shown(path), shown(&loader)),
        }),
        Some(loader) if loader.as_bytes().windows(7).any(|part| part == b"ld-musl") => {
            Err(refused(path, "it uses the C library musl, and the library is for glibc"))
        }
        Some(_) => Ok(()),
    }
}

/// The facts about a program that decide how it is started.
struct About {
    /// The loader that it names (PT_INTERP).
    loader: Option<OsString>,
    /// The libraries that it needs.
    needed: Vec<Vec<u8>>,
}

fn about(file: File) -> Result<About, String> {
    let cache = ReadCache::new(file);
    let elf = ElfFile::<elf::FileHeader64<Endianness>, _>::parse(&cache)
        .map_err(|e| format!("its headers cannot be read: {e}"))?;
    let endian = elf.endian();
    let mut loader = None;
    for header in elf.elf_program_headers() {
        let name = header.interpreter(endian, &cache).map_err(|e| e.to_string())?;
        loader = loader.or(name.map(|name| OsString::from_vec(name.to_vec())));
    }
    let mut needed = Vec::new();
    let sections = elf.elf_section_table();
    // Without sections, or with unusual ones, its libraries are not known.
    if let Ok(Some((entries, link))) = sections.dynamic(endian, &cache) {
        let strings = sections.strings(endian, &cache, link).unwrap_or_default();
        let libraries = entries.iter().filter(|entry| entry.tag32(endian) == Some(elf::DT_NEEDED));
        let names = libraries.filter_map(|entry| strings.get(entry.val32(endian)?).ok());
        needed.extend(names.map(<[u8]>::to_vec));
    }
    Ok(About { loader, needed })
}

fn is_sanitizer(library: &[u8]) -> bool {
    const OF_GCC: [&[u8]; 4] = [b"libasan.so", b"libhwasan.so", b"liblsan.so", b"libtsan.so"];
    OF_GCC.into_iter().any(|name| library.starts_with(name))
}

/// Returns whether it is the loader that started this program itself.
fn is_own_loader(path: &Path) -> bool {
    let own = std::env::current_exe().and_then(File::open).ok();
    let own = own.and_then(|own| about(own).ok()?.loader);
    let own = own.and_then(|own| Path::new(&own).canonicalize().ok());
    own.is_some() && own == path.canonicalize().ok()
}
