//! The core's files are compiled with the model checker's types in this crate, and in no other.

fn main() {
    println!("cargo:rustc-cfg=loom");
    println!("cargo:rustc-check-cfg=cfg(loom)");
    println!("cargo:rerun-if-changed=build.rs");
}
