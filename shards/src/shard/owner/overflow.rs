//! Queues that have a bound on their length: what is ready counts, in messages and in bytes of bodies.
//!
//! Bytes are counted only while a queue has a bound on them, and from the sizes that the store knows: no
//! body is looked at.

use super::dead_letter::Reason;
use super::{Entered, Owner};
use crate::queue::{Overflow, Queue};
use crate::shard::batch::RecordRef;
use crate::shard::effects::Effects;
use crate::shard::outward::Outward;

impl Owner {
    /// One more message with this body would be more than the queue may have ready.
    fn would_exceed(queue: &Queue, body_bytes: u64) -> bool {
        queue.settings.exceeds(queue.entries.ready() + 1, queue.ready_bytes + body_bytes)
    }

    /// What becomes of a message for a queue that does not make room by dropping others: none if it may
    /// come in.
    pub(super) fn turned_away(&mut self, slot: usize, record: RecordRef<'_>) -> Option<Entered> {
        let queue = self.queue_at(slot);
        let body_bytes = record.view().body.len() as u64;
        if queue.settings.overflow == Overflow::Block {
            return Self::must_wait(queue, body_bytes).then_some(Entered::Outside);
        }
        if !Self::would_exceed(queue, body_bytes) {
            return None;
        }
        match queue.settings.overflow {
            Overflow::DropHead | Overflow::Block => None,
            Overflow::RejectPublish => Some(Entered::Refused),
            Overflow::RejectPublishDeadLetter => {
                self.give_up(slot, record, Reason::MaxLength);
                Some(Entered::Refused)
            }
        }
    }

    /// Drops the first ready messages until the queue is as short as it must be.
    pub(super) fn shorten<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize) {
        loop {
            let queue = self.queues[slot].as_deref_mut().expect("a shortened queue exists");
            if !queue.settings.exceeds(queue.entries.ready(), queue.ready_bytes) {
                return;
            }
            let mut dropped = None;
            queue.entries.drop_ready(1, |message| dropped = Some(message));
            // A queue with nothing ready exceeds no bound.
            let message = dropped.expect("a queue that is too long has a ready message");
            self.left_ready(slot, message);
            self.let_go(out, slot, message, Some(Reason::MaxLength));
        }
    }

    /// A message has become ready in a queue with a bound. If it is one too many, the queue is shortened
    /// when the step ends, or before the next message comes: by then the log knows of this one.
    pub(super) fn became_ready(&mut self, slot: usize, message: u32) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        if queue.settings.max_length_bytes.is_some() {
            queue.ready_bytes += self.store.body_bytes(message);
        }
        self.mark_dirty(slot);
    }

    /// A message is not ready any more. To be called before the store lets go of it.
    pub(super) fn left_ready(&mut self, slot: usize, message: u32) {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        if queue.settings.max_length_bytes.is_some() {
            queue.ready_bytes -= self.store.body_bytes(message);
        }
        if queue.room.is_some() {
            self.mark_dirty(slot);
        }
    }

    /// What a full count of ready bytes must give. For tests and the simulator.
    pub(super) fn assert_length(&self, queue: &Queue) {
        if queue.settings.max_length_bytes.is_some() {
            let bytes = queue.entries.ready_messages().map(|message| self.store.body_bytes(message));
            assert_eq!(bytes.sum::<u64>(), queue.ready_bytes, "bytes of ready bodies");
        }
        if queue.settings.overflow == Overflow::DropHead {
            let exceeds = queue.settings.exceeds(queue.entries.ready(), queue.ready_bytes);
            assert!(!exceeds, "a queue is not longer than it may be");
        }
    }
}
