//! The keeper: one background thread that tells the kernel what it may take, and when.
//!
//! A pin or unpin changes one word in a [`node`]; the keeper goes through the nodes in rounds
//! ([`round`]), sees which have been left alone, and offers them ([`pages`]). Taking pages back is
//! done by whoever pins them.

pub(crate) mod bound;
pub(crate) mod chores;
pub(crate) mod gate;
pub(crate) mod inbox;
pub(crate) mod index;
pub(crate) mod node;
pub(crate) mod pages;
pub(crate) mod pin;
pub(crate) mod records;
pub(crate) mod relief;
pub(crate) mod room;
pub(crate) mod round;
pub(crate) mod settings;
pub(crate) mod thread;
pub(crate) mod watch;

use crate::error::{Error, ErrorKind, Result};
use crate::os;
use std::sync::Once;

/// Makes the keeper look at its settings and ranges now.
pub(crate) fn wake() {
    if thread::running() {
        inbox::wake();
    }
}

/// Gets everything ready for the first volatile range: the capability probe, the fork handlers, the
/// keeper's thread.
///
/// # Errors
/// `EOPNOTSUPP` where the kernel refuses `MADV_FREE`: nothing can stand in for it.
pub(crate) fn ready(call: &'static str) -> Result<()> {
    watch_forks();
    if thread::running() && watch::decided() {
        return Ok(());
    }
    if !os::probe::capabilities().lazy_free() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            call,
            "this kernel or its seccomp profile refuses MADV_FREE",
            "allow madvise(MADV_FREE), in Linux since 4.5; `tenure doctor` shows what is refused",
        ));
    }
    watch::detection();
    start(call)
}

/// Reads the environment and watches forks, once; makes up for a fork that went unseen. Cheap: one
/// load each later on. Starts no thread and may be called wherever memory may be allocated.
pub(crate) fn watch_forks() {
    static ENVIRONMENT: Once = Once::new();
    ENVIRONMENT.call_once(settings::read_environment);
    gate::install();
    if os::fork::missed() {
        os::fork::make_up();
    }
}

/// Starts the keeper unless it runs, for [`chores`]: no volatile range is needed for them, nor
/// `MADV_FREE`.
///
/// It creates a thread, which allocates: not to be called by an allocator that holds its own locks.
///
/// # Errors
/// `EAGAIN`: no thread could be created.
pub(crate) fn start(call: &'static str) -> Result<()> {
    watch_forks();
    if thread::running() {
        return Ok(());
    }
    thread::start().map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Error::system(call, "starting the keeper's thread", errno)
    })
}
