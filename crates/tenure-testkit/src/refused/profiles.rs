//! The refusals that a program meets under container runtimes, service managers, sandboxes and
//! settings of the machine.

#![allow(unsafe_code, reason = "gives rights away in a process that becomes another program")]

use super::lists::{self, List};
use crate::seccomp::{kill_for_resources_and_privileged, launch, Call, Denied, Errno, Filter};
use crate::{as_nobody, Unavailable};
use rustix::mount::{mount, mount_change, MountFlags, MountPropagationFlags};
use rustix::process::{setrlimit, Resource, Rlimit};
use rustix::thread::{unshare_unsafe, UnshareFlags};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// One profile.
#[derive(Debug)]
pub struct Profile {
    /// Its name, as the command line takes it.
    pub name: &'static str,
    /// A description.
    pub about: &'static str,
    /// Nothing can be volatile under it: such tests end with an error for that.
    pub without_volatile: bool,
    /// A file of the machine's settings, and its value meanwhile.
    pub setting: Option<(&'static str, &'static str)>,
    filter: Option<fn() -> Filter>,
    world: World,
}

/// A difference other than system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum World {
    Usual,
    /// These files are empty and cannot be written.
    Without(&'static str),
    OrdinaryUser,
    WithoutHugePages,
    /// `RLIMIT_DATA`.
    DataLimit(u64),
    KillsForGroups,
}

const USUAL: Profile = Profile {
    name: "",
    about: "",
    without_volatile: false,
    setting: None,
    filter: None,
    world: World::Usual,
};
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const USERFAULTFD: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// All profiles; the first refuses nothing.
pub const PROFILES: &[Profile] = &[
    Profile { name: "plain", about: "nothing is refused", ..USUAL },
    Profile {
        name: "systemd-kills",
        about: "SystemCallFilter=~@resources @privileged: such a call kills",
        world: World::KillsForGroups,
        ..USUAL
    },
    Profile {
        name: "systemd-service",
        about: "SystemCallFilter=@system-service, SystemCallErrorNumber=EPERM",
        filter: Some(|| {
            let less = |call: &&(&str, i64)| !lists::SERVICE_LESS.iter().any(|out| out.1 == call.1);
            [lists::CONTAINERS, lists::CONTAINERS_HERE, lists::DOCKER, lists::SERVICE_MORE]
                .iter()
                .flat_map(|list| list.iter().filter(less))
                .fold(Filter::deny_all(Denied::Errno(Errno::PERM)), allow)
        }),
        ..USUAL
    },
    Profile {
        name: "docker",
        about: "Docker's default list: EPERM for all others, ENOSYS for clone3",
        filter: Some(|| container(&[lists::CONTAINERS, lists::CONTAINERS_HERE, lists::DOCKER])),
        ..USUAL
    },
    Profile {
        name: "containerd",
        about: "containerd's older list: no close_range, no process_vm_readv",
        filter: Some(|| {
            // The tests wait for their children by descriptors.
            let filter = container(&[lists::CONTAINERS, lists::CONTAINERS_HERE]);
            filter.allow(Call::Number(libc::SYS_pidfd_open))
        }),
        ..USUAL
    },
    Profile {
        name: "gvisor",
        about:
            "what gVisor's kernel has not: no userfaultfd, MADV_FREE, MADV_POPULATE_*, PAGEMAP_SCAN",
        without_volatile: true,
        filter: Some(|| {
            let filter = names(
                &["userfaultfd", "process_madvise", "pagemap-scan", "procmap-query", "madv-free"],
                super::Manner::Unknown,
            );
            let rest = ["madv-pageout", "madv-populate-read", "madv-populate-write", "madv-remove"];
            let more =
                ["madv-wipeonfork", "madv-dontneed-locked", "madv-collapse", "mremap-dontunmap"];
            let filter = and_names(filter, &rest, super::Manner::Unknown);
            and_names(filter, &more, super::Manner::Unknown)
        }),
        ..USUAL
    },
    Profile {
        name: "old-kernel",
        about: "what Linux 5.10 has not",
        filter: Some(|| {
            let calls =
                ["pagemap-scan", "procmap-query", "madv-populate-read", "madv-populate-write"];
            let more = ["madv-dontneed-locked", "madv-collapse", "uffd-poison", "process_madvise"];
            and_names(names(&calls, super::Manner::Unknown), &more, super::Manner::Unknown)
        }),
        ..USUAL
    },
    Profile {
        name: "chromium",
        about: "a sandbox's short list: EPERM for all others, few advices, no ioctl",
        filter: Some(browser),
        ..USUAL
    },
    Profile {
        name: "selinux",
        about: "EACCES for userfaultfd, other processes' memory, and memory that can be executed",
        filter: Some(|| {
            let filter = names(
                &["userfaultfd", "process_madvise", "process_vm_readv"],
                super::Manner::Denied,
            );
            let execute = [libc::PROT_EXEC | libc::PROT_READ, libc::PROT_EXEC | 3];
            execute.iter().fold(filter, |filter, prot| {
                let call = |number| Call::WithArgument(number, 2, *prot as u32);
                filter.refuse(call(libc::SYS_mprotect), Errno::ACCESS)
            })
        }),
        ..USUAL
    },
    Profile { name: "no-proc", about: "/proc is empty", world: World::Without("/proc"), ..USUAL },
    Profile {
        name: "no-sys",
        about: "/sys is empty: no cgroups, no settings of huge pages",
        world: World::Without("/sys"),
        ..USUAL
    },
    Profile {
        name: "no-psi",
        about: "/proc/pressure is empty",
        world: World::Without("/proc/pressure"),
        ..USUAL
    },
    Profile {
        name: "no-shm",
        about: "/dev/shm is empty and read-only",
        world: World::Without("/dev/shm"),
        ..USUAL
    },
    Profile {
        name: "data-limit",
        about:
            "RLIMIT_DATA of 3 GiB: refused as overcommit_memory=2 refuses, for this process alone",
        world: World::DataLimit(3 << 30),
        ..USUAL
    },
    Profile {
        name: "ordinary-user",
        about: "an ordinary user, vm.unprivileged_userfaultfd=0",
        setting: Some((USERFAULTFD, "0")),
        world: World::OrdinaryUser,
        ..USUAL
    },
    Profile {
        name: "ordinary-user-1",
        about: "an ordinary user, vm.unprivileged_userfaultfd=1",
        setting: Some((USERFAULTFD, "1")),
        world: World::OrdinaryUser,
        ..USUAL
    },
    Profile {
        name: "no-thp",
        about: "PR_SET_THP_DISABLE",
        world: World::WithoutHugePages,
        ..USUAL
    },
    Profile {
        name: "thp-never",
        about: "transparent huge pages: never",
        setting: Some((HUGE_PAGES, "never")),
        ..USUAL
    },
    Profile {
        name: "thp-madvise",
        about: "transparent huge pages: madvise",
        setting: Some((HUGE_PAGES, "madvise")),
        ..USUAL
    },
    Profile {
        name: "thp-always",
        about: "transparent huge pages: always",
        setting: Some((HUGE_PAGES, "always")),
        ..USUAL
    },
    Profile {
        name: "overcommit-2",
        about: "vm.overcommit_memory=2",
        setting: Some(("/proc/sys/vm/overcommit_memory", "2")),
        ..USUAL
    },
];

/// The profile of this name.
pub fn profile(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

fn allow(filter: Filter, call: &(&'static str, i64)) -> Filter {
    filter.allow(Call::Number(call.1))
}

fn container(allowed: &[List]) -> Filter {
    let filter = Filter::deny_all(Denied::Errno(Errno::PERM));
    let filter = allowed.iter().flat_map(|list| list.iter()).fold(filter, allow);
    let filter = filter.refuse(Call::Number(libc::SYS_clone3), Errno::NOSYS);
    [0, u32::MAX].iter().fold(filter, |filter, value| {
        filter.allow(Call::WithArgument(libc::SYS_personality, 0, *value))
    })
}

fn names(capabilities: &[&str], manner: super::Manner) -> Filter {
    and_names(Filter::new(), capabilities, manner)
}

fn and_names(filter: Filter, capabilities: &[&str], manner: super::Manner) -> Filter {
    capabilities.iter().fold(filter, |filter, name| {
        let capability = super::capability(name).expect("a capability of this name");
        capability.refuse(filter, manner)
    })
}

fn browser() -> Filter {
    let filter = Filter::deny_all(Denied::Errno(Errno::PERM));
    let lists = [lists::BROWSER, lists::BROWSER_HERE];
    let filter = lists.iter().flat_map(|list| list.iter()).fold(filter, allow);
    let advices = [
        libc::MADV_NORMAL,
        libc::MADV_RANDOM,
        libc::MADV_WILLNEED,
        libc::MADV_DONTNEED,
        libc::MADV_FREE,
        libc::MADV_REMOVE,
        libc::MADV_DONTDUMP,
        // The tests use this advice to have pages purged.
        libc::MADV_PAGEOUT,
    ];
    let filter = advices.iter().fold(filter, |filter, advice| filter.allow(Call::Madvise(*advice)));
    // A request that terminals get, and by which the tests print.
    let filter = filter.allow(Call::Ioctl(libc::TCGETS as u32));
    let filter = filter.allow(Call::Number(libc::SYS_memfd_create));
    filter.refuse(Call::Number(libc::SYS_clone3), Errno::NOSYS)
}

impl Profile {
    /// Replaces this process by a program under the profile. Returns only on failure. The caller
    /// changes the machine's setting.
    pub fn launch(&self, mut program: Command) -> Unavailable {
        if self.world == World::KillsForGroups {
            return launch(program);
        }
        if let Err(unavailable) = self.enter() {
            return unavailable;
        }
        let error = program.exec();
        Unavailable::new(format!("{:?} cannot be started: {error}", program.get_program()))
    }

    /// Puts the calling process, which has one thread, under the profile, for good.
    pub fn enter(&self) -> Result<(), Unavailable> {
        match self.world {
            World::Usual => {}
            World::KillsForGroups => kill_for_resources_and_privileged().install_all_threads()?,
            World::Without(folder) => without(folder).map_err(|e| {
                Unavailable::new(format!("no mount namespace without {folder}: {e}"))
            })?,
            World::OrdinaryUser => {
                if !rustix::process::geteuid().is_root() {
                    return Err(Unavailable::new("this user is an ordinary one anyhow"));
                }
                as_nobody()?;
            }
            World::WithoutHugePages => {
                // SAFETY: plain numbers.
                if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0 {
                    let e = std::io::Error::last_os_error();
                    return Err(Unavailable::new(format!("PR_SET_THP_DISABLE: {e}")));
                }
            }
            World::DataLimit(bytes) => {
                let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
                setrlimit(Resource::Data, limit)
                    .map_err(|e| Unavailable::new(format!("RLIMIT_DATA cannot be set: {e}")))?;
            }
        }
        match self.filter {
            Some(filter) => filter().install_all_threads(),
            None => Ok(()),
        }
    }
}

/// A mount namespace in which a folder is empty.
fn without(folder: &str) -> rustix::io::Result<()> {
    // SAFETY: the process has one thread, and only its view of the mounts changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("none", folder, "tmpfs", MountFlags::RDONLY, None)
}
