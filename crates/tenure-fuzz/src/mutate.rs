//! Makes input: samples that are changed at random, joined, or made from nothing.

use tenure_differ::rng::Rng;

/// A number below `n`, which is above 0.
pub(crate) fn below(rng: &mut Rng, n: usize) -> usize {
    rng.below(n as u64) as usize
}

/// A place in the bytes, or behind them.
fn place(rng: &mut Rng, bytes: &[u8]) -> usize {
    below(rng, bytes.len() + 1)
}

/// Numbers that break readers of numbers.
const NUMBERS: [&str; 16] = [
    "0",
    "-1",
    "+7",
    "4096",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854771712",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "ffffffffffffffff",
    "10000000000000000",
    "max",
    "0.5",
];

/// Bytes that break readers of text.
const BYTES: [u8; 14] =
    [0, b'\n', b' ', b':', b'-', b',', b'/', b'\\', b'(', b')', b'.', 0x1b, 0x80, 0xff];

/// Text of at most `longest` bytes, or bytes from nothing where there are no samples.
pub fn input(rng: &mut Rng, samples: &[Vec<u8>], tokens: &[&[u8]], longest: usize) -> Vec<u8> {
    let mut bytes = match samples.len() {
        0 => (0..below(rng, longest + 1)).map(|_| rng.draw() as u8).collect(),
        n => samples[below(rng, n)].clone(),
    };
    if !samples.is_empty() {
        // Most readers stop at the first mistake, so a few changes get further than many.
        let most = 1 << below(rng, 4);
        for _ in 0..=below(rng, most) {
            change(rng, &mut bytes, samples, tokens);
        }
    }
    bytes.truncate(longest);
    bytes
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, samples: &[Vec<u8>], tokens: &[&[u8]]) {
    let at = place(rng, bytes);
    let end = at + below(rng, (bytes.len() - at).min(80) + 1);
    match below(rng, 12) {
        0 if at < bytes.len() => bytes[at] ^= 1 << below(rng, 8),
        1 if at < bytes.len() => bytes[at] = rng.draw() as u8,
        2 => bytes.insert(at, BYTES[below(rng, BYTES.len())]),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let copy = bytes[at..end].to_vec();
            let to = place(rng, bytes);
            drop(bytes.splice(to..to, copy));
        }
        5 => bytes.truncate(at),
        6 | 7 => number(rng, bytes, at),
        8 if !tokens.is_empty() => {
            let token = tokens[below(rng, tokens.len())];
            drop(bytes.splice(at..end, token.iter().copied()));
        }
        9 => {
            let other = &samples[below(rng, samples.len())];
            let from = place(rng, other);
            drop(bytes.splice(at.., other[from..].iter().copied()));
        }
        10 => lines(rng, bytes),
        // A line that is longer than a reader's buffer.
        _ => {
            let byte = [b'x', b' ', b'0', 0xe9][below(rng, 4)];
            let count = [1, 60, 500, 511, 512, 513, 5000][below(rng, 7)];
            drop(bytes.splice(at..at, std::iter::repeat_n(byte, count)));
        }
    }
}

/// Replaces the first number from `at` on by another one.
fn number(rng: &mut Rng, bytes: &mut Vec<u8>, at: usize) {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
    let Some(begin) = bytes[at..].iter().position(is_digit) else { return };
    let begin = at + begin;
    let len = bytes[begin..].iter().take_while(|byte| is_digit(byte)).count();
    let new = match below(rng, 3) {
        0 => format!("{:x}", rng.draw() >> below(rng, 64)),
        1 => format!("{}", rng.draw() >> below(rng, 64)),
        _ => NUMBERS[below(rng, NUMBERS.len())].to_owned(),
    };
    drop(bytes.splice(begin..begin + len, new.into_bytes()));
}

/// Doubles, drops or exchanges lines.
fn lines(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    if lines.len() < 2 {
        return;
    }
    let (one, other) = (below(rng, lines.len()), below(rng, lines.len()));
    match below(rng, 3) {
        0 => lines.swap(one, other),
        1 => drop(lines.remove(one)),
        _ => lines.insert(one, lines[other]),
    }
    *bytes = lines.concat();
}
