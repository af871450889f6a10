//! How long the disk takes for what a confirm waits for: one synchronous overwrite.
//!
//! The blocks are written once before, as those of a recycled segment are: a write to a block that the file
//! system has yet to enter somewhere costs two or three times as much. Past the page cache where the file
//! system allows it. The file has no name on file systems that can do that, and loses it at once on others.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 4096;
/// Blocks of the file, each overwritten in turn.
const BLOCKS: usize = 16;
/// Not counted: the first writes after a pause cost more.
const WARM_UP: usize = 8;
/// Counted.
const WRITES: usize = 64;

/// What a synchronous write of 4 KiB costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCost {
    /// Half of the writes took no longer.
    pub median: Duration,
    /// The slowest one.
    pub longest: Duration,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
}

/// As direct I/O wants it.
#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

impl WriteCost {
    /// Measures in this directory; for less than a second on any disk that a broker should have.
    ///
    /// # Errors
    /// When no file can be made there, or written.
    pub fn measure(directory: &Path) -> io::Result<WriteCost> {
        match WriteCost::measure_with(directory, libc::O_DIRECT) {
            // What a file system says that has no way past the page cache.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => WriteCost::measure_with(directory, 0),
            result => result,
        }
    }

    fn measure_with(directory: &Path, flags: i32) -> io::Result<WriteCost> {
        let file = scratch_file(directory, flags | libc::O_DSYNC)?;
        let block = Box::new(Block([0xa5; BLOCK_BYTES]));
        let offset = |index: usize| (index % BLOCKS * BLOCK_BYTES) as u64;
        for index in 0..BLOCKS {
            file.write_all_at(&block.0, offset(index))?;
        }
        file.sync_all()?;
        let mut times = Vec::with_capacity(WRITES);
        for index in 0..WARM_UP + WRITES {
            let start = Instant::now();
            file.write_all_at(&block.0, offset(index))?;
            if index >= WARM_UP {
                times.push(start.elapsed());
            }
        }
        times.sort_unstable();
        let longest = times.last().copied().unwrap_or_default();
        Ok(WriteCost { median: times[WRITES / 2], longest, direct: flags != 0 })
    }

    /// How it was measured.
    pub fn method(&self) -> String {
        let how = if self.direct { "O_DIRECT and O_DSYNC" } else { "O_DSYNC through the page cache" };
        format!("median of {WRITES} overwrites of 4 KiB with {how}")
    }
}

/// A file that is gone with its descriptor.
fn scratch_file(directory: &Path, flags: i32) -> io::Result<File> {
    let nameless =
        OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE | flags).mode(0o600).open(directory);
    match nameless {
        // Not every file system can do without a name.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let path = directory.join(format!(".lepus-doctor-{}", process::id()));
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .custom_flags(flags)
                .mode(0o600)
                .open(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn a_disk_is_measured_and_nothing_stays_on_it() {
        let dir = TestDir::new();
        let cost = WriteCost::measure(dir.path()).unwrap();
        assert!(cost.median > Duration::ZERO && cost.median <= cost.longest);
        assert!(cost.method().contains("64 overwrites of 4 KiB"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        assert!(WriteCost::measure(Path::new("/proc")).is_err());
        assert!(WriteCost::measure(Path::new("/no/such/directory")).is_err());
    }
}
