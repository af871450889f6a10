//! Commits of a shard's log: put together while another is under way, closed, written, and done.
//!
//! One write is in flight at a time; everything that comes meanwhile is in builders and goes out next. What
//! was settled before its commit began is left out of it, or struck out where other queues have it.

use std::io;

use super::directory::{Located, Place, counted_bytes, short_builder, short_segment};
use super::disk::{AlignedBuffer, Disk};
use super::format::{
    self, BLOCK_BYTES, COMMIT_HEADER_BYTES, CommitHeader, RecordInPlace, RecordKind, SegmentHeader, Sequence,
    TxStep, padded,
};
use super::shard_log::{LogFailed, LogOptions, Settlement, ShardLog};
use super::space::{Next, Segment};
use super::summary::SummarizedMessage;
use super::transactions::{Ending, GroupSettlements, in_builder, steps};
use super::tx_name::TxName;
use crate::limits::{SETTLE_DELAY_MS, SETTLEMENTS_PER_COMMIT_MAX};

/// A commit that is being put together.
#[derive(Debug)]
pub(super) struct Builder {
    pub number: u64,
    /// Room for the header, then records.
    pub buffer: AlignedBuffer,
    /// Records that some queue has.
    pub live: u32,
    /// The last message that was appended for the first time.
    pub last: Sequence,
    /// A message in it is to be on stable storage.
    pub sync: bool,
    /// When its first message came.
    pub since_ms: u64,
    /// What groups in it settle: see [`super::transactions`].
    pub settled: Vec<Settlement>,
}

impl Builder {
    pub(super) fn put(&mut self, bytes: usize, relocated: bool, write: impl FnOnce(&mut Vec<u8>)) -> Place {
        let offset = u32::try_from(self.buffer.len()).expect("a commit is below 4 GiB");
        self.buffer.append(bytes, write);
        self.live += 1;
        Place::Builder { builder: short_builder(self.number), offset, relocated }
    }

    /// The record that begins at this offset.
    pub(super) fn record(&mut self, offset: u32) -> RecordInPlace<'_> {
        RecordInPlace(&mut self.buffer.as_mut_slice()[offset as usize..])
    }

    /// Nothing in it must be written.
    pub(super) fn is_void(&self) -> bool {
        self.live == 0 && self.settled.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    builder: Option<u64>,
    last: Sequence,
    commit: u64,
    settled: Vec<Settlement>,
    /// Transactions that it resolves.
    pub ending: Vec<Ending>,
    /// Segments that must not go before it is on disk.
    pub pinned: Vec<u64>,
    sync: bool,
    /// Where it is being written.
    pub segment: u64,
    pub offset: u64,
}

impl<D: Disk> ShardLog<D> {
    fn new_buffer(&mut self) -> AlignedBuffer {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.append(COMMIT_HEADER_BYTES, |out| out.extend_from_slice(&[0; COMMIT_HEADER_BYTES]));
        buffer
    }

    pub(super) fn builder_for(&mut self, bytes: usize) -> &mut Builder {
        let most = self.options.commit_bytes;
        let fits = |builder: &Builder| {
            builder.buffer.len() <= COMMIT_HEADER_BYTES || builder.buffer.len() + bytes <= most
        };
        if !self.builders.back().is_some_and(fits) {
            let buffer = self.new_buffer();
            let (number, last) = (self.next_builder, self.next_sequence - 1);
            self.next_builder += 1;
            let since_ms = self.now_ms;
            let settled = Vec::new();
            self.builders.push_back(Builder {
                number,
                buffer,
                live: 0,
                last,
                sync: false,
                since_ms,
                settled,
            });
        }
        self.builders.back_mut().expect("one was just added")
    }

    pub(super) fn begin_commit(&mut self) {
        if self.in_flight.is_some() || self.failed.is_some() {
            return;
        }
        // Messages that are all settled need no write, and count as written.
        while self.builders.front().is_some_and(Builder::is_void) {
            let void = self.builders.pop_front().expect("it was just looked at");
            self.builder_done(void.number, void.last);
            self.keep_buffer(void.buffer);
        }
        if self.commit_due_ms().is_some() {
            return;
        }
        let riders = !self.settled.is_empty() || self.transactions.is_ending();
        let settle = self.settled.len() >= SETTLEMENTS_PER_COMMIT_MAX
            || (riders && (self.flushing || self.now_ms >= self.settled_since_ms + SETTLE_DELAY_MS));
        if self.builders.is_empty() && !settle {
            return;
        }
        let settlements = self.settled.len().min(SETTLEMENTS_PER_COMMIT_MAX);
        let (payload, in_group) = self
            .builders
            .front()
            .map_or((COMMIT_HEADER_BYTES, 0), |builder| (builder.buffer.len(), builder.settled.len()));
        let (resolved, steps) = self.transactions.riders();
        let room = padded(payload + steps + format::settled_bytes(settlements + in_group + resolved)) as u64;
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
                self.push_segment(Segment { number: self.last_segment, bytes, used: 0, live: 0 });
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
        let GroupSettlements { said: mut settled, unsaid, pinned } = self.settle_groups();
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
        settled.extend(self.settled.drain(..settlements));
        let (ending, forgotten) = self.transactions.take_riders();
        if !ending.is_empty() || !forgotten.is_empty() {
            records += self.put_steps(&mut buffer, &ending, &forgotten);
            settled.extend(ending.iter().flat_map(|ending| &ending.settled));
            sync |= ending.iter().any(|ending| ending.sync);
        }
        if !settled.is_empty() {
            buffer.append(format::settled_bytes(settled.len()), |out| format::put_settled(out, &settled));
            self.summary.settled(&settled);
            records += format::settled_records(settled.len()) as u32;
            sync |= self.options.sync;
        }
        settled.extend(unsaid);
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
        self.in_flight = Some(InFlight {
            builder: number,
            last,
            commit: header.commit,
            settled,
            ending,
            pinned,
            sync,
            segment,
            offset,
        });
        self.disk.write(segment, offset, buffer, sync);
    }

    /// Closes the gaps of what need not be written, and enters the rest in the segment that it goes to.
    /// Gives the bytes and how many records they are.
    fn place(&mut self, builder: Builder, segment: u64, block: u32) -> (AlignedBuffer, u32) {
        let Builder { number, mut buffer, .. } = builder;
        let (end, mut from, mut to, mut records) =
            (buffer.len(), COMMIT_HEADER_BYTES, COMMIT_HEADER_BYTES, 0);
        // Records that the segment is kept for, and whether the group that was begun last is one.
        let (mut live, mut in_group) = (0, false);
        while from < end {
            let record = RecordInPlace(&mut buffer.as_mut_slice()[from..end]);
            let bytes = record.bytes();
            let (kept, counts) = if record.is_message() {
                let kept = self.place_message(&record, (number, from), segment, block);
                (kept, kept)
            } else {
                self.place_other(&record, (number, from), segment, &mut in_group)
            };
            live += u64::from(counts);
            if kept {
                if to < from {
                    buffer.as_mut_slice().copy_within(from..from + bytes, to);
                }
                (to, records) = (to + bytes, records + 1);
            }
            from += bytes;
        }
        buffer.truncate(to);
        self.segments.back_mut().expect("there is room in a segment").live += live;
        (buffer, records)
    }

    /// Enters what is no message. Gives whether it is written, and whether the segment is kept for it.
    #[cold]
    fn place_other(
        &mut self,
        record: &RecordInPlace<'_>,
        at: (u64, usize),
        segment: u64,
        in_group: &mut bool,
    ) -> (bool, bool) {
        match record.kind() {
            RecordKind::Message => unreachable!("messages have their own way"),
            RecordKind::Settled => {
                if *in_group {
                    self.summary.settled(&record.settlements());
                }
                (*in_group, false)
            }
            RecordKind::Prepared => {
                *in_group = self.place_group_head(record, at, segment);
                (*in_group, *in_group)
            }
            RecordKind::Step => {
                let kept = self.place_decided(record, at, segment);
                (kept, kept)
            }
        }
    }

    /// Enters a message of a builder in the segment. False if nobody has it, or has it there.
    #[inline(always)]
    fn place_message(
        &mut self,
        record: &RecordInPlace<'_>,
        (number, from): (u64, usize),
        segment: u64,
        block: u32,
    ) -> bool {
        let (here, sequence) = (short_builder(number), record.sequence());
        let located = self.directory.get(sequence).filter(|located| {
            matches!(located.place, Place::Builder { builder, offset, .. }
                if builder == here && offset as usize == from)
        });
        let Some(located) = located else { return false };
        let (segment, bytes) = (short_segment(segment), record.bytes());
        let place = Place::Segment { segment, block, bytes: counted_bytes(bytes) };
        self.directory.set(sequence, Located { place, ..located });
        if !located.spilled {
            let (published_ms, ttl_ms) = record.times();
            let bytes = bytes as u32;
            let message = SummarizedMessage { sequence, published_ms, ttl_ms, block, bytes };
            self.summary.message(&message, record.queues());
        }
        true
    }

    /// False if the group is resolved or elsewhere: its messages are as all others then.
    fn place_group_head(
        &mut self,
        head: &RecordInPlace<'_>,
        (number, from): (u64, usize),
        segment: u64,
    ) -> bool {
        let (tx, first) = (head.transaction(), head.first_sequence());
        let kept = self.transactions.place_group(tx, first, in_builder(number, from), segment);
        if kept {
            self.summary.prepared(tx, first, head.count() as u32);
        }
        kept
    }

    /// False if the decision is forgotten or elsewhere.
    fn place_decided(
        &mut self,
        record: &RecordInPlace<'_>,
        (number, from): (u64, usize),
        segment: u64,
    ) -> bool {
        let tx = record.transaction();
        let kept = self.transactions.place_decision(tx, in_builder(number, from), segment);
        if kept {
            self.summary.step(TxStep::Decided, std::iter::once(tx));
        }
        kept
    }

    /// Says what transactions have come to. In front of settlements, which may be of their messages. Gives how
    /// many records that are.
    fn put_steps(&mut self, buffer: &mut AlignedBuffer, ending: &[Ending], forgotten: &[TxName]) -> u32 {
        let [committed, rolled_back] = steps(ending);
        let forgotten = (TxStep::Forgotten, forgotten.iter().copied().collect());
        let mut records = 0;
        for (step, transactions) in [committed, rolled_back, forgotten] {
            if !transactions.is_empty() {
                buffer.append(format::step_bytes(transactions.len()), |out| {
                    format::put_step(out, step, transactions.iter().copied());
                });
                self.summary.step(step, transactions.iter().copied());
                records += 1;
            }
        }
        records
    }

    pub(super) fn written(&mut self, buffer: AlignedBuffer, result: io::Result<()>) {
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
        self.ended(done.ending);
        self.unpin(done.pinned);
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
