//! Thread-local variables that never call `malloc`.
//!
//! A shared library reaches its thread-local variables through `__tls_get_addr`. After a `dlopen`
//! the loader's version may have to enlarge the thread's table, and calls `malloc` for it. That
//! `malloc` is this library's, which would use a thread-local variable, and so on without end. For
//! this reason allocators are compiled for the initial-exec model, which stable Rust cannot choose.
//! But a library that is loaded at the start has its variables at a fixed distance from the thread
//! pointer. So this library defines its own `__tls_get_addr`, hidden from all other libraries. It
//! adds the distance, which the loader finds once for one variable, and the offset of the wanted
//! variable.
//!
//! On aarch64 the loader's own resolver already does so for libraries that are loaded at the start.

//!
//! The standard library registers a variable's destructor with `__cxa_thread_atexit_impl`, which
//! calls `calloc`. That is the program's allocator. A thread that forks may hold its lock while it
//! waits for a lock of tenure's. So this library defines that function, too, hidden as well, and it
//! registers nothing. The keeper's threads do not end. A program's thread that has forked leaks
//! about 200 bytes.

#![allow(unsafe_code, reason = "defines functions that the loader and the C library call")]

use std::ffi::{c_int, c_void};

/// The head of this module explains it. Rust's own reference to the function is weak, and finds
/// this definition first.
#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_registers_no_destructor(
    _destructor: *mut c_void,
    _object: *mut c_void,
    _library: *mut c_void,
) -> c_int {
    0
}

std::arch::global_asm!(
    ".hidden __cxa_thread_atexit_impl",
    ".globl __cxa_thread_atexit_impl",
    ".hidden tenure_registers_no_destructor",
    ".set __cxa_thread_atexit_impl, tenure_registers_no_destructor",
);

/// The calling thread's own number: the address in its thread pointer.
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads a register, or the word at its address, which the ABI gives every thread.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem));
    }
    pointer
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    r#"
    .section .tbss.tenure_tls_anchor,"awT",@nobits
    .p2align 3
    .type tenure_tls_anchor,@object
tenure_tls_anchor:
    .zero 8
    .size tenure_tls_anchor, 8

    .text
    .hidden __tls_get_addr
    .globl __tls_get_addr
    .type __tls_get_addr,@function
__tls_get_addr:
    movq tenure_tls_anchor@GOTTPOFF(%rip), %rax
    xorl %ecx, %ecx
    leaq tenure_tls_anchor@DTPOFF(%rcx), %rcx
    subq %rcx, %rax
    addq 8(%rdi), %rax
    addq %fs:0, %rax
    ret
    .size __tls_get_addr, .-__tls_get_addr
"#,
    options(att_syntax)
);
