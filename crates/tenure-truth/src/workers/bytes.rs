//! The bytes of a chunk: each word follows from the chunk, the version and the word's place.

use crate::rng::Rng;

fn word(chunk: usize, version: u64, at: usize) -> u64 {
    let mixed = version.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ ((chunk as u64) << 32 | at as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Writes the first `words` words.
pub fn write(bytes: &mut [u8], chunk: usize, version: u64, words: usize) {
    for (at, place) in bytes.chunks_exact_mut(8).take(words).enumerate() {
        place.copy_from_slice(&word(chunk, version, at).to_ne_bytes());
    }
}

/// Returns a wrong word: its place and its value.
pub fn find_wrong(
    bytes: &[u8],
    chunk: usize,
    version: u64,
    rng: &mut Rng,
) -> Option<(usize, u64, u64)> {
    let words = bytes.len() / 8;
    let mut places = [0, words - 1, 0, 0];
    places[2..].fill_with(|| rng.below(words));
    places.into_iter().find_map(|at| {
        let found = u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().ok()?);
        let right = word(chunk, version, at);
        (found != right).then_some((at, found, right))
    })
}

/// Whether all of it is zeros.
pub fn is_zeros(bytes: &[u8], rng: &mut Rng) -> bool {
    let words = bytes.len() / 8;
    (0..8).all(|n| {
        let at = if n == 0 { 0 } else { rng.below(words) };
        bytes[at * 8..at * 8 + 8] == [0; 8]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_wrong() {
        let (mut bytes, mut rng) = (vec![0; 4096], Rng::new(1));
        assert!(is_zeros(&bytes, &mut rng));
        write(&mut bytes, 3, 7, 512);
        assert_eq!(find_wrong(&bytes, 3, 7, &mut rng), None);
        assert!(find_wrong(&bytes, 3, 8, &mut rng).is_some());
        assert!(find_wrong(&bytes, 4, 7, &mut rng).is_some());
    }
}
