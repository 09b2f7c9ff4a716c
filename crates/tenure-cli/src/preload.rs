//! The library that `tenure run` preloads, built as a program of this package.
//!
//! Its code is the crate tenure-preload. `cargo install` installs programs and no libraries, so
//! build.rs has this one linked as a shared library. It is installed beside `tenure`, and
//! `tenure run` finds it there.

#![cfg_attr(target_env = "gnu", no_main)]

#[cfg(target_env = "gnu")]
extern crate tenure_preload as _;

/// If the library is not built, this program prints that.
#[cfg(not(target_env = "gnu"))]
fn main() {
    eprintln!(
        "tenure-preload: `tenure run` needs the GNU C library, and this is a build without it"
    );
    std::process::exit(2);
}

// The entry point, for a user who starts the file as a program: it prints one line, and exits
// with status 2. The kernel has not relocated anything by then, so the code uses addresses
// relative to itself, and the system calls write(2, …) and exit_group(2).
#[cfg(all(target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]
std::arch::global_asm!(
    ".section .text.tenure_preload_entry, \"ax\", @progbits",
    ".globl tenure_preload_entry",
    "tenure_preload_entry:",
    "movl $1, %eax",
    "movl $2, %edi",
    "leaq 2f(%rip), %rsi",
    "movl $(3f - 2f), %edx",
    "syscall",
    "movl $231, %eax",
    "movl $2, %edi",
    "syscall",
    "2: .ascii \"tenure-preload: this is the library that `tenure run` preloads, and no command\\n\"",
    "3:",
    ".text",
    options(att_syntax),
);

// The entry point for this architecture, for a user who starts the file as a program: it prints
// one line, and exits with 2. The kernel has not relocated
// anything, so it uses relative addresses and the system calls write(2, …) and exit_group(2).
#[cfg(all(target_env = "gnu", target_arch = "aarch64"))]
std::arch::global_asm!(
    ".section .text.tenure_preload_entry, \"ax\", @progbits",
    ".globl tenure_preload_entry",
    "tenure_preload_entry:",
    "mov x8, #64",
    "mov x0, #2",
    "adr x1, 2f",
    "mov x2, #(3f - 2f)",
    "svc #0",
    "mov x8, #94",
    "mov x0, #2",
    "svc #0",
    "2: .ascii \"tenure-preload: this is the library that `tenure run` preloads, and no command\\n\"",
    "3:",
    ".text",
);
