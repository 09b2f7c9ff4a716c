//! The program hears of pressure: from the source that the service manager names, and from the
//! kernel.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tenure::volatile;
use tenure::{on_pressure, OnPressure, Volatile};
use tenure_testkit::{or_skip, run_child, this_test, Competitor, MemoryCgroup};

/// Counts its calls.
fn counted() -> (OnPressure, Arc<AtomicUsize>) {
    let calls = Arc::<AtomicUsize>::default();
    let count = calls.clone();
    let told = on_pressure(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    (told.unwrap(), calls)
}

/// The watchdog of the child ends a wait that never succeeds.
fn wait_for(calls: &AtomicUsize, least: usize) {
    while calls.load(Ordering::SeqCst) < least {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_thread(name: &str) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let is = |dir: std::path::PathBuf| {
        // The process may have ended meanwhile.
        std::fs::read_to_string(dir.join("comm")).is_ok_and(|found| found.trim_end() == name)
    };
    threads.flatten().any(|entry| is(entry.path()))
}

/// A name that no other process uses.
fn place(what: &str) -> String {
    let place = std::env::temp_dir().join(format!("tenure-{what}-{}", std::process::id()));
    place.into_os_string().into_string().unwrap()
}

struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A FIFO; in the child of a test, which also gets here, only the name.
fn fifo(what: &str) -> Removed {
    let fifo = Removed(place(what));
    if std::env::var_os(WATCH).is_none() {
        let path = std::ffi::CString::new(fifo.0.clone()).unwrap();
        // SAFETY: a terminated path.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }
    fifo
}

const WATCH: &str = "MEMORY_PRESSURE_WATCH";
const WRITE: &str = "MEMORY_PRESSURE_WRITE";

#[test]
fn by_a_fifo() {
    let fifo = fifo("fifo");
    let result = run_child(this_test!(), &[(WATCH, &fifo.0)], || {
        let (told, calls) = counted();
        let named = std::env::var(WATCH).unwrap();
        let mut fifo = std::fs::OpenOptions::new().read(true).write(true).open(named).unwrap();
        for round in 1..=5 {
            let start = Instant::now();
            fifo.write_all(b"pressure").unwrap();
            wait_for(&calls, round);
            println!("called after {} us", start.elapsed().as_micros());
        }
        drop(told);
        let before = calls.load(Ordering::SeqCst);
        fifo.write_all(b"pressure").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(calls.load(Ordering::SeqCst), before, "no calls after it was dropped");
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
    println!("{}", result.output);
}

#[test]
fn by_a_socket_which_gets_what_is_to_be_written() {
    if std::env::var_os(WATCH).is_some() {
        // The child.
        run_child(this_test!(), &[], || {
            let (_told, calls) = counted();
            wait_for(&calls, 3);
        });
    }
    let socket = Removed(place("socket"));
    let listener = UnixListener::bind(&socket.0).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut peer, _) = listener.accept().unwrap();
            if over.load(Ordering::SeqCst) {
                return;
            }
            let mut hello = [0; 5];
            peer.read_exact(&mut hello).unwrap();
            assert_eq!(&hello, b"hello");
            // Until the child has got its report, and ends.
            while peer.write_all(b"pressure").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let environment = [(WATCH, socket.0.as_str()), (WRITE, "aGVsbG8=")];
        let result = run_child(this_test!(), &environment, || unreachable!("see above"));
        // If the child never came, the thread above still waits for a peer.
        over.store(true, Ordering::SeqCst);
        let _ = std::os::unix::net::UnixStream::connect(&socket.0);
        assert!(result.finished(), "{}\n{}", result.status, result.output);
    });
}

#[test]
fn dev_null_turns_it_off_and_what_cannot_be_opened_is_passed_over() {
    let listens = |environment: &[(&str, &str)]| {
        let result = run_child(this_test!(), environment, || {
            let (_told, _) = counted();
            assert!(has_thread("tenure-keeper"));
            println!("listens: {}", has_thread("tenure-pressure"));
        });
        assert!(result.finished(), "{}\n{}", result.status, result.output);
        result.output.contains("listens: true")
    };
    assert!(!listens(&[(WATCH, "/dev/null")]));
    // Without PSI and a memory cgroup there is no source.
    let without = listens(&[]);
    assert_eq!(listens(&[(WATCH, "/nonexistent/pressure")]), without);
    assert_eq!(listens(&[(WATCH, "relative")]), without);
}

#[test]
fn by_the_kernel() {
    drop(or_skip!(MemoryCgroup::create("try", 256 << 20)));
    let result = run_child(this_test!(), &[], || {
        let group = MemoryCgroup::create("told", 256 << 20).unwrap();
        let mut competitor = Competitor::spawn(Some(&group)).unwrap();
        group.enter_self().unwrap();
        volatile::configure(volatile::Settings::default().with_offer_after(Duration::ZERO));
        let mut object = Volatile::new(160 << 20).unwrap();
        object.pin_mut().unwrap().fill(7);
        // The competitor is fast, and the offering thread may have to wait for a processor.
        while tenure::stats().offered_bytes < 160 << 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (told, calls) = counted();
        let hits = group.limit_hits();
        let _ = competitor.need(150 << 20);
        wait_for(&calls, 1);
        assert!(group.limit_hits() > hits, "there was pressure");
        drop(told);
        drop(object);
        drop(competitor);
        group.leave_self().unwrap();
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn a_call_may_end_the_calls_and_a_child_has_none() {
    let fifo = fifo("fifo-ends");
    let result = run_child(this_test!(), &[(WATCH, &fifo.0)], || {
        let named = std::env::var(WATCH).unwrap();
        let mut fifo = std::fs::OpenOptions::new().read(true).write(true).open(named).unwrap();
        let own = Arc::new(std::sync::Mutex::new(None::<OnPressure>));
        let (itself, ended) = (own.clone(), Arc::<AtomicUsize>::default());
        let end = ended.clone();
        let told = on_pressure(move || {
            let told = itself.lock().unwrap().take();
            end.fetch_add(usize::from(told.is_some()), Ordering::SeqCst);
        });
        *own.lock().unwrap() = Some(told.unwrap());
        let (told, _) = counted();
        fifo.write_all(b"pressure").unwrap();
        wait_for(&ended, 1);
        // SAFETY: the child only drops its value, registers again, and ends.
        match unsafe { libc::fork() } {
            0 => {
                drop(told);
                let (_told, calls) = counted();
                // The parent reads from it, too.
                while calls.load(Ordering::SeqCst) == 0 {
                    fifo.write_all(b"pressure").unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) }
            }
            child => {
                let mut status = -1;
                // SAFETY: waits for the child made above.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(status, 0);
            }
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
