//! The pictures of the service: 64 KiB, a millisecond or two to draw, and with a checksum that
//! shows whether the bytes are right.

/// Columns and rows.
const SIDE: usize = 256;
/// The bytes of a picture: its number, the points, and a checksum.
pub const BYTES: usize = 8 + SIDE * SIDE + 8;

/// Draws a part of the Mandelbrot set, another one for each number.
pub fn draw(number: u64) -> Vec<u8> {
    let mut picture = Vec::with_capacity(BYTES);
    picture.extend_from_slice(&number.to_le_bytes());
    let (x, y) = ((number % 251) as f64 / 251.0 - 1.3, (number % 241) as f64 / 241.0 * 0.6);
    for row in 0..SIDE {
        for column in 0..SIDE {
            let c = (x + column as f64 / 4000.0, y + row as f64 / 4000.0);
            let mut z = (0.0, 0.0);
            let mut steps = 0u8;
            while steps < 40 && z.0 * z.0 + z.1 * z.1 < 4.0 {
                z = (z.0 * z.0 - z.1 * z.1 + c.0, 2.0 * z.0 * z.1 + c.1);
                steps += 1;
            }
            picture.push(steps);
        }
    }
    let sum = checksum(&picture);
    picture.extend_from_slice(&sum.to_le_bytes());
    picture
}

/// Returns whether these are the bytes of the picture of this number.
pub fn is_right(picture: &[u8], number: u64) -> bool {
    let Some((body, sum)) = picture.split_last_chunk::<8>() else { return false };
    picture.len() == BYTES
        && body[..8] == number.to_le_bytes()
        && checksum(body) == u64::from_le_bytes(*sum)
}

/// FNV-1a over words.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_or_another_picture_is_noticed() {
        let mut picture = draw(7);
        assert!(is_right(&picture, 7));
        assert!(!is_right(&picture, 8));
        picture[1000] ^= 1;
        assert!(!is_right(&picture, 7));
        assert!(!is_right(&[], 7));
    }
}
