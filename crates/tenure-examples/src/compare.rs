//! The service on each cache in turn, in a memory cgroup that a neighbour shares.

use crate::load::{self, Client, Seen};
use crate::picture;
use crate::service::Kind;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tenure_measure::{Competitor, MemoryCgroup};

/// The memory of server and neighbour together.
const LIMIT: u64 = 256 << 20;
/// The memory that the neighbour needs half of the time.
const NEED: u64 = 112 << 20;
const HALF_A_PULSE: Duration = Duration::from_secs(2);
const CONNECTIONS: u64 = 8;
const LOOK: Duration = Duration::from_millis(20);

/// A server and its counts so far.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(kind: Kind, group: &MemoryCgroup) -> Result<Server, Box<dyn Error>> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("serve");
        if let Kind::Moka(bytes) = kind {
            command.arg(bytes.to_string());
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        group.add_pid(child.id())?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("the server has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        Ok(Server { child, address: line.trim().parse()? })
    }

    /// Drawn pictures, and bytes requested from the allocator.
    fn counters(&self) -> Option<(u64, u64)> {
        let mut client = Client::connect(self.address).ok()?;
        let (_, body) = client.get("/counters").ok()?;
        let (drawn, bytes) = std::str::from_utf8(body).ok()?.split_once(' ')?;
        Some((drawn.parse().ok()?, bytes.parse().ok()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A neighbour that needs memory, and a while later none.
struct Neighbour {
    competitor: Competitor,
    next: Instant,
    needs: bool,
    waits_since: Option<Instant>,
}

impl Neighbour {
    fn start(group: &MemoryCgroup) -> Result<Neighbour, Box<dyn Error>> {
        let competitor = Competitor::spawn(Some(group))?;
        Ok(Neighbour {
            competitor,
            next: Instant::now() + HALF_A_PULSE,
            needs: false,
            waits_since: None,
        })
    }

    /// How long it has waited for its memory, once it has it. An error: it was killed.
    fn look(&mut self) -> Result<Option<Duration>, Box<dyn Error>> {
        if let Some(since) = self.waits_since {
            let Some(answer) = self.competitor.answer_within(Duration::ZERO) else {
                return Ok(None);
            };
            answer?;
            self.waits_since = None;
            return Ok(self.needs.then(|| since.elapsed()));
        }
        if Instant::now() >= self.next {
            self.next += HALF_A_PULSE;
            self.needs = !self.needs;
            match self.needs {
                true => self.competitor.ask_need(NEED),
                false => self.competitor.ask_release(),
            }
            self.waits_since = Some(Instant::now());
        }
        Ok(None)
    }
}

/// The result of one service.
struct Row {
    kind: Kind,
    seen: Seen,
    drawn: u64,
    allocated: u64,
    server_kills: u64,
    neighbour_kills: u64,
    longest_wait: Duration,
}

fn one(kind: Kind, how_long: Duration) -> Result<Row, Box<dyn Error>> {
    let group = MemoryCgroup::create("pictures", LIMIT)?;
    let mut server = Server::start(kind, &group)?;
    let mut neighbour = Neighbour::start(&group)?;
    let address = Mutex::new(server.address);
    let (mut drawn, mut allocated) = (0, 0);
    let mut row = Row {
        kind,
        seen: Seen::default(),
        drawn: 0,
        allocated: 0,
        server_kills: 0,
        neighbour_kills: 0,
        longest_wait: Duration::ZERO,
    };
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let clients = scope.spawn(|| load::ask(&address, CONNECTIONS, how_long));
        let mut counted = Instant::now();
        while !clients.is_finished() {
            std::thread::sleep(LOOK);
            if server.child.try_wait()?.is_some() {
                row.server_kills += 1;
                // Drawings since its last report are lost.
                (row.drawn, row.allocated) = (row.drawn + drawn, row.allocated + allocated);
                (drawn, allocated) = (0, 0);
                server = Server::start(kind, &group)?;
                *address.lock().expect("nobody panics with the address") = server.address;
            }
            match neighbour.look() {
                Ok(waited) => row.longest_wait = row.longest_wait.max(waited.unwrap_or_default()),
                Err(_) => {
                    row.neighbour_kills += 1;
                    neighbour = Neighbour::start(&group)?;
                }
            }
            if counted.elapsed() > Duration::from_millis(200) {
                (drawn, allocated) = server.counters().unwrap_or((drawn, allocated));
                counted = Instant::now();
            }
        }
        row.seen = clients.join().map_err(|_| "a client panicked")?;
        Ok(())
    })?;
    (drawn, allocated) = server.counters().unwrap_or((drawn, allocated));
    (row.drawn, row.allocated) = (row.drawn + drawn, row.allocated + allocated);
    Ok(row)
}

/// Runs the service on each cache, `rounds` times each, and prints the results.
///
/// # Errors
/// This user may make no memory cgroup, or a program does not start.
pub fn compare(how_long: Duration, rounds: usize) -> Result<(), Box<dyn Error>> {
    MemoryCgroup::sweep()?;
    let bold = Kind::Moka(LIMIT - (64 << 20));
    let kinds = [Kind::Tenure, Kind::Moka(LIMIT - NEED - (48 << 20)), bold];
    println!(
        "pictures of {} KiB, {} of them, asked for by {CONNECTIONS} connections; a memory cgroup of {} MiB, of which\n\
         a neighbour needs {} MiB half of the time. Each cache in turn, {how_long:?} each, {rounds} rounds\n",
        picture::BYTES >> 10,
        load::PICTURES,
        LIMIT >> 20,
        NEED >> 20,
    );
    println!(
        "{:<16} {:>8} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>14}",
        "cache",
        "answers",
        "failed",
        "drawn",
        "wrong",
        "kills",
        "neighbour",
        "its wait",
        "allocated"
    );
    for _ in 0..rounds {
        for kind in kinds {
            let row = one(kind, how_long)?;
            let name = match row.kind {
                Kind::Tenure => "tenure".to_owned(),
                Kind::Moka(bytes) => format!("moka {} MiB", bytes >> 20),
            };
            let answers = row.seen.right.max(1);
            // The memory into which a picture is drawn is no copy for the response.
            let beside = row.allocated.saturating_sub(row.drawn * picture::BYTES as u64);
            println!(
                "{name:<16} {:>8} {:>7} {:>6.1}% {:>6} {:>10} {:>10} {:>7} ms {:>7} B each",
                row.seen.right,
                row.seen.failed,
                row.drawn as f64 * 100.0 / answers as f64,
                row.seen.wrong,
                row.server_kills,
                row.neighbour_kills,
                row.longest_wait.as_millis(),
                beside / answers,
            );
        }
    }
    println!("\nallocated: bytes asked of the allocator for an answer, beside those a picture is drawn into");
    Ok(())
}
