//! The real disk: commits through an io_uring of the shard's own, files on a thread beside it.
//!
//! What the file system takes is found out when it is opened: direct I/O, and writes that are synchronous
//! by themselves (`RWF_DSYNC`). Where it does not, writes go through the page cache, or an `fdatasync`
//! follows each.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;

use super::disk::{AlignedBuffer, Completion, Disk};
use super::format::BLOCK_BYTES;
use super::segment_files as files;
use super::write_ring::{Sync, WriteRing};

/// How commits are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteMethod {
    /// Past the page cache.
    pub direct: bool,
    /// The write itself is synchronous; else an fdatasync follows.
    pub synchronous: bool,
}

impl fmt::Display for WriteMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.direct { "direct I/O, " } else { "page cache, " })?;
        f.write_str(if self.synchronous { "synchronous writes" } else { "write and fdatasync" })
    }
}

/// What is not left to be found out.
#[derive(Clone, Copy, Default, Debug)]
pub struct UringOptions {
    /// Write like this.
    pub method: Option<WriteMethod>,
}

enum Errand {
    Prepare { segment: u64, bytes: u64, recycled: Option<u64> },
    Remove(u64),
    Read(u64),
}

/// See the module.
pub struct UringDisk {
    directory: PathBuf,
    method: WriteMethod,
    ring: WriteRing,
    /// The segment that was written last.
    open: Option<(u64, File)>,
    /// A write that could not even be begun.
    refused: Option<(AlignedBuffer, io::Error)>,
    errands: Option<Sender<Errand>>,
    done: Receiver<Completion>,
    bell: Arc<OnceLock<File>>,
    helper: Option<thread::JoinHandle<()>>,
}

impl UringDisk {
    /// The log in this directory, which is made if need be. To be called on the thread that will use it.
    ///
    /// # Errors
    /// What the system says of the directory, or of making a ring or a thread.
    pub fn open(directory: &Path, options: UringOptions) -> io::Result<UringDisk> {
        fs::create_dir_all(directory)?;
        if let Some(parent) = directory.parent() {
            files::sync_directory(parent)?;
        }
        let mut ring = WriteRing::new()?;
        let method = match options.method {
            Some(method) => method,
            None => probe(directory, &mut ring)?,
        };
        let (errands, taken) = mpsc::channel();
        let (finished, done) = mpsc::channel();
        let bell = Arc::new(OnceLock::new());
        let (rings, place) = (Arc::clone(&bell), directory.to_owned());
        let helper = thread::Builder::new()
            .name("log-files".to_owned())
            .spawn(move || run_errands(&place, method.direct, &taken, &finished, &rings))?;
        Ok(UringDisk {
            directory: directory.to_owned(),
            method,
            ring,
            open: None,
            refused: None,
            errands: Some(errands),
            done,
            bell,
            helper: Some(helper),
        })
    }

    /// How commits are written.
    pub fn method(&self) -> WriteMethod {
        self.method
    }

    /// Writes 1 to this eventfd when something is done.
    ///
    /// # Errors
    /// When it is none.
    pub fn register_eventfd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.register_eventfd(fd)?;
        let own = File::from(fd.try_clone_to_owned()?);
        self.bell.set(own).map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))
    }

    fn file(&mut self, segment: u64) -> io::Result<File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != segment) {
            self.open =
                Some((segment, files::open(&files::path(&self.directory, segment), self.method.direct)?));
        }
        let (_, file) = self.open.as_ref().expect("it was just opened");
        file.try_clone()
    }

    fn send(&self, errand: Errand) {
        let errands = self.errands.as_ref().expect("the thread is there until the disk is dropped");
        errands.send(errand).expect("the thread ends when its errands do");
    }
}

impl Disk for UringDisk {
    fn write(&mut self, segment: u64, offset: u64, buffer: AlignedBuffer, sync: bool) {
        let sync = match (sync, self.method.synchronous) {
            (false, _) => Sync::None,
            (true, true) => Sync::WithWrite,
            (true, false) => Sync::Behind,
        };
        let begun = match self.file(segment) {
            Ok(file) => self.ring.write(file, offset, buffer, sync),
            Err(error) => Err((buffer, error)),
        };
        self.refused = begun.err();
    }

    fn prepare(&mut self, segment: u64, bytes: u64, recycled: Option<u64>) {
        self.send(Errand::Prepare { segment, bytes, recycled });
    }

    fn remove(&mut self, segment: u64) {
        self.send(Errand::Remove(segment));
    }

    fn read(&mut self, segment: u64) {
        self.send(Errand::Read(segment));
    }

    fn poll(&mut self) -> Option<Completion> {
        if let Some((buffer, error)) = self.refused.take() {
            return Some(Completion::Written(buffer, Err(error)));
        }
        match self.ring.poll() {
            Some((buffer, result)) => Some(Completion::Written(buffer, result)),
            None => self.done.try_recv().ok(),
        }
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        self.errands = None;
        if let Some(helper) = self.helper.take() {
            // It has nothing to say that anybody would hear.
            let _ = helper.join();
        }
    }
}

fn run_errands(
    directory: &Path,
    direct: bool,
    errands: &Receiver<Errand>,
    done: &Sender<Completion>,
    bell: &OnceLock<File>,
) {
    for errand in errands {
        let completion = match errand {
            Errand::Prepare { segment, bytes, recycled } => {
                Completion::Prepared(segment, files::prepare(directory, segment, bytes, recycled, direct))
            }
            Errand::Remove(segment) => {
                if let Err(error) = files::remove(directory, segment) {
                    tracing::warn!(directory = %directory.display(), segment, %error, "cannot remove a log segment");
                }
                continue;
            }
            Errand::Read(segment) => Completion::Read(segment, files::read_segment(directory, segment)),
        };
        // The disk may be dropped while this was done.
        let _ = done.send(completion);
        if let Some(mut bell) = bell.get() {
            let _ = bell.write(&1u64.to_ne_bytes());
        }
    }
}

/// Finds out how the file system of the directory can be written.
fn probe(directory: &Path, ring: &mut WriteRing) -> io::Result<WriteMethod> {
    let path = directory.join("write.probe");
    let result = best_method(&path, ring);
    let _ = fs::remove_file(&path);
    result
}

fn best_method(path: &Path, ring: &mut WriteRing) -> io::Result<WriteMethod> {
    let mut last = None;
    for (direct, synchronous) in [(true, true), (false, true), (true, false), (false, false)] {
        let sync = if synchronous { Sync::WithWrite } else { Sync::Behind };
        match files::open(path, direct).and_then(|file| write_block(ring, file, sync)) {
            Ok(()) => return Ok(WriteMethod { direct, synchronous }),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("four ways were tried"))
}

fn write_block(ring: &mut WriteRing, file: File, sync: Sync) -> io::Result<()> {
    let mut block = AlignedBuffer::default();
    block.pad_to(BLOCK_BYTES);
    ring.write(file, 0, block, sync).map_err(|(_, error)| error)?;
    loop {
        match ring.poll() {
            Some((_, result)) => return result,
            None => thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::test_dir::TestDir;

    fn next(disk: &mut UringDisk) -> Completion {
        let began = Instant::now();
        loop {
            if let Some(completion) = disk.poll() {
                return completion;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the disk does nothing");
            thread::yield_now();
        }
    }

    fn blocks(count: usize, byte: u8) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::default();
        buffer.append(count * BLOCK_BYTES, |out| out.resize(out.len() + count * BLOCK_BYTES, byte));
        buffer
    }

    fn prepared(disk: &mut UringDisk, segment: u64, bytes: u64) {
        disk.prepare(segment, bytes, None);
        match next(disk) {
            Completion::Prepared(done, result) => {
                assert_eq!(done, segment);
                result.expect("there is room");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read_back_by_every_method() {
        let methods = [(false, false), (false, true), (true, false), (true, true)];
        let mut usable = 0;
        for (direct, synchronous) in methods {
            let dir = TestDir::new();
            let best = UringDisk::open(dir.path(), UringOptions::default()).unwrap().method();
            if (direct && !best.direct) || (synchronous && !best.synchronous) {
                continue;
            }
            usable += 1;
            let method = Some(WriteMethod { direct, synchronous });
            let mut disk = UringDisk::open(dir.path(), UringOptions { method }).unwrap();
            prepared(&mut disk, 3, 1 << 20);
            for (offset, count, sync) in [(0, 1, true), (4096, 20, true), (100 * 4096, 3, false)] {
                disk.write(3, offset, blocks(count, count as u8), sync);
                let Completion::Written(buffer, result) = next(&mut disk) else { panic!("it was a write") };
                result.unwrap();
                assert_eq!(buffer.len(), count * BLOCK_BYTES, "the buffer comes back");
            }
            disk.read(3);
            let Completion::Read(3, Ok(bytes)) = next(&mut disk) else { panic!("it can be read") };
            assert_eq!(bytes.len(), 1 << 20);
            assert_eq!((bytes[4095], bytes[4096], bytes[21 * 4096 - 1], bytes[21 * 4096]), (1, 20, 20, 0));
            assert_eq!((bytes[100 * 4096], bytes[103 * 4096]), (3, 0));
        }
        assert!(usable > 0);
    }

    #[test]
    fn a_write_that_fails_says_so_and_gives_the_buffer_back() {
        let dir = TestDir::new();
        let mut disk = UringDisk::open(dir.path(), UringOptions::default()).unwrap();
        fs::create_dir(dir.path().join("segment-0000000000000001.log")).unwrap();
        disk.write(1, 0, blocks(2, 7), true);
        let Completion::Written(buffer, Err(_)) = next(&mut disk) else { panic!("a directory was written") };
        assert_eq!(buffer.len(), 2 * BLOCK_BYTES);
        // A device that is always full.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("segment-0000000000000002.log")).unwrap();
        let method = Some(WriteMethod { direct: false, synchronous: false });
        let mut disk = UringDisk::open(dir.path(), UringOptions { method }).unwrap();
        disk.write(2, 0, blocks(1, 7), true);
        let Completion::Written(_, Err(error)) = next(&mut disk) else { panic!("a full device was written") };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_disk_that_is_dropped_finishes_its_write_first() {
        let dir = TestDir::new();
        let mut disk = UringDisk::open(dir.path(), UringOptions::default()).unwrap();
        prepared(&mut disk, 1, 8 << 20);
        disk.write(1, 0, blocks(2048, 9), true);
        drop(disk);
        assert!(files::read_segment(dir.path(), 1).unwrap().iter().all(|&byte| byte == 9));
    }

    #[test]
    fn what_is_no_eventfd_is_refused_and_changes_nothing() {
        let dir = TestDir::new();
        let mut disk = UringDisk::open(dir.path(), UringOptions::default()).unwrap();
        let (mut hears, rings) = std::os::unix::net::UnixStream::pair().unwrap();
        // Not an eventfd: the ring refuses it.
        assert!(disk.register_eventfd(std::os::fd::AsFd::as_fd(&rings)).is_err());
        drop(rings);
        assert_eq!(io::Read::read(&mut hears, &mut [0; 8]).unwrap(), 0);
        prepared(&mut disk, 1, 1 << 20);
    }

    #[test]
    fn removed_segments_are_gone_when_the_disk_is() {
        let dir = TestDir::new();
        let mut disk = UringDisk::open(dir.path(), UringOptions::default()).unwrap();
        prepared(&mut disk, 1, 1 << 20);
        prepared(&mut disk, 2, 1 << 20);
        disk.remove(1);
        drop(disk);
        assert_eq!(files::list_segments(dir.path()).unwrap(), [2]);
    }
}
