//! What happens by itself: messages and queues whose time has come, and rubble carried off in slices.

use super::dead_letter::Reason;
use super::deadlines::Due;
use super::{Owner, name_in_log, released};
use crate::ledger::{Kept, Ledger, Position};
use crate::shard::batch::{Ask, PeerMessage};
use crate::shard::effects::Effects;
use crate::shard::front_end::Reply;
use crate::shard::outward::Outward;
use crate::topology::{Operation, Requester};
use crate::{ChannelId, DurableId, QueueId};
use crate::{ConnectionId, ShardId};

/// Blocks of 64 entries that one step carries off: 25 µs of work, and ten times as much when none of it is in the
/// processor's caches.
const RUBBLE_BLOCKS_PER_STEP: usize = 4;
/// Deadlines that one step looks at.
const DEADLINES_PER_STEP: usize = 4096;

/// Entries that are out of their queue and still hold messages.
pub(super) struct Rubble {
    /// The queue's name in the log.
    pub durable_id: Option<DurableId>,
    pub entries: Ledger,
    /// Who is told when it is carried off: a purge is answered when the log knows of every message, or
    /// they would come back after a crash. Nobody, if the queue itself is gone.
    pub answer: Option<Purged>,
}

/// A purge that is under way.
pub(super) struct Purged {
    pub home: ShardId,
    pub channel: ChannelId,
    pub messages: u64,
}

impl Owner {
    /// Drops what is past its time. True if more is due than one step does.
    pub fn expire_due<E: Effects>(&mut self, out: &mut Outward<'_, E>) -> bool {
        self.waits.tick();
        let queues = &self.queues;
        self.deadlines.sweep_some(|id, position| {
            let queue = queues.get(id.slot() as usize).and_then(|queue| queue.as_deref());
            queue.is_some_and(|queue| queue.info.id == id && queue.entries.is_live(position))
        });
        let more_to_end = self.end_expired(out);
        for _ in 0..DEADLINES_PER_STEP {
            match self.deadlines.pop_due(self.now_ms) {
                None => return more_to_end,
                Some(Due::Message(queue, position)) => self.expire_message(out, queue, position),
                Some(Due::Queue(queue)) => self.expire_queue(out, queue),
                Some(Due::DeadLetter(number)) => self.retry_dead_letter(number),
            }
        }
        true
    }

    /// When the next deadline comes.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first_ms()
    }

    fn expire_message<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId, position: Position) {
        let Some(slot) = self.slot_of(id) else { return };
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let on_disk = matches!(queue.entries.kept_at(position), Some(Kept::InLog(_)));
        if on_disk && queue.settings.dead_letter.is_some() {
            return self.expire_when_read(out, id, position);
        }
        self.end_expired_message(out, slot, position);
    }

    /// The queue gives an expired message up, unless somebody has it.
    pub(super) fn end_expired_message<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        position: Position,
    ) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let durable_id = queue.durable_id;
        // One that a restart made too many is over as soon as it is there.
        let failures = queue.entries.returns(position).failures;
        let reason = match queue.settings.is_past_delivery_limit(failures.into()) {
            true => Reason::DeliveryLimit,
            false => Reason::Expired,
        };
        match queue.entries.expire(position) {
            None => {}
            Some(Kept::InMemory(message)) => {
                self.left_ready(slot, message);
                self.let_go(out, slot, message, reason);
            }
            // Nobody wants it, and its bytes are not counted: see [`crate::queue::Queue::is_pageable`].
            Some(kept) => {
                released(&mut self.store, out.fx, kept, durable_id);
                if self.queue_at(slot).room.is_some() {
                    self.mark_dirty(slot);
                }
            }
        }
    }

    fn expire_queue<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId) {
        let now_ms = self.now_ms;
        let Some(queue) = self.queue_mut(id) else { return };
        let Some(expires_ms) = queue.settings.expires_ms else { return };
        if queue.expiry_at_ms > now_ms {
            // Of former settings.
            return;
        }
        let unused = queue.consumers.is_empty();
        let at_ms = queue.last_used_ms.saturating_add(expires_ms);
        if unused && at_ms <= now_ms {
            let nobody = ConnectionId { shard: ShardId(0), slot: u32::MAX, generation: 0 };
            let operation = Operation::ExpireQueue { queue: id, if_unused: true };
            let ask = Ask { operation, requester: Requester { connection: nobody }, answer_to: None };
            out.ask_writer(PeerMessage::Topology(Box::new(ask)));
        }
        // Also after asking: a consumer may come first and the writer refuse.
        let again_ms = match unused {
            true if at_ms <= now_ms => now_ms + 1_000,
            true => at_ms,
            false => now_ms.saturating_add(expires_ms),
        };
        queue.expiry_at_ms = again_ms;
        self.deadlines.push(again_ms, Due::Queue(id));
    }

    /// There is something to carry off right now. Who waits for the log is called when that has moved.
    pub fn has_rubble(&self) -> bool {
        !self.rubble.is_empty() && !self.log_is_behind
    }

    /// Frees a slice of what purged and deleted queues have left, if the log can take that.
    pub fn carry_off<E: Effects>(&mut self, out: &mut Outward<'_, E>) {
        if !self.has_rubble() {
            return;
        }
        let Rubble { durable_id, entries, answer } = self.rubble.front_mut().expect("there is some");
        let (store, durable_id, is_gone) = (&mut self.store, *durable_id, answer.is_none());
        let done =
            entries.demolish(RUBBLE_BLOCKS_PER_STEP, |kept| match name_in_log(store, kept, durable_id) {
                Some(name) if is_gone => out.fx.discarded(name, durable_id),
                Some(name) => out.fx.settled(name, durable_id),
                None => {}
            });
        if done && let Some(Rubble { answer: Some(purged), .. }) = self.rubble.pop_front() {
            let Purged { home, channel, messages } = purged;
            out.answer(home, channel, Reply::QueuePurged { messages });
        }
    }
}
