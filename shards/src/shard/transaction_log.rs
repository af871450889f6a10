//! What transactions ask of a shard's log: several messages and settlements as one piece, which is there
//! after a crash or is not; and what makes pieces in the logs of several shards one.
//!
//! A transaction on one shard is a group. On several, each prepares its group in its log; then the shard
//! that coordinates notes the decision in its own, and that is the moment: a prepared group whose
//! transaction was decided is as good as appended, any other one is nothing. The decision is forgotten when
//! every group has its resolution in its own log.

use super::effects::LogSequence;
use crate::message::MessageView;
use crate::{DurableId, TxName};

/// A message of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupMessage<'a> {
    /// What [`super::Backplane::append`] would be given.
    pub message: MessageView<'a>,
    /// Its own time to live, from now on.
    pub ttl_ms: Option<u64>,
    /// The durable queues of the shard that it is for.
    pub queues: &'a [DurableId],
}

/// A shard's part of a transaction, as far as it is durable.
#[derive(Clone, Copy, Debug)]
pub struct LogGroup<'a> {
    /// In the order in which they were published.
    pub messages: &'a [GroupMessage<'a>],
    /// Messages that end in these queues. The log settles them by itself when the group counts;
    /// [`super::Backplane::settled`] is called for each all the same, when its queue lets go of it, which may
    /// be before that.
    pub settlements: &'a [(LogSequence, DurableId)],
    /// It is to be on stable storage, and not only with the kernel.
    pub sync: bool,
}

/// What the log says of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedGroup {
    /// Its messages' names, in order.
    pub names: Vec<LogSequence>,
    /// The whole group is as durable as asked for when [`super::Shard::committed`] was called with this, or a
    /// later one.
    pub sequence: LogSequence,
}

/// See the module.
pub trait TransactionLog {
    /// Appends a group that is a whole transaction. None if there is no log.
    fn append_group(&mut self, group: &LogGroup<'_>) -> Option<LoggedGroup>;

    /// Appends a group that counts if its transaction is decided. None if there is no log; nothing else is
    /// asked of the log for it then.
    fn prepare(&mut self, name: TxName, group: &LogGroup<'_>) -> Option<LoggedGroup>;

    /// Every shard has prepared its group: the transaction counts once this sequence is committed. With `sync`,
    /// some group was to be on stable storage.
    fn decide(&mut self, name: TxName, sync: bool) -> LogSequence;

    /// A group that was prepared here is appended, or dropped. When that is on disk,
    /// [`super::Shard::resolved`] is called.
    fn resolve(&mut self, name: TxName, committed: bool);

    /// Every shard has its resolution on disk: the decision is not asked for again.
    fn forget_decision(&mut self, name: TxName);
}
