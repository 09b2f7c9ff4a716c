//! Whether a lock would be allowed, and the lines that raise the limit.

use super::account::{account, Account};
use crate::error::Result;
use crate::os::{self, memory_group, room_now};
use crate::text::{text, Text};
use std::fmt;

/// Whether a number of bytes could be locked.
///
/// ```
/// use tenure::lock::{explain, Verdict};
/// match explain(5 << 30)?.verdict {
///     Verdict::Fits | Verdict::Exempt => println!("the limit allows it"),
///     Verdict::RaiseSoft => println!("this process can raise the limit by itself"),
///     _ => println!("the limit is set outside"),
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Verdict {
    /// The limit allows it.
    Fits,
    /// No limit holds for this thread: it is unlimited, or lifted by `CAP_IPC_LOCK`.
    Exempt,
    /// The soft limit is too low, and the process itself may raise it far enough.
    RaiseSoft,
    /// The hard limit is too low: it must be raised where the process is started.
    RaiseHard,
}

/// The result of [`explain()`].
///
/// ```
/// let explanation = tenure::lock::explain(5 << 30)?;
/// if explanation.memory_free < explanation.bytes {
///     println!("a lock may be allowed, and still end in the OOM killer");
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Explanation {
    /// The number of bytes in question, in whole pages.
    pub bytes: u64,
    /// Whether the limit allows it.
    pub verdict: Verdict,
    /// The numbers behind the verdict.
    pub account: Account,
    /// A sufficient limit: the bytes that are locked already, and these.
    pub limit_needed: u64,
    /// The memory that the machine, or the tightest memory cgroup, has free. A lock of more bytes
    /// than this may be allowed, and then the kernel's OOM killer ends the process.
    pub memory_free: u64,
}

/// Returns whether `bytes` more could be locked, without locking anything. Costs a few reads of
/// `/proc` and of the cgroup's files, about 200 µs.
///
/// ```
/// println!("{}", tenure::lock::explain(5 << 30)?); // the numbers, and the lines to write
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `/proc` is not mounted.
#[doc(alias = "RLIMIT_MEMLOCK")]
pub fn explain(bytes: u64) -> Result<Explanation> {
    let page = os::page_size() as u64;
    let bytes = bytes.div_ceil(page).saturating_mul(page);
    let account = account()?;
    let limit_needed = account.locked.saturating_add(bytes);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= limit_needed);
    let verdict = if account.is_exempt() {
        Verdict::Exempt
    } else if enough(account.soft) {
        Verdict::Fits
    } else if enough(account.hard) {
        Verdict::RaiseSoft
    } else {
        Verdict::RaiseHard
    };
    let memory_free = room_now::room(memory_group::own_group().as_ref()).free;
    Ok(Explanation { bytes, verdict, account, limit_needed, memory_free })
}

impl Explanation {
    /// Returns whether a lock of so many bytes would be allowed now.
    ///
    /// ```
    /// assert!(tenure::lock::explain(0)?.is_allowed());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Fits | Verdict::Exempt)
    }

    /// Returns the lines that raise the limit, each with the place where it goes. Returns nothing
    /// if nothing needs to change.
    ///
    /// ```
    /// for (place, line) in tenure::lock::explain(5 << 30)?.lines() {
    ///     println!("{place}: {line}"); // systemd unit, [Service]: LimitMEMLOCK=…
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        match self.verdict {
            Verdict::Fits | Verdict::Exempt => Vec::new(),
            verdict => lines(self.limit_needed, verdict == Verdict::RaiseSoft),
        }
    }
}

/// Returns the lines that raise the limit to `bytes`, each with its place.
fn lines(bytes: u64, soft_is_enough: bool) -> Vec<(&'static str, String)> {
    let kib = bytes.div_ceil(1024);
    let mut lines = Vec::new();
    if soft_is_enough {
        lines.push((
            "this process, as it is",
            format!("prlimit --pid {} --memlock={bytes}:", std::process::id()),
        ));
        lines.push(("shell, before the program", format!("ulimit -S -l {kib}")));
    } else {
        lines.push((
            "shell of root, before the program",
            format!("ulimit -l {kib}   # KiB; the hard limit needs CAP_SYS_RESOURCE"),
        ));
        lines.push((
            "/etc/security/limits.conf (logins)",
            format!("USER - memlock {kib}   # USER: the user that runs it"),
        ));
    }
    lines.push(("systemd unit, [Service]", format!("LimitMEMLOCK={bytes}")));
    lines.push(("Docker", format!("docker run --ulimit memlock={bytes}:{bytes} …")));
    lines.push((
        "Docker Compose",
        format!("ulimits: {{ memlock: {{ soft: {bytes}, hard: {bytes} }} }}"),
    ));
    lines.push((
        "Kubernetes",
        "securityContext: { capabilities: { add: [\"IPC_LOCK\"] } }   # container runs as root, no \
         hostUsers: false; a pod cannot set ulimits itself"
            .into(),
    ));
    lines.push((
        "Kubernetes, on the node",
        format!("LimitMEMLOCK={bytes} in containerd's unit (CRI-O: default_ulimits = [\"memlock={bytes}:{bytes}\"])"),
    ));
    lines
}

/// Returns how to raise the limit in one sentence, for an error.
pub(super) fn remedy(account: &Account, limit_needed: u64) -> Text {
    let kib = limit_needed.div_ceil(1024);
    let soft = account.hard.is_none_or(|hard| hard >= limit_needed);
    let who = if soft {
        text!(
            "raise the soft limit, which the hard one allows (prlimit --pid {} \
             --memlock={limit_needed}:, or `ulimit -S -l {kib}` in the shell before)",
            std::process::id()
        )
    } else {
        text!("raise the limit (`ulimit -l {kib}` in a shell of root)")
    };
    text!(
        "{who}, or LimitMEMLOCK={limit_needed} in the systemd unit, docker run --ulimit \
         memlock={limit_needed}:{limit_needed}, in Kubernetes the capability IPC_LOCK for a container \
         that runs as root"
    )
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = &self.account;
        let answer = match self.verdict {
            Verdict::Fits => "yes, within the limit",
            Verdict::Exempt if account.soft.is_none() => "yes, there is no limit",
            Verdict::Exempt => "yes, CAP_IPC_LOCK lifts the limit",
            Verdict::RaiseSoft => "not yet: raise the soft limit, which the hard limit allows",
            Verdict::RaiseHard => "no: the hard limit is too low",
        };
        writeln!(f, "lock {}: {answer}", Bytes(self.bytes))?;
        let bytes =
            |f: &mut fmt::Formatter<'_>, name, bytes| writeln!(f, "  {name:<15} {}", Bytes(bytes));
        let limit = |f: &mut fmt::Formatter<'_>, name, limit| match limit {
            Some(limit) => bytes(f, name, limit),
            None => writeln!(f, "  {name:<15} unlimited"),
        };
        bytes(f, "locked already", account.locked)?;
        bytes(f, "limit needed", self.limit_needed)?;
        limit(f, "soft limit", account.soft)?;
        limit(f, "hard limit", account.hard)?;
        let exemption = match (account.ipc_lock, account.first_user_namespace) {
            (true, true) => "in effect",
            (true, false) => "of no use in this user namespace",
            (false, _) => "not in effect",
        };
        writeln!(f, "  {:<15} {exemption}", "CAP_IPC_LOCK")?;
        bytes(f, "memory free", self.memory_free)?;
        if self.memory_free < self.bytes {
            writeln!(
                f,
                "  Less memory is free: the kernel may allow the lock, and then call its OOM killer."
            )?;
        }
        let lines = self.lines();
        if !lines.is_empty() {
            writeln!(f, "to allow it, one of:")?;
        }
        for (place, line) in lines {
            writeln!(f, "  {place}:\n      {line}")?;
        }
        Ok(())
    }
}

/// A number of bytes, shown also in the largest unit that it fills.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bytes(bytes) = *self;
        write!(f, "{bytes} bytes")?;
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = units.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
            return Ok(());
        };
        let size = bytes as f64 / (1u64 << shift) as f64;
        match bytes % (1 << shift) {
            1.. if size < 99.95 => write!(f, " ({size:.1} {unit})"),
            _ => write!(f, " ({size:.0} {unit})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_they_fill() {
        for (bytes, shown) in [
            (1023, "1023 bytes"),
            (1024, "1024 bytes (1 KiB)"),
            (3 << 19, "1572864 bytes (1.5 MiB)"),
            ((99 << 20) + (1 << 18), "104071168 bytes (99.2 MiB)"),
            ((100 << 20) + (1 << 19), "105381888 bytes (100 MiB)"),
            (7 << 30, "7516192768 bytes (7 GiB)"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
    }
}
