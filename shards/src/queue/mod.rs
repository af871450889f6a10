//! A queue on its owner: its entries, its consumers and whose turn it is.
//!
//! The messages themselves stand in the shard's [`MessageStore`], once each, however many of the
//! shard's queues they are in.

mod store;
mod turns;

use std::sync::Arc;

pub use store::{InLog, MessageStore, Record, encode_record, record_head, record_size, view_record};
pub use turns::Turns;

use crate::ledger::Entries;
use crate::topology::QueueInfo;
use crate::{Durability, DurableId};

/// A queue that this shard owns.
pub struct Queue {
    /// As declared; the same on every shard.
    pub info: Arc<QueueInfo>,
    /// Its messages.
    pub entries: Entries,
    /// Consumers that could take a message now.
    pub turns: Turns,
    /// All consumers, by slot in the owner's table.
    pub consumers: Vec<u32>,
    /// Cancelled consumers that still hold deliveries.
    pub lingering: Vec<u32>,
    /// Its name in the log, if it is durable.
    pub durable_id: Option<DurableId>,
    /// What its persistent messages outlive, if it is durable.
    pub durability: Durability,
    /// One of them tolerates no other.
    pub exclusively_consumed: bool,
    /// It stands in the owner's list of queues to look at before the step ends.
    pub dirty: bool,
    /// Its next message is being read.
    pub awaits_load: bool,
    /// Positions before this one were looked at, whether they can be paged out.
    pub paged_to: u64,
    /// When it was last declared, read or consumed from; for `x-expires`.
    pub last_used_ms: u64,
    /// `x-message-ttl`.
    pub message_ttl_ms: Option<u64>,
    /// `x-expires`.
    pub expires_ms: Option<u64>,
}

impl Queue {
    /// There is a message, somebody may be able to take one, and none is being waited for.
    pub fn can_be_served(&self) -> bool {
        self.entries.ready() > 0 && !self.awaits_load && !self.turns.is_empty()
    }
}
