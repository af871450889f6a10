//! A queue on its owner: its entries, its consumers and whose turn it is.
//!
//! The messages themselves stand in the shard's [`MessageStore`], once each, however many of the
//! shard's queues they are in.

mod settings;
mod slots;
mod store;
mod turns;

use std::sync::Arc;

pub use settings::{Bound, DeadLetterTo, Overflow, QueueSettings};
pub use store::{InLog, MessageStore, Record, encode_record, record_head, record_size, view_record};
pub use turns::Turns;

use crate::ledger::Ledger;
use crate::shard::WaitingRoom;
use crate::topology::QueueInfo;
use crate::{Durability, DurableId};

/// A queue that this shard owns.
pub struct Queue {
    /// As declared; the same on every shard.
    pub info: Arc<QueueInfo>,
    /// Its messages.
    pub entries: Ledger,
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
    /// With a single active consumer: the one that is, or that was and still holds deliveries.
    pub active: Option<u32>,
    /// Messages that wait in front of it, because it is full.
    pub room: Option<Box<WaitingRoom>>,
    /// It stands in the owner's list of queues to look at before the step ends.
    pub dirty: bool,
    /// Its next message is being read.
    pub awaits_load: bool,
    /// Positions before this one were looked at, whether they can be paged out.
    pub paged_to: u64,
    /// When it was last declared, read or consumed from; for `x-expires`.
    pub last_used_ms: u64,
    /// When it is looked at whether it has been unused for too long; an earlier deadline is an old one.
    pub expiry_at_ms: u64,
    /// What it is asked to do.
    pub settings: QueueSettings,
    /// Bytes of the bodies of ready messages; counted only for a queue that has a bound on them.
    pub ready_bytes: u64,
}

impl Queue {
    /// Its messages can do without their records until they are delivered or dead-lettered. Not so with
    /// priorities, which are in the record, and not with a bound in bytes.
    pub fn is_pageable(&self) -> bool {
        !self.entries.has_levels() && self.settings.bound.is_none_or(|bound| bound.bytes.is_none())
    }

    /// There is a message, somebody may be able to take one, and none is being waited for.
    pub fn can_be_served(&self) -> bool {
        self.entries.ready() > 0 && !self.awaits_load && !self.turns.is_empty()
    }
}
