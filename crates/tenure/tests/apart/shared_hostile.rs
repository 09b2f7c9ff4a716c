//! Files of shared memory that another process has overwritten, cut, made longer or sealed: opening
//! one is an error, or gives an object that works. It never crashes and never hangs.
//!
//! Two forms. Whole opens, with all calls on the opened object, are slow (50 us to some
//! milliseconds). The check of a header alone is fast: [`ashmem::size`] reads the page of facts,
//! and does the check that every open does. Together:
//!
//!     TENURE_TESTS=whole cargo test -p tenure --test apart shared_hostile -- --nocapture

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use tenure::shared::{ashmem, Before, SharedPin, SharedVolatile};
use tenure_testkit::{in_child, sweep, this_test};

const PAGE: usize = 4096;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// A file as its maker left it, and the offsets of its records and facts.
struct Sample {
    bytes: Vec<u8>,
    head: usize,
}

impl Sample {
    fn of(fd: &impl AsFd, data: usize) -> Sample {
        let bytes = std::fs::read(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).unwrap();
        assert!(bytes.len() > data);
        Sample { bytes, head: data }
    }

    fn pinned() -> Sample {
        let shared = SharedVolatile::builder(8 * PAGE).chunk_size(PAGE).processes(4).build();
        let shared = shared.unwrap();
        for chunk in [1, 3, 4] {
            shared.get_or_make(chunk, |bytes| bytes.fill(7)).unwrap();
        }
        shared.purge_now(3..4).unwrap();
        Sample::of(&shared, 8 * PAGE)
    }

    fn kept() -> Sample {
        let region = ashmem::create(c"sample", 8 * PAGE - 9).unwrap();
        ashmem::unpin(region.as_fd(), 0, 2 * PAGE).unwrap();
        ashmem::purge_now(region.as_fd()).unwrap();
        ashmem::unpin(region.as_fd(), 4 * PAGE, PAGE).unwrap();
        Sample::of(&region, 8 * PAGE)
    }
}

/// Changes some bytes of records and facts, more often nonzero ones.
fn spoil(bytes: &mut [u8], head: usize, random: &mut Random) {
    let facts = bytes.len().saturating_sub(PAGE);
    for _ in 0..1 + random.below(6) {
        let at = match random.below(8) {
            0 | 1 => facts + random.below(96),
            2 => facts + 1024 + random.below(8),
            3 => head + random.below(bytes.len().saturating_sub(head).max(1)),
            4 => random.below(bytes.len().max(1)),
            _ => head + 64 * random.below(8) + random.below(24),
        };
        let width = [1, 1, 2, 4, 8][random.below(5)];
        let value = match random.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << random.below(64),
            3 => random.next() << 8,
            _ => random.below(6) as u64 | (random.below(6) as u64) << 16,
        };
        let at = at & !(width - 1);
        if at + width <= bytes.len() {
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
}

fn make(bytes: &[u8], length: usize, seals: i32) -> OwnedFd {
    // SAFETY: makes a file of this test's own; the number is new.
    let fd = unsafe {
        let number = libc::memfd_create(c"hostile".as_ptr(), libc::MFD_ALLOW_SEALING | 1);
        assert!(number >= 0);
        OwnedFd::from_raw_fd(number)
    };
    // SAFETY: writes from a local slice to a file of this test's own.
    unsafe {
        let (number, from) = (fd.as_raw_fd(), bytes.as_ptr().cast());
        assert!(libc::write(number, from, bytes.len().min(length)) >= 0);
        assert_eq!(libc::ftruncate(number, length as i64), 0);
        assert_eq!(libc::fcntl(number, libc::F_ADD_SEALS, seals), 0);
    }
    fd
}

/// 65,536 chunks of one page for 1,024 processes have 256 MiB of records. The kernel charges a page of
/// records that is read to the process that reads it.
#[test]
fn a_file_of_few_bytes_that_claims_many_chunks_takes_few_bytes() {
    let chunks = 64 << 10;
    let made = SharedVolatile::builder(chunks * PAGE).chunk_size(PAGE).processes(1024).build();
    let made = made.unwrap();
    let bytes = || std::fs::File::from(made.as_fd().try_clone_to_owned().unwrap()).metadata();
    let taken = || 512 * std::os::unix::fs::MetadataExt::blocks(&bytes().unwrap());
    // SAFETY: only this program has the file.
    let shared = unsafe { SharedVolatile::open(made.as_fd().try_clone_to_owned().unwrap()) };
    let shared = shared.unwrap();
    let last = chunks - 1;
    for chunk in [3, last] {
        assert_eq!(shared.get_or_make(chunk, |bytes| bytes.fill(7)).unwrap()[9], 7);
    }
    let stats = shared.stats();
    assert_eq!((stats.fresh, stats.intact), (chunks as u64 - 2, 2));
    assert_eq!(shared.purge_now(0..chunks).unwrap(), 2);
    assert_eq!(shared.stats().purged, 2);
    assert!(shared.read(last).unwrap().is_none());
    drop(shared);
    assert!(taken() <= 1 << 20, "{} bytes", taken());
}

#[test]
fn a_damaged_chunk_leaves_its_neighbours_as_they_were() {
    let Sample { mut bytes, head } = Sample::pinned();
    // The state of chunk 2 is none that tenure writes.
    bytes[head + 2 * 64..][..8].fill(0xff);
    // SAFETY: only this program has the file.
    let shared = unsafe { SharedVolatile::open(make(&bytes, bytes.len(), libc::F_SEAL_SHRINK)) };
    let shared = shared.unwrap();
    assert_eq!(shared.pin_range(0..3).unwrap_err().errno(), libc::EPROTO);
    assert!(
        matches!(shared.pin(0), Ok(SharedPin::ToMake(maker)) if maker.before() == Before::Fresh)
    );
    assert!(shared.read(1).unwrap().is_some());
}

/// Makes every call on the opened object. Only documented errors may come. `is_whole`: the file has
/// no holes.
fn use_it(shared: &SharedVolatile, is_whole: bool, random: &mut Random) {
    let chunks = shared.chunks();
    assert!(chunks <= 1 << 10);
    shared.stats();
    for chunk in (0..chunks).take(9) {
        let _ = shared.priority(chunk);
        if let Ok(Some(bytes)) = shared.read(chunk) {
            assert_eq!(bytes.len(), shared.chunk_size());
            // A hole that a process has called intact raises SIGBUS.
            if is_whole {
                std::hint::black_box(bytes[0]);
            }
        }
        match shared.pin(chunk) {
            Ok(SharedPin::ToMake(mut maker)) => {
                maker.fill(1);
                if random.below(2) == 0 {
                    assert_eq!(maker.finish().unwrap()[9], 1);
                }
            }
            Ok(SharedPin::BeingMade(other)) => {
                let began = Instant::now();
                drop(other.wait(Some(Duration::from_millis(300))));
                assert!(began.elapsed() < Duration::from_secs(5));
            }
            Ok(SharedPin::Intact(_)) | Err(_) => {}
        }
        drop(shared.remake(chunk));
    }
    let _ = shared.purge_now(0..chunks);
    shared.stats();
}

fn whole(sample: &Sample, is_kept: bool, random: &mut Random) -> bool {
    let mut bytes = sample.bytes.clone();
    spoil(&mut bytes, sample.head, random);
    let length = match random.below(12) {
        0 => random.below(bytes.len() + 1),
        1 => bytes.len() + 1 + random.below(3 * PAGE),
        2 => random.below(20) * PAGE,
        _ => bytes.len(),
    };
    let shrink = libc::F_SEAL_SHRINK;
    let seals = match random.below(12) {
        0 => 0,
        1 => shrink | libc::F_SEAL_GROW | libc::F_SEAL_WRITE,
        2 => shrink | libc::F_SEAL_FUTURE_WRITE,
        3 => libc::F_SEAL_SEAL,
        4 => shrink,
        _ => shrink | libc::F_SEAL_GROW,
    };
    let fd = make(&bytes, length, seals);
    if is_kept {
        let pinned = ashmem::pin(fd.as_fd(), 0, 0);
        let _ = ashmem::unpin(fd.as_fd(), 0, PAGE);
        let _ = ashmem::purge_now(fd.as_fd());
        let _ = ashmem::pin(fd.as_fd(), 0, PAGE);
        return pinned.is_ok();
    }
    let opened = match random.below(4) {
        // SAFETY: no other code has the file, and all references to its bytes end before this
        // function does.
        0 => unsafe { SharedVolatile::open_read_only(fd) },
        // SAFETY: no other code has the file, and all references to its bytes end before this
        // function does.
        _ => unsafe { SharedVolatile::open(fd) },
    };
    let uses = |shared: SharedVolatile| {
        use_it(&shared, true, random);
        spoil_between_calls(&shared, sample.head, random);
        use_it(&shared, false, random);
    };
    opened.map(uses).is_ok()
}

/// Like [`spoil`], in a file that is open here.
fn spoil_between_calls(shared: &SharedVolatile, head: usize, random: &mut Random) {
    let path = format!("/proc/self/fd/{}", shared.as_fd().as_raw_fd());
    let Ok(file) = std::fs::File::options().read(true).write(true).open(path) else { return };
    let was = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let mut bytes = was.clone();
    spoil(&mut bytes, head, random);
    for (at, byte) in bytes.iter().enumerate().filter(|(at, byte)| was[*at] != **byte) {
        // A file that is sealed against writing stays as it is.
        let _ = file.write_all_at(&[*byte], at as u64);
    }
}

/// A hang ends the child, which fails the test.
fn patience(seconds: u32) {
    // SAFETY: requests a signal.
    unsafe { libc::alarm(seconds) };
}

/// Returns the tries of a sweep, or a multiple:
/// `TENURE_TRIES=20 TENURE_TESTS=whole cargo test -p tenure --test apart shared_hostile` makes 10 million
/// headers and 200,000 whole files, in five minutes.
fn many(tries: u64) -> u64 {
    let times = std::env::var("TENURE_TRIES").ok().and_then(|times| times.parse::<u64>().ok());
    tries * times.unwrap_or(1)
}

#[test]
fn a_hostile_file_is_an_error_or_works() {
    in_child(this_test!(), &[], || {
        let (most, mut tries, begun) = (many(sweep(1_500, 10_000)), 0, Instant::now());
        let samples = [(Sample::pinned(), false), (Sample::kept(), true)];
        let mut random = Random(0x7e_4e75);
        let (mut worked, mut longest) = (0, Duration::ZERO);
        // The child has ten minutes, which a busy machine may need for fewer.
        while tries < most && (tries < 100 || begun.elapsed() < Duration::from_secs(420)) {
            tries += 1;
            patience(20);
            let began = Instant::now();
            let (sample, is_kept) = &samples[usize::from(random.below(3) == 0)];
            worked += u64::from(whole(sample, *is_kept, &mut random));
            longest = longest.max(began.elapsed());
        }
        patience(0);
        println!("{tries} whole opens, {worked} of them worked, the longest took {longest:?}");
        assert!(worked > tries / 20 && worked < tries, "{worked}");
    });
}

/// States that no living process has left: no process would ever end them.
#[test]
fn a_state_of_no_process_ends() {
    in_child(this_test!(), &[], || {
        patience(20);
        let sample = Sample::pinned();
        let record = (sample.bytes.len() - PAGE - sample.head) / 64;
        assert!(record >= 8);
        for (state, errno) in [
            (3_u64 | 2 << 16, None),           // made by a process that does not exist
            (4 | 2 << 16, None),               // purged by one
            (4, None),                         // by the slot that the opener gets
            (3, None),                         // made by that slot
            (3 | 9 << 16, Some(libc::EPROTO)), // by a slot that does not exist
            (4 | 9 << 16, Some(libc::EPROTO)),
            (77, Some(libc::EPROTO)),
        ] {
            let mut bytes = sample.bytes.clone();
            bytes[sample.head..sample.head + 8].copy_from_slice(&state.to_le_bytes());
            let flags = bytes.len() - PAGE + 1024;
            bytes[flags..flags + 4].fill(0);
            let fd = make(&bytes, bytes.len(), libc::F_SEAL_SHRINK);
            // SAFETY: no other code has the file.
            let shared = unsafe { SharedVolatile::open(fd) }.unwrap();
            let made = shared.get_or_make(0, |bytes| bytes.fill(5)).map(|bytes| bytes[0]);
            assert_eq!(made.map_err(|error| error.errno()).err(), errno, "{state:x}");
        }
        patience(0);
    });
}

/// A caller that counts its pins itself may forget to end a making. Then others would wait for
/// ever.
#[test]
fn a_chunk_whose_maker_has_no_pin_is_gone() {
    in_child(this_test!(), &[], || {
        patience(20);
        let shared = SharedVolatile::new(1 << 16).unwrap();
        let SharedPin::ToMake(maker) = shared.pin(0).unwrap() else { panic!() };
        std::mem::forget(maker);
        std::mem::forget(shared.pin(0).unwrap()); // it waits
                                                  // SAFETY: both pins above were forgotten, and
                                                  // nothing refers to the bytes.
        assert!(unsafe { shared.unpin(0) }.unwrap());
        assert_eq!(shared.stats().making, 1);
        // SAFETY: both pins above were forgotten, and nothing refers to the bytes.
        assert!(unsafe { shared.unpin(0) }.unwrap());
        // SAFETY: there is no pin, so nothing refers to the bytes by one.
        assert!(!unsafe { shared.unpin(0) }.unwrap());
        let SharedPin::ToMake(maker) = shared.pin(0).unwrap() else { panic!() };
        assert_eq!(maker.before(), tenure::shared::Before::HalfMade);
        // A deadline beyond the end of time.
        let SharedPin::BeingMade(other) = shared.pin(0).unwrap() else { panic!() };
        std::thread::scope(|scope| {
            let waiter =
                scope.spawn(|| other.wait(Some(Duration::MAX)).unwrap().intact().is_some());
            maker.finish().unwrap();
            assert!(waiter.join().unwrap());
        });
        patience(0);
    });
}

#[test]
fn a_hostile_header_is_refused_or_fits_its_file() {
    in_child(this_test!(), &[], || {
        let tries: u64 = many(sweep(200_000, 500_000));
        let sample = Sample::kept();
        let fd = make(&sample.bytes, sample.bytes.len(), 0);
        let facts = sample.bytes.len() - PAGE;
        let mut random = Random(0xfac75);
        let mut worked: u64 = 0;
        let mut page = [0; PAGE];
        for _ in 0..tries {
            patience(20);
            page.copy_from_slice(&sample.bytes[facts..]);
            spoil(&mut page, 0, &mut random);
            // SAFETY: writes from a local array to a file of this test's own.
            let written =
                unsafe { libc::pwrite(fd.as_raw_fd(), page.as_ptr().cast(), 128, facts as i64) };
            assert_eq!(written, 128);
            if let Ok(size) = ashmem::size(fd.as_fd()) {
                assert!(size > 7 * PAGE && size <= 8 * PAGE, "{size}");
                worked += 1;
            }
        }
        patience(0);
        println!("{tries} headers, {worked} of them were accepted");
        assert!(worked > 0 && worked < tries, "{worked}");
    });
}
