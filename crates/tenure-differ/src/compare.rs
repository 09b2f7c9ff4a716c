//! Two runs of a plan, record by record.

use crate::child::Run;

/// How much more may be resident than in the plain program, beside what was given back: the library itself,
/// and the bytes of its bookkeeping.
const RESIDENT_ROOM_KIB: u64 = 64 << 10;

/// Where two runs part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The place of the call in the plan; past its end for the process's end.
    pub index: usize,
    /// The call's name, and what differs: the same fault has the same kind.
    pub kind: String,
    /// The plain program's record.
    pub plain: String,
    /// The other one's.
    pub other: String,
}

impl Difference {
    /// A field of a record.
    pub fn field<'a>(record: &'a str, name: &str) -> Option<&'a str> {
        fields(record).find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

fn fields(record: &str) -> impl Iterator<Item = (&str, &str)> {
    record.split(' ').skip(2).filter_map(|field| field.split_once('='))
}

/// The first difference.
pub fn compare(plain: &Run, other: &Run) -> Option<Difference> {
    compare_from(plain, other, 0).map(|(_, found)| found)
}

/// The first difference from a record on, and that record's place.
pub fn compare_from(plain: &Run, other: &Run, from: usize) -> Option<(usize, Difference)> {
    let longest = plain.records.len().max(other.records.len());
    for n in from..longest {
        let records = (plain.records.get(n), other.records.get(n));
        let (Some(one), Some(two)) = records else {
            let there = records.0.or(records.1).map_or("", String::as_str);
            let lost = if records.1.is_none() { "ends" } else { "goes-on" };
            let found = Difference {
                index: index(there),
                kind: format!("{lost}:{} instead of {} at {}", other.end, plain.end, name(there)),
                plain: records.0.cloned().unwrap_or_else(|| plain.end.clone()),
                other: records
                    .1
                    .cloned()
                    .unwrap_or_else(|| format!("{} {}", other.end, other.said)),
            };
            // Nothing can be compared any more.
            return Some((longest, found));
        };
        if let Some(keys) = differing(one, two) {
            let kind = format!("{}:{keys}", name(one));
            let found =
                Difference { index: index(one), kind, plain: one.clone(), other: two.clone() };
            return Some((n, found));
        }
    }
    if from > longest {
        return None;
    }
    let said = !other.said.is_empty() && other.said != plain.said;
    if plain.end == other.end && !said {
        return None;
    }
    let kind = if plain.end == other.end {
        "said".to_owned()
    } else {
        format!("end:{} instead of {}", other.end, plain.end)
    };
    let found = Difference {
        index: usize::MAX,
        kind,
        plain: plain.end.clone(),
        other: format!("{} {}", other.end, other.said),
    };
    Some((longest, found))
}

/// The first number of a record, after the marks of children.
fn index(record: &str) -> usize {
    record
        .trim_start_matches("f.")
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(usize::MAX)
}

fn name(record: &str) -> &str {
    record.split(' ').nth(1).unwrap_or("")
}

/// The names of the fields that differ.
fn differing(one: &str, two: &str) -> Option<String> {
    if one == two {
        return None;
    }
    let head = |record: &str| record.split(' ').take(2).collect::<Vec<_>>().join(" ");
    if head(one) != head(two) {
        return Some(format!("another call: {}", name(two)));
    }
    let mut keys = Vec::new();
    for (key, value) in fields(one) {
        let other = Difference::field(two, key);
        if !agrees(key, value, other, two) {
            // Contents have a field for each object: one kind.
            let is_object =
                key.len() > 1 && key.starts_with('h') && key[1..].parse::<u32>().is_ok();
            keys.push(if is_object { "h" } else { key });
        }
    }
    for (key, _) in fields(two) {
        if Difference::field(one, key).is_none() && !key.starts_with('~') {
            keys.push(key);
        }
    }
    keys.dedup();
    (!keys.is_empty()).then(|| keys.join(","))
}

fn agrees(key: &str, plain: &str, other: Option<&str>, record: &str) -> bool {
    let Some(other) = other else { return false };
    if !key.starts_with('~') {
        return plain == other;
    }
    let (Ok(plain), Ok(other)) = (plain.parse::<u64>(), other.parse::<u64>()) else { return false };
    let kib = |name| Difference::field(record, name).and_then(|kib| kib.parse().ok()).unwrap_or(0);
    match key {
        "~wrong" => other <= plain,
        "~usable" => other <= plain + plain / 8 + 64 + kib("~align"),
        "~rss" => other <= plain + kib("~kept") + RESIDENT_ROOM_KIB,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(records: &[&str], end: &str) -> Run {
        let records = records.iter().map(|&record| record.to_owned()).collect();
        Run { records, end: end.into(), said: String::new() }
    }

    #[test]
    fn the_first_record_that_differs_is_named_with_its_fields() {
        let plain =
            run(&["0 mmap e=77 r=new", "1 munmap r=0 e=77", "2 sweep h03=5 all=9"], "exit 0");
        assert_eq!(compare(&plain, &plain), None);
        let other =
            run(&["0 mmap e=77 r=new", "1 munmap r=-1 e=12", "2 sweep h03=6 all=8"], "exit 0");
        let found = compare(&plain, &other).expect("it differs");
        assert_eq!((found.index, found.kind.as_str()), (1, "munmap:r,e"));
        let other = run(&[&plain.records[0], &plain.records[1], "2 sweep h03=6 all=8"], "exit 0");
        assert_eq!(compare(&plain, &other).map(|found| found.kind), Some("sweep:h,all".into()));
    }

    #[test]
    fn an_end_that_differs_is_a_difference() {
        let plain = run(&["0 free e=77", "1 free e=77"], "exit 0");
        let other = run(&["0 free e=77"], "signal 11");
        let found = compare(&plain, &other).expect("it ends early");
        assert_eq!(
            (found.index, found.kind.as_str()),
            (1, "ends:signal 11 instead of exit 0 at free")
        );
        let other = run(&["0 free e=77", "1 free e=77"], "hang");
        assert!(compare(&plain, &other).is_some());
    }

    #[test]
    fn sizes_in_memory_may_be_larger_by_what_was_given_back() {
        let plain = run(&["0 resident ~rss=5000 ~kept=1000"], "exit 0");
        let near = run(&["0 resident ~rss=71000 ~kept=1000"], "exit 0");
        let far = run(&["0 resident ~rss=72000 ~kept=1000"], "exit 0");
        assert_eq!(compare(&plain, &near), None);
        assert!(compare(&plain, &far).is_some());
        let plain = run(&["0 usable ~usable=120 ~align=2048"], "exit 0");
        let near = run(&["0 usable ~usable=1120 ~align=2048"], "exit 0");
        let far = run(&["0 usable ~usable=1120 ~align=4"], "exit 0");
        assert_eq!(compare(&plain, &near), None);
        assert!(compare(&plain, &far).is_some());
    }
}
