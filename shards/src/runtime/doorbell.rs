//! Wakes a shard from another thread.
//!
//! A [`Doorbell`] is shared between threads. The shard that it wakes makes one [`DoorbellWaiter`] of
//! it and awaits that in one task. Rings are counted by the kernel until the waiter takes them, so one
//! that comes between two waits ends the next wait; several rings before a wait end one wait.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::mesh::Bell;

use super::executor::reactor;
use super::reactor::{Direction, Interest};

/// The ringing side: an eventfd. Any thread.
#[derive(Debug)]
pub struct Doorbell {
    eventfd: File,
}

impl Doorbell {
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Doorbell> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { eventfd: File::from(eventfd) })
    }

    /// Ends the shard's wait, or its next one. One system call.
    pub fn ring(&self) {
        // The only failure that an eventfd knows is a count about to overflow; then it stands at more
        // than zero, which is all that is wanted.
        let _ = (&self.eventfd).write(&1u64.to_ne_bytes());
    }
}

impl Bell for Doorbell {
    fn ring(&self) {
        Doorbell::ring(self);
    }
}

impl AsFd for Doorbell {
    /// The eventfd, for whatever else is to ring it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }
}

/// The waiting side. One for each doorbell, on the shard's thread.
#[derive(Debug)]
pub struct DoorbellWaiter {
    interest: Interest,
    doorbell: Arc<Doorbell>,
}

impl DoorbellWaiter {
    /// To be called on the shard that will wait.
    ///
    /// # Panics
    /// Outside of a shard.
    pub fn new(doorbell: Arc<Doorbell>) -> DoorbellWaiter {
        let interest = Interest::new(reactor(), doorbell.as_raw_fd(), Direction::Input);
        DoorbellWaiter { interest, doorbell }
    }

    /// Returns when the doorbell has been rung since the last return.
    ///
    /// # Errors
    /// Those of read(2), of which an eventfd that is open has none.
    pub async fn wait(&self) -> io::Result<()> {
        let mut count = [0; 8];
        loop {
            self.interest.ready().await;
            match (&self.doorbell.eventfd).read(&mut count) {
                Ok(_) => {
                    self.interest.took_all();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.interest.used_up(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
