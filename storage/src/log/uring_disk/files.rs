//! The segment files of one directory. Everything here blocks: it runs on the disk's helper thread, at
//! start-up, or in a tool, never on a shard's turn.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::ring::allocate;
use crate::log::disk::AlignedBuffer;
use crate::log::format::BLOCK_BYTES;
use crate::log::recovery::SegmentFiles;

/// Zeros are written so many at a time.
const ZEROS_BYTES: usize = 1 << 20;

/// The numbers of the segments in a directory, upwards. What has another name is left out.
///
/// # Errors
/// When the directory cannot be read.
pub fn list_segments(directory: &Path) -> io::Result<Vec<u64>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(segment) = entry.file_name().to_str().and_then(number)
            && entry.file_type()?.is_file()
        {
            segments.push(segment);
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// The segments of a directory, as a start reads them.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryFiles<'a> {
    /// Where they are.
    pub directory: &'a Path,
    /// Use what was written beside them. Without it everything is read, and all damage is found.
    pub summaries: bool,
}

impl SegmentFiles for DirectoryFiles<'_> {
    fn segment(&self, segment: u64) -> io::Result<Vec<u8>> {
        fs::read(path(self.directory, segment))
    }

    fn summary(&self, segment: u64) -> Option<Vec<u8>> {
        self.summaries.then(|| fs::read(summary_path(self.directory, segment)).ok())?
    }
}

/// Makes a segment this long, and returns when that is on stable storage.
///
/// # Errors
/// When its file cannot be changed.
pub fn truncate_segment(directory: &Path, segment: u64, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path(directory, segment))?;
    file.set_len(bytes)?;
    file.sync_all()
}

/// Brings what was written to a segment to stable storage.
///
/// # Errors
/// When its file cannot be synced.
pub fn sync_segment(directory: &Path, segment: u64) -> io::Result<()> {
    File::open(path(directory, segment))?.sync_all()
}

/// A segment's file.
pub(super) fn path(directory: &Path, segment: u64) -> PathBuf {
    directory.join(name(segment))
}

/// What is written beside it.
fn summary_path(directory: &Path, segment: u64) -> PathBuf {
    path(directory, segment).with_extension("sum")
}

fn name(segment: u64) -> String {
    format!("segment-{segment:016x}.log")
}

fn number(file_name: &str) -> Option<u64> {
    let digits = file_name.strip_prefix("segment-")?.strip_suffix(".log")?;
    let segment = u64::from_str_radix(digits, 16).ok()?;
    // The same number can be spelt in other ways, which are not ours.
    (name(segment) == file_name).then_some(segment)
}

/// Options to write, past the page cache if `direct`.
pub(super) fn writing(direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(if direct { libc::O_DIRECT } else { 0 });
    options
}

/// Makes the directory and those above it, so that a power loss does not forget them.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    let above = match directory.parent() {
        None => return Ok(()),
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
    };
    if !above.is_dir() {
        make_directory(above)?;
    }
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
        other => other?,
    }
    // One that was there may have been made by a process that did not come this far.
    sync_directory(above)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// What the helper thread does with them.
pub(super) struct Files {
    pub directory: PathBuf,
    /// Zeros go past the page cache.
    pub direct: bool,
}

impl Files {
    /// As [`crate::log::Disk::prepare`] says. After an error neither of the two files is left.
    pub fn prepare(&self, segment: u64, bytes: u64, recycled: Option<u64>) -> io::Result<()> {
        let (made, old) = (path(&self.directory, segment), recycled.map(|old| path(&self.directory, old)));
        let result = self.make(&made, bytes, old.as_deref());
        if result.is_err() {
            for path in old.iter().chain([&made]) {
                if let Err(error) = remove_file(path) {
                    tracing::warn!(path = %path.display(), %error, "a half-made segment stays");
                }
            }
        }
        result
    }

    fn make(&self, made: &Path, bytes: u64, recycled: Option<&Path>) -> io::Result<()> {
        if let Some(old) = recycled {
            remove_file(&old.with_extension("sum"))?;
        }
        let renamed = match recycled.map(|old| fs::rename(old, made)) {
            None => false,
            // Gone with an earlier attempt.
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => false,
            Some(result) => result.map(|()| true)?,
        };
        let file = writing(self.direct).create(true).truncate(false).open(made)?;
        let found = file.metadata()?.len();
        if found > bytes {
            file.set_len(bytes)?;
        }
        if !renamed || found < bytes {
            match allocate(&file, bytes) {
                // The zeros allocate, then.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                other => other?,
            }
            write_zeros(&file, bytes)?;
        }
        file.sync_all()?;
        sync_directory(&self.directory)
    }

    /// As [`crate::log::Disk::remove`] says.
    pub fn remove(&self, segment: u64) -> io::Result<()> {
        remove_file(&summary_path(&self.directory, segment))?;
        remove_file(&path(&self.directory, segment))?;
        sync_directory(&self.directory)
    }

    /// As [`crate::log::Disk::read`] says.
    pub fn read(&self, segment: u64, offset: u64, bytes: usize) -> io::Result<AlignedBuffer> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(if self.direct { libc::O_DIRECT } else { 0 });
        let file = options.open(path(&self.directory, segment))?;
        let mut buffer = AlignedBuffer::default();
        buffer.pad_to(bytes);
        let mut done = 0;
        while done < bytes {
            match file.read_at(&mut buffer.as_mut_slice()[done..], offset + done as u64) {
                Ok(0) => break,
                // The next direct read has to begin at a block again; at the end of the file it reads nothing.
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.direct && !done.is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        buffer.truncate(done);
        Ok(buffer)
    }

    /// As [`crate::log::Disk::summarize`] says.
    pub fn summarize(&self, segment: u64, summary: &[u8]) -> io::Result<()> {
        // Not all commits need have been synchronous, and the summary speaks for all.
        File::open(path(&self.directory, segment))?.sync_data()?;
        fs::write(summary_path(&self.directory, segment), summary)
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    let mut zeros = AlignedBuffer::default();
    zeros.pad_to(ZEROS_BYTES);
    let mut offset = 0;
    while offset < bytes {
        let count = (bytes - offset).min(ZEROS_BYTES as u64);
        file.write_all_at(&zeros.as_slice()[..count as usize], offset)?;
        offset += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn only_names_of_segments_are_listed() {
        let dir = TestDir::new();
        for segment in [300, 1, u64::MAX, 0xab] {
            fs::write(path(dir.path(), segment), b"x").unwrap();
        }
        for other in [
            "lock",
            "segment-1.log",
            "segment-00000000000000AB.log",
            "segment-+0000000000000ab.log",
            "segment-000000000000000g.log",
            "segment-00000000000000001.log",
            "segment-0000000000000002.log.old",
            "old-segment-0000000000000002.log",
        ] {
            fs::write(dir.path().join(other), b"x").unwrap();
        }
        fs::create_dir(path(dir.path(), 5)).unwrap();
        assert_eq!(list_segments(dir.path()).unwrap(), [1, 0xab, 300, u64::MAX]);
    }

    #[test]
    fn no_directory_is_an_error() {
        let dir = TestDir::new();
        let missing = dir.path().join("missing");
        assert_eq!(list_segments(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        let files = DirectoryFiles { directory: &missing, summaries: true };
        assert_eq!(files.segment(1).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(files.summary(1), None);
        assert_eq!(truncate_segment(dir.path(), 1, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_segment_is_cut_short() {
        let dir = TestDir::new();
        fs::write(path(dir.path(), 2), b"0123456789").unwrap();
        truncate_segment(dir.path(), 2, 4).unwrap();
        let files = DirectoryFiles { directory: dir.path(), summaries: true };
        assert_eq!(files.segment(2).unwrap(), b"0123");
    }

    #[test]
    fn directories_are_made_all_the_way() {
        let dir = TestDir::new();
        let deep = dir.path().join("a/b/c");
        make_directory(&deep).unwrap();
        make_directory(&deep).unwrap();
        assert!(deep.is_dir());
        fs::write(dir.path().join("file"), b"").unwrap();
        assert!(make_directory(&dir.path().join("file")).is_err());
    }
}
