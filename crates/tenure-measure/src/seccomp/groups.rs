//! systemd's groups of system calls that units commonly deny, and a filter that kills for them.

use super::{Call, Filter};
use crate::unavailable::Unavailable;

/// Names the groups that this process was started with a filter for; see [`launch`].
const DENIED_VARIABLE: &str = "TENURE_TESTKIT_DENIED";

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// `SystemCallFilter=~@resources`: calls that change scheduling, priorities and limits. As
/// `systemd-analyze syscall-filter @resources` of version 252 lists them, without those that the
/// architecture lacks.
pub const RESOURCES: &[(&str, i64)] = calls! {
    SYS_ioprio_set SYS_mbind SYS_migrate_pages SYS_move_pages SYS_sched_setaffinity SYS_sched_setattr
    SYS_sched_setparam SYS_sched_setscheduler SYS_set_mempolicy SYS_set_mempolicy_home_node
    SYS_setpriority SYS_setrlimit
};

/// `SystemCallFilter=~@privileged`: calls that need a super-user's capabilities. As
/// `systemd-analyze syscall-filter @privileged` of version 252 lists them, without those that the
/// architecture lacks, and without kexec_file_load, which libc does not name for all.
pub const PRIVILEGED: &[(&str, i64)] = calls! {
    SYS_acct SYS_adjtimex SYS_bpf SYS_capset SYS_chroot SYS_clock_adjtime SYS_clock_settime
    SYS_delete_module SYS_fanotify_init SYS_fanotify_mark SYS_fchown SYS_fchownat SYS_finit_module
    SYS_init_module SYS_kexec_load SYS_nfsservctl SYS_open_by_handle_at
    SYS_pivot_root SYS_quotactl SYS_quotactl_fd SYS_reboot SYS_setdomainname SYS_setfsuid
    SYS_setgroups SYS_sethostname SYS_setresuid SYS_setreuid SYS_settimeofday SYS_setuid SYS_swapoff
    SYS_swapon SYS_vhangup
};

/// Those of [`PRIVILEGED`] that only older architectures have.
#[cfg(target_arch = "x86_64")]
pub const PRIVILEGED_HERE: &[(&str, i64)] =
    calls! { SYS__sysctl SYS_chown SYS_ioperm SYS_iopl SYS_lchown };
/// Those of [`PRIVILEGED`] that only older architectures have.
#[cfg(not(target_arch = "x86_64"))]
pub const PRIVILEGED_HERE: &[(&str, i64)] = &[];

fn denied() -> impl Iterator<Item = &'static (&'static str, i64)> {
    RESOURCES.iter().chain(PRIVILEGED).chain(PRIVILEGED_HERE)
}

/// The filter that systemd installs for `SystemCallFilter=~@resources @privileged` without
/// `SystemCallErrorNumber=`: the process dies of SIGSYS at the first such call.
pub fn kill_for_resources_and_privileged() -> Filter {
    denied().fold(Filter::new(), |filter, (_, number)| filter.kill(Call::Number(*number)))
}

/// Replaces this process by a program under [`kill_for_resources_and_privileged`], and sets the
/// variable that [`may_call`] reads. Returns only on failure.
pub fn launch(mut program: std::process::Command) -> Unavailable {
    use std::os::unix::process::CommandExt;
    if let Err(unavailable) = kill_for_resources_and_privileged().install_all_threads() {
        return unavailable;
    }
    let error = program.env(DENIED_VARIABLE, "@resources @privileged").exec();
    Unavailable::new(format!("{:?} cannot be started: {error}", program.get_program()))
}

/// Returns whether a test may make this system call itself (such as `"sched_setaffinity"`), or
/// would be killed for it because the suite runs under a filter ([`launch`]).
pub fn may_call(name: &str) -> Result<(), Unavailable> {
    let Some(groups) = std::env::var_os(DENIED_VARIABLE) else { return Ok(()) };
    if denied().any(|(call, _)| call.trim_start_matches("SYS_") == name) {
        return Err(Unavailable::new(format!(
            "the test itself calls {name}, and runs under a filter that kills for {}",
            groups.to_string_lossy()
        )));
    }
    Ok(())
}
