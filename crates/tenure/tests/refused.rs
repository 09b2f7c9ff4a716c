//! If `MADV_FREE` is refused, nothing can be volatile, and every call returns an error that names
//! the refused call.

use tenure::shared::{ashmem, SharedCache, SharedVolatile};
use tenure::volatile;
use tenure::{Cache, ErrorKind, Mapping, Volatile};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{run_child, this_test};

#[test]
fn without_madv_free_every_call_says_so() {
    let result = run_child(this_test!(), &[], || {
        let filter = Filter::new().refuse(Call::Madvise(libc::MADV_FREE), Errno::PERM);
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        let mut map = Mapping::anonymous(1 << 20).unwrap();
        map.as_mut_slice().fill(3);
        // SAFETY: a failed call marks nothing.
        let marked = unsafe { volatile::mark(map.as_mut_ptr(), 1 << 20) };
        let errors = [
            marked.unwrap_err(),
            Volatile::new(4096).unwrap_err(),
            Cache::<u64>::new().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.errno(), libc::EOPNOTSUPP);
            assert!(error.to_string().contains("MADV_FREE"), "{error}");
        }
        assert!(map.as_slice().iter().all(|b| *b == 3));
        // tenure discards shared memory itself.
        let shared = SharedVolatile::new(1 << 20).unwrap();
        drop(shared);
        let findings = tenure::capabilities().findings();
        let free = findings.iter().find(|f| f.name == "madv_free").unwrap();
        assert_eq!((free.status, free.errno), (tenure::Status::Missing, Some(libc::EPERM)));
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn a_purge_names_the_call_that_was_refused() {
    let result = run_child(this_test!(), &[], || {
        let mut map = Mapping::anonymous(1 << 20).unwrap();
        map.as_mut_slice().fill(3);
        let buffer = Volatile::new(1 << 20).unwrap();
        // SAFETY: the mapping stays, and is not read while it is marked.
        unsafe { volatile::mark(map.as_mut_ptr(), 1 << 20) }.unwrap();
        refuse(Call::Madvise(libc::MADV_PAGEOUT));
        // SAFETY: the range was marked just before, and its contents may go.
        let purged = unsafe { volatile::purge_now(map.as_mut_ptr(), 1 << 20) };
        for error in [purged.unwrap_err(), buffer.purge_now().unwrap_err()] {
            assert_eq!(error.errno(), libc::EPERM, "{error}");
            assert!(error.to_string().contains("madvise(MADV_PAGEOUT) failed"), "{error}");
        }
        refuse(Call::Madvise(libc::MADV_FREE));
        // SAFETY: the range is still marked, and its contents may go.
        let purged = unsafe { volatile::purge_now(map.as_mut_ptr(), 1 << 20) };
        let error = purged.unwrap_err().to_string();
        assert!(error.contains("madvise(MADV_FREE) failed"), "{error}");
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn shared_memory_names_the_call_that_was_refused() {
    let result = run_child(this_test!(), &[], || {
        let errors = || {
            let shared = SharedVolatile::new(1 << 20).unwrap_err();
            [shared.to_string(), ashmem::create(c"tiles", 1 << 20).unwrap_err().to_string()]
        };
        for (call, name) in [
            (libc::SYS_fcntl, "fcntl(F_ADD_SEALS) failed"),
            (libc::SYS_ftruncate, "ftruncate failed"),
            (libc::SYS_memfd_create, "memfd_create failed"),
        ] {
            refuse(Call::Number(call));
            errors().iter().for_each(|error| assert!(error.contains(name), "{error}"));
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// Chunks that the cache has keep their memory while it empties them.
#[test]
fn a_shared_cache_without_more_memory_replaces_its_oldest_values() {
    let result = run_child(this_test!(), &[], || {
        let cache = SharedCache::builder().most(64 << 20).build().unwrap();
        let insert = |key: u32| cache.insert(&key.to_le_bytes(), &[key as u8; 100_000]);
        (0..50).for_each(|key| insert(key).unwrap());
        let before = cache.stats().memory.intact;
        refuse_as(Call::Madvise(libc::MADV_POPULATE_WRITE), Errno::NOMEM);
        for key in 50..250 {
            insert(key).unwrap();
            assert_eq!(cache.get(&key.to_le_bytes()).unwrap().unwrap()[..], [key as u8; 100_000]);
        }
        assert!(cache.stats().memory.intact <= before);
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// In all threads, because the background thread makes the calls.
fn refuse(call: Call) {
    refuse_as(call, Errno::PERM);
}

fn refuse_as(call: Call, errno: Errno) {
    Filter::new().refuse(call, errno).install_all_threads().expect("a filter needs no rights");
}
