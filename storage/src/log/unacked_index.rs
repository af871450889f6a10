//! Who has what: the messages of one shard that were given to somebody, in a mapped file.
//!
//! The log says which messages there are; this says which of them were delivered, how often, how often
//! their consumer failed, and which are settled without the log having it on disk yet. The file is mapped:
//! a store to it survives the process at once and costs no system call. It is never synced: after a power
//! loss it is a hint, each entry of which is checked against the log. Sequences are never used twice, so an
//! entry can outlive its message, and cannot be taken for one of another.
//!
//! ```text
//! file: header, 64 bytes: magic "LEPUSIDX" | format u32 | shard u32 | zeros
//!       entries of 32 bytes: sequence u64 | queue u64 | deliveries u32 | state u16 | failures u16 |
//!                            crc u32 (of these) | zero u32
//! state: 0 free, 1 held, 2 settled, 3 back
//! ```
//!
//! Format 1 is the same without the failures, which are 0 there, and without state 3: what came back stayed
//! in state 1. It becomes format 2 when it is opened.
//!
//! Everything is little endian. The file grows by whole chunks whose blocks are written before they are
//! mapped: a full disk is an error here, and not a fault in the middle of a store.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};
use rustc_hash::FxHashMap;

use super::format::Sequence;

/// The version of the format, and the newest that is read.
const FORMAT: u32 = 2;
const MAGIC: &[u8; 8] = b"LEPUSIDX";
const FILE_NAME: &str = "unacked.index";
const ENTRY_BYTES: usize = 32;
/// Grown by this much: 32,768 entries. The header takes the place of the first two.
const CHUNK_BYTES: usize = 1024 * 1024;
const CHUNK_ENTRIES: usize = CHUNK_BYTES / ENTRY_BYTES;
const HEADER_ENTRIES: u32 = 2;

/// Why an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The file cannot be read, written or mapped.
    #[error("cannot use the unacked index {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Written by a later version, or of another shard, or not one of ours.
    #[error(
        "{path} is not an unacked index of shard {shard} in a format up to {FORMAT}; put the right file back"
    )]
    Foreign {
        /// The file.
        path: String,
        /// Whose index was asked for.
        shard: u32,
    },
}

/// Where a message stands that was in somebody's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Somebody has it.
    Held = 1,
    /// It is done with.
    Settled = 2,
    /// It has come back.
    Back = 3,
}

/// What is known of a message in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// The message.
    pub sequence: Sequence,
    /// The queue.
    pub queue: u64,
    /// How often it was given to somebody.
    pub deliveries: u32,
    /// How often it came back because its consumer failed.
    pub failures: u16,
    /// Where it stands.
    pub standing: Standing,
}

impl IndexEntry {
    fn write(&self, place: &mut [u8]) {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.queue.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.deliveries.to_le_bytes());
        bytes[20..22].copy_from_slice(&(self.standing as u16).to_le_bytes());
        bytes[22..24].copy_from_slice(&self.failures.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..24]);
        bytes[24..28].copy_from_slice(&crc.to_le_bytes());
        place.copy_from_slice(&bytes);
    }

    fn read(bytes: &[u8]) -> Option<IndexEntry> {
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let standing = match half(20)? {
            1 => Standing::Held,
            2 => Standing::Settled,
            3 => Standing::Back,
            _ => return None,
        };
        if word(24)? != crc32c::crc32c(&bytes[..24]) {
            return None;
        }
        let (deliveries, failures) = (word(16)?, half(22)?);
        Some(IndexEntry { sequence: long(0)?, queue: long(8)?, deliveries, failures, standing })
    }

    fn returned(self, failed: bool) -> IndexEntry {
        let failures = self.failures.saturating_add(u16::from(failed));
        IndexEntry { failures, standing: Standing::Back, ..self }
    }
}

/// See the module.
#[derive(Debug)]
pub struct UnackedIndex {
    file: File,
    chunks: Vec<MmapMut>,
    free: Vec<u32>,
    slots: FxHashMap<(Sequence, u64), u32>,
    /// The last growth failed: what it said.
    full: Option<String>,
}

impl UnackedIndex {
    /// Opens the index of a shard in the directory of its log, or makes it. What somebody held when the last
    /// process ended has come back by a failure, as from a connection that was lost.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn open(directory: &Path, shard: u32) -> Result<UnackedIndex, IndexError> {
        let path = directory.join(FILE_NAME);
        let io = |source| IndexError::Io { path: path.display().to_string(), source };
        let mut file = OpenOptions::new();
        let file = file.read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len() as usize;
        let (slots, free) = (FxHashMap::default(), Vec::new());
        let mut index = UnackedIndex { file, chunks: Vec::new(), free, slots, full: None };
        // A chunk that the process did not live to write whole holds nothing.
        while (index.chunks.len() + 1) * CHUNK_BYTES <= bytes {
            index.map_chunk().map_err(io)?;
        }
        let header_of = |format: u32| {
            let mut header = [0; 16];
            header[..8].copy_from_slice(MAGIC);
            header[8..12].copy_from_slice(&format.to_le_bytes());
            header[12..].copy_from_slice(&shard.to_le_bytes());
            header
        };
        let header = header_of(FORMAT);
        if index.chunks.is_empty() {
            index.grow().map_err(io)?;
            index.free.retain(|&slot| slot >= HEADER_ENTRIES);
            index.chunks[0][..16].copy_from_slice(&header);
        } else if index.chunks[0][..16] == [0; 16] {
            // The power went before the header was on disk, and so before anything else was.
            index.chunks[0].fill(0);
            index.chunks[0][..16].copy_from_slice(&header);
            index.rebuild();
        } else if index.chunks[0][..16] == header_of(1) {
            // Nothing else changes, and a version that knows only this one must not read what is added.
            index.chunks[0][..16].copy_from_slice(&header);
            index.rebuild();
        } else if index.chunks[0][..16] != header {
            return Err(IndexError::Foreign { path: path.display().to_string(), shard });
        } else {
            index.rebuild();
        }
        Ok(index)
    }

    /// Everything that is in it.
    pub fn entries(&self) -> impl Iterator<Item = IndexEntry> + '_ {
        self.slots.values().map(|&slot| self.entry(slot).expect("a named slot is taken"))
    }

    /// Forgets every entry that `keep` does not want.
    pub fn retain(&mut self, mut keep: impl FnMut(&IndexEntry) -> bool) {
        let gone: Vec<IndexEntry> = self.entries().filter(|entry| !keep(entry)).collect();
        gone.iter().for_each(|entry| self.forget(entry.sequence, entry.queue));
    }

    /// A message was given to somebody, once more.
    pub fn delivered(&mut self, sequence: Sequence, queue: u64) {
        self.change(sequence, queue, |entry| IndexEntry {
            deliveries: entry.deliveries.saturating_add(1),
            standing: Standing::Held,
            ..entry
        });
    }

    /// It has come back; with `failed` because its consumer failed.
    pub fn returned(&mut self, sequence: Sequence, queue: u64, failed: bool) {
        self.change(sequence, queue, |entry| entry.returned(failed));
    }

    /// Enters what is known of a message elsewhere.
    pub fn note(&mut self, entry: &IndexEntry) {
        if let Some(slot) = self.slot(entry.sequence, entry.queue) {
            entry.write(self.place(slot));
        }
    }

    /// A message is done with, and the log does not have that on disk yet.
    pub fn settled(&mut self, sequence: Sequence, queue: u64) {
        self.change(sequence, queue, |entry| IndexEntry { standing: Standing::Settled, ..entry });
    }

    #[inline]
    fn change(&mut self, sequence: Sequence, queue: u64, change: impl FnOnce(IndexEntry) -> IndexEntry) {
        let Some(slot) = self.slot(sequence, queue) else { return };
        let new = IndexEntry { sequence, queue, deliveries: 0, failures: 0, standing: Standing::Back };
        change(self.entry(slot).unwrap_or(new)).write(self.place(slot));
    }

    /// The log has it.
    pub fn forget(&mut self, sequence: Sequence, queue: u64) {
        if let Some(slot) = self.slots.remove(&(sequence, queue)) {
            self.place(slot).fill(0);
            self.free.push(slot);
        }
    }

    /// Why it cannot take more entries, if so. What is not noted is redelivered after a crash without
    /// being marked so.
    pub fn full(&self) -> Option<&str> {
        self.full.as_deref()
    }

    fn slot(&mut self, sequence: Sequence, queue: u64) -> Option<u32> {
        if let Some(&slot) = self.slots.get(&(sequence, queue)) {
            return Some(slot);
        }
        if self.free.is_empty() {
            match self.grow() {
                Ok(()) => self.full = None,
                Err(error) => {
                    if self.full.is_none() {
                        tracing::warn!(%error, "the unacked index cannot grow: redeliveries after a crash are not all marked");
                    }
                    self.full = Some(error.to_string());
                }
            }
        }
        let slot = self.free.pop()?;
        self.slots.insert((sequence, queue), slot);
        Some(slot)
    }

    fn place(&mut self, slot: u32) -> &mut [u8] {
        let (chunk, at) = (slot as usize / CHUNK_ENTRIES, slot as usize % CHUNK_ENTRIES * ENTRY_BYTES);
        &mut self.chunks[chunk][at..at + ENTRY_BYTES]
    }

    fn entry(&self, slot: u32) -> Option<IndexEntry> {
        let (chunk, at) = (slot as usize / CHUNK_ENTRIES, slot as usize % CHUNK_ENTRIES * ENTRY_BYTES);
        IndexEntry::read(&self.chunks[chunk][at..at + ENTRY_BYTES])
    }

    /// Finds out which slots are taken, and takes back what was held.
    fn rebuild(&mut self) {
        for slot in (HEADER_ENTRIES..(self.chunks.len() * CHUNK_ENTRIES) as u32).rev() {
            match self.entry(slot) {
                Some(entry) => {
                    self.slots.insert((entry.sequence, entry.queue), slot);
                    if entry.standing == Standing::Held {
                        entry.returned(true).write(self.place(slot));
                    }
                }
                None => self.free.push(slot),
            }
        }
    }

    fn grow(&mut self) -> io::Result<()> {
        let start = self.chunks.len() * CHUNK_BYTES;
        self.file.write_all_at(&vec![0; CHUNK_BYTES], start as u64)?;
        self.map_chunk()?;
        let first = (start / ENTRY_BYTES) as u32;
        self.free.extend((first..first + CHUNK_ENTRIES as u32).rev());
        Ok(())
    }

    fn map_chunk(&mut self) -> io::Result<()> {
        let offset = (self.chunks.len() * CHUNK_BYTES) as u64;
        // SAFETY: the file is in a data directory that this process alone holds, and is never shortened
        // while it is mapped; all its blocks are written.
        let chunk =
            unsafe { MmapOptions::new().offset(offset).len(CHUNK_BYTES).populate().map_mut(&self.file)? };
        self.chunks.push(chunk);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    use Standing::{Back, Held, Settled};

    fn all(index: &UnackedIndex) -> Vec<(u64, u64, u32, u16, Standing)> {
        let mut all: Vec<_> = index
            .entries()
            .map(|entry| (entry.sequence, entry.queue, entry.deliveries, entry.failures, entry.standing))
            .collect();
        all.sort_unstable_by_key(|entry| (entry.0, entry.1));
        all
    }

    #[test]
    fn what_was_noted_is_there_when_it_is_opened_again() {
        let dir = TestDir::new();
        let mut index = UnackedIndex::open(dir.path(), 1).unwrap();
        index.delivered(5, 1);
        index.delivered(5, 1);
        index.delivered(5, 2);
        index.settled(5, 2);
        index.settled(9, 1);
        index.delivered(7, 1);
        index.forget(7, 1);
        index.forget(8, 8);
        for failed in [true, false, true] {
            index.delivered(11, 1);
            index.returned(11, 1, failed);
        }
        index.delivered(12, 1);
        index.returned(12, 1, true);
        index.delivered(12, 1);
        let noted = [
            (5, 1, 2, 0, Held),
            (5, 2, 1, 0, Settled),
            (9, 1, 0, 0, Settled),
            (11, 1, 3, 2, Back),
            (12, 1, 2, 1, Held),
        ];
        assert_eq!(all(&index), noted);
        // As a killed process does: nothing is closed.
        std::mem::forget(index);
        let mut index = UnackedIndex::open(dir.path(), 1).unwrap();
        let noted = [
            (5, 1, 2, 1, Back),
            (5, 2, 1, 0, Settled),
            (9, 1, 0, 0, Settled),
            (11, 1, 3, 2, Back),
            (12, 1, 2, 2, Back),
        ];
        assert_eq!(all(&index), noted);
        index.retain(|entry| entry.standing == Settled);
        assert_eq!(all(&index), noted[1..3]);
        drop(index);
        assert_eq!(all(&UnackedIndex::open(dir.path(), 1).unwrap()), noted[1..3]);
    }

    #[test]
    fn it_grows_and_uses_its_slots_again() {
        let dir = TestDir::new();
        let mut index = UnackedIndex::open(dir.path(), 1).unwrap();
        let count = CHUNK_ENTRIES as u64 * 2 + 10;
        (0..count).for_each(|sequence| index.delivered(sequence, 1));
        assert_eq!(index.chunks.len(), 3);
        (0..count).for_each(|sequence| index.forget(sequence, 1));
        (0..count).for_each(|sequence| index.delivered(sequence, 2));
        assert_eq!(index.chunks.len(), 3);
        drop(index);
        assert_eq!(UnackedIndex::open(dir.path(), 1).unwrap().entries().count() as u64, count);
    }

    #[test]
    fn a_damaged_entry_is_no_entry() {
        let dir = TestDir::new();
        let mut index = UnackedIndex::open(dir.path(), 1).unwrap();
        index.delivered(5, 1);
        index.delivered(6, 1);
        let slot = index.slots[&(5, 1)];
        index.place(slot)[3] ^= 1;
        drop(index);
        assert_eq!(all(&UnackedIndex::open(dir.path(), 1).unwrap()), [(6, 1, 1, 1, Back)]);
    }

    #[test]
    fn another_shards_or_a_later_index_is_refused() {
        let dir = TestDir::new();
        drop(UnackedIndex::open(dir.path(), 1).unwrap());
        assert!(matches!(UnackedIndex::open(dir.path(), 2), Err(IndexError::Foreign { .. })));
        let path = dir.path().join(FILE_NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[8] = FORMAT as u8 + 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = UnackedIndex::open(dir.path(), 1).unwrap_err();
        assert!(error.to_string().contains("unacked.index"), "{error}");
    }

    #[test]
    fn a_chunk_that_was_not_written_whole_is_ignored() {
        let dir = TestDir::new();
        let mut index = UnackedIndex::open(dir.path(), 1).unwrap();
        index.delivered(5, 1);
        index.file.write_all_at(&[1; 100], CHUNK_BYTES as u64).unwrap();
        drop(index);
        let mut index = UnackedIndex::open(dir.path(), 1).unwrap();
        assert_eq!(all(&index), [(5, 1, 1, 1, Back)]);
        (10..CHUNK_ENTRIES as u64 + 20).for_each(|sequence| index.delivered(sequence, 1));
        assert_eq!(index.chunks.len(), 2);
    }
}
