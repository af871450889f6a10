//! Which shard owns a new queue, and which slot it gets there.
//!
//! Owned by the writer. A slot is used by one queue after another, each with a generation of its own;
//! a slot whose generations are used up is retired, so that a queue's id never comes twice.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::{QueueId, ShardId};

/// The slots of all shards.
#[derive(Debug)]
pub(super) struct Placement {
    shards: Vec<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    queues: u32,
    /// Slots that were given back, the longest idle first.
    free: VecDeque<(u32, u32)>,
    /// The first slot that was never used.
    unused: u32,
}

impl Placement {
    pub fn new(shards: usize) -> Placement {
        Placement { shards: (0..shards).map(|_| Slots::default()).collect() }
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The shard with the fewest queues; among equals the first.
    pub fn emptiest(&self) -> ShardId {
        let (index, _) = self
            .shards
            .iter()
            .enumerate()
            .min_by_key(|(_, slots)| slots.queues)
            .expect("a broker has at least one shard");
        ShardId(index as u16)
    }

    /// A new id on this shard, or none if all its slots are taken.
    pub fn take(&mut self, owner: ShardId) -> Option<QueueId> {
        let slots = &mut self.shards[owner.index()];
        let (slot, generation) = match slots.free.pop_front() {
            Some(free) => free,
            None if slots.unused < QueueId::SLOTS_MAX => {
                slots.unused += 1;
                (slots.unused - 1, 0)
            }
            None => return None,
        };
        slots.queues += 1;
        Some(QueueId::new(owner, slot, generation))
    }

    /// Takes the slot of a queue that is gone back.
    pub fn give_back(&mut self, queue: QueueId) {
        let slots = &mut self.shards[queue.owner().index()];
        slots.queues -= 1;
        let next = queue.generation() + 1;
        // The id cuts a generation that it cannot hold: then the slot has no new one left.
        if QueueId::new(queue.owner(), queue.slot(), next).generation() == next {
            slots.free.push_back((queue.slot(), next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_spread_evenly_and_slots_return_with_a_new_generation() {
        let mut placement = Placement::new(3);
        let ids: Vec<QueueId> = (0..6)
            .map(|_| {
                let owner = placement.emptiest();
                placement.take(owner).unwrap()
            })
            .collect();
        assert_eq!(ids.iter().map(|id| id.owner().0).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        placement.give_back(ids[4]);
        assert_eq!(placement.emptiest(), ShardId(1));
        let again = placement.take(ShardId(1)).unwrap();
        assert_eq!((again.slot(), again.generation()), (ids[4].slot(), 1));
    }

    #[test]
    fn a_slot_without_generations_is_retired() {
        let mut placement = Placement::new(1);
        let first = placement.take(ShardId(0)).unwrap();
        placement.give_back(QueueId::new(ShardId(0), first.slot(), (1 << 30) - 1));
        let next = placement.take(ShardId(0)).unwrap();
        assert_ne!(next.slot(), first.slot());
    }
}
