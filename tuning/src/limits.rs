//! Limits of this process: locked memory and open files. Raised as far as allowed, then judged.
//!
//! # Locked memory
//!
//! The executor of each shard refuses to start below [`MEMLOCK_PER_SHARD_BYTES`], whatever it would really
//! lock. Kernels before 5.12 charge the rings of all executors to this limit, so that there each
//! shard needs its own share of it; later ones charge the rings to the control group instead.
//! `CAP_IPC_LOCK` frees from being charged, not from the executor's look at the number.

use std::{fs, io};

use thiserror::Error;

use crate::kernel::KernelVersion;
use crate::sys::{self, Limit, Resource};

/// Locked memory that an executor insists on.
pub const MEMLOCK_PER_SHARD_BYTES: u64 = 512 * 1024;

/// Below this many open files the broker warns: each connection needs one.
pub const NOFILE_LOW: u64 = 16_384;

/// The first kernel that charges rings to the control group and not to the locked memory of the user.
const RINGS_NOT_LOCKED: KernelVersion = KernelVersion { major: 5, minor: 12 };

/// A bit of the effective capabilities: locked memory is not charged.
pub(crate) const CAP_IPC_LOCK: u32 = 14;
/// Another: hard limits can be raised.
pub(crate) const CAP_SYS_RESOURCE: u32 = 24;

/// Too little memory may be locked.
#[derive(Debug, Error)]
#[error(
    "{} KiB of memory may be locked, and {shards} {} {} KiB; set LimitMEMLOCK={} in the systemd unit, or raise \
     memlock in /etc/security/limits.conf (`ulimit -l`){}", have_bytes / 1024,
    if *shards == 1 { "shard needs" } else { "shards need" }, need_bytes / 1024, need_bytes,
    if *need_bytes > MEMLOCK_PER_SHARD_BYTES { ", or run fewer shards" } else { "" }
)]
pub struct MemlockError {
    /// The limit, raised as far as this process may.
    pub have_bytes: u64,
    /// What is needed.
    pub need_bytes: u64,
    /// For so many shards.
    pub shards: usize,
}

/// How many files this process may have open, after raising the soft limit to the hard one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nofile {
    /// The limit now.
    pub files: u64,
}

impl Nofile {
    /// What to tell the user when it is low.
    pub fn warning(self) -> Option<String> {
        (self.files < NOFILE_LOW).then(|| {
            format!(
                "only {} files may be open, and each connection needs one; set LimitNOFILE= in the systemd \
                 unit, or raise nofile in /etc/security/limits.conf (`ulimit -Hn`)",
                self.files
            )
        })
    }
}

/// Raises the soft limit of open files to the hard one and says what it is.
///
/// # Errors
/// What the system says; by the interface's own description that does not happen.
pub fn raise_nofile() -> io::Result<Nofile> {
    let Limit { soft, hard } = sys::limit(Resource::Nofile)?;
    if soft < hard {
        sys::set_limit(Resource::Nofile, Limit { soft: hard, hard })?;
    }
    Ok(Nofile { files: hard })
}

/// Raises the limit of locked memory if it is short of what this many shards need.
///
/// # Errors
/// [`MemlockError`] when the limit stays too low.
pub fn ensure_memlock(shards: usize) -> Result<(), MemlockError> {
    let need_bytes = memlock_need(shards, KernelVersion::running(), has_ipc_lock());
    let unlimited = Limit { soft: u64::MAX, hard: u64::MAX };
    // Where the limit cannot even be asked for, the executor's own check has the last word.
    let Limit { soft, hard } = sys::limit(Resource::Memlock).unwrap_or(unlimited);
    let have_bytes = raise(soft, hard, need_bytes, |limit| sys::set_limit(Resource::Memlock, limit).is_ok());
    judge_memlock(have_bytes, need_bytes, shards)
}

fn judge_memlock(have_bytes: u64, need_bytes: u64, shards: usize) -> Result<(), MemlockError> {
    if have_bytes < need_bytes { Err(MemlockError { have_bytes, need_bytes, shards }) } else { Ok(()) }
}

/// Raises a soft limit to what is needed, beyond the hard one only where that is permitted (root); says
/// what the soft limit is in the end.
fn raise(soft: u64, hard: u64, need: u64, set: impl Fn(Limit) -> bool) -> u64 {
    if soft >= need {
        return soft;
    }
    if set(Limit { soft: need, hard: hard.max(need) }) {
        return need;
    }
    if set(Limit { soft: hard, hard }) { hard } else { soft }
}

pub(crate) fn memlock_need(shards: usize, kernel: Option<KernelVersion>, ipc_lock: bool) -> u64 {
    let charged = !ipc_lock && kernel.is_some_and(|version| version < RINGS_NOT_LOCKED);
    if charged { MEMLOCK_PER_SHARD_BYTES * shards.max(1) as u64 } else { MEMLOCK_PER_SHARD_BYTES }
}

fn has_ipc_lock() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| capability(&status, CAP_IPC_LOCK))
}

pub(crate) fn capability(status: &str, bit: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const OLD: Option<KernelVersion> = Some(KernelVersion { major: 5, minor: 10 });
    const NEW: Option<KernelVersion> = Some(KernelVersion { major: 6, minor: 1 });

    #[test]
    fn only_old_kernels_charge_each_shard() {
        assert_eq!(memlock_need(4, NEW, false), 512 * 1024);
        assert_eq!(memlock_need(4, OLD, false), 4 * 512 * 1024);
        assert_eq!(memlock_need(4, OLD, true), 512 * 1024);
        assert_eq!(memlock_need(4, None, false), 512 * 1024);
    }

    #[test]
    fn too_little_locked_memory_says_how_much_and_where_to_raise_it() {
        judge_memlock(512 * 1024, 512 * 1024, 1).unwrap();
        judge_memlock(u64::MAX, 512 * 1024, 1).unwrap();
        let text = judge_memlock(64 * 1024, 1024 * 1024, 2).unwrap_err().to_string();
        assert!(text.starts_with("64 KiB of memory may be locked, and 2 shards need 1024 KiB"), "{text}");
        assert!(text.contains("LimitMEMLOCK=1048576") && text.contains("fewer shards"), "{text}");
        assert!(!text.contains('\n'), "{text}");
        let text = judge_memlock(64 * 1024, 512 * 1024, 2).unwrap_err().to_string();
        assert!(!text.contains("fewer shards"), "one executor alone insists on it: {text}");
    }

    #[test]
    fn a_limit_is_raised_no_further_than_needed_and_allowed() {
        let never = |_| panic!("it is enough already");
        assert_eq!(raise(100, 200, 100, never), 100);
        let asked = RefCell::new(Vec::new());
        let unprivileged = |limit: Limit| {
            asked.borrow_mut().push(limit);
            limit.hard <= 200
        };
        assert_eq!(raise(100, 200, 150, unprivileged), 150);
        assert_eq!(raise(100, 200, 300, unprivileged), 200, "up to the hard limit");
        let expected = [(150, 200), (300, 300), (200, 200)].map(|(soft, hard)| Limit { soft, hard });
        assert_eq!(*asked.borrow(), expected);
        assert_eq!(raise(100, 200, 300, |_| true), 300, "root may raise the hard limit");
        assert_eq!(raise(100, 200, 300, |_| false), 100);
    }

    #[test]
    fn few_files_are_worth_a_warning() {
        let text = Nofile { files: 1024 }.warning().unwrap();
        assert!(text.contains("1024") && text.contains("LimitNOFILE"), "{text}");
        assert_eq!(Nofile { files: NOFILE_LOW }.warning(), None);
    }

    #[test]
    fn the_soft_limit_of_open_files_becomes_the_hard_one() {
        let files = raise_nofile().unwrap().files;
        assert_eq!(sys::limit(Resource::Nofile).unwrap(), Limit { soft: files, hard: files });
    }

    #[test]
    fn effective_capabilities_are_read_from_the_status() {
        assert!(capability("Name:\tx\nCapInh:\t0\nCapEff:\t0000000000004000\n", CAP_IPC_LOCK));
        assert!(!capability("CapEff:\t00000000a80425fb\n", CAP_IPC_LOCK));
        assert!(!capability("CapPrm:\tffffffffffffffff\n", CAP_IPC_LOCK));
    }
}
