//! Segment files come and go: the next one is prepared ahead, the oldest one is given back or used again,
//! and what is live in a sparse one is appended again.

use super::directory::{Located, Place, short_segment};
use super::disk::{AlignedBuffer, Disk};
use super::format::{
    BLOCK_BYTES, COMMIT_HEADER_BYTES, CommitHeader, MessageHead, NOBODY, Record, Sequence, TxStep, padded,
    read_records,
};
use super::shard_log::ShardLog;
use crate::limits::{NO_SPACE_RETRY_MS, RELOCATION_SCAN_BYTES, SPARE_SEGMENTS};

/// A segment with commits in it.
#[derive(Debug)]
pub(super) struct Segment {
    pub number: u64,
    /// Size of its file.
    pub bytes: u64,
    /// Where the next commit goes.
    pub used: u64,
    /// Messages in it that some queue has, groups that are not resolved on disk, and decisions.
    pub live: u64,
}

/// The next segment's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Missing,
    /// Of this size.
    Asked(u64),
    Ready(u64),
}

/// Appending again what is live in the oldest segment.
#[derive(Debug)]
pub(super) enum Relocation {
    Idle,
    /// The segment is being read.
    Reading(u64),
    /// What is live in it is being appended.
    Moving {
        segment: u64,
        bytes: AlignedBuffer,
        offset: usize,
    },
    /// Everything is appended, and on disk when this builder is.
    Waiting {
        segment: u64,
        builder: u64,
    },
    /// The oldest segment could not be read: nothing is tried with it again.
    Unreadable,
}

impl Relocation {
    /// The segment must be kept, whatever is live in it.
    fn needs(&self, number: u64) -> bool {
        match self {
            Relocation::Idle | Relocation::Unreadable => false,
            Relocation::Reading(segment)
            | Relocation::Moving { segment, .. }
            | Relocation::Waiting { segment, .. } => *segment == number,
        }
    }

    /// A commit is on disk, or needed no write.
    pub fn builder_done(&mut self, number: u64) {
        if let Relocation::Waiting { builder, .. } = self
            && *builder <= number
        {
            *self = Relocation::Idle;
        }
    }
}

/// The queues of a copy of a message that several had. One that has a single queue left still has two places:
/// a settlement of the other queue may stand behind the copy, and is not to be taken for the last one's.
fn as_shared(left: &[u64]) -> Vec<u64> {
    let mut queues = left.to_vec();
    queues.resize(left.len().max(2), NOBODY);
    queues
}

impl<D: Disk> ShardLog<D> {
    pub(super) fn push_segment(&mut self, segment: Segment) {
        self.counts.file_bytes += segment.bytes;
        self.segments.push_back(segment);
    }

    /// Segments that are not written to any more.
    fn closed_segments(&self) -> usize {
        self.segments.len() - usize::from(self.began_segment)
    }

    /// Asks for what the log will need next, and gives back what it does not need.
    pub(super) fn maintain(&mut self) {
        while self.closed_segments() > 0
            && let Some(oldest) = self.segments.front()
            && oldest.live == 0
            && !self.relocation.needs(oldest.number)
        {
            let gone = self.segments.pop_front().expect("it was just looked at");
            self.counts.file_bytes -= gone.bytes;
            self.reading.forget(gone.number);
            if self.next == Next::Missing && gone.bytes == self.options.segment_bytes {
                self.prepare_next(gone.bytes, Some(gone.number));
            } else {
                self.disk.remove(gone.number);
            }
        }
        let half_full = self.segments.back().is_some_and(|active| active.used > active.bytes / 2);
        if self.next == Next::Missing && (half_full || !self.began_segment) {
            self.prepare_next(self.options.segment_bytes, None);
        }
        self.begin_relocation();
    }

    /// Asks for the next segment's file, unless that failed a moment ago.
    pub(super) fn prepare_next(&mut self, bytes: u64, recycled: Option<u64>) {
        if recycled.is_none() && self.no_space.as_ref().is_some_and(|(_, again_ms)| self.now_ms < *again_ms) {
            return;
        }
        self.next = Next::Asked(bytes);
        self.disk.prepare(self.last_segment + 1, bytes, recycled);
    }

    pub(super) fn prepared(&mut self, segment: u64, result: std::io::Result<()>) {
        let Next::Asked(bytes) = self.next else { unreachable!("only what was asked for is prepared") };
        assert_eq!(segment, self.last_segment + 1, "the next segment is prepared");
        match result {
            Ok(()) => (self.next, self.no_space) = (Next::Ready(bytes), None),
            Err(error) => {
                self.next = Next::Missing;
                self.no_space = Some((error.to_string(), self.now_ms + NO_SPACE_RETRY_MS));
            }
        }
    }

    fn begin_relocation(&mut self) {
        let slack = SPARE_SEGMENTS * self.options.segment_bytes;
        if self.closed_segments() == 0 || self.counts.file_bytes <= 2 * self.counts.live_bytes + slack {
            return;
        }
        let &Segment { number: oldest, used, live, .. } = self.segments.front().expect("one is closed");
        // What it is kept for may be nothing but transactions whose end is about to be written.
        if matches!(self.relocation, Relocation::Idle) && live > self.ending_in(oldest) {
            self.relocation = Relocation::Reading(oldest);
            self.disk.read(oldest, 0, used as usize);
        }
    }

    pub(super) fn read(&mut self, number: u64, result: std::io::Result<AlignedBuffer>) {
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(shard = self.options.shard, segment = number, %error, "cannot read a log segment back");
                self.relocation = Relocation::Unreadable;
                return;
            }
        };
        let segment = self.segments.front().expect("a segment that is being read is kept");
        assert_eq!(segment.number, number, "the oldest segment is read");
        self.relocation = Relocation::Moving { segment: number, bytes, offset: BLOCK_BYTES };
    }

    /// The next poll has more of the oldest segment to look through.
    pub fn has_more_to_relocate(&self) -> bool {
        let moving = matches!(self.relocation, Relocation::Moving { .. });
        moving && self.backlog_bytes() <= self.options.commit_bytes as u64 / 4
    }

    /// Appends some of what is live in the oldest segment again: while little else waits to be written, a
    /// commit's worth at a time, and looks through a bounded part of it for that.
    pub(super) fn relocate(&mut self) {
        if !self.has_more_to_relocate() {
            return;
        }
        let relocation = std::mem::replace(&mut self.relocation, Relocation::Idle);
        let Relocation::Moving { segment, bytes, mut offset } = relocation else {
            unreachable!("it was looked at")
        };
        let mut moved = false;
        let end = bytes.len().min(offset + RELOCATION_SCAN_BYTES);
        while offset < end && !moved {
            match CommitHeader::read(&bytes.as_slice()[offset..], segment) {
                None => offset += BLOCK_BYTES,
                Some((_, payload)) => {
                    let block = (offset / BLOCK_BYTES) as u32;
                    offset += padded(COMMIT_HEADER_BYTES + payload.len());
                    moved = self.relocate_commit(segment, block, payload);
                }
            }
        }
        self.relocation = match offset < bytes.len() {
            true => Relocation::Moving { segment, bytes, offset },
            false => {
                self.disk.free(bytes);
                self.relocated(segment)
            }
        };
    }

    /// Appends what is live in a commit again. False if nothing is.
    fn relocate_commit(&mut self, segment: u64, block: u32, payload: &[u8]) -> bool {
        let mut moved = false;
        let mut records = read_records(payload).map_while(Result::ok);
        while let Some(record) = records.next() {
            moved |= match record {
                Record::Message { head, queues, content } => {
                    self.relocate_message((segment, block), &head, queues, content)
                }
                Record::Prepared { tx, first, records: count } => {
                    self.relocate_group((segment, block), (tx, first, count), &mut records)
                }
                Record::Step(TxStep::Decided, decided) => self.relocate_decisions(segment, &decided),
                Record::Step(..) | Record::Settled(_) => false,
            }
        }
        moved
    }

    fn relocate_message(
        &mut self,
        (segment, block): (u64, u32),
        head: &MessageHead,
        mut queues: Vec<u64>,
        content: &[u8],
    ) -> bool {
        let Some(located) = self.is_here(segment, block, head.sequence) else { return false };
        match self.shared.get(&head.sequence).filter(|_| located.shared) {
            Some(left) => queues = as_shared(left),
            None => queues.retain(|&queue| queue != NOBODY),
        }
        self.append_again(head, located, &queues, content);
        self.segment_mut(segment).expect("a segment is kept while it is emptied").live -= 1;
        true
    }

    /// A message, if the record of it that counts is in this commit.
    pub(super) fn is_here(&self, segment: u64, block: u32, sequence: Sequence) -> Option<Located> {
        let here = (short_segment(segment), block);
        self.directory.get(sequence).filter(|located| {
            matches!(located.place, Place::Segment { segment, block, .. } if (segment, block) == here)
        })
    }

    fn relocated(&mut self, segment: u64) -> Relocation {
        let left = self.segment_mut(segment).expect("a segment is kept while it is emptied").live;
        if left > self.ending_in(segment) {
            let shard = self.options.shard;
            tracing::error!(
                shard,
                segment,
                left,
                "messages in a log segment cannot be read back; its space is not freed"
            );
            return Relocation::Unreadable;
        }
        match self.builders_done == self.next_builder {
            true => Relocation::Idle,
            false => Relocation::Waiting { segment, builder: self.next_builder - 1 },
        }
    }
}
