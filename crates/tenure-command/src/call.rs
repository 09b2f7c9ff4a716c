//! Errors of system calls: with the call and a remedy.

use std::io::{Error, ErrorKind};
use std::path::Path;

/// Adds the call that failed, and a remedy, to an error of the kernel: `open: Permission denied (os
/// error 13); check ...`. The caller puts the file's name before it. Other errors have their reason
/// already.
pub fn failed(call: &str, error: Error) -> Error {
    if error.raw_os_error().is_none() {
        return error;
    }
    let remedy = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            "; check the name, and that its directory exists"
        }
        ErrorKind::PermissionDenied => "; check the rights (namei -l), or do it as root (sudo)",
        ErrorKind::IsADirectory => "; name a file, not a directory",
        ErrorKind::AlreadyExists => "; remove it, or give another name",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free space, or write elsewhere",
        ErrorKind::ReadOnlyFilesystem => "; write elsewhere",
        ErrorKind::OutOfMemory => "; free memory, or raise the limits on it",
        // Files of the process, and of the machine.
        _ if matches!(error.raw_os_error(), Some(23 | 24)) => "; allow more files (ulimit -n)",
        _ => "",
    };
    Error::new(error.kind(), format!("{call}: {error}{remedy}"))
}

/// [`failed`], with the file's name before it.
pub fn failed_at(path: &Path, call: &str, error: Error) -> Error {
    Error::new(error.kind(), format!("{}: {}", path.display(), failed(call, error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_call_and_a_remedy() {
        let text = |number| failed("open", Error::from_raw_os_error(number)).to_string();
        assert!(text(2).starts_with("open: No such file or directory (os error 2); check the name"));
        assert!(text(24).ends_with("(os error 24); allow more files (ulimit -n)"));
        assert_eq!(text(5), "open: Input/output error (os error 5)");
        // Once is enough.
        let twice = failed("read", failed("open", Error::from_raw_os_error(21)));
        assert_eq!(twice.to_string(), text(21));
        assert_eq!(twice.kind(), ErrorKind::IsADirectory);
    }
}
