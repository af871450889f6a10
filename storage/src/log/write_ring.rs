//! One write at a time through an io_uring of its own, on the shard's thread.
//!
//! The executor's ring cannot say that a write is to be synchronous. This one is looked at in every turn
//! while the shard is awake, and rings the shard's doorbell (an eventfd) for when it sleeps. What is
//! written belongs to the ring until its completion has been taken, whatever becomes of everybody else.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};

use super::disk::AlignedBuffer;

/// Entries: a write and the sync behind it, and some air.
const ENTRIES: u32 = 8;
/// Most bytes of one write: the kernel stops at 2 GiB.
const WRITE_BYTES_MAX: usize = 1 << 30;

const WRITE: u64 = 1;
const SYNC: u64 = 2;

/// How a write becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sync {
    /// It does not.
    None,
    /// By the write itself.
    WithWrite,
    /// By an fdatasync behind it.
    Behind,
}

struct InFlight {
    file: File,
    offset: u64,
    buffer: AlignedBuffer,
    written: usize,
    sync: Sync,
}

/// See the module.
pub(super) struct WriteRing {
    ring: IoUring,
    in_flight: Option<InFlight>,
}

impl WriteRing {
    pub fn new() -> io::Result<WriteRing> {
        // Without it a completion interrupts the thread wherever it is. Linux 5.19 has it.
        let quiet = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES);
        let ring = quiet.or_else(|_| IoUring::new(ENTRIES))?;
        Ok(WriteRing { ring, in_flight: None })
    }

    pub fn register_eventfd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(fd.as_raw_fd())
    }

    /// Begins to write the whole buffer.
    ///
    /// # Errors
    /// With the buffer, when the kernel does not even take the request.
    ///
    /// # Panics
    /// While another write is under way.
    pub fn write(
        &mut self,
        file: File,
        offset: u64,
        buffer: AlignedBuffer,
        sync: Sync,
    ) -> Result<(), (AlignedBuffer, io::Error)> {
        assert!(self.in_flight.is_none(), "one write at a time");
        self.in_flight = Some(InFlight { file, offset, buffer, written: 0, sync });
        self.submit_write().map_err(|error| {
            let given_up = self.in_flight.take().expect("it was just put there");
            (given_up.buffer, error)
        })
    }

    fn submit_write(&mut self) -> io::Result<()> {
        let Some(InFlight { file, offset, buffer, written, sync }) = &self.in_flight else { return Ok(()) };
        let rest = &buffer.as_slice()[*written..];
        let flags = if *sync == Sync::WithWrite { libc::RWF_DSYNC } else { 0 };
        let len = rest.len().min(WRITE_BYTES_MAX) as u32;
        let write = opcode::Write::new(Fd(file.as_raw_fd()), rest.as_ptr(), len)
            .offset(offset + *written as u64)
            .rw_flags(flags)
            .build()
            .user_data(WRITE);
        self.submit(&write)
    }

    fn submit_sync(&mut self) -> io::Result<()> {
        let Some(InFlight { file, .. }) = &self.in_flight else { return Ok(()) };
        let sync =
            opcode::Fsync::new(Fd(file.as_raw_fd())).flags(FsyncFlags::DATASYNC).build().user_data(SYNC);
        self.submit(&sync)
    }

    fn submit(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the file and the buffer that the entry names are in `in_flight`, and stay there, with the
        // buffer's memory where it is, until its completion has been taken: `poll` takes them out only then,
        // and `drop` waits for it.
        unsafe { self.ring.submission().push(entry) }.expect("the ring has room for one request");
        loop {
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    /// The write, if it is done: the buffer and what became of it.
    pub fn poll(&mut self) -> Option<(AlignedBuffer, io::Result<()>)> {
        self.in_flight.as_ref()?;
        if self.ring.completion().is_empty() && self.ring.submission().taskrun() {
            // The kernel has a completion in hand and waits for the thread to come by.
            // SAFETY: nothing is passed that could dangle.
            let entered = unsafe { self.ring.submitter().enter::<()>(0, 0, ENTER_GETEVENTS, None) };
            drop(entered);
        }
        let (kind, result) = {
            let completion = self.ring.completion().next()?;
            (completion.user_data(), completion.result())
        };
        match self.completed(kind, result) {
            Ok(false) => None,
            Ok(true) => self.in_flight.take().map(|done| (done.buffer, Ok(()))),
            Err(error) => self.in_flight.take().map(|done| (done.buffer, Err(error))),
        }
    }

    /// Whether the write is done with this; if it is not, the rest has been begun.
    fn completed(&mut self, kind: u64, result: i32) -> io::Result<bool> {
        let write = self.in_flight.as_mut().expect("only what is under way completes");
        if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            let again = matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
            if !again {
                return Err(error);
            }
            // Nothing was done, and nothing is known to be wrong.
            return if kind == SYNC { self.submit_sync() } else { self.submit_write() }.map(|()| false);
        }
        if kind == SYNC {
            return Ok(true);
        }
        if result == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        write.written += result as usize;
        if write.written < write.buffer.len() {
            self.submit_write()?;
        } else if write.sync == Sync::Behind {
            self.submit_sync()?;
        } else {
            return Ok(true);
        }
        Ok(false)
    }
}

/// `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;

impl Drop for WriteRing {
    fn drop(&mut self) {
        while self.in_flight.is_some() {
            if self.poll().is_none() && self.ring.submit_and_wait(1).is_err() {
                // The kernel may still read the buffer: better lost than given to somebody else.
                std::mem::forget(self.in_flight.take());
            }
        }
    }
}
