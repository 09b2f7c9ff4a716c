//! Clients: connections that request pictures, the popular ones more often, and check each byte of
//! each response.

use crate::picture;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many pictures there are: 512 MiB.
pub const PICTURES: u64 = 8192;
/// The exponent of the Zipf distribution of the requests.
const SKEW: f64 = 0.8;

/// The results of the clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Responses with the right bytes.
    pub right: u64,
    /// Responses with other bytes.
    pub wrong: u64,
    /// Refused requests and broken connections.
    pub failed: u64,
    /// The longest time for a response.
    pub longest: Duration,
}

impl Seen {
    fn and(self, other: Seen) -> Seen {
        Seen {
            right: self.right + other.right,
            wrong: self.wrong + other.wrong,
            failed: self.failed + other.failed,
            longest: self.longest.max(other.longest),
        }
    }
}

/// A connection that stays open.
pub struct Client {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Client {
    /// # Errors
    /// No process listens there.
    pub fn connect(server: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&server, Duration::from_secs(2))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Client { stream: BufReader::new(stream), body: Vec::new() })
    }

    /// Returns the response's status and body.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn get(&mut self, path: &str) -> io::Result<(u16, &[u8])> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        let (mut line, mut status, mut length) = (String::new(), 0, 0);
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let text = line.trim_end().to_ascii_lowercase();
            if text.is_empty() {
                break;
            }
            if text.starts_with("http/") {
                let number = text.split(' ').nth(1).and_then(|number| number.parse().ok());
                status = number.ok_or_else(broken)?;
            }
            if let Some(number) = text.strip_prefix("content-length:") {
                length = number.trim().parse().map_err(|_| broken())?;
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok((status, &self.body))
    }
}

/// Sends requests on so many connections for so long. The server may come back under another
/// address meanwhile.
pub fn ask(server: &Mutex<SocketAddr>, connections: u64, how_long: Duration) -> Seen {
    let until = Instant::now() + how_long;
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..connections).map(|seed| scope.spawn(move || one(server, seed, until))).collect();
        let seen = clients.into_iter().filter_map(|client| client.join().ok());
        seen.fold(Seen::default(), Seen::and)
    })
}

fn one(server: &Mutex<SocketAddr>, seed: u64, until: Instant) -> Seen {
    let mut random = SmallRng::seed_from_u64(seed);
    let popular = Zipf::new(PICTURES as f64, SKEW).expect("a number of pictures and a skew");
    let mut seen = Seen::default();
    let mut open = None;
    while Instant::now() < until {
        let number = random.sample(popular) as u64;
        let asked = Instant::now();
        if open.is_none() {
            let address = *server.lock().expect("nobody panics with the address");
            open = Client::connect(address).ok();
        }
        let answer = open.as_mut().map(|client| client.get(&format!("/picture/{number}")));
        match answer {
            Some(Ok((200, body))) if picture::is_right(body, number) => seen.right += 1,
            Some(Ok((200, _))) => seen.wrong += 1,
            Some(Ok(_)) => seen.failed += 1,
            Some(Err(_)) | None => {
                seen.failed += 1;
                open = None;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        seen.longest = seen.longest.max(asked.elapsed());
    }
    seen
}
