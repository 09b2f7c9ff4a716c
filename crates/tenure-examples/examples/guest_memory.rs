//! The memory of a virtual machine: sparse, shared with the devices' processes, ready where the
//! guest starts, and given back where the guest reports it as free.
//!
//! `cargo run -p tenure-examples --example guest_memory`

use std::error::Error;
use std::ops::Range;
use tenure::populate::{discard, Access, Populate, Report};
use tenure::Mapping;

/// The guest's addresses.
const GUEST: usize = 1 << 30;
/// The part that its firmware and its kernel use at once.
const BOOT: Range<usize> = 0..(16 << 20);

struct GuestMemory {
    /// A memfd, as the processes of devices need it (vhost-user).
    ram: Mapping,
}

impl GuestMemory {
    /// Takes addresses and no memory.
    fn new() -> tenure::Result<GuestMemory> {
        Ok(GuestMemory { ram: Mapping::memfd("guest", GUEST)? })
    }

    /// Makes a part ready, so that the guest's first touch of it needs no page fault of the host.
    /// It returns an error if this host has no room: the virtual machine can start elsewhere.
    fn prepare(&self, part: Range<usize>) -> Result<Report, Box<dyn Error>> {
        let bytes = &self.ram.as_slice()[part];
        let report =
            Populate::new(bytes.as_ptr(), bytes.len(), Access::Write).within_room(true).run()?;
        Ok(report)
    }

    /// A guest's action: a write into its own memory.
    fn guest_writes(&mut self, at: usize, bytes: &[u8]) {
        self.ram.as_mut_slice()[at..][..bytes.len()].copy_from_slice(bytes);
    }

    /// The guest reports pages as free (its balloon, or free page reporting): the host gets their
    /// memory back, and the guest finds zeros if it uses them again.
    fn guest_frees(&mut self, part: Range<usize>) -> tenure::Result<()> {
        let bytes = &mut self.ram.as_mut_slice()[part];
        // SAFETY: `bytes` is the only reference to them, and zeros are valid bytes.
        unsafe { discard(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// The bytes of the host's memory that the guest has.
    fn resident_bytes(&self) -> tenure::Result<u64> {
        Ok(tenure::lock::receipt(self.ram.as_ptr(), self.ram.len())?.resident_bytes())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut guest = GuestMemory::new()?;
    println!("new: {} of {GUEST} bytes are in memory", guest.resident_bytes()?);
    let report = guest.prepare(BOOT)?;
    println!(
        "ready to boot: {} bytes, {} of them populated now",
        guest.resident_bytes()?,
        report.populated
    );
    guest.guest_writes(512 << 20, &[7; 64 << 10]);
    println!("after a write high up: {}", guest.resident_bytes()?);
    guest.guest_frees(8 << 20..16 << 20)?;
    println!("after the guest freed 8 MiB: {}", guest.resident_bytes()?);
    Ok(())
}

#[test]
fn memory_comes_with_use_and_goes_when_the_guest_frees_it() {
    let mut guest = GuestMemory::new().unwrap();
    assert_eq!(guest.resident_bytes().unwrap(), 0);
    assert_eq!(guest.prepare(BOOT).unwrap().first_missing, None);
    assert_eq!(guest.resident_bytes().unwrap(), BOOT.len() as u64);
    guest.guest_writes(8 << 20, b"old");
    guest.guest_frees(8 << 20..16 << 20).unwrap();
    assert_eq!(guest.resident_bytes().unwrap(), 8 << 20);
    assert_eq!(guest.ram.as_slice()[8 << 20..][..3], [0; 3]);
}

#[test]
fn the_story_runs() {
    main().unwrap();
}
