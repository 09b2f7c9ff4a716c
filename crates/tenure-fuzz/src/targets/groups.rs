//! Memory cgroups: finding the group, and reading its files.

use super::promise::{holds, same};
use crate::os::memory_group::{find_group, MemoryGroup};
use crate::os::{mounts, room_now};
use crate::process::pressure::Group;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tempfile::TempDir;

/// The line between the files of a sample.
const BETWEEN: &[u8] = b"%%\n";

fn cut(input: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (Vec::new(), input);
    while let Some(at) = rest.windows(BETWEEN.len()).position(|part| part == BETWEEN) {
        parts.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    parts.push(rest);
    parts
}

/// `/proc/PID/cgroup`, and mountinfo.
pub fn names(input: &[u8]) -> Result<(), String> {
    let parts = cut(input);
    let (cgroup, table) = (parts[0], parts.get(1).copied().unwrap_or_default());
    if let Some(group) = find_group(cgroup, table) {
        holds("a group lies where its hierarchy is mounted", group.path.starts_with(&group.root))?;
        same("whether it is seen", &group.root.as_os_str().is_empty(), &group.is_unseen())?;
        let is_straight = !group.path.as_os_str().as_bytes().windows(4).any(|part| part == b"/../");
        let mount_is_straight =
            !group.root.as_os_str().as_bytes().windows(3).any(|part| part == b"/..");
        holds("a group leads out of no mount", is_straight || !mount_is_straight)?;
    }
    for (_, name) in Group::named_in(cgroup) {
        holds("a name has no line's end", !name.as_os_str().as_bytes().contains(&b'\n'))?;
    }
    for line in table.split(|byte| *byte == b'\n') {
        mount(line, table)?;
    }
    Ok(())
}

/// A line as the kernel writes it is found under its device's number.
fn mount(line: &[u8], table: &[u8]) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(line) else { return Ok(()) };
    let fields: Vec<&str> = text.split(' ').collect();
    let Some(mark) = fields.iter().skip(6).position(|field| *field == "-") else { return Ok(()) };
    let numbers = fields[2].split_once(':');
    let plain = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
    let device = numbers.and_then(|(major, minor)| Some((plain(major)?, plain(minor)?)));
    let (Some(device), true) = (device, fields.len() == mark + 6 + 4) else { return Ok(()) };
    holds(&format!("the device of {text:?} is found"), mounts::find(table, device).is_some())
}

/// The files of a group of version 2, and those of version 1.
const NAMES: [(bool, [&str; 4]); 2] = [
    (true, ["memory.max", "memory.high", "memory.current", "memory.stat"]),
    (false, ["memory.limit_in_bytes", "", "memory.usage_in_bytes", "memory.stat"]),
];

/// A number as the kernel writes it; `None` in it: `max`.
fn plain(file: &[u8]) -> Option<Option<u64>> {
    let text = std::str::from_utf8(file).ok()?.strip_suffix('\n')?;
    match text.parse::<u64>() {
        _ if text == "max" => Some(None),
        Ok(number) if number.to_string() == text => Some(Some(number)),
        _ => None,
    }
}

fn inactive(stat: &[u8], key: &str) -> Option<u64> {
    let text = std::str::from_utf8(stat).ok().filter(|text| text.ends_with('\n'))?;
    let mut found = text.lines().filter_map(|line| line.strip_prefix(key));
    let text = found.next()?;
    let number: u64 = text.parse().ok()?;
    // Two keys, and zeros before a number, are not the kernel's form.
    (found.next().is_none() && number.to_string() == text).then_some(number)
}

/// The four files of a group.
pub fn limits(input: &[u8]) -> Result<(), String> {
    let parts = cut(input);
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    for (v2, names) in NAMES {
        let folder = TempDir::new().map_err(|error| error.to_string())?;
        for (at, name) in names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            std::fs::write(folder.path().join(name), part(at))
                .map_err(|error| error.to_string())?;
        }
        of_group(folder.path(), v2, [part(0), part(1), part(2), part(3)])?;
    }
    Ok(())
}

fn of_group(folder: &Path, v2: bool, [max, high, usage, stat]: [&[u8]; 4]) -> Result<(), String> {
    let group = MemoryGroup { path: folder.to_owned(), root: folder.to_owned(), v2 };
    let now = room_now::Files::of(Some(&group)).read().group;
    let found = (now.limit != u64::MAX).then_some((now.limit, now.free));
    let key = if v2 { "inactive_file " } else { "total_inactive_file " };
    let limit = match v2 {
        true => plain(max).zip(plain(high)).map(|(max, high)| max.into_iter().chain(high).min()),
        false => plain(max),
    };
    let (Some(limit), Some(Some(used)), Some(unused)) = (limit, plain(usage), inactive(stat, key))
    else {
        return Ok(());
    };
    let wanted = limit.filter(|limit| *limit < 1 << 60);
    let wanted = wanted.map(|limit| (limit, limit.saturating_sub(used.saturating_sub(unused))));
    same("the room", &found, &wanted)
}
