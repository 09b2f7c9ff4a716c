//! The backing of a mapping, as far as populating depends on it.

use crate::os::maps::Described;
use crate::os::{internal, mounts, page_size};
use std::fmt;

/// The source of a mapping's pages.
///
/// ```
/// use tenure::populate::{Access, Backing, Populate};
/// let memory = tenure::Mapping::memfd("table", 1 << 20)?;
/// let plan = Populate::new(memory.as_ptr(), memory.len(), Access::Write).plan()?;
/// assert_eq!(plan.parts[0].backing, Backing::Memfd);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Backing {
    /// Private anonymous memory, and `/dev/zero` mapped private.
    Anonymous,
    /// Shared anonymous memory, System V shared memory.
    SharedAnonymous,
    /// A memfd.
    Memfd,
    /// A file in a tmpfs.
    Tmpfs,
    /// A file, with the type of its file system if that is known.
    File(String),
    /// Huge pages from the pool (hugetlbfs, `MAP_HUGETLB`, `MFD_HUGETLB`).
    HugeTlb,
    /// Secret memory (`memfd_secret`), which the kernel refuses to populate.
    Secret,
    /// A device, or the kernel's own memory.
    Special,
}

impl Backing {
    pub(super) fn of(described: &Described) -> Backing {
        let (mapping, name) = (&described.mapping, described.name.as_str());
        if described.page_size > page_size() {
            return Backing::HugeTlb;
        }
        if mapping.inode == 0 && !mapping.shared {
            // [vdso], [vvar], [vsyscall]: no file, and not memory that can be populated.
            return if name.starts_with("[v") { Backing::Special } else { Backing::Anonymous };
        }
        if internal::is_shmem(mapping.device) {
            let anonymous = ["/dev/zero", "/SYSV", "[anon_shmem:"];
            return match name {
                _ if name.starts_with("/memfd:") => Backing::Memfd,
                _ if anonymous.iter().any(|start| name.starts_with(start)) => {
                    Backing::SharedAnonymous
                }
                // A driver's object. It is not known that its pages may go.
                _ => Backing::File(String::new()),
            };
        }
        if !mapping.shared && name == "/dev/zero" {
            return Backing::Anonymous;
        }
        if internal::is_secret(name, mapping.device) {
            return Backing::Secret;
        }
        if mapping.device.0 != 0 {
            // A file system on a block device; its name would cost a reading of all mounts (30 µs).
            return Backing::File(String::new());
        }
        match mounts::file_system(mapping.device) {
            Some((kind, _)) if kind == "tmpfs" => Backing::Tmpfs,
            Some((kind, _)) if kind == "devtmpfs" || kind == "sysfs" || kind == "proc" => {
                Backing::Special
            }
            Some((kind, _)) => Backing::File(kind),
            None if name.starts_with("anon_inode:") => Backing::Special,
            None => Backing::File(String::new()),
        }
    }

    /// Returns whether its pages are memory of the tmpfs kind.
    pub(super) fn shmem(&self) -> bool {
        matches!(self, Backing::SharedAnonymous | Backing::Memfd | Backing::Tmpfs)
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Anonymous => f.write_str("anonymous memory"),
            Backing::SharedAnonymous => f.write_str("shared anonymous memory"),
            Backing::Memfd => f.write_str("memfd"),
            Backing::Tmpfs => f.write_str("tmpfs file"),
            Backing::File(kind) if kind.is_empty() => f.write_str("file"),
            Backing::File(kind) => write!(f, "file ({kind})"),
            Backing::HugeTlb => f.write_str("huge pages of the pool"),
            Backing::Secret => f.write_str("secret memory"),
            Backing::Special => f.write_str("special mapping"),
        }
    }
}
