//! Backlogs larger than memory: messages leave it once they are on disk, and come back when their turn
//! comes.
//!
//! From half of the memory budget on, what waits in long queues is paged out, furthest from the cursor's
//! reach first kept out of it: a message that is in the log and committed keeps its entry and nothing else.
//! One that is not in the log is spilled: appended for this queue alone, to be forgotten with the process.
//! A paged-out message comes back one at a time, when it is next and somebody can take it; the log reads
//! ahead. While it is being read, the queue waits and all others go on.

use super::{Owner, released};
use crate::ledger::{Kept, Ledger, Position};
use crate::limits::{PAGED_OUT_PER_TURN, PAGING_QUEUES_PER_TURN, POSITIONS_KEPT_AHEAD};
use crate::queue::Record;
use crate::shard::effects::{Effects, Loaded, LogSequence};
use crate::shard::outward::Outward;
use crate::{ChannelId, QueueId, ShardId};

/// A message that is on its way to the disk to be out of memory.
pub(super) struct Spilling {
    queue: QueueId,
    position: Position,
    message: u32,
    name: LogSequence,
}

/// A get that waits for its message to be read.
pub(super) struct PendingGet {
    pub queue: QueueId,
    pub home: ShardId,
    pub channel: ChannelId,
    pub no_ack: bool,
}

impl Owner {
    /// Moves messages out of memory if much of it is used: a slice of work. True if more is left to do now.
    pub fn page_out<E: Effects>(&mut self, out: &mut Outward<'_, E>) -> bool {
        let mut left = PAGED_OUT_PER_TURN;
        for _ in 0..PAGING_QUEUES_PER_TURN.min(self.queues.len()) {
            if self.memory_use() <= self.memory_budget_bytes / 2 {
                return false;
            }
            if left == 0 {
                return true;
            }
            self.paging_slot = (self.paging_slot + 1) % self.queues.len();
            self.page_out_queue(out, self.paging_slot, &mut left);
        }
        false
    }

    fn page_out_queue<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize, left: &mut u64) {
        let Some(queue) = self.queues[slot].as_deref() else { return };
        let Ledger::Plain(entries) = &queue.entries else { return };
        if entries.ready() == entries.paged_out() || !queue.is_pageable() {
            return;
        }
        // What is next stays as long as there is room for it: it would come back at once.
        let cursor = entries.cursor_position();
        let ahead = cursor.saturating_add(POSITIONS_KEPT_AHEAD);
        let paged_to = queue.paged_to;
        let mut at = paged_to.max(ahead);
        if self.memory_use() > self.memory_budget_bytes / 4 * 3 {
            let (mut near, until) = (cursor, ahead.min(at));
            while near < until && *left > 0 {
                let Some(next) = self.page_out_next(out, slot, near, until - near) else { break };
                near = next;
                *left -= 1;
            }
        }
        while *left > 0 {
            let Ledger::Plain(entries) = &self.queue_at(slot).entries else { return };
            if at >= entries.published() {
                break;
            }
            let Some(next) = self.page_out_next(out, slot, at, 64) else { break };
            at = next;
            *left -= 1;
        }
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked at");
        let Ledger::Plain(entries) = &queue.entries else { return };
        queue.paged_to = at.min(entries.published());
    }

    /// Pages out the first message at or behind `from` that is in memory, within `most` positions, or spills
    /// it. Gives where to go on; none if a commit has to come first.
    fn page_out_next<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        from: u64,
        most: u64,
    ) -> Option<u64> {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked at");
        let Ledger::Plain(entries) = &mut queue.entries else { return None };
        let (found, next) = entries.next_in_memory(from, most);
        let Some((position, message)) = found else { return Some(next) };
        let (id, is_durable) = (queue.info.id, queue.durable_id.is_some());
        if self.store.is_spilling(message) {
            return None;
        }
        let in_log = self.store.in_log(message);
        if in_log.name == 0 || !(is_durable || in_log.for_any_queue) {
            if !self.short_of_space
                && let Some(name) = out.fx.spill(&self.store.record(message).view())
            {
                self.store.set_spilling(message, true);
                self.spilling.push_back(Spilling { queue: id, position, message, name });
            }
            return Some(next);
        }
        if in_log.name > self.committed {
            return None;
        }
        let gone = entries.page_out(position, message, in_log.name);
        assert!(gone, "it was found ready and in memory");
        self.store.page_out(message);
        Some(next)
    }

    /// What was spilled and is on disk leaves memory, if it is still waiting.
    pub(super) fn finish_spills<E: Effects>(&mut self, out: &mut Outward<'_, E>) {
        while let Some(first) = self.spilling.front()
            && first.name <= self.committed
        {
            let Spilling { queue, position, message, name } = self.spilling.pop_front().expect("looked at");
            self.store.set_spilling(message, false);
            // A policy may have given the queue a bound in bytes meanwhile: it stays in memory then.
            let queue = self.queue_mut(queue).filter(|queue| queue.is_pageable());
            let gone = match queue.map(|queue| &mut queue.entries) {
                Some(Ledger::Plain(entries)) => entries.page_out(position, message, name),
                _ => false,
            };
            if gone {
                // The log has it for this queue, whatever it had of it for others.
                self.store.page_out(message);
            } else {
                out.fx.settled(name, None);
            }
        }
    }

    /// Brings the queue's next message back into memory if it is not there. False if it has to be waited
    /// for, or if there is none.
    pub(super) fn next_is_in_memory<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize) -> bool {
        loop {
            let queue = self.queues[slot].as_deref_mut().expect("a served queue exists");
            let next = match &mut queue.entries {
                Ledger::Plain(entries) => entries.next_paged_out(),
                Ledger::Levels(_) => None,
            };
            let Some((position, name)) = next else { return queue.entries.ready() > 0 };
            let id = queue.info.id;
            match out.fx.load(name, id) {
                Loaded::Record(record) => {
                    let message = self.store.page_in(Record::from_bytes(record.into()), name);
                    queue.entries.page_in(position, message);
                    self.came_back(slot, message);
                    return true;
                }
                Loaded::Later => {
                    queue.awaits_load = true;
                    return false;
                }
                Loaded::Lost => {
                    let durable_id = queue.durable_id;
                    queue.entries.drop_ready(1, |kept| released(&mut self.store, out.fx, kept, durable_id));
                }
            }
        }
    }

    /// A message that has expired is to be dead-lettered: it is brought back into memory if it is not there.
    /// False if it has to be waited for: [`Self::arrived`] will name the queue.
    pub(super) fn expiring_is_in_memory<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        position: Position,
    ) -> bool {
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let id = queue.info.id;
        let Ledger::Plain(entries) = &mut queue.entries else { return true };
        let Some(Kept::InLog(name)) = entries.kept_at(position) else { return true };
        match out.fx.load(name, id) {
            Loaded::Record(record) => {
                let message = self.store.page_in(Record::from_bytes(record.into()), name);
                queue.entries.page_in(position, message);
                self.came_back(slot, message);
                true
            }
            Loaded::Later => false,
            // There is nothing to be dead-lettered: it is dropped.
            Loaded::Lost => true,
        }
    }

    /// What this queue waited for can be loaded now.
    pub fn arrived<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId) {
        self.expired_arrived(out, id);
        let Some(slot) = self.slot_of(id) else { return };
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        if !std::mem::take(&mut queue.awaits_load) {
            return;
        }
        let gets = std::mem::take(&mut self.pending_gets);
        for get in gets {
            match get.queue == id {
                true => self.get(out, get.home, get.channel, id, get.no_ack),
                false => self.pending_gets.push(get),
            }
        }
        self.mark_dirty(slot);
    }

    /// The gets of a channel that is closing are not answered any more.
    pub(super) fn forget_gets(&mut self, home: ShardId, channel: ChannelId) {
        self.pending_gets.retain(|get| (get.home, get.channel) != (home, channel));
    }

    /// A queue is gone that gets may wait for.
    pub(super) fn refuse_gets<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId) {
        self.pending_gets.retain(|get| {
            let here = get.queue == id;
            if here {
                out.queue_gone(get.home, get.channel);
            }
            !here
        });
    }

    fn memory_use(&self) -> u64 {
        self.memory_bytes() + self.log_backlog_bytes
    }
}
