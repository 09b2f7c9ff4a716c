//! A signal's handler may fork at any instruction of an unmark or a mark: parent and child go on.
//!
//! The processor is told to raise SIGTRAP after each instruction, and the handler forks.
#![cfg(target_arch = "x86_64")]

mod promise_kit;

use promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tenure::volatile;
use tenure::Outcome;
use tenure_testkit::this_test;

/// Instructions so far, at each of the first of which the handler forks, and the stride after that.
static STEPS: AtomicU64 = AtomicU64::new(0);
const EACH: u64 = 1000;
const STRIDE: u64 = 401;
/// By a plain system call, which calls no fork handlers.
static RAW: AtomicBool = AtomicBool::new(false);
static IN_CHILD: AtomicBool = AtomicBool::new(false);
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Where this program's own code lies: a handler's fork would meet the C library's locks.
static CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The trap flag.
const TRAP: i64 = 0x100;

extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context to a handler installed with SA_SIGINFO.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as u64;
    let [low, high] = [0, 1].map(|n| CODE[n].load(Ordering::Relaxed));
    let step = STEPS.fetch_add(1, Ordering::Relaxed);
    let near = step < EACH && !RAW.load(Ordering::Relaxed);
    if !(low..high).contains(&at) || !(near || step % STRIDE == 0) {
        return;
    }
    FORKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: plain system calls; the child ends at once, or goes on with what the handler interrupted.
    unsafe {
        let raw = RAW.load(Ordering::Relaxed);
        let pid = match raw {
            true => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
            false => libc::fork(),
        };
        if pid == 0 {
            if near {
                libc::_exit(0);
            }
            registers[libc::REG_EFL as usize] &= !TRAP;
            IN_CHILD.store(true, Ordering::Relaxed);
            libc::alarm(3);
            return;
        }
        let mut status = 0;
        libc::waitpid(pid, &mut status, 0);
        if status != 0 {
            println!("step {step}, {:#x}: the child ended with {status:#x}", at - low);
            libc::_exit(1);
        }
    }
}

fn find_code() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let program = std::env::current_exe().unwrap();
    let ends = maps.lines().filter(|line| line.ends_with(program.to_str().unwrap()));
    let ends: Vec<u64> = ends
        .flat_map(|line| line.split(' ').next().unwrap().split('-'))
        .map(|end| u64::from_str_radix(end, 16).unwrap())
        .collect();
    CODE[0].store(*ends.iter().min().unwrap(), Ordering::Relaxed);
    CODE[1].store(*ends.iter().max().unwrap(), Ordering::Relaxed);
}

/// Has a trap raised after each instruction of `act`.
fn stepped(act: impl FnOnce()) {
    // SAFETY: changes the trap flag, for which there is a handler.
    unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    act();
    // SAFETY: as above.
    unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
}

fn check(bytes: &[u8], outcome: Outcome, pages: std::ops::Range<usize>) {
    for i in pages {
        let seen = bytes[i * PAGE];
        let right = seen == byte(i) || seen == 0 && outcome == Outcome::Purged;
        assert!(right, "page {i} is {seen}, and {outcome:?}");
    }
}

fn fork_at_instructions(raw: bool) {
    RAW.store(raw, Ordering::Relaxed);
    find_code();
    let mut map = filled(8);
    let (at, len) = (map.as_mut_ptr(), map.len());
    // SAFETY: this test's own memory; the handler is a function that lives for ever.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
        volatile::mark(at, len).unwrap();
        let _ = volatile::offer_now(at, len);
        stepped(|| {
            let first = volatile::unmark(at, len).unwrap();
            check(std::slice::from_raw_parts(at, len), first, 0..8);
            volatile::mark(at, len / 2).unwrap();
            let second = volatile::unmark(at.add(PAGE), PAGE).unwrap();
            if first == Outcome::Intact {
                check(std::slice::from_raw_parts(at, len), second, 1..2);
            }
            volatile::mark(at, len).unwrap();
            volatile::forget(at, len).unwrap();
        });
        if IN_CHILD.load(Ordering::Relaxed) {
            // The child can do all this, and fork, itself.
            volatile::mark(at, len).unwrap();
            let _ = volatile::offer_now(at, len);
            let _ = volatile::unmark(at, len).unwrap();
            libc::_exit(i32::from(forked(|| ()) != Ended::Well));
        }
    }
    println!(
        "{} instructions, {} forks",
        STEPS.load(Ordering::Relaxed),
        FORKS.load(Ordering::Relaxed)
    );
}

#[test]
fn a_handler_may_fork_at_any_instruction_of_an_unmark() {
    promised(this_test!(), || fork_at_instructions(false));
}

#[test]
fn a_handler_may_fork_past_all_handlers_at_any_instruction_of_an_unmark() {
    promised(this_test!(), || fork_at_instructions(true));
}
