//! The messages between the demo's processes: one line of JSON each, over pipes.

use super::piece::Pieces;
use super::store::Kind;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::io::{BufRead, Write};

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToWorker {
    /// The first message: the work and its files.
    Plan(Box<Plan>),
    /// Start serving.
    Go,
    /// Give up this many bytes if the kernel may take them (only without a cgroup).
    GiveUp(u64),
    /// Stop, report and exit.
    Stop,
}

/// A worker's job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The cache to use.
    pub store: Kind,
    /// The worker's number, from 0.
    pub worker: u32,
    /// Threads that serve.
    pub threads: u32,
    /// Zipf's exponent.
    pub exponent: f64,
    /// The seed of the sequence of requests.
    pub seed: u64,
    /// zstd's level.
    pub level: i32,
    /// The limit, if no cgroup shows it to the worker.
    pub stand_in_limit: Option<u64>,
    /// The pieces of the requests, the most popular first.
    pub pieces: Pieces,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromWorker {
    /// The plan is parsed and the cache is made.
    Ready,
    /// Every tenth of a second.
    Progress(Counts),
    /// The last counts.
    Done(Counts),
}

/// A worker's counts since it started to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests served.
    pub requests: u64,
    /// Requests that were served from the cache.
    pub hits: u64,
    /// Values made.
    pub made: u64,
    /// Values that had been made before in this run.
    pub made_again: u64,
    /// Seconds of processor time for those.
    pub made_again_seconds: f64,
    /// Values from the cache that differ from the inserted bytes.
    pub wrong_values: u64,
    /// The bytes of those values.
    pub wrong_bytes: u64,
    /// Values that differ from the first ones, because their file has changed.
    pub changed_files: u64,
    /// Bytes that the cache takes for values.
    pub cache_bytes: u64,
    /// Bytes that the kernel has taken from the cache.
    pub taken_bytes: u64,
    /// How often it has tried to give up memory on request.
    pub tries: u64,
    /// Bytes that it has given up in all of them.
    pub given_up_bytes: u64,
}

impl Counts {
    /// The sum of both. Workers with one cache report one number of bytes.
    #[must_use]
    pub fn with(&self, other: &Counts, one_cache: bool) -> Counts {
        let bytes = |mine: u64, others: u64| match one_cache {
            true => mine.max(others),
            false => mine + others,
        };
        Counts {
            requests: self.requests + other.requests,
            hits: self.hits + other.hits,
            made: self.made + other.made,
            made_again: self.made_again + other.made_again,
            made_again_seconds: self.made_again_seconds + other.made_again_seconds,
            wrong_values: self.wrong_values + other.wrong_values,
            wrong_bytes: self.wrong_bytes + other.wrong_bytes,
            changed_files: self.changed_files + other.changed_files,
            cache_bytes: bytes(self.cache_bytes, other.cache_bytes),
            taken_bytes: bytes(self.taken_bytes, other.taken_bytes),
            tries: self.tries + other.tries,
            given_up_bytes: self.given_up_bytes + other.given_up_bytes,
        }
    }
}

/// To the neighbour: hold this many bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hold {
    /// The number of bytes.
    pub bytes: u64,
}

/// From the neighbour.
#[derive(Debug, Serialize, Deserialize)]
pub struct Holds {
    /// Bytes it holds, every page written to.
    pub bytes: u64,
    /// The seconds that this took.
    pub seconds: f64,
}

/// Writes a message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    Ok(to.flush()?)
}

/// Reads the next message; `None` at the end, which may cut a line short.
pub fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> anyhow::Result<Option<T>> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_through_and_a_cut_line_is_the_end() {
        let mut pipe = Vec::new();
        let counts = Counts { requests: 5, hits: 3, ..Counts::default() };
        send(&mut pipe, &FromWorker::Ready).unwrap();
        send(&mut pipe, &FromWorker::Progress(counts)).unwrap();
        pipe.extend_from_slice(b"{\"Done\":{\"requ");
        let mut from = &pipe[..];
        assert!(matches!(receive(&mut from).unwrap(), Some(FromWorker::Ready)));
        let Some(FromWorker::Progress(got)) = receive(&mut from).unwrap() else { panic!() };
        assert_eq!(got, counts);
        assert!(receive::<FromWorker>(&mut from).unwrap().is_none());
        assert!(receive::<FromWorker>(&mut &b"nonsense\n"[..]).is_err());
    }
}
