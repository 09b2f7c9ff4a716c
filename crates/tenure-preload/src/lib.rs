//! The library that `tenure run` puts in front of a program (`LD_PRELOAD`).
//!
//! It defines the C library's allocation and mapping functions, so the program's calls come here
//! first. Large requests go to tenure's pool, large unmaps are retired; everything else goes on to the
//! next definition (the C library's, or a preloaded allocator's) or straight to the kernel.
//!
//! What a hook may do is narrow, because it may be called before the program's constructors, by an
//! allocator that holds its locks, in a signal handler, or between `vfork` and `exec`:
//! - It never calls an allocation function of the process: this library has its own heap (`heap`).
//! - Mapping hooks make raw system calls, create no thread and keep `errno`.
//! - Thread-local variables are never allocated lazily (`tls`).
//! - The keeper's thread is started by the allocation hooks only, which are not to be called in signal
//!   handlers anyway, and by a thread of its own, so that nobody waits for it (`keeper`).

// Each function has C's documentation: what it does is what the function of that name does.
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
mod heap;
mod hooks;
mod init;
mod keeper;
mod kernel;
mod last_thread;
mod limits;
mod no_cancel;
mod on_signal;
mod real;
mod report;
mod serving;
mod symbol;
mod text;
mod tls;

/// Called by the loader after the constructors of the libraries that this one needs.
extern "C" fn constructor() {
    init::constructor();
    contradiction::settle();
    last_thread::watch_main_thread();
}

/// Called by `exit` after the program's own handlers.
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
