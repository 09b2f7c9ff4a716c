//! Sizes in bytes, in the form in which people write them.

/// The largest size of an option, so that calculations with it do not wrap.
pub const MOST: usize = 1 << 53;

/// [`MOST`], and how a size is written: the end of an error.
macro_rules! of_size {
    () => {
        "to 8192T: bytes, or a number with K, M, G or T (powers of 1024), or with KB, MB, GB or TB (powers of 1000), as in 65536, 64M, 1.5G or 500MB"
    };
}
pub(crate) use of_size;

/// The end of an error about a size: `expected a size from 4K`, and this.
pub const SIZE: &str = of_size!();

/// A size in bytes: `4096`, `64K`, `64Ki`, `64KiB`, `1.5G`, `500MB`.
///
/// K, Ki and KiB are 1024 bytes, and KB is 1000 bytes. M, G and T follow this rule, too. A fraction
/// of a byte is cut off.
pub fn size(text: &[u8]) -> Option<usize> {
    let text = text.trim_ascii();
    let (whole, rest) = digits(text);
    let (fraction, unit) = match rest {
        [b'.', after @ ..] => digits(after),
        _ => (&b""[..], rest),
    };
    if whole.is_empty() || rest.first() == Some(&b'.') && fraction.is_empty() {
        return None;
    }
    let unit = factor(unit.trim_ascii_start())?;
    let bytes = (number(whole)? as u128).checked_mul(unit)? + part(fraction, unit)?;
    usize::try_from(bytes).ok()
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

fn factor(unit: &[u8]) -> Option<u128> {
    let letter = match unit {
        [] | [b'B' | b'b'] => return Some(1),
        [letter, ..] => letter.to_ascii_uppercase(),
    };
    let power = b"KMGT".iter().position(|known| *known == letter)? as u32 + 1;
    match unit {
        [_] | [_, b'i' | b'I'] | [_, b'i' | b'I', b'B' | b'b'] => Some(1024u128.pow(power)),
        [_, b'B' | b'b'] => Some(1000u128.pow(power)),
        _ => None,
    }
}

/// The value of a decimal fraction of a unit.
fn part(fraction: &[u8], unit: u128) -> Option<u128> {
    // More digits do not change the number of whole bytes.
    let fraction = &fraction[..fraction.len().min(18)];
    if fraction.is_empty() {
        return Some(0);
    }
    Some(number(fraction)? as u128 * unit / 10u128.pow(fraction.len() as u32))
}

/// A whole number.
pub fn number(text: &[u8]) -> Option<usize> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0usize, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| usize::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024_and_with_a_b_of_1000() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            (" 256 MiB ", 256 << 20),
            ("3k", 3 << 10),
            ("3Ki", 3 << 10),
            ("3KiB", 3 << 10),
            ("500KB", 500_000),
            ("5GB", 5_000_000_000),
            ("5gb", 5_000_000_000),
            ("1T", 1 << 40),
            ("2TB", 2_000_000_000_000),
            ("1.5G", 3 << 29),
            ("0.5tib", 1 << 39),
            ("2.5MB", 2_500_000),
            ("1.0000000000000000000001K", 1024),
            ("18446744073709551615", usize::MAX),
        ] {
            assert_eq!(size(text.as_bytes()), Some(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_neither_wrap_nor_take_strange_units() {
        for wrong in [
            "",
            "M",
            ".5G",
            "1.",
            "1.G",
            "1..5M",
            "1BiB",
            "1Bi",
            "1KK",
            "1KBi",
            "12Q",
            "-1",
            "+1",
            "1e9",
            "18446744073709551616",
            "99999999999G",
            "99999999999999999999T",
        ] {
            assert_eq!(size(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
