//! Children for which there is no slot, at unlucky moments.

use crate::promise_kit::*;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::shared::{SharedCache, SharedPin, SharedVolatile};
use tenure_testkit::{sweep, this_test, Deadline};

fn small(processes: u32) -> SharedVolatile {
    SharedVolatile::builder(4 * 4096).chunk_size(4096).processes(processes).build().unwrap()
}

/// Mappings that the child has made since the fork stay when it closes the memory.
#[test]
fn a_child_without_a_place_unmaps_only_its_own() {
    promised(this_test!(), || {
        let mut shared = Some(small(1));
        let child = forked(|| {
            // Fills each hole of one page.
            let pages: Vec<usize> = (0..64).map(|_| plain(PAGE)).collect();
            drop(shared.take());
            assert!(
                pages.iter().all(|page| peek(*page).is_some()),
                "a page of the child's is gone"
            );
        });
        assert_eq!(child, Ended::Well);
    });
}

/// A process that has the memory open has a child for which there is no place, and is killed in the
/// middle of `makes`. The child lives until the returned socket is closed.
fn dead_maker_with_an_heir(makes: impl FnOnce(&mut dyn FnMut())) -> UnixStream {
    let (mut read, mut write) = UnixStream::pair().unwrap();
    let (wait, lives) = UnixStream::pair().unwrap();
    let maker = worker(|| {
        makes(&mut || {
            // SAFETY: the child ends by _exit.
            if unsafe { libc::fork() } == 0 {
                // SAFETY: the child's copy, which no code uses or closes again; then the child
                // ends.
                unsafe {
                    libc::close(lives.as_raw_fd());
                    write.write_all(b"x").unwrap();
                    let _ = (&wait).read(&mut [0]);
                    libc::_exit(0)
                }
            }
            std::thread::sleep(Duration::from_secs(60));
        });
    });
    read.read_exact(&mut [0]).unwrap();
    kill(maker);
    lives
}

/// A thread that waits for the dead process gets an error, although its child has the dead one's
/// place.
#[test]
fn a_dead_maker_is_waited_for_by_nobody_while_its_child_lives() {
    promised(this_test!(), || {
        let shared = small(2);
        let lives = dead_maker_with_an_heir(|fork| {
            let _maker = shared.pin(0).unwrap();
            let _other = shared.get_or_make(1, |bytes| bytes.fill(7)).unwrap();
            fork();
        });
        let begun = Instant::now();
        let SharedPin::BeingMade(other) = shared.pin(0).unwrap() else { panic!() };
        let told = other.wait(Some(Duration::from_secs(4)));
        let told = told.map(|pin| matches!(pin, SharedPin::ToMake(_)));
        assert!(told.is_ok_and(|told| told), "after {:?}", begun.elapsed());
        assert_eq!(shared.purge_now(1..2).unwrap(), 0, "the child has it pinned");
        drop(lives);
        assert!(waited(|| shared.purge_now(1..2).unwrap() == 1));

        let cache = SharedCache::builder().most(64 << 20).processes(2).build().unwrap();
        let _lives = dead_maker_with_an_heir(|fork| {
            let never = || {
                fork();
                b"never"
            };
            drop(cache.get_or_insert_with(b"key", never));
        });
        let soon = Deadline::after(Duration::from_secs(4));
        assert_eq!(&*cache.get_or_insert_with(b"key", || b"made").unwrap(), b"made");
        assert!(!soon.is_over());
    });
}

#[cfg(target_arch = "x86_64")]
mod stopped {
    use super::*;

    /// The instruction of the unpin at which the other thread stops, and how often it has got
    /// there.
    static STOP_AT: AtomicU64 = AtomicU64::new(0);
    static STEPS: AtomicU64 = AtomicU64::new(0);
    /// The steps of the round: these in turn.
    static AT: AtomicU64 = AtomicU64::new(0);
    static CHILD: AtomicI32 = AtomicI32::new(0);
    const NONE: u64 = 0;
    const PREPARED: u64 = 1;
    const PINNED: u64 = 2;
    const FORKED: u64 = 3;
    const STOPPED: u64 = 4;
    const DONE: u64 = 5;

    fn spin_until(at: u64) {
        while AT.load(Ordering::SeqCst) < at {
            std::hint::spin_loop();
        }
    }

    /// Runs after tenure's handler, because it was registered earlier.
    extern "C" fn on_prepare() {
        if AT.compare_exchange(NONE, PREPARED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            spin_until(PINNED);
        }
    }

    /// Runs before tenure's.
    extern "C" fn on_parent() {
        if AT.compare_exchange(PINNED, FORKED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            spin_until(STOPPED);
        }
    }

    extern "C" fn register() {
        AT.store(DONE, Ordering::SeqCst);
        // SAFETY: functions that live for ever.
        unsafe { libc::pthread_atfork(Some(on_prepare), Some(on_parent), None) };
    }

    #[used]
    #[unsafe(link_section = ".init_array.00001")]
    static AT_LOAD: extern "C" fn() = register;

    extern "C" fn on_trap(_: libc::c_int) {
        if STEPS.fetch_add(1, Ordering::SeqCst) == STOP_AT.load(Ordering::SeqCst) {
            AT.store(STOPPED, Ordering::SeqCst);
            spin_until(DONE);
        }
    }

    fn stepped(act: impl FnOnce()) {
        // SAFETY: changes the trap flag, for which there is a handler.
        unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        act();
        // SAFETY: clears the trap flag, and changes nothing else.
        unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
    }

    /// Another thread pins the chunk when the fork has noted the pins, and is stopped at any
    /// instruction of its unpin until the fork is done.
    #[test]
    fn what_another_thread_unpins_beside_a_fork_the_child_keeps() {
        promised(this_test!(), || {
            let shared = small(1);
            // SAFETY: the handler is a function that lives for ever.
            unsafe { libc::signal(libc::SIGTRAP, on_trap as *const () as usize) };
            let mut wrong = Vec::new();
            for stop_at in (0..).step_by(5) {
                drop(shared.get_or_make(0, |bytes| bytes.fill(7)).unwrap());
                STOP_AT.store(stop_at, Ordering::SeqCst);
                STEPS.store(0, Ordering::SeqCst);
                AT.store(NONE, Ordering::SeqCst);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        spin_until(PREPARED);
                        let pinned = shared.read(0).unwrap().unwrap();
                        AT.store(PINNED, Ordering::SeqCst);
                        spin_until(FORKED);
                        stepped(|| drop(pinned));
                        AT.fetch_max(STOPPED, Ordering::SeqCst);
                    });
                    let child = worker(|| std::thread::sleep(Duration::from_secs(60)));
                    AT.store(DONE, Ordering::SeqCst);
                    CHILD.store(child, Ordering::SeqCst);
                });
                wrong.extend((shared.purge_now(0..1).unwrap() != 0).then_some(stop_at));
                kill(CHILD.load(Ordering::SeqCst));
                let is_let_go = || {
                    let _ = shared.purge_now(0..1).unwrap();
                    shared.stats().pinned == 0
                };
                assert!(waited(is_let_go));
                if STEPS.load(Ordering::SeqCst) < stop_at {
                    break;
                }
            }
            println!("{} instructions", STEPS.load(Ordering::SeqCst));
            assert!(wrong.is_empty(), "purged under a child's pin: stopped at {wrong:?}");
        });
    }
}

static FORKED: AtomicI32 = AtomicI32::new(0);

fn loop_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

extern "C" fn forks(_: libc::c_int) {
    // SAFETY: the child waits for its end.
    match unsafe { libc::fork() } {
        0 => loop_for_ever(),
        pid => FORKED.store(pid, Ordering::SeqCst),
    }
}

/// A signal handler makes a child without a place while its thread releases pins that others had.
#[test]
fn a_handler_may_fork_while_its_thread_lets_go() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(4096 << 12).chunk_size(4096).processes(1);
        let shared = shared.build().unwrap();
        // SAFETY: the handler is a function that lives for ever.
        unsafe { libc::signal(libc::SIGUSR1, forks as *const () as usize) };
        let (mut wrong, mut rounds) = (0, 0);
        interrupted(60_000, |arm| {
            let pinned = shared.get_or_make(4000, |bytes| bytes.fill(7)).unwrap();
            kill(worker(|| loop_for_ever()));
            arm();
            let _ = shared.purge_now(4000..4001).unwrap();
            wait_for_fork();
            drop(pinned);
            wrong += shared.purge_now(4000..4001).unwrap();
            kill(FORKED.load(Ordering::SeqCst));
            rounds += 1;
        });
        println!("{rounds} rounds");
        assert_eq!(wrong, 0, "purged under a child's pin, in {rounds} rounds");
    });
}

/// When a child becomes another program, its inherited pins end.
#[test]
fn a_child_without_a_place_that_becomes_a_program_keeps_nothing() {
    promised(this_test!(), || {
        let shared = small(1);
        let pinned = shared.get_or_make(0, |bytes| bytes.fill(7)).unwrap();
        let child = worker(|| {
            // SAFETY: constants that end with a zero, and the end of the list.
            unsafe {
                libc::execl(c"/bin/sleep".as_ptr(), c"sleep".as_ptr(), c"60".as_ptr(), 0usize)
            };
        });
        drop(pinned);
        assert!(waited(|| shared.purge_now(0..1).unwrap() == 1));
        kill(child);
    });
}

/// For the handler: the file that the parent has opened, in memory that its child shares. 0: not
/// opened yet.
static PARENTS: AtomicU64 = AtomicU64::new(0);

fn parents() -> &'static AtomicU64 {
    // SAFETY: a page of zeros that is never unmapped, or the static.
    unsafe { &*(PARENTS.load(Ordering::SeqCst) as *const AtomicU64) }
}

static IN_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn forks_and_goes_on(_: libc::c_int) {
    // SAFETY: the child waits for its parent, and continues the interrupted code.
    match unsafe { libc::fork() } {
        0 => {
            IN_CHILD.store(true, Ordering::SeqCst);
            while parents().load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        pid => FORKED.store(pid, Ordering::SeqCst),
    }
}

fn inode(shared: &SharedVolatile) -> u64 {
    let file = std::fs::File::from(shared.as_fd().try_clone_to_owned().unwrap());
    std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap())
}

/// The child continues the call, in a place of its own.
#[test]
fn a_handler_may_fork_while_its_thread_opens_memory() {
    promised(this_test!(), || {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new page.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) };
        PARENTS.store(page as u64, Ordering::SeqCst);
        drop(small(2));
        // SAFETY: the handler is a function that lives for ever.
        unsafe { libc::signal(libc::SIGUSR1, forks_and_goes_on as *const () as usize) };
        let (mut wrong, mut rounds) = (0, 0);
        interrupted(300_000, |arm| {
            parents().store(0, Ordering::SeqCst);
            arm();
            let opened = SharedVolatile::builder(4 * 4096).chunk_size(4096).processes(100).build();
            wait_for_fork();
            if IN_CHILD.load(Ordering::SeqCst) {
                // An error if its parent has made this file meanwhile, and has sealed it.
                let is_wrong = |opened: SharedVolatile| {
                    inode(&opened) == parents().load(Ordering::SeqCst)
                        && opened.stats().processes < 2
                };
                // SAFETY: ends the child.
                unsafe { libc::_exit(opened.is_ok_and(is_wrong).into()) };
            }
            parents().store(inode(opened.as_ref().unwrap()), Ordering::SeqCst);
            let child = FORKED.load(Ordering::SeqCst);
            wrong += u32::from(end_of(child) != Ended::Well);
            rounds += 1;
        });
        assert_eq!(wrong, 0, "children in their parent's place, in {rounds} rounds");
    });
}

fn wait_for_fork() {
    while FORKED.load(Ordering::SeqCst) == 0 && !IN_CHILD.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
}

/// Calls `round` again and again. Its thread gets a signal at most so many nanoseconds after it has
/// called the given function.
fn interrupted(most: u64, mut round: impl FnMut(&dyn Fn())) {
    // SAFETY: a call without pointers.
    let this = unsafe { libc::pthread_self() } as usize;
    let (armed, over, mut seed) = (AtomicBool::new(false), AtomicBool::new(false), 1u64);
    std::thread::scope(|scope| {
        let (armed, over) = (&armed, &over);
        scope.spawn(move || loop {
            while !armed.swap(false, Ordering::SeqCst) {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                std::hint::spin_loop();
            }
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (begun, delay) = (Instant::now(), Duration::from_nanos((seed >> 33) % most));
            while begun.elapsed() < delay {
                std::hint::spin_loop();
            }
            // SAFETY: the thread outlives this one.
            unsafe { libc::pthread_kill(this as libc::pthread_t, libc::SIGUSR1) };
        });
        for _ in rounds(Duration::from_secs(sweep(1, 8)), 50) {
            FORKED.store(0, Ordering::SeqCst);
            round(&|| armed.store(true, Ordering::SeqCst));
        }
        over.store(true, Ordering::SeqCst);
    });
}

/// Forks, by a plain system call if `raw`. Returns 0 in the child, and its number in the parent.
fn fork_in_the_midst(raw: bool) -> i32 {
    // SAFETY: the callers end the child by _exit.
    unsafe {
        match raw {
            true => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
            false => libc::fork(),
        }
    }
}

/// A child that is forked while its parent makes a chunk gets no bytes that the parent still
/// writes, and none that vanish if the parent gives up.
#[test]
fn a_child_of_a_maker_makes_nothing() {
    promised(this_test!(), || {
        let is_refused = |made: tenure::Result<_>| {
            made.is_err_and(|error: tenure::Error| error.errno() == libc::EBUSY)
        };
        let end = |well: bool| {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!well)) }
        };
        for raw in [false, true] {
            let shared = small(4);
            let mut child = -1;
            let made = shared.get_or_make(0, |bytes| {
                child = fork_in_the_midst(raw);
                if child != 0 {
                    bytes.fill(7);
                }
            });
            if child == 0 {
                end(is_refused(made.map(drop)));
            }
            assert_eq!(end_of(child), Ended::Well, "get_or_make, raw: {raw}");
            assert!(made.unwrap().iter().all(|byte| *byte == 7));
            let SharedPin::ToMake(mut maker) = shared.pin(1).unwrap() else { panic!() };
            let child = fork_in_the_midst(raw);
            if child == 0 {
                let write = std::panic::AssertUnwindSafe(|| maker[0] = 1);
                let panicked = std::panic::catch_unwind(write).is_err();
                end(panicked && is_refused(maker.finish().map(drop)));
            }
            assert_eq!(end_of(child), Ended::Well, "a maker, raw: {raw}");
            maker[1] = 7;
            assert_eq!(maker.finish().unwrap()[..2], [0, 7]);
        }
    });
}

/// A child of a raw clone that uses the memory at once acts in a slot of its own.
#[test]
fn a_raw_clone_does_not_act_for_its_parent() {
    promised(this_test!(), || {
        let shared = small(4);
        let SharedPin::ToMake(mut maker) = shared.pin(0).unwrap() else { panic!() };
        maker[0] = 7;
        std::mem::forget(maker);
        let ended = raw_forked(|| {
            // SAFETY: the child's only maker was forgotten, and no code writes to the bytes.
            assert_eq!(unsafe { shared.end_making(0, true) }.ok(), Some(false));
        });
        assert_eq!(ended, Ended::Well);
        assert!(shared.read(0).unwrap().is_none(), "the child has published the parent's bytes");

        let cache = SharedCache::builder().most(64 << 20).build().unwrap();
        cache.insert(b"another", b"value").unwrap();
        let (mut read, mut write) = UnixStream::pair().unwrap();
        let child = fork_in_the_midst(true);
        if child == 0 {
            let _ = cache.get_or_insert_with(b"key", || {
                write.write_all(b"x").unwrap();
                std::thread::sleep(Duration::from_secs(60));
                b"never"
            });
            // SAFETY: ends the child.
            unsafe { libc::_exit(1) };
        }
        read.read_exact(&mut [0]).unwrap();
        kill(child);
        // It would wait for a maker that it takes for one of its own threads.
        assert_eq!(&cache.get_or_insert_with(b"key", || b"made").unwrap()[..], b"made");
    });
}

/// The kernel ends a program with SIGXFSZ that makes a file longer than its limit.
#[test]
fn below_the_limit_of_files_it_is_an_error() {
    promised(this_test!(), || {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: changes a limit of this process, a child of the test.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        assert_eq!(SharedVolatile::new(64 << 20).unwrap_err().errno(), libc::EFBIG);
        assert_eq!(SharedCache::new().unwrap_err().errno(), libc::EFBIG);
        let region = tenure::shared::ashmem::create(c"long", 64 << 20);
        assert_eq!(region.unwrap_err().errno(), libc::EFBIG);
        SharedVolatile::new(4096).unwrap();
        let error = tenure::Mapping::memfd("long", 64 << 20).unwrap_err();
        assert_eq!(error.errno(), libc::EFBIG);
        assert!(error.to_string().contains("ulimit -f"), "{error}");
        tenure::Mapping::memfd("short", 4096).unwrap();
    });
}
