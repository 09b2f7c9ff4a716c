//! memcached and redis: a server of this bench's own behind a Unix socket, and a client for one
//! worker.

#![allow(unsafe_code, reason = "a server ends with its starter")]

use crate::cache::store::{check, Store};
use crate::programs::place::{installed, Place};
use rustix::process::{set_parent_process_death_signal, Signal};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Server {
    Memcached,
    Redis,
}

impl Server {
    pub const ALL: [Server; 2] = [Server::Memcached, Server::Redis];

    pub fn name(self) -> &'static str {
        match self {
            Server::Memcached => "memcached, Unix socket",
            Server::Redis => "redis, Unix socket",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Server::Memcached => "memcached",
            Server::Redis => "redis-server",
        }
    }

    /// Starts it with room for so many bytes.
    ///
    /// # Errors
    /// `Unsupported` if it is not installed or does not start.
    pub fn start(self, most: u64) -> io::Result<Running> {
        let no = |why: String| io::Error::new(io::ErrorKind::Unsupported, why);
        let program = installed(self.program()).map_err(no)?;
        let place = Place::new(None)?;
        let socket = place.dir().join("socket");
        let mebibytes = (most >> 20).to_string();
        let mut command = Command::new(program);
        match self {
            Server::Memcached => {
                command.args(["-m", &mebibytes, "-u", "root", "-s"]).arg(&socket);
            }
            Server::Redis => {
                let options = ["--port", "0", "--save", "", "--appendonly", "no"];
                command.args(options).args(["--maxmemory", &format!("{mebibytes}mb")]);
                command.args(["--maxmemory-policy", "allkeys-lru", "--dir"]).arg(place.dir());
                command.arg("--unixsocket").arg(&socket);
            }
        }
        // SAFETY: only a system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = Running { child: child.spawn()?, socket, server: self, _place: place };
        running.wait()?;
        Ok(running)
    }
}

/// A server, ended when this is dropped.
pub(super) struct Running {
    child: Child,
    socket: PathBuf,
    server: Server,
    // Removed after the server has ended.
    _place: Place,
}

impl Running {
    fn wait(&mut self) -> io::Result<()> {
        let until = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > until {
                let why = format!("{} does not start: {ended:?}", self.server.program());
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// A connection for one worker.
    pub fn client(&self) -> io::Result<Client> {
        Client::connect(self.server, &self.socket)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection.
pub(super) struct Client {
    server: Server,
    talk: Mutex<Talk>,
}

struct Talk {
    stream: BufReader<UnixStream>,
    said: Vec<u8>,
    value: Vec<u8>,
    line: String,
}

impl Client {
    fn connect(server: Server, socket: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        // Bounded, so that a hanging server does not hang the bench.
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        let stream = BufReader::with_capacity(128 << 10, stream);
        let talk = Talk { stream, said: Vec::new(), value: Vec::new(), line: String::new() };
        Ok(Client { server, talk: Mutex::new(talk) })
    }

    fn get<R>(&self, key: u64, look: impl FnOnce(&[u8]) -> R) -> io::Result<Option<R>> {
        let mut talk = self.talk.lock().unwrap_or_else(|poison| poison.into_inner());
        talk.said.clear();
        let is_there = match self.server {
            Server::Memcached => {
                write!(talk.said, "get {key}\r\n")?;
                talk.send()?;
                let line = talk.line()?;
                if line == "END" {
                    false
                } else {
                    let len = number(line.rsplit(' ').next())?;
                    talk.body(len)?;
                    talk.expect("END")?;
                    true
                }
            }
            Server::Redis => {
                let key = key.to_string();
                write!(talk.said, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())?;
                talk.send()?;
                let line = talk.line()?;
                if line == "$-1" {
                    false
                } else {
                    let len = number(line.strip_prefix('$'))?;
                    talk.body(len)?;
                    true
                }
            }
        };
        Ok(is_there.then(|| look(&talk.value)))
    }

    fn set(&self, key: u64, bytes: &[u8]) -> io::Result<()> {
        let mut talk = self.talk.lock().unwrap_or_else(|poison| poison.into_inner());
        talk.said.clear();
        let (len, key) = (bytes.len(), key.to_string());
        let stored = match self.server {
            Server::Memcached => {
                write!(talk.said, "set {key} 0 0 {len}\r\n")?;
                "STORED"
            }
            Server::Redis => {
                let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n", key.len());
                talk.said.extend_from_slice(head.as_bytes());
                "+OK"
            }
        };
        talk.said.extend_from_slice(bytes);
        talk.said.extend_from_slice(b"\r\n");
        talk.send()?;
        talk.expect(stored)
    }
}

impl Talk {
    fn send(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.said)
    }

    fn line(&mut self) -> io::Result<&str> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        Ok(self.line.trim_end())
    }

    fn expect(&mut self, wanted: &str) -> io::Result<()> {
        match self.line()? {
            line if line == wanted => Ok(()),
            other => Err(io::Error::other(format!("the server replied {other:?}, not {wanted}"))),
        }
    }

    fn body(&mut self, len: usize) -> io::Result<()> {
        self.value.resize(len, 0);
        self.stream.read_exact(&mut self.value)?;
        self.stream.read_exact(&mut [0; 2])
    }
}

fn number(text: Option<&str>) -> io::Result<usize> {
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("the server replied {text:?}, not a length")))
}

impl Store for Client {
    fn read(&self, key: u64) -> Option<bool> {
        // A closed connection finds nothing; the misses are counted.
        self.get(key, |value| check(value, key)).ok().flatten()
    }

    fn write(&self, key: u64, bytes: &[u8]) -> io::Result<()> {
        self.set(key, bytes)
    }

    fn settled_len(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::store::{blank, Tally};

    #[test]
    fn a_server_keeps_what_it_was_given() {
        for server in Server::ALL {
            let running = match server.start(64 << 20) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    eprintln!("skipped: {error}");
                    continue;
                }
                running => running.unwrap(),
            };
            let client = running.client().unwrap();
            for len in [16, 1 << 10, 100 << 10] {
                client.write_each(&[1, 2], &mut blank(len)).unwrap();
                assert_eq!(client.read_each(&[1, 2]), Tally::default(), "{server:?}");
            }
            assert_eq!(client.read_each(&[3]), Tally { misses: 1, wrong: 0 }, "{server:?}");
        }
    }
}
