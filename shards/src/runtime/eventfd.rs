//! The one system call of the runtime that neither std nor the executor offers: making an eventfd.
//! Everything after that works through safe types that own the descriptor.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

/// A new eventfd with count 0: non-blocking, closed on exec. Writing 8 bytes adds to its count,
/// reading 8 bytes takes the count and fails with `WouldBlock` while it is 0.
pub(super) fn new() -> io::Result<File> {
    // SAFETY: takes two integers and touches no memory of ours.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, and nothing else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
