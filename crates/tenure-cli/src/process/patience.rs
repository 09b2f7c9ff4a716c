//! Reads of a process that may have to wait for it.
//!
//! While a process maps, populates or locks much memory, the kernel holds the lock of its memory map,
//! and everybody waits who reads its mappings or its memory: seconds, beside a thread that populates
//! some GiB and others that call `mmap`.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// After so long the user is told.
const SILENT: Duration = Duration::from_secs(1);

/// Reads on a thread of its own.
///
/// If no thread can be started, the caller reads.
///
/// # Errors
/// If it takes longer than `most`, the place where the result arrives later.
pub fn within<T: Send + 'static>(
    most: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Receiver<T>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // It stays here if there is no thread to take it.
    let read = Arc::new(Mutex::new(Some(read)));
    let taken = Arc::clone(&read);
    let take = |read: &Mutex<Option<_>>| read.lock().ok().and_then(|mut read| read.take());
    let started = thread::Builder::new().stack_size(256 << 10).spawn(move || {
        if let Some(read) = take(&taken) {
            // Nobody may wait any more.
            let _ = sender.send(read());
        }
    });
    match started.is_err().then(|| take(&read)).flatten() {
        Some(read) => Ok(read()),
        None => receiver.recv_timeout(most).map_err(|_| receiver),
    }
}

/// Reads a process for a user who waits. If that takes long, says why on standard error.
pub fn noted<T>(pid: u32, read: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Without the thread, nothing is said.
        let _ = thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, move || {
            if is_done.recv_timeout(SILENT) == Err(RecvTimeoutError::Timeout) {
                // Standard error may be closed.
                let _ = writeln!(
                    io::stderr(),
                    "tenure: waits for process {pid}: it has very many mappings, or it maps, \
                     populates or locks memory, and the kernel lets nobody read its memory map \
                     meanwhile"
                );
            }
        });
        let result = read();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_read_arrives_later() {
        let (go, gone) = mpsc::channel::<u32>();
        let later = within(Duration::from_millis(1), move || gone.recv().unwrap()).unwrap_err();
        assert!(later.try_recv().is_err());
        go.send(7).unwrap();
        assert_eq!(later.recv(), Ok(7));
        assert_eq!(within(Duration::from_secs(60), || 8).ok(), Some(8));
        assert_eq!(noted(1, || 9), 9);
    }
}
