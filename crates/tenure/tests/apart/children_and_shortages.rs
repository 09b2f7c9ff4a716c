//! Effects that children, guards, shortages and many ranges must not have on unmarks and pins.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Refill};
use tenure::{Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{in_child, or_skip, skip, sweep, this_test};

fn purged(len: usize, refill: Option<Refill>) -> Volatile {
    let builder = Volatile::builder(len).pages(PageSize::System);
    let builder = match refill {
        Some(r) => builder.refill(r),
        None => builder,
    };
    let mut buffer = builder.build().unwrap();
    buffer.pin_mut().unwrap().fill(7);
    assert!(waited(|| buffer.purge_now().unwrap() == len.next_multiple_of(PAGE)));
    buffer
}

#[test]
fn a_child_of_a_raw_clone_is_told_of_a_purge_by_its_first_pin() {
    promised(this_test!(), || {
        let buffer = purged(4 * PAGE, None);
        let ended = raw_forked(|| {
            let pin = buffer.pin().unwrap();
            assert_eq!(pin.outcome(), Outcome::Purged);
        });
        assert_eq!(ended, Ended::Well);
        assert_eq!(buffer.pin().unwrap().outcome(), Outcome::Purged);
    });
}

#[test]
fn a_child_of_a_raw_clone_is_told_of_a_purge_by_its_first_unmark() {
    promised(this_test!(), || {
        let mut map = filled(4);
        let (at, len) = (map.as_mut_ptr(), map.len());
        // SAFETY: `map` owns the range and outlives the calls. While the range is marked, nothing
        // writes, locks, unmaps or protects it, neither here nor in the child, which has a copy.
        unsafe {
            volatile::mark(at, len).unwrap();
            assert!(purge(at, len));
            let ended =
                raw_forked(|| assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Purged));
            assert_eq!(ended, Ended::Well);
            assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Purged);
        }
    });
}

#[test]
fn a_refill_function_may_fork() {
    promised(this_test!(), || {
        let buffer = purged(
            4 * PAGE,
            Some(Refill::pages(|_, bytes| {
                bytes.fill(7);
                // SAFETY: tenure holds no lock while it calls a refill function, and the turn of
                // this thread to refill goes on in the child. The C library keeps its allocator
                // usable there. The child returns through its own copy of this thread's frames, and
                // ends with `_exit` below.
                let pid = unsafe { libc::fork() };
                CHILD.store(pid as u32, Ordering::SeqCst);
                Ok(())
            })),
        );
        let pin = buffer.pin().unwrap();
        let good = pin.iter().all(|b| *b == 7);
        drop(pin);
        if CHILD.load(Ordering::SeqCst) == 0 {
            // SAFETY: `_exit` ends the child at once. It runs no destructors and no exit handlers,
            // so it waits for no thread of the parent's.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        assert!(good);
        assert_eq!(end_of(CHILD.load(Ordering::SeqCst) as i32), Ended::Well);
    });
}
static CHILD: AtomicU32 = AtomicU32::new(0);

#[test]
fn a_child_can_refill_what_its_parent_could_not() {
    promised(this_test!(), || {
        static FAIL: AtomicBool = AtomicBool::new(true);
        let buffer = purged(
            4 * PAGE,
            Some(Refill::pages(|_, bytes| {
                bytes.fill(7);
                if FAIL.load(Ordering::SeqCst) {
                    Err("not yet".into())
                } else {
                    Ok(())
                }
            })),
        );
        assert!(buffer.pin().is_err());
        FAIL.store(false, Ordering::SeqCst);
        let ended = forked(|| assert!(buffer.pin().unwrap().iter().all(|b| *b == 7)));
        assert_eq!(ended, Ended::Well);
        assert!(buffer.pin().unwrap().iter().all(|b| *b == 7));
    });
}

#[test]
fn an_unmark_short_of_mappings_does_not_hang_with_a_fork() {
    promised(this_test!(), || {
        tenure::retire::prepare().unwrap();
        let mut map = filled(64);
        let (at, len) = (map.as_mut_ptr() as usize, map.len());
        let done = AtomicBool::new(false);
        // SAFETY: `map` owns the range and is dropped after the threads below have ended. Only the
        // calls of `volatile` use the range: nothing reads, writes, locks or protects it.
        unsafe { volatile::mark(at as *mut u8, len).unwrap() };
        let (tries, forks) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Filter::new()
                    .refuse(Call::Ioctl((2 << 30) | (16 << 16) | (0xAA << 8) | 1), Errno::NOMEM)
                    .install_this_thread()
                    .unwrap();
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: `map` owns the range, and the scope ends this thread before `map` is
                    // dropped. Only these calls use the range; the forked children use none of it.
                    unsafe {
                        volatile::mark(at as *mut u8, len).unwrap();
                        let _ = volatile::offer_now(at as *mut u8, len);
                        let _ = volatile::unmark(at as *mut u8, len);
                    }
                    tries.fetch_add(1, Ordering::Relaxed);
                }
            });
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(sweep(1, 3)) {
                assert_eq!(forked(|| ()), Ended::Well);
                forks.fetch_add(1, Ordering::Relaxed);
            }
            done.store(true, Ordering::Relaxed);
        });
        println!("{tries:?} tries {forks:?} forks");
    });
}

#[test]
fn a_guard_in_a_marked_range_does_not_hang_its_unmark() {
    promised(this_test!(), || {
        let mut map = filled(8);
        let (at, len) = (map.as_mut_ptr(), map.len());
        // SAFETY: `map` owns the range and outlives the calls. 102 is MADV_GUARD_INSTALL: it makes
        // a page of the marked range inaccessible, which breaks the promise of `mark` on purpose.
        // That cannot reach other memory, and no code reads or writes the range afterwards.
        unsafe {
            volatile::mark(at, len).unwrap();
            volatile::offer_now(at, len).unwrap();
            println!("guard: {}", libc::madvise(at.add(2 * PAGE).cast(), PAGE, 102));
            println!("unmark: {:?}", volatile::unmark(at, len));
        }
    });
}

#[test]
fn forgetting_many_ranges_takes_time_in_proportion() {
    promised(this_test!(), || {
        // Each offer splits a mapping, and before 6.11 each mark reads the list of all mappings.
        never_offer();
        let time = |n: usize| {
            let at = plain(n * 2 * PAGE) as *mut u8;
            // SAFETY: memory of this test's own.
            unsafe {
                for i in 0..n {
                    volatile::mark(at.add(2 * i * PAGE), PAGE).unwrap();
                }
                let start = processor_seconds();
                volatile::forget(at, 2 * n * PAGE).unwrap();
                processor_seconds() - start
            }
        };
        let (few, many) = (time(5_000), time(40_000));
        println!("{few:?} {many:?}");
        assert!(many < few * 8.0 * 4.0, "{few:?} for 5,000, {many:?} for 40,000");
    });
}

#[test]
#[allow(clippy::single_range_in_vec_init)] // a list of ranges is tested
fn what_is_lost_again_is_listed_once() {
    promised(this_test!(), || {
        let mut buffer = purged(4 * PAGE, None);
        assert_eq!(buffer.pin().unwrap().lost().len(), 1);
        buffer.pin_mut().unwrap().fill(8);
        assert!(waited(|| buffer.purge_now().unwrap() == 4 * PAGE));
        assert_eq!(buffer.pin().unwrap().lost(), [0..4 * PAGE]);
    });
}

/// The kernel also keeps page tables for pages that were never touched, once they can be read.
#[test]
fn a_range_whose_holes_need_too_many_page_tables_is_not_offered() {
    fn amount(file: &str, name: &str) -> usize {
        let text = std::fs::read_to_string(file).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }
    needs_userfaultfd!();
    in_child(this_test!(), &[], || {
        // Page tables take a 512th: a twelfth of all memory, where a sixteenth is allowed.
        let total = amount("/proc/meminfo", "MemTotal:");
        let len = (total / 12 * 512).next_multiple_of(1 << 30);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of this test's own, where the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            skip!("{} GiB of addresses are not to be had", len >> 30);
        }
        let at = at.cast::<u8>();
        // SAFETY: the mapping above, in which nothing else is.
        unsafe {
            at.add(5 * MIB).write(7);
            volatile::mark(at, len).unwrap();
            let before = amount("/proc/self/status", "VmPTE:");
            let error = volatile::offer_now(at, len).unwrap_err();
            assert_eq!(error.kind(), tenure::ErrorKind::OutOfMemory, "{error}");
            std::thread::sleep(Duration::from_secs(2));
            let after = amount("/proc/self/status", "VmPTE:");
            assert!(after < before + MIB, "{before} {after}");
            assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Intact);
            assert_eq!(at.add(5 * MIB).read(), 7);
        }
    });
}

/// How memory was used before.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Used {
    Never,
    /// Its pages were read, and are the kernel's page of zeros.
    Read,
    /// Its first page was written.
    WrittenOnce,
}

/// Memory of several mappings, apart from all other memory, with which the kernel would join it.
fn hardly_used_mappings(used: Used) -> (*mut u8, usize) {
    let (len, kind) = (64 * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, and then the middle of it; advice that leaves all contents as they
    // are.
    unsafe {
        let around = libc::mmap(std::ptr::null_mut(), 3 * len, libc::PROT_NONE, kind, -1, 0);
        assert_ne!(around, libc::MAP_FAILED);
        let at = around.cast::<u8>().add(len);
        assert_eq!(libc::mprotect(at.cast(), len, both), 0);
        assert_eq!(libc::madvise(at.cast(), len / 2, libc::MADV_DONTDUMP), 0);
        match used {
            Used::Never => {}
            Used::Read => {
                (0..len).step_by(PAGE).for_each(|page| assert_eq!(at.add(page).read_volatile(), 0));
            }
            Used::WrittenOnce => at.write(7),
        }
        (at, len)
    }
}

/// In a fork the kernel does not copy the page tables of mappings that were never written.
#[test]
fn what_was_never_touched_is_intact_in_a_child() {
    promised(this_test!(), never_touched_is_intact_in_a_child);
}

/// Before 6.7 the page of zeros looks like a page that was written.
#[test]
fn what_was_never_touched_is_intact_in_a_child_without_pagemap_scan() {
    promised(this_test!(), || {
        let filter = Filter::new().refuse(Call::PagemapScan, Errno::NOTTY);
        or_skip!(filter.install_this_thread());
        never_touched_is_intact_in_a_child();
    });
}

/// As a browser's sandbox refuses calls: the page's bytes, which distinguish it, are read another way.
#[test]
fn what_was_never_touched_is_intact_in_a_child_without_process_vm_readv() {
    promised(this_test!(), || {
        let filter = Filter::new().refuse(Call::PagemapScan, Errno::NOTTY);
        let filter = filter.refuse(Call::Number(libc::SYS_process_vm_readv), Errno::PERM);
        or_skip!(filter.install_this_thread());
        never_touched_is_intact_in_a_child();
    });
}

fn never_touched_is_intact_in_a_child() {
    {
        for used in [Used::Never, Used::Read, Used::WrittenOnce] {
            let (at, len) = hardly_used_mappings(used);
            // SAFETY: this test's own memory, here and in the children, which have copies.
            unsafe {
                volatile::mark(at, len).unwrap();
                volatile::offer_now(at, len).unwrap();
                let read = || {
                    for page in 0..len / PAGE {
                        let expected = u8::from(used == Used::WrittenOnce && page == 0) * 7;
                        assert_eq!(at.add(page * PAGE).read_volatile(), expected, "page {page}");
                    }
                };
                assert_eq!(forked(read), Ended::Well);
                assert_eq!(raw_forked(read), Ended::Well);
                let unmark = || {
                    assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Intact);
                    read();
                };
                assert_eq!(forked(unmark), Ended::Well);
                assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Intact);
                volatile::forget(at, len).unwrap();
            }
        }
        let sevens = Refill::pages(|_, bytes| {
            bytes.fill(7);
            Ok(())
        });
        for refill in [None, Some(sevens)] {
            let builder = Volatile::builder(64 * PAGE).pages(PageSize::System);
            let builder = match refill {
                Some(refill) => builder.refill(refill),
                None => builder,
            };
            let buffer = builder.build().unwrap();
            buffer.offer_now().unwrap();
            let look = || {
                let pin = buffer.pin().unwrap();
                assert_eq!(pin.outcome(), Outcome::Intact);
                assert!(pin.iter().all(|byte| *byte == 0));
            };
            assert_eq!(forked(look), Ended::Well);
            look();
        }
    }
}

/// The list of losses of a scattered range takes memory, and there is none.
#[test]
fn an_unmark_without_memory_for_its_list_fails_and_loses_nothing() {
    promised(this_test!(), || {
        let pages = 32 << 10;
        let mut map = filled(pages);
        let (at, len) = (map.as_mut_ptr(), map.len());
        // SAFETY: this test's own memory, which is marked meanwhile.
        unsafe {
            volatile::mark(at, len).unwrap();
            volatile::offer_now(at, len).unwrap();
        }
        for page in (0..pages).step_by(2) {
            reclaim(at as usize + page * PAGE, PAGE);
        }
        let mapped = std::fs::read_to_string("/proc/self/statm").unwrap();
        let mapped: u64 = mapped.split(' ').next().unwrap().parse().unwrap();
        let limit = |bytes| libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a limit of this process's own.
        let set = |limit| assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        set(limit(mapped * PAGE as u64));
        // SAFETY: this test's own mapping, which stays.
        let error = unsafe { volatile::unmark(at, len) }.unwrap_err();
        set(limit(libc::RLIM_INFINITY));
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
        let mut lost = Vec::new();
        // SAFETY: this test's own mapping, which stays.
        let _ = unsafe { volatile::unmark_with_map(at, len, |part| lost.push(part)) }.unwrap();
        let bytes: usize = lost.iter().map(|part| part.len()).sum();
        assert!(bytes >= len / 2 - 32 * PAGE, "{bytes} bytes were lost");
        let mut parts = lost.iter().peekable();
        for (page, bytes) in map.as_slice().chunks(PAGE).enumerate() {
            while parts.peek().is_some_and(|part| part.end <= page * PAGE) {
                parts.next();
            }
            let is_lost = parts.peek().is_some_and(|part| part.start <= page * PAGE);
            let expected = if is_lost { 0 } else { byte(page) };
            assert!(bytes.iter().all(|byte| *byte == expected), "page {page}");
        }
    });
}
