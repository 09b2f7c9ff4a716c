//! Forks in a signal handler: after each instruction of a part of a test, by the processor's SIGTRAP,
//! or at the alarms of a timer.
#![cfg(target_arch = "x86_64")]

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;
use tenure_testkit::alarms::Alarms;

/// The instructions of the program's own code at which the handler forks, and how.
pub struct Stepping {
    /// At each of the first so many: these children end at once.
    pub each: u64,
    /// At every so many-th: these children continue the interrupted code.
    pub stride: u64,
    /// By a plain system call, which calls no fork handlers.
    pub raw: bool,
}

static STEPS: AtomicU64 = AtomicU64::new(0);
static EACH: AtomicU64 = AtomicU64::new(0);
static STRIDE: AtomicU64 = AtomicU64::new(1);
static RAW: AtomicBool = AtomicBool::new(false);
/// Children continue beside their parent, which waits for them later.
static BESIDE: AtomicBool = AtomicBool::new(false);
static IN_CHILD: AtomicBool = AtomicBool::new(false);
static FORKS: AtomicU64 = AtomicU64::new(0);
/// A pipe to which no code writes: children wait until its writing end is closed. -1: they do not
/// wait.
static GATE: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// The children that wait.
static WAITING: [AtomicI32; MOST_WAITING] = [const { AtomicI32::new(0) }; MOST_WAITING];
const MOST_WAITING: usize = 256;
/// So many continue beside their parent.
const MOST_BESIDE: usize = 8;
/// The addresses of this program's own code: elsewhere a handler's fork would meet the C library's
/// locks.
static CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The signal of [`alarmed`]. `SIGALRM` ends children that hang.
const ALARM: libc::c_int = libc::SIGPROF;
/// The trap flag.
const TRAP: i64 = 0x100;

extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context to a handler installed with SA_SIGINFO.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: reads the context's set.
    if unsafe { libc::sigismember(&context.uc_sigmask, libc::SIGUSR1) } == 1 {
        // No handler of a program could run here.
        return;
    }
    let registers = &mut context.uc_mcontext.gregs;
    let at = registers[libc::REG_RIP as usize] as u64;
    let [low, high] = [0, 1].map(|n| CODE[n].load(Ordering::Relaxed));
    let step = STEPS.fetch_add(1, Ordering::Relaxed);
    let near = step < EACH.load(Ordering::Relaxed);
    let beside = BESIDE.load(Ordering::Relaxed);
    let may_fork = (low..high).contains(&at) || beside && is_plain_call(at);
    if !may_fork || !(near || step % STRIDE.load(Ordering::Relaxed) == 0) {
        return;
    }
    if beside && WAITING[MOST_BESIDE - 1].load(Ordering::Relaxed) != 0 {
        return;
    }
    FORKS.fetch_add(1, Ordering::Relaxed);
    let [reading, writing] = [0, 1].map(|n| GATE[n].load(Ordering::Relaxed));
    // SAFETY: plain system calls; the child ends at once, or continues the code that the handler
    // interrupted.
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
            if reading >= 0 {
                libc::close(writing);
                let mut end = 0u8;
                libc::read(reading, (&raw mut end).cast(), 1);
            }
            // From here on: the parent's part takes longer than this on a busy machine.
            libc::alarm(super::LONGEST.as_secs() as u32);
            return;
        }
        if reading < 0 && !beside {
            end_well(pid, step, at - low);
            return;
        }
        let free = WAITING.iter().find(|place| place.load(Ordering::Relaxed) == 0);
        match free {
            Some(place) => place.store(pid, Ordering::Relaxed),
            None => {
                println!("more than {MOST_WAITING} children wait");
                libc::_exit(1);
            }
        }
    }
}

/// Whether a signal that came at this address interrupted a system call of the C library that has no
/// lock: a thread may be there for long.
fn is_plain_call(at: u64) -> bool {
    let calls = [libc::syscall as *const () as u64, libc::madvise as *const () as u64];
    calls.iter().any(|call| (*call..call + 64).contains(&at))
}

fn end_well(pid: i32, step: u64, at: u64) {
    let mut status = 0;
    // SAFETY: the calls take numbers, and a local that outlives them.
    unsafe {
        libc::waitpid(pid, &mut status, 0);
        if status != 0 {
            println!("step {step}, {at:#x}: the child ended with {status:#x}");
            libc::_exit(1);
        }
    }
}

/// Children that continue do so when [`let_children_go`] is called; the handler does not wait for
/// them.
pub fn hold_children() {
    let mut ends = [0; 2];
    // SAFETY: a plain system call that writes two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    GATE.iter().zip(ends).for_each(|(gate, end)| gate.store(end, Ordering::Relaxed));
}

/// Lets waiting children continue, and waits until they have ended. Returns how many there were.
pub fn let_children_go() -> usize {
    let [reading, writing] = [0, 1].map(|n| GATE[n].swap(-1, Ordering::Relaxed));
    // SAFETY: the pipe's ends, which no other code uses in this process.
    unsafe {
        libc::close(writing);
        libc::close(reading);
    }
    wait_for_children()
}

/// Waits for the children that continue beside their parent. Returns how many there were.
fn wait_for_children() -> usize {
    let children = WAITING.iter().map(|child| child.swap(0, Ordering::Relaxed));
    let children = children.filter(|pid| *pid != 0).map(|pid| end_well(pid, 0, 0));
    children.count()
}

fn find_code() {
    if cfg!(target_feature = "crt-static") {
        // No code is the program's alone, so the handler never forks.
        tenure_testkit::skip!("forks at instructions: the C library is linked statically");
    }
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

/// Installs the handler.
pub fn begin(how: Stepping) {
    EACH.store(how.each, Ordering::Relaxed);
    STRIDE.store(how.stride, Ordering::Relaxed);
    RAW.store(how.raw, Ordering::Relaxed);
    find_code();
    // A child has one thread, and not the one that would report its panic.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if in_child() {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(1) };
        }
    }));
    // SAFETY: the handler is a function that lives for ever.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
        libc::sigaction(ALARM, &action, std::ptr::null_mut());
    }
}

/// Returns whether this process is a child that a handler made.
pub fn in_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

pub fn report() {
    let [steps, forks] = [&STEPS, &FORKS].map(|count| count.load(Ordering::Relaxed));
    println!("{steps} instructions, {forks} forks");
    assert!(forks >= 5, "hardly any: {forks} forks in {steps} instructions");
}

/// Raises a trap after each instruction of `act`.
pub fn stepped(act: impl FnOnce()) {
    super::threads_sleep(Duration::MAX);
    // SAFETY: changes the trap flag, for which there is a handler.
    unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    act();
    // SAFETY: clears the trap flag, and changes nothing else.
    unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
}

/// Raises alarms in this thread while it runs `act`, which may start threads: the C library blocks all
/// signals for that, where the processor's trap would end the process. The children continue beside
/// their parent, whose threads go on, too.
pub fn alarmed(every: Duration, act: impl FnOnce()) {
    BESIDE.store(true, Ordering::Relaxed);
    let alarms = Alarms::begin(ALARM, every);
    act();
    drop(alarms);
    if in_child() {
        return;
    }
    wait_for_children();
}
