//! What a protocol and a shard say to each other.
//!
//! The protocol calls the methods of [`super::Shard`]; what comes of them, at once or later, arrives
//! through [`FrontEnd`], in the order in which it must reach the client. An implementation writes
//! each call into the connection's output straight away and calls back into the shard only after the
//! shard's method has returned.

use std::sync::Arc;

use super::effects::LogSequence;
use super::firehose::Traced;
use super::properties::PropertyFormat;
use crate::ledger::Returns;
use crate::message::MessageView;
use crate::topology::Operation;
use crate::{Arguments, ConnectionId, ConsumerId, DeliveryTag, Durability, QueueId, Refusal, Value, VhostId};

/// Where something for a client goes: the connection and the channel's number on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// Always a connection of the shard that makes the call.
    pub connection: ConnectionId,
    /// The channel's number on the connection, as the client chose it.
    pub channel: u16,
}

/// What a shard tells the protocol. All calls are for connections that live on the shard.
pub trait FrontEnd: PropertyFormat {
    /// A message for a consumer.
    fn deliver(
        &mut self,
        to: Address,
        consumer: ConsumerId,
        tag: DeliveryTag,
        redelivered: bool,
        message: MessageView<'_>,
    );

    /// The answer to [`Request::Get`] that found a message; `remaining` ready ones stay behind.
    fn got(
        &mut self,
        to: Address,
        tag: DeliveryTag,
        redelivered: bool,
        remaining: u64,
        message: MessageView<'_>,
    );

    /// The answer to any other request; every request gets exactly one, and so do
    /// [`super::Shard::close_channel`], [`super::Shard::set_prefetch`] and [`super::Shard::commit`].
    fn reply(&mut self, to: Address, reply: Reply);

    /// Publishes `first..=last` of the channel (counted from 1) are confirmed, or refused. Calls for
    /// one channel come in order and without gaps.
    fn confirm(&mut self, to: Address, first: u64, last: u64, accepted: bool);

    /// A mandatory message that [`super::Shard::publish`] took as routed, or kept for the commit, has found
    /// nobody. Comes before its confirm, or the commit's answer.
    fn returned(&mut self, to: Address, message: MessageView<'_>);

    /// The consumer's queue is gone; nothing more comes for it.
    fn consumer_cancelled(&mut self, to: Address, consumer: ConsumerId);

    /// The channel has broken a rule, and not by what it just said: the protocol closes it with this, and
    /// calls [`super::Shard::close_channel`].
    fn channel_failed(&mut self, to: Address, refusal: Refusal);

    /// A queue that the channel publishes to is full and lets nothing in for now, or has room again: as long
    /// as it is held, the channel publishes nothing more. Everything else goes on.
    fn publishing_held(&mut self, to: Address, held: bool);

    /// The properties with which a message is traced: they say what it was.
    fn traced(&self, message: &MessageView<'_>, traced: &Traced<'_>) -> Vec<u8>;

    /// Publishing is blocked on this shard (memory), or free again. Whoever publishes is told and
    /// not read; see [`super::Shard::publishing_blocked`].
    fn publishing_blocked(&mut self, blocked: bool);
}

/// A message to publish.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'a> {
    /// Routing data, properties and body.
    pub message: MessageView<'a>,
    /// What it is to outlive in durable queues: of one that is not persistent, nothing.
    pub durability: Durability,
    /// The publisher wants it back if no queue takes it.
    pub mandatory: bool,
    /// Time to live in milliseconds, if the message has one of its own.
    pub ttl_ms: Option<u64>,
    /// Routing keys beside the message's own.
    pub further_keys: &'a [&'a [u8]],
    /// Headers for headers exchanges; parsed only if an exchange on the way asks.
    pub headers: &'a dyn HeaderSource,
}

/// A message of a queue that was in the log when the shard started.
#[derive(Debug)]
pub struct Restored {
    /// Its name there.
    pub message: LogSequence,
    /// The queue.
    pub queue: QueueId,
    /// How often it was delivered there, and came back.
    pub returns: Returns,
    /// Its own time to live, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// How long ago it was published, in milliseconds.
    pub age_ms: u64,
    /// Its record, where [`super::Shard::needs_records`] says so.
    pub record: Option<Box<[u8]>>,
}

/// Reads a message's headers and properties, on demand.
pub trait HeaderSource: std::fmt::Debug {
    /// The headers, or an empty table when there are none.
    fn headers(&self) -> Arguments;

    /// A property, if the message has it.
    fn property(&self, _property: MessageProperty) -> Option<Value> {
        None
    }
}

/// A property that an exchange may route by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageProperty {
    CorrelationId,
    MessageId,
    Timestamp,
}

impl MessageProperty {
    /// By the name that `hash-property` gives it.
    pub fn from_name(name: &str) -> Option<MessageProperty> {
        Some(match name {
            "correlation_id" => MessageProperty::CorrelationId,
            "message_id" => MessageProperty::MessageId,
            "timestamp" => MessageProperty::Timestamp,
            _ => return None,
        })
    }
}

/// A message that has no headers.
#[derive(Debug)]
pub struct NoHeaders;

impl HeaderSource for NoHeaders {
    fn headers(&self) -> Arguments {
        Arguments::new()
    }
}

/// What became of a publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// On its way to this many queues and channels.
    Routed(u32),
    /// No queue takes it. A mandatory one must be returned *before* the confirm: the shard has not
    /// emitted it yet and does so at the end of the turn.
    Unroutable,
    /// The channel has transactions: it goes out with the commit, and what is to be returned comes back
    /// then.
    Kept,
}

/// What a client says of deliveries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Processed: the message is settled.
    Accept,
    /// Not processed: back to its place in the queue.
    Requeue,
    /// Not processed because the consumer failed: as `Requeue`, but it counts against the queue's delivery
    /// limit.
    Fail,
    /// Not processable: dropped (or dead-lettered, where that is configured).
    Reject,
}

/// A request that another shard may have to answer. Answered once through [`FrontEnd::reply`] (or
/// [`FrontEnd::got`]). While a channel's request is unanswered, the protocol gives the shard nothing
/// else for that channel.
#[derive(Clone, Debug)]
pub enum Request {
    /// Change the topology.
    Topology(Operation),
    /// Take one message.
    Get { vhost: VhostId, queue: String, no_ack: bool },
    /// Start a consumer.
    Consume { vhost: VhostId, queue: String, consumer: NewConsumer },
    /// Stop a consumer. Nothing is delivered to it after the reply; its unacked stay unacked.
    Cancel { consumer: ConsumerId },
    /// Drop all ready messages.
    Purge { vhost: VhostId, queue: String },
}

/// A consumer as the client describes it. Its prefetch is the channel's at this moment.
#[derive(Clone, Debug)]
pub struct NewConsumer {
    /// From [`super::Shard::new_consumer_id`].
    pub id: ConsumerId,
    /// Deliveries are settled as they are made.
    pub no_ack: bool,
    /// Nobody else may consume from the queue.
    pub exclusive: bool,
    /// Higher ones are served first while they have credit; 0 unless given.
    pub priority: i32,
}

/// Answers to requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// No. In AMQP the channel (or connection) closes with this.
    Refused(Refusal),
    /// Exchange declared or deleted, binding made or removed.
    Done,
    /// A queue exists.
    QueueDeclared { name: Arc<str>, messages: u64, consumers: u64 },
    /// A queue is gone, with this many ready messages.
    QueueDeleted { messages: u64 },
    /// This many ready messages were dropped.
    QueuePurged { messages: u64 },
    /// The consumer is there; deliveries follow.
    Consuming { consumer: ConsumerId },
    /// The consumer is gone.
    Cancelled { consumer: ConsumerId },
    /// [`Request::Get`] found nothing.
    Empty,
    /// [`super::Shard::close_channel`]: everything the channel held is back in its queue.
    ChannelClosed,
    /// [`super::Shard::set_prefetch`] holds everywhere.
    PrefetchSet,
    /// [`super::Shard::commit`]: all of it counts.
    Committed,
}

/// What the shard must know of a connection.
#[derive(Clone, Debug)]
pub struct NewConnection {
    /// The vhost that it opened.
    pub vhost: VhostId,
}
