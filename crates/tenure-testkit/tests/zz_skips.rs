//! Not a test: prints which tests the run has skipped, with the reasons. Cargo runs packages and
//! their test targets in the order of their names, so this comes after all others (doc-tests
//! excepted).

fn main() {
    // A listing of tests has none to show here, and must not use up the records.
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let records = tenure_testkit::skip::take_records();
    println!("\nskipped: {}", records.len());
    for record in records {
        println!("- {record}");
    }
}
