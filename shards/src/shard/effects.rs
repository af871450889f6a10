//! What a shard asks of its surroundings. With [`FrontEnd`] this is everything that leaves it.

use super::batch::Batch;
use super::front_end::FrontEnd;
use super::transaction_log::TransactionLog;
use crate::mesh::Lane;
use crate::message::MessageView;
use crate::topology::StoreWrite;
use crate::{DurableId, QueueId, ShardId};

/// A message's name in the shard's log; grows with each one that is appended. Never 0.
pub type LogSequence = u64;

/// What the log says of a message that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Logged {
    /// The message is as durable as configured when [`super::Shard::committed`] was called with this, or
    /// a later one.
    pub sequence: LogSequence,
    /// There is a log, and the sequence names the message in it.
    pub in_log: bool,
}

/// What is there of a message that was moved out of memory.
#[derive(PartialEq, Eq, Debug)]
pub enum Loaded<'a> {
    /// Its record.
    Record(&'a [u8]),
    /// It is being read; [`super::Shard::arrived`] is called with who asked.
    Later,
    /// The disk does not give it any more, which the log has told of.
    Lost,
}

/// The mesh, the log and the topology store, as a shard sees them.
pub trait Backplane {
    /// The batch that goes to this peer on this lane at the end of the turn. Never full
    /// ([`Batch::is_full`]).
    fn outgoing(&mut self, to: ShardId, lane: Lane) -> &mut Batch;

    /// Appends a persistent message that entered these durable queues of the shard. `ttl_ms` is the
    /// message's own time to live, from now on. With `sync` it is to be on stable storage before it counts
    /// as committed; without, the kernel having it is enough.
    fn append(
        &mut self,
        message: &MessageView<'_>,
        ttl_ms: Option<u64>,
        sync: bool,
        queues: &[DurableId],
    ) -> Logged;

    /// An appended message was given to somebody who has not settled it. To be noted before the delivery
    /// goes out: after a crash it is redelivered.
    fn claimed(&mut self, message: LogSequence, queue: DurableId);

    /// It has come back; with `failed` in a way that counts against a delivery limit.
    fn came_back(&mut self, message: LogSequence, queue: DurableId, failed: bool);

    /// A message was settled (or dropped) in a queue and need not be kept for it. No queue is named of one
    /// that was spilled out of a queue that is not durable.
    fn settled(&mut self, message: LogSequence, queue: Option<DurableId>);

    /// As [`Self::settled`], of a queue that is gone: after a crash there is nothing that the message could
    /// come back to.
    fn discarded(&mut self, message: LogSequence, queue: Option<DurableId>) {
        self.settled(message, queue);
    }

    /// Appends a message that is only to be out of memory: for one queue, until it is settled there or the
    /// process ends. It can be loaded once its sequence is committed. None if nothing can be spilled.
    fn spill(&mut self, message: &MessageView<'_>) -> Option<LogSequence>;

    /// A message that is in the log and committed. Who asks is `waiter`, if it has to be read.
    fn load(&mut self, message: LogSequence, waiter: QueueId) -> Loaded<'_>;

    /// Writes topology rows; when they are stored, [`super::Shard::persisted`] is called with the
    /// version. Versions grow. Only on the shard that has the topology's writer.
    fn persist(&mut self, version: u64, writes: Vec<StoreWrite>);
}

/// All effects of a shard.
pub trait Effects: FrontEnd + Backplane + TransactionLog {}

impl<T: FrontEnd + Backplane + TransactionLog> Effects for T {}
