//! Parses a line of `/proc/self/maps`. A mapping in `/proc/self/smaps` begins with such a line,
//! too.

/// One mapping as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: usize,
    pub end: usize,
    pub readable: bool,
    pub writable: bool,
    pub shared: bool,
    /// The mapping's offset in its file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device; 0, 0 for anonymous memory.
    pub device: (u32, u32),
    /// 0: anonymous (and not shared).
    pub inode: u64,
}

/// Returns the part of a line of `/proc/self/maps` after address, protection, offset, device and
/// inode.
pub(crate) fn name_in_line(line: &[u8]) -> &[u8] {
    let mut rest = line;
    for _ in 0..5 {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        rest = &rest[end..];
    }
    rest.trim_ascii_start()
}

/// Parses a line of `/proc/self/maps`, or a mapping's first line in `smaps`. The name after the
/// numbers may be any bytes that a file's name may have.
pub(crate) fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
        .map_while(|field| std::str::from_utf8(field).ok());
    let (start, end) = fields.next()?.split_once('-')?;
    let flags = fields.next()?.as_bytes();
    let offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?;
    let (start, end) =
        (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    // Code that adds and subtracts addresses relies on this.
    (start < end).then_some(())?;
    Some(Mapping {
        start,
        end,
        readable: flags.first() == Some(&b'r'),
        writable: flags.get(1) == Some(&b'w'),
        shared: flags.get(3) == Some(&b's'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_parse() {
        let line = b"7f4ead002000-7f4eae600000 rw-p 00002000 fe:00 1234 /lib/x y.so";
        assert_eq!(
            parse_line(line),
            Some(Mapping {
                start: 0x7f4ead002000,
                end: 0x7f4eae600000,
                readable: true,
                writable: true,
                shared: false,
                offset: 0x2000,
                device: (0xfe, 0),
                inode: 1234,
            })
        );
        let latin =
            parse_line(b"7f4ead002000-7f4eae600000 r--s 0 00:1f 7 /tmp/caf\xe9 \xff").unwrap();
        assert_eq!((latin.device, latin.inode, latin.shared), ((0, 0x1f), 7, true));
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"zz-yy rw-p 0 0 0"), None);
        assert_eq!(parse_line(b"2000-1000 rw-p 0 0:0 0"), None);
        assert_eq!(parse_line(b"1000-1000 rw-p 0 0:0 0"), None);
    }
}
