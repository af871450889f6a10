//! Messages that come back from the disk.
//!
//! Runs on the shard's thread. What is read is a chunk: whole commits, checked by their checksums, with an
//! index of their messages. A few chunks are kept. A chunk that follows on one that was read is larger, and
//! the one after it is asked for before it is needed, so that a backlog that is consumed in order is read at
//! the disk's speed while a single message costs one small read.
//!
//! Whoever asks for what is not there names himself and asks again when he is named by
//! [`ShardLog::take_arrived`].

use std::collections::VecDeque;
use std::io;

use super::directory::Place;
use super::disk::{AlignedBuffer, Disk};
use super::format::{
    BLOCK_BYTES, COMMIT_HEADER_BYTES, CommitHeader, RecordInPlace, Sequence, commit_bytes, padded,
};
use super::shard_log::ShardLog;
use crate::limits::{CHUNKS_KEPT, READ_BYTES_MAX, READ_BYTES_MIN};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What [`ShardLog::load`] gives.
#[derive(PartialEq, Eq, Debug)]
pub enum Loaded<'a> {
    /// The message's content.
    Content(&'a [u8]),
    /// It is being read: [`ShardLog::take_arrived`] names who asked.
    Later,
    /// It cannot be read any more; the log has said so. It is to be settled.
    Lost,
}

/// Commits that were read.
#[derive(Debug)]
struct Chunk {
    segment: u64,
    start: u64,
    /// Where the first commit begins that is not whole in it.
    end: u64,
    buffer: AlignedBuffer,
    /// Sequence, and where its content is; in ascending order.
    messages: Vec<(Sequence, u32, u32)>,
}

impl Chunk {
    fn covers(&self, segment: u64, offset: u64) -> bool {
        self.segment == segment && (self.start..self.end).contains(&offset)
    }

    fn content(&self, sequence: Sequence) -> Option<&[u8]> {
        let at = self.messages.binary_search_by_key(&sequence, |message| message.0).ok()?;
        let (_, offset, len) = self.messages[at];
        Some(&self.buffer.as_slice()[offset as usize..(offset + len) as usize])
    }

    /// Finds the commits in what was read of a segment. With nothing whole at its start, the end is the
    /// start and this is no chunk yet; the second value is what a whole commit there needs.
    fn parse(segment: u64, start: u64, mut buffer: AlignedBuffer) -> (Chunk, usize) {
        let (mut offset, mut needed, mut messages) = (0, 0, Vec::new());
        let len = buffer.len();
        while offset < len {
            let commit = &mut buffer.as_mut_slice()[offset..];
            if let Some((_, payload)) = CommitHeader::read(commit, segment) {
                let end = COMMIT_HEADER_BYTES + payload.len();
                index(&mut commit[..end], offset, &mut messages);
                offset += padded(end);
                continue;
            }
            match commit_bytes(commit, segment) {
                Some(bytes) if bytes > commit.len() => {
                    needed = bytes;
                    break;
                }
                // Damaged, or of another time.
                _ => offset += BLOCK_BYTES,
            }
        }
        messages.sort_unstable();
        let end = start + offset.min(len) as u64;
        (Chunk { segment, start, end, buffer, messages }, needed)
    }
}

/// Notes the messages of a commit.
fn index(commit: &mut [u8], at: usize, messages: &mut Vec<(Sequence, u32, u32)>) {
    let mut offset = COMMIT_HEADER_BYTES;
    while offset < commit.len() {
        let record = RecordInPlace(&mut commit[offset..]);
        let bytes = record.bytes();
        if record.is_message() {
            let content = record.content_offset();
            messages.push((record.sequence(), (at + offset + content) as u32, (bytes - content) as u32));
        }
        offset += bytes;
    }
}

/// Who asks for several messages of one read is named once: if each answer made him ask for as many again, they
/// would grow without end.
fn add_once(waiting: &mut Vec<u64>, waiter: u64) {
    if !waiting.contains(&waiter) {
        waiting.push(waiter);
    }
}

#[derive(Debug)]
struct Asked {
    segment: u64,
    start: u64,
    bytes: usize,
    waiting: Vec<u64>,
}

/// See the module.
#[derive(Default, Debug)]
pub(super) struct Reading {
    /// Used last, last.
    chunks: VecDeque<Chunk>,
    asked: Vec<Asked>,
    /// They wait for the commit under way.
    awaiting_commit: Vec<u64>,
    arrived: Vec<u64>,
}

impl Reading {
    /// The segment's file is given back.
    pub fn forget(&mut self, segment: u64) {
        self.chunks.retain(|chunk| chunk.segment != segment);
    }

    /// The commit under way is on disk.
    pub fn commit_done(&mut self) {
        self.arrived.append(&mut self.awaiting_commit);
    }

    /// Brings the chunk that covers this place to the end of the row.
    fn use_chunk(&mut self, segment: u64, offset: u64) -> bool {
        let Some(at) = self.chunks.iter().rposition(|chunk| chunk.covers(segment, offset)) else {
            return false;
        };
        if at + 1 < self.chunks.len() {
            let chunk = self.chunks.remove(at).expect("it was just found");
            self.chunks.push_back(chunk);
        }
        true
    }

    /// How much is read from here on: more, if this goes on where another chunk ends.
    fn size_for(&self, segment: u64, start: u64) -> usize {
        let before = self.chunks.iter().find(|chunk| chunk.segment == segment && chunk.end == start);
        match before {
            Some(chunk) => (2 * chunk.buffer.len()).clamp(READ_BYTES_MIN, READ_BYTES_MAX),
            None => READ_BYTES_MIN,
        }
    }

    fn is_asked(&mut self, segment: u64, offset: u64) -> Option<&mut Asked> {
        self.asked.iter_mut().find(|asked| {
            asked.segment == segment && (asked.start..asked.start + asked.bytes as u64).contains(&offset)
        })
    }
}

impl<D: Disk> ShardLog<D> {
    /// The content of a message that is durable. Who asks is `waiter`, if it has to be read.
    ///
    /// # Panics
    /// When no such message is live.
    pub fn load(&mut self, sequence: Sequence, waiter: u64) -> Loaded<'_> {
        let located = self.directory.get(sequence).expect("a live message is loaded");
        let (segment, offset) = match located.place {
            // It is being moved.
            Place::Builder { builder, offset, .. } => {
                let buffer = &mut self.builder_mut(builder).buffer;
                let record = &mut buffer.as_mut_slice()[offset as usize..];
                let (content, bytes) = {
                    let record = RecordInPlace(record);
                    (record.content_offset(), record.bytes())
                };
                return Loaded::Content(&record[content..bytes]);
            }
            Place::Segment { segment, block, .. } => (self.full_number(segment), u64::from(block) * BLOCK),
        };
        if self.in_flight.as_ref().is_some_and(|commit| commit.segment == segment && commit.offset <= offset)
        {
            add_once(&mut self.reading.awaiting_commit, waiter);
            return Loaded::Later;
        }
        if !self.reading.use_chunk(segment, offset) {
            self.ask(segment, offset, Some(waiter));
            return Loaded::Later;
        }
        self.read_ahead(segment);
        let chunk = self.reading.chunks.back().expect("it was just used");
        match chunk.content(sequence) {
            Some(content) => Loaded::Content(content),
            None => {
                let shard = self.options.shard;
                tracing::error!(
                    shard,
                    segment,
                    offset,
                    sequence,
                    "a message cannot be read back from the log and is lost"
                );
                Loaded::Lost
            }
        }
    }

    /// Who asked for something that is there now, or cannot be had; to ask again. May name somebody twice.
    pub fn take_arrived(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.reading.arrived)
    }

    /// The chunk behind the one that is used is asked for: the disk works while this one is used up.
    fn read_ahead(&mut self, segment: u64) {
        let chunk = self.reading.chunks.back().expect("it was just used");
        let end = chunk.end;
        let (segment, next) = match end < self.readable_to(segment) {
            true => (segment, end),
            false => match self.segments.iter().find(|other| other.number > segment) {
                Some(other) => (other.number, BLOCK),
                None => return,
            },
        };
        let there = self.reading.chunks.iter().any(|chunk| chunk.covers(segment, next));
        if !there && next < self.readable_to(segment) && self.reading.is_asked(segment, next).is_none() {
            self.ask(segment, next, None);
        }
    }

    /// Up to where a segment is on disk.
    fn readable_to(&mut self, segment: u64) -> u64 {
        match &self.in_flight {
            Some(commit) if commit.segment == segment => commit.offset,
            _ => self.segment_mut(segment).map_or(0, |segment| segment.used),
        }
    }

    fn ask(&mut self, segment: u64, offset: u64, waiter: Option<u64>) {
        if let Some(asked) = self.reading.is_asked(segment, offset) {
            waiter.into_iter().for_each(|waiter| add_once(&mut asked.waiting, waiter));
            return;
        }
        let bytes = self.reading.size_for(segment, offset);
        self.ask_for(segment, offset, bytes, waiter.into_iter().collect());
    }

    fn ask_for(&mut self, segment: u64, start: u64, bytes: usize, waiting: Vec<u64>) {
        let to = self.readable_to(segment).max(start + BLOCK);
        let bytes = bytes.min((to - start) as usize);
        self.reading.asked.push(Asked { segment, start, bytes, waiting });
        self.disk.read(segment, start, bytes);
    }

    pub(super) fn chunk_read(&mut self, segment: u64, start: u64, result: io::Result<AlignedBuffer>) {
        let at = self.reading.asked.iter().position(|asked| (asked.segment, asked.start) == (segment, start));
        let Asked { bytes, waiting, .. } =
            self.reading.asked.swap_remove(at.expect("what is read was asked for"));
        let buffer = match result {
            Ok(buffer) => buffer,
            Err(error) => {
                let shard = self.options.shard;
                tracing::error!(shard, segment, offset = start, bytes, %error, "cannot read the log");
                if bytes > BLOCK_BYTES {
                    // Something in it may be readable: what was asked for stands first.
                    return self.ask_for(segment, start, BLOCK_BYTES, waiting);
                }
                AlignedBuffer::default()
            }
        };
        let (mut chunk, needed) = Chunk::parse(segment, start, buffer);
        let room = self.readable_to(segment).saturating_sub(start);
        if chunk.end == start && needed > bytes && needed as u64 <= room {
            return self.ask_for(segment, start, needed, waiting);
        }
        // What is not whole although all of it was read will not be: who asks for it is told.
        chunk.end = chunk.end.max(start + BLOCK);
        self.reading.chunks.push_back(chunk);
        if self.reading.chunks.len() > CHUNKS_KEPT {
            self.reading.chunks.pop_front();
        }
        self.reading.arrived.extend(waiting);
    }
}

#[cfg(test)]
#[path = "reading_tests.rs"]
mod tests;
