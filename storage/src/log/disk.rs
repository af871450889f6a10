//! What the log asks of a disk. One log writes one commit at a time; files are made, renamed and removed
//! off the shard's thread. The real one is [`super::UringDisk`]; the simulated one loses, tears and
//! refuses on a seed.

use std::io;

/// A buffer that begins at a multiple of the block size in memory, as direct I/O asks for. Owned by the
/// disk while it is written.
#[derive(Default, Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    /// Where the aligned part begins.
    start: usize,
}

impl AlignedBuffer {
    const ALIGN: usize = super::format::BLOCK_BYTES;

    /// An empty one with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> AlignedBuffer {
        let mut buffer = AlignedBuffer { bytes: Vec::new(), start: 0 };
        buffer.reserve(bytes);
        buffer
    }

    /// What is in it.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// What is in it, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that it takes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Empties it and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// Keeps the first bytes.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(self.start + len);
    }

    /// Fills up with zeros to this many bytes.
    pub fn pad_to(&mut self, len: usize) {
        self.reserve(len.saturating_sub(self.len()));
        self.bytes.resize(self.start + len, 0);
    }

    /// Appends at most `additional` bytes by way of the plain buffer behind it.
    pub fn append(&mut self, additional: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.reserve(additional);
        let before = self.bytes.as_ptr();
        write(&mut self.bytes);
        debug_assert_eq!(before, self.bytes.as_ptr(), "no more is written than was said");
    }

    /// Makes room, and moves what is there so that it stays aligned.
    fn reserve(&mut self, additional: usize) {
        if self.bytes.capacity() - self.bytes.len() >= additional && self.bytes.capacity() > 0 {
            return;
        }
        let (len, room) = (self.len(), (self.len() + additional).max(2 * self.len()).max(16 * 1024));
        let mut bytes: Vec<u8> = Vec::with_capacity(room + Self::ALIGN);
        let start = bytes.as_ptr().align_offset(Self::ALIGN);
        bytes.resize(start, 0);
        bytes.extend_from_slice(&self.as_slice()[..len]);
        *self = AlignedBuffer { bytes, start };
    }
}

/// Something that was asked of a disk is done.
#[derive(Debug)]
pub enum Completion {
    /// [`Disk::write`]: the buffer comes back. After an error the state of the blocks is unknown.
    Written(AlignedBuffer, io::Result<()>),
    /// [`Disk::prepare`] of this segment.
    Prepared(u64, io::Result<()>),
    /// [`Disk::read`] of this segment, from this offset on.
    Read(u64, u64, io::Result<AlignedBuffer>),
}

/// A directory of segment files. See the module.
pub trait Disk {
    /// Writes whole blocks of a prepared segment, and if `sync`, says that it is done when they are on
    /// stable storage. One write at a time.
    fn write(&mut self, segment: u64, offset: u64, buffer: AlignedBuffer, sync: bool);

    /// Makes sure that the segment's file exists with this size, with its blocks allocated and written
    /// once, and that its name survives a power loss. Made of `recycled`, a segment whose number and
    /// content are no longer needed, if given; that one is gone in any case. What is in it is anything
    /// but this segment's commits.
    fn prepare(&mut self, segment: u64, bytes: u64, recycled: Option<u64>);

    /// Removes segments; nobody waits for it.
    fn remove(&mut self, segment: u64);

    /// Reads whole blocks of a segment, in the background; fewer, if its file ends before.
    fn read(&mut self, segment: u64, offset: u64, bytes: usize);

    /// Frees a buffer that was read. Giving megabytes back to the kernel takes milliseconds, which are not
    /// the caller's.
    fn free(&mut self, buffer: AlignedBuffer);

    /// Brings what was written to a segment to stable storage, and then writes beside it what is in it.
    /// Nobody waits for it, and a power loss may tear it: it is checked when it is read. It goes with the
    /// segment.
    fn summarize(&mut self, segment: u64, summary: Vec<u8>);

    /// The next thing that is done, if something is. Does not wait.
    fn poll(&mut self) -> Option<Completion>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_stays_aligned_however_it_grows() {
        let mut buffer = AlignedBuffer::default();
        for round in 0..200_usize {
            buffer.append(round * 37, |out| out.resize(out.len() + round * 37, round as u8));
            assert!(buffer.as_slice().as_ptr().align_offset(AlignedBuffer::ALIGN) == 0 || buffer.is_empty());
        }
        assert_eq!(buffer.len(), (0..200).map(|round| round * 37).sum::<usize>());
        assert_eq!(buffer.as_slice()[buffer.len() - 1], 199);
        buffer.pad_to(buffer.len().next_multiple_of(4096));
        assert_eq!(buffer.as_slice().last(), Some(&0));
        buffer.clear();
        assert!(buffer.is_empty());
    }
}
