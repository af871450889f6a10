//! Other settings for a queue that lives: policies ask something else of it.
//!
//! From the end of the step on, the queue is as its new settings say: too long a queue is shortened, what
//! waits outside of one that has room goes in, and a queue that may expire has a deadline. A new time to
//! live holds for messages to come; those that are there have theirs, as in RabbitMQ.
//!
//! A bound in bytes counts what is in memory: messages that were paged out before there was such a bound
//! count when they come back.

use std::sync::Arc;

use super::Owner;
use super::deadlines::Due;
use crate::topology::QueueInfo;

impl Owner {
    /// Takes the queue's description in place of the one it has.
    pub fn update_queue(&mut self, info: &Arc<QueueInfo>) {
        let Some(slot) = self.slot_of(info.id) else { return };
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let settings = info.settings();
        queue.info = Arc::clone(info);
        let former = std::mem::replace(&mut queue.settings, settings);
        let bytes_bound = queue.settings.bound.is_some_and(|bound| bound.bytes.is_some());
        if former.bound.is_some_and(|bound| bound.bytes.is_some()) != bytes_bound {
            let store = &self.store;
            queue.ready_bytes = match bytes_bound {
                true => queue.entries.ready_messages().map(|message| store.body_bytes(message)).sum(),
                false => 0,
            };
        }
        if former.expires_ms != queue.settings.expires_ms
            && let Some(expires_ms) = queue.settings.expires_ms
        {
            let at_ms = self.now_ms.saturating_add(expires_ms);
            queue.last_used_ms = self.now_ms;
            queue.expiry_at_ms = at_ms;
            self.deadlines.push(at_ms, Due::Queue(info.id));
        }
        self.mark_dirty(slot);
    }
}
