//! Everything around a shard that it has effects on: the protocol's connections, the ways to other
//! shards, the log, the topology store. One for each shard, on its thread.

use lepus_shards::message::MessageView;
use lepus_shards::shard::{
    Address, Backplane, Batch, FrontEnd, HeaderSource, Lane, LogHandle, LogSequence, Logged, Reply,
};
use lepus_shards::topology::StoreWrite;
use lepus_shards::{ConsumerId, DeliveryTag, DurableId, ShardId};

use super::message_log::MessageLog;
use super::outboxes::Outboxes;
use super::store::Persistence;

/// What a shard sees of the world.
pub struct Surroundings<P> {
    /// The protocol with its connections.
    pub front: P,
    /// Batches for other shards.
    pub outboxes: Outboxes,
    /// Where persistent messages go.
    pub(super) log: Option<MessageLog>,
    /// Without a log, an appended message is as durable as it gets at the end of the turn.
    pub(super) appended: LogSequence,
    /// On the shard that writes topology.
    pub(super) persistence: Option<Persistence>,
}

impl<P> Surroundings<P> {
    /// For one of this many shards.
    pub(super) fn new(
        front: P,
        shards: usize,
        persistence: Option<Persistence>,
        log: Option<MessageLog>,
    ) -> Surroundings<P> {
        Surroundings { front, outboxes: Outboxes::new(shards), log, appended: 0, persistence }
    }
}

impl<P> Backplane for Surroundings<P> {
    fn outgoing(&mut self, to: ShardId, lane: Lane) -> &mut Batch {
        self.outboxes.outgoing(to, lane)
    }

    fn append(&mut self, message: &MessageView<'_>, ttl_ms: Option<u64>, queues: &[DurableId]) -> Logged {
        match &mut self.log {
            Some(log) => log.append(message, ttl_ms, queues),
            None => {
                self.appended += 1;
                Logged { sequence: self.appended, handle: LogHandle::NONE }
            }
        }
    }

    fn claimed(&mut self, message: LogHandle, queue: DurableId) {
        if let Some(log) = &mut self.log {
            log.claimed(message, queue);
        }
    }

    fn settled(&mut self, message: LogHandle, queue: DurableId) {
        if let Some(log) = &mut self.log {
            log.settled(message, queue);
        }
    }

    fn persist(&mut self, version: u64, writes: Vec<StoreWrite>) {
        self.persistence
            .as_mut()
            .expect("only the shard that writes topology persists")
            .persist(version, writes);
    }
}

impl<P: FrontEnd> FrontEnd for Surroundings<P> {
    fn deliver(
        &mut self,
        to: Address,
        consumer: ConsumerId,
        tag: DeliveryTag,
        redelivered: bool,
        message: MessageView<'_>,
    ) {
        self.front.deliver(to, consumer, tag, redelivered, message);
    }

    fn got(
        &mut self,
        to: Address,
        tag: DeliveryTag,
        redelivered: bool,
        remaining: u64,
        message: MessageView<'_>,
    ) {
        self.front.got(to, tag, redelivered, remaining, message);
    }

    fn reply(&mut self, to: Address, reply: Reply) {
        self.front.reply(to, reply);
    }

    fn confirm(&mut self, to: Address, first: u64, last: u64, accepted: bool) {
        self.front.confirm(to, first, last, accepted);
    }

    fn returned(&mut self, to: Address, message: MessageView<'_>) {
        self.front.returned(to, message);
    }

    fn header_source<'a>(&self, properties: &'a [u8]) -> Box<dyn HeaderSource + 'a> {
        self.front.header_source(properties)
    }

    fn consumer_cancelled(&mut self, to: Address, consumer: ConsumerId) {
        self.front.consumer_cancelled(to, consumer);
    }

    fn publishing_blocked(&mut self, blocked: bool) {
        self.front.publishing_blocked(blocked);
    }
}
