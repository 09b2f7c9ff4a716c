//! Files about this process that stay open in the program's own table. A question by an open file
//! takes 0.2 µs; to open the file anew takes 1 µs or more. And where the program's threads close
//! and reuse low numbers, tenure must not get one of those.
//!
//! The program may close such a descriptor and give its number to another file, and a child has its
//! parent's descriptor. So each answer is checked: it counts if the number is still the same file's
//! after the question. (For a wrong answer to count, a file would have to be put under the number
//! and tenure's file put back, all in between.) Otherwise the file is opened again.

use super::brief::{self, Brief, HIGH};
use super::own_table::this_thread_has_own_table;
use super::signal::Blocked;
use super::{generation, uffd};
use rustix::fd::{AsFd, BorrowedFd, RawFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::getpid;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// How often a question is put by a kept descriptor before a descriptor is opened for this question
/// only.
const ATTEMPTS: usize = 3;
/// How often a process opens each file to keep it. A file that was closed so often will be closed
/// again and again. Or threads have descriptor tables of their own, and do not see the descriptors
/// of others: then each table would keep one open.
const MOST_OPENED: u32 = 4;

/// A file that stays open.
pub(crate) struct Kept {
    /// Opens the file under a low number.
    open_low: fn() -> Result<Brief, Errno>,
    /// From the lowest: 16 bits, the descriptor's number plus one; 16 bits of the number of the
    /// process that opened it; 32 bits, the file's number. 0: none.
    open: AtomicU64,
    /// The file system's number.
    device: AtomicU64,
    /// How often this process has opened the file.
    times: AtomicU32,
}

/// For the whole process: its list of mappings, by one descriptor for all threads. Only for queries
/// by address: readers would move each other's position.
pub(crate) static MAPS: Kept = Kept::by(|| brief::open(c"/proc/thread-self/maps"));
/// For the whole process: its page map, by one descriptor for all threads.
pub(crate) static PAGEMAP: Kept = Kept::by(|| brief::open(c"/proc/thread-self/pagemap"));
/// For the whole process: a userfaultfd asks about the memory of the process that opened it.
/// Nothing is registered with this one.
pub(crate) static USERFAULTFD: Kept = Kept::by(uffd::open_to_ask);
/// For the whole process: the number of the process that opened the descriptors. A child of a vfork
/// has its parent's memory, and descriptors of its own. 0: no process has opened any.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// For the whole process: a filter applies to all threads, and may end the process for opening a
/// file.
static NOTHING_IS_OPENED: AtomicBool = AtomicBool::new(false);

/// Returns whether the calling thread may open files, and opens them for the whole process.
fn may_open() -> bool {
    if this_thread_has_own_table() || NOTHING_IS_OPENED.load(Ordering::Relaxed) {
        return false;
    }
    let own = getpid().as_raw_nonzero().get();
    let opener = PROCESS.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
    opener.map_or_else(|opener| opener == own, |_| true)
}

/// The word for a file that process `generation` has open under the number.
fn word(number: RawFd, generation: u64, file: u64) -> Option<u64> {
    let number = u16::try_from(number).ok()?.checked_add(1)?;
    let file = u32::try_from(file).ok()?;
    Some(u64::from(file) << 32 | (generation & 0xffff) << 16 | u64::from(number))
}

fn number_of(word: u64) -> RawFd {
    RawFd::from(word as u16) - 1
}

fn file_of(word: u64) -> u64 {
    word >> 32
}

fn is_of(word: u64, generation: u64) -> bool {
    (word >> 16) & 0xffff == generation & 0xffff
}

/// # Safety
/// The number may be any file's by now. The caller makes sure that no such file is harmed.
unsafe fn borrowed(word: u64) -> BorrowedFd<'static> {
    // SAFETY: the number was a descriptor's, so it is not -1. The caller makes sure that a file
    // that took the number over is not harmed.
    unsafe { BorrowedFd::borrow_raw(number_of(word)) }
}

impl Kept {
    const fn by(open_low: fn() -> Result<Brief, Errno>) -> Kept {
        Kept {
            open_low,
            open: AtomicU64::new(0),
            device: AtomicU64::new(0),
            times: AtomicU32::new(0),
        }
    }

    /// Calls `ask` with the descriptor, and again if its answer may come from another file.
    pub fn asked<R>(&self, mut ask: impl FnMut(BorrowedFd<'_>) -> R) -> Result<R, Errno> {
        for _ in 0..ATTEMPTS {
            let Some(word) = self.word() else { break };
            // SAFETY: `ask` puts a question that no other file accepts and that harms none; its
            // answer counts only if it came from this file.
            let answer = ask(unsafe { borrowed(word) });
            if self.is_open(word) {
                return Ok(answer);
            }
            if !may_open() {
                break;
            }
            let _ = self.open.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        self.asked_briefly(ask)
    }

    /// Calls `ask` with a descriptor that is open for this question only. A signal handler may fork
    /// in the middle of it. In the child the descriptor shows the parent's state, so the child asks
    /// once more.
    fn asked_briefly<R>(&self, mut ask: impl FnMut(BorrowedFd<'_>) -> R) -> Result<R, Errno> {
        loop {
            let process = generation::current();
            let file = (self.open_low)()?;
            let answer = ask(file.as_fd());
            match generation::current() == process {
                true if file.is_open() => return Ok(answer),
                true => return Err(Errno::BADF),
                false => {}
            }
        }
    }

    /// The word for the file as this process has it open. `None`: it cannot stay open.
    fn word(&self) -> Option<u64> {
        if this_thread_has_own_table() {
            return None;
        }
        let there = self.open.load(Ordering::Acquire);
        if there != 0 && is_of(there, generation::current()) {
            return Some(there);
        }
        self.open_high(there)
    }

    /// Opens the file in place of the one noted in the word.
    #[cold]
    fn open_high(&self, there: u64) -> Option<u64> {
        let more = |times: u32| (times < MOST_OPENED).then_some(times + 1);
        if !may_open()
            || self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err()
        {
            return None;
        }
        // Blocks signals: a handler could fork in the middle of this, and the child would continue
        // with the parent's descriptor.
        let _blocked = Blocked::all();
        let process = generation::current();
        let low = (self.open_low)().ok()?;
        let high = low.again(HIGH)?;
        let new = word(high.number(), process, high.file().1)?;
        self.device.store(high.file().0, Ordering::Release);
        match self.open.compare_exchange(there, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                high.stays();
                Some(new)
            }
            // Another thread was first.
            Err(theirs) => Some(theirs).filter(|theirs| *theirs != 0 && is_of(*theirs, process)),
        }
    }

    /// Returns whether the number is still this file's, in this process.
    fn is_open(&self, word: u64) -> bool {
        if self.open.load(Ordering::Acquire) != word || !is_of(word, generation::current()) {
            return false;
        }
        self.is_file(word)
    }

    fn is_file(&self, word: u64) -> bool {
        // SAFETY: the call only asks which file it is.
        let found = fstat(unsafe { borrowed(word) });
        found.is_ok_and(|found| {
            found.st_ino == file_of(word) && found.st_dev == self.device.load(Ordering::Acquire)
        })
    }

    fn close(&self, word: u64) {
        if self.is_file(word) {
            // SAFETY: the descriptor is this file's, opened by `open_high`, and is closed once: the
            // caller has taken the word out.
            unsafe { libc::close(number_of(word)) };
        }
    }

    /// In a child with descriptors of its own, where no other thread runs: closes its parent's
    /// descriptor. The child opens its own when it needs one. Most children need none before they
    /// call `exec`, and to open three costs 40 µs a fork.
    fn reset_in_child(&self) {
        let parents = self.open.swap(0, Ordering::AcqRel);
        self.times.store(0, Ordering::Relaxed);
        if parents != 0 && may_open() {
            self.close(parents);
        }
    }
}

/// Opens the files of `/proc` now, before other threads use descriptors.
pub(crate) fn open_now() {
    let _ = (MAPS.word(), PAGEMAP.word());
}

/// Opens no file from now on. Open files stay open.
pub(crate) fn expect_a_filter() {
    NOTHING_IS_OPENED.store(true, Ordering::SeqCst);
}

/// Resets all files in a child with descriptors of its own.
pub(crate) fn reset_in_child() {
    PROCESS.store(0, Ordering::Release);
    [&MAPS, &PAGEMAP, &USERFAULTFD].iter().for_each(|kept| kept.reset_in_child());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::fs::File;
    use tenure_testkit::{in_child, this_test};

    fn number() -> RawFd {
        MAPS.asked(|file| file.as_raw_fd()).unwrap()
    }

    fn link_of(number: RawFd) -> String {
        std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap().display().to_string()
    }

    #[test]
    fn a_descriptor_that_the_program_closed_or_took_is_opened_again_and_never_closed() {
        in_child(this_test!(), &[], || {
            let first = number();
            assert!(first >= HIGH, "{first}");
            assert_eq!(number(), first, "it stays open");
            // SAFETY: the descriptor is this module's. The test closes it, and the module must
            // notice.
            drop(unsafe { OwnedFd::from_raw_fd(first) });
            let null = File::open("/dev/null").unwrap();
            let take = |number| {
                // SAFETY: a number that is not open, or that is this module's.
                assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), number) }, number);
            };
            take(first);
            let second = MAPS.asked(|file| link_of(file.as_raw_fd())).unwrap();
            assert!(second.ends_with("/maps"), "{second}");
            let second = number();
            assert_ne!(second, first);
            // Also in the middle of a question.
            let mut asked = Vec::new();
            let third = MAPS.asked(|file| {
                if asked.is_empty() {
                    take(file.as_raw_fd());
                }
                asked.push(file.as_raw_fd());
                link_of(file.as_raw_fd())
            });
            assert!(third.unwrap().ends_with("/maps"));
            assert_eq!(asked.len(), 2, "{asked:?}");
            let third = asked[1];
            for programs in [first, second] {
                assert_eq!(link_of(programs), "/dev/null", "the program's own was closed");
            }
            let parents = MAPS.open.load(Ordering::Relaxed);
            // SAFETY: the child reads its descriptors and exits without unwinding.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_closed = MAPS.open.load(Ordering::Relaxed) == 0
                    // SAFETY: the call only asks whether the number is open.
                    && unsafe { libc::fcntl(third, libc::F_GETFD) } < 0;
                let is_third = number() == third;
                let own = MAPS.open.load(Ordering::Relaxed);
                let is_right = is_closed
                    && is_third
                    && own != parents
                    && MAPS.is_open(own)
                    && [first, second].iter().all(|programs| link_of(*programs) == "/dev/null")
                    && link_of(third) == format!("/proc/{0}/task/{0}/maps", std::process::id());
                // SAFETY: ends the child, which has no more to do.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            let mut status = 0;
            // SAFETY: the kernel writes the local.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        });
    }

    fn open_ones() -> usize {
        // SAFETY: the call only asks whether the number is open.
        (0..1024).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).count()
    }

    #[test]
    fn threads_with_descriptors_of_their_own_open_no_more_and_more() {
        in_child(this_test!(), &[], || {
            let first = number();
            // With a table of its own, as the background threads have.
            let own = std::thread::spawn(|| {
                uffd::private_descriptor_table(&mut []).unwrap();
                crate::os::own_table::has_own_table();
                MAPS.asked(|_| ()).unwrap();
            });
            own.join().unwrap();
            assert_eq!(number(), first, "a background thread had it forgotten");
            // As a thread of the program's, which takes turns with others.
            let before = open_ones();
            let (ask, asked) = std::sync::mpsc::sync_channel::<()>(0);
            let (answer, answered) = std::sync::mpsc::sync_channel(0);
            let theirs = std::thread::spawn(move || {
                uffd::private_descriptor_table(&mut []).unwrap();
                while asked.recv().is_ok() {
                    answer.send(MAPS.asked(|_| ())).unwrap();
                }
                open_ones()
            });
            for _ in 0..20 {
                ask.send(()).unwrap();
                answered.recv().unwrap().unwrap();
                number();
            }
            drop(ask);
            let most = MOST_OPENED as usize;
            assert!(theirs.join().unwrap() <= most && open_ones() <= before + most);
        });
    }

    #[test]
    fn where_few_descriptors_are_allowed_the_question_is_asked_all_the_same() {
        in_child(this_test!(), &[], || {
            let few = libc::rlimit { rlim_cur: 40, rlim_max: 40 };
            // SAFETY: the call reads the local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
            let asked = MAPS.asked(|file| link_of(file.as_raw_fd())).unwrap();
            assert!(asked.ends_with("/maps"), "{asked}");
            assert_eq!(MAPS.open.load(Ordering::Relaxed), 0);
        });
    }
}
