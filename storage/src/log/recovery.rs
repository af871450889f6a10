//! Reading a log back: what is live in it, where it goes on, and what is damaged.
//!
//! The commits of all segments are one row, numbered without a gap. The row ends where no valid commit
//! follows: what lies behind was being written when the power went, and was never confirmed. A gap
//! *before* a later commit whose frontier is past it is damage: it is reported with its place, and
//! everything else is kept.

use std::io;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::format::{
    BLOCK_BYTES, BadHeader, COMMIT_HEADER_BYTES, CommitHeader, MessageHead, Record, SegmentHeader, Sequence,
    padded, read_records,
};

/// A message that is still in some queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveMessage {
    /// Its name and times.
    pub head: MessageHead,
    /// Queues that have not settled it.
    pub queues: SmallVec<[u64; 2]>,
    /// Queues that have.
    pub settled: Vec<u64>,
    /// Opaque to the log.
    pub content: Box<[u8]>,
    /// The segment that it is in, the last one if it was moved.
    pub segment: u64,
    /// Bytes of its record.
    pub bytes: u32,
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
    /// Live messages, in the order of their sequences.
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
pub fn recover(
    shard: u32,
    segments: &[u64],
    mut read: impl FnMut(u64) -> io::Result<Vec<u8>>,
) -> Result<Recovered, RecoveryError> {
    let mut reading = Reading::default();
    for &segment in segments {
        let bytes = read(segment).map_err(|source| RecoveryError::Unreadable { segment, source })?;
        reading.read_segment(shard, segment, &bytes)?;
    }
    Ok(reading.finish())
}

#[derive(Default)]
struct Reading {
    out: Recovered,
    /// In ascending order, as they were appended; settled ones have no queues and no content any more.
    messages: Vec<LiveMessage>,
    /// Messages that were appended again, and whose first copies are gone.
    moved: FxHashMap<Sequence, LiveMessage>,
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
            self.note_gap(&commit);
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

    fn note_gap(&mut self, commit: &CommitHeader) {
        if self.out.last_commit == 0 {
            // What precedes the oldest segment is not needed.
            (self.out.last_commit, self.end) =
                (commit.first_commit - 1, (commit.segment, BLOCK_BYTES as u64));
        }
        let (last, (segment, offset)) = (self.out.last_commit, self.end);
        if commit.commit == last + 1 || commit.frontier <= last {
            return;
        }
        let missing = commit.commit - last - 1;
        let what = format!("{missing} commits that were on disk cannot be read (after commit {last})");
        self.out.damage.push(Damage { segment, offset, what });
    }

    fn take_records(&mut self, segment: u64, offset: u64, payload: &[u8]) -> Result<(), RecoveryError> {
        for record in read_records(payload) {
            match record.map_err(|source| RecoveryError::Unknown { segment, offset, source })? {
                Record::Message { head, queues, content } => {
                    let queues = SmallVec::from_vec(queues);
                    let bytes = super::format::message_bytes(queues.len(), content.len()) as u32;
                    self.out.last_sequence = self.out.last_sequence.max(head.sequence);
                    let (settled, content) = (Vec::new(), content.into());
                    self.enter(LiveMessage { head, queues, settled, content, segment, bytes });
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
    fn enter(&mut self, message: LiveMessage) {
        let sequence = message.head.sequence;
        if self.messages.last().is_none_or(|last| last.head.sequence < sequence) {
            self.messages.push(message);
        } else {
            match self.find(sequence) {
                Some(former) => *former = message,
                None => drop(self.moved.insert(sequence, message)),
            }
        }
    }

    fn find(&mut self, sequence: Sequence) -> Option<&mut LiveMessage> {
        let at = self.messages.binary_search_by_key(&sequence, |message| message.head.sequence).ok()?;
        Some(&mut self.messages[at])
    }

    fn settle(&mut self, sequence: Sequence, queue: u64) {
        if self.moved.contains_key(&sequence) {
            let message = self.moved.get_mut(&sequence).expect("it was just found");
            if message.settle(queue) {
                self.moved.remove(&sequence);
            }
        } else if let Some(message) = self.find(sequence)
            && message.settle(queue)
        {
            (message.content, message.settled) = (Box::default(), Vec::new());
        }
    }

    fn finish(mut self) -> Recovered {
        self.messages.retain(|message| !message.queues.is_empty());
        self.messages.extend(self.moved.into_values());
        self.messages.sort_by_key(|message| message.head.sequence);
        self.out.messages = self.messages;
        self.out
    }
}

impl LiveMessage {
    /// A queue has settled it. True if no other has it.
    fn settle(&mut self, queue: u64) -> bool {
        if let Some(at) = self.queues.iter().position(|&other| other == queue) {
            self.queues.remove(at);
            self.settled.push(queue);
        }
        self.queues.is_empty()
    }
}
