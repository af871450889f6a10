//! A ring that carries one write at a time, and the one system call of the log that std does not offer.
//!
//! Everything unsafe of the log is here. Invariant: from the moment that operations are queued until the
//! results of all of them are known, the ring owns the buffer and the file; dropped, it waits.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::progress::{Next, Operation, Progress, Sync};
use crate::log::disk::AlignedBuffer;
use crate::log::format::BLOCK_BYTES;

/// A write and the sync that is linked to it; the kernel rounds up in any case.
const ENTRIES: u32 = 8;
/// The length of one operation is a signed 32-bit result; what is longer takes more rounds.
const OPERATION_BYTES_MAX: usize = 1 << 30;
const _: () = assert!(OPERATION_BYTES_MAX.is_multiple_of(BLOCK_BYTES));

const WRITE: u64 = 1;
const SYNC: u64 = 2;

pub(super) struct Ring {
    ring: IoUring,
    busy: Option<Busy>,
}

/// The write that is under way.
struct Busy {
    file: Arc<File>,
    offset: u64,
    buffer: AlignedBuffer,
    progress: Progress,
}

/// A write that is over.
pub(super) type Written = (AlignedBuffer, io::Result<()>);

impl Ring {
    pub fn new() -> io::Result<Ring> {
        // A completion then waits for the thread's next way into the kernel instead of interrupting it,
        // and the flag says that one waits, for a thread that has no other reason to go there.
        let cooperative = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES);
        let ring = match cooperative {
            // Kernels before 5.19 do not know them.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(ENTRIES)?,
            other => other?,
        };
        Ok(Ring { ring, busy: None })
    }

    /// Has the kernel add to this eventfd at each result.
    pub fn register_eventfd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(fd.as_raw_fd())
    }

    /// A write is under way.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// The kernel had no room for an operation: it is queued, but nothing will tell of it before the
    /// next [`Ring::poll`].
    pub fn is_stuck(&mut self) -> bool {
        self.busy.is_some() && !self.ring.submission().is_empty()
    }

    /// The write may be over: [`Ring::poll`] has something to look at.
    pub fn has_news(&mut self) -> bool {
        self.ring.submission().taskrun() || !self.ring.completion().is_empty()
    }

    /// Begins to write.
    pub fn start(&mut self, file: Arc<File>, offset: u64, buffer: AlignedBuffer, direct: bool, sync: Sync) {
        assert!(self.busy.is_none(), "one write at a time");
        let progress = Progress::new(buffer.len(), direct, sync);
        self.busy = Some(Busy { file, offset, buffer, progress });
        self.begin_round();
    }

    /// Gives the write back if it is over. Does not wait.
    pub fn poll(&mut self) -> Option<Written> {
        self.busy.as_ref()?;
        let queue = self.ring.submission();
        let enter = queue.taskrun() || !queue.is_empty();
        drop(queue);
        if enter {
            self.submit(0);
        }
        match self.collect() {
            Next::Wait => None,
            Next::Again => {
                self.begin_round();
                None
            }
            Next::Done(result) => self.busy.take().map(|busy| (busy.buffer, result)),
        }
    }

    /// Waits until the write is over.
    ///
    /// # Panics
    /// When there is none.
    pub fn wait(&mut self) -> Written {
        assert!(self.is_busy(), "something is written");
        loop {
            if let Some(written) = self.poll() {
                return written;
            }
            self.submit(1);
        }
    }

    fn begin_round(&mut self) {
        let Some(busy) = &mut self.busy else { return };
        let fd = types::Fd(busy.file.as_raw_fd());
        let done = busy.progress.written();
        let rest = &busy.buffer.as_slice()[done..];
        let bytes = rest.len().min(OPERATION_BYTES_MAX) as u32;
        let sync = busy.progress.sync();
        let write = opcode::Write::new(fd, rest.as_ptr(), bytes)
            .offset(busy.offset + done as u64)
            .rw_flags(if sync == Sync::Dsync { libc::RWF_DSYNC } else { 0 })
            .build()
            .user_data(WRITE);
        busy.progress.begin_round();
        let mut queue = self.ring.submission();
        // SAFETY: the operations read `rest`, which is on the heap, where it stays while `busy` is moved
        // about, and use the descriptor of `file`. Both are in `self.busy`, which is taken only when the
        // progress is done, that is when the results of all operations of the round are known, and which
        // `drop` keeps until then. Nothing changes the buffer meanwhile: it is handed to nobody.
        let pushed = unsafe {
            if sync == Sync::Fsync {
                let datasync = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC);
                queue.push_multiple(&[write.flags(squeue::Flags::IO_LINK), datasync.build().user_data(SYNC)])
            } else {
                queue.push(&write)
            }
        };
        pushed.expect("a round fits into an empty queue");
        drop(queue);
        self.submit(0);
    }

    /// Hands over what is queued, lets the kernel post what has come, and waits for so many results.
    ///
    /// # Panics
    /// When the kernel refuses the ring itself: what becomes of the buffer is unknown then.
    fn submit(&mut self, want: usize) {
        let queued = self.ring.submission().len();
        match self.ring.submit_and_wait(want) {
            Ok(taken) => {
                if let Some(busy) = &mut self.busy
                    && 0 < taken
                    && taken < queued
                {
                    busy.progress.cut_link();
                }
            }
            Err(error) => {
                // Short of memory, or a signal: what is queued stays so.
                let passes = matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY));
                assert!(passes, "the ring of the log is broken: {error}");
            }
        }
    }

    /// Takes the results that are there; what the last one says.
    fn collect(&mut self) -> Next {
        let mut next = Next::Wait;
        if let Some(busy) = &mut self.busy {
            for entry in self.ring.completion() {
                let operation = if entry.user_data() == SYNC { Operation::Sync } else { Operation::Write };
                next = busy.progress.completed(operation, entry.result());
            }
        }
        next
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.busy.as_ref().is_some_and(|busy| busy.progress.is_outstanding()) {
            self.submit(1);
            self.collect();
        }
    }
}

/// Allocates the blocks of a file up to this size.
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = libc::off64_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: it takes a descriptor, which is open as long as `file` is borrowed, and numbers.
        if unsafe { libc::fallocate64(file.as_raw_fd(), 0, 0, bytes) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_drop_waits_for_a_write_that_cannot_end_yet() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        // SAFETY: it takes a descriptor, which is open, and numbers.
        let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
        let room = usize::try_from(room).unwrap();
        writer.write_all(&vec![1; room]).unwrap();

        let mut ring = Ring::new().unwrap();
        let mut buffer = AlignedBuffer::default();
        buffer.pad_to(BLOCK_BYTES);
        buffer.as_mut_slice().fill(2);
        let file = Arc::new(File::from(OwnedFd::from(writer)));
        ring.start(file, 0, buffer, false, Sync::None);
        assert!(ring.poll().is_none(), "the pipe is full");

        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            let read = scope.spawn(|| {
                begun.store(true, Ordering::SeqCst);
                let mut bytes = Vec::new();
                reader.read_to_end(&mut bytes).unwrap();
                bytes
            });
            drop(ring);
            assert!(begun.load(Ordering::SeqCst), "nothing had made room for the write");
            assert!(read.join().unwrap().split_off(room) == [2; BLOCK_BYTES]);
        });
    }
}
