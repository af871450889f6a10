//! The owner's half of a shard: its queues, their messages, and who gets them.
//!
//! After each step a queue has ready messages or consumers that could take one, never both: whoever
//! changes either serves the queue before the step ends. A consumer is claimed for only when it has
//! credit - prefetch, the channel's grant, room in its connection's window - so nothing is claimed and
//! then left lying.

mod claims;
mod consumers;
mod dead_letter;
mod deadlines;
mod expired_on_disk;
mod overflow;
mod paging;
mod queues;
mod settings;
mod time;
mod transactions;
mod waiting_room;
mod waits;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use self::consumers::{Consumer, Link, Standing};
pub(super) use self::dead_letter::DeadLetter;
use self::dead_letter::{DeadLetters, Reason};
use self::deadlines::{Deadlines, Due};
use self::expired_on_disk::ExpiredOnDisk;
use self::paging::{PendingGet, Spilling};
use self::time::Rubble;
use self::transactions::Transactions;
use self::waiting_room::RoomConfirm;
pub use self::waiting_room::WaitingRoom;
pub use self::waits::WaitTimes;
use self::waits::Waits;
use super::batch::{DEAD_LETTERS, Publisher, RecordRef};
use super::effects::{Backplane, Effects, LogSequence, Logged};
use super::front_end::{Restored, Verdict};
use super::outward::{Delivery, Outward};
use super::properties::PropertyFormat;
use crate::ledger::{Claim, Holder, Kept, Ledger, Returns};
use crate::message::{Durability, MessageView};
use crate::queue::{InLog, MessageStore, Queue, Record, record_size};
use crate::{ConnectionId, ConsumerId, DurableId, QueueId, ShardId};

/// A confirm that waits for the log.
struct Waiting {
    sequence: LogSequence,
    to: Publisher,
    accepted: bool,
}

/// What has become of a message in one queue that it was published to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entered {
    /// Settled as it came, or given up.
    Gone,
    /// The queue is full and takes no more.
    Refused,
    /// The queue is full, and the message waits in front of it.
    Outside,
    /// It waits.
    Ready,
    /// Somebody has it.
    Claimed,
}

/// What a delivery takes of its connection's window: its bytes, and about what frames add.
pub(super) fn delivery_cost(record_bytes: usize) -> usize {
    record_bytes + 64
}

/// A message is given to somebody who will settle it; if it is in the log for that queue, the log is told.
#[inline(always)]
fn note_claim(store: &MessageStore, fx: &mut impl Backplane, message: u32, queue: Option<DurableId>) {
    if let Some((name, queue)) = kept_in_log(store, message, queue) {
        fx.claimed(name, queue);
    }
}

/// It has come back from there.
fn note_return(
    store: &MessageStore,
    fx: &mut impl Backplane,
    message: u32,
    queue: Option<DurableId>,
    failed: bool,
) {
    if let Some((name, queue)) = kept_in_log(store, message, queue) {
        fx.came_back(name, queue, failed);
    }
}

/// What the log knows the message by and the queue, if it has it for that queue. Inlined: for a queue that
/// is not durable it is one test.
#[inline(always)]
fn kept_in_log(
    store: &MessageStore,
    message: u32,
    queue: Option<DurableId>,
) -> Option<(LogSequence, DurableId)> {
    let queue = queue?;
    let name = store.in_log(message).name;
    (name != 0).then_some((name, queue))
}

type Durables = SmallVec<[DurableId; 8]>;

/// What is known of a message when all its queues were looked at.
struct Admitted {
    /// Of its record, if some queue has it in the log.
    sequence: Option<LogSequence>,
    /// No queue has refused it.
    accepted: bool,
    /// It waits in front of some queue: so does its confirm, in the owner's list.
    confirm: Option<u32>,
}

/// Delivers a message that has come back to a queue with a delivery limit. Gives what it costs.
#[cold]
fn deliver_noted<E: Effects>(
    out: &mut Outward<'_, E>,
    delivery: &Delivery,
    record: &Record,
    returns: Returns,
) -> usize {
    let properties = out.fx.with_returns(record.view().properties, returns);
    let message = MessageView { properties: &properties, ..record.view() };
    out.deliver(delivery, RecordRef::View(message));
    delivery_cost(record_size(&message))
}

/// The queues of a shard. See the module.
pub(super) struct Owner {
    epoch: u32,
    now_ms: u64,
    queues: Vec<Option<Box<Queue>>>,
    consumers: Slab<Consumer>,
    by_name: FxHashMap<(ShardId, ConsumerId), u32>,
    links: Slab<Link>,
    link_of: FxHashMap<ConnectionId, u32>,
    store: MessageStore,
    /// Queues that may have both ready messages and consumers with credit.
    dirty: Vec<u32>,
    waiting: VecDeque<Waiting>,
    /// Everything in the log up to this is as durable as configured.
    committed: LogSequence,
    spilling: VecDeque<Spilling>,
    pending_gets: Vec<PendingGet>,
    /// By queue: expired messages that are being read.
    expired_on_disk: FxHashMap<QueueId, ExpiredOnDisk>,
    /// Queues with such that were read and have not ended yet.
    expired_to_end: VecDeque<QueueId>,
    /// The queue that was looked at last for what can be paged out.
    paging_slot: usize,
    deadlines: Deadlines,
    dead_letters: DeadLetters,
    room_confirms: Slab<RoomConfirm>,
    /// Bytes of records that wait in front of queues.
    outside_bytes: u64,
    rubble: VecDeque<Rubble>,
    transactions: Transactions,
    memory_budget_bytes: u64,
    /// Of durable queues that do not say otherwise.
    durability: Durability,
    pressed: bool,
    log_backlog_bytes: u64,
    /// It has more settlements to write than it can at once.
    log_is_behind: bool,
    short_of_space: bool,
    waits: Waits,
}

/// A queue lets go of a message; if it is in the log for that queue, the log is told.
fn released(store: &mut MessageStore, fx: &mut impl Backplane, kept: Kept, queue: Option<DurableId>) {
    if let Some(name) = name_in_log(store, kept, queue) {
        fx.settled(name, queue);
    }
}

/// A queue lets go of a message. Gives its name in the log, if the log has it for that queue.
fn name_in_log(store: &mut MessageStore, kept: Kept, queue: Option<DurableId>) -> Option<LogSequence> {
    let in_log = match kept {
        Kept::InMemory(message) => store.release(message),
        Kept::InLog(name) => {
            store.release_paged_out();
            InLog { name, for_any_queue: true }
        }
    };
    (in_log.name != 0 && (in_log.for_any_queue || queue.is_some())).then_some(in_log.name)
}

impl Owner {
    pub fn new(epoch: u32, memory_budget_bytes: u64, durability: Durability) -> Owner {
        Owner {
            epoch,
            now_ms: 0,
            queues: Vec::new(),
            consumers: Slab::new(),
            by_name: FxHashMap::default(),
            links: Slab::new(),
            link_of: FxHashMap::default(),
            store: MessageStore::default(),
            dirty: Vec::new(),
            waiting: VecDeque::new(),
            committed: 0,
            spilling: VecDeque::new(),
            pending_gets: Vec::new(),
            expired_on_disk: FxHashMap::default(),
            expired_to_end: VecDeque::new(),
            paging_slot: 0,
            deadlines: Deadlines::new(),
            dead_letters: DeadLetters::default(),
            room_confirms: Slab::new(),
            outside_bytes: 0,
            rubble: VecDeque::new(),
            transactions: Transactions::default(),
            memory_budget_bytes,
            durability,
            pressed: false,
            log_backlog_bytes: 0,
            log_is_behind: false,
            short_of_space: false,
            waits: Waits::default(),
        }
    }

    pub fn set_time(&mut self, now_us: u64) {
        self.now_ms = now_us / 1_000;
        self.waits.set_time(now_us);
    }

    /// How long messages have waited since this was last asked.
    pub fn take_waits(&mut self) -> WaitTimes {
        self.waits.take()
    }

    /// Bytes that messages take here.
    pub fn memory_bytes(&self) -> u64 {
        self.store.bytes() + self.deadlines.bytes() + self.outside_bytes + self.transactions.bytes
    }

    pub fn note_log(&mut self, backlog_bytes: u64, behind: bool, short_of_space: bool) {
        (self.log_backlog_bytes, self.log_is_behind) = (backlog_bytes, behind);
        self.short_of_space = short_of_space;
    }

    /// Some: the shard has just gone over its memory budget (true) or come back under it (false).
    pub fn pressure_change(&mut self) -> Option<bool> {
        let bytes = self.memory_bytes() + self.log_backlog_bytes;
        let pressed = match self.pressed {
            _ if self.short_of_space => true,
            false => bytes > self.memory_budget_bytes,
            // Not at the same mark: a flood would make it flutter.
            true => bytes > self.memory_budget_bytes / 8 * 7,
        };
        (pressed != self.pressed).then(|| {
            self.pressed = pressed;
            pressed
        })
    }

    fn slot_of(&self, id: QueueId) -> Option<usize> {
        let slot = id.slot() as usize;
        self.queues.get(slot)?.as_ref().is_some_and(|queue| queue.info.id == id).then_some(slot)
    }

    pub fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.slot_of(id).and_then(|slot| self.queues[slot].as_deref())
    }

    fn queue_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        self.slot_of(id).and_then(|slot| self.queues[slot].as_deref_mut())
    }

    /// Takes a message in for these queues of the shard: the record is stored once at most, and not
    /// at all if everybody takes it right now and settles it as it arrives.
    pub fn admit<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        record: RecordRef<'_>,
        queues: &[QueueId],
        durability: Durability,
        ttl_ms: Option<u64>,
        from: Option<&Publisher>,
    ) {
        let Admitted { sequence, accepted, confirm } =
            self.enter(out, record, queues, durability, ttl_ms, from);
        if let Some(key) = confirm {
            return self.note_part(out, key, sequence, accepted);
        }
        let Some(&to) = from.filter(|from| from.number > 0) else { return };
        match sequence {
            None => out.confirmed(to.home, to.channel, to.number, accepted),
            Some(sequence) => self.waiting.push_back(Waiting { sequence, to, accepted }),
        }
    }

    /// As [`Self::admit`], without the confirm.
    #[inline(always)]
    fn enter<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        record: RecordRef<'_>,
        queues: &[QueueId],
        durability: Durability,
        ttl_ms: Option<u64>,
        from: Option<&Publisher>,
    ) -> Admitted {
        let (mut stored, mut accepted, mut confirm) = (None, true, None);
        let mut asked = Durability::Memory;
        // The durable queues of the message, and those of them that have given it to somebody already: an
        // allocation only for a message in many.
        let (mut appended, mut claimed) = (Durables::new(), Durables::new());
        for &id in queues {
            let Some(slot) = self.slot_of(id) else {
                // The queue was deleted while the message was on its way. A publisher need not care; a
                // dead letter that is kept looks for another way.
                accepted &= from.is_none_or(|from| from.channel != DEAD_LETTERS);
                continue;
            };
            let entered = self.admit_to(out, slot, record, &mut stored, ttl_ms, false);
            match entered {
                Entered::Gone => {}
                Entered::Ready | Entered::Claimed => {
                    let queue = self.queue_at(slot);
                    if durability > Durability::Memory
                        && let Some(durable) = queue.durable_id
                    {
                        asked = asked.max(durability.min(queue.durability));
                        appended.push(durable);
                        if entered == Entered::Claimed {
                            claimed.push(durable);
                        }
                    }
                }
                Entered::Refused => accepted = false,
                Entered::Outside => self.park(out, slot, record, durability, ttl_ms, from, &mut confirm),
            }
        }
        let mut logged = None;
        // If one durable queue asks for it, all of them have the message in the log: whoever lets go of it
        // need not know who asked.
        if asked > Durability::Memory {
            let sync = asked == Durability::Fsync;
            let Logged { sequence, in_log } = out.fx.append(&record.view(), ttl_ms, sync, &appended);
            if in_log {
                self.store.set_log(stored.expect("a durable entry refers to a stored message"), sequence);
                // Their deliveries are written in this step and go out after it.
                claimed.iter().for_each(|&queue| out.fx.claimed(sequence, queue));
            }
            logged = Some(sequence);
        }
        Admitted { sequence: logged, accepted, confirm }
    }

    /// Takes a message of a queue back in that a former process had in the log. It stays there until its
    /// turn comes, unless the queue cannot do without its record: see [`Queue::is_pageable`].
    pub fn restore(&mut self, format: &impl PropertyFormat, restored: Restored) {
        let Restored { message: name, queue: id, returns, ttl_ms, age_ms, record } = restored;
        let slot = self.slot_of(id).expect("a restored message names a queue of this shard");
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let failed_too_often = queue.settings.is_past_delivery_limit(returns.failures.into());
        let ttl_ms = if failed_too_often { Some(0) } else { queue.settings.ttl_ms(ttl_ms) };
        self.store.add_paged_out();
        let position = match record {
            None => queue.entries.restore_paged_out(name, returns),
            Some(record) => {
                let message = self.store.page_in(Record::from_bytes(record), name);
                let priority = match queue.entries.has_levels() {
                    true => format.priority(self.store.record(message).view().properties),
                    false => 0,
                };
                let position = queue.entries.restore(message, priority, returns);
                self.became_ready(slot, message);
                position
            }
        };
        self.mark_dirty(slot);
        if let Some(ttl_ms) = ttl_ms {
            let at_ms = self.now_ms.saturating_add(ttl_ms.saturating_sub(age_ms));
            self.deadlines.push(at_ms, Due::Message(id, position));
        }
    }

    /// Enters the message in one queue; if that was `promised`, however full it is.
    #[inline(always)]
    fn admit_to<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        record: RecordRef<'_>,
        stored: &mut Option<u32>,
        ttl_ms: Option<u64>,
        promised: bool,
    ) -> Entered {
        if self.queue_at(slot).dirty {
            // Something came back earlier in this step, and goes first.
            self.serve(out, slot);
        }
        if let Some(bound) = self.queue_at(slot).settings.bound
            && !promised
            && let Some(turned_away) = self.turned_away(slot, bound, record)
        {
            return turned_away;
        }
        let taker = match self.queue_at(slot).awaits_load {
            // Those before it go first.
            true => None,
            false => self.next_taker(out, slot),
        };
        if let Some(taker) = taker
            && self.consumers[taker as usize].no_ack
        {
            self.pass_through(out, slot, taker, record);
            self.waits.passed_through();
            return Entered::Gone;
        }
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let ttl_ms = queue.settings.ttl_ms(ttl_ms);
        if ttl_ms == Some(0) && taker.is_none() {
            self.give_up(slot, record, Reason::Expired);
            return Entered::Gone;
        }
        let message = match *stored {
            Some(message) => {
                self.store.add_reference(message);
                message
            }
            None => *stored.insert(self.store.insert(record.to_record())),
        };
        let position = match &mut queue.entries {
            Ledger::Plain(entries) => entries.push(message),
            Ledger::Levels(levels) => {
                levels.push(message, out.fx.priority(record.view().properties), Returns::default())
            }
        };
        let id = queue.info.id;
        self.waits.entered(id, position);
        if let Some(ttl_ms) = ttl_ms {
            self.deadlines.push(self.now_ms.saturating_add(ttl_ms), Due::Message(id, position));
        }
        if queue.settings.bound.is_some() {
            self.became_ready(slot, message);
        }
        if let Some(taker) = taker {
            self.hand_over(out, slot, taker, false);
            self.after_turn(slot, taker);
            return Entered::Claimed;
        }
        Entered::Ready
    }

    /// A message that is delivered from where it was read: no entry, no copy of its own.
    #[inline(always)]
    fn pass_through<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        taker: u32,
        record: RecordRef<'_>,
    ) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        queue.entries.pass_through();
        let consumer = &self.consumers[taker as usize];
        let delivery = consumer.delivery(None, false, false);
        self.links[consumer.link as usize].used_bytes += delivery_cost(record_size(&record.view()));
        out.deliver(&delivery, record);
        queue.turns.rotate();
    }

    /// Claims the next message for a consumer that has credit, and delivers it.
    fn hand_over<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize, taker: u32, granted: bool) {
        let queue = self.queues[slot].as_deref_mut().expect("a served queue exists");
        let consumer = &mut self.consumers[taker as usize];
        let (id, cursor) = (queue.info.id, queue.entries.cursor());
        let claimed = queue.entries.claim(cursor, Holder(taker)).expect("the cursor was read in this step");
        let Claim { position, message, redelivered } = claimed.expect("a served queue has a ready message");
        self.waits.left(id, position);
        let entry = (!consumer.no_ack).then_some((id, position));
        if !consumer.no_ack {
            consumer.unacked += 1;
            note_claim(&self.store, out.fx, message, queue.durable_id);
        }
        if let Some(bound) = queue.settings.bound {
            if bound.bytes.is_some() {
                queue.ready_bytes -= self.store.body_bytes(message);
            }
            if queue.room.is_some() && !std::mem::replace(&mut queue.dirty, true) {
                self.dirty.push(slot as u32);
            }
        }
        let record = self.store.record(message);
        let delivery = consumer.delivery(entry, redelivered, granted);
        let no_ack = consumer.no_ack;
        let link = &mut self.links[consumer.link as usize];
        if redelivered && queue.settings.delivery_limit.is_some() {
            let returns = queue.entries.returns(position);
            link.used_bytes += deliver_noted(out, &delivery, record, returns);
        } else {
            link.used_bytes += delivery_cost(record.bytes().len());
            out.deliver(&delivery, RecordRef::Stored(record));
        }
        if no_ack {
            self.settle(out, id, position, Verdict::Accept);
        }
    }

    /// Puts the consumer that was just served where it belongs now.
    #[inline(always)]
    fn after_turn(&mut self, slot: usize, taker: u32) {
        let queue = self.queues[slot].as_deref_mut().expect("a served queue exists");
        let consumer = &mut self.consumers[taker as usize];
        if consumer.has_prefetch_left() {
            queue.turns.rotate();
        } else {
            queue.turns.remove(taker, consumer.priority);
            consumer.standing = Standing::NoPrefetch;
        }
    }

    /// Serves every queue that may have both ready messages and takers.
    pub fn serve_dirty<E: Effects>(&mut self, out: &mut Outward<'_, E>) {
        while let Some(slot) = self.dirty.pop() {
            let slot = slot as usize;
            // The slot may have changed hands: serving a queue that needs none does nothing.
            let Some(queue) = self.queues[slot].as_deref_mut() else { continue };
            queue.dirty = false;
            self.serve(out, slot);
        }
    }

    fn serve<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize) {
        if let Some(bound) = self.queue_at(slot).settings.bound {
            self.shorten(out, slot, bound);
        }
        while self.queue_at(slot).can_be_served() && self.next_is_in_memory(out, slot) {
            let Some(taker) = self.next_taker(out, slot) else { break };
            self.hand_over(out, slot, taker, false);
            self.after_turn(slot, taker);
        }
        if self.queue_at(slot).room.is_some() {
            self.let_in(out, slot);
        }
    }

    fn mark_dirty(&mut self, slot: usize) {
        let Some(queue) = self.queues[slot].as_deref_mut() else { return };
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(slot as u32);
        }
    }

    fn queue_at(&self, slot: usize) -> &Queue {
        self.queues[slot].as_deref().expect("the slot was just looked up")
    }

    /// Everything up to this sequence is as durable as configured: confirms go out.
    pub fn committed<E: Effects>(&mut self, out: &mut Outward<'_, E>, frontier: LogSequence) {
        self.committed = frontier;
        self.finish_spills(out);
        self.tell_committed(out);
        while let Some(waiting) = self.waiting.front()
            && waiting.sequence <= frontier
        {
            let Publisher { home, channel, number } = waiting.to;
            out.confirmed(home, channel, number, waiting.accepted);
            self.waiting.pop_front();
        }
    }

    /// Asserts the owner's invariants with full counts. For tests and the simulator.
    pub fn assert_consistent(&self) {
        let mut references = 0;
        for queue in self.queues.iter().flatten() {
            queue.entries.assert_consistent();
            self.assert_length(queue);
            references += queue.entries.ready() + queue.entries.unacked();
            if queue.entries.ready() > 0 {
                assert!(
                    queue.dirty || queue.awaits_load || queue.turns.is_empty(),
                    "a queue with ready messages has nobody who could take one"
                );
            }
        }
        if self.rubble.is_empty() {
            references += self.dead_letters.len() as u64;
            assert_eq!(references, self.store.references(), "every stored message is in a queue");
        }
        self.assert_credit();
        self.assert_parts();
    }
}
