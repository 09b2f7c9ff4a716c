//! A key that leaves memory by none of four ways: it is not paged out, not in a core dump, not in a
//! forked child, and not in memory that the program has given back.
//!
//! `cargo run -p tenure-examples --example secret`

use std::io::{self, Read};
use tenure::lock::{receipt, Secret};

fn main() -> io::Result<()> {
    let mut key = Secret::new(32)?;
    // In place: a buffer or a `Vec` in between would be one more secret.
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    print!("{}", receipt(key.as_ptr(), key.len())?);
    println!("{key:?} is not printed");
    Ok(())
}

#[test]
fn the_story_runs() {
    main().unwrap();
}
