//! Identifies the allocator of this process.

#![allow(unsafe_code, reason = "calls what the loader has found, as the function that it is")]

use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::fs;
use std::io;
use std::ptr;

/// The allocator of a generator: proof that the intended one was really preloaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The files that the process has mapped to execute, by name.
    pub libraries: Vec<String>,
    /// The allocators' own versions, as they report them.
    pub allocators: Vec<(String, String)>,
}

impl Identity {
    /// The identity of this process.
    pub(super) fn of_this_process() -> io::Result<Identity> {
        Ok(Identity { libraries: libraries()?, allocators: allocators() })
    }

    /// Whether a library is there whose name begins so.
    pub fn has(&self, library: &str) -> bool {
        self.libraries.iter().any(|name| name.starts_with(library))
    }
}

fn libraries() -> io::Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_to_string("/proc/self/maps")?
        .lines()
        .filter(|line| line.split_whitespace().nth(1).is_some_and(|perms| perms.contains('x')))
        .filter_map(|line| Some(line.rsplit_once('/')?.1.to_owned()))
        .collect();
    names.dedup();
    Ok(names)
}

/// The functions by which allocators report their versions are looked up, not linked: the process
/// has them only if the allocator was preloaded.
fn allocators() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut add = |name: &str, version: String| found.push((name.to_owned(), version));
    #[cfg(target_env = "gnu")]
    // SAFETY: returns a constant string.
    add("glibc", text(unsafe { libc::gnu_get_libc_version() }));
    if let Some(mallctl) = symbol(c"mallctl") {
        type Mallctl = unsafe extern "C" fn(
            *const c_char,
            *mut c_void,
            *mut usize,
            *mut c_void,
            usize,
        ) -> c_int;
        let (mut version, mut len) = (ptr::null::<c_char>(), size_of::<*const c_char>());
        // SAFETY: jemalloc's documented function and name; it writes one pointer to a constant.
        let failed = unsafe {
            let mallctl = std::mem::transmute::<*mut c_void, Mallctl>(mallctl);
            let to = (&raw mut version).cast();
            mallctl(c"version".as_ptr(), to, &mut len, ptr::null_mut(), 0)
        };
        if failed == 0 {
            // 5.3.0-0-g followed by forty digits: a release, and its commit.
            let version = text(version);
            add("jemalloc", version.split("-0-g").next().unwrap_or_default().to_owned());
        }
    }
    if let Some(mi_version) = symbol(c"mi_version") {
        // SAFETY: mimalloc's documented function: no argument, an int such as 209 for 2.0.9.
        let number = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(mi_version)()
        };
        add("mimalloc", format!("{}.{}.{}", number / 100, number / 10 % 10, number % 10));
    }
    if let Some(tc_version) = symbol(c"tc_version") {
        type Version =
            unsafe extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char;
        // SAFETY: gperftools' documented function; null means that a part is not requested.
        let version = unsafe {
            std::mem::transmute::<*mut c_void, Version>(tc_version)(
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        add("tcmalloc", text(version));
    }
    found
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a lookup among the libraries that are loaded already.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn text(constant: *const c_char) -> String {
    if constant.is_null() {
        return "unknown".into();
    }
    // SAFETY: the callers pass strings of the library, which exist while it is loaded.
    unsafe { CStr::from_ptr(constant) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_served_by_its_c_library() {
        let identity = Identity::of_this_process().unwrap();
        assert!(identity.has("libc.so") && !identity.has("libnothing"), "{identity:?}");
        #[cfg(target_env = "gnu")]
        assert!(identity
            .allocators
            .iter()
            .any(|(name, version)| name == "glibc" && version.starts_with("2.")));
    }
}
