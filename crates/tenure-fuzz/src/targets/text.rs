//! Other text: pressure, a process's numbers, settings.

use super::promise::{holds, same};
use crate::os::pressure_told::Told;
use crate::os::thp;
use crate::process::family::Stat;
use crate::process::pressure::Stalls;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `/proc/pressure/memory`, and the two variables of a service manager.
pub fn pressure(input: &[u8]) -> Result<(), String> {
    if let Some(stalls) = std::str::from_utf8(input).ok().and_then(Stalls::parse) {
        holds("shares are numbers", stalls.some.is_finite() && stalls.full.is_finite())?;
    }
    let mut lines =
        input.splitn(2, |byte| *byte == b'\n').map(|line| OsStr::from_bytes(line).to_owned());
    let (watch, write) = (lines.next(), lines.next());
    let told = Told::by(watch.clone(), write.clone());
    let Told::Watch { path, write: bytes } = told else { return Ok(()) };
    same("the path", &Some(path.into_os_string()), &watch)?;
    let text = write.unwrap_or_default();
    // The unused bits of the last digit may have any value.
    let same_digits =
        text.as_bytes().iter().zip(encoded(&bytes)).filter(|(a, b)| **a == *b).count();
    holds("base64 is as others write it", text.len() == encoded(&bytes).len())?;
    holds("base64 is read right", same_digits + 1 >= text.len())
}

fn encoded(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0usize, |word, byte| word << 8 | usize::from(*byte));
        let word = word << (8 * (3 - three.len()));
        for digit in 0..4 {
            let bits = word >> (18 - 6 * digit) & 63;
            text.push(if digit <= three.len() { DIGITS[bits] } else { b'=' });
        }
    }
    text
}

/// `/proc/PID/stat`.
pub fn stat(input: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(input);
    let Some(stat) = Stat::parse(&text) else { return Ok(()) };
    holds(
        "the name is what stands in the parentheses",
        text.contains(&format!("({})", stat.name)),
    )?;
    holds("the parent is one of the numbers", text.contains(&stat.parent.to_string()))
}

/// The text of an option of `tenure run`.
pub fn settings(input: &[u8]) -> Result<(), String> {
    if let Some(bytes) = tenure_launch::size(input) {
        let again = tenure_launch::size(bytes.to_string().as_bytes());
        same("a size written out", &again, &Some(bytes))?;
        let text = std::str::from_utf8(input).map_err(|_| "a size is text")?.trim_ascii();
        if let Ok(number) = text.parse::<u64>() {
            same("a plain number", &(bytes as u64), &number)?;
        }
    } else if let Ok(text) = std::str::from_utf8(input) {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        holds("a plain number is a size", !is_plain || text.parse::<usize>().is_err())?;
    }
    for default in [tenure_launch::LARGE_DEFAULT, tenure_launch::MMAP_DEFAULT] {
        if let Ok(Some(bytes)) = tenure_launch::pool(input, default) {
            holds("the pool's runs have a size", bytes >= tenure_launch::POOL_LEAST)?;
        }
    }
    if let Ok(Some(bytes)) = tenure_launch::retire(input) {
        holds("what is retired has a size", bytes > 0)?;
    }
    if let Ok(Some(threads)) = tenure_launch::threads(input) {
        holds("there are not too many threads", threads <= 1024)?;
    }
    let _ = (tenure_launch::lock(input), tenure_launch::report_signal(input));
    let _ = (tenure_launch::unmapped(input), tenure_launch::children(input));
    let _ = (tenure_launch::is_on(input), tenure_launch::is_library(input));
    if let Ok(text) = std::str::from_utf8(input) {
        let word = thp::chosen(text);
        holds("a word in brackets", word.is_empty() || text.contains(&format!("[{word}]")))?;
        let _ = thp::setting_of(word);
    }
    Ok(())
}
