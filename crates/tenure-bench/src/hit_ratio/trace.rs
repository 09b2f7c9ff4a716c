//! A sequence of requests, and the files from which it can be read.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use tenure_command::call::failed_at;

/// One request. Keys are numbered from 0 in the order of their first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub key: u32,
    /// Bytes of the key's value. A value keeps its first size.
    pub size: u32,
}

/// The requests, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    pub name: String,
    pub requests: Vec<Request>,
    /// The size of each key's value.
    pub sizes: Vec<u32>,
}

/// Builds a trace from keys of any kind.
pub(crate) struct Builder {
    numbers: HashMap<u64, u32>,
    raw: Vec<(u32, u64)>,
    sizes: Vec<u64>,
    most: usize,
}

/// The smallest and the largest value.
const SIZES: (u64, u64) = (64, 256 << 10);

impl Builder {
    /// For up to `most` requests.
    pub fn new(most: usize) -> Builder {
        Builder { numbers: HashMap::new(), raw: Vec::new(), sizes: Vec::new(), most }
    }

    /// Adds a request; `false`: the trace has reached its limit.
    pub fn add(&mut self, key: u64, size: u64) -> bool {
        if self.raw.len() == self.most {
            return false;
        }
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.sizes.push(size.max(1));
        }
        self.raw.push((number, size));
        true
    }

    /// Returns the trace. Its sizes are scaled so that all keys' values together take about
    /// `bytes`.
    pub fn finish(self, name: impl Into<String>, bytes: u64) -> Trace {
        let total: u64 = self.sizes.iter().sum();
        let scale = bytes as f64 / total.max(1) as f64;
        let scaled = |size: &u64| {
            let size = (*size as f64 * scale) as u64;
            size.clamp(SIZES.0, SIZES.1).next_multiple_of(8) as u32
        };
        let sizes: Vec<u32> = self.sizes.iter().map(scaled).collect();
        let request = |&(key, _): &(u32, u64)| Request { key, size: sizes[key as usize] };
        let requests = self.raw.iter().map(request).collect();
        Trace { name: name.into(), requests, sizes }
    }
}

impl Trace {
    /// Bytes of all keys' values.
    pub fn distinct_bytes(&self) -> u64 {
        self.sizes.iter().map(|size| u64::from(*size)).sum()
    }

    /// Reads up to `most` requests of a file: ARC's `.lis`, libCacheSim's csv (`.csv`), or its
    /// oracleGeneral format (any other name). Each may be compressed (`.zst`).
    ///
    /// # Errors
    /// If the file cannot be read, or has no requests.
    pub fn read(path: &Path, most: usize, bytes: u64) -> io::Result<Trace> {
        Self::parse(path, most, bytes).map_err(|error| failed_at(path, "read", error))
    }

    fn parse(path: &Path, most: usize, bytes: u64) -> io::Result<Trace> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let plain = name.strip_suffix(".zst");
        let file = File::open(path)?;
        let mut input: Box<dyn BufRead> = match plain {
            Some(_) => decompressed(file)?,
            None => Box::new(BufReader::new(file)),
        };
        let plain = plain.unwrap_or(&name);
        let mut builder = Builder::new(most);
        match plain.rsplit_once('.') {
            Some((_, "lis")) => read_arc(&mut builder, &mut input)?,
            Some((_, "csv")) => read_csv(&mut builder, &mut input)?,
            _ => read_oracle_general(&mut builder, &mut input)?,
        }
        if builder.raw.is_empty() {
            return Err(invalid("it has no requests"));
        }
        Ok(builder.finish(plain, bytes))
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

#[cfg(feature = "zstd")]
fn decompressed(file: File) -> io::Result<Box<dyn BufRead>> {
    Ok(Box::new(BufReader::new(zstd::Decoder::new(file)?)))
}

#[cfg(not(feature = "zstd"))]
fn decompressed(_: File) -> io::Result<Box<dyn BufRead>> {
    Err(invalid("this build cannot read compressed traces: decompress it first"))
}

/// Lines of a first block, the number of blocks, and two fields that do not matter here.
fn read_arc(builder: &mut Builder, input: &mut dyn BufRead) -> io::Result<()> {
    for (number, line) in input.lines().enumerate() {
        let line = line?;
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
        match (fields.next(), fields.next()) {
            (None, _) => {}
            (Some(Ok(first)), Some(Ok(count))) => {
                for key in first..first.saturating_add(count) {
                    if !builder.add(key, 1) {
                        return Ok(());
                    }
                }
            }
            _ => return Err(invalid(format!("line {} is no \"first count\"", number + 1))),
        }
    }
    Ok(())
}

/// Lines of a time, a key, a size and perhaps more. A first line that names the columns may differ
/// in their order. Lines of one field are keys.
fn read_csv(builder: &mut Builder, input: &mut dyn BufRead) -> io::Result<()> {
    let (mut key_at, mut size_at) = (1, 2);
    for (number, line) in input.lines().enumerate() {
        let line = line?;
        let fields: Vec<&str> = line.split([',', '\t', ';']).map(str::trim).collect();
        if fields == [""] {
            continue;
        }
        if number == 0 && fields.iter().all(|field| field.parse::<f64>().is_err()) {
            let column = |of: &[&str]| {
                fields.iter().position(|field| {
                    let field = field.trim_start_matches('#').trim().to_lowercase();
                    of.iter().any(|name| field.contains(name))
                })
            };
            let key = column(&["obj", "key", "id", "lbn", "lba"]);
            let size = column(&["size", "len"]);
            if let Some(key) = key {
                (key_at, size_at) = (key, size.unwrap_or(usize::MAX));
                continue;
            }
        }
        let key = if fields.len() == 1 { fields.first() } else { fields.get(key_at) };
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            return Err(invalid(format!("line {} has no key", number + 1)));
        };
        let size = fields.get(size_at).and_then(|size| size.parse().ok()).unwrap_or(1);
        if !builder.add(key.parse().unwrap_or_else(|_| hash(key)), size) {
            break;
        }
    }
    Ok(())
}

/// The number of a key that is not a number. 64 bits: two keys of a trace hardly ever collide.
fn hash(key: &str) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(key.as_bytes());
    hasher.finish()
}

/// Records of 24 bytes: time (32 bits), key (64), size (32), next request (64), little endian.
fn read_oracle_general(builder: &mut Builder, input: &mut dyn BufRead) -> io::Result<()> {
    let mut record = [0u8; 24];
    loop {
        let mut filled = 0;
        while filled < record.len() {
            match input.read(&mut record[filled..])? {
                0 if filled == 0 => return Ok(()),
                0 => return Err(invalid("it ends within a record of 24 bytes")),
                more => filled += more,
            }
        }
        let word =
            |at: usize| record[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        if !builder.add(word(8) << 32 | word(4), word(12)) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, contents: &[u8]) -> io::Result<Trace> {
        // The ending of the name says the format.
        let own = format!("tenure-trace-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(own);
        std::fs::write(&path, contents)?;
        let trace = Trace::read(&path, 1000, 4000);
        std::fs::remove_file(&path)?;
        trace
    }

    fn keys(trace: &Trace) -> Vec<u32> {
        trace.requests.iter().map(|request| request.key).collect()
    }

    #[test]
    fn each_format_is_read() {
        let arc = read("a.lis", b"7 3 0 0\n8 1 0 1\n").unwrap();
        assert_eq!((keys(&arc), arc.sizes.len()), (vec![0, 1, 2, 1], 3));

        let csv = read("b.csv", b"1, 77, 100\n2, x, 300\n3, 77, 100\n").unwrap();
        assert_eq!((keys(&csv), &csv.sizes[..]), (vec![0, 1, 0], &[1000, 3000][..]));
        let named = read("c.csv", b"obj_id,obj_size,time\n5,100,1\n6,300,2\n").unwrap();
        assert_eq!((keys(&named), &named.sizes[..]), (vec![0, 1], &[1000, 3000][..]));

        let mut records = Vec::new();
        for (key, size) in [(1u64 << 40, 100u32), (2, 300), (1 << 40, 100)] {
            records.extend_from_slice(&9u32.to_le_bytes());
            records.extend_from_slice(&key.to_le_bytes());
            records.extend_from_slice(&size.to_le_bytes());
            records.extend_from_slice(&u64::MAX.to_le_bytes());
        }
        let oracle = read("d.oracleGeneral", &records).unwrap();
        assert_eq!((keys(&oracle), &oracle.sizes[..]), (vec![0, 1, 0], &[1000, 3000][..]));
        assert!(read("e.oracleGeneral.bin", &records[1..]).is_err());
    }

    #[test]
    #[cfg(feature = "zstd")]
    fn compressed_files_are_read() {
        let packed = zstd::encode_all(&b"7 3 0 0\n"[..], 3).unwrap();
        assert_eq!(keys(&read("f.lis.zst", &packed).unwrap()), [0, 1, 2]);
    }

    #[test]
    fn what_is_no_trace_is_an_error_that_names_the_file() {
        let error = read("g.lis", b"one two\n").unwrap_err().to_string();
        assert!(error.contains("g.lis") && error.contains("line 1"), "{error}");
        assert!(read("h.csv", b"").is_err());
    }
}
