//! A model file, locked on fault: the layers that requests use stay in memory, and the others are
//! never read.
//!
//! `cargo run -p tenure-examples --example model_file [FILE]`. Without a file it makes one of 4
//! MiB, so that it runs under the usual limit of 8 MiB of locked memory.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tenure::lock::Receipt;
use tenure::Mapping;

/// A layer's bytes in the file.
const LAYER: usize = 1 << 20;

struct Model {
    /// Locked on fault while it lives.
    weights: Mapping,
}

impl Model {
    /// Maps the file. Nothing is read yet.
    fn open(path: &Path) -> Result<Model, Box<dyn Error>> {
        let file = File::open(path)?;
        let len = usize::try_from(file.metadata()?.len())?;
        let verdict = tenure::lock::explain(len as u64)?;
        // SAFETY: a new model is deployed as a new file that is renamed, so no process writes or
        // truncates this one.
        let weights = unsafe { Mapping::file_locked_on_fault(&file, 0, len) }
            .map_err(|error| format!("{error}\n{verdict}"))?;
        Ok(Model { weights })
    }

    fn layer(&self, number: usize) -> &[u8] {
        &self.weights.as_slice()[number * LAYER..][..LAYER]
    }

    /// The lock on some bytes, and how many of them are in memory.
    fn receipt(&self, bytes: Range<usize>) -> tenure::Result<Receipt> {
        tenure::lock::receipt(self.weights.as_slice()[bytes.clone()].as_ptr(), bytes.len())
    }
}

/// A request that one layer can serve.
fn infer(layer: &[u8]) -> u64 {
    layer.iter().map(|byte| u64::from(*byte)).sum()
}

fn serve(path: &Path) -> Result<Receipt, Box<dyn Error>> {
    let model = Model::open(path)?;
    let len = model.weights.len();
    let before = model.receipt(0..len)?;
    println!(
        "locked on fault: {} bytes; in memory: {}",
        before.on_fault_bytes(),
        before.resident_bytes()
    );
    println!("layer 1 says {}", infer(model.layer(1)));
    let after = model.receipt(0..len)?;
    println!("in memory after a request of {LAYER} bytes: {}", after.resident_bytes());
    Ok(after)
}

/// A file of four layers in the folder for temporary files, removed when this is dropped.
struct Made(PathBuf);

impl Made {
    fn new() -> std::io::Result<Made> {
        // Each has a file of its own, as the tests here run side by side.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("tenure-model-{process}-{count}.bin"));
        let mut file = File::create_new(&path)?;
        for layer in 0..4 {
            file.write_all(&[layer; LAYER])?;
        }
        Ok(Made(path))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        serve(Path::new(&path))?;
    } else {
        serve(&Made::new()?.0)?;
    }
    Ok(())
}

#[test]
fn the_layers_that_were_used_stay_and_the_others_are_not_read() {
    let made = Made::new().unwrap();
    let model = Model::open(&made.0).unwrap();
    assert_eq!(model.receipt(0..4 * LAYER).unwrap().resident_bytes(), 0);
    assert_eq!(infer(model.layer(1)), LAYER as u64);
    // The kernel refuses to page the layer out, because it is locked.
    // SAFETY: the call changes no bytes; the range is a part of the mapping.
    let paged_out = unsafe {
        libc::madvise(model.layer(1).as_ptr().cast_mut().cast(), LAYER, libc::MADV_PAGEOUT)
    };
    assert_eq!(paged_out, -1);
    let used = model.receipt(LAYER..2 * LAYER).unwrap();
    assert_eq!((used.on_fault_bytes(), used.resident_bytes()), (LAYER as u64, LAYER as u64));
    let whole = model.receipt(0..4 * LAYER).unwrap();
    assert_eq!(whole.on_fault_bytes(), 4 * LAYER as u64);
    // Around a touch the kernel also maps pages that are in the page cache, but no other layer.
    assert!(whole.resident_bytes() < 2 * LAYER as u64, "{whole}");
}

#[test]
fn it_serves_a_file_that_it_is_given() {
    assert!(serve(&Made::new().unwrap().0).unwrap().resident_bytes() >= LAYER as u64);
}
