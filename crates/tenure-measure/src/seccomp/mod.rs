//! System calls refused, failed at the Nth, counted or forbidden, by seccomp filters.
//!
//! A filter cannot be removed again, and the threads and children of its thread inherit it. So
//! filters belong into a child (`in_child` of the test kit) or onto a thread made for it.

#![allow(unsafe_code, reason = "installs filters")]

mod count;
mod groups;
mod hold;
mod notify;
mod outside;

pub use count::{count_syscalls, counting_syscalls, SyscallCount};
pub use groups::{
    kill_for_resources_and_privileged, launch, may_call, PRIVILEGED, PRIVILEGED_HERE, RESOURCES,
};
pub use hold::Hold;
pub use notify::{Asked, NthFailure, When};
pub use outside::{start_watched, Answer, Listener};
pub use rustix::io::Errno;

use crate::unavailable::Unavailable;
use std::io;

/// A kind of system call. Arguments are compared in their low 32 bits; the kernel uses no more of
/// an ioctl request or an madvise advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// userfaultfd(2).
    Userfaultfd,
    /// The ioctl on /dev/userfaultfd that makes a userfaultfd. A filter cannot see paths, so it
    /// must refuse this ioctl.
    UserfaultfdDevice,
    /// The ioctl PAGEMAP_SCAN on /proc/PID/pagemap (Linux 6.7).
    PagemapScan,
    /// The ioctl PROCMAP_QUERY on /proc/PID/maps (Linux 6.11).
    ProcmapQuery,
    /// madvise(2) with this advice, such as `libc::MADV_POPULATE_WRITE`.
    Madvise(i32),
    /// ioctl(2) with this request.
    Ioctl(u32),
    /// Any call with this number, such as `libc::SYS_mremap`.
    Number(i64),
    /// A call with this number whose argument at this index (from 0) has this low half.
    WithArgument(i64, u32, u32),
}

const fn request(dir: u32, kind: u8, nr: u32, size: u32) -> u32 {
    dir << 30 | size << 16 | (kind as u32) << 8 | nr
}

const READ_WRITE: u32 = 3;
const PAGEMAP_SCAN: u32 = request(READ_WRITE, b'f', 16, 96);
const PROCMAP_QUERY: u32 = request(READ_WRITE, b'f', 17, 104);
const USERFAULTFD_IOC_NEW: u32 = request(0, 0xAA, 0, 0);

impl Call {
    /// The number, and the argument's index and value if one is compared.
    fn matched(self) -> (i64, Option<(u32, u32)>) {
        match self {
            Call::Userfaultfd => (libc::SYS_userfaultfd, None),
            Call::UserfaultfdDevice => Call::Ioctl(USERFAULTFD_IOC_NEW).matched(),
            Call::PagemapScan => Call::Ioctl(PAGEMAP_SCAN).matched(),
            Call::ProcmapQuery => Call::Ioctl(PROCMAP_QUERY).matched(),
            Call::Madvise(advice) => (libc::SYS_madvise, Some((2, advice as u32))),
            Call::Ioctl(request) => (libc::SYS_ioctl, Some((1, request))),
            Call::Number(nr) => (nr, None),
            Call::WithArgument(nr, index, value) => (nr, Some((index, value))),
        }
    }
}

/// The fate of a call that is not on a list of allowed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// It fails with this error and does nothing.
    Errno(Errno),
    /// The whole process dies of SIGSYS.
    Kill,
}

impl Denied {
    fn action(self) -> u32 {
        match self {
            Denied::Errno(e) => libc::SECCOMP_RET_ERRNO | e.raw_os_error() as u32,
            Denied::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// A seccomp filter under construction: the first matching rule decides, and all other calls are
/// allowed.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<(Call, u32)>,
    otherwise: Option<u32>,
}

impl Filter {
    /// A filter that allows everything.
    pub fn new() -> Filter {
        Filter::default()
    }

    /// A filter that denies every call, except those that [`allow`](Self::allow) names.
    pub fn deny_all(denied: Denied) -> Filter {
        Filter { rules: Vec::new(), otherwise: Some(denied.action()) }
    }

    /// Makes calls of this kind fail with this error.
    pub fn refuse(self, call: Call, errno: Errno) -> Filter {
        self.rule(call, Denied::Errno(errno).action())
    }

    /// Makes calls of this kind kill the process with SIGSYS.
    pub fn kill(self, call: Call) -> Filter {
        self.rule(call, Denied::Kill.action())
    }

    /// Lets calls of this kind through.
    pub fn allow(self, call: Call) -> Filter {
        self.rule(call, libc::SECCOMP_RET_ALLOW)
    }

    fn rule(mut self, call: Call, action: u32) -> Filter {
        self.rules.push((call, action));
        self
    }

    /// Puts the filter on the calling thread, for good. Threads and children made from now on
    /// inherit it. Sets no_new_privs, without which only a privileged process may do this.
    pub fn install_this_thread(&self) -> Result<(), Unavailable> {
        self.install(0).map(drop)
    }

    /// Puts the filter on all threads of the process, for good.
    pub fn install_all_threads(&self) -> Result<(), Unavailable> {
        match self.install(libc::SECCOMP_FILTER_FLAG_TSYNC)? {
            0 => Ok(()),
            tid => Err(Unavailable::new(format!(
                "thread {tid} has a seccomp filter that the others lack, so one for all cannot be set"
            ))),
        }
    }

    fn install(&self, flags: libc::c_ulong) -> Result<libc::c_long, Unavailable> {
        let mut program = self.program();
        let length = u16::try_from(program.len())
            .map_err(|_| Unavailable::new("the seccomp filter has too many rules"))?;
        let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
        // SAFETY: plain numbers; only this thread's no_new_privs bit changes.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            let e = io::Error::last_os_error();
            return Err(Unavailable::new(format!("no_new_privs cannot be set: {e}")));
        }
        // SAFETY: `program` and the instructions it points to live through the call, and the
        // kernel copies them.
        let result = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program)
        };
        // From here on this thread must make no system call before the caller has published the
        // descriptor: with a listener, calls wait for a supervisor that does not know it yet.
        if result < 0 {
            let e = io::Error::last_os_error();
            return Err(Unavailable::new(format!("a seccomp filter cannot be installed: {e}")));
        }
        Ok(result)
    }

    fn program(&self) -> Vec<libc::sock_filter> {
        let (load, equal, ret) = (
            (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            (libc::BPF_RET | libc::BPF_K) as u16,
        );
        let op = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
        let at = |offset: usize| op(load, offset as u32, 0, 0);
        let nr = std::mem::offset_of!(libc::seccomp_data, nr);
        let arch = std::mem::offset_of!(libc::seccomp_data, arch);
        let mut program = vec![
            at(arch),
            // Another architecture's numbers (32-bit calls) have other meanings: they are allowed.
            op(equal, AUDIT_ARCH, 1, 0),
            op(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        for (call, action) in &self.rules {
            let (number, argument) = call.matched();
            program.push(at(nr));
            match argument {
                None => program.push(op(equal, number as u32, 0, 1)),
                Some((index, value)) => program.extend([
                    op(equal, number as u32, 0, 3),
                    at(low_half_of_argument(index)),
                    op(equal, value, 0, 1),
                ]),
            }
            program.push(op(ret, *action, 0, 0));
        }
        program.push(op(ret, self.otherwise.unwrap_or(libc::SECCOMP_RET_ALLOW), 0, 0));
        program
    }
}

fn low_half_of_argument(index: u32) -> usize {
    let argument = std::mem::offset_of!(libc::seccomp_data, args) + 8 * index as usize;
    if cfg!(target_endian = "little") {
        argument
    } else {
        argument + 4
    }
}

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;
#[cfg(target_arch = "riscv64")]
const AUDIT_ARCH: u32 = 0xC000_00F3;

/// Denies the calling thread every system call except those with these numbers, for good.
///
/// For a proof that a section makes none: a thread or child of its own calls this with
/// [`Denied::Kill`] and the numbers of exit and exit_group, then runs the section, then makes a raw
/// exit.
pub fn deny_all_syscalls_on_this_thread_except(
    numbers: &[i64],
    denied: Denied,
) -> Result<(), Unavailable> {
    let filter = Filter::deny_all(denied);
    numbers.iter().fold(filter, |f, nr| f.allow(Call::Number(*nr))).install_this_thread()
}
