//! Names of things, as types, so that no two can be confused. Plain values, used on every shard.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One shard: a thread, the queues it owns, the connections that live on it. Counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The position of this shard in a list of all shards.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A virtual host. Small and dense: the topology numbers them from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct VhostId(pub u32);

/// A queue, for as long as it exists: owner, slot on the owner, and a generation that tells a later
/// queue in the same slot apart. Packed into 64 bits because it travels with every message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueueId(u64);

impl QueueId {
    const SLOT_BITS: u32 = 24;
    const GENERATION_BITS: u32 = 30;
    /// Most slots (queues at one time) on one shard.
    pub const SLOTS_MAX: u32 = 1 << Self::SLOT_BITS;

    /// # Panics
    /// When the shard is above 1,023 or the slot is not below [`Self::SLOTS_MAX`].
    pub fn new(owner: ShardId, slot: u32, generation: u32) -> QueueId {
        assert!(owner.0 < 1 << 10, "at most 1,024 shards");
        assert!(slot < Self::SLOTS_MAX, "at most {} queues on a shard", Self::SLOTS_MAX);
        let generation = u64::from(generation) & ((1 << Self::GENERATION_BITS) - 1);
        QueueId(
            u64::from(owner.0) << (Self::SLOT_BITS + Self::GENERATION_BITS)
                | u64::from(slot) << Self::GENERATION_BITS
                | generation,
        )
    }

    /// The number that stands for it where only numbers go.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// What [`Self::to_bits`] gave.
    pub fn from_bits(bits: u64) -> QueueId {
        QueueId(bits)
    }

    /// The shard that owns the queue.
    pub fn owner(self) -> ShardId {
        ShardId((self.0 >> (Self::SLOT_BITS + Self::GENERATION_BITS)) as u16)
    }

    /// The queue's place in its owner's table.
    pub fn slot(self) -> u32 {
        (self.0 >> Self::GENERATION_BITS) as u32 & (Self::SLOTS_MAX - 1)
    }

    /// Which of the slot's queues, one after another, this is.
    pub fn generation(self) -> u32 {
        self.0 as u32 & ((1 << Self::GENERATION_BITS) - 1)
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({}/{}.{})", self.owner(), self.slot(), self.generation())
    }
}

/// A durable queue in the log, for as long as logs exist: a queue that is declared later under the same
/// name has another one. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DurableId(pub u64);

/// A client connection: the shard it lives on, its slot there, and a generation of that slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ConnectionId {
    /// The shard that reads and writes the socket.
    pub shard: ShardId,
    /// Position in that shard's table of connections.
    pub slot: u32,
    /// Tells successive connections in one slot apart.
    pub generation: u32,
}

/// A channel of a connection that lives on this shard: slot in the shard's table of channels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChannelId {
    /// Position in the home shard's table of channels.
    pub slot: u32,
    /// Tells successive channels in one slot apart.
    pub generation: u32,
}

/// A consumer, named by the home shard of its channel; unique there while the shard runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConsumerId(pub u32);

/// Names one delivery on its channel: counts up from 1 and is never used again there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeliveryTag(pub u64);

/// A transaction that shards commit together, by the same name in all logs. The count begins anew when it
/// overflows: by then no log knows the transaction any more that had the name before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TxName(pub u64);

impl TxName {
    const COUNT_BITS: u32 = 30;
    const EPOCH_BITS: u32 = 24;

    /// The shard's `count`th transaction of this start of the broker.
    pub fn new(coordinator: ShardId, epoch: u32, count: u64) -> TxName {
        let epoch = u64::from(epoch) & ((1 << Self::EPOCH_BITS) - 1);
        let count = count & ((1 << Self::COUNT_BITS) - 1);
        TxName(
            u64::from(coordinator.0) << (Self::EPOCH_BITS + Self::COUNT_BITS)
                | epoch << Self::COUNT_BITS
                | count,
        )
    }

    /// The shard that coordinates it.
    pub fn coordinator(self) -> ShardId {
        ShardId((self.0 >> (Self::EPOCH_BITS + Self::COUNT_BITS)) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_names_give_back_their_parts() {
        let name = TxName::new(ShardId(1023), u32::MAX, u64::MAX);
        assert_eq!((name.0, name.coordinator()), (u64::MAX, ShardId(1023)));
        for (shard, slot, generation) in
            [(0, 0, 0), (1023, QueueId::SLOTS_MAX - 1, (1 << 30) - 1), (7, 42, 99)]
        {
            let id = QueueId::new(ShardId(shard), slot, generation);
            assert_eq!((id.owner(), id.slot(), id.generation()), (ShardId(shard), slot, generation));
        }
    }
}
