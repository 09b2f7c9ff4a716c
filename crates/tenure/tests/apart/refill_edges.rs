//! Refill functions in special cases: beside pins, of large buffers, with large frames.

use crate::promise_kit::*;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::Mutex;
use std::time::Duration;
use tenure::volatile::{self, Purged, Refill};
use tenure::{PageSize, Volatile};
use tenure_testkit::{or_skip, run_child, this_test};

fn sevens(_: usize, bytes: &mut [u8]) -> Result<(), tenure::volatile::RefillError> {
    bytes.fill(7);
    Ok(())
}

/// A purged buffer of sevens.
fn purged(len: usize, refill: Refill) -> Volatile {
    let builder = Volatile::builder(len).pages(PageSize::System).refill(refill);
    let mut buffer = builder.build().unwrap();
    buffer.pin_mut().unwrap().fill(7);
    assert!(waited(|| buffer.purge_now().unwrap() == len.next_multiple_of(PAGE)));
    buffer
}

/// A touch requests a page and a pin makes it meanwhile. A later failure of the touch's own refill
/// has no effect.
#[test]
fn a_page_that_a_pin_has_made_raises_no_signal() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        // As in a program not written in Rust: its runtime's handler would tolerate one signal.
        // SAFETY: nothing here depends on the removed handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        let (begin, begun) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let (begin, wait, calls) = (Mutex::new(begin), Mutex::new(wait), AtomicU32::new(0));
        let refill = Refill::pages(move |_, bytes| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                begin.lock().unwrap().send(()).unwrap();
                // A slow server that fails in the end.
                let _ = wait.lock().unwrap().recv();
                return Err("timed out".into());
            }
            bytes.fill(7);
            Ok(())
        });
        let buffer = &purged(PAGE, refill);
        std::thread::scope(|scope| {
            let toucher = scope.spawn(|| {
                // SAFETY: mapped; a purged page is refilled.
                let byte = unsafe { buffer.as_ptr().read_volatile() };
                // Long enough for a signal to arrive.
                std::thread::sleep(Duration::from_millis(500));
                byte
            });
            begun.recv().unwrap();
            let pins = tenure::stats().pins;
            let pinned = scope.spawn(|| buffer.pin().unwrap()[0]);
            let is_pinning = waited(|| tenure::stats().pins > pins);
            // The pin may or may not wait for the refill that is under way.
            std::thread::sleep(Duration::from_millis(100));
            let _ = go_on.send(());
            assert!(is_pinning);
            assert_eq!(pinned.join().unwrap(), 7);
            assert_eq!(toucher.join().unwrap(), 7);
        });
    });
}

/// A buffer is refilled in its own place, or by parts, not as a second whole copy.
#[test]
fn a_large_buffer_is_refilled_in_less_than_twice_its_memory() {
    let done = promised_within(this_test!(), 160 << 20, || {
        let buffer = purged(96 * MIB, Refill::pages(sevens));
        assert!(buffer.pin().unwrap().iter().step_by(PAGE).all(|b| *b == 7));
    });
    or_skip!(done);
}

/// If the address space has no room for a copy, a pin succeeds or returns an error.
#[test]
fn a_large_buffer_is_refilled_where_addresses_are_limited() {
    promised(this_test!(), || {
        let len = 256 * MIB;
        let buffer = purged(len, Refill::pages(sevens));
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
        let most = pages * PAGE as u64 + (len / 2) as u64;
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the kernel reads the limit, which outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        assert!(buffer.pin().unwrap().iter().step_by(PAGE).all(|b| *b == 7));
    });
}

#[test]
fn a_refill_function_has_a_thread_s_usual_stack() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let refill = Refill::pages(|_, bytes| {
            let mut table = [0u8; 1 << 20];
            std::hint::black_box(&mut table);
            bytes.fill(7);
            Ok(())
        });
        let buffer = purged(16 * PAGE, refill);
        // SAFETY: mapped; a purged page is refilled.
        assert_eq!(unsafe { buffer.as_ptr().read_volatile() }, 7);
    });
}

/// Two functions pin each other's buffers, from two threads at once: one of them gets an error, and
/// no thread waits for ever.
#[test]
fn functions_that_pin_each_others_buffers_get_an_error_and_no_hang() {
    promised(this_test!(), || {
        use std::sync::OnceLock;
        static BUFFERS: [OnceLock<Volatile>; 2] = [OnceLock::new(), OnceLock::new()];
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        for (own, other) in [(0, 1), (1, 0)] {
            let refill = Refill::pages(move |_, bytes| {
                INSIDE.fetch_add(1, Ordering::SeqCst);
                // Both are inside, if both get that far.
                waited(|| INSIDE.load(Ordering::SeqCst) >= 2);
                let found = BUFFERS[other].get().unwrap().pin()?;
                bytes[0] = found[0];
                Ok(())
            });
            BUFFERS[own].set(purged(PAGE, refill)).unwrap();
        }
        std::thread::scope(|scope| {
            let pin = |own: usize| move || BUFFERS[own].get().unwrap().pin().map(drop);
            let results = [scope.spawn(pin(0)), scope.spawn(pin(1))].map(|thread| thread.join());
            let failed = results.iter().flatten().filter(|result| result.is_err()).count();
            assert!(failed >= 1, "{results:?}");
        });
    });
}

static FILLED: AtomicU32 = AtomicU32::new(0);

/// Reports a page that raises the signal again after the fill.
fn fill_once(purged: Purged) -> bool {
    purged.fill(&[9; PAGE]).is_ok() && FILLED.fetch_add(1, Ordering::SeqCst) < 2
}

/// A buffer of two purged pages whose refill fails; `pin_first`: a pin has found them purged.
fn without_source(pin_first: bool) -> Volatile {
    let buffer = purged(2 * PAGE, Refill::pages(|_, _| Err("no source".into())));
    if pin_first {
        assert_eq!(buffer.pin().unwrap_err().errno(), libc::EIO);
    }
    buffer
}

/// A page whose refill has failed is poisoned. A handler of touches makes it again.
#[test]
fn a_handler_fills_a_page_whose_refill_has_failed() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        volatile::on_purged_access(fill_once).unwrap();
        for pin_first in [false, true] {
            FILLED.store(0, Ordering::SeqCst);
            let buffer = without_source(pin_first);
            for page in 0..2 {
                // SAFETY: mapped; the refill fails, and the handler fills the page.
                assert_eq!(unsafe { buffer.as_ptr().add(page * PAGE).read_volatile() }, 9);
            }
            assert_eq!(FILLED.load(Ordering::SeqCst), 2);
            // Both count as intact from then on.
            let pinned = buffer.pin().unwrap();
            assert_eq!(pinned.outcome(), tenure::Outcome::Intact);
            assert!(pinned.iter().all(|byte| *byte == 9));
        }
    });
}

/// Forks, has the child fill the page, and fills it in this process.
fn fill_in_a_child_too(purged: Purged) -> bool {
    let ended = forked(|| {
        purged.fill(&[5; PAGE]).unwrap();
        // SAFETY: the page is mapped, and the handler has just made it.
        assert_eq!(unsafe { (purged.page as *const u8).read_volatile() }, 5);
    });
    FILLED.fetch_add(u32::from(ended == Ended::Well), Ordering::SeqCst);
    purged.fill(&[9; PAGE]).is_ok()
}

#[test]
fn a_handler_fills_a_page_in_a_child_whose_refill_has_failed_in_the_parent() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        volatile::on_purged_access(fill_in_a_child_too).unwrap();
        for pin_first in [false, true] {
            let buffer = without_source(pin_first);
            // SAFETY: mapped; the refill fails, and the handler fills the page.
            assert_eq!(unsafe { buffer.as_ptr().read_volatile() }, 9);
            assert_eq!(FILLED.load(Ordering::SeqCst), 1 + u32::from(pin_first));
        }
    });
}

/// A touch whose page cannot be made, because there is no memory at all, raises SIGBUS, which the
/// program can answer. tenure's threads do not end the process for it.
#[test]
fn without_memory_a_touch_raises_sigbus() {
    needs_userfaultfd!();
    let ended = run_child(this_test!(), &[], || {
        // SAFETY: from now on the signal ends the process.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        let buffer = purged(16 * PAGE, Refill::pages(sevens));
        threads_sleep(PATIENCE);
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: plain numbers. Nothing more can be mapped.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        for size in [1 << 20, 1 << 16, 1 << 12, 512, 64, 16] {
            // SAFETY: memory that the process keeps to its end.
            while !std::hint::black_box(unsafe { libc::malloc(size) }).is_null() {}
        }
        // SAFETY: inside the buffer; the touch raises a signal.
        let byte = unsafe { buffer.as_ptr().add(PAGE).read_volatile() };
        // SAFETY: ends the process.
        unsafe { libc::_exit(byte.into()) };
    });
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{}", ended.output);
}

/// More threads touch an object that a pin refills than the thread that hears of touches can put off,
/// and the refill touches another object: its touch has its turn.
#[test]
fn a_refill_that_touches_another_object_waits_for_no_crowd() {
    const CROWD: usize = 600;
    needs_userfaultfd!();
    promised(this_test!(), || {
        let other = purged(
            PAGE,
            Refill::pages(|_, bytes: &mut [u8]| {
                bytes.fill(9);
                Ok(())
            }),
        );
        let (begin, begun) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let (begin, wait) = (Mutex::new(Some(begin)), Mutex::new(wait));
        let refill = Refill::pages(move |at, bytes: &mut [u8]| {
            if let Some(begin) = begin.lock().unwrap().take() {
                begin.send(()).unwrap();
                wait.lock().unwrap().recv().unwrap();
                // SAFETY: inside the buffer; a purged page is refilled.
                assert_eq!(unsafe { other.as_ptr().read_volatile() }, 9);
            }
            sevens(at, bytes)
        });
        let crowded = &purged((CROWD + 1) * PAGE, refill);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(crowded.pin().unwrap()[0], 7));
            begun.recv().unwrap();
            for page in 1..=CROWD {
                let touch = move || {
                    // SAFETY: inside the buffer; a purged page is refilled.
                    let byte = unsafe { crowded.as_ptr().add(page * PAGE).read_volatile() };
                    assert_eq!(byte, 7);
                };
                let builder = std::thread::Builder::new().stack_size(128 << 10);
                builder.spawn_scoped(scope, touch).unwrap();
            }
            // Most of them touch meanwhile. Fewer only make the test easier.
            std::thread::sleep(Duration::from_millis(500));
            go_on.send(()).unwrap();
        });
    });
}
