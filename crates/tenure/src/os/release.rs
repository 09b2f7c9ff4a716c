//! The running kernel's version.

/// Returns the running kernel's version. Where it cannot be read, no kernel counts as too old.
pub(crate) fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    version(name.release().to_bytes()).unwrap_or((u32::MAX, 0))
}

/// Returns the first two numbers of a release such as `6.1.0-18-amd64`.
fn version(release: &[u8]) -> Option<(u32, u32)> {
    let release = std::str::from_utf8(release).ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_starts_with_the_version() {
        assert_eq!(version(b"6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version(b"5.10.0"), Some((5, 10)));
        assert_eq!(version(b"6.18-rc1"), Some((6, 18)));
        assert_eq!(version(b"unknown"), None);
    }
}
