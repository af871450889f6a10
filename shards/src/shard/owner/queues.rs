//! Queues come and go, are emptied and looked at.

use std::sync::Arc;

use super::deadlines::Due;
use super::time::{Purged, Rubble};
use super::{Owner, released};
use crate::ledger::Ledger;
use crate::queue::{Queue, Turns};
use crate::shard::batch::PeerMessage;
use crate::shard::effects::Effects;
use crate::shard::outward::Outward;
use crate::topology::QueueInfo;
use crate::{ChannelId, QueueId, Refusal, RefusalKind, ShardId};

impl Owner {
    /// A queue has come into being.
    pub fn create_queue(&mut self, info: &Arc<QueueInfo>) {
        let slot = info.id.slot() as usize;
        if self.queues.len() <= slot {
            self.queues.resize_with(slot + 1, || None);
        }
        assert!(self.queues[slot].is_none(), "a queue's slot is free when it is created");
        let settings = info.settings();
        let expiry_at_ms = self.now_ms.saturating_add(settings.expires_ms.unwrap_or(0));
        if settings.expires_ms.is_some() {
            self.deadlines.push(expiry_at_ms, Due::Queue(info.id));
        }
        let queue = Queue {
            info: info.clone(),
            entries: Ledger::new(self.epoch, settings.max_priority),
            turns: Turns::default(),
            consumers: Vec::new(),
            durable_id: info.durable_id,
            durability: info.durability().unwrap_or(self.durability),
            exclusively_consumed: false,
            active: None,
            room: None,
            dirty: false,
            awaits_load: false,
            paged_to: 0,
            last_used_ms: self.now_ms,
            expiry_at_ms,
            settings,
            ready_bytes: 0,
            lingering: Vec::new(),
        };
        self.queues[slot] = Some(Box::new(queue));
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
        queue.ready_bytes = 0;
        let answer = Some(Purged { home, channel, messages: count });
        self.rubble.push_back(Rubble { durable_id, entries: rest, answer });
        self.mark_dirty(slot);
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
        if let Some(room) = queue.room {
            self.clear_room(out, *room);
        }
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
}
