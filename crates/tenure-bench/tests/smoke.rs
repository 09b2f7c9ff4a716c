//! Every bench in smoke mode: it ends, its samples are there, and its memory is given back.

use serde_json::Value;
use std::path::PathBuf;
use tenure_bench::{list, run_to, Options};
use tenure_testkit::LeakCheck;

struct Ran {
    text: String,
    json: Value,
}

fn smoke(name: &str) -> Ran {
    let path: PathBuf =
        std::env::temp_dir().join(format!("tenure-smoke-{name}-{}.json", std::process::id()));
    let options = Options { quick: true, json: Some(path.clone()), ..Options::default() };
    let mut out = Vec::new();
    run_to(&[name.to_string()], &options, &mut out).unwrap();
    let json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    Ran { text: String::from_utf8(out).unwrap(), json }
}

impl Ran {
    fn comparisons(&self) -> &Vec<Value> {
        self.json["benches"][0]["comparisons"].as_array().unwrap()
    }

    /// Rows that ran, as (title, row); what could not run has said why.
    fn rows(&self) -> Vec<(&str, &Value)> {
        let mut rows = Vec::new();
        for comparison in self.comparisons() {
            let title = comparison["title"].as_str().unwrap();
            assert!(self.text.contains(title), "{title} is not in the printed text");
            for row in comparison["rows"].as_array().unwrap() {
                if row["unavailable"].is_null() {
                    let samples = row["samples"].as_array().unwrap();
                    assert_eq!(samples.len() as u64, comparison["rounds"].as_u64().unwrap());
                    assert!(samples.iter().all(Value::is_number), "{title}: {row}");
                    rows.push((title, row));
                } else {
                    assert!(row["unavailable"].as_str().is_some_and(|why| why.len() > 10));
                }
            }
        }
        rows
    }

    fn median(&self, title: &str, name: &str) -> f64 {
        let rows = self.rows();
        let found = rows.iter().find(|(at, row)| at.starts_with(title) && row["name"] == name);
        found.unwrap_or_else(|| panic!("no row {name} in {title}:\n{}", self.text)).1["stats"]
            ["median"]
            .as_f64()
            .unwrap()
    }
}

/// One test: the benches measure the whole process, and so does the leak check.
#[test]
fn every_bench_runs_in_smoke_mode() {
    for (name, _) in list() {
        let ran = smoke(name);
        assert!(ran.comparisons().len() >= 8, "{}", ran.text);
        assert!(!ran.rows().is_empty());
        match *name {
            "volatile" => volatile(&ran),
            "cache" => cache(&ran),
            other => panic!("no check for the bench {other}"),
        }
    }
    // By now the keeper's own thread and mappings are there, and stay.
    let check = LeakCheck::start().allow_mappings(8);
    smoke("volatile");
    check.finish().unwrap();
}

fn volatile(ran: &Ran) {
    let bookkeeping = ran.median("bookkeeping of", "tenure");
    assert!(bookkeeping > 1.0, "{bookkeeping} bytes:\n{}", ran.text);
    assert!(ran.median("pin + unpin", "tenure") > 0.1);
    assert!(ran.median("unmark + mark, one of 1000 ranges", "tenure") > 1.0);
    // Two retries of ten pieces that are each given back: ten faulting pieces against none.
    let faults = |name: &str| {
        let rows = ran.rows();
        let (_, row) = rows
            .iter()
            .find(|(title, row)| {
                title.starts_with("seed program against giving back, 4 KiB")
                    && title.ends_with("1 thread")
                    && row["name"] == name
            })
            .unwrap();
        row["extras"][0][1][0].as_f64().unwrap()
    };
    assert!(faults("MADV_DONTNEED") >= 1.9 * faults("tenure"), "{}", ran.text);
}

fn cache(ran: &Ran) {
    for (title, row) in ran.rows() {
        if title.starts_with("get") {
            assert_eq!(row["extras"][0][0], "misses", "{title}: {row}");
        }
    }
    assert!(ran.median("get, 1 KiB values, uniform", "tenure") > 1.0);
    assert!(ran.median("bookkeeping bytes by own count", "tenure") > 1.0);
    #[cfg(feature = "peers")]
    for peer in ["moka", "quick_cache", "foyer"] {
        assert!(ran.median("get, 1 KiB values, uniform", peer) > 1.0);
        assert!(ran.median("resident bytes beyond the value", peer) > 0.0, "{}", ran.text);
    }
}
