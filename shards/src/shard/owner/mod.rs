//! The owner's half of a shard: its queues, their messages, and who gets them.
//!
//! After each step a queue has ready messages or consumers that could take one, never both: whoever
//! changes either serves the queue before the step ends. A consumer is claimed for only when it has
//! credit - prefetch, the channel's grant, room in its connection's window - so nothing is claimed and
//! then left lying.

mod consumers;
mod paging;
mod time;

use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;

use self::consumers::{Consumer, Link, Standing};
use self::paging::{PendingGet, Spilling};
use self::time::{Deadline, Purged, Rubble};
use super::batch::{ConfirmTo, PeerMessage, RecordRef};
use super::effects::{Backplane, Effects, LogSequence, Logged};
use super::front_end::{Reply, Restored, Verdict};
use super::outward::Outward;
use crate::Durability;
use crate::ledger::{Claim, Entries, Holder, Kept, Position};
use crate::queue::{InLog, MessageStore, Queue, Turns};
use crate::topology::QueueInfo;
use crate::{ChannelId, ConnectionId, ConsumerId, DurableId, QueueId, Refusal, RefusalKind, ShardId};

/// A confirm that waits for the log.
struct Waiting {
    sequence: LogSequence,
    to: ConfirmTo,
}

/// What a delivery takes of its connection's window: its bytes, and about what frames add.
pub(super) fn delivery_cost(record_bytes: usize) -> usize {
    record_bytes + 64
}

/// A message is given to somebody who will settle it; if it is in the log for that queue, the log is told.
fn note_claim(store: &MessageStore, fx: &mut impl Backplane, message: u32, queue: Option<DurableId>) {
    let name = store.in_log(message).name;
    if let Some(queue) = queue
        && name != 0
    {
        fx.claimed(name, queue);
    }
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
    /// The queue that was looked at last for what can be paged out.
    paging_slot: usize,
    deadlines: BinaryHeap<Deadline>,
    rubble: VecDeque<Rubble>,
    memory_budget_bytes: u64,
    /// Of durable queues that do not say otherwise.
    durability: Durability,
    pressed: bool,
    log_backlog_bytes: u64,
    short_of_space: bool,
    /// Reused by [`Self::admit`]: the durable queues of a message.
    appended: Vec<DurableId>,
    /// Those of them that have given it to somebody already.
    claimed: Vec<DurableId>,
}

/// A queue lets go of a message; if it is in the log for that queue, the log is told.
fn released(store: &mut MessageStore, fx: &mut impl Backplane, kept: Kept, queue: Option<DurableId>) {
    let in_log = match kept {
        Kept::InMemory(message) => store.release(message),
        Kept::InLog(name) => {
            store.release_paged_out();
            InLog { name, for_any_queue: true }
        }
    };
    if in_log.name != 0 && (in_log.for_any_queue || queue.is_some()) {
        fx.settled(in_log.name, queue);
    }
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
            paging_slot: 0,
            deadlines: BinaryHeap::new(),
            rubble: VecDeque::new(),
            memory_budget_bytes,
            durability,
            pressed: false,
            log_backlog_bytes: 0,
            short_of_space: false,
            appended: Vec::new(),
            claimed: Vec::new(),
        }
    }

    pub fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Bytes that messages take here.
    pub fn memory_bytes(&self) -> u64 {
        self.store.bytes()
    }

    pub fn note_log(&mut self, backlog_bytes: u64, short_of_space: bool) {
        (self.log_backlog_bytes, self.short_of_space) = (backlog_bytes, short_of_space);
    }

    /// Some: the shard has just gone over its memory budget (true) or come back under it (false).
    pub fn pressure_change(&mut self) -> Option<bool> {
        let bytes = self.store.bytes() + self.log_backlog_bytes;
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

    /// A queue has come into being.
    pub fn create_queue(&mut self, info: &Arc<QueueInfo>) {
        let slot = info.id.slot() as usize;
        if self.queues.len() <= slot {
            self.queues.resize_with(slot + 1, || None);
        }
        assert!(self.queues[slot].is_none(), "a queue's slot is free when it is created");
        let queue = Queue {
            info: info.clone(),
            entries: Entries::new(self.epoch),
            turns: Turns::default(),
            consumers: Vec::new(),
            durable_id: info.durable_id,
            durability: info.durability().unwrap_or(self.durability),
            exclusively_consumed: false,
            dirty: false,
            awaits_load: false,
            paged_to: 0,
            last_used_ms: self.now_ms,
            message_ttl_ms: info.message_ttl_ms(),
            expires_ms: info.expires_ms(),
            lingering: Vec::new(),
        };
        if let Some(expires_ms) = queue.expires_ms {
            self.deadlines.push(Deadline::queue(self.now_ms.saturating_add(expires_ms), info.id));
        }
        self.queues[slot] = Some(Box::new(queue));
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
        confirm: Option<ConfirmTo>,
    ) {
        let (mut stored, mut sync) = (None, false);
        let (mut appended, mut claimed) =
            (std::mem::take(&mut self.appended), std::mem::take(&mut self.claimed));
        for &id in queues {
            // The queue may have been deleted while the message was on its way.
            let Some(slot) = self.slot_of(id) else { continue };
            let Some(taken) = self.admit_to(out, slot, record, &mut stored, ttl_ms) else { continue };
            let queue = self.queue_at(slot);
            let lesser = durability.min(queue.durability);
            if lesser > Durability::Memory
                && let Some(durable) = queue.durable_id
            {
                sync |= lesser == Durability::Fsync;
                appended.push(durable);
                if taken {
                    claimed.push(durable);
                }
            }
        }
        if appended.is_empty() {
            if let Some(to) = confirm {
                out.confirmed(to.home, to.channel, to.number, true);
            }
        } else {
            let Logged { sequence, in_log } = out.fx.append(&record.view(), ttl_ms, sync, &appended);
            if in_log {
                self.store.set_log(stored.expect("a durable entry refers to a stored message"), sequence);
                // Their deliveries are written in this step and go out after it.
                claimed.iter().for_each(|&queue| out.fx.claimed(sequence, queue));
            }
            if let Some(to) = confirm {
                self.waiting.push_back(Waiting { sequence, to });
            }
        }
        appended.clear();
        claimed.clear();
        (self.appended, self.claimed) = (appended, claimed);
    }

    /// Takes a message of a queue back in that a former process had in the log. It stays there until its
    /// turn comes.
    pub fn restore(&mut self, restored: &Restored) {
        let id = restored.queue;
        let slot = self.slot_of(id).expect("a restored message names a queue of this shard");
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let ttl_ms = match (restored.ttl_ms, queue.message_ttl_ms) {
            (Some(own), Some(queue)) => Some(own.min(queue)),
            (own, queue) => own.or(queue),
        };
        self.store.add_paged_out();
        let position = queue.entries.restore(restored.message, restored.returns);
        if let Some(ttl_ms) = ttl_ms {
            let at_ms = self.now_ms.saturating_add(ttl_ms.saturating_sub(restored.age_ms));
            self.deadlines.push(Deadline::message(at_ms, id, position));
        }
    }

    /// Enters the message in one queue. None if it is settled already; else whether somebody has it.
    fn admit_to<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        record: RecordRef<'_>,
        stored: &mut Option<u32>,
        ttl_ms: Option<u64>,
    ) -> Option<bool> {
        if self.queue_at(slot).dirty {
            // Something came back earlier in this step, and goes first.
            self.serve(out, slot);
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
            return None;
        }
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let ttl_ms = match (ttl_ms, queue.message_ttl_ms) {
            (Some(own), Some(queue)) => Some(own.min(queue)),
            (own, queue) => own.or(queue),
        };
        if ttl_ms == Some(0) && taker.is_none() {
            return None;
        }
        let message = *stored.get_or_insert_with(|| self.store.insert(record.to_record()));
        self.store.add_reference(message);
        let position = queue.entries.push(message);
        if let Some(ttl_ms) = ttl_ms {
            let id = queue.info.id;
            self.deadlines.push(Deadline::message(self.now_ms.saturating_add(ttl_ms), id, position));
        }
        if let Some(taker) = taker {
            self.hand_over(out, slot, taker, false);
            self.after_turn(slot, taker);
        }
        Some(taker.is_some())
    }

    /// A message that is delivered from where it was read: no entry, no copy of its own.
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
        self.links[consumer.link as usize].used_bytes +=
            delivery_cost(crate::queue::record_size(&record.view()));
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
        let entry = (!consumer.no_ack).then_some((id, position));
        if !consumer.no_ack {
            consumer.unacked += 1;
            note_claim(&self.store, out.fx, message, queue.durable_id);
        }
        let record = self.store.record(message);
        let delivery = consumer.delivery(entry, redelivered, granted);
        self.links[consumer.link as usize].used_bytes += delivery_cost(record.bytes().len());
        out.deliver(&delivery, RecordRef::Stored(record));
        if consumer.no_ack {
            self.settle(out, id, position, Verdict::Accept);
        }
    }

    /// Puts the consumer that was just served where it belongs now.
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
        while self.queue_at(slot).can_be_served() && self.next_is_in_memory(out, slot) {
            let Some(taker) = self.next_taker(out, slot) else { break };
            self.hand_over(out, slot, taker, false);
            self.after_turn(slot, taker);
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

    /// Ends a claim: the one way for ack, nack, reject, recover, closed channels and lost connections.
    /// What is not claimed any more is left as it is. The queue is served when the step ends.
    pub fn settle<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        id: QueueId,
        position: Position,
        verdict: Verdict,
    ) {
        let Some(slot) = self.slot_of(id) else { return };
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let Some(settled) = queue.entries.settle(position, verdict) else { return };
        if let Some(message) = settled.released {
            released(&mut self.store, out.fx, Kept::InMemory(message), queue.durable_id);
        } else {
            self.mark_dirty(slot);
        }
        if settled.holder != Holder::GET {
            self.settled_by(settled.holder.0, slot);
        }
    }

    /// Takes one message for a get.
    pub fn get<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        home: ShardId,
        channel: ChannelId,
        id: QueueId,
        no_ack: bool,
    ) {
        let Some(slot) = self.slot_of(id) else { return out.queue_gone(home, channel) };
        let now_ms = self.now_ms;
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        queue.last_used_ms = now_ms;
        // Behind those that wait already.
        let waits = queue.awaits_load || !self.next_is_in_memory(out, slot);
        if waits && self.queue_at(slot).entries.ready() > 0 {
            return self.pending_gets.push(PendingGet { queue: id, home, channel, no_ack });
        }
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let cursor = queue.entries.cursor();
        let claimed = queue.entries.claim(cursor, Holder::GET).expect("the cursor was read in this step");
        let Some(Claim { position, message, redelivered }) = claimed else {
            return out.answer(home, channel, Reply::Empty);
        };
        let (remaining, durable_id) = (queue.entries.ready(), queue.durable_id);
        if !no_ack {
            note_claim(&self.store, out.fx, message, durable_id);
        }
        let record = RecordRef::Stored(self.store.record(message));
        let entry = (!no_ack).then_some((id, position));
        out.got(home, channel, entry, redelivered, remaining, record);
        if no_ack {
            self.settle(out, id, position, Verdict::Accept);
        }
    }

    /// Drops the ready messages; the unacked stay. They are out of the queue at once; millions are
    /// carried off in slices, and the answer comes then.
    pub fn purge<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        home: ShardId,
        channel: ChannelId,
        id: QueueId,
    ) {
        let Some(slot) = self.slot_of(id) else { return out.queue_gone(home, channel) };
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let (store, durable_id) = (&mut self.store, queue.durable_id);
        let (rest, count) = queue.entries.split_ready(|kept| released(store, out.fx, kept, durable_id));
        let answer = Some(Purged { home, channel, messages: count });
        self.rubble.push_back(Rubble { durable_id, entries: rest, answer });
        // Most purges are done with this.
        self.carry_off(out);
    }

    /// Ready messages and consumers of a queue; asking counts as use.
    pub fn status(&mut self, id: QueueId) -> Option<(u64, u64)> {
        let now_ms = self.now_ms;
        let queue = self.queue_mut(id)?;
        queue.last_used_ms = now_ms;
        Some((queue.entries.ready(), queue.consumers.len() as u64))
    }

    /// Drops a queue, if its conditions hold: at once for everybody, its memory in slices later.
    ///
    /// # Errors
    /// When it is in use or not empty, as asked.
    pub fn drop_queue<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        vhost: &str,
        id: QueueId,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<u64, Refusal> {
        let Some(slot) = self.slot_of(id) else { return Ok(0) };
        let queue = self.queue_at(slot);
        let name = &queue.info.name;
        if if_unused && !queue.consumers.is_empty() {
            return Err(Refusal::new(
                RefusalKind::PreconditionFailed,
                format!("queue '{name}' in vhost '{vhost}' in use"),
            ));
        }
        if if_empty && queue.entries.ready() > 0 {
            return Err(Refusal::new(
                RefusalKind::PreconditionFailed,
                format!("queue '{name}' in vhost '{vhost}' not empty"),
            ));
        }
        let queue = self.queues[slot].take().expect("the slot was just looked up");
        self.refuse_gets(out, id);
        let messages = queue.entries.ready();
        for slot in &queue.consumers {
            let consumer = self.consumers.remove(*slot as usize);
            self.by_name.remove(&(consumer.home, consumer.id));
            self.links[consumer.link as usize].forget(*slot);
            let (channel, consumer_id) = (consumer.channel, consumer.id);
            out.tell(consumer.home, PeerMessage::ConsumerCancelled { channel, consumer: consumer_id });
        }
        // Cancelled consumers that waited for their last acks end here too.
        for slot in &queue.lingering {
            self.consumers.remove(*slot as usize);
        }
        self.rubble.push_back(Rubble { durable_id: queue.durable_id, entries: queue.entries, answer: None });
        Ok(messages)
    }

    /// Everything up to this sequence is as durable as configured: confirms go out.
    pub fn committed<E: Effects>(&mut self, out: &mut Outward<'_, E>, frontier: LogSequence) {
        self.committed = frontier;
        self.finish_spills(out);
        while let Some(waiting) = self.waiting.front()
            && waiting.sequence <= frontier
        {
            let ConfirmTo { home, channel, number } = waiting.to;
            out.confirmed(home, channel, number, true);
            self.waiting.pop_front();
        }
    }

    /// Asserts the owner's invariants with full counts. For tests and the simulator.
    pub fn assert_consistent(&self) {
        let mut references = 0;
        for queue in self.queues.iter().flatten() {
            queue.entries.assert_consistent();
            references += queue.entries.ready() + queue.entries.unacked();
            if queue.entries.ready() > 0 {
                assert!(
                    queue.dirty || queue.awaits_load || queue.turns.is_empty(),
                    "a queue with ready messages has nobody who could take one"
                );
            }
        }
        if self.rubble.is_empty() {
            assert_eq!(references, self.store.references(), "every stored message is in a queue");
        }
        self.assert_credit();
    }
}
