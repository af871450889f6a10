//! Everything around a shard that it has effects on: the protocol's connections, the ways to other
//! shards, the log, the topology store. One for each shard, on its thread.

use lepus_shards::ledger::Returns;
use lepus_shards::message::MessageView;
use lepus_shards::shard::{
    Address, Backplane, Batch, DeadLetterProperties, Death, FrontEnd, Lane, Loaded, LogGroup, LogSequence,
    Logged, LoggedGroup, MessageProperty, PropertyFormat, Reply, Traced, TransactionLog, WaitedProperties,
};
use lepus_shards::topology::StoreWrite;
use lepus_shards::{Arguments, ConsumerId, DeliveryTag, DurableId, QueueId, Refusal, ShardId, TxName, Value};

use super::message_log::MessageLog;
use super::outboxes::Outboxes;
use super::store::Persistence;

const PREPARED: &str = "a log has prepared the transaction";

/// What a shard sees of the world.
pub struct Surroundings<P> {
    /// The protocol with its connections.
    pub front: P,
    /// Batches for other shards.
    pub outboxes: Outboxes,
    /// Where persistent messages go.
    pub(super) log: Option<MessageLog>,
    /// The last message that was appended. Without a log, it is as durable as it gets at the end of the turn.
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

    fn append(
        &mut self,
        message: &MessageView<'_>,
        ttl_ms: Option<u64>,
        sync: bool,
        queues: &[DurableId],
    ) -> Logged {
        let logged = match &mut self.log {
            Some(log) => log.append(message, ttl_ms, sync, queues),
            None => Logged { sequence: self.appended + 1, in_log: false },
        };
        self.appended = logged.sequence;
        logged
    }

    fn claimed(&mut self, message: LogSequence, queue: DurableId) {
        if let Some(log) = &mut self.log {
            log.claimed(message, queue);
        }
    }

    fn came_back(&mut self, message: LogSequence, queue: DurableId, failed: bool) {
        if let Some(log) = &mut self.log {
            log.came_back(message, queue, failed);
        }
    }

    fn settled(&mut self, message: LogSequence, queue: Option<DurableId>) {
        if let Some(log) = &mut self.log {
            log.settled(message, queue);
        }
    }

    fn discarded(&mut self, message: LogSequence, queue: Option<DurableId>) {
        if let Some(log) = &mut self.log {
            log.discarded(message, queue);
        }
    }

    fn spill(&mut self, message: &MessageView<'_>) -> Option<LogSequence> {
        self.log.as_mut().map(|log| log.spill(message))
    }

    fn load(&mut self, message: LogSequence, waiter: QueueId) -> Loaded<'_> {
        self.log.as_mut().expect("what is loaded is in the log").load(message, waiter)
    }

    fn persist(&mut self, version: u64, writes: Vec<StoreWrite>) {
        self.persistence
            .as_mut()
            .expect("only the shard that writes topology persists")
            .persist(version, writes);
    }
}

impl<P> TransactionLog for Surroundings<P> {
    fn append_group(&mut self, group: &LogGroup<'_>) -> Option<LoggedGroup> {
        self.log.as_mut()?.append_group(group)
    }

    fn prepare(&mut self, name: TxName, group: &LogGroup<'_>) -> Option<LoggedGroup> {
        self.log.as_mut()?.prepare(name, group)
    }

    fn decide(&mut self, name: TxName, sync: bool) -> LogSequence {
        self.log.as_mut().expect(PREPARED).decide(name, sync)
    }

    fn resolve(&mut self, name: TxName, committed: bool) {
        self.log.as_mut().expect(PREPARED).resolve(name, committed);
    }

    fn forget_decision(&mut self, name: TxName) {
        self.log.as_mut().expect(PREPARED).forget_decision(name);
    }
}

impl<P: FrontEnd> PropertyFormat for Surroundings<P> {
    fn headers(&self, properties: &[u8]) -> Arguments {
        self.front.headers(properties)
    }

    fn property(&self, properties: &[u8], property: MessageProperty) -> Option<Value> {
        self.front.property(properties, property)
    }

    fn further_keys(&self, properties: &[u8]) -> Vec<Vec<u8>> {
        self.front.further_keys(properties)
    }

    fn priority(&self, properties: &[u8]) -> u8 {
        self.front.priority(properties)
    }

    fn dead_letter(&self, message: &MessageView<'_>, death: &Death<'_>) -> DeadLetterProperties {
        self.front.dead_letter(message, death)
    }

    fn waited(&self, properties: &[u8]) -> WaitedProperties {
        self.front.waited(properties)
    }

    fn with_returns(&self, properties: &[u8], returns: Returns) -> Vec<u8> {
        self.front.with_returns(properties, returns)
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

    fn consumer_cancelled(&mut self, to: Address, consumer: ConsumerId) {
        self.front.consumer_cancelled(to, consumer);
    }

    fn channel_failed(&mut self, to: Address, refusal: Refusal) {
        self.front.channel_failed(to, refusal);
    }

    fn publishing_held(&mut self, to: Address, held: bool) {
        self.front.publishing_held(to, held);
    }

    fn traced(&self, message: &MessageView<'_>, traced: &Traced<'_>) -> Vec<u8> {
        self.front.traced(message, traced)
    }

    fn publishing_blocked(&mut self, blocked: bool) {
        self.front.publishing_blocked(blocked);
    }
}
