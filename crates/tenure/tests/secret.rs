//! A secret is in no swap, core dump or child, and not in memory that was given back. Each test
//! looks for other bytes, too, which are there: it would find the secret.

mod lock_kit;

use lock_kit::{drop_ipc_lock, set_limit};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tenure::lock::{mlockall, munlockall2, receipt, Scope, Secret};
use tenure::{ErrorKind, Mapping};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{in_child, or_skip, run_child, skip, this_test, Competitor, MemoryCgroup};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// What each page of a kind of memory begins with. It is made from the number when it is needed, so
/// that no copy of it lies in memory.
const PLAIN: u64 = 3;
const SECRET: u64 = 5;

fn word(kind: u64, at: u64) -> u64 {
    (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(kind as u32 * 7) ^ kind
}

fn write(bytes: &mut [u8], kind: u64) {
    for page in bytes.chunks_mut(PAGE) {
        for (at, eight) in page[..64].chunks_mut(8).enumerate() {
            eight.copy_from_slice(&word(kind, at as u64).to_le_bytes());
        }
    }
}

fn is_of(kind: u64, bytes: &[u8]) -> bool {
    let mut words = bytes[..64].chunks(8).enumerate();
    words.all(|(at, eight)| eight == word(kind, at as u64).to_le_bytes())
}

/// Returns how many places of the file begin as a page of that kind does.
fn found(file: &Path, kind: u64, step: usize) -> usize {
    let file = fs::File::open(file).unwrap();
    let mut buffer = vec![0; MIB + 64];
    let mut count = 0;
    for start in (0..).step_by(MIB) {
        let len = file.read_at(&mut buffer, start).unwrap();
        if len < 64 {
            return count;
        }
        let starts = (0..(len - 63).min(MIB)).step_by(step);
        count += starts.filter(|at| is_of(kind, &buffer[*at..])).count();
    }
    count
}

#[test]
fn it_is_not_on_swap() {
    in_child(this_test!(), &[], || {
        let swap = or_skip!(ZramSwap::create(256 << 20));
        let group = or_skip!(MemoryCgroup::create("secret", 64 << 20));
        let mut competitor = or_skip!(Competitor::spawn(Some(&group)));
        group.allow_swap().unwrap();
        group.enter_self().unwrap();
        let mut plain = Mapping::anonymous(16 * MIB).unwrap();
        let mut secret = or_skip!(Secret::new(4 * MIB));
        write(plain.as_mut_slice(), PLAIN);
        write(&mut secret, SECRET);
        competitor.need(56 << 20).unwrap();
        let on_swap = found(swap.device(), PLAIN, PAGE);
        println!("{on_swap} plain pages are on swap");
        assert!(on_swap > 0, "the group's limit had no effect");
        assert_eq!(found(swap.device(), SECRET, PAGE), 0);
        assert!(secret.chunks(PAGE).all(|page| is_of(SECRET, page)));
    });
}

#[test]
fn it_is_not_in_a_core_dump() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim().is_empty() || pattern.contains(['|', '/']) {
        skip!("the kernel writes no core dump into the process's directory: {pattern:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let name = [("TENURE_TEST_DUMPS", dir.path().to_str().unwrap())];
    let ended = run_child(this_test!(), &name, || {
        let unlimited =
            libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the kernel reads the local.
        if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &unlimited) } != 0 {
            skip!("the limit of core dumps is too low");
        }
        std::env::set_current_dir(std::env::var("TENURE_TEST_DUMPS").unwrap()).unwrap();
        let mut plain = Mapping::anonymous(PAGE).unwrap();
        let mut secret = or_skip!(Secret::new(PAGE));
        write(plain.as_mut_slice(), PLAIN);
        write(&mut secret, SECRET);
        std::process::abort();
    });
    if ended.finished() {
        skip!("the limit of core dumps is too low");
    }
    let dump = fs::read_dir(dir.path()).unwrap().next().map(|file| file.unwrap().path());
    let Some(dump) = dump else { panic!("no core dump: {}, {}", ended.status, ended.output) };
    assert_eq!(found(&dump, PLAIN, 8), 1);
    assert_eq!(found(&dump, SECRET, 8), 0);
}

#[test]
fn a_child_has_zeros() {
    in_child(this_test!(), &[], || {
        let mut secret = or_skip!(Secret::new(PAGE + 1));
        let mut plain = Mapping::anonymous(PAGE).unwrap();
        write(plain.as_mut_slice(), PLAIN);
        write(&mut secret[..PAGE], SECRET);
        secret[PAGE] = 7;
        let locked = receipt(secret.as_ptr(), secret.len()).unwrap();
        let pages = 2 * PAGE as u64;
        assert_eq!((locked.on_fault_bytes(), locked.resident_bytes()), (pages, pages));
        // SAFETY: the child looks at its memory, and ends at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let is_wiped = secret.iter().all(|byte| *byte == 0);
            let well = is_wiped && is_of(PLAIN, plain.as_slice());
            drop(secret);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!well)) };
        }
        let mut status = 0;
        // SAFETY: waits for this test's own child, and writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child has seen the secret, or not its other memory");
        assert!(is_of(SECRET, &secret) && secret[PAGE] == 7);
    });
}

/// The kernel refuses to unmap it here, so the memory stays to look at.
#[test]
fn its_memory_is_zeros_at_the_end() {
    in_child(this_test!(), &[], || {
        let secret = {
            let mut secret = or_skip!(Secret::new(2 * PAGE));
            write(&mut secret, SECRET);
            secret
        };
        let (at, len) = (secret.as_ptr(), secret.len());
        let calls = [libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_mmap];
        let refuse = |filter: Filter, call| filter.refuse(Call::Number(call), Errno::PERM);
        or_skip!(calls.into_iter().fold(Filter::new(), refuse).install_this_thread());
        drop(secret);
        // SAFETY: the pages are still mapped, or this test ends with SIGSEGV.
        let left = unsafe { std::slice::from_raw_parts(at, len) };
        assert!(left.iter().all(|byte| *byte == 0));
    });
}

/// Only raw calls of the kernel's unlock it.
#[test]
fn the_end_of_a_lock_of_everything_leaves_it_locked() {
    in_child(this_test!(), &[], || {
        let secret = or_skip!(Secret::new(PAGE));
        let all = Scope { current: true, future: false, on_fault: true };
        or_skip!(mlockall(all));
        munlockall2(all).unwrap();
        let plain = Mapping::anonymous(PAGE).unwrap();
        let locked = |at: *const u8| receipt(at, PAGE).unwrap().on_fault_bytes();
        assert_eq!((locked(secret.as_ptr()), locked(plain.as_ptr())), (PAGE as u64, 0));
    });
}

/// Neither its owner nor a child, where all of it is wiped, needs memory to free it.
#[test]
fn a_large_one_that_was_hardly_used_takes_no_memory_at_its_end() {
    in_child(this_test!(), &[], || {
        let mut secret = or_skip!(Secret::new(256 * MIB));
        write(&mut secret[..PAGE], SECRET);
        assert_eq!(secret[17 * MIB], 0);
        // SAFETY: the child frees its copy and ends at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        drop(secret);
        let mut used = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes the local.
        let peak = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, used.as_mut_ptr());
            used.assume_init().ru_maxrss as usize * 1024
        };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(peak > 128 * MIB)) };
        }
        let mut status = 0;
        // SAFETY: waits for this test's own child, and writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child took memory");
        assert!(peak < 128 * MIB, "{peak} bytes were resident");
    });
}

#[test]
fn what_cannot_be_protected_is_no_secret() {
    assert_eq!(Secret::new(0).unwrap_err().errno(), libc::EINVAL);
    in_child(this_test!(), &[], || {
        let refuse = Filter::new().refuse(Call::Number(libc::SYS_madvise), Errno::PERM);
        or_skip!(refuse.install_this_thread());
        let refused = Secret::new(PAGE).unwrap_err();
        assert_eq!(refused.errno(), libc::EPERM);
        assert!(refused.to_string().contains("MADV_DONTDUMP"), "{refused}");
    });
}

fn no_file_can_be_opened() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads the local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
}

/// A daemon locks all of its memory, and then leaves the files behind.
#[test]
fn it_is_made_where_all_memory_is_locked_and_no_file_can_be_opened() {
    in_child(this_test!(), &[], || {
        or_skip!(mlockall(Scope { current: false, future: true, on_fault: true }));
        no_file_can_be_opened();
        let mut secret = Secret::new(2 * PAGE).unwrap();
        write(&mut secret, SECRET);
        assert!(secret.chunks(PAGE).all(|page| is_of(SECRET, page)));
        drop(secret);
    });
}

/// The kernel has one error for the limit and for want of memory, and only /proc tells what is locked.
#[test]
fn over_the_limit_the_error_names_no_cause_that_is_not_known() {
    in_child(this_test!(), &[], || {
        or_skip!(drop_ipc_lock());
        set_limit(4 * PAGE as u64, 4 * PAGE as u64);
        let error = Secret::new(16 * PAGE).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::ENOMEM), "{error}");
        no_file_can_be_opened();
        let error = Secret::new(16 * PAGE).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::OutOfMemory, libc::ENOMEM));
        assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
        drop(Secret::new(2 * PAGE).unwrap());
    });
}

#[test]
fn a_guard_whose_memory_was_unmapped_does_not_unlock_a_secret_in_its_place() {
    in_child(this_test!(), &[], || {
        let place = Mapping::anonymous(PAGE).unwrap();
        let at = place.as_ptr();
        let stale = or_skip!(tenure::lock::lock(at, PAGE, tenure::lock::When::OnFault));
        std::mem::forget(place);
        // SAFETY: the test's own page, which nothing uses any more.
        assert_eq!(unsafe { libc::munmap(at.cast_mut().cast(), PAGE) }, 0);
        let others: Vec<_> = (0..64).map_while(|_| Secret::new(PAGE).ok()).collect();
        drop(stale);
        let there = others.iter().find(|secret| secret.as_ptr() == at);
        // SAFETY: the call looks at the mapping only.
        let is_locked =
            |at| unsafe { libc::msync(at, PAGE, libc::MS_ASYNC | libc::MS_INVALIDATE) } != 0;
        let Some(secret) = there else { skip!("the kernel gave no secret this place") };
        assert!(is_locked(secret.as_ptr().cast_mut().cast()));
    });
}
