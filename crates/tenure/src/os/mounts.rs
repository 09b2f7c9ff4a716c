//! Finds the file system of a device number, and the places where file systems are mounted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Type and options of the file system with this device number; `None` where no mount of this
/// namespace has it (kernel-internal ones, btrfs subvolumes).
pub(crate) fn file_system(device: (u32, u32)) -> Option<(String, String)> {
    find(&table()?, device)
}

/// Returns whether no mount of this namespace has the device. If the mounts cannot be read, returns
/// `false`.
pub(super) fn is_unmounted(device: (u32, u32)) -> bool {
    table().is_some_and(|mounts| find(&mounts, device).is_none())
}

/// Returns the mounts of this namespace, as bytes: mount points and cgroups may have any name.
pub(super) fn table() -> Option<Vec<u8>> {
    super::small_file::bytes("/proc/thread-self/mountinfo").ok()
}

/// A line of the table: `id parent device root point options [more]... - type source options`.
pub(crate) struct Mount<'a> {
    /// As `8:1`.
    device: &'a [u8],
    root: &'a [u8],
    point: &'a [u8],
    pub kind: &'a [u8],
    /// The options of the file system, not of the mount.
    pub options: &'a [u8],
}

impl Mount<'_> {
    /// Returns the directory of the file system that is mounted.
    pub fn root(&self) -> PathBuf {
        unescaped(self.root)
    }

    /// Returns the place at which it is mounted.
    pub fn point(&self) -> PathBuf {
        unescaped(self.point)
    }
}

/// The mounts of a table, in its order.
pub(crate) fn all(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(mount)
}

fn mount(line: &[u8]) -> Option<Mount<'_>> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let (root, point, _options) = (fields.next()?, fields.next()?, fields.next()?);
    // Spaces in names are escaped, so no other field is a lone "-".
    fields.find(|field| *field == b"-")?;
    let kind = fields.next()?;
    Some(Mount { device, root, point, kind, options: fields.nth(1).unwrap_or_default() })
}

/// Undoes the kernel's escapes: it writes space, tab, newline and backslash as `\040` and the like.
fn unescaped(name: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(name.len()), name);
    while let Some((first, after)) = rest.split_first() {
        let code = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &rest[4..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

pub(crate) fn find(table: &[u8], device: (u32, u32)) -> Option<(String, String)> {
    let wanted = format!("{}:{}", device.0, device.1);
    let found = all(table).find(|mount| mount.device == wanted.as_bytes())?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some((text(found.kind), text(found.options)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_in_mountinfo() {
        let mounts = b"36 35 98:0 /a /b rw,noatime shared:1 - ext4 /dev/root rw,errors=continue\n\
                       37 35 0:31 / /t\xff rw - tmpfs none rw,size=8k,huge=advise\n";
        let found = find(mounts, (0, 31)).unwrap();
        assert_eq!(found, ("tmpfs".into(), "rw,size=8k,huge=advise".into()));
        assert_eq!(find(mounts, (98, 0)).unwrap().0, "ext4");
        assert_eq!(find(mounts, (0, 3)), None);
    }

    #[test]
    fn names_are_as_they_were_made() {
        use std::os::unix::ffi::OsStrExt;
        let mounts = b"37 35 0:31 /a\\040b /t\\134040\\011\xff\\9 rw - tmpfs none rw\n";
        let mount = all(mounts).next().unwrap();
        assert_eq!(mount.root().as_os_str().as_bytes(), b"/a b");
        assert_eq!(mount.point().as_os_str().as_bytes(), b"/t\\040\t\xff\\9");
    }
}
