//! Which file system a device number is.

/// Type and options of the file system with this device number; `None` where no mount of this
/// namespace has it (kernel-internal ones, btrfs subvolumes).
pub(crate) fn file_system(device: (u32, u32)) -> Option<(String, String)> {
    find(&table()?, device)
}

/// Whether no mount of this namespace has the device. Where the mounts cannot be read none is known to
/// be missing.
pub(super) fn is_unmounted(device: (u32, u32)) -> bool {
    table().is_some_and(|mounts| find(&mounts, device).is_none())
}

/// The mounts of this namespace. A mount point may be called anything; its numbers stay readable.
pub(super) fn table() -> Option<String> {
    super::small_file::text("/proc/thread-self/mountinfo").ok()
}

fn find(mounts: &str, device: (u32, u32)) -> Option<(String, String)> {
    let wanted = format!("{}:{}", device.0, device.1);
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (before.split(' ').nth(2)? == wanted).then_some(())?;
        let mut after = after.split(' ');
        let kind = after.next()?;
        Some((kind.to_owned(), after.nth(1).unwrap_or_default().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_in_mountinfo() {
        let mounts = "36 35 98:0 /a /b rw,noatime shared:1 - ext4 /dev/root rw,errors=continue\n\
                      37 35 0:31 / /t rw - tmpfs none rw,size=8k,huge=advise\n";
        let found = find(mounts, (0, 31)).unwrap();
        assert_eq!(found, ("tmpfs".into(), "rw,size=8k,huge=advise".into()));
        assert_eq!(find(mounts, (98, 0)).unwrap().0, "ext4");
        assert_eq!(find(mounts, (0, 3)), None);
    }
}
