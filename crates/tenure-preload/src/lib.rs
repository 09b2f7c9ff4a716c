//! The library that `tenure run` loads into a program (`LD_PRELOAD`).
//!
//! It defines the C library's allocation and mapping functions, so the program's calls come here
//! first. Large requests go to tenure's pool, and large unmaps are retired. All other calls go to
//! the next definition (the C library's, or a preloaded allocator's) or straight to the kernel.
//!
//! A hook may do only a few things, because the program may call it before its constructors, by an
//! allocator that holds its locks, in a signal handler, or between `vfork` and `exec`:
//! - It never calls an allocation function of the process: this library has its own heap (`heap`).
//! - Mapping hooks make raw system calls, create no thread and keep `errno`.
//! - Thread-local variables are never allocated lazily (`tls`).
//! - Only the allocation hooks start the keeper's thread, because a signal handler must not call
//!   them anyway. A separate thread does the start, so that no caller waits for it (`keeper`).

// Each function is documented by the C function of its name.
#![allow(missing_docs, clippy::missing_safety_doc)]
#![deny(unsafe_code)]

mod allocator;
mod bootstrap_alloc;
mod commit;
mod contradiction;
mod counters;
mod errno;
mod family;
mod first_use;
mod handed_over;
mod heap;
mod hooks;
mod init;
mod keeper;
mod kernel;
mod last_thread;
mod limits;
mod loads;
mod no_cancel;
mod on_signal;
mod real;
mod report;
mod reuse;
mod serving;
mod symbol;
mod text;
mod thread_end;
mod tls;

/// The loader calls it after the constructors of the libraries that this one needs.
extern "C" fn constructor() {
    init::constructor();
    contradiction::settle();
    last_thread::watch_main_thread();
}

/// `exit` calls it after the program's own handlers.
extern "C" fn destructor() {
    report::at_exit();
}

/// For the whole process: the loader calls it before the program runs.
#[used]
#[allow(unsafe_code, reason = "the loader calls a function in this section")]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

/// For the whole process: the loader calls it at the end.
#[used]
#[allow(unsafe_code, reason = "the loader calls a function in this section")]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;
