//! Where `MADV_FREE` is refused nothing can be volatile, and every call says so.

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
        // SAFETY: nothing is marked by a call that fails.
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
        let findings = tenure::capabilities().findings();
        let free = findings.iter().find(|f| f.name == "madv_free").unwrap();
        assert_eq!((free.status, free.errno), (tenure::Status::Missing, Some(libc::EPERM)));
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
