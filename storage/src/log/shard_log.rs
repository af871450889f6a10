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
//! After a failed write nothing is known about the disk: the log is *failed* for good, and nothing more
//! is confirmed.

use std::collections::VecDeque;
use std::io;

use rustc_hash::FxHashMap;
use slab::Slab;

use super::disk::{AlignedBuffer, Completion, Disk};
use super::format::{
    self, BLOCK_BYTES, COMMIT_HEADER_BYTES, CommitHeader, MessageHead, SegmentHeader, Sequence, padded,
};
use super::recovery::Recovered;
use super::space::{Next, Relocation, Segment};
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
    /// A commit is done when it is on stable storage, and not when the kernel has it.
    pub sync: bool,
}

/// A message in the log, for as long as some queue has it. Used again afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u32);

/// What [`ShardLog::append`] gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The message is durable when [`ShardLog::committed`] is at or past this.
    pub sequence: Sequence,
    /// Names the message in [`ShardLog::settle`].
    pub handle: Handle,
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In a commit that has not begun: the builder's number, and where in it.
    Building { builder: u64, offset: u32 },
    /// In this segment, on disk or on its way.
    Segment(u64),
}

#[derive(Debug)]
pub(super) struct Message {
    pub sequence: Sequence,
    pub place: Place,
    pub bytes: u32,
    /// Queues that have not settled it.
    pub queues: u32,
    /// It was appended again: a copy in an older segment may be on disk.
    pub relocated: bool,
}

/// A commit that is being put together.
#[derive(Debug)]
struct Builder {
    number: u64,
    /// Room for the header, then records.
    buffer: AlignedBuffer,
    messages: Vec<(Handle, u32)>,
    /// Records that are settled: offset and length.
    elided: Vec<(u32, u32)>,
    /// The last message that was appended for the first time.
    last: Sequence,
}

impl Builder {
    fn put(&mut self, handle: Handle, bytes: usize, write: impl FnOnce(&mut Vec<u8>)) -> Place {
        let offset = u32::try_from(self.buffer.len()).expect("a commit is below 4 GiB");
        self.buffer.append(bytes, write);
        self.messages.push((handle, offset));
        Place::Building { builder: self.number, offset }
    }

    /// Nothing in it must be written.
    fn is_void(&self) -> bool {
        self.elided.len() == self.messages.len()
    }

    /// Closes the gaps of what need not be written.
    fn squeeze(&mut self) {
        if self.elided.is_empty() {
            return;
        }
        self.elided.sort_unstable();
        let end = self.buffer.len();
        let bytes = self.buffer.as_mut_slice();
        let mut to = self.elided[0].0 as usize;
        for (index, &(offset, len)) in self.elided.iter().enumerate() {
            let from = (offset + len) as usize;
            let until = self.elided.get(index + 1).map_or(end, |next| next.0 as usize);
            bytes.copy_within(from..until, to);
            to += until - from;
        }
        self.buffer.truncate(to);
    }
}

#[derive(Debug)]
struct InFlight {
    builder: Option<u64>,
    last: Sequence,
    commit: u64,
    settled: Vec<Settlement>,
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
    pub(super) messages: Slab<Message>,
    /// Oldest first; the last one is written to once this start has begun one.
    pub(super) segments: VecDeque<Segment>,
    pub(super) last_segment: u64,
    pub(super) began_segment: bool,
    pub(super) next: Next,
    /// Why the last preparation failed, and when to try again.
    pub(super) no_space: Option<(String, u64)>,
    pub(super) relocation: Relocation,
    /// Queues that have settled a message that others still have.
    pub(super) partly: FxHashMap<u32, Vec<u64>>,
    builders: VecDeque<Builder>,
    pub(super) next_builder: u64,
    /// All builders before this one are on disk, or needed no write.
    pub(super) builders_done: u64,
    settled: Vec<Settlement>,
    settled_since_ms: u64,
    /// Settlements of messages that others still have, in commits that have not begun: not to be written
    /// before the message is, or reading the log back would bring it to life again.
    early: Vec<(u64, Settlement)>,
    flushing: bool,
    in_flight: Option<InFlight>,
    spare: Vec<AlignedBuffer>,
    next_sequence: Sequence,
    committed: Sequence,
    last_commit: u64,
    /// Settlements that are on disk, since last asked.
    written: Vec<Settlement>,
    failed: Option<LogFailed>,
    pub(super) counts: LogCounts,
}

impl<D: Disk> ShardLog<D> {
    /// A log that goes on behind what was recovered, in a new segment. Gives the handle of each recovered
    /// message, in order.
    pub fn new(disk: D, options: LogOptions, recovered: &Recovered) -> (ShardLog<D>, Vec<Handle>) {
        // A log may be opened twice in one start.
        let first = format::first_sequence(options.epoch).max(recovered.last_sequence);
        let mut log = ShardLog {
            disk,
            now_ms: 0,
            messages: Slab::new(),
            segments: VecDeque::new(),
            last_segment: recovered.last_segment,
            began_segment: false,
            next: Next::Missing,
            no_space: None,
            relocation: Relocation::Idle,
            partly: FxHashMap::default(),
            builders: VecDeque::new(),
            next_builder: 0,
            builders_done: 0,
            settled: Vec::new(),
            settled_since_ms: 0,
            early: Vec::new(),
            flushing: false,
            in_flight: None,
            spare: Vec::new(),
            next_sequence: first + 1,
            committed: first,
            last_commit: recovered.last_commit,
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
        let handles = recovered.messages.iter().map(|message| log.adopt(message)).collect();
        log.maintain();
        (log, handles)
    }

    fn adopt(&mut self, message: &super::LiveMessage) -> Handle {
        let handle = self.messages.insert(Message {
            sequence: message.head.sequence,
            place: Place::Segment(message.segment),
            bytes: message.bytes,
            queues: message.queues.len() as u32,
            relocated: false,
        });
        let handle = Handle(handle as u32);
        if !message.settled.is_empty() {
            self.partly.insert(handle.0, message.settled.clone());
        }
        self.counts.live_bytes += u64::from(message.bytes);
        let segment =
            self.segment_mut(message.segment).expect("a recovered message is in a recovered segment");
        segment.add(handle);
        handle
    }

    /// Appends a message for these queues, of which there is at least one. Its content is `parts`, one
    /// behind the other.
    pub fn append(
        &mut self,
        published_ms: u64,
        ttl_ms: Option<u64>,
        queues: impl ExactSizeIterator<Item = u64>,
        parts: &[&[u8]],
    ) -> Appended {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let head = MessageHead { sequence, published_ms, ttl_ms };
        let count = queues.len();
        let content: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = format::message_bytes(count, content);
        let key = self.messages.vacant_key();
        let handle = Handle(u32::try_from(key).expect("fewer than 2^32 messages on a shard"));
        let builder = self.builder_for(bytes);
        let place = builder.put(handle, bytes, |out| format::put_message(out, &head, queues, parts));
        builder.last = sequence;
        let queues = u32::try_from(count).expect("a record counts its queues in 24 bits");
        self.messages.insert(Message { sequence, place, bytes: bytes as u32, queues, relocated: false });
        self.counts.live_bytes += bytes as u64;
        Appended { sequence, handle }
    }

    /// A queue is done with a message. Gives the message's name.
    ///
    /// # Panics
    /// When the handle names no message.
    pub fn settle(&mut self, handle: Handle, queue: u64) -> Sequence {
        let message = &mut self.messages[handle.0 as usize];
        message.queues -= 1;
        let (sequence, bytes, gone) = (message.sequence, message.bytes, message.queues == 0);
        let (place, relocated) = (message.place, message.relocated);
        if gone {
            self.messages.remove(handle.0 as usize);
            self.partly.remove(&handle.0);
            self.counts.live_bytes -= u64::from(bytes);
        } else {
            self.partly.entry(handle.0).or_default().push(queue);
        }
        match place {
            Place::Building { builder, offset } if gone => {
                let first = self.builders.front().expect("a builder is there until its commit begins").number;
                self.builders[(builder - first) as usize].elided.push((offset, bytes));
                if !relocated {
                    // It was never written: nothing needs to be said of it.
                    self.counts.elided += 1;
                    self.written.push((sequence, queue));
                    return sequence;
                }
            }
            Place::Building { builder, .. } => {
                self.early.push((builder, (sequence, queue)));
                return sequence;
            }
            Place::Segment(segment) if gone => {
                self.segment_mut(segment).expect("a live message's segment is kept").release();
            }
            Place::Segment(_) => {}
        }
        self.note_settled((sequence, queue));
        sequence
    }

    fn note_settled(&mut self, settlement: Settlement) {
        if self.settled.is_empty() {
            self.settled_since_ms = self.now_ms;
        }
        self.settled.push(settlement);
    }

    /// A commit begins, or is skipped: what was settled of its messages may be written from now on.
    fn release_early(&mut self, builder: u64) {
        for (of, settlement) in std::mem::take(&mut self.early) {
            match of <= builder {
                true => self.note_settled(settlement),
                false => self.early.push((of, settlement)),
            }
        }
    }

    /// The name of a message.
    ///
    /// # Panics
    /// When the handle names none.
    pub fn sequence(&self, handle: Handle) -> Sequence {
        self.messages[handle.0 as usize].sequence
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
                Completion::Read(segment, result) => self.read(segment, result),
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
        LogCounts { messages: self.messages.len() as u64, ..self.counts }
    }

    /// The disk, for tests.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    pub(super) fn segment_mut(&mut self, number: u64) -> Option<&mut Segment> {
        let at = self.segments.partition_point(|segment| segment.number < number);
        self.segments.get_mut(at).filter(|segment| segment.number == number)
    }

    /// Appends a message again, for the queues that still have it.
    pub(super) fn append_again(
        &mut self,
        handle: Handle,
        head: &MessageHead,
        queues: &[u64],
        content: &[u8],
    ) {
        let bytes = format::message_bytes(queues.len(), content.len());
        let builder = self.builder_for(bytes);
        let place = builder.put(handle, bytes, |out| {
            format::put_message(out, head, queues.iter().copied(), &[content]);
        });
        let message = &mut self.messages[handle.0 as usize];
        self.counts.live_bytes -= u64::from(message.bytes);
        self.counts.live_bytes += bytes as u64;
        self.counts.relocated += 1;
        (message.place, message.bytes, message.relocated) = (place, bytes as u32, true);
    }

    fn new_buffer(&mut self) -> AlignedBuffer {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.append(COMMIT_HEADER_BYTES, |out| out.extend_from_slice(&[0; COMMIT_HEADER_BYTES]));
        buffer
    }

    fn builder_for(&mut self, bytes: usize) -> &mut Builder {
        let most = self.options.commit_bytes;
        let fits = |builder: &Builder| builder.messages.is_empty() || builder.buffer.len() + bytes <= most;
        if !self.builders.back().is_some_and(fits) {
            let buffer = self.new_buffer();
            let (number, last) = (self.next_builder, self.next_sequence - 1);
            self.next_builder += 1;
            self.builders.push_back(Builder {
                number,
                buffer,
                messages: Vec::new(),
                elided: Vec::new(),
                last,
            });
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
            self.release_early(void.number);
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

    fn write_commit(&mut self, begins: bool, settlements: usize) {
        let builder = self.builders.pop_front();
        if let Some(builder) = &builder
            && !self.early.is_empty()
        {
            self.release_early(builder.number);
        }
        let (number, last) = match &builder {
            Some(builder) => (Some(builder.number), builder.last),
            None => (None, self.committed),
        };
        let (mut buffer, mut records) = match builder {
            Some(builder) => self.place(builder),
            None => (self.new_buffer(), 0),
        };
        let segment = self.segments.back_mut().expect("there is room in a segment");
        let settled: Vec<Settlement> = self.settled.drain(..settlements).collect();
        if !settled.is_empty() {
            buffer.append(format::settled_bytes(settled.len()), |out| format::put_settled(out, &settled));
            records += 1;
        }
        if begins {
            segment.first_commit = self.last_commit + 1;
        }
        let header = CommitHeader {
            segment: segment.number,
            first_commit: segment.first_commit,
            commit: self.last_commit + 1,
            frontier: self.last_commit,
            epoch: self.options.epoch,
            payload_bytes: u32::try_from(buffer.len() - COMMIT_HEADER_BYTES)
                .expect("a commit is below 4 GiB"),
            records,
        };
        header.seal(buffer.as_mut_slice());
        buffer.pad_to(padded(buffer.len()));
        if begins {
            buffer = with_segment_header(&self.options, segment.number, &buffer);
        }
        let offset = segment.used;
        segment.used += buffer.len() as u64;
        debug_assert!(segment.used <= segment.bytes, "there was room for the commit");
        self.in_flight = Some(InFlight { builder: number, last, commit: header.commit, settled });
        self.disk.write(segment.number, offset, buffer, self.options.sync);
    }

    /// Enters a commit's messages in the segment that it goes to; gives its bytes and how many records
    /// they are.
    fn place(&mut self, mut builder: Builder) -> (AlignedBuffer, u32) {
        let segment = self.segments.back_mut().expect("there is room in a segment");
        let mut records = 0;
        for &(handle, offset) in &builder.messages {
            let place = Place::Building { builder: builder.number, offset };
            // Elided ones are gone, and their handles may name others by now.
            let message = self.messages.get_mut(handle.0 as usize).filter(|message| message.place == place);
            let Some(message) = message else { continue };
            message.place = Place::Segment(segment.number);
            segment.add(handle);
            records += 1;
        }
        builder.squeeze();
        (builder.buffer, records)
    }

    fn written(&mut self, buffer: AlignedBuffer, result: io::Result<()>) {
        let done = self.in_flight.take().expect("only what was given to the disk comes back");
        if let Err(error) = result {
            self.failed = Some(LogFailed { shard: self.options.shard, reason: error.to_string() });
            return;
        }
        self.last_commit = done.commit;
        self.counts.commits += 1;
        self.written.extend_from_slice(&done.settled);
        if let Some(builder) = done.builder {
            self.builder_done(builder, done.last);
        }
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
