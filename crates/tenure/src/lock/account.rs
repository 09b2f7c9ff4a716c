//! The memory charged against `RLIMIT_MEMLOCK`, and whether the limit holds here.

use crate::error::{Error, Result};
use crate::os::{self, limits};
use std::fmt;

/// The memory that this process has locked and may lock, in bytes.
///
/// ```
/// let account = tenure::lock::account()?;
/// println!("{account}"); // bytes locked, the limits, and whether CAP_IPC_LOCK lifts them
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
#[doc(alias = "RLIMIT_MEMLOCK")]
pub struct Account {
    /// Charged already (`VmLck`).
    pub locked: u64,
    /// The limit that holds; `None`: unlimited. A process may raise it up to the hard limit.
    pub soft: Option<u64>,
    /// The value to which the soft limit can be raised without `CAP_SYS_RESOURCE`; `None`:
    /// unlimited.
    pub hard: Option<u64>,
    /// Whether the calling thread has `CAP_IPC_LOCK` in effect.
    pub ipc_lock: bool,
    /// Whether capabilities lift the limit here: only in the machine's first user namespace.
    pub first_user_namespace: bool,
}

impl Account {
    /// Returns whether this thread may lock without a limit.
    ///
    /// ```
    /// let account = tenure::lock::account()?;
    /// assert_eq!(account.is_exempt(), account.room().is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_exempt(&self) -> bool {
        self.soft.is_none() || (self.ipc_lock && self.first_user_namespace)
    }

    /// Returns how many more bytes can be locked, in whole pages. `None`: there is no limit.
    ///
    /// ```
    /// let cache_bytes = 64 << 20;
    /// if tenure::lock::account()?.room().is_some_and(|room| room < cache_bytes) {
    ///     println!("{}", tenure::lock::explain(cache_bytes)?); // the lines to write, and where
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn room(&self) -> Option<u64> {
        if self.is_exempt() {
            return None;
        }
        let page = os::page_size() as u64;
        self.soft.map(|soft| (soft / page * page).saturating_sub(self.locked))
    }
}

/// Reads the locked bytes, the limit and the thread's exemption from it. About 30 µs.
///
/// ```
/// let account = tenure::lock::account()?;
/// println!("{} of {:?} bytes are locked", account.locked, account.soft);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `/proc` is not mounted, or a filter refuses the call that reads the limit.
#[doc(alias = "RLIMIT_MEMLOCK")]
#[doc(alias = "getrlimit")]
#[doc(alias = "VmLck")]
pub fn account() -> Result<Account> {
    let locked = limits::locked_bytes()
        .map_err(|errno| Error::system("account", "reading /proc/thread-self/status", errno))?;
    let limit = limits::memlock()
        .map_err(|errno| Error::system("account", "asking for the limit", errno))?;
    Ok(Account {
        locked,
        soft: limit.soft,
        hard: limit.hard,
        ipc_lock: limits::has_ipc_lock(),
        first_user_namespace: limits::in_first_user_namespace(),
    })
}

/// A limit as text.
struct Limit(Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes}"),
            None => f.write_str("unlimited"),
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes are locked, the soft limit is {}, the hard limit {}, and ",
            self.locked,
            Limit(self.soft),
            Limit(self.hard)
        )?;
        f.write_str(match (self.ipc_lock, self.first_user_namespace) {
            (true, true) => "CAP_IPC_LOCK lifts it",
            (true, false) => {
                "CAP_IPC_LOCK does not lift it, because this is not the machine's first user namespace"
            }
            (false, _) => "CAP_IPC_LOCK, which would lift it, is not in effect",
        })
    }
}
