//! The allocator behind this library's hooks, and whether the pool may serve in front of it.
//!
//! The pool may hand a block out only if every call that can take it back comes to this library. An
//! allocator's own names (`sdallocx`, `mi_free`, `tc_realloc`), a program's own `free`, and the C++
//! operators of an allocator do not come here. A library that defined such names would hide a
//! plugin's own. So the pool serves malloc only in front of the C library: C++'s operators call
//! `malloc` and `free` there.

#![allow(unsafe_code, reason = "asks the loader")]

use crate::symbol;
use std::ffi::{c_char, c_void, CStr};
use std::fmt;
use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq)]
pub enum Allocator {
    CLibrary,
    /// A program, or a library before this one in the loader's order, defines some of malloc's
    /// family.
    Programs,
    /// Another library behind this one: its file's name.
    Other(&'static str),
}

/// For the whole process: the constructor stores it and the report reads it, and neither gets a
/// context. The result of [`Allocator::find`].
static FOUND: OnceLock<Allocator> = OnceLock::new();

impl Allocator {
    /// Called in the constructor, when the program's libraries are loaded.
    pub fn find() -> Allocator {
        *FOUND.get_or_init(Allocator::look)
    }

    /// `None` before the constructor, and where the library is switched off.
    pub fn found() -> Option<Allocator> {
        FOUND.get().copied()
    }

    fn look() -> Allocator {
        let programs = [c"malloc", c"free", c"realloc", c"calloc", c"malloc_usable_size"]
            .into_iter()
            .any(|name| is_programs(symbol::used(name)));
        if programs {
            return Allocator::Programs;
        }
        let malloc = symbol::next(c"malloc");
        match object_of(malloc) == object_of(symbol::next(c"gnu_get_libc_version")) {
            true => Allocator::CLibrary,
            false => Allocator::Other(file_name(malloc)),
        }
    }

    /// Why the pool may not hand out blocks in its place.
    pub fn why_not(self) -> Option<WhyNot> {
        match self {
            Allocator::CLibrary => None,
            Allocator::Programs => Some(WhyNot::Programs),
            Allocator::Other(name) => Some(WhyNot::Other(name)),
        }
    }
}

/// Why the pool does not serve requests although the user asked for it.
#[derive(Clone, Copy)]
pub enum WhyNot {
    /// Its free memory would count against the machine's limit.
    Charged,
    /// Its free memory would count against a limit of the process itself.
    Limited,
    /// See [`Allocator`].
    Programs,
    Other(&'static str),
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNot::Charged => f.write_str("vm.overcommit_memory is 2: free runs would count"),
            WhyNot::Limited => {
                f.write_str("RLIMIT_AS or RLIMIT_DATA is set: free runs would count")
            }
            WhyNot::Programs => f.write_str("the program has its own"),
            WhyNot::Other(name) => write!(f, "{name} takes its place"),
        }
    }
}

/// (The address of an exported function does not tell: the loader gives this library the definition
/// that it gives to all.)
fn is_programs(at: *mut c_void) -> bool {
    object_of(at) != object_of((&raw const FOUND).cast()) && is_definition(at)
}

/// A loaded program or library.
#[derive(Clone, Copy, PartialEq)]
struct Object {
    /// Where it begins, in a sense: what the loader adds to its addresses.
    base: usize,
    /// The loader's name of it.
    path: *const c_char,
}

/// The object of an address; `None`: there is none. By the objects' segments: `dladdr` would look through all symbols of
/// the C library, for 5 us.
fn object_of(at: *const c_void) -> Option<Object> {
    let mut found = None;
    symbol::each_object(&mut |about| {
        // SAFETY: so many headers lie there while the object is loaded.
        let segments =
            unsafe { std::slice::from_raw_parts(about.dlpi_phdr, usize::from(about.dlpi_phnum)) };
        let base = about.dlpi_addr as usize;
        let holds = |segment: &libc::Elf64_Phdr| {
            let start = base.wrapping_add(segment.p_vaddr as usize);
            segment.p_type == libc::PT_LOAD
                && (at as usize).wrapping_sub(start) < segment.p_memsz as usize
        };
        if segments.iter().any(holds) {
            found = Some(Object { base, path: about.dlpi_name });
        }
        found.is_none()
    });
    found
}

fn file_name(at: *const c_void) -> &'static str {
    let Some(object) = object_of(at).filter(|object| !object.path.is_null()) else {
        return "another library";
    };
    // SAFETY: the loader's terminated string. It belongs to a library that was loaded at the start,
    // so it stays.
    let path = unsafe { CStr::from_ptr(object.path) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    std::str::from_utf8(name).unwrap_or("another library")
}

/// Whether the address is a function's own. A program that is not position-independent may take the
/// address of a library's function. The loader then gives the address of the program's call stub to
/// all.
fn is_definition(at: *const c_void) -> bool {
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let mut symbol: *mut c_void = std::ptr::null_mut();
    // RTLD_DL_SYMENT.
    const SYMBOL: i32 = 1;
    // SAFETY: the call fills in the structure and the symbol's address, or returns 0 and leaves the
    // zeros.
    let found = unsafe { libc::dladdr1(at, about.as_mut_ptr(), &mut symbol, SYMBOL) };
    if found == 0 || symbol.is_null() {
        return true;
    }
    // SAFETY: an entry of a loaded object's symbol table, which stays while the object does.
    let section = unsafe { (*symbol.cast::<libc::Elf64_Sym>()).st_shndx };
    const UNDEFINED: u16 = 0;
    section != UNDEFINED
}
