//! Claims that one request makes or ends: a get, and whatever becomes of a delivery.

use super::dead_letter::Reason;
use super::paging::PendingGet;
use super::{Owner, note_claim, note_return, released};
use crate::ledger::{Claim, Holder, Kept, Position};
use crate::message::MessageView;
use crate::shard::batch::RecordRef;
use crate::shard::effects::Effects;
use crate::shard::front_end::{Reply, Verdict};
use crate::shard::outward::Outward;
use crate::{ChannelId, QueueId, ShardId};

impl Owner {
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
        if verdict != Verdict::Accept {
            return self.settle_otherwise(out, slot, position, verdict);
        }
        let Some(settled) = queue.entries.settle(position, verdict) else { return };
        let message = settled.released.expect("what is accepted is let go");
        released(&mut self.store, out.fx, Kept::InMemory(message), queue.durable_id);
        if settled.holder != Holder::GET {
            self.settled_by(settled.holder.0, slot);
        }
    }

    /// A message was not processed: it goes back to its place, or is given up. Out of line: an ack is not
    /// to pay for it.
    #[inline(never)]
    fn settle_otherwise<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        position: Position,
        mut verdict: Verdict,
    ) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        // One that could come back, and does not, has expired meanwhile.
        let mut reason = if verdict == Verdict::Reject { Reason::Rejected } else { Reason::Expired };
        if verdict == Verdict::Fail
            && queue.settings.is_past_delivery_limit(u32::from(queue.entries.returns(position).failures) + 1)
        {
            (verdict, reason) = (Verdict::Reject, Reason::DeliveryLimit);
        }
        let Some(settled) = queue.entries.settle(position, verdict) else { return };
        if let Some(message) = settled.released {
            self.let_go(out, slot, message, reason);
        } else {
            let kept = queue.entries.kept_at(position);
            let Some(Kept::InMemory(message)) = kept else { unreachable!("it was just put back") };
            note_return(&self.store, out.fx, message, queue.durable_id, verdict == Verdict::Fail);
            if queue.settings.bound.is_some() {
                self.became_ready(slot, message);
            }
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
        self.waits.left(id, position);
        let (remaining, durable_id) = (queue.entries.ready(), queue.durable_id);
        if !no_ack {
            note_claim(&self.store, out.fx, message, durable_id);
        }
        self.left_ready(slot, message);
        let record = self.store.record(message);
        let entry = (!no_ack).then_some((id, position));
        let queue = self.queue_at(slot);
        if redelivered && queue.settings.delivery_limit.is_some() {
            let returns = queue.entries.returns(position);
            let properties = out.fx.with_returns(record.view().properties, returns);
            let message = MessageView { properties: &properties, ..record.view() };
            out.got(home, channel, entry, redelivered, remaining, RecordRef::View(message));
        } else {
            out.got(home, channel, entry, redelivered, remaining, RecordRef::Stored(record));
        }
        if no_ack {
            self.settle(out, id, position, Verdict::Accept);
        }
    }
}
