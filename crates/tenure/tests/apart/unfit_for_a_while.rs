//! Memory that the kernel may not take for a while, because the program has locked it or has it watched,
//! and signals that the program has blocked.

use crate::promise_kit::*;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tenure::volatile::{self, Detection, Refill, Settings};
use tenure::{Cache, ErrorKind, Outcome, Volatile};
use tenure_testkit::pages::smaps_over;
use tenure_testkit::seccomp::{Call, Errno, Filter, NthFailure, When};
use tenure_testkit::{or_skip, skip, this_test};

const LEN: usize = 24 * MIB;

fn offer_soon() {
    volatile::configure(Settings::default().with_offer_after(Duration::from_millis(20)));
}

/// A page that was made last waits in a list of its processor, where the kernel skips it.
fn nearly_all_may_go(at: usize) -> bool {
    let lazy_free: u64 = smaps_over(at, LEN).iter().map(|mapping| mapping.lazy_free).sum();
    lazy_free as usize >= LEN - 2 * MIB
}

#[test]
fn what_was_locked_at_its_turn_is_offered_when_the_lock_ends() {
    promised(this_test!(), || {
        offer_soon();
        let mut buffer = Volatile::new(LEN).unwrap();
        let at = buffer.as_ptr() as usize;
        let page = (at + 9 * MIB) as *const libc::c_void;
        let mut pinned = buffer.pin_mut().unwrap();
        pinned.fill(7);
        // SAFETY: a lock changes no contents.
        assert_eq!(unsafe { libc::mlock(page, PAGE) }, 0);
        drop(pinned);
        assert!(waited(|| tenure::stats().total.refused_offers > 0));
        assert_eq!(tenure::stats().offered_bytes, 0, "the kernel may take none of it");
        let refused = buffer.offer_now().unwrap_err();
        assert_eq!((refused.kind(), refused.errno()), (ErrorKind::Locked, libc::EINVAL));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munlock(page, PAGE) }, 0);
        assert!(waited(|| nearly_all_may_go(at)), "{:?}", tenure::stats());
        assert_eq!(tenure::stats().offered_bytes, LEN as u64);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mlock(page, PAGE) }, 0);
        assert_eq!(buffer.purge_now().unwrap_err().kind(), ErrorKind::Locked);
        assert_eq!(buffer.offer_now().unwrap_err().kind(), ErrorKind::Locked);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munlock(page, PAGE) }, 0);
        let pinned = buffer.pin().unwrap();
        assert!(pinned.outcome() == Outcome::Purged || pinned.iter().all(|byte| *byte == 7));
    });
}

/// As if the program locked the memory, and unlocked it, while it is offered.
#[test]
fn an_offer_that_the_kernel_refuses_half_way_is_ended_later() {
    promised(this_test!(), || {
        // Before the worker starts, whose calls these are.
        let frees = [Call::Madvise(libc::MADV_FREE)];
        let failing = or_skip!(NthFailure::install(&frees, Errno::INVAL, When::Never));
        needs_userfaultfd!();
        never_offer();
        for refused in 1..=3 {
            let mut buffer = Volatile::new(LEN).unwrap();
            buffer.pin_mut().unwrap().fill(7);
            failing.rearm(When::Nth(refused));
            let _ = buffer.offer_now();
            assert_eq!(failing.failures(), 1);
            failing.rearm(When::Never);
            buffer.offer_now().unwrap();
            let at = buffer.as_ptr() as usize;
            assert!(nearly_all_may_go(at), "call {refused}: {:?}", smaps_over(at, LEN));
            let pinned = buffer.pin().unwrap();
            assert!(pinned.outcome() == Outcome::Purged || pinned.iter().all(|byte| *byte == 7));
        }
    });
}

/// The kernel locks and populates all new memory then, also the pages on which tenure tries its calls.
#[test]
fn a_first_use_while_all_is_locked_decides_nothing_for_later() {
    promised(this_test!(), || {
        // A child decides for itself.
        let usual = forked(|| assert_eq!(volatile::detection(), Detection::Userfaultfd));
        if usual != Ended::Well {
            skip!("userfaultfd does not work here");
        }
        // SAFETY: a lock changes no contents.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            skip!("mlockall: {}", std::io::Error::last_os_error());
        }
        let mut made = Volatile::new(PAGE).unwrap();
        made.pin_mut().unwrap().fill(7);
        assert_eq!(made.offer_now().unwrap_err().kind(), ErrorKind::Locked);
        let detection = volatile::detection();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munlockall() }, 0);
        assert_eq!(detection, Detection::Userfaultfd);
        let refill = Refill::pages(|_, bytes| {
            bytes.fill(5);
            Ok(())
        });
        let mut buffer = Volatile::builder(16 * PAGE).refill(refill).build().unwrap();
        buffer.pin_mut().unwrap().fill(5);
        let _ = buffer.purge_now().unwrap();
        // SAFETY: inside the buffer. A touch waits for the refill function.
        assert_eq!(unsafe { buffer.as_ptr().read_volatile() }, 5);
    });
}

/// The program's own userfaultfd, in the mode for writes.
struct Watch(i32);

impl Watch {
    fn new() -> Result<Watch, String> {
        const USER_MODE_ONLY: i32 = 1;
        const API: libc::c_ulong = 0xC018_AA3F;
        let mut api = [0xAA_u64, 0, 0];
        // SAFETY: the kernel reads and writes the local.
        let (fd, is_ready) = unsafe {
            let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
            let fd = libc::syscall(libc::SYS_userfaultfd, flags) as i32;
            (fd, fd >= 0 && libc::ioctl(fd, API, api.as_mut_ptr()) == 0)
        };
        let watch = || Watch(fd);
        is_ready.then(watch).ok_or_else(|| "the program may have no userfaultfd".to_owned())
    }

    fn register(&self, at: usize, len: usize) -> bool {
        const REGISTER: libc::c_ulong = 0xC020_AA00;
        const FOR_WRITES: u64 = 2;
        let mut register = [at as u64, len as u64, FOR_WRITES, 0];
        // SAFETY: the kernel reads and writes the local. Nothing is protected against writes.
        unsafe { libc::ioctl(self.0, REGISTER, register.as_mut_ptr()) == 0 }
    }
}

#[test]
fn what_the_program_has_watched_can_be_unmarked() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let watch = or_skip!(Watch::new());
        for registers_first in [false, true] {
            never_offer();
            let mut map = filled(64);
            let (p, len) = (map.as_mut_ptr(), map.len());
            let register = || {
                if !watch.register(p as usize + 16 * PAGE, 16 * PAGE) {
                    skip!("no userfaultfd for writes: {}", std::io::Error::last_os_error());
                }
            };
            if registers_first {
                register();
            }
            let before = tenure::stats().total.refused_offers;
            // SAFETY: the mapping lives on, and is not touched while it is marked.
            unsafe {
                volatile::mark(p, len).unwrap();
                if !registers_first {
                    register();
                }
                offer_soon();
                assert!(waited(|| tenure::stats().total.refused_offers > before));
                let refused = volatile::offer_now(p, len).unwrap_err();
                assert!(refused.to_string().contains("another userfaultfd"), "{refused}");
                assert_eq!(volatile::unmark(p, len), Ok(Outcome::Intact));
            }
            assert!(map.as_slice().iter().enumerate().all(|(i, b)| *b == byte(i / PAGE)));
        }
    });
}

/// Maps a file over a part of an offered range, which the kernel does not watch there. `act` runs a
/// closure in the process that does so.
fn is_unmarked_around_a_file(act: impl FnOnce(&dyn Fn())) {
    let mut map = filled(64);
    let (p, len) = (map.as_mut_ptr(), map.len());
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: the mapping lives on, and is not touched while it is marked.
    unsafe {
        volatile::mark(p, len).unwrap();
        volatile::offer_now(p, len).unwrap();
    }
    act(&|| {
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: as above. The part gets the file's bytes, which nothing reads.
        unsafe {
            let part = p.add(16 * PAGE).cast();
            let there = libc::mmap(part, 16 * PAGE, rights, flags, file.as_raw_fd(), 0);
            assert_eq!(there, part);
            assert!(volatile::unmark(p, len).is_ok());
            p.write_volatile(1);
            p.add(63 * PAGE).write_volatile(1);
        }
    });
}

#[test]
fn a_child_unmarks_what_it_has_mapped_a_file_over() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        never_offer();
        is_unmarked_around_a_file(|act| assert_eq!(forked(act), Ended::Well));
        is_unmarked_around_a_file(|act| act());
    });
}

/// Then all threads have one table of descriptors.
#[test]
fn without_close_range_memory_that_a_file_was_mapped_over_is_unmarked() {
    promised(this_test!(), || {
        let filter = Filter::new().refuse(Call::Number(libc::SYS_close_range), Errno::PERM);
        or_skip!(filter.install_this_thread());
        needs_userfaultfd!();
        never_offer();
        is_unmarked_around_a_file(|act| act());
    });
}

#[test]
fn memory_that_cannot_be_watched_can_be_unmarked() {
    needs_userfaultfd!();
    const MAP_DROPPABLE: i32 = 8;
    promised(this_test!(), || {
        offer_soon();
        let len = 16 * PAGE;
        let flags = MAP_DROPPABLE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which is not touched while it is marked.
        unsafe {
            let p = libc::mmap(std::ptr::null_mut(), len, 3, flags, -1, 0);
            if p == libc::MAP_FAILED {
                skip!("no MAP_DROPPABLE before Linux 6.11");
            }
            volatile::mark(p.cast(), len).unwrap();
            let refused = volatile::offer_now(p.cast(), len).unwrap_err();
            assert!(refused.to_string().contains("MAP_DROPPABLE"), "{refused}");
            assert_eq!(volatile::unmark(p.cast(), len), Ok(Outcome::Intact));
        }
    });
}

/// One that waits would kill the program if tenure let it in.
#[test]
fn signals_that_the_program_has_blocked_wait() {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTERM, SIGTRAP};
    promised(this_test!(), || {
        for signal in [SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTERM, SIGTRAP] {
            let mut set = std::mem::MaybeUninit::uninit();
            // SAFETY: calls for local sets, and a signal that is blocked before it is sent.
            let set = unsafe {
                libc::sigemptyset(set.as_mut_ptr());
                libc::sigaddset(set.as_mut_ptr(), signal);
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
                libc::raise(signal);
                set.assume_init()
            };
            let mut buffer = Volatile::new(MIB).unwrap();
            buffer.pin_mut().unwrap().fill(7);
            let _ = buffer.purge_now().unwrap();
            let _ = buffer.pin().unwrap().outcome();
            let cache = Cache::<u64>::new().unwrap();
            cache.insert(1, &[7; 1000]).unwrap();
            assert!(cache.get(&1).is_some());
            let shared = tenure::shared::SharedVolatile::new(MIB).unwrap();
            drop(shared.pin(0).unwrap());
            drop(tenure::pool::Buffer::zeroed(8 * MIB).unwrap());
            let _ = tenure::retire::retire(tenure::Mapping::anonymous(64 * MIB).unwrap());
            assert_eq!(forked(|| drop(buffer.pin().unwrap())), Ended::Well);
            // SAFETY: waits for the signal that was sent above.
            let came = unsafe {
                libc::sigtimedwait(
                    &set,
                    std::ptr::null_mut(),
                    &libc::timespec { tv_sec: 0, tv_nsec: 0 },
                )
            };
            assert_eq!(came, signal, "{}", std::io::Error::last_os_error());
        }
    });
}
