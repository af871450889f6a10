//! The real disk: a shard's segment files, written through a ring of their own.
//!
//! Segment N of a shard is the file `segment-N.log` in the shard's directory, N in 16 hexadecimal
//! digits. Writes go out on the shard's own thread, one at a time, as an `io_uring` operation that is
//! over when the bytes are on stable storage; making and removing files is the work of one helper thread
//! per disk, and reading that of another: who waits for a message does not wait for a file's zeros. Results
//! of both are there at the next [`Disk::poll`]: a shard that is awake polls, one that sleeps is woken
//! through the eventfd that it has given to [`UringDisk::register_eventfd`].
//!
//! Which kind of write the directory's file system takes is tried at the start: see [`Method`].

mod files;
mod helper;
mod progress;
mod ring;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use files::{DirectoryFiles, list_segments, sync_segment, truncate_segment};

use self::files::Files;
use self::helper::{Doorbell, Helper, Job};
use self::progress::Sync;
use self::ring::{Ring, Written};
use super::disk::{AlignedBuffer, Completion, Disk};
use super::format::BLOCK_BYTES;

/// Written and removed again at the start.
const PROBE_FILE: &str = "probe.tmp";

/// Making, summarizing and removing files is done ahead of need, or after it: shards come first.
const HELPER_NICENESS: i32 = 5;

/// How bytes get to stable storage, the quickest way first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Past the page cache, each write itself synchronous.
    DirectDsync,
    /// Past the page cache, each write followed by a linked `fdatasync`.
    DirectFsync,
    /// Through the page cache, each write itself synchronous.
    BufferedDsync,
    /// Through the page cache, each write followed by a linked `fdatasync`.
    BufferedFsync,
}

impl Method {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Method; 4] =
        [Method::DirectDsync, Method::DirectFsync, Method::BufferedDsync, Method::BufferedFsync];

    fn is_direct(self) -> bool {
        matches!(self, Method::DirectDsync | Method::DirectFsync)
    }

    fn sync(self) -> Sync {
        match self {
            Method::DirectDsync | Method::BufferedDsync => Sync::Dsync,
            Method::DirectFsync | Method::BufferedFsync => Sync::Fsync,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::DirectDsync => "O_DIRECT and RWF_DSYNC",
            Method::DirectFsync => "O_DIRECT and a linked fdatasync",
            Method::BufferedDsync => "the page cache and RWF_DSYNC",
            Method::BufferedFsync => "the page cache and a linked fdatasync",
        })
    }
}

/// What can be chosen about a [`UringDisk`].
#[derive(Clone, Copy, Default, Debug)]
pub struct UringOptions {
    /// Writes in this way only; the first one that the file system takes if not given.
    pub method: Option<Method>,
}

/// The segment files of one shard. See the module.
pub struct UringDisk {
    // Dropped in this order: the write in flight ends, then the queues of the helpers.
    ring: Ring,
    helper: Helper,
    reader: Helper,
    doorbell: Doorbell,
    directory: PathBuf,
    method: Method,
    /// The segment that was written last, kept open.
    open: Option<(u64, Arc<File>)>,
    /// A write that did not get as far as the ring.
    refused: Option<Written>,
}

impl UringDisk {
    /// Opens the directory, which is made if it is missing, and tries how its file system writes.
    ///
    /// # Errors
    /// When the directory cannot be made or written, when the kernel has no `io_uring` for this process,
    /// or when the file system does not take the method that was asked for.
    pub fn open(directory: &Path, options: UringOptions) -> io::Result<UringDisk> {
        files::make_directory(directory)?;
        let mut ring = Ring::new()?;
        let method = match options.method {
            Some(method) => probe(&mut ring, directory, method).map(|()| method)?,
            None => choose(&mut ring, directory)?,
        };
        let doorbell = Doorbell::default();
        let files = || Files { directory: directory.to_owned(), direct: method.is_direct() };
        let helper = Helper::start(files(), doorbell.clone(), HELPER_NICENESS)?;
        let reader = Helper::start(files(), doorbell.clone(), 0)?;
        let directory = directory.to_owned();
        Ok(UringDisk { ring, helper, reader, doorbell, directory, method, open: None, refused: None })
    }

    /// How it writes.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Adds to this eventfd whenever [`Disk::poll`] may have something new. What was done before is not
    /// rung for: poll once after this. The descriptor is duplicated.
    ///
    /// # Errors
    /// When it is no eventfd, or when there is one already.
    pub fn register_eventfd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let duplicate = fd.try_clone_to_owned()?;
        self.ring.register_eventfd(fd)?;
        self.doorbell.connect(duplicate);
        Ok(())
    }

    /// The write that is under way may be over. Costs no system call.
    pub fn has_news(&mut self) -> bool {
        self.ring.has_news()
    }

    fn is_writing(&self) -> bool {
        self.ring.is_busy() || self.refused.is_some()
    }

    fn open_segment(&mut self, segment: u64) -> io::Result<Arc<File>> {
        if let Some((number, file)) = &self.open
            && *number == segment
        {
            return Ok(Arc::clone(file));
        }
        self.open = None;
        let path = files::path(&self.directory, segment);
        let file = Arc::new(files::writing(self.method.is_direct()).open(path)?);
        self.open = Some((segment, Arc::clone(&file)));
        Ok(file)
    }

    /// Another file may get this number, or none. Closed here, before it is unlinked: the last one to
    /// close an unlinked file frees its blocks, and that must not be the shard.
    fn close_segment(&mut self, segment: u64) {
        if self.open.as_ref().is_some_and(|(number, _)| *number == segment) {
            assert!(!self.is_writing(), "segment {segment} is being written");
            self.open = None;
        }
    }

    /// A queued operation that the kernel had no room for is tried again at the next poll, which nothing
    /// else would cause.
    fn mind_the_queue(&mut self) {
        if self.ring.is_stuck() {
            self.doorbell.ring();
        }
    }
}

impl Disk for UringDisk {
    fn write(&mut self, segment: u64, offset: u64, buffer: AlignedBuffer, sync: bool) {
        assert!(!self.is_writing(), "one write at a time");
        let whole = !buffer.is_empty() && buffer.len().is_multiple_of(BLOCK_BYTES);
        assert!(whole && offset.is_multiple_of(BLOCK_BYTES as u64), "whole blocks are written");
        match self.open_segment(segment) {
            Ok(file) => {
                let sync = if sync { self.method.sync() } else { Sync::None };
                self.ring.start(file, offset, buffer, self.method.is_direct(), sync);
                self.mind_the_queue();
            }
            Err(error) => {
                self.refused = Some((buffer, Err(error)));
                self.doorbell.ring();
            }
        }
    }

    fn prepare(&mut self, segment: u64, bytes: u64, recycled: Option<u64>) {
        assert!(bytes.is_multiple_of(BLOCK_BYTES as u64), "a segment is whole blocks");
        assert_ne!(recycled, Some(segment), "a segment is not made of itself");
        self.close_segment(segment);
        if let Some(recycled) = recycled {
            self.close_segment(recycled);
        }
        self.helper.ask(Job::Prepare { segment, bytes, recycled });
    }

    fn remove(&mut self, segment: u64) {
        self.close_segment(segment);
        self.helper.ask(Job::Remove(segment));
    }

    fn read(&mut self, segment: u64, offset: u64, bytes: usize) {
        self.reader.ask(Job::Read { segment, offset, bytes });
    }

    fn free(&mut self, buffer: AlignedBuffer) {
        self.reader.ask(Job::Free(buffer));
    }

    fn summarize(&mut self, segment: u64, summary: Vec<u8>) {
        self.helper.ask(Job::Summarize { segment, summary });
    }

    fn poll(&mut self) -> Option<Completion> {
        if let Some((buffer, result)) = self.refused.take().or_else(|| self.ring.poll()) {
            return Some(Completion::Written(buffer, result));
        }
        self.mind_the_queue();
        self.helper.poll().or_else(|| self.reader.poll())
    }
}

/// The first method that the directory's file system takes.
fn choose(ring: &mut Ring, directory: &Path) -> io::Result<Method> {
    let mut refusal = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    for method in Method::ALL {
        match probe(ring, directory, method) {
            Ok(()) => return Ok(method),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                refusal = error;
            }
            Err(error) => return Err(error),
        }
    }
    Err(refusal)
}

/// Writes a block of a file that does not stay.
fn probe(ring: &mut Ring, directory: &Path, method: Method) -> io::Result<()> {
    let path = directory.join(PROBE_FILE);
    let mut write = || {
        let file = files::writing(method.is_direct()).create(true).truncate(true).open(&path)?;
        let mut block = AlignedBuffer::default();
        block.pad_to(BLOCK_BYTES);
        ring.start(Arc::new(file), BLOCK_BYTES as u64, block, method.is_direct(), method.sync());
        ring.wait().1
    };
    let result = write();
    // Not there if it could not be made; and one that stays is overwritten at the next start.
    let _ = std::fs::remove_file(&path);
    result
}
