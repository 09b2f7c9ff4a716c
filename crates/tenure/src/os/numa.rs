//! Which processors belong to which memory node.

use std::fs;

/// The processors of each node that has any.
pub(crate) fn processor_lists() -> Vec<Vec<usize>> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return Vec::new() };
    let mut nodes: Vec<(usize, Vec<usize>)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
            let list = parse(&fs::read_to_string(entry.path().join("cpulist")).ok()?);
            (!list.is_empty()).then_some((number, list))
        })
        .collect();
    nodes.sort();
    nodes.into_iter().map(|(_, list)| list).collect()
}

/// `0-3,8,10-11`
fn parse(list: &str) -> Vec<usize> {
    list.trim()
        .split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((first, last)) => Some(first.parse().ok()?..=last.parse().ok()?),
            None => part.parse().ok().map(|one| one..=one),
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed() {
        assert_eq!(parse("0-2,8,10-11\n"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(parse("\n"), [0usize; 0]);
    }

    #[test]
    fn every_processor_of_ours_is_on_a_node() {
        let nodes = processor_lists();
        let here = rustix::thread::sched_getcpu();
        // Without NUMA in the kernel there is no such directory.
        assert!(nodes.is_empty() || nodes.iter().any(|list| list.contains(&here)), "{nodes:?}");
    }
}
