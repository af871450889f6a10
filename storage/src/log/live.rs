//! The live messages of a log that was read, in order, with what their queues need to know of them.
//!
//! [`super::recovery`] knows where each is; the rest is read out of the summaries once more, and is nowhere
//! gathered, but for messages that were moved: their copies stand behind younger ones, and are put in place.

use std::num::NonZeroU64;

use super::directory::{Place, short_segment};
use super::format::{BLOCK_BYTES, CommitHeader, NOBODY, Record, Sequence, read_records};
use super::recovery::{FoundSegment, Recovered, SegmentFiles};
use super::summary::{Item, SummarizedMessage, Summary};

/// A message in a queue that has not settled it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveMessage {
    /// The message's name.
    pub sequence: Sequence,
    /// The queue.
    pub queue: u64,
    /// When it was published, in milliseconds since 1970.
    pub published_ms: u64,
    /// Its own time to live, in milliseconds. One of no time is one that has run out: so has the shortest.
    pub ttl_ms: Option<NonZeroU64>,
    /// The segment that it is in, the last one if it was moved.
    pub segment: u64,
    /// The first block of its commit there.
    pub block: u32,
}

/// A summary that was read before cannot be read any more.
#[derive(Debug, thiserror::Error)]
#[error("the summary of segment {segment} of the log is not what it was a moment ago; start again")]
pub struct SummaryGone {
    /// The segment.
    pub segment: u64,
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

impl Recovered {
    /// How many messages are live, those that several queues have counted once.
    pub fn live(&self) -> u64 {
        self.directory.len()
    }

    /// Gives every live message, in the order of their sequences; one that several queues have for each.
    /// `files` are what this was recovered from.
    ///
    /// # Errors
    /// [`SummaryGone`], when the files have changed since.
    pub fn each_live(
        &self,
        files: &impl SegmentFiles,
        mut each: impl FnMut(&LiveMessage),
    ) -> Result<(), SummaryGone> {
        let mut moved = self.moved(files)?;
        moved.sort_by_key(|message| message.sequence);
        let mut moved = moved.into_iter().peekable();
        self.each_current(
            files,
            |_| true,
            |message, was_moved| {
                if was_moved {
                    return;
                }
                while let Some(earlier) = moved.next_if(|moved| moved.sequence < message.sequence) {
                    each(&earlier);
                }
                each(message);
            },
        )?;
        moved.for_each(|message| each(&message));
        Ok(())
    }

    /// Live messages whose copies stand behind younger ones.
    fn moved(&self, files: &impl SegmentFiles) -> Result<Vec<LiveMessage>, SummaryGone> {
        let mut all = Vec::new();
        self.each_current(
            files,
            |found| found.has_moved,
            |message, was_moved| {
                if was_moved {
                    all.push(*message);
                }
            },
        )?;
        Ok(all)
    }

    /// Gives the live messages of these segments as they stand there, and whether a younger one stands
    /// before them. Segments in which nothing is live are passed over: they may be gone.
    fn each_current(
        &self,
        files: &impl SegmentFiles,
        wanted: impl Fn(&FoundSegment) -> bool,
        mut each: impl FnMut(&LiveMessage, bool),
    ) -> Result<(), SummaryGone> {
        let mut highest = 0;
        for found in self.segments.iter().filter(|found| found.live > 0) {
            if !wanted(found) {
                highest = highest.max(found.highest);
                continue;
            }
            let segment = found.segment;
            let beside = if found.summary.is_none() { files.summary(segment) } else { None };
            let summary = found.summary.as_deref().or(beside.as_deref());
            let summary = summary.and_then(|bytes| Summary::read(bytes, self.shard, segment));
            let read = summary.and_then(|summary| {
                summary.each(|item| {
                    let Item::Message(message, queues) = item else { return };
                    let was_moved = message.sequence <= highest;
                    highest = highest.max(message.sequence);
                    self.each_row(segment, &message, queues, |row| each(row, was_moved));
                })
            });
            read.ok_or(SummaryGone { segment })?;
        }
        Ok(())
    }

    /// Gives a message once for each queue that has it, if this is where it is.
    fn each_row(
        &self,
        segment: u64,
        message: &SummarizedMessage,
        queues: &[u64],
        mut each: impl FnMut(&LiveMessage),
    ) {
        let &SummarizedMessage { sequence, published_ms, ttl_ms, block, .. } = message;
        let Some(located) = self.directory.get(sequence) else { return };
        let here = (short_segment(segment), block);
        if !matches!(located.place, Place::Segment { segment, block, .. } if (segment, block) == here) {
            return;
        }
        let left = self.shared.get(&sequence).filter(|_| located.shared);
        let ttl_ms = ttl_ms.map(|ttl_ms| NonZeroU64::new(ttl_ms).unwrap_or(NonZeroU64::MIN));
        for &queue in queues {
            if queue != NOBODY && left.is_none_or(|left| left.contains(&queue)) {
                each(&LiveMessage { sequence, queue, published_ms, ttl_ms, segment, block });
            }
        }
    }
}
