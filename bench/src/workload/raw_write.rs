//! Plain synchronous writes: blocks of a file that is there already are overwritten past the page cache, each on stable
//! storage before the next. What a disk can do for a log at best, and what a confirm is compared with.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::error::BenchError;

/// The least that direct I/O writes on all disks.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes of the file at least, so that not the same block is written over and over.
const FILE_BYTES_MIN: usize = 16 * 1024 * 1024;

/// A file that is overwritten synchronously, and removed when this is dropped.
#[derive(Debug)]
pub struct RawWriter {
    file: File,
    path: PathBuf,
    /// Larger than a write, so that an aligned one fits.
    buffer: Vec<u8>,
    aligned: usize,
    write_bytes: usize,
    file_bytes: usize,
    at: usize,
}

impl RawWriter {
    /// Makes the file in this directory. Writes are of `bytes`, rounded up to whole blocks.
    ///
    /// # Errors
    /// When the directory cannot be written, or its file system has no direct I/O.
    pub fn new(directory: &Path, bytes: usize) -> Result<RawWriter, BenchError> {
        let write_bytes = bytes.max(1).next_multiple_of(BLOCK_BYTES);
        let file_bytes = FILE_BYTES_MIN.next_multiple_of(write_bytes).max(2 * write_bytes);
        let path = directory.join(format!("lepus-bench-{}", std::process::id()));
        let error = |path: &Path| BenchError::file(path);
        fs::write(&path, vec![1; file_bytes]).map_err(error(&path))?;
        let flags = OFlags::DIRECT | OFlags::DSYNC;
        let opened = OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(&path);
        let file = match opened.and_then(|file| file.sync_all().map(|()| file)) {
            Ok(file) => file,
            Err(source) => {
                let _ = fs::remove_file(&path);
                return Err(error(&path)(source));
            }
        };
        let buffer = vec![2; write_bytes + BLOCK_BYTES];
        let aligned = buffer.as_ptr().align_offset(BLOCK_BYTES);
        Ok(RawWriter { file, path, buffer, aligned, write_bytes, file_bytes, at: 0 })
    }

    /// Bytes of each write.
    pub fn write_bytes(&self) -> usize {
        self.write_bytes
    }

    /// Writes once. How long it took.
    ///
    /// # Errors
    /// When the disk says so.
    pub fn write(&mut self) -> Result<Duration, BenchError> {
        let block = &self.buffer[self.aligned..self.aligned + self.write_bytes];
        let began = Instant::now();
        self.file.write_all_at(block, self.at as u64).map_err(BenchError::file(&self.path))?;
        let time = began.elapsed();
        self.at = (self.at + self.write_bytes) % self.file_bytes;
        Ok(time)
    }
}

impl Drop for RawWriter {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_whole_blocks_and_the_file_goes() {
        // Beside the binary: a temporary directory may be in memory, where there is no direct I/O.
        let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let mut writer = RawWriter::new(&directory, 5000).unwrap();
        assert_eq!(writer.write_bytes(), 8192);
        (0..3).for_each(|_| assert!(writer.write().unwrap() > Duration::ZERO));
        let path = writer.path.clone();
        assert!(path.exists() && fs::metadata(&path).unwrap().len().is_multiple_of(8192));
        drop(writer);
        assert!(!path.exists());
        assert!(RawWriter::new(Path::new("/proc/no-such-directory"), 1).is_err());
    }
}
