//! Transactions of a running log: commits that are there as a whole or not at all, in one log or in several.
//!
//! Runs on the shard's thread. One commit has one checksum, so what is in one commit is atomic. What a
//! transaction does in a single log is a group: one commit has all of it, its settlements included. With
//! several logs, each *prepares* a group; when all have it on disk, the coordinator's log *decides*, and that
//! is the moment when the transaction is committed. Each of the others learns it and *resolves* what it has
//! prepared, by a record that rides on its next commit; when all of these are on disk, the decision is
//! *forgotten*. What nobody decided is rolled back.
//!
//! - A group's messages have their places in the directory from the beginning, as all messages; nobody knows
//!   of them before the group is resolved. Its settlements are done when it is resolved, and are written once
//!   more then, since a message may have been moved behind the group in the meantime.
//! - What a group settles may be settled otherwise before, which changes nothing.
//! - Settlements of a group of a single log are done when its commit begins: were they done before, a message
//!   that is not written yet would be left out of a commit in front of the group's. Segments with such messages
//!   are kept until it is on disk.
//! - The segment with the head of a group is kept until the group's resolution is on disk, and that with a
//!   decision until it is forgotten. Both are appended again where they are in the way, so that no log waits
//!   for another one for its space.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::commit::Builder;
use super::directory::{Place, short_builder};
use super::disk::Disk;
use super::format::{self, MessageHead, PREPARED_BYTES, Record, Sequence, TxStep};
use super::shard_log::{Settlement, ShardLog};
use super::tx_name::TxName;
use super::undecided::Undecided;

/// A message of a transaction, as [`ShardLog::append`] has it.
#[derive(Clone, Copy, Debug)]
pub struct TxMessage<'a> {
    /// When it was published, in milliseconds since 1970.
    pub published_ms: u64,
    /// Its own time to live, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Queues that it is for, at least one.
    pub queues: &'a [u64],
    /// Its content, one part behind the other.
    pub parts: &'a [&'a [u8]],
}

impl TxMessage<'_> {
    /// Bytes of its record.
    pub fn record_bytes(&self) -> usize {
        format::message_bytes(self.queues.len(), self.parts.iter().map(|part| part.len()).sum())
    }
}

/// Where a record is that is no message and must be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordPlace {
    /// In a commit that has not begun: the builder's number, cut, and where in its buffer.
    Builder { builder: u32, offset: u32 },
    /// In this segment, on disk or on its way.
    Segment(u64),
}

impl RecordPlace {
    fn of(place: Place) -> RecordPlace {
        let Place::Builder { builder, offset, .. } = place else { unreachable!("builders put in builders") };
        RecordPlace::Builder { builder, offset }
    }
}

/// What is prepared in one commit.
#[derive(Debug)]
pub(super) struct Group {
    /// Its name; its messages have this sequence and those that follow.
    pub first: Sequence,
    pub messages: u64,
    pub settlements: Vec<Settlement>,
    pub place: RecordPlace,
    /// A commit with it has begun.
    pub written: bool,
}

/// A transaction that is not resolved.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub sync: bool,
    pub groups: SmallVec<[Group; 1]>,
}

/// A transaction that is resolved, and whose resolution is not on disk.
#[derive(Debug)]
pub(super) struct Ending {
    tx: TxName,
    committed: bool,
    pub sync: bool,
    /// What it has settled.
    pub settled: Vec<Settlement>,
    /// Segments with heads of its groups.
    segments: SmallVec<[u64; 1]>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    prepared: FxHashMap<TxName, Prepared>,
    decisions: FxHashMap<TxName, RecordPlace>,
    /// Their resolutions go out with the next commit.
    ending: Vec<Ending>,
    /// So does this, which makes no commit on its own: a decision too many does no harm.
    forgotten: Vec<TxName>,
    /// Their resolutions are on disk, since last asked.
    resolved: Vec<TxName>,
}

impl Transactions {
    /// How many are not resolved.
    pub fn prepared(&self) -> usize {
        self.prepared.len()
    }

    /// How many decisions are kept.
    pub fn decisions(&self) -> usize {
        self.decisions.len()
    }

    /// Some resolution waits to be written.
    pub fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// What rides on a commit from here: resolutions, and decisions to forget.
    pub fn take_riders(&mut self) -> (Vec<Ending>, Vec<TxName>) {
        (std::mem::take(&mut self.ending), std::mem::take(&mut self.forgotten))
    }

    /// Settlements that come with the resolutions that wait, and bytes of the steps that do.
    pub fn riders(&self) -> (usize, usize) {
        let settled = self.ending.iter().map(|ending| ending.settled.len()).sum();
        let steps = [self.ending.len(), self.ending.len(), self.forgotten.len()];
        (settled, steps.into_iter().filter(|&count| count > 0).map(format::step_bytes).sum())
    }

    fn group_mut(&mut self, tx: TxName, first: Sequence) -> Option<&mut Group> {
        self.prepared.get_mut(&tx)?.groups.iter_mut().find(|group| group.first == first)
    }

    /// The head of a group goes to a segment. False if it is resolved, or stands elsewhere: then it is none
    /// any more, and what it settles is said elsewhere, too.
    pub fn place_group(&mut self, tx: TxName, first: Sequence, here: RecordPlace, segment: u64) -> bool {
        let Some(group) = self.group_mut(tx, first).filter(|group| group.place == here) else { return false };
        (group.place, group.written) = (RecordPlace::Segment(segment), true);
        true
    }

    /// A decision goes to a segment. False if it is forgotten, or stands elsewhere.
    pub fn place_decision(&mut self, tx: TxName, here: RecordPlace, segment: u64) -> bool {
        let Some(place) = self.decisions.get_mut(&tx).filter(|place| **place == here) else { return false };
        *place = RecordPlace::Segment(segment);
        true
    }
}

/// What the groups of a commit have settled.
#[derive(Debug, Default)]
pub(super) struct GroupSettlements {
    /// To be written with the commit.
    pub said: Vec<Settlement>,
    /// Of messages that are in the same commit, and are left out, or that are settled already.
    pub unsaid: Vec<Settlement>,
    /// Segments with such messages. If the commit is lost, the messages must still be there.
    pub pinned: Vec<u64>,
}

/// Steps of resolutions that are being written.
pub(super) fn steps(ending: &[Ending]) -> [(TxStep, SmallVec<[TxName; 8]>); 2] {
    [(TxStep::Committed, true), (TxStep::RolledBack, false)].map(|(step, committed)| {
        (step, ending.iter().filter(|ending| ending.committed == committed).map(|ending| ending.tx).collect())
    })
}

impl<D: Disk> ShardLog<D> {
    /// A transaction that no other log takes part in: these messages and settlements are on disk together or
    /// not at all. Gives the names of the messages, and what to wait for: when [`Self::committed`] is at or
    /// past it, the kernel has all of it; with `sync`, stable storage.
    ///
    /// Nobody else is to settle what is settled here. It is done when the commit begins, and named by
    /// [`Self::take_written_settlements`] when it is on disk.
    ///
    /// It is one commit, however large, so callers bound it by [`crate::limits::GROUP_BYTES_MAX`].
    pub fn append_group<'m>(
        &mut self,
        sync: bool,
        messages: impl Iterator<Item = TxMessage<'m>> + Clone,
        settlements: &[Settlement],
    ) -> (Vec<Sequence>, Sequence) {
        let mut lasting = Vec::with_capacity(settlements.len());
        for &(sequence, queue) in settlements {
            match self.directory.get(sequence).is_some_and(|located| located.spilled) {
                true => drop(self.settle(sequence, queue)),
                false => lasting.push((sequence, queue)),
            }
        }
        let bytes = messages.clone().map(|message| message.record_bytes()).sum();
        let builder = self.builder_for(bytes);
        builder.settled.append(&mut lasting);
        builder.sync |= sync;
        self.put_messages(sync, messages)
    }

    /// Prepares what a transaction does in this log, all of it in one commit. It can be resolved as committed
    /// when every log that takes part has it on disk; until then its messages are nobody's, and its settlements
    /// are not done. Gives the names of the messages, and what to wait for, as [`Self::append_group`] does.
    ///
    /// May be called several times for a transaction that is too large for one commit: see
    /// [`crate::limits::GROUP_BYTES_MAX`].
    pub fn prepare<'m>(
        &mut self,
        tx: TxName,
        sync: bool,
        messages: impl Iterator<Item = TxMessage<'m>> + Clone,
        settlements: &[Settlement],
    ) -> (Vec<Sequence>, Sequence) {
        let first = self.next_sequence;
        let lasting = self.lasting(settlements);
        let bytes: usize = messages.clone().map(|message| message.record_bytes()).sum();
        let place = self.put_group_head(tx, first, (messages.clone().count(), bytes), lasting.len());
        let (names, last) = self.put_messages(sync, messages);
        self.put_group_settlements(&lasting);
        let prepared = self.transactions.prepared.entry(tx).or_default();
        prepared.sync |= sync;
        let (messages, settlements) = (names.len() as u64, settlements.to_vec());
        prepared.groups.push(Group { first, messages, settlements, place, written: false });
        (names, last)
    }

    /// Those that are worth a record: of messages that are live in this queue, and not only out of memory.
    fn lasting(&self, settlements: &[Settlement]) -> Vec<Settlement> {
        let is_live = |&(sequence, queue): &Settlement| {
            let located = self.directory.get(sequence).filter(|located| !located.spilled);
            located.is_some_and(|located| !located.shared || self.has(sequence, queue))
        };
        settlements.iter().copied().filter(is_live).collect()
    }

    /// A queue has a message that several had.
    fn has(&self, sequence: Sequence, queue: u64) -> bool {
        self.shared.get(&sequence).is_some_and(|queues| queues.contains(&queue))
    }

    /// Makes room for a group in one commit, and begins it. The messages are given by number and bytes.
    fn put_group_head(
        &mut self,
        tx: TxName,
        first: Sequence,
        messages: (usize, usize),
        settlements: usize,
    ) -> RecordPlace {
        let (count, bytes) = messages;
        let builder = self.builder_for(PREPARED_BYTES + bytes + format::settled_bytes(settlements));
        let records = count + format::settled_records(settlements);
        let place = builder.put(PREPARED_BYTES, false, |out| format::put_prepared(out, tx, first, records));
        RecordPlace::of(place)
    }

    fn put_messages<'m>(
        &mut self,
        sync: bool,
        messages: impl Iterator<Item = TxMessage<'m>>,
    ) -> (Vec<Sequence>, Sequence) {
        let mut names = Vec::with_capacity(messages.size_hint().0);
        for TxMessage { published_ms, ttl_ms, queues, parts } in messages {
            let head = MessageHead { sequence: self.next_sequence, published_ms, ttl_ms, spilled: false };
            if queues.len() > 1 {
                self.shared.insert(head.sequence, queues.iter().copied().collect());
            }
            self.append_to_last(&head, sync, queues.iter().copied(), parts);
            names.push(head.sequence);
        }
        if names.is_empty() {
            self.mark_last(sync);
        }
        (names, self.next_sequence - 1)
    }

    /// Takes a sequence for what is not a message and is to be waited for.
    fn mark_last(&mut self, sync: bool) -> Sequence {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let builder = self.last_builder();
        builder.last = sequence;
        builder.sync |= sync;
        sequence
    }

    fn put_group_settlements(&mut self, settlements: &[Settlement]) {
        let buffer = &mut self.last_builder().buffer;
        buffer.append(format::settled_bytes(settlements.len()), |out| format::put_settled(out, settlements));
    }

    /// Decides that a transaction is committed: every log that takes part has it prepared on disk. When
    /// [`Self::committed`] is at or past what is given, the kernel has the decision; with `sync`, stable
    /// storage. Then it is committed, whatever comes. `sync` is to be set if any log has prepared it so.
    pub fn decide(&mut self, tx: TxName, sync: bool) -> Sequence {
        self.put_decision(tx);
        self.mark_last(sync)
    }

    fn put_decision(&mut self, tx: TxName) {
        let bytes = format::step_bytes(1);
        let builder = self.builder_for(bytes);
        let place =
            builder.put(bytes, false, |out| format::put_step(out, TxStep::Decided, std::iter::once(tx)));
        self.transactions.decisions.insert(tx, RecordPlace::of(place));
    }

    /// How a transaction ended that this log has prepared. Committed, its messages are as all others from now
    /// on, and its settlements are done; rolled back, nothing is left of it. [`Self::take_resolved`] says when
    /// that is on disk.
    ///
    /// # Panics
    /// When the transaction is not prepared, or is committed before its groups are on disk.
    pub fn resolve(&mut self, tx: TxName, committed: bool) {
        let prepared = self.transactions.prepared.remove(&tx);
        let Prepared { sync, groups } = prepared.expect("what is resolved was prepared");
        let written = groups.iter().any(|group| group.written);
        let mut ending = Ending { tx, committed, sync, settled: Vec::new(), segments: SmallVec::new() };
        for group in groups {
            match group.place {
                RecordPlace::Segment(segment) => ending.segments.push(segment),
                // Its head and its settlements are left out of the commit. If that is a copy, the commit is
                // written even when nothing is left in it: so no segment with another copy is given back before
                // the resolution is on disk, which goes out with this commit at the latest.
                RecordPlace::Builder { builder, .. } => {
                    self.builder_mut(builder).live -= u32::from(!group.written);
                }
            }
            if committed {
                let last = group.first + group.messages.saturating_sub(1);
                assert!(group.written && last <= self.committed, "what is committed is prepared on disk");
                ending
                    .settled
                    .extend(group.settlements.iter().filter(|&&one| self.settle_late(one).is_some()));
            } else {
                (group.first..group.first + group.messages).for_each(|message| self.withdraw(message));
            }
        }
        if written {
            self.note_rider();
            self.transactions.ending.push(ending);
        } else {
            // Nothing of it will ever be on disk.
            self.transactions.resolved.push(tx);
        }
    }

    /// A message of a group is not to be.
    fn withdraw(&mut self, message: Sequence) {
        let Some(located) = self.directory.remove(message) else { return };
        if located.shared {
            self.shared.remove(&message);
        }
        self.take_out(located);
    }

    /// Settles what may have been settled before. None if nothing is to be said of it; else whether it was
    /// never written for this queue.
    pub(super) fn settle_late(&mut self, (sequence, queue): Settlement) -> Option<bool> {
        let located = self.directory.get(sequence)?;
        if located.shared && !self.has(sequence, queue) {
            return None;
        }
        let elided = self.settle_located(located, sequence, queue);
        (!located.spilled).then_some(elided)
    }

    /// Does what the groups of the next commit settle.
    pub(super) fn settle_groups(&mut self) -> GroupSettlements {
        let mut done = GroupSettlements::default();
        let front = self.builders.front_mut().filter(|builder| !builder.settled.is_empty());
        for settlement in front.map(|builder| std::mem::take(&mut builder.settled)).unwrap_or_default() {
            self.pin(settlement.0, &mut done.pinned);
            match self.settle_late(settlement) {
                Some(false) => done.said.push(settlement),
                Some(true) | None => done.unsaid.push(settlement),
            }
        }
        done
    }

    /// Keeps the segment of a message that is about to be settled.
    fn pin(&mut self, message: Sequence, pinned: &mut Vec<u64>) {
        let Some(Place::Segment { segment, .. }) = self.directory.get(message).map(|located| located.place)
        else {
            return;
        };
        let number = self.full_number(segment);
        if !pinned.contains(&number) {
            self.segment_mut(number).expect("a live message's segment is kept").live += 1;
            pinned.push(number);
        }
    }

    /// The commit is on disk.
    pub(super) fn unpin(&mut self, pinned: Vec<u64>) {
        for number in pinned {
            self.segment_mut(number).expect("a pinned segment is kept").live -= 1;
        }
    }

    /// Resolutions are on disk: what they resolve may be given back.
    pub(super) fn ended(&mut self, ending: Vec<Ending>) {
        for Ending { tx, segments, .. } in ending {
            for segment in segments {
                self.segment_mut(segment).expect("a segment is kept for its groups").live -= 1;
            }
            self.transactions.resolved.push(tx);
        }
    }

    /// For how much a segment is only kept until commits that are about to be written are on disk.
    pub(super) fn ending_in(&self, segment: u64) -> u64 {
        let in_flight = self.in_flight.iter().flat_map(|commit| &commit.ending);
        let segments = self.transactions.ending.iter().chain(in_flight).flat_map(|ending| &ending.segments);
        let pinned = self.in_flight.iter().flat_map(|commit| &commit.pinned);
        segments.chain(pinned).filter(|&&other| other == segment).count() as u64
    }

    /// Transactions whose resolutions are on disk since this was last called.
    pub fn take_resolved(&mut self) -> impl Iterator<Item = TxName> + '_ {
        self.transactions.resolved.drain(..)
    }

    /// Every log that took part has its resolution on disk: nobody will ask for the decision any more.
    ///
    /// # Panics
    /// When there is no decision.
    pub fn forget_decision(&mut self, tx: TxName) {
        let place = self.transactions.decisions.remove(&tx).expect("a decision is forgotten once");
        match place {
            RecordPlace::Builder { builder, .. } => self.builder_mut(builder).live -= 1,
            RecordPlace::Segment(segment) => {
                self.segment_mut(segment).expect("a segment is kept for its decisions").live -= 1;
            }
        }
        self.transactions.forgotten.push(tx);
    }

    /// Takes over what was found. A transaction that is prepared waits to be resolved, and decisions are kept.
    pub(super) fn take_over(&mut self, found: Undecided) {
        let Undecided { groups, messages, decisions, forgotten, .. } = found;
        for (sequence, (located, queues)) in messages {
            if located.shared {
                self.shared.insert(sequence, queues);
            }
            self.directory.set(sequence, located);
        }
        for (tx, found) in groups {
            let prepared = self
                .transactions
                .prepared
                .entry(tx)
                .or_insert(Prepared { sync: true, ..Prepared::default() });
            prepared.groups.extend(found.into_iter().map(|group| Group {
                first: group.first,
                messages: group.messages,
                settlements: group.settlements,
                place: RecordPlace::Segment(group.segment),
                written: true,
            }));
        }
        let places = decisions.into_iter().map(|(tx, segment)| (tx, RecordPlace::Segment(segment)));
        self.transactions.decisions.extend(places);
        self.transactions.forgotten = forgotten;
    }

    /// Appends a group again that is in the oldest segment and not resolved. `records` are those behind its
    /// head, and are left alone if it is resolved or not here: then they are as all others.
    pub(super) fn relocate_group<'r>(
        &mut self,
        (segment, block): (u64, u32),
        (tx, first, count): (TxName, Sequence, u32),
        records: &mut impl Iterator<Item = Record<'r>>,
    ) -> bool {
        let here = RecordPlace::Segment(segment);
        let Some(group) = self.transactions.group_mut(tx, first).filter(|group| group.place == here) else {
            return false;
        };
        let settlements = std::mem::take(&mut group.settlements);
        let lasting = self.lasting(&settlements);
        let messages: Vec<_> = records
            .take(count as usize)
            .filter_map(|record| match record {
                Record::Message { head, queues, content } => {
                    Some((self.is_here(segment, block, head.sequence)?, head, queues, content))
                }
                _ => None,
            })
            .collect();
        let bytes = messages
            .iter()
            .map(|(_, _, queues, content)| format::message_bytes(queues.len(), content.len()))
            .sum();
        let place = self.put_group_head(tx, first, (messages.len(), bytes), lasting.len());
        self.segment_mut(segment).expect("a segment is kept while it is emptied").live -=
            1 + messages.len() as u64;
        for (located, head, queues, content) in messages {
            self.append_again_to_last(&head, located, &queues, content);
        }
        self.put_group_settlements(&lasting);
        self.last_builder().sync = true;
        let group = self.transactions.group_mut(tx, first).expect("it was there");
        (group.place, group.settlements) = (place, settlements);
        true
    }

    /// Appends those of these decisions again that are in this segment, and not forgotten.
    pub(super) fn relocate_decisions(&mut self, segment: u64, decided: &[TxName]) -> bool {
        let here = RecordPlace::Segment(segment);
        let mut moved = false;
        for &tx in decided.iter() {
            if self.transactions.decisions.get(&tx) == Some(&here) {
                self.put_decision(tx);
                self.last_builder().sync = true;
                self.segment_mut(segment).expect("a segment is kept while it is emptied").live -= 1;
                moved = true;
            }
        }
        moved
    }

    fn last_builder(&mut self) -> &mut Builder {
        self.builders.back_mut().expect("a builder was just asked for")
    }
}

/// Where a record in a builder is, as transactions have it.
pub(super) fn in_builder(number: u64, offset: usize) -> RecordPlace {
    RecordPlace::Builder { builder: short_builder(number), offset: offset as u32 }
}
