//! Sizes in bytes, as people write and read them.

use tenure_command::number;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Reads a size as the launcher does: `268435456`, `256M`, `256MiB`, `1.5G` or `500MB`.
pub fn parse(text: &str) -> Result<u64, String> {
    number::size(0, "0")(text)
}

/// `12.5 MiB`: two or three digits, a unit.
pub fn show(bytes: u64) -> String {
    let (unit, name) = match bytes {
        TIB.. => (TIB, "TiB"),
        GIB.. => (GIB, "GiB"),
        MIB.. => (MIB, "MiB"),
        KIB.. => (KIB, "KiB"),
        _ => return format!("{bytes} B"),
    };
    let value = bytes as f64 / unit as f64;
    if value < 99.95 && bytes % unit != 0 {
        format!("{value:.1} {name}")
    } else {
        format!("{value:.0} {name}")
    }
}

/// `5368709120 bytes (5 GiB)`.
pub fn exact(bytes: u64) -> String {
    match bytes {
        KIB.. => format!("{bytes} bytes ({})", show(bytes)),
        _ => format!("{bytes} bytes"),
    }
}

/// Whole mebibytes, for columns where every row has the same unit.
pub fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / MIB as f64)
}

/// `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_spelling() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 64 * KIB),
            ("256M", 256 * MIB),
            ("256 MiB", 256 * MIB),
            ("1.5G", GIB + GIB / 2),
            ("1T", TIB),
            ("2 TiB", 2 * TIB),
            ("0.5tib", 512 * GIB),
            ("5GB", 5_000_000_000),
            ("500KB", 500_000),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "12Q", "1..5M", "-3M", "99999999999999G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_counts_are_shown_short() {
        assert_eq!(show(512), "512 B");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(256 * MIB), "256 MiB");
        assert_eq!(show(3 * GIB), "3 GiB");
        assert_eq!([show(100 * MIB - 1), show(99 * MIB + MIB / 2)], ["100 MiB", "99.5 MiB"]);
        assert_eq!(show(TIB + TIB / 4), "1.2 TiB");
        assert_eq!(exact(512), "512 bytes");
        assert_eq!(exact(5 * GIB), "5368709120 bytes (5 GiB)");
        assert_eq!(mib(300 * MIB + MIB / 3), "300 MiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
