//! Queues that let publishers wait (`x-overflow=block`): what comes while such a queue is full waits
//! outside of it, in order, and goes in as room is made.
//!
//! A publisher whose message waits is held: its home publishes nothing more for its channel until the room
//! is empty. So what waits is no more than what was under way. It is neither in the queue nor in the log,
//! and is not confirmed before it is.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{Owner, Waiting};
use crate::Durability;
use crate::queue::{Overflow, Queue, Record};
use crate::shard::batch::{DEAD_LETTERS, PeerMessage, Publisher, RecordRef};
use crate::shard::effects::{Effects, LogSequence};
use crate::shard::outward::Outward;
use crate::{ChannelId, ShardId};

/// A message that waits.
struct Outside {
    record: Record,
    durability: Durability,
    ttl_ms: Option<u64>,
    /// In the owner's list of confirms that wait for rooms.
    confirm: Option<u32>,
}

/// A confirm that waits until the message is in all queues that it went to.
pub(super) struct RoomConfirm {
    to: Publisher,
    /// Queues that it is not in.
    missing: u32,
    accepted: bool,
    /// Of the last record that was appended for it; 0 if there is none.
    sequence: LogSequence,
}

/// In front of one queue.
#[derive(Default)]
pub struct WaitingRoom {
    messages: VecDeque<Outside>,
    /// Publishers that are told when the room is empty.
    held: SmallVec<[(ShardId, ChannelId); 2]>,
}

impl Owner {
    /// A message for a queue that makes its publishers wait has to wait. An empty queue takes any.
    pub(super) fn must_wait(queue: &Queue, body_bytes: u64) -> bool {
        let Some(bound) = queue.settings.bound.filter(|bound| bound.overflow == Overflow::Block) else {
            return false;
        };
        let is_full = bound.is_exceeded_by(queue.entries.ready() + 1, queue.ready_bytes + body_bytes);
        queue.room.is_some() || (queue.entries.ready() > 0 && is_full)
    }

    /// Puts a message into the room of its queue, and holds its publisher. `confirm` is that of the message,
    /// shared by all queues where it waits.
    #[allow(clippy::too_many_arguments, reason = "the parts of one publish")]
    #[cold]
    pub(super) fn park<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        record: RecordRef<'_>,
        durability: Durability,
        ttl_ms: Option<u64>,
        from: Option<&Publisher>,
        confirm: &mut Option<u32>,
    ) {
        let record = record.to_record();
        self.outside_bytes += record.bytes().len() as u64;
        let room = self.queues[slot]
            .as_deref_mut()
            .expect("the slot was just looked up")
            .room
            .get_or_insert_default();
        if let Some(from) = from.filter(|from| from.channel != DEAD_LETTERS)
            && !room.held.contains(&(from.home, from.channel))
        {
            room.held.push((from.home, from.channel));
            out.tell(from.home, PeerMessage::HoldPublisher { channel: from.channel, held: true });
        }
        if let Some(&to) = from.filter(|from| from.number > 0) {
            let waits = RoomConfirm { to, missing: 0, accepted: true, sequence: 0 };
            let key = *confirm.get_or_insert_with(|| self.room_confirms.insert(waits) as u32);
            self.room_confirms[key as usize].missing += 1;
        }
        room.messages.push_back(Outside { record, durability, ttl_ms, confirm: *confirm });
    }

    /// Lets in what there is room for.
    #[cold]
    pub(super) fn let_in<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize) {
        let queue = self.queues[slot].as_deref_mut().expect("a served queue exists");
        let id = queue.info.id;
        // Taken out, so that those who go in do not find others waiting before them.
        let Some(mut room) = queue.room.take() else { return };
        while let Some(first) = room.messages.front() {
            let body_bytes = first.record.view().body.len() as u64;
            if Self::must_wait(self.queue_at(slot), body_bytes) {
                break;
            }
            let Outside { record, durability, ttl_ms, confirm } =
                room.messages.pop_front().expect("looked at");
            self.outside_bytes -= record.bytes().len() as u64;
            let entered = self.enter(out, RecordRef::Stored(&record), &[id], durability, ttl_ms, None);
            self.note_entered(out, confirm, entered.sequence, entered.accepted);
        }
        if room.messages.is_empty() {
            room.let_publishers_go(out);
        } else {
            self.queues[slot].as_deref_mut().expect("it was served").room = Some(room);
        }
    }

    /// A part of a message's confirm is known: it is in one queue more, or in all that did not make it wait.
    pub(super) fn note_entered<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        confirm: Option<u32>,
        sequence: Option<LogSequence>,
        accepted: bool,
    ) {
        let Some(key) = confirm else { return };
        let waits = &mut self.room_confirms[key as usize];
        waits.missing -= 1;
        self.note_part(out, key, sequence, accepted);
    }

    /// As [`Self::note_entered`], for the queues that a message did not have to wait for.
    #[cold]
    pub(super) fn note_part<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        key: u32,
        sequence: Option<LogSequence>,
        accepted: bool,
    ) {
        let waits = &mut self.room_confirms[key as usize];
        waits.accepted &= accepted;
        waits.sequence = waits.sequence.max(sequence.unwrap_or(0));
        if waits.missing > 0 {
            return;
        }
        let RoomConfirm { to, accepted, sequence, .. } = self.room_confirms.remove(key as usize);
        match sequence {
            0 => out.confirmed(to.home, to.channel, to.number, accepted),
            // It may stand behind later ones there, and goes with them.
            sequence => self.waiting.push_back(Waiting { sequence, to, accepted }),
        }
    }

    /// A queue is gone, and what waited in front of it with it.
    pub(super) fn clear_room<E: Effects>(&mut self, out: &mut Outward<'_, E>, room: WaitingRoom) {
        for outside in &room.messages {
            self.outside_bytes -= outside.record.bytes().len() as u64;
            self.note_entered(out, outside.confirm, None, true);
        }
        room.let_publishers_go(out);
    }
}

impl WaitingRoom {
    fn let_publishers_go<E: Effects>(&self, out: &mut Outward<'_, E>) {
        for &(home, channel) in &self.held {
            out.tell(home, PeerMessage::HoldPublisher { channel, held: false });
        }
    }
}
