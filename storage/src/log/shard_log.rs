//! The log of one shard while it runs: group commit, settlements, and space that comes back.
//!
//! Runs on the shard's thread and never waits: [`ShardLog::append`] and [`ShardLog::settle`] fill
//! buffers, [`ShardLog::poll`] takes what the disk has done and gives it the next thing to do.
//!
//! - *Group commit.* One write is in flight at a time; everything that comes meanwhile goes out in the
//!   next one. That needs no timer, and means that a power loss tears at most the last commit.
//! - *Elision.* A message that is settled before its commit was begun is not written.
//! - *Settlements* ride on the next commit, or go alone when they have waited for
//!   [`SETTLE_DELAY_MS`].
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
use std::io;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::directory::{Directory, Located, Place, counted_bytes, short_builder, short_segment};
use super::disk::{AlignedBuffer, Completion, Disk};
use super::format::{
    self, BLOCK_BYTES, COMMIT_HEADER_BYTES, CommitHeader, MessageHead, RecordInPlace, SegmentHeader,
    Sequence, padded,
};
use super::reading::Reading;
use super::recovery::{LiveMessage, Recovered};
use super::space::{Next, Relocation, Segment};
use super::summary::SummaryWriter;
use crate::limits::{SETTLE_DELAY_MS, SETTLEMENTS_PER_COMMIT_MAX};

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
}

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

/// A commit that is being put together.
#[derive(Debug)]
pub(super) struct Builder {
    pub number: u64,
    /// Room for the header, then records.
    pub buffer: AlignedBuffer,
    /// Records that some queue has.
    live: u32,
    /// The last message that was appended for the first time.
    last: Sequence,
    /// A message in it is to be on stable storage.
    sync: bool,
}

impl Builder {
    fn put(&mut self, bytes: usize, relocated: bool, write: impl FnOnce(&mut Vec<u8>)) -> Place {
        let offset = u32::try_from(self.buffer.len()).expect("a commit is below 4 GiB");
        self.buffer.append(bytes, write);
        self.live += 1;
        Place::Builder { builder: short_builder(self.number), offset, relocated }
    }

    /// The record that begins at this offset.
    fn record(&mut self, offset: u32) -> RecordInPlace<'_> {
        RecordInPlace(&mut self.buffer.as_mut_slice()[offset as usize..])
    }

    /// Nothing in it must be written.
    fn is_void(&self) -> bool {
        self.live == 0
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    builder: Option<u64>,
    last: Sequence,
    commit: u64,
    settled: Vec<Settlement>,
    sync: bool,
    /// Where it is being written.
    pub segment: u64,
    pub offset: u64,
}

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
}

/// See the module.
pub struct ShardLog<D> {
    pub(super) disk: D,
    pub(super) options: LogOptions,
    pub(super) now_ms: u64,
    pub(super) directory: Directory,
    /// The queues that still have a message, of messages that were appended for more than one.
    pub(super) shared: FxHashMap<Sequence, SmallVec<[u64; 4]>>,
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
    summary: SummaryWriter,
    pub(super) builders: VecDeque<Builder>,
    pub(super) next_builder: u64,
    /// All builders before this one are on disk, or needed no write.
    pub(super) builders_done: u64,
    settled: Vec<Settlement>,
    settled_since_ms: u64,
    flushing: bool,
    pub(super) in_flight: Option<InFlight>,
    spare: Vec<AlignedBuffer>,
    next_sequence: Sequence,
    committed: Sequence,
    last_commit: u64,
    /// The last commit of this start that is on stable storage, and all before it.
    last_synced: u64,
    /// Settlements that are on disk, since last asked.
    written: Vec<Settlement>,
    failed: Option<LogFailed>,
    pub(super) counts: LogCounts,
}

impl<D: Disk> ShardLog<D> {
    /// A log that goes on behind what was recovered, in a new segment.
    pub fn new(disk: D, options: LogOptions, recovered: &Recovered) -> ShardLog<D> {
        // A log may be opened twice in one start.
        let first = format::first_sequence(options.epoch).max(recovered.last_sequence);
        let mut log = ShardLog {
            disk,
            now_ms: 0,
            directory: Directory::default(),
            shared: FxHashMap::default(),
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
            settled: Vec::new(),
            settled_since_ms: 0,
            flushing: false,
            in_flight: None,
            spare: Vec::new(),
            next_sequence: first + 1,
            committed: first,
            last_commit: recovered.last_commit,
            last_synced: recovered.last_commit,
            written: Vec::new(),
            failed: None,
            counts: LogCounts::default(),
            options,
        };
        for &unused in &recovered.unused {
            log.disk.remove(unused);
        }
        for found in &recovered.segments {
            log.push_segment(Segment::new(found.segment, found.bytes, found.used_bytes));
        }
        for message in recovered.messages.chunk_by(|one, other| one.sequence == other.sequence) {
            log.adopt(message);
        }
        log.maintain();
        log
    }

    /// Enters a message that was recovered: a row for each queue that has it.
    fn adopt(&mut self, rows: &[LiveMessage]) {
        let LiveMessage { sequence, segment, block, bytes, shared, .. } = rows[0];
        let bytes = counted_bytes(bytes as usize);
        let place = Place::Segment { segment: short_segment(segment), block, bytes };
        self.directory.set(sequence, Located { place, shared, spilled: false });
        if shared {
            self.shared.insert(sequence, rows.iter().map(|row| row.queue).collect());
        }
        self.counts.live_bytes += u64::from(bytes);
        self.segment_mut(segment).expect("a recovered message is in a recovered segment").live += 1;
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
        self.next_sequence += 1;
        let count = queues.len();
        let content: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = format::message_bytes(count, content);
        let builder = self.builder_for(bytes);
        let place = builder.put(bytes, false, |out| format::put_message(out, head, queues, parts));
        builder.last = head.sequence;
        builder.sync |= sync;
        self.directory.set(head.sequence, Located { place, shared: count > 1, spilled: head.spilled });
        self.counts.live_bytes += u64::from(counted_bytes(bytes));
    }

    /// A queue is done with a message. For a spilled one the queue is nobody's.
    ///
    /// # Panics
    /// When no such message is live.
    pub fn settle(&mut self, sequence: Sequence, queue: u64) {
        let located = self.directory.get(sequence).expect("a live message is settled");
        let last = !located.shared || self.unshare(sequence, queue);
        if last {
            self.directory.remove(sequence);
        }
        match located.place {
            Place::Builder { builder, offset, relocated } => {
                self.settle_in_builder(builder, offset, queue, last);
                if !relocated {
                    // It was never written for this queue: nothing needs to be said of it.
                    self.counts.elided += u64::from(last);
                    self.written.push((sequence, queue));
                    return;
                }
            }
            Place::Segment { segment, bytes, .. } if last => {
                self.counts.live_bytes -= u64::from(bytes);
                let segment = self.full_number(segment);
                self.segment_mut(segment).expect("a live message's segment is kept").live -= 1;
            }
            Place::Segment { .. } => {}
        }
        if !located.spilled {
            self.note_settled((sequence, queue));
        }
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

    /// The record is not written, or not for this queue.
    fn settle_in_builder(&mut self, builder: u32, offset: u32, queue: u64, last: bool) {
        let builder = self.builder_mut(builder);
        let mut record = builder.record(offset);
        if last {
            let bytes = counted_bytes(record.bytes());
            builder.live -= 1;
            self.counts.live_bytes -= u64::from(bytes);
        } else {
            record.strike(queue);
        }
    }

    pub(super) fn builder_mut(&mut self, short: u32) -> &mut Builder {
        let first = self.builders.front().expect("a builder is there until its commit begins").number;
        let index = short_builder(u64::from(short).wrapping_sub(first));
        &mut self.builders[index as usize]
    }

    fn note_settled(&mut self, settlement: Settlement) {
        if self.settled.is_empty() {
            self.settled_since_ms = self.now_ms;
        }
        self.settled.push(settlement);
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

    /// Nothing waits to be written, settlements included.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.settled.is_empty() && self.builders.iter().all(Builder::is_void)
    }

    /// From now on settlements do not wait for a commit to ride on: the broker is about to end.
    pub fn flush(&mut self) {
        self.flushing = true;
    }

    /// Bytes that wait to be written.
    pub fn backlog_bytes(&self) -> u64 {
        self.builders.iter().map(|builder| builder.buffer.len() as u64).sum()
    }

    /// Why no further segment can be had, if so: what is appended waits. Tried again each second.
    pub fn out_of_space(&self) -> Option<&str> {
        self.no_space.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// What the log holds.
    pub fn counts(&self) -> LogCounts {
        LogCounts { messages: self.directory.len(), ..self.counts }
    }

    /// The disk, for tests.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

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
        let Place::Segment { bytes: former, .. } = located.place else {
            unreachable!("it was read from one")
        };
        let bytes = format::message_bytes(queues.len(), content.len());
        let builder = self.builder_for(bytes);
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

    fn new_buffer(&mut self) -> AlignedBuffer {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.append(COMMIT_HEADER_BYTES, |out| out.extend_from_slice(&[0; COMMIT_HEADER_BYTES]));
        buffer
    }

    fn builder_for(&mut self, bytes: usize) -> &mut Builder {
        let most = self.options.commit_bytes;
        let fits = |builder: &Builder| {
            builder.buffer.len() <= COMMIT_HEADER_BYTES || builder.buffer.len() + bytes <= most
        };
        if !self.builders.back().is_some_and(fits) {
            let buffer = self.new_buffer();
            let (number, last) = (self.next_builder, self.next_sequence - 1);
            self.next_builder += 1;
            self.builders.push_back(Builder { number, buffer, live: 0, last, sync: false });
        }
        self.builders.back_mut().expect("one was just added")
    }

    fn begin_commit(&mut self) {
        if self.in_flight.is_some() || self.failed.is_some() {
            return;
        }
        // Messages that are all settled need no write, and count as written.
        while self.builders.front().is_some_and(Builder::is_void) {
            let void = self.builders.pop_front().expect("it was just looked at");
            self.builder_done(void.number, void.last);
            self.keep_buffer(void.buffer);
        }
        let settle = self.settled.len() >= SETTLEMENTS_PER_COMMIT_MAX
            || (!self.settled.is_empty()
                && (self.flushing || self.now_ms >= self.settled_since_ms + SETTLE_DELAY_MS));
        if self.builders.is_empty() && !settle {
            return;
        }
        let settlements = self.settled.len().min(SETTLEMENTS_PER_COMMIT_MAX);
        let payload = self.builders.front().map_or(COMMIT_HEADER_BYTES, |builder| builder.buffer.len());
        let room = padded(payload + format::settled_bytes(settlements)) as u64;
        let Some(begins) = self.make_room(room) else { return };
        self.write_commit(begins, settlements);
    }

    /// Makes the last segment one that has this much room. None if it must be waited for; else whether
    /// the segment begins with this commit.
    fn make_room(&mut self, room: u64) -> Option<bool> {
        let active = self.segments.back().filter(|_| self.began_segment);
        if active.is_some_and(|active| active.bytes - active.used >= room) {
            return Some(false);
        }
        let needed = room + BLOCK_BYTES as u64;
        match self.next {
            Next::Ready(bytes) if bytes >= needed => {
                self.close_segment();
                self.last_segment += 1;
                (self.next, self.began_segment) = (Next::Missing, true);
                self.push_segment(Segment::new(self.last_segment, bytes, 0));
                Some(true)
            }
            Next::Asked(_) => None,
            Next::Missing | Next::Ready(_) => {
                self.prepare_next(needed.max(self.options.segment_bytes), None);
                None
            }
        }
    }

    /// The last segment is not written to any more: what is in it is written down beside it.
    fn close_segment(&mut self) {
        if self.began_segment {
            let segment = self.segments.back().expect("one was begun");
            let summary =
                self.summary.finish(self.options.shard, segment.number, segment.used, self.last_commit);
            self.disk.summarize(segment.number, summary);
        }
    }

    fn write_commit(&mut self, begins: bool, settlements: usize) {
        let builder = self.builders.pop_front();
        let (number, last, mut sync) = match &builder {
            Some(builder) => (Some(builder.number), builder.last, builder.sync),
            None => (None, self.committed, false),
        };
        let segment = self.segments.back_mut().expect("there is room in a segment");
        let (segment, offset) = (segment.number, segment.used);
        if begins {
            self.summary.begin(self.last_commit + 1);
        }
        let header_bytes = if begins { BLOCK_BYTES as u64 } else { 0 };
        let block = ((offset + header_bytes) / BLOCK_BYTES as u64) as u32;
        let (mut buffer, mut records) = match builder {
            Some(builder) => self.place(builder, segment, block),
            None => (self.new_buffer(), 0),
        };
        let settled: Vec<Settlement> = self.settled.drain(..settlements).collect();
        if !settled.is_empty() {
            buffer.append(format::settled_bytes(settled.len()), |out| format::put_settled(out, &settled));
            self.summary.settled(&settled);
            (records, sync) = (records + 1, sync || self.options.sync);
        }
        let header = CommitHeader {
            segment,
            first_commit: self.summary.first_commit(),
            commit: self.last_commit + 1,
            frontier: self.last_synced,
            epoch: self.options.epoch,
            payload_bytes: u32::try_from(buffer.len() - COMMIT_HEADER_BYTES)
                .expect("a commit is below 4 GiB"),
            records,
        };
        header.seal(buffer.as_mut_slice());
        buffer.pad_to(padded(buffer.len()));
        if begins {
            buffer = with_segment_header(&self.options, segment, &buffer);
        }
        let active = self.segments.back_mut().expect("there is room in a segment");
        active.used += buffer.len() as u64;
        debug_assert!(active.used <= active.bytes, "there was room for the commit");
        self.in_flight =
            Some(InFlight { builder: number, last, commit: header.commit, settled, sync, segment, offset });
        self.disk.write(segment, offset, buffer, sync);
    }

    /// Closes the gaps of what need not be written, and enters the rest in the segment that it goes to.
    /// Gives the bytes and how many records they are.
    fn place(&mut self, builder: Builder, segment: u64, block: u32) -> (AlignedBuffer, u32) {
        let Builder { number, mut buffer, .. } = builder;
        let (end, mut from, mut to, mut records) =
            (buffer.len(), COMMIT_HEADER_BYTES, COMMIT_HEADER_BYTES, 0);
        let (here, to_segment) = (short_builder(number), short_segment(segment));
        while from < end {
            let record = RecordInPlace(&mut buffer.as_mut_slice()[from..end]);
            let (bytes, sequence) = (record.bytes(), record.sequence());
            let located = self.directory.get(sequence).filter(|located| {
                matches!(located.place, Place::Builder { builder, offset, .. }
                    if builder == here && offset as usize == from)
            });
            if let Some(located) = located {
                let counted = counted_bytes(bytes);
                let place = Place::Segment { segment: to_segment, block, bytes: counted };
                self.directory.set(sequence, Located { place, ..located });
                if !located.spilled {
                    self.summary.message(&record, block);
                }
                if to < from {
                    buffer.as_mut_slice().copy_within(from..from + bytes, to);
                }
                (to, records) = (to + bytes, records + 1);
            }
            from += bytes;
        }
        buffer.truncate(to);
        self.segments.back_mut().expect("there is room in a segment").live += u64::from(records);
        (buffer, records)
    }

    fn written(&mut self, buffer: AlignedBuffer, result: io::Result<()>) {
        let done = self.in_flight.take().expect("only what was given to the disk comes back");
        if let Err(error) = result {
            self.failed = Some(LogFailed { shard: self.options.shard, reason: error.to_string() });
            return;
        }
        self.last_commit = done.commit;
        if done.sync {
            self.last_synced = done.commit;
        }
        self.counts.commits += 1;
        self.written.extend_from_slice(&done.settled);
        if let Some(builder) = done.builder {
            self.builder_done(builder, done.last);
        }
        self.reading.commit_done();
        self.keep_buffer(buffer);
    }

    fn builder_done(&mut self, number: u64, last: Sequence) {
        self.committed = self.committed.max(last);
        self.builders_done = number + 1;
        self.relocation.builder_done(number);
    }

    fn keep_buffer(&mut self, mut buffer: AlignedBuffer) {
        buffer.clear();
        if self.spare.len() < 3 && buffer.capacity() <= 3 * self.options.commit_bytes {
            self.spare.push(buffer);
        }
    }
}

fn with_segment_header(options: &LogOptions, segment: u64, commit: &AlignedBuffer) -> AlignedBuffer {
    let header = SegmentHeader { shard: options.shard, segment, epoch: options.epoch };
    let mut buffer = AlignedBuffer::with_capacity(BLOCK_BYTES + commit.len());
    buffer.append(BLOCK_BYTES, |out| header.write(out));
    buffer.append(commit.len(), |out| out.extend_from_slice(commit.as_slice()));
    buffer
}
