//! Has the program `tenure-preload` linked as the shared library that it is.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=preload.map");
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo::error=the library of `tenure run` cannot be linked statically: build without crt-static");
        return;
    }
    let package = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let mut arguments = vec![
        // The compiler driver lets this win over the -pie that rustc passes.
        "-shared".to_owned(),
        "-Wl,-soname,libtenure_preload.so".to_owned(),
        // rustc restricts what a library of type cdylib exports, but not a program.
        format!("-Wl,--version-script={package}/preload.map"),
    ];
    if matches!(arch.as_str(), "x86_64" | "aarch64") {
        arguments.push("-Wl,--entry=tenure_preload_entry".to_owned());
    }
    for argument in arguments {
        println!("cargo::rustc-link-arg-bin=tenure-preload={argument}");
    }
}
