//! The ring that a shard waits on: polls of descriptors, and time.
//!
//! Everything unsafe of the runtime is here. No operation that is queued refers to memory of ours, so that
//! none can outlive it: a poll names a descriptor and gives a token back.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

/// The token of operations whose results say nothing.
const IGNORED: u64 = u64::MAX;
/// Events of poll(2) after which no further one need come.
const ENDED: i32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as i32;

/// What has become of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PollResult {
    /// What the poll was queued with.
    pub token: u64,
    /// Nothing comes after what is there: the other side has ended, or there is an error.
    pub ended: bool,
    /// More results will come without asking.
    pub goes_on: bool,
}

/// See the module. Used on the thread that has made it.
pub(super) struct Ring {
    ring: IoUring,
}

impl Ring {
    /// A ring with so many entries for submissions and eight times as many for results, of which those
    /// that find no room are kept by the kernel.
    ///
    /// # Errors
    /// When the kernel has no `io_uring` for this process, or too old a one.
    pub fn new(entries: u32) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(entries.saturating_mul(8)).setup_clamp();
        let flagged = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
        // The kernel's part of a completion waits until this thread asks, and a flag says that one waits: no
        // interrupt breaks into a turn. Kernels before 6.1 do not know the first way, those before 5.19 not
        // the second.
        let deferred =
            builder.clone().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(entries);
        let ring = match deferred {
            Err(error) if flagged(&error) => {
                match builder.clone().setup_coop_taskrun().setup_taskrun_flag().build(entries) {
                    Err(error) if flagged(&error) => builder.build(entries)?,
                    other => other?,
                }
            }
            other => other?,
        };
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "io_uring of Linux 5.11 or later is needed",
            ));
        }
        Ok(Ring { ring })
    }

    /// Watches a descriptor for these events of poll(2): gives a result for each that comes from now on, and
    /// one at once if there is one already; or, `once`, a single result.
    pub fn poll(&mut self, fd: RawFd, events: u32, once: bool, token: u64) {
        debug_assert_ne!(token, IGNORED);
        let entry = opcode::PollAdd::new(types::Fd(fd), events).multi(!once).build().user_data(token);
        self.push(&entry);
    }

    /// Ends a poll, which gives its last result then.
    pub fn cancel(&mut self, token: u64) {
        self.push(&opcode::PollRemove::new(token).build().user_data(IGNORED));
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        loop {
            // SAFETY: polls and their removal refer to no memory, and a descriptor that means another file
            // by the time it is looked at makes a wrong result, which everybody who waits can take.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            self.enter(None);
        }
    }

    /// There is something for the kernel to take, or something that it has.
    pub fn wants_entering(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Results can be taken, now or after entering the kernel.
    pub fn has_results(&mut self) -> bool {
        let queue = self.ring.submission();
        let flagged = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        flagged || !self.ring.completion().is_empty()
    }

    /// Hands over what is queued and lets the kernel post what has come; `wait`: until there is a result, at
    /// most for so long.
    ///
    /// # Panics
    /// When the kernel refuses the ring itself.
    pub fn enter(&mut self, wait: Option<Option<Duration>>) {
        let submitter = self.ring.submitter();
        let entered = match wait {
            None => submitter.submit_and_wait(0),
            Some(None) => submitter.submit_and_wait(1),
            Some(Some(longest)) => {
                let time = types::Timespec::from(longest);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        if let Err(error) = entered {
            // The time is over, a signal, or the kernel is short of memory: what is queued stays so.
            let passes =
                matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY));
            assert!(passes, "the ring of the shard is broken: {error}");
        }
    }

    /// The next result that is there.
    pub fn next(&mut self) -> Option<PollResult> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() != IGNORED {
                // Below zero is a poll that was ended, or could not be: who waits finds out what is the matter.
                let ended = entry.result() < 0 || entry.result() & ENDED != 0;
                let goes_on = io_uring::cqueue::more(entry.flags());
                return Some(PollResult { token: entry.user_data(), ended, goes_on });
            }
        }
    }
}
