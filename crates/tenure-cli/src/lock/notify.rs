//! Notifies the service manager (`Type=notify` of systemd, and others with its protocol).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tenure_command::call::failed;

/// Sends `state`, such as `READY=1`, to `$NOTIFY_SOCKET`, if there is one.
pub fn tell(state: &str) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(name) if !name.is_empty() => send(&name, state),
        _ => Ok(()),
    }
}

fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let sent = UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address);
    sent.map(drop).map_err(|error| failed("sendto", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_socket_hear_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let name = format!("tenure-notify-{}", std::process::id());
        let on_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let abstract_one = UnixDatagram::bind_addr(&address).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        let mut buffer = [0; 64];
        let mut hear = |socket: &UnixDatagram| {
            let len = socket.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..len]).into_owned()
        };
        assert_eq!(hear(&on_path), "READY=1");
        assert_eq!(hear(&abstract_one), "STOPPING=1");
        assert!(send(OsStr::new("/nonexistent/socket"), "READY=1").is_err());
    }
}
