//! Decides about a program's system calls from outside, in the process that starts it.

#![allow(
    unsafe_code,
    reason = "hands a descriptor from a child to its parent, and reads what the kernel asks"
)]

use super::notify::{answer, notification, Asked};
use super::{Call, Errno, Filter};
use crate::unavailable::Unavailable;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The kernel makes it.
    GoOn,
    /// It fails with this error, and the kernel does nothing.
    Fail(Errno),
    /// It returns 0, and the kernel does nothing.
    Zero,
}

/// The watched calls of a started program, its threads and its children.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Takes the next call. `None`: its caller died or was interrupted in between.
    pub fn next(&self) -> Option<Asked> {
        notification(&self.0)
    }

    /// Sends the decision about a call.
    pub fn answer(&self, asked: &Asked, with: Answer) {
        answer(
            &self.0,
            asked.id,
            match with {
                Answer::GoOn => Some(0),
                Answer::Fail(errno) => Some(errno.raw_os_error()),
                Answer::Zero => None,
            },
        );
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Starts a program under a filter whose notifications go to the calling process: each of the
/// `calls` waits for a decision. The program and all that it starts die with the calling thread.
///
/// Under the filter the program waits in its first such call until [`Listener::next`] takes it.
/// After the listener is dropped, the calls fail with `ENOSYS`.
pub fn start_watched(
    command: &mut Command,
    calls: &[Call],
) -> Result<(Child, Listener), Unavailable> {
    start(command, calls).map_err(|e| Unavailable::new(format!("a program cannot be watched: {e}")))
}

fn start(command: &mut Command, calls: &[Call]) -> io::Result<(Child, Listener)> {
    let filter = calls
        .iter()
        .fold(Filter::new(), |filter, call| filter.rule(*call, libc::SECCOMP_RET_USER_NOTIF));
    let mut program = filter.program();
    let (ours, theirs) = UnixStream::pair()?;
    let to_parent = theirs.try_clone()?;
    let install = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let listener = install_with_listener(&mut program)?;
        send(&to_parent, &listener)?;
        // The exec closes it. A drop would make watched calls before the other process can decide
        // about them.
        std::mem::forget(listener);
        Ok(())
    };
    // SAFETY: the closure only makes system calls. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(install) };
    let child = command.spawn()?;
    drop(theirs);
    Ok((child, Listener(receive(&ours)?)))
}

fn install_with_listener(program: &mut [libc::sock_filter]) -> io::Result<OwnedFd> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(Errno::TOOBIG))?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: plain numbers; only this thread's no_new_privs bit changes.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // The first flag (Linux 5.19) keeps a signal from making a waiting call start again, which
    // would count it twice.
    for flags in [listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, listen] {
        // SAFETY: `program` and the instructions it points to live through the call, and the kernel
        // copies them.
        let fd = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program)
        };
        if fd >= 0 {
            // SAFETY: the kernel has just made this descriptor, and no other code knows its number.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
        }
    }
    Err(io::Error::last_os_error())
}

fn send(socket: &UnixStream, listener: &OwnedFd) -> io::Result<()> {
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    buffer.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut buffer, SendFlags::empty())?;
    Ok(())
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut buffer, RecvFlags::CMSG_CLOEXEC)?;
    for message in buffer.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            if let Some(fd) = fds.next() {
                return Ok(fd);
            }
        }
    }
    Err(io::Error::other("the child sent no listener"))
}
