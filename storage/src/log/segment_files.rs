//! The files of a log: `segment-N.log`, N in 16 hexadecimal digits. Everything here blocks; while the broker
//! runs it happens on a thread of its own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::disk::AlignedBuffer;
use super::format::BLOCK_BYTES;

/// Zeros are written in pieces of this many bytes.
const PIECE_BYTES: usize = 1024 * 1024;

pub(super) fn path(directory: &Path, segment: u64) -> PathBuf {
    directory.join(format!("segment-{segment:016x}.log"))
}

/// The segments in a log's directory, in ascending order. Other files are passed over.
///
/// # Errors
/// What the system says.
pub fn list_segments(directory: &Path) -> io::Result<Vec<u64>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix("segment-")?.strip_suffix(".log"));
        let canonical =
            |digits: &&str| digits.len() == 16 && !digits.contains(|c: char| c.is_ascii_uppercase());
        segments.extend(digits.filter(canonical).and_then(|digits| u64::from_str_radix(digits, 16).ok()));
    }
    segments.sort_unstable();
    Ok(segments)
}

/// All bytes of a segment.
///
/// # Errors
/// What the system says.
pub fn read_segment(directory: &Path, segment: u64) -> io::Result<Vec<u8>> {
    fs::read(path(directory, segment))
}

/// Cuts a segment off behind this many bytes.
///
/// # Errors
/// What the system says.
pub fn truncate_segment(directory: &Path, segment: u64, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path(directory, segment))?;
    file.set_len(bytes)?;
    file.sync_all()
}

/// See [`super::Disk::prepare`].
pub(super) fn prepare(
    directory: &Path,
    segment: u64,
    bytes: u64,
    recycled: Option<u64>,
    direct: bool,
) -> io::Result<()> {
    let path = path(directory, segment);
    if let Some(recycled) = recycled {
        fs::rename(self::path(directory, recycled), &path)?;
    }
    let result = allocate(&path, bytes, direct).and_then(|()| sync_directory(directory));
    if result.is_err() {
        // What is half made takes space that others need.
        let _ = fs::remove_file(&path);
    }
    result
}

/// Makes the file this long, every block written once: overwriting such a block synchronously costs half
/// of what writing a new one does.
fn allocate(path: &Path, bytes: u64, direct: bool) -> io::Result<()> {
    let file = open(path, direct)?;
    let len = file.metadata()?.len();
    if len > bytes {
        file.set_len(bytes)?;
    }
    let mut offset = len.min(bytes) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let mut zeros = AlignedBuffer::default();
    while offset < bytes {
        let piece = PIECE_BYTES.min((bytes - offset) as usize);
        zeros.clear();
        zeros.pad_to(piece);
        file.write_all_at(zeros.as_slice(), offset)?;
        offset += piece as u64;
    }
    file.sync_all()
}

/// Opens a segment for writing, and makes it if it is not there.
pub(super) fn open(path: &Path, direct: bool) -> io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().write(true).create(true).truncate(false).custom_flags(flags).open(path)
}

pub(super) fn remove(directory: &Path, segment: u64) -> io::Result<()> {
    match fs::remove_file(path(directory, segment)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.and_then(|()| sync_directory(directory)),
    }
}

pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn only_segments_are_listed_and_in_their_order() {
        let dir = TestDir::new();
        for name in [
            "segment-00000000000000a0.log",
            "segment-0000000000000002.log",
            "segment-00000000000000A1.log",
            "segment-2.log",
            "segment-000000000000000g.log",
            "unacked.index",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(list_segments(dir.path()).unwrap(), [2, 0xa0]);
    }

    #[test]
    fn a_segment_is_made_grown_cut_and_made_of_another_one() {
        let dir = TestDir::new();
        let len = |segment| fs::metadata(path(dir.path(), segment)).unwrap().len();
        prepare(dir.path(), 1, 3 << 20, None, false).unwrap();
        assert_eq!(len(1), 3 << 20);
        prepare(dir.path(), 1, 5 << 20, None, false).unwrap();
        assert_eq!(len(1), 5 << 20);
        let file = open(&path(dir.path(), 1), false).unwrap();
        file.write_all_at(b"old", 4096).unwrap();
        prepare(dir.path(), 2, 2 << 20, Some(1), false).unwrap();
        assert_eq!((len(2), list_segments(dir.path()).unwrap()), (2 << 20, vec![2]));
        assert_eq!(&read_segment(dir.path(), 2).unwrap()[4096..4099], b"old");
        truncate_segment(dir.path(), 2, 8192).unwrap();
        assert_eq!(read_segment(dir.path(), 2).unwrap().len(), 8192);
        remove(dir.path(), 2).unwrap();
        remove(dir.path(), 2).expect("removing twice is fine");
        assert!(list_segments(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_made_whole_is_not_left_half_made() {
        let dir = TestDir::new();
        prepare(dir.path(), 1, 1 << 20, None, false).unwrap();
        assert!(prepare(dir.path(), 2, 1 << 20, Some(9), false).is_err(), "there is no segment 9");
        assert_eq!(list_segments(dir.path()).unwrap(), [1]);
        std::os::unix::fs::symlink("/dev/full", path(dir.path(), 3)).unwrap();
        let full = prepare(dir.path(), 3, 1 << 20, None, false).unwrap_err();
        assert_eq!((full.kind(), list_segments(dir.path()).unwrap()), (io::ErrorKind::StorageFull, vec![1]));
    }
}
