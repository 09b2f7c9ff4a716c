//! Lines of `/proc/PID/maps`. Mappings in `smaps` begin with such lines, too.

/// One mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The address of its first byte.
    pub start: u64,
    /// The address behind its last byte.
    pub end: u64,
    /// As `rw-p`.
    pub permissions: [u8; 4],
    /// 0: anonymous and not shared.
    pub inode: u64,
    /// A path, `[heap]`, `[anon:NAME]`, or nothing.
    pub name: String,
}

impl Mapping {
    /// Its bytes of addresses.
    pub fn size(&self) -> u64 {
        self.end - self.start
    }

    /// Parses a line. `None`: it is no such line.
    pub fn parse(line: &[u8]) -> Option<Mapping> {
        let mut rest = line;
        let (start, end) = split(field(&mut rest), b'-')?;
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let permissions = field(&mut rest).try_into().ok()?;
        let (_offset, _device) = (field(&mut rest), field(&mut rest));
        let inode = decimal(field(&mut rest))?;
        let name = String::from_utf8_lossy(rest.trim_ascii()).into_owned();
        (start < end).then_some(Mapping { start, end, permissions, inode, name })
    }

    /// The name to show.
    pub fn title(&self) -> &str {
        if self.name.is_empty() {
            "(anonymous)"
        } else {
            &self.name
        }
    }
}

/// Cuts the next field off.
fn field<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let begin = rest.trim_ascii_start();
    let end = begin.iter().position(|byte| *byte == b' ').unwrap_or(begin.len());
    *rest = &begin[end..];
    &begin[..end]
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|byte| *byte == at)?;
    Some((&text[..place], &text[place + 1..]))
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

/// A decimal number without a sign.
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_a_name() {
        let line = b"7f4ead002000-7f4eae600000 rw-p 00002000 fe:00 1234   /lib/x y.so";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f4e_ad00_2000, 0x7f4e_ae60_0000));
        assert_eq!((&mapping.permissions, mapping.inode), (b"rw-p", 1234));
        assert_eq!(mapping.name, "/lib/x y.so");
        let bare = Mapping::parse(b"1000-2000 ---p 00000000 00:00 0 ").unwrap();
        assert_eq!((bare.title(), bare.size()), ("(anonymous)", 0x1000));
        for wrong in [&b""[..], b"Rss: 4 kB", b"2000-1000 rw-p 0 0 0", b"zz-1 rw-p 0 0 0"] {
            assert_eq!(Mapping::parse(wrong), None);
        }
    }
}
