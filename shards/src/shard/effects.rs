//! What a shard asks of its surroundings. With [`FrontEnd`] this is everything that leaves it.

use super::batch::Batch;
use super::front_end::FrontEnd;
use crate::mesh::Lane;
use crate::message::MessageView;
use crate::topology::StoreWrite;
use crate::{DurableId, ShardId};

/// A record's place in the shard's log; grows with each appended record.
pub type LogSequence = u64;

/// A message in the shard's log, for as long as some durable queue has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHandle(pub u32);

impl LogHandle {
    /// Of a message that is not in the log.
    pub const NONE: LogHandle = LogHandle(u32::MAX);
}

/// What the log says of a message that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Logged {
    /// The message is as durable as configured when [`super::Shard::committed`] was called with this, or
    /// a later one.
    pub sequence: LogSequence,
    /// Names the message to the log.
    pub handle: LogHandle,
}

/// The mesh, the log and the topology store, as a shard sees them.
pub trait Backplane {
    /// The batch that goes to this peer on this lane at the end of the turn. Never full
    /// ([`Batch::is_full`]).
    fn outgoing(&mut self, to: ShardId, lane: Lane) -> &mut Batch;

    /// Appends a persistent message that entered these durable queues of the shard. `ttl_ms` is the
    /// message's own time to live, from now on.
    fn append(&mut self, message: &MessageView<'_>, ttl_ms: Option<u64>, queues: &[DurableId]) -> Logged;

    /// An appended message was given to somebody who has not settled it. To be noted before the delivery
    /// goes out: after a crash it is redelivered.
    fn claimed(&mut self, message: LogHandle, queue: DurableId);

    /// An appended message was settled (or dropped) in a queue and need not be kept for it. With its last
    /// queue the handle ends.
    fn settled(&mut self, message: LogHandle, queue: DurableId);

    /// Writes topology rows; when they are stored, [`super::Shard::persisted`] is called with the
    /// version. Versions grow. Only on the shard that has the topology's writer.
    fn persist(&mut self, version: u64, writes: Vec<StoreWrite>);
}

/// All effects of a shard.
pub trait Effects: FrontEnd + Backplane {}

impl<T: FrontEnd + Backplane> Effects for T {}
