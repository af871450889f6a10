//! Queues that have a bound on their length: what is ready counts, in messages and in bytes of bodies.
//!
//! Bytes are counted only while a queue has a bound on them, and from the sizes that the store knows: no
//! body is looked at.

use super::dead_letter::Reason;
use super::{Entered, Owner, released};
use crate::ledger::Kept;
use crate::queue::{Bound, Overflow, Queue};
use crate::shard::batch::RecordRef;
use crate::shard::effects::Effects;
use crate::shard::outward::Outward;

impl Owner {
    /// What becomes of a message for a queue that does not make room by dropping others: none if it may
    /// come in.
    pub(super) fn turned_away(
        &mut self,
        slot: usize,
        bound: Bound,
        record: RecordRef<'_>,
    ) -> Option<Entered> {
        let queue = self.queue_at(slot);
        let (ready, body_bytes) = (queue.entries.ready(), record.view().body.len() as u64);
        let is_full = bound.is_exceeded_by(ready + 1, queue.ready_bytes + body_bytes);
        match bound.overflow {
            Overflow::DropHead => None,
            Overflow::RejectPublish => is_full.then_some(Entered::Refused),
            Overflow::RejectPublishDeadLetter if is_full => {
                self.give_up(slot, record, Reason::MaxLength);
                Some(Entered::Refused)
            }
            Overflow::RejectPublishDeadLetter => None,
            Overflow::Block => Self::must_wait(queue, body_bytes).then_some(Entered::Outside),
        }
    }

    /// Drops the first ready messages until the queue is as short as it must be, if that is its way.
    pub(super) fn shorten<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize, bound: Bound) {
        if bound.overflow != Overflow::DropHead {
            return;
        }
        loop {
            let queue = self.queues[slot].as_deref_mut().expect("a shortened queue exists");
            if !bound.is_exceeded_by(queue.entries.ready(), queue.ready_bytes) {
                return;
            }
            let goes_on = queue.settings.dead_letter.is_some();
            if goes_on && (queue.awaits_load || !self.next_is_in_memory(out, slot)) {
                // It is shortened when its first message has been read.
                return;
            }
            let queue = self.queues[slot].as_deref_mut().expect("a shortened queue exists");
            let (mut dropped, durable_id) = (None, queue.durable_id);
            queue.entries.drop_ready(1, |kept| dropped = Some(kept));
            match dropped {
                Some(Kept::InMemory(message)) => {
                    self.left_ready(slot, message);
                    self.let_go(out, slot, message, Reason::MaxLength);
                }
                Some(kept) => released(&mut self.store, out.fx, kept, durable_id),
                // It could not be read, and was the only one.
                None => return,
            }
        }
    }

    /// A message has become ready. If it is one too many for a queue with a bound, the queue is shortened
    /// when the step ends, or before the next message comes: by then the log knows of this one.
    pub(super) fn became_ready(&mut self, slot: usize, message: u32) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let Some(bound) = queue.settings.bound else { return };
        if bound.bytes.is_some() {
            queue.ready_bytes += self.store.body_bytes(message);
        }
        self.mark_dirty(slot);
    }

    /// A ready message is back in memory. Only a queue that has got its bound in bytes since it left counts
    /// it; it may be too much.
    pub(super) fn came_back(&mut self, slot: usize, message: u32) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        if queue.settings.bound.is_some_and(|bound| bound.bytes.is_some()) {
            queue.ready_bytes += self.store.body_bytes(message);
            self.mark_dirty(slot);
        }
    }

    /// A message is not ready any more. To be called before the store lets go of it.
    pub(super) fn left_ready(&mut self, slot: usize, message: u32) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let Some(bound) = queue.settings.bound else { return };
        if bound.bytes.is_some() {
            queue.ready_bytes -= self.store.body_bytes(message);
        }
        if queue.room.is_some() {
            self.mark_dirty(slot);
        }
    }

    /// What a full count of ready bytes must give. For tests and the simulator.
    pub(super) fn assert_length(&self, queue: &Queue) {
        let Some(bound) = queue.settings.bound else { return };
        if bound.bytes.is_some() {
            let bytes = queue.entries.ready_messages().map(|message| self.store.body_bytes(message));
            assert_eq!(bytes.sum::<u64>(), queue.ready_bytes, "bytes of ready bodies");
        }
        if bound.overflow == Overflow::DropHead {
            let is_exceeded = bound.is_exceeded_by(queue.entries.ready(), queue.ready_bytes);
            assert!(!is_exceeded || queue.awaits_load, "a queue is not longer than it may be");
        }
    }
}
