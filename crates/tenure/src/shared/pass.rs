//! Passes a descriptor to another process over a Unix socket.

use crate::error::{Error, ErrorKind, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::mem::MaybeUninit;

/// One byte goes with a descriptor: a message without bytes could be lost on a stream.
const TAG: u8 = b'T';

/// Sends the descriptor of shared memory or of a shared cache over a Unix socket, to a process that
/// calls [`receive`].
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use tenure::shared::{receive, send, SharedVolatile};
/// let (here, there) = UnixStream::pair().unwrap();
/// let shared = SharedVolatile::new(1 << 20)?;
/// send(&here, &shared)?;
/// // SAFETY: only this program has the descriptor.
/// let other = unsafe { SharedVolatile::open(receive(&there)?) }?;
/// assert_eq!(other.chunks(), 16);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// The errors of `sendmsg(2)`: `EAGAIN`, `EPIPE`, `EBADF`.
#[doc(alias = "SCM_RIGHTS")]
pub fn send(socket: impl AsFd, shared: &impl AsFd) -> Result<()> {
    let call = "shared::send";
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [shared.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Error::new(ErrorKind::System, call, "no room for a descriptor", "report it"));
    }
    let tag = [TAG];
    sendmsg(socket, &[IoSlice::new(&tag)], &mut ancillary, SendFlags::NOSIGNAL)
        .map(|_| ())
        .map_err(|errno| Error::system(call, "sendmsg", errno))
}

/// Receives a descriptor that [`send`] has sent. It closes at `exec`. Pass it to
/// [`SharedVolatile::open`](super::SharedVolatile::open).
///
/// ```
/// use std::os::unix::net::UnixStream;
/// let (here, there) = UnixStream::pair().unwrap();
/// drop(here);
/// assert_eq!(tenure::shared::receive(&there).unwrap_err().errno(), 71); // EPROTO: the peer is gone
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// The errors of `recvmsg(2)`. `EPROTO`: no descriptor came with the message.
pub fn receive(socket: impl AsFd) -> Result<OwnedFd> {
    let call = "shared::receive";
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut tag = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut tag)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(|errno| Error::system(call, "recvmsg", errno))?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.ok_or_else(|| {
        let why = "no descriptor came with the message";
        Error::new(ErrorKind::BadHeader, call, why, "send it with shared::send")
    })
}
