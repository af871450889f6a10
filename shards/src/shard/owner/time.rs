//! What happens by itself: messages and queues whose time has come, and rubble carried off in slices.

use std::cmp::Ordering;

use super::{Owner, released};
use crate::ledger::{Entries, Position};
use crate::shard::batch::{Ask, PeerMessage};
use crate::shard::effects::Effects;
use crate::shard::front_end::Reply;
use crate::shard::outward::Outward;
use crate::topology::{Operation, Requester};
use crate::{ChannelId, DurableId, QueueId};
use crate::{ConnectionId, ShardId};

/// Blocks of 64 entries that one step carries off: about 50 µs of work.
const RUBBLE_BLOCKS_PER_STEP: usize = 16;
/// Deadlines that one step looks at.
const DEADLINES_PER_STEP: usize = 4096;

/// Entries that are out of their queue and still hold messages.
pub(super) struct Rubble {
    /// The queue's name in the log.
    pub durable_id: Option<DurableId>,
    pub entries: Entries,
    /// Who is told when it is carried off: a purge is answered when the log knows of every message, or
    /// they would come back after a crash.
    pub answer: Option<Purged>,
}

/// A purge that is under way.
pub(super) struct Purged {
    pub home: ShardId,
    pub channel: ChannelId,
    pub messages: u64,
}

#[derive(PartialEq, Eq, Debug)]
enum Due {
    Message(Position),
    Queue,
}

/// A moment at which something may end. Earliest first in a heap; looked at again when it comes,
/// since the message may be settled and the queue used by then.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Deadline {
    at_ms: u64,
    queue: QueueId,
    due: Due,
}

impl Deadline {
    pub fn message(at_ms: u64, queue: QueueId, position: Position) -> Deadline {
        Deadline { at_ms, queue, due: Due::Message(position) }
    }

    pub fn queue(at_ms: u64, queue: QueueId) -> Deadline {
        Deadline { at_ms, queue, due: Due::Queue }
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> Ordering {
        // Reversed: the standard heap gives its greatest.
        other.at_ms.cmp(&self.at_ms)
    }
}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Owner {
    /// Drops what is past its time. True if more is due than one step does.
    pub fn expire_due<E: Effects>(&mut self, out: &mut Outward<'_, E>) -> bool {
        for _ in 0..DEADLINES_PER_STEP {
            match self.deadlines.peek() {
                Some(next) if next.at_ms <= self.now_ms => {}
                _ => return false,
            }
            let deadline = self.deadlines.pop().expect("it was just looked at");
            match deadline.due {
                Due::Message(position) => self.expire_message(out, deadline.queue, position),
                Due::Queue => self.expire_queue(out, deadline.queue),
            }
        }
        true
    }

    fn expire_message<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId, position: Position) {
        let Some(queue) = self.queue_mut(id) else { return };
        let Some(kept) = queue.entries.expire(position) else { return };
        let durable_id = queue.durable_id;
        released(&mut self.store, out.fx, kept, durable_id);
    }

    fn expire_queue<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId) {
        let now_ms = self.now_ms;
        let Some(queue) = self.queue_mut(id) else { return };
        let Some(expires_ms) = queue.expires_ms else { return };
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
        self.deadlines.push(Deadline::queue(again_ms, id));
    }

    pub fn has_rubble(&self) -> bool {
        !self.rubble.is_empty()
    }

    /// Frees what purged and deleted queues have left, a slice at a time. True if more is left.
    pub fn carry_off<E: Effects>(&mut self, out: &mut Outward<'_, E>) -> bool {
        let Some(Rubble { durable_id, entries, .. }) = self.rubble.front_mut() else { return false };
        let (durable_id, store) = (*durable_id, &mut self.store);
        let done = entries.demolish(RUBBLE_BLOCKS_PER_STEP, |kept| released(store, out.fx, kept, durable_id));
        if done && let Some(Rubble { answer: Some(purged), .. }) = self.rubble.pop_front() {
            let Purged { home, channel, messages } = purged;
            out.answer(home, channel, Reply::QueuePurged { messages });
        }
        !self.rubble.is_empty()
    }
}
