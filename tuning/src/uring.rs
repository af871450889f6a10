//! Whether this process may use io_uring, and whether the kernel's can do what the executor submits.
//!
//! The probe makes a ring of one entry and gives it back. The executor would refuse to start for the
//! same reasons, but later, on another thread, and without saying what to do.

use std::{fs, io};

use io_uring::{IoUring, Probe, opcode};
use thiserror::Error;

use crate::kernel::KernelVersion;

/// Why there can be no ring.
#[derive(Debug, Error)]
pub enum UringError {
    /// The kernel has no io_uring (ENOSYS).
    #[error(
        "this kernel has no io_uring, which lepus is built on; run it on Linux {} or later with \
         CONFIG_IO_URING",
        KernelVersion::OLDEST_SUPPORTED
    )]
    Missing,
    /// The administrator has switched it off.
    #[error(
        "io_uring is switched off on this host (sysctl kernel.io_uring_disabled = {sysctl}); allow it with \
         `sysctl -w kernel.io_uring_disabled=0`{}", if *sysctl == 1 { ", or put this user into the group \
         of kernel.io_uring_group" } else { "" }
    )]
    Disabled {
        /// The value of `kernel.io_uring_disabled`: 1 or 2.
        sysctl: u8,
    },
    /// Something other than the sysctl forbids it, by experience a container's seccomp profile.
    #[error(
        "this process may not use io_uring ({source}): a container's seccomp profile usually forbids it; \
         allow io_uring_setup, io_uring_enter and io_uring_register there (docker: --security-opt \
         seccomp=FILE)"
    )]
    Forbidden {
        /// What the system said.
        source: io::Error,
    },
    /// Not enough memory may be locked for a ring (kernels before 5.12 count it).
    #[error(
        "no memory for an io_uring: too little may be locked (memlock); raise it with LimitMEMLOCK= in the \
         systemd unit, or with `ulimit -l`"
    )]
    Memlock,
    /// The kernel's io_uring is too old.
    #[error(
        "this kernel's io_uring lacks {}; run lepus on Linux {} or later", missing.join(", "),
        KernelVersion::OLDEST_SUPPORTED
    )]
    TooOld {
        /// The operations that it lacks.
        missing: Vec<&'static str>,
    },
    /// Anything else.
    #[error("cannot set up an io_uring: {source}; check `dmesg` and the limits of this process")]
    Other {
        /// What the system said.
        source: io::Error,
    },
}

/// What the kernel's io_uring offers beyond the operations that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uring {
    /// Sockets are polled inside the kernel and cost no thread (5.7).
    pub fast_poll: bool,
    /// Waiting takes a timeout without a request of its own (5.11).
    pub ext_arg: bool,
    /// Completions are never dropped when the ring is full (5.5).
    pub nodrop: bool,
}

/// What the executor submits.
const NEEDED: &[(&str, u8)] = &[
    ("nop", opcode::Nop::CODE),
    ("readv", opcode::Readv::CODE),
    ("writev", opcode::Writev::CODE),
    ("fsync", opcode::Fsync::CODE),
    ("read_fixed", opcode::ReadFixed::CODE),
    ("write_fixed", opcode::WriteFixed::CODE),
    ("poll_add", opcode::PollAdd::CODE),
    ("poll_remove", opcode::PollRemove::CODE),
    ("sendmsg", opcode::SendMsg::CODE),
    ("recvmsg", opcode::RecvMsg::CODE),
    ("timeout", opcode::Timeout::CODE),
    ("timeout_remove", opcode::TimeoutRemove::CODE),
    ("accept", opcode::Accept::CODE),
    ("async_cancel", opcode::AsyncCancel::CODE),
    ("link_timeout", opcode::LinkTimeout::CODE),
    ("connect", opcode::Connect::CODE),
    ("fallocate", opcode::Fallocate::CODE),
    ("openat", opcode::OpenAt::CODE),
    ("close", opcode::Close::CODE),
    ("statx", opcode::Statx::CODE),
    ("read", opcode::Read::CODE),
    ("write", opcode::Write::CODE),
    ("send", opcode::Send::CODE),
    ("recv", opcode::Recv::CODE),
];

/// Makes a small ring and asks the kernel what it can do.
///
/// # Errors
/// [`UringError`], each with what the user can do about it.
pub fn check() -> Result<Uring, UringError> {
    let ring = IoUring::new(1).map_err(|error| explain(error, disabled_sysctl()))?;
    let mut probe = Probe::new();
    // The probe itself came with 5.6: a kernel that does not know it is too old for the rest as well.
    let probed = ring.submitter().register_probe(&mut probe);
    let missing = missing(|code| probed.is_ok() && probe.is_supported(code));
    if !missing.is_empty() {
        return Err(UringError::TooOld { missing });
    }
    let features = ring.params();
    Ok(Uring {
        fast_poll: features.is_feature_fast_poll(),
        ext_arg: features.is_feature_ext_arg(),
        nodrop: features.is_feature_nodrop(),
    })
}

fn missing(supported: impl Fn(u8) -> bool) -> Vec<&'static str> {
    NEEDED.iter().filter(|(_, code)| !supported(*code)).map(|(name, _)| *name).collect()
}

/// `kernel.io_uring_disabled`: 0 allows, 1 restricts to a group and CAP_SYS_ADMIN, 2 forbids.
fn disabled_sysctl() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

fn explain(source: io::Error, sysctl: Option<u8>) -> UringError {
    match (source.raw_os_error(), sysctl) {
        (Some(libc::ENOSYS), _) => UringError::Missing,
        (Some(libc::EPERM), Some(sysctl @ 1..)) => UringError::Disabled { sysctl },
        (Some(libc::EPERM | libc::EACCES), _) => UringError::Forbidden { source },
        (Some(libc::ENOMEM), _) => UringError::Memlock,
        _ => UringError::Other { source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(errno: i32, sysctl: Option<u8>) -> String {
        let text = explain(io::Error::from_raw_os_error(errno), sysctl).to_string();
        assert!(!text.contains('\n'), "one line: {text}");
        text
    }

    #[test]
    fn a_kernel_without_io_uring_is_told_from_a_forbidden_one() {
        assert!(text(libc::ENOSYS, None).contains("Linux 5.11 or later"));
        let off = text(libc::EPERM, Some(2));
        assert!(off.contains("kernel.io_uring_disabled = 2") && off.contains("sysctl -w"), "{off}");
        assert!(!off.contains("io_uring_group"), "2 has no exceptions: {off}");
        assert!(text(libc::EPERM, Some(1)).contains("io_uring_group"));
        for sysctl in [Some(0), None] {
            assert!(text(libc::EPERM, sysctl).contains("seccomp"));
        }
        assert!(text(libc::ENOMEM, Some(0)).contains("LimitMEMLOCK"));
        assert!(text(libc::EMFILE, Some(0)).contains("Too many open files"));
    }

    #[test]
    fn what_an_old_kernel_lacks_is_named() {
        assert_eq!(missing(|_| true), Vec::<&str>::new());
        let lacking = missing(|code| code != opcode::Statx::CODE && code != opcode::Send::CODE);
        assert_eq!(lacking, ["statx", "send"]);
        let text = UringError::TooOld { missing: lacking }.to_string();
        assert!(text.contains("statx, send") && text.contains("Linux 5.11"), "{text}");
    }

    #[test]
    fn the_host_that_runs_the_tests_is_probed() {
        match check() {
            Ok(uring) => assert!(uring.nodrop, "every kernel with all operations has it"),
            // A build host may forbid it; then the reason must be one of those with advice.
            Err(error) => assert!(!matches!(error, UringError::Other { .. }), "{error}"),
        }
    }
}
