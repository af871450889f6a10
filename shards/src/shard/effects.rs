//! What a shard asks of its surroundings. With [`FrontEnd`] this is everything that leaves it.

use super::batch::Batch;
use super::front_end::FrontEnd;
use crate::ledger::Position;
use crate::mesh::Lane;
use crate::message::MessageView;
use crate::topology::StoreWrite;
use crate::{QueueId, ShardId};

/// A record's place in the shard's log: counts up from 1 for each appended record.
pub type LogSequence = u64;

/// The mesh, the log and the topology store, as a shard sees them.
pub trait Backplane {
    /// The batch that goes to this peer on this lane at the end of the turn. Never full
    /// ([`Batch::is_full`]).
    fn outgoing(&mut self, to: ShardId, lane: Lane) -> &mut Batch;

    /// Appends a persistent message that entered these durable queues of the shard, at these
    /// positions. When it is as durable as configured, [`super::Shard::committed`] is called with a
    /// frontier at or past the sequence that this returns.
    fn append(&mut self, message: &MessageView<'_>, entries: &[(QueueId, Position)]) -> LogSequence;

    /// An appended message was settled (or dropped) in a queue and need not be kept for it.
    fn settled(&mut self, sequence: LogSequence, queue: QueueId, position: Position);

    /// Writes topology rows; when they are stored, [`super::Shard::persisted`] is called with the
    /// version. Versions grow. Only on the shard that has the topology's writer.
    fn persist(&mut self, version: u64, writes: Vec<StoreWrite>);
}

/// All effects of a shard.
pub trait Effects: FrontEnd + Backplane {}

impl<T: FrontEnd + Backplane> Effects for T {}
