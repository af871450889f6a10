//! Reading a log back: what is live in it, where it goes on, and what is damaged.
//!
//! The commits of all segments are one row, numbered without a gap. The row ends where no valid commit
//! follows: what lies behind was being written when the power went, and was never confirmed. A gap
//! *before* a later commit whose frontier is past it is damage: it is reported with its place, and
//! everything else is kept.
//!
//! A closed segment has a summary beside it: where that is whole, the segment itself is not read. What is
//! damaged in it is noticed then when it is loaded, or by whoever asks for everything to be read.

use std::io;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::format::{
    BLOCK_BYTES, BadHeader, COMMIT_HEADER_BYTES, CommitHeader, NOBODY, Record, SegmentHeader, Sequence,
    padded, read_records,
};
use super::summary::{Item, Summary};

/// A message in a queue that has not settled it. Memory for each while a log is opened: 48 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveMessage {
    /// The message's name.
    pub sequence: Sequence,
    /// The queue.
    pub queue: u64,
    /// When it was published, in milliseconds since 1970.
    pub published_ms: u64,
    /// Its own time to live, in milliseconds.
    pub ttl_ms: Option<TtlMs>,
    /// The segment that it is in, the last one if it was moved.
    pub segment: u64,
    /// The first block of its commit there.
    pub block: u32,
    /// Bytes of its record.
    pub bytes: u32,
    /// Its record names more queues than one.
    pub shared: bool,
}

/// A time to live, kept so that there being none costs nothing.
pub type TtlMs = std::num::NonZeroU64;

/// Where segments are read from.
pub trait SegmentFiles {
    /// All bytes of a segment.
    ///
    /// # Errors
    /// When its file cannot be read.
    fn segment(&self, segment: u64) -> io::Result<Vec<u8>>;

    /// What was written beside it, if anything.
    fn summary(&self, segment: u64) -> Option<Vec<u8>>;
}

/// A segment that holds commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentSummary {
    /// Its number.
    pub segment: u64,
    /// Size of its file.
    pub bytes: u64,
    /// How much of it is used.
    pub used_bytes: u64,
    /// Commits in it.
    pub commits: u64,
}

/// Something that was on disk and cannot be read any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("segment {segment}, offset {offset}: {what}")]
pub struct Damage {
    /// The segment.
    pub segment: u64,
    /// Where in its file.
    pub offset: u64,
    /// What is missing there.
    pub what: String,
}

/// Why a log cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A file cannot be read.
    #[error("cannot read segment {segment} of the log: {source}")]
    Unreadable {
        /// The segment.
        segment: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Written by a later version.
    #[error(
        "segment {segment} of the log has format {format}, and this version of lepus reads up to {}; start the \
         version that wrote it",
        super::format::FORMAT
    )]
    Newer {
        /// The segment.
        segment: u64,
        /// Its format.
        format: u32,
    },
    /// A commit is whole and says something that this version does not know.
    #[error("segment {segment} of the log, offset {offset}: {source}; start the version that wrote it")]
    Unknown {
        /// The segment.
        segment: u64,
        /// Where in its file.
        offset: u64,
        /// What it is.
        source: super::format::Malformed,
    },
    /// The files are of another shard.
    #[error(
        "segment {segment} belongs to the log of shard {found}, not {expected}; put the files back in place"
    )]
    OtherShard {
        /// The segment.
        segment: u64,
        /// Whose it is.
        found: u32,
        /// Whose log was asked for.
        expected: u32,
    },
}

/// What a log holds.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Live messages, in the order of their sequences; one that several queues have is there for each.
    pub messages: Vec<LiveMessage>,
    /// Segments with commits, oldest first.
    pub segments: Vec<SegmentSummary>,
    /// Files that hold nothing: prepared, or never got their first commit whole.
    pub unused: Vec<u64>,
    /// What is missing.
    pub damage: Vec<Damage>,
    /// The highest sequence of any message, also of settled ones; 0 when there is none.
    pub last_sequence: Sequence,
    /// The number of the last commit; 0 when there is none.
    pub last_commit: u64,
    /// The highest segment number of any file.
    pub last_segment: u64,
}

/// Reads the log of a shard out of its segments, given in ascending order.
///
/// # Errors
/// [`RecoveryError`], when going on would lose what is there. Damage is none: it is in the result.
pub fn recover(shard: u32, segments: &[u64], files: &impl SegmentFiles) -> Result<Recovered, RecoveryError> {
    let mut reading = Reading::default();
    for &segment in segments {
        let summary = files.summary(segment);
        let summary = summary.as_deref().and_then(|bytes| Summary::read(bytes, shard, segment));
        if summary.is_some_and(|summary| reading.take_summary(segment, &summary).is_some()) {
            continue;
        }
        let bytes = files.segment(segment).map_err(|source| RecoveryError::Unreadable { segment, source })?;
        reading.read_segment(shard, segment, &bytes)?;
    }
    Ok(reading.finish())
}

/// The content of a live message in the bytes of its segment.
pub fn find_content<'a>(segment_bytes: &'a [u8], message: &LiveMessage) -> Option<&'a [u8]> {
    let commit = segment_bytes.get(message.block as usize * BLOCK_BYTES..)?;
    let (_, payload) = CommitHeader::read(commit, message.segment)?;
    read_records(payload).map_while(Result::ok).find_map(|record| match record {
        Record::Message { head, content, .. } if head.sequence == message.sequence => Some(content),
        _ => None,
    })
}

/// The rows of a message that was moved: one for each queue.
type Rows = SmallVec<[LiveMessage; 1]>;

#[derive(Default)]
struct Reading {
    out: Recovered,
    /// In ascending order, as they were appended; settled ones are nobody's.
    messages: Vec<LiveMessage>,
    /// Messages that were appended again, and whose first copies are gone.
    moved: FxHashMap<Sequence, Rows>,
    /// Where the last whole commit ended: what is found missing later is missing here.
    end: (u64, u64),
}

impl Reading {
    fn read_segment(&mut self, shard: u32, segment: u64, bytes: &[u8]) -> Result<(), RecoveryError> {
        self.out.last_segment = self.out.last_segment.max(segment);
        // Without a header - the power went while it was written - the commits speak for themselves.
        match SegmentHeader::read(bytes) {
            Ok(header) if header.segment == segment && header.shard != shard => {
                return Err(RecoveryError::OtherShard { segment, found: header.shard, expected: shard });
            }
            Err(BadHeader::Newer(format)) => return Err(RecoveryError::Newer { segment, format }),
            Ok(_) | Err(BadHeader::Unreadable) => {}
        }
        let (mut commits, mut used, mut offset) = (0, 0, BLOCK_BYTES);
        while offset < bytes.len() {
            let Some((commit, payload)) = CommitHeader::read(&bytes[offset..], segment) else {
                offset += BLOCK_BYTES;
                continue;
            };
            self.note_gap(segment, commit.first_commit, commit.commit, commit.frontier);
            self.take_records(segment, offset as u64, payload)?;
            offset += padded(COMMIT_HEADER_BYTES + payload.len());
            (commits, used) = (commits + 1, offset as u64);
            self.out.last_commit = commit.commit;
            self.end = (segment, used);
        }
        if commits == 0 {
            self.out.unused.push(segment);
            return Ok(());
        }
        let bytes = bytes.len() as u64;
        self.out.segments.push(SegmentSummary { segment, bytes, used_bytes: used, commits });
        Ok(())
    }

    /// Takes a summary in the place of its segment. None if it makes no sense, and nothing is taken.
    fn take_summary(&mut self, segment: u64, summary: &Summary<'_>) -> Option<()> {
        summary.each(|_| {})?;
        self.out.last_segment = self.out.last_segment.max(segment);
        // All commits before its last one were on disk when it was closed.
        self.note_gap(segment, summary.first_commit, summary.first_commit, summary.first_commit - 1);
        summary.each(|item| match item {
            Item::Message(message, queues) => {
                let row = LiveMessage {
                    sequence: message.sequence,
                    queue: NOBODY,
                    published_ms: message.published_ms,
                    ttl_ms: message.ttl_ms.map(nonzero),
                    segment,
                    block: message.block,
                    bytes: message.bytes,
                    shared: queues.len() > 1,
                };
                self.enter(row, queues);
            }
            Item::Settled(settled) => settled.iter().for_each(|&(name, queue)| self.settle(name, queue)),
        })?;
        let used_bytes = summary.used_bytes;
        let commits = summary.last_commit - summary.first_commit + 1;
        self.out.segments.push(SegmentSummary { segment, bytes: used_bytes, used_bytes, commits });
        self.out.last_commit = summary.last_commit;
        self.end = (segment, used_bytes);
        Some(())
    }

    fn note_gap(&mut self, segment: u64, first_commit: u64, commit: u64, frontier: u64) {
        if self.out.last_commit == 0 {
            // What precedes the oldest segment is not needed.
            (self.out.last_commit, self.end) = (first_commit - 1, (segment, BLOCK_BYTES as u64));
        }
        let (last, (segment, offset)) = (self.out.last_commit, self.end);
        if commit == last + 1 || frontier <= last {
            return;
        }
        let missing = commit - last - 1;
        let what = format!("{missing} commits that were on disk cannot be read (after commit {last})");
        self.out.damage.push(Damage { segment, offset, what });
    }

    fn take_records(&mut self, segment: u64, offset: u64, payload: &[u8]) -> Result<(), RecoveryError> {
        let block = (offset / BLOCK_BYTES as u64) as u32;
        for record in read_records(payload) {
            match record.map_err(|source| RecoveryError::Unknown { segment, offset, source })? {
                Record::Message { head, queues, content } => {
                    self.out.last_sequence = self.out.last_sequence.max(head.sequence);
                    if head.spilled {
                        continue;
                    }
                    let row = LiveMessage {
                        sequence: head.sequence,
                        queue: NOBODY,
                        published_ms: head.published_ms,
                        ttl_ms: head.ttl_ms.map(nonzero),
                        segment,
                        block,
                        bytes: super::format::message_bytes(queues.len(), content.len()) as u32,
                        shared: queues.len() > 1,
                    };
                    self.enter(row, &queues);
                }
                Record::Settled(settled) => {
                    for (sequence, queue) in settled {
                        self.settle(sequence, queue);
                    }
                }
            }
        }
        Ok(())
    }

    /// A message that was appended again is read again: the later copy lists what was live then.
    fn enter(&mut self, row: LiveMessage, queues: &[u64]) {
        let sequence = row.sequence;
        self.out.last_sequence = self.out.last_sequence.max(sequence);
        let rows = queues.iter().filter(|&&queue| queue != NOBODY).map(|&queue| LiveMessage { queue, ..row });
        if self.messages.last().is_none_or(|last| last.sequence < sequence) {
            self.messages.extend(rows);
            return;
        }
        let former = self.find(sequence);
        if former.is_empty() {
            self.moved.insert(sequence, rows.collect());
            return;
        }
        for former in former {
            // What the later copy does not list was settled before.
            let queue = if queues.contains(&former.queue) { former.queue } else { NOBODY };
            *former = LiveMessage { queue, ..row };
        }
    }

    fn find(&mut self, sequence: Sequence) -> &mut [LiveMessage] {
        let first = self.messages.partition_point(|message| message.sequence < sequence);
        let count = self.messages[first..].iter().take_while(|message| message.sequence == sequence).count();
        &mut self.messages[first..first + count]
    }

    fn settle(&mut self, sequence: Sequence, queue: u64) {
        if let Some(rows) = self.moved.get_mut(&sequence) {
            return rows.retain(|row| row.queue != queue);
        }
        if let Some(row) = self.find(sequence).iter_mut().find(|row| row.queue == queue) {
            row.queue = NOBODY;
        }
    }

    fn finish(mut self) -> Recovered {
        self.messages.retain(|message| message.queue != NOBODY);
        if !self.moved.is_empty() {
            self.messages.extend(self.moved.into_values().flatten());
            self.messages.sort_by_key(|message| message.sequence);
        }
        self.messages.shrink_to_fit();
        self.out.messages = self.messages;
        self.out
    }
}

/// A time to live of no time is one that has run out: so has the shortest.
fn nonzero(ttl_ms: u64) -> TtlMs {
    TtlMs::new(ttl_ms.max(1)).expect("it is at least one")
}
