//! Reading a log back: what is live in it, where it goes on, and what is damaged.
//!
//! The commits of all segments are one row, numbered without a gap. The row ends where no valid commit
//! follows: what lies behind was being written when the power went, and was never confirmed. A gap
//! *before* a later commit whose frontier is past it is damage: it is reported with its place, and
//! everything else is kept.
//!
//! A closed segment has a summary beside it: where that is whole, the segment itself is not read. What is
//! damaged in it is noticed then when it is loaded, or by whoever asks for everything to be read.
//!
//! Nothing is gathered on the way but what the running log needs of its messages, which is their places.
//! Whoever needs more of them reads the summaries once more: see [`super::live`].

use std::io;

use rustc_hash::{FxHashMap, FxHashSet};

use super::directory::{Directory, Located, Place, counted_bytes, short_segment};
use super::format::{
    BLOCK_BYTES, BadHeader, COMMIT_HEADER_BYTES, CommitHeader, NOBODY, Record, SegmentHeader, Sequence,
    TxStep, message_bytes, padded, read_records,
};
use super::shard_log::QueueList;
use super::summary::{Item, SummarizedMessage, Summary, SummaryWriter};
use super::tx_name::TxName;
use super::undecided::Undecided;

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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundSegment {
    /// Its number.
    pub segment: u64,
    /// Size of its file.
    pub bytes: u64,
    /// How much of it is used.
    pub used_bytes: u64,
    /// Commits in it.
    pub commits: u64,
    /// Messages in it that some queue has, and what else it is kept for.
    pub live: u64,
    /// The highest sequence of a message in it.
    pub(super) highest: Sequence,
    /// Some messages in it have a lower sequence than one that stands before them: they were moved.
    pub(super) has_moved: bool,
    /// What is in it, if no summary beside it says that.
    pub(super) summary: Option<Vec<u8>>,
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

/// What a log holds. Its messages: [`Recovered::each_live`].
#[derive(Debug, Default)]
pub struct Recovered {
    /// Segments with commits, oldest first.
    pub segments: Vec<FoundSegment>,
    /// Files that hold nothing: prepared, or never got their first commit whole.
    pub unused: Vec<u64>,
    /// What is missing.
    pub damage: Vec<Damage>,
    /// Every queue that a message or a settlement names, whether or not anything of it is live.
    pub queues: FxHashSet<u64>,
    /// The highest sequence of any message, also of settled ones; 0 when there is none.
    pub last_sequence: Sequence,
    /// The number of the last commit; 0 when there is none.
    pub last_commit: u64,
    /// The highest segment number of any file.
    pub last_segment: u64,
    /// Whose log it is.
    pub(super) shard: u32,
    /// About the bytes of all live messages.
    pub(super) live_bytes: u64,
    pub(super) directory: Directory,
    /// Transactions that have not ended.
    pub(super) undecided: Undecided,
    /// Queues that have a live message which more than one had.
    pub(super) shared: FxHashMap<Sequence, QueueList>,
}

/// Reads the log of a shard out of its segments, given in ascending order.
///
/// # Errors
/// [`RecoveryError`], when going on would lose what is there. Damage is none: it is in the result.
pub fn recover(shard: u32, segments: &[u64], files: &impl SegmentFiles) -> Result<Recovered, RecoveryError> {
    let mut reading = Reading { out: Recovered { shard, ..Recovered::default() }, end: (0, 0) };
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

struct Reading {
    out: Recovered,
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
        let mut summary = SummaryWriter::default();
        let (mut commits, mut used, mut offset) = (0, 0, BLOCK_BYTES);
        while offset < bytes.len() {
            let Some((commit, payload)) = CommitHeader::read(&bytes[offset..], segment) else {
                offset += BLOCK_BYTES;
                continue;
            };
            self.note_gap(segment, commit.first_commit, commit.commit, commit.frontier);
            if commits == 0 {
                summary.begin(commit.commit);
            }
            self.summarize(&mut summary, segment, offset, payload)?;
            offset += padded(COMMIT_HEADER_BYTES + payload.len());
            (commits, used) = (commits + 1, offset as u64);
            self.out.last_commit = commit.commit;
            self.end = (segment, used);
        }
        if commits == 0 {
            self.out.unused.push(segment);
            return Ok(());
        }
        let summary = summary.finish(shard, segment, used, self.out.last_commit);
        let mut found = FoundSegment::new(segment, bytes.len() as u64, used, commits);
        let read = Summary::read(&summary, shard, segment).expect("it was just written");
        self.take_items(&mut found, &read).expect("it was just written");
        found.summary = Some(summary);
        self.out.segments.push(found);
        Ok(())
    }

    /// Writes down what is in a commit. Of spilled messages, which ended with their process, only the
    /// sequence is of use: it is not to be given again.
    fn summarize(
        &mut self,
        summary: &mut SummaryWriter,
        segment: u64,
        offset: usize,
        payload: &[u8],
    ) -> Result<(), RecoveryError> {
        let block = (offset / BLOCK_BYTES) as u32;
        let offset = offset as u64;
        for record in read_records(payload) {
            match record.map_err(|source| RecoveryError::Unknown { segment, offset, source })? {
                Record::Message { head, .. } if head.spilled => {
                    self.out.last_sequence = self.out.last_sequence.max(head.sequence);
                }
                Record::Message { head, queues, content } => {
                    let message = SummarizedMessage {
                        sequence: head.sequence,
                        published_ms: head.published_ms,
                        ttl_ms: head.ttl_ms,
                        block,
                        bytes: message_bytes(queues.len(), content.len()) as u32,
                    };
                    summary.message(&message, queues.iter().copied());
                }
                Record::Settled(settled) => summary.settled(&settled),
                Record::Prepared { tx, first, records } => summary.prepared(tx, first, records),
                Record::Step(step, transactions) => summary.step(step, transactions.into_iter()),
            }
        }
        Ok(())
    }

    /// Takes a summary in the place of its segment. None if it makes no sense: the segment is to be read then.
    fn take_summary(&mut self, segment: u64, summary: &Summary<'_>) -> Option<()> {
        let (used_bytes, commits) = (summary.used_bytes, summary.last_commit - summary.first_commit + 1);
        let mut found = FoundSegment::new(segment, used_bytes, used_bytes, commits);
        // What is taken of one that breaks off is in the segment too, and taken again from there.
        self.take_items(&mut found, summary)?;
        self.out.last_segment = self.out.last_segment.max(segment);
        // All commits before its last one were on disk when it was closed.
        self.note_gap(segment, summary.first_commit, summary.first_commit, summary.first_commit - 1);
        self.out.segments.push(found);
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

    fn take_items(&mut self, found: &mut FoundSegment, summary: &Summary<'_>) -> Option<()> {
        let segment = found.segment;
        let queues = summary.each(|item| match item {
            Item::Message(message, queues) => {
                found.has_moved |= message.sequence <= self.out.last_sequence;
                found.highest = found.highest.max(message.sequence);
                self.out.last_sequence = self.out.last_sequence.max(message.sequence);
                self.message(segment, &message, queues);
            }
            Item::Settled(settled) => {
                if !self.out.undecided.takes_settled(settled) {
                    settled.iter().for_each(|&(name, queue)| self.settle(name, queue));
                }
            }
            Item::Prepared { tx, first, records } => {
                self.out.undecided.begin(tx, first, records, segment);
            }
            Item::Step(step, transactions) => {
                transactions.iter().for_each(|&tx| self.step(step, tx, segment));
            }
        })?;
        self.out.queues.extend(queues);
        Some(())
    }

    fn message(&mut self, segment: u64, message: &SummarizedMessage, queues: &[u64]) {
        let &SummarizedMessage { sequence, block, bytes, .. } = message;
        let bytes = counted_bytes(bytes as usize);
        let place = Place::Segment { segment: short_segment(segment), block, bytes };
        let located = Located { place, shared: queues.len() > 1, spilled: false };
        let names = || queues.iter().copied().filter(|&queue| queue != NOBODY).collect();
        if !self.out.undecided.takes_message(sequence, located, names) {
            self.enter(sequence, located, names);
        }
    }

    /// A message that was appended again is read again. No copy is written of what is settled, so the later
    /// one says where the message is, and lists who has it.
    fn enter(&mut self, sequence: Sequence, located: Located, queues: impl FnOnce() -> QueueList) {
        if located.shared {
            self.out.shared.insert(sequence, queues());
        } else if !self.out.shared.is_empty() {
            self.out.shared.remove(&sequence);
        }
        self.out.directory.set(sequence, located);
    }

    fn step(&mut self, step: TxStep, tx: TxName, segment: u64) {
        let undecided = &mut self.out.undecided;
        match step {
            TxStep::Decided => drop(undecided.decisions.insert(tx, segment)),
            TxStep::Forgotten => drop(undecided.decisions.remove(&tx)),
            TxStep::RolledBack => drop(undecided.end(tx)),
            TxStep::Committed => {
                let (messages, settlements) = undecided.end(tx);
                for (sequence, located, queues) in messages {
                    self.enter(sequence, located, || queues);
                }
                settlements.into_iter().for_each(|(name, queue)| self.settle(name, queue));
            }
        }
    }

    fn settle(&mut self, sequence: Sequence, queue: u64) {
        // Of what is settled again, or was in a segment that is gone, nothing is known.
        let Some(located) = self.out.directory.get(sequence) else { return };
        if located.shared
            && let Some(queues) = self.out.shared.get_mut(&sequence)
        {
            queues.retain(|other| *other != queue);
            if !queues.is_empty() {
                return;
            }
            self.out.shared.remove(&sequence);
        }
        self.out.directory.remove(sequence);
    }

    fn finish(mut self) -> Recovered {
        let Recovered { segments, directory, undecided, last_sequence, live_bytes, .. } = &mut self.out;
        // A group without messages has a sequence, too.
        let firsts = undecided.groups.values().flatten().map(|group| group.first);
        *last_sequence = firsts.fold(*last_sequence, Sequence::max);
        let first = segments.first().map_or(0, |found| found.segment);
        let mut live = vec![0_u64; segments.last().map_or(0, |found| (found.segment - first) as usize + 1)];
        let mut count = |located: Located| {
            let Place::Segment { segment, bytes, .. } = located.place else { return };
            live[short_segment(u64::from(segment).wrapping_sub(first)) as usize] += 1;
            *live_bytes += u64::from(bytes);
        };
        directory.each(&mut count);
        // What is prepared is not live, and must not be given back either.
        undecided.messages.values().for_each(|(located, _)| count(*located));
        undecided.segments().for_each(|segment| live[(segment - first) as usize] += 1);
        segments.iter_mut().for_each(|found| found.live = live[(found.segment - first) as usize]);
        self.out
    }
}

impl FoundSegment {
    /// All that was found in it is on stable storage: its summary was written after that.
    pub fn is_stable(&self) -> bool {
        self.summary.is_none()
    }

    fn new(segment: u64, bytes: u64, used_bytes: u64, commits: u64) -> FoundSegment {
        let (live, highest, has_moved, summary) = (0, 0, false, None);
        FoundSegment { segment, bytes, used_bytes, commits, live, highest, has_moved, summary }
    }
}
