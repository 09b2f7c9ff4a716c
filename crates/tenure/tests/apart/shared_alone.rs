//! Shared memory in processes that are alone: a child whose parent may end, and a process whose main
//! thread has ended.

use crate::promise_kit::*;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tenure::populate::{Access, Limiting, Populate};
use tenure::shared::SharedVolatile;
use tenure_testkit::{or_skip, this_test};

/// A daemon: nobody else purges for it.
#[test]
fn a_child_whose_parent_has_ended_purges_after_it_has_started_its_worker() {
    const LIMIT: usize = 64 << 20;
    const CHUNK: usize = 1 << 16;
    /// For the processes' other memory.
    const SPARE: usize = 5 << 20;
    or_skip!(promised_within(this_test!(), LIMIT as u64, || {
        let (mut read, write) = UnixStream::pair().unwrap();
        let parent = forked(|| {
            let shared = SharedVolatile::builder(LIMIT / 2).chunk_size(CHUNK).build().unwrap();
            (0..LIMIT / 2 / CHUNK).for_each(|n| drop(shared.get_or_make(n, |_| ()).unwrap()));
            // SAFETY: the child runs what follows, and ends.
            if unsafe { libc::fork() } != 0 {
                return;
            }
            let before = parent_id();
            assert!(waited(|| parent_id() != before || before == 1));
            tenure::shared::start_worker().unwrap();
            let taken = plain(LIMIT * 3 / 4);
            for page in 0..LIMIT * 3 / 4 / PAGE {
                // SAFETY: memory of this test's own.
                unsafe { ((taken + page * PAGE) as *mut u8).write(1) };
                if page % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(100));
                    // On a busy machine the worker may wait for a processor.
                    let used = || page * PAGE + shared.stats().intact as usize * CHUNK;
                    assert!(waited(|| used() < LIMIT - SPARE));
                }
            }
            assert!(shared.stats().purges > 0);
            std::io::Write::write_all(&mut &write, b"x").unwrap();
        });
        assert_eq!(parent, Ended::Well);
        drop(write);
        std::io::Read::read_exact(&mut read, &mut [0]).expect("the child was killed");
    }));
}

fn parent_id() -> u32 {
    std::os::unix::process::parent_id()
}

/// A thread that started by itself hung children of a raw clone, whose malloc may be locked, and
/// killed children that had forbidden threads.
#[test]
fn a_child_has_a_background_thread_when_it_asks_for_one_and_not_before() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(1 << 20).chunk_size(1 << 16).build().unwrap();
        drop(shared.get_or_make(0, |bytes| bytes.fill(7)).unwrap());
        let has_keeper = || {
            let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let mut names = names.map(|task| std::fs::read_to_string(task.path().join("comm")));
            names.any(|name| name.is_ok_and(|name| name == "tenure-keeper\n"))
        };
        let child = forked(|| {
            assert_eq!(shared.read(0).unwrap().unwrap()[0], 7);
            drop(shared.get_or_make(1, |bytes| bytes.fill(8)).unwrap());
            assert!(!has_keeper());
            tenure::shared::start_worker().unwrap();
            assert!(waited(has_keeper));
        });
        assert_eq!(child, Ended::Well);
    });
}

/// Its background thread finds the files of the program in another thread's table.
#[test]
fn pins_of_the_dead_go_where_the_main_thread_has_ended() {
    promised(this_test!(), || {
        let child = forked(|| {
            let shared = SharedVolatile::builder(1 << 20).chunk_size(1 << 16).build().unwrap();
            drop(shared.get_or_make(0, |bytes| bytes.fill(7)).unwrap());
            let file = std::fs::File::from(shared.as_fd().try_clone_to_owned().unwrap());
            std::thread::spawn(move || {
                while std::fs::read_link("/proc/self/cwd").is_ok() {
                    std::thread::yield_now();
                }
                killed_with_a_pin(&shared);
                let is_gone = waited(|| pins_of_the_first(&file, 1 << 20) == 0);
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!is_gone)) }
            });
            // SAFETY: ends this thread, and nothing of its stack is used by another one.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        assert_eq!(child, Ended::Well);
    });
}

#[test]
fn memory_that_is_made_while_all_mappings_are_locked_takes_nothing_before_its_chunks() {
    promised(this_test!(), || {
        // SAFETY: changes how later mappings are made, until it is taken back below.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            return println!("not tested: this process may not lock its mappings");
        }
        let shared = SharedVolatile::builder(64 << 20).chunk_size(1 << 20).build();
        let Ok(shared) = shared else {
            return println!("not tested: this process may lock too little");
        };
        let file = std::fs::File::from(shared.as_fd().try_clone_to_owned().unwrap());
        let mebibytes = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) >> 11;
        assert_eq!(mebibytes(), 0);
        drop(shared.get_or_make(0, |bytes| bytes.fill(7)).unwrap());
        assert_eq!(mebibytes(), 1);
        assert_eq!(shared.purge_now(0..64).unwrap(), 1);
        assert_eq!(mebibytes(), 0);
        // SAFETY: as above.
        unsafe { libc::munlockall() };
    });
}

/// A child dies with the first chunk pinned.
fn killed_with_a_pin(shared: &SharedVolatile) {
    let (mut read, write) = UnixStream::pair().unwrap();
    let pid = worker(|| {
        std::mem::forget(shared.read(0).unwrap());
        std::io::Write::write_all(&mut &write, b"x").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    });
    std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
    kill(pid);
}

/// Returns the pins of the first chunk, all processes' together, as they are in the file. `data`:
/// the bytes of all chunks.
fn pins_of_the_first(file: &std::fs::File, data: u64) -> u32 {
    let mut record = [0; 128];
    file.read_exact_at(&mut record, data).unwrap();
    record[16..].chunks(2).map(|pin| u32::from(u16::from_ne_bytes([pin[0], pin[1]]))).sum()
}

/// `/proc/self` shows the root group then.
#[test]
fn the_limit_of_a_group_holds_where_the_main_thread_has_ended() {
    or_skip!(promised_within(this_test!(), 48 << 20, || {
        let child = forked(|| {
            let thread = std::thread::spawn(|| {
                while std::fs::read_link("/proc/self/cwd").is_ok() {
                    std::thread::yield_now();
                }
                let raw = tenure::Volatile::new(128 << 20).unwrap();
                let room = Populate::new(raw.as_ptr(), 128 << 20, Access::Write).room().unwrap();
                println!("{room}");
                let known = matches!(room.limiting, Limiting::Cgroup(_)) && !room.fits();
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!known)) }
            });
            std::mem::forget(thread);
            // SAFETY: ends this thread, and nothing of its stack is used by another one.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        assert_eq!(child, Ended::Well);
    }));
}
