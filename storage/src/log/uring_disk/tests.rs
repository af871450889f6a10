//! The disk on a real file system: the temporary directory's, and a small one that fills up.

use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink};

use super::*;
use crate::log::recovery::SegmentFiles as _;
use crate::test_dir::TestDir;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SEGMENT: u64 = 16 * BLOCK;

/// What tests ask of the kernel and std does not offer.
#[allow(unsafe_code)]
mod sys {
    use std::ffi::CString;
    use std::fs::File;
    use std::io;
    use std::os::fd::FromRawFd as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::{Path, PathBuf};

    pub fn eventfd() -> File {
        // SAFETY: it takes numbers, and the descriptor that it makes is owned by the file alone.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            File::from_raw_fd(fd)
        }
    }

    /// A file system in memory of 1 MiB, mounted as long as this lives.
    pub struct SmallFileSystem(PathBuf);

    impl SmallFileSystem {
        /// None, and why in the test's output, if this process may not mount.
        pub fn mount(at: &Path) -> Option<SmallFileSystem> {
            let target = path(at);
            // SAFETY: all pointers are to strings that outlive the call.
            let mounted = unsafe {
                let kind = c"tmpfs".as_ptr();
                libc::mount(kind, target.as_ptr(), kind, 0, c"size=1m".as_ptr().cast())
            };
            if mounted != 0 {
                println!("skipped: no file system can be mounted: {}", io::Error::last_os_error());
                return None;
            }
            Some(SmallFileSystem(at.to_owned()))
        }
    }

    impl Drop for SmallFileSystem {
        fn drop(&mut self) {
            // SAFETY: the pointer is to a string that outlives the call.
            unsafe { libc::umount2(path(&self.0).as_ptr(), libc::MNT_DETACH) };
        }
    }

    fn path(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }
}

fn open(dir: &Path) -> UringDisk {
    UringDisk::open(dir, UringOptions::default()).unwrap()
}

/// A disk for each method that the directory's file system takes.
fn each_method(dir: &Path) -> impl Iterator<Item = UringDisk> {
    Method::ALL.into_iter().filter_map(move |method| {
        match UringDisk::open(&dir.join(format!("{method:?}")), UringOptions { method: Some(method) }) {
            Ok(disk) => Some(disk),
            Err(error) => {
                assert!(method.is_direct() && !takes_direct(dir), "{method}: {error}");
                println!("skipped: {} does not take {method}: {error}", dir.display());
                None
            }
        }
    })
}

fn takes_direct(dir: &Path) -> bool {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).custom_flags(libc::O_DIRECT);
    options.open(dir.join("direct")).is_ok()
}

fn wait(disk: &mut UringDisk) -> Completion {
    loop {
        if let Some(completion) = disk.poll() {
            return completion;
        }
        std::thread::yield_now();
    }
}

fn written(disk: &mut UringDisk) -> (AlignedBuffer, io::Result<()>) {
    match wait(disk) {
        Completion::Written(buffer, result) => (buffer, result),
        other => panic!("a write was to be done, not {other:?}"),
    }
}

fn prepare(disk: &mut UringDisk, segment: u64, bytes: u64, recycled: Option<u64>) -> io::Result<()> {
    disk.prepare(segment, bytes, recycled);
    match wait(disk) {
        Completion::Prepared(done, result) if done == segment => result,
        other => panic!("segment {segment} was to be prepared, not {other:?}"),
    }
}

/// All of a segment that is no longer than 4,096 blocks.
fn read(disk: &mut UringDisk, segment: u64) -> io::Result<Vec<u8>> {
    disk.read(segment, 0, 4096 * BLOCK_BYTES);
    match wait(disk) {
        Completion::Read(done, 0, result) if done == segment => {
            result.map(|buffer| buffer.as_slice().to_vec())
        }
        other => panic!("segment {segment} was to be read, not {other:?}"),
    }
}

fn content(directory: &Path, segment: u64) -> Vec<u8> {
    DirectoryFiles { directory, summaries: false }.segment(segment).unwrap()
}

/// Whole blocks, each unlike the others.
fn blocks(count: u64, seed: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::default();
    buffer.pad_to((count * BLOCK) as usize);
    for (number, block) in buffer.as_mut_slice().chunks_mut(BLOCK_BYTES).enumerate() {
        block.fill(seed.wrapping_add(number as u8));
    }
    buffer
}

#[test]
fn every_method_writes_what_is_read_back() {
    let dir = TestDir::new();
    for mut disk in each_method(dir.path()) {
        prepare(&mut disk, 1, SEGMENT, None).unwrap();
        prepare(&mut disk, 2, SEGMENT, None).unwrap();
        let mut expected = vec![vec![0; SEGMENT as usize]; 3];
        for (segment, offset, count, sync) in
            [(1, 0, 1, true), (1, 1, 5, false), (2, 3, 2, true), (1, 4, 12, true), (2, 15, 1, false)]
        {
            let buffer = blocks(count, segment as u8 * 100 + offset as u8);
            let bytes = buffer.as_slice().to_vec();
            let start = (offset * BLOCK) as usize;
            expected[segment as usize][start..][..bytes.len()].copy_from_slice(&bytes);
            disk.write(segment, offset * BLOCK, buffer, sync);
            let (buffer, result) = written(&mut disk);
            result.unwrap();
            assert_eq!(buffer.as_slice(), bytes, "the buffer comes back");
        }
        for segment in [1, 2] {
            let found = read(&mut disk, segment).unwrap();
            assert!(found == expected[segment as usize], "segment {segment} by {}", disk.method());
            assert_eq!(content(&disk.directory, segment), found);
        }
    }
}

#[test]
fn the_first_method_that_works_is_taken_and_the_probe_leaves_nothing() {
    let dir = TestDir::new();
    let first = each_method(dir.path()).next().unwrap().method();
    let own = dir.path().join("own/log");
    let disk = open(&own);
    assert_eq!(disk.method(), first);
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

#[test]
fn a_write_is_longer_than_a_queue_of_the_device() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    let count = 4096;
    prepare(&mut disk, 1, count * BLOCK, None).unwrap();
    let buffer = blocks(count, 7);
    let bytes = buffer.as_slice().to_vec();
    disk.write(1, 0, buffer, true);
    written(&mut disk).1.unwrap();
    assert!(read(&mut disk, 1).unwrap() == bytes);
}

#[test]
fn a_fresh_segment_is_allocated_and_zero_whatever_had_its_name() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    fs::write(files::path(dir.path(), 2), vec![9; 3 * SEGMENT as usize]).unwrap();
    for segment in [1, 2] {
        prepare(&mut disk, segment, SEGMENT, None).unwrap();
        assert!(read(&mut disk, segment).unwrap() == vec![0; SEGMENT as usize]);
        let blocks = fs::metadata(files::path(dir.path(), segment)).unwrap().blocks();
        assert!(blocks * 512 >= SEGMENT, "{blocks} blocks are allocated");
    }
}

#[test]
fn a_recycled_segment_is_used_as_it_is() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    prepare(&mut disk, 1, SEGMENT, None).unwrap();
    disk.write(1, 0, blocks(16, 50), true);
    written(&mut disk).1.unwrap();
    prepare(&mut disk, 2, SEGMENT, Some(1)).unwrap();
    assert!(read(&mut disk, 2).unwrap() == blocks(16, 50).as_slice(), "it is not written again");
    assert_eq!(list_segments(dir.path()).unwrap(), [2]);
    disk.write(1, 0, blocks(1, 0), true);
    assert_eq!(written(&mut disk).1.unwrap_err().kind(), io::ErrorKind::NotFound);
    disk.write(2, BLOCK, blocks(1, 99), true);
    written(&mut disk).1.unwrap();
    assert_eq!(read(&mut disk, 2).unwrap()[BLOCK_BYTES], 99);
}

#[test]
fn a_recycled_segment_of_another_size_is_made_to_fit() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    prepare(&mut disk, 1, SEGMENT, None).unwrap();
    disk.write(1, 0, blocks(16, 50), true);
    written(&mut disk).1.unwrap();
    prepare(&mut disk, 2, SEGMENT / 2, Some(1)).unwrap();
    assert!(read(&mut disk, 2).unwrap() == blocks(8, 50).as_slice());
    prepare(&mut disk, 3, 2 * SEGMENT, Some(2)).unwrap();
    assert!(read(&mut disk, 3).unwrap() == vec![0; 2 * SEGMENT as usize], "all of it is written once");
    assert_eq!(list_segments(dir.path()).unwrap(), [3]);
}

#[test]
fn a_segment_that_is_made_again_is_another_file() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    for round in [1, 2] {
        prepare(&mut disk, 1, SEGMENT, None).unwrap();
        disk.write(1, 0, blocks(1, round), true);
        written(&mut disk).1.unwrap();
        assert_eq!(read(&mut disk, 1).unwrap()[0], round);
        disk.remove(1);
        // Reading does not wait for removing, but making does.
        prepare(&mut disk, 9, SEGMENT, None).unwrap();
        assert_eq!(read(&mut disk, 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    prepare(&mut disk, 2, SEGMENT, None).unwrap();
    prepare(&mut disk, 3, SEGMENT, None).unwrap();
    for (round, recycled) in [(3, None), (4, Some(2))] {
        prepare(&mut disk, 3, SEGMENT, recycled).unwrap();
        disk.write(3, 0, blocks(1, round), true);
        written(&mut disk).1.unwrap();
        assert_eq!(read(&mut disk, 3).unwrap()[0], round);
    }
}

#[test]
fn a_full_file_system_leaves_no_half_made_segment_and_can_be_tried_again() {
    let dir = TestDir::new();
    let Some(_mounted) = sys::SmallFileSystem::mount(dir.path()) else { return };
    for mut disk in each_method(dir.path()) {
        let own = disk.directory.clone();
        let filler = own.join("filler");
        for recycled in [None, Some(1)] {
            prepare(&mut disk, 1, SEGMENT, None).unwrap();
            fs::write(&filler, vec![1; 600 << 10]).unwrap();
            let error = prepare(&mut disk, 2, 600 << 10, recycled).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert_eq!(list_segments(&own).unwrap(), if recycled.is_some() { vec![] } else { vec![1] });
            fs::remove_file(&filler).unwrap();
            prepare(&mut disk, 2, 600 << 10, recycled).unwrap();
            disk.write(2, 0, blocks(1, 3), true);
            written(&mut disk).1.unwrap();
            disk.remove(2);
            disk.remove(1);
        }
    }
}

#[test]
fn a_size_that_no_file_has_is_refused_and_leaves_nothing() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    prepare(&mut disk, 1, SEGMENT, None).unwrap();
    for bytes in [1 << 63, (1 << 63) - BLOCK] {
        prepare(&mut disk, 2, bytes, Some(1)).unwrap_err();
        assert!(list_segments(dir.path()).unwrap().is_empty());
    }
}

#[test]
fn a_write_that_stops_short_on_a_full_file_system_ends_in_its_error() {
    let dir = TestDir::new();
    let Some(_mounted) = sys::SmallFileSystem::mount(dir.path()) else { return };
    for mut disk in each_method(dir.path()) {
        let path = files::path(&disk.directory, 1);
        let file = fs::File::create(&path).unwrap();
        file.set_len(2 << 20).unwrap();
        disk.write(1, 0, blocks(512, 4), true);
        let (buffer, result) = written(&mut disk);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull, "by {}", disk.method());
        assert!(buffer.as_slice() == blocks(512, 4).as_slice());
        assert!(file.metadata().unwrap().blocks() > 0, "it had begun");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_error_of_a_write_reaches_its_completion() {
    let dir = TestDir::new();
    for mut disk in each_method(dir.path()) {
        symlink("/dev/full", files::path(&disk.directory, 1)).unwrap();
        disk.write(1, 0, blocks(2, 1), true);
        let (buffer, result) = written(&mut disk);
        // The device takes no direct writes: that is refused as soon as it is opened.
        let expected = if disk.method().is_direct() { libc::EINVAL } else { libc::ENOSPC };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(expected), "by {}", disk.method());
        assert_eq!(buffer.as_slice(), blocks(2, 1).as_slice());
        prepare(&mut disk, 2, SEGMENT, None).unwrap();
        disk.write(2, 0, buffer, true);
        written(&mut disk).1.unwrap();
    }
}

#[test]
fn a_drop_waits_for_the_write_and_for_the_helpers_queue() {
    let dir = TestDir::new();
    for mut disk in each_method(dir.path()) {
        let own = disk.directory.clone();
        let count = 1024;
        prepare(&mut disk, 1, count * BLOCK, None).unwrap();
        let buffer = blocks(count, 5);
        let bytes = buffer.as_slice().to_vec();
        disk.prepare(2, SEGMENT, None);
        disk.prepare(3, SEGMENT, None);
        disk.read(1, 0, 1 << 20);
        disk.remove(2);
        disk.write(1, 0, buffer, true);
        drop(disk);
        assert!(content(&own, 1) == bytes);
        assert_eq!(list_segments(&own).unwrap(), [1, 3]);
    }
}

#[test]
fn the_eventfd_is_rung_for_whatever_is_done() {
    let dir = TestDir::new();
    for mut disk in each_method(dir.path()) {
        let mut eventfd = sys::eventfd();
        disk.register_eventfd(eventfd.as_fd()).unwrap();
        // Sleeps as a shard does, and looks only when it is woken.
        let mut woken = |disk: &mut UringDisk| loop {
            let mut count = [0; 8];
            eventfd.read_exact(&mut count).unwrap();
            assert_ne!(u64::from_ne_bytes(count), 0);
            if let Some(completion) = disk.poll() {
                return completion;
            }
        };
        disk.prepare(1, SEGMENT, None);
        assert!(matches!(woken(&mut disk), Completion::Prepared(1, Ok(()))));
        for sync in [false, true] {
            disk.write(1, 0, blocks(3, 1), sync);
            assert!(matches!(woken(&mut disk), Completion::Written(_, Ok(()))));
        }
        disk.write(9, 0, blocks(1, 1), true);
        assert!(matches!(woken(&mut disk), Completion::Written(_, Err(_))), "not even opened");
        disk.read(1, 0, 1 << 20);
        assert!(matches!(woken(&mut disk), Completion::Read(1, 0, Ok(_))));
    }
}

#[test]
fn there_is_one_eventfd() {
    let dir = TestDir::new();
    let disk = open(dir.path());
    let no_eventfd = fs::File::create(dir.path().join("file")).unwrap();
    disk.register_eventfd(no_eventfd.as_fd()).unwrap_err();
    disk.register_eventfd(sys::eventfd().as_fd()).unwrap();
    disk.register_eventfd(sys::eventfd().as_fd()).unwrap_err();
}

#[test]
#[should_panic(expected = "one write at a time")]
fn two_writes_at_a_time_are_a_broken_invariant() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    prepare(&mut disk, 1, SEGMENT, None).unwrap();
    disk.write(1, 0, blocks(1, 1), true);
    disk.write(1, BLOCK, blocks(1, 1), true);
}

#[test]
#[should_panic(expected = "is being written")]
fn a_segment_that_is_being_written_is_not_recycled() {
    let dir = TestDir::new();
    let mut disk = open(dir.path());
    prepare(&mut disk, 1, SEGMENT, None).unwrap();
    disk.write(1, 0, blocks(1, 1), true);
    disk.prepare(2, SEGMENT, Some(1));
}
