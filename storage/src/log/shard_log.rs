//! The log of one shard while it runs: group commit, settlements, and space that comes back.
//!
//! Runs on the shard's thread and never waits: [`ShardLog::append`] and [`ShardLog::settle`] fill
//! buffers, [`ShardLog::poll`] takes what the disk has done and gives it the next thing to do.
//!
//! - *Group commit.* One write is in flight at a time; everything that comes meanwhile goes out in the
//!   next one. That needs no timer, and means that a power loss tears at most the last commit.
//! - *Elision.* A message that is settled before its commit was begun is not written.
//! - *Settlements* ride on the next commit, or go alone when they have waited for
//!   [`crate::limits::SETTLE_DELAY_MS`].
//! - *Space.* Segments are given back strictly oldest first, when nothing in them is live. Settlements
//!   stand behind what they settle, so whatever the oldest segment says of older ones does not matter
//!   any more. When the files are more than twice what is live and a constant, what is live in the
//!   oldest one is appended again.
//!
//! - *No message is in memory.* What is live is known by its place only: see [`super::directory`]; a
//!   message comes back from the disk by [`ShardLog::load`].
//!
//! After a failed write nothing is known about the disk: the log is *failed* for good, and nothing more
//! is confirmed.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::commit::{Builder, InFlight};
use super::directory::{Directory, Located, Place, counted_bytes, short_builder, short_segment};
use super::disk::{AlignedBuffer, Completion, Disk};
use super::format::{self, MessageHead, Sequence};
use super::reading::Reading;
use super::recovery::{FoundSegment, Recovered};
use super::space::{Next, Relocation, Segment};
use super::summary::SummaryWriter;
use super::transactions::Transactions;

/// What a log is told when it begins.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Whose log it is.
    pub shard: u32,
    /// Counts the starts of the broker; higher than in every segment that there is.
    pub epoch: u32,
    /// Size of a segment file, in bytes. A commit that is larger gets a segment of its own.
    pub segment_bytes: u64,
    /// A commit is closed when it has this many bytes; one message may make it larger.
    pub commit_bytes: usize,
    /// Settlements are done when they are on stable storage, and not when the kernel has them. Messages say
    /// for themselves.
    pub sync: bool,
    /// How long a commit waits for more to go out with it, counted from its first message, in milliseconds;
    /// at 0 it begins when the last one is done. One that is full, or the broker's last, never waits.
    pub commit_delay_max_ms: u64,
}

/// Queues that have not settled a message.
pub(super) type QueueList = SmallVec<[u64; 4]>;

/// The log cannot be written any more.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the log of shard {shard} cannot be written ({reason}): nothing more is confirmed; check the disk, then start again"
)]
pub struct LogFailed {
    /// Whose log.
    pub shard: u32,
    /// What the system said.
    pub reason: String,
}

/// A settlement: message and queue.
pub type Settlement = (Sequence, u64);

/// Figures of a log, for metrics and checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogCounts {
    /// Messages that some queue has.
    pub messages: u64,
    /// Bytes of their records.
    pub live_bytes: u64,
    /// Bytes of all segment files with commits.
    pub file_bytes: u64,
    /// Commits since the start.
    pub commits: u64,
    /// Messages that were never written, since they were settled first.
    pub elided: u64,
    /// Messages that were appended again to free their segments.
    pub relocated: u64,
    /// Transactions that are prepared and not resolved.
    pub prepared: u64,
    /// Decisions that are kept.
    pub decisions: u64,
}

/// See the module.
pub struct ShardLog<D> {
    pub(super) disk: D,
    pub(super) options: LogOptions,
    pub(super) now_ms: u64,
    pub(super) directory: Directory,
    /// The queues that still have a message, of messages that were appended for more than one.
    pub(super) shared: FxHashMap<Sequence, QueueList>,
    /// Oldest first; the last one is written to once this start has begun one.
    pub(super) segments: VecDeque<Segment>,
    pub(super) last_segment: u64,
    pub(super) began_segment: bool,
    pub(super) next: Next,
    /// Why the last preparation failed, and when to try again.
    pub(super) no_space: Option<(String, u64)>,
    pub(super) relocation: Relocation,
    pub(super) reading: Reading,
    /// Of the segment that is written to.
    pub(super) summary: SummaryWriter,
    pub(super) builders: VecDeque<Builder>,
    pub(super) next_builder: u64,
    /// All builders before this one are on disk, or needed no write.
    pub(super) builders_done: u64,
    /// Millions, when a long queue goes: they are taken from the front.
    pub(super) settled: VecDeque<Settlement>,
    /// Since when something waits to ride on a commit.
    pub(super) settled_since_ms: u64,
    pub(super) transactions: Transactions,
    pub(super) flushing: bool,
    pub(super) in_flight: Option<InFlight>,
    pub(super) spare: Vec<AlignedBuffer>,
    pub(super) next_sequence: Sequence,
    pub(super) committed: Sequence,
    pub(super) last_commit: u64,
    /// The last commit of this start that is on stable storage, and all before it.
    pub(super) last_synced: u64,
    /// Settlements that are on disk, since last asked.
    pub(super) written: Vec<Settlement>,
    pub(super) failed: Option<LogFailed>,
    pub(super) counts: LogCounts,
}

impl<D: Disk> ShardLog<D> {
    /// A log that goes on behind what was recovered, in a new segment.
    pub fn new(disk: D, options: LogOptions, recovered: Recovered) -> ShardLog<D> {
        // A log may be opened twice in one start.
        let first = format::first_sequence(options.epoch).max(recovered.last_sequence);
        let mut log = ShardLog {
            disk,
            now_ms: 0,
            directory: recovered.directory,
            shared: recovered.shared,
            segments: VecDeque::new(),
            last_segment: recovered.last_segment,
            began_segment: false,
            next: Next::Missing,
            no_space: None,
            relocation: Relocation::Idle,
            reading: Reading::default(),
            summary: SummaryWriter::default(),
            builders: VecDeque::new(),
            next_builder: 0,
            builders_done: 0,
            settled: VecDeque::new(),
            settled_since_ms: 0,
            transactions: Transactions::default(),
            flushing: false,
            in_flight: None,
            spare: Vec::new(),
            next_sequence: first + 1,
            committed: first,
            last_commit: recovered.last_commit,
            last_synced: recovered.last_commit,
            written: Vec::new(),
            failed: None,
            counts: LogCounts { live_bytes: recovered.live_bytes, ..LogCounts::default() },
            options,
        };
        for &unused in &recovered.unused {
            log.disk.remove(unused);
        }
        for found in &recovered.segments {
            let FoundSegment { segment: number, bytes, used_bytes: used, live, .. } = *found;
            log.push_segment(Segment { number, bytes, used, live });
        }
        log.take_over(recovered.undecided);
        log.maintain();
        log
    }

    /// Appends a message for these queues, of which there is at least one. Its content is `parts`, one
    /// behind the other. When [`Self::committed`] is at or past its name, which is given, the kernel has it;
    /// with `sync`, stable storage.
    pub fn append(
        &mut self,
        published_ms: u64,
        ttl_ms: Option<u64>,
        sync: bool,
        queues: impl ExactSizeIterator<Item = u64> + Clone,
        parts: &[&[u8]],
    ) -> Sequence {
        let head = MessageHead { sequence: self.next_sequence, published_ms, ttl_ms, spilled: false };
        if queues.len() > 1 {
            self.shared.insert(head.sequence, queues.clone().collect());
        }
        self.append_first(&head, sync, queues, parts);
        head.sequence
    }

    /// Appends a message that is only to be out of memory, until it is settled or the process ends. It can
    /// be loaded when [`Self::committed`] is at or past its name.
    pub fn spill(&mut self, parts: &[&[u8]]) -> Sequence {
        let head = MessageHead { sequence: self.next_sequence, published_ms: 0, ttl_ms: None, spilled: true };
        self.append_first(&head, false, std::iter::empty(), parts);
        head.sequence
    }

    fn append_first(
        &mut self,
        head: &MessageHead,
        sync: bool,
        queues: impl ExactSizeIterator<Item = u64>,
        parts: &[&[u8]],
    ) {
        let content: usize = parts.iter().map(|part| part.len()).sum();
        self.builder_for(format::message_bytes(queues.len(), content));
        self.append_to_last(head, sync, queues, parts);
    }

    /// Appends to the last builder, whatever its size: what belongs together is in one commit.
    pub(super) fn append_to_last(
        &mut self,
        head: &MessageHead,
        sync: bool,
        queues: impl ExactSizeIterator<Item = u64>,
        parts: &[&[u8]],
    ) {
        self.next_sequence += 1;
        let count = queues.len();
        let content: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = format::message_bytes(count, content);
        let builder = self.builders.back_mut().expect("a builder was just asked for");
        let place = builder.put(bytes, false, |out| format::put_message(out, head, queues, parts));
        builder.last = head.sequence;
        builder.sync |= sync;
        self.directory.set(head.sequence, Located { place, shared: count > 1, spilled: head.spilled });
        self.counts.live_bytes += u64::from(counted_bytes(bytes));
    }

    /// A queue is done with a message. False if the message was only here to be out of memory: nobody need
    /// remember that then.
    ///
    /// # Panics
    /// When no such message is live.
    pub fn settle(&mut self, sequence: Sequence, queue: u64) -> bool {
        let located = self.directory.get(sequence).expect("a live message is settled");
        let elided = self.settle_located(located, sequence, queue);
        match (located.spilled, elided) {
            (true, _) => {}
            // Nothing needs to be said of it.
            (false, true) => self.written.push((sequence, queue)),
            (false, false) => self.note_settled((sequence, queue)),
        }
        !located.spilled
    }

    /// A queue is done with a message that is there. True if it was never written for this queue.
    #[inline(always)]
    pub(super) fn settle_located(&mut self, located: Located, sequence: Sequence, queue: u64) -> bool {
        let last = !located.shared || self.unshare(sequence, queue);
        let elided = matches!(located.place, Place::Builder { relocated: false, .. });
        if last {
            self.directory.remove(sequence);
            self.take_out(located);
            self.counts.elided += u64::from(elided);
        } else if let Place::Builder { builder, offset, .. } = located.place {
            self.builder_mut(builder).record(offset).strike(queue);
        }
        elided
    }

    /// Nobody has a message any more: its record is not written, or need not be kept.
    #[inline(always)]
    pub(super) fn take_out(&mut self, located: Located) {
        let bytes = match located.place {
            Place::Builder { builder, offset, .. } => {
                let builder = self.builder_mut(builder);
                builder.live -= 1;
                counted_bytes(builder.record(offset).bytes())
            }
            Place::Segment { segment, bytes, .. } => {
                let segment = self.full_number(segment);
                self.segment_mut(segment).expect("a live message's segment is kept").live -= 1;
                bytes
            }
        };
        self.counts.live_bytes -= u64::from(bytes);
    }

    /// One queue less has a message that several had. True if it was the last one.
    fn unshare(&mut self, sequence: Sequence, queue: u64) -> bool {
        let queues = self.shared.get_mut(&sequence).expect("a shared message's queues are known");
        let at = queues.iter().position(|&other| other == queue).expect("a queue settles a message once");
        queues.swap_remove(at);
        let last = queues.is_empty();
        if last {
            self.shared.remove(&sequence);
        }
        last
    }

    pub(super) fn builder_mut(&mut self, short: u32) -> &mut Builder {
        let first = self.builders.front().expect("a builder is there until its commit begins").number;
        let index = short_builder(u64::from(short).wrapping_sub(first));
        &mut self.builders[index as usize]
    }

    fn note_settled(&mut self, settlement: Settlement) {
        self.note_rider();
        self.settled.push_back(settlement);
    }

    /// Something is about to wait for a commit to ride on.
    pub(super) fn note_rider(&mut self) {
        if self.settled.is_empty() && !self.transactions.is_ending() {
            self.settled_since_ms = self.now_ms;
        }
    }

    /// The message is only here to be out of memory.
    ///
    /// # Panics
    /// When no such message is live.
    pub fn is_spilled(&self, sequence: Sequence) -> bool {
        self.directory.get(sequence).expect("it is asked of live messages").spilled
    }

    /// Takes what the disk has done since, and gives it more to do. To be called in every turn;
    /// `now_ms` counts from any moment.
    ///
    /// # Errors
    /// When a commit could not be written. The log stays failed.
    pub fn poll(&mut self, now_ms: u64) -> Result<(), LogFailed> {
        self.now_ms = now_ms;
        while let Some(completion) = self.disk.poll() {
            match completion {
                Completion::Written(buffer, result) => self.written(buffer, result),
                Completion::Prepared(segment, result) => self.prepared(segment, result),
                // Nothing but a whole segment is read from its header on.
                Completion::Read(segment, 0, result) => self.read(segment, result),
                Completion::Read(segment, offset, result) => self.chunk_read(segment, offset, result),
            }
        }
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        self.relocate();
        self.begin_commit();
        self.maintain();
        Ok(())
    }

    /// Everything up to this is as durable as configured.
    pub fn committed(&self) -> Sequence {
        self.committed
    }

    /// Settlements that are on disk since this was last called, or that need not be.
    pub fn take_written_settlements(&mut self) -> impl Iterator<Item = Settlement> + '_ {
        self.written.drain(..)
    }

    /// A commit is on its way to the disk.
    pub fn is_writing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// When the commit that is being held back is to begin, if one is, by the clock of [`Self::poll`].
    pub fn commit_due_ms(&self) -> Option<u64> {
        let front = self.builders.front().filter(|builder| !builder.is_void())?;
        let due_ms = front.since_ms + self.options.commit_delay_max_ms;
        let held = self.in_flight.is_none() && self.builders.len() == 1 && !self.flushing;
        (held && self.now_ms < due_ms).then_some(due_ms)
    }

    /// Nothing waits to be written, settlements and resolutions included.
    pub fn is_idle(&self) -> bool {
        let riders = !self.settled.is_empty() || self.transactions.is_ending();
        self.in_flight.is_none() && !riders && self.builders.iter().all(Builder::is_void)
    }

    /// From now on settlements do not wait for a commit to ride on: the broker is about to end.
    pub fn flush(&mut self) {
        self.flushing = true;
    }

    /// Bytes that wait to be written.
    pub fn backlog_bytes(&self) -> u64 {
        self.builders.iter().map(|builder| builder.buffer.len() as u64).sum()
    }

    /// Settlements that wait to be written.
    pub fn waiting_settlements(&self) -> usize {
        self.settled.len()
    }

    /// Why no further segment can be had, if so: what is appended waits. Tried again each second.
    pub fn out_of_space(&self) -> Option<&str> {
        self.no_space.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// What the log holds.
    pub fn counts(&self) -> LogCounts {
        let transactions = &self.transactions;
        let (prepared, decisions) = (transactions.prepared() as u64, transactions.decisions() as u64);
        LogCounts { messages: self.directory.len(), prepared, decisions, ..self.counts }
    }

    /// The disk.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    #[inline]
    pub(super) fn segment_mut(&mut self, number: u64) -> Option<&mut Segment> {
        let at = self.segments.partition_point(|segment| segment.number < number);
        self.segments.get_mut(at).filter(|segment| segment.number == number)
    }

    /// The number of a segment that a place names.
    pub(super) fn full_number(&self, short: u32) -> u64 {
        let first = self.segments.front().expect("a live message is in a segment").number;
        first + u64::from(short_segment(u64::from(short).wrapping_sub(first)))
    }

    /// Appends a message again, for the queues that still have it.
    pub(super) fn append_again(
        &mut self,
        head: &MessageHead,
        located: Located,
        queues: &[u64],
        content: &[u8],
    ) {
        self.builder_for(format::message_bytes(queues.len(), content.len()));
        self.append_again_to_last(head, located, queues, content);
    }

    /// As [`Self::append_to_last`].
    pub(super) fn append_again_to_last(
        &mut self,
        head: &MessageHead,
        located: Located,
        queues: &[u64],
        content: &[u8],
    ) {
        let Place::Segment { bytes: former, .. } = located.place else {
            unreachable!("it was read from one")
        };
        let bytes = format::message_bytes(queues.len(), content.len());
        let builder = self.builders.back_mut().expect("a builder was just asked for");
        let place = builder.put(bytes, true, |out| {
            format::put_message(out, head, queues.iter().copied(), &[content]);
        });
        // The copy on stable storage is about to be given up.
        builder.sync |= !located.spilled;
        self.directory.set(head.sequence, Located { place, ..located });
        self.counts.live_bytes -= u64::from(former);
        self.counts.live_bytes += u64::from(counted_bytes(bytes));
        self.counts.relocated += 1;
    }
}
