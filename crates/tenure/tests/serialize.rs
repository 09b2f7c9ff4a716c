//! Statistics, and the findings of `tenure doctor` and `tenure lock`, in a serde format.

use serde_json::{json, to_value, Value};
use tenure::lock::{account, explain, receipt};
use tenure::populate::{Access, Populate};
use tenure::{Cache, Mapping};

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort();
    names
}

/// The fields that `Debug` prints: all of them, by name.
fn debug_names(text: &str) -> Vec<String> {
    let mut found: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.split_once(": "))
        .filter(|(name, _)| !name.starts_with(' '))
        .map(|(name, _)| name.to_owned())
        .collect();
    found.sort();
    found
}

macro_rules! all_fields {
    ($($value:expr),* $(,)?) => {
        $({
            let (value, wanted) = (to_value(&$value).unwrap(), debug_names(&format!("{:#?}", $value)));
            assert!(!wanted.is_empty());
            assert_eq!(names(&value), wanted, "{}", stringify!($value));
        })*
    };
}

#[test]
fn every_field_is_there_under_its_name() {
    let memory = Mapping::anonymous(1 << 20).unwrap();
    let populate = Populate::new(memory.as_ptr(), memory.len(), Access::Write);
    // SAFETY: the mapping stays as it is until the value is dropped.
    let hot = unsafe { tenure::lock::within(memory.as_ptr(), memory.len(), 64 << 10) }.unwrap();
    all_fields![
        tenure::stats(),
        tenure::stats().total,
        tenure::survey().unwrap(),
        tenure::pool::stats(),
        Cache::<u64>::new().unwrap().stats(),
        tenure::shared::SharedVolatile::new(1 << 20).unwrap().stats(),
        tenure::shared::SharedCache::builder().most(8 << 20).build().unwrap().stats(),
        tenure::capabilities().findings()[0],
        account().unwrap(),
        explain(1 << 20).unwrap(),
        receipt(memory.as_ptr(), memory.len()).unwrap(),
        receipt(memory.as_ptr(), memory.len()).unwrap().parts[0],
        hot.status(),
        populate.room().unwrap(),
        populate.run().unwrap(),
        tenure::populate::Progress::default(),
    ];
}

#[test]
fn a_plan_has_what_is_public_of_it() {
    let memory = Mapping::anonymous(1 << 20).unwrap();
    let populate = Populate::new(memory.as_ptr(), memory.len(), Access::Write);
    let plan = to_value(populate.plan().unwrap()).unwrap();
    assert_eq!(names(&plan), ["access", "len", "parts", "start", "threads", "why_threads"]);
    let part = &plan["parts"][0];
    assert_eq!(names(part), ["backing", "len", "page_size", "shared", "start", "steps"]);
    assert_eq!((&part["backing"], &plan["access"]), (&json!("anonymous"), &json!("write")));
}

#[test]
fn values_are_numbers_and_words() {
    let stats = to_value(tenure::stats()).unwrap();
    assert!(stats["total"]["purged_bytes"].is_u64() && stats["marked_bytes"].is_u64());
    let capabilities = to_value(tenure::capabilities()).unwrap();
    for finding in capabilities["findings"].as_array().unwrap() {
        let status = finding["status"].as_str().unwrap();
        assert!(["works", "degraded", "missing"].contains(&status), "{finding}");
    }
    let memory = Mapping::anonymous(4096).unwrap();
    let found = to_value(receipt(memory.as_ptr(), 4096).unwrap()).unwrap();
    assert_eq!(found["parts"][0]["state"], json!("unlocked"));
}
