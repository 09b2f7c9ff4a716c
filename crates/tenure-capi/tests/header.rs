//! The header in the repository is equal to the one that the Rust sources generate.

use std::path::Path;

#[test]
fn the_header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/tenure.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings =
        cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    if std::env::var_os("TENURE_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read(&path).unwrap_or_default();
    assert!(
        there == made,
        "{} is not what the sources say; to update it:\n    \
         TENURE_UPDATE_HEADER=1 cargo test -p tenure-capi --test header",
        path.display()
    );
}
