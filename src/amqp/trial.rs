//! A whole connection on trial: the protocol over a real kernel of one shard, without sockets and clocks.
//!
//! For tests, fuzzers and micro-benchmarks only, and in no other build. [`check_connection`] and [`check_codec`] take any bytes:
//! unit tests give them random ones, `tests/fuzz` lets a fuzzer look for worse.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod codec;
mod connection;

use std::sync::Arc;

use lepus_shards::ledger::Returns;
use lepus_shards::message::MessageView;
use lepus_shards::shard::{
    Address, Backplane, Batch, DeadLetterProperties, Death, FrontEnd, Lane, Loaded, LogGroup, LogSequence,
    Logged, LoggedGroup, MessageProperty, PropertyFormat, Reply, Shard, ShardConfig, Traced, TransactionLog,
    WaitedProperties,
};
use lepus_shards::topology::{StoreWrite, Writer};
use lepus_shards::{
    Arguments, ConsumerId, DeliveryTag, Durability, DurableId, QueueId, Refusal, ShardId, TxName, Value,
};

pub use self::codec::check_codec;
pub use self::connection::{Script, Step, check_connection, play};
/// The hot codec itself, for whoever counts its instructions.
pub use super::codec::{ContentHeader, FRAME_END, FrameHead, PublishMethod, put_confirm, put_deliver};
use super::{Credentials, Front, FrontConfig, HasFront, receive, resume, tick};

/// One shard's surroundings: nothing but the front.
pub struct Alone {
    /// The protocol.
    pub front: Front,
    appended: LogSequence,
    persisted: Option<u64>,
}

impl HasFront for Alone {
    fn front(&mut self) -> &mut Front {
        &mut self.front
    }
}

impl Backplane for Alone {
    fn outgoing(&mut self, _to: ShardId, _lane: Lane) -> &mut Batch {
        unreachable!("there is one shard")
    }
    fn append(
        &mut self,
        _message: &MessageView<'_>,
        _ttl_ms: Option<u64>,
        _sync: bool,
        _queues: &[DurableId],
    ) -> Logged {
        self.appended += 1;
        Logged { sequence: self.appended, in_log: false }
    }
    fn claimed(&mut self, _message: LogSequence, _queue: DurableId) {}
    fn came_back(&mut self, _message: LogSequence, _queue: DurableId, _failed: bool) {}
    fn settled(&mut self, _message: LogSequence, _queue: Option<DurableId>) {}
    fn spill(&mut self, _message: &MessageView<'_>) -> Option<LogSequence> {
        None
    }
    fn load(&mut self, _message: LogSequence, _waiter: QueueId) -> Loaded<'_> {
        unreachable!("without a log nothing is paged out")
    }
    fn persist(&mut self, version: u64, _writes: Vec<StoreWrite>) {
        self.persisted = Some(version);
    }
}

impl TransactionLog for Alone {
    fn append_group(&mut self, _group: &LogGroup<'_>) -> Option<LoggedGroup> {
        None
    }
    fn prepare(&mut self, _name: TxName, _group: &LogGroup<'_>) -> Option<LoggedGroup> {
        unreachable!("there is one shard")
    }
    fn decide(&mut self, _name: TxName, _sync: bool) -> LogSequence {
        unreachable!("nothing is prepared")
    }
    fn resolve(&mut self, _name: TxName, _committed: bool) {
        unreachable!("nothing is prepared")
    }
    fn forget_decision(&mut self, _name: TxName) {
        unreachable!("nothing is decided")
    }
}

impl PropertyFormat for Alone {
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

impl FrontEnd for Alone {
    fn deliver(
        &mut self,
        to: Address,
        consumer: ConsumerId,
        tag: DeliveryTag,
        again: bool,
        message: MessageView<'_>,
    ) {
        self.front.deliver(to, consumer, tag, again, message);
    }
    fn got(&mut self, to: Address, tag: DeliveryTag, again: bool, remaining: u64, message: MessageView<'_>) {
        self.front.got(to, tag, again, remaining, message);
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

/// A broker of one shard without sockets: bytes go in and come out.
pub struct Trial {
    /// The kernel.
    pub shard: Shard,
    /// What it has effects on.
    pub around: Alone,
    now_ms: u64,
}

impl Trial {
    /// With this much memory for messages, and small limits for everything else.
    pub fn new(memory_budget_bytes: u64) -> Trial {
        Trial::with_budgets(memory_budget_bytes, 1 << 20)
    }

    /// With this much memory for messages, and for bodies that are not complete.
    pub fn with_budgets(memory_budget_bytes: u64, assembly_budget_bytes: u64) -> Trial {
        let (writer, changes) = Writer::restore(1, Vec::new(), "/", fastrand::Rng::with_seed(1)).unwrap();
        let config = ShardConfig {
            id: ShardId(0),
            shards: 1,
            epoch: 1,
            memory_budget_bytes,
            durability: Durability::Fsync,
            consumer_timeout_ms: 1_800_000,
        };
        let credentials =
            Credentials { user: "guest".into(), password: "guest".into(), loopback_users: Vec::new() };
        let front = Front::new(FrontConfig {
            channel_max: 2047,
            frame_max: 131_072,
            consumers_per_channel_max: 0,
            heartbeat_s: 60,
            max_message_bytes: 1 << 20,
            handshake_timeout_ms: 10_000,
            write_stall_timeout_ms: 15_000,
            assembly_budget_bytes,
            product: "Lepus".into(),
            version: "0".into(),
            cluster_name: "lepus".into(),
            authenticate: Arc::new(credentials),
        });
        let around = Alone { front, appended: 0, persisted: None };
        Trial { shard: Shard::new(config, &changes, Some(writer)), around, now_ms: 0 }
    }

    /// A connection on which nothing has been said.
    pub fn accept(&mut self) -> u32 {
        let (peer, local) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:5672".parse().unwrap());
        self.around.front.accept(peer, local, self.now_ms)
    }

    /// What the client sends, and a turn of the shard.
    pub fn send(&mut self, slot: u32, bytes: &[u8]) {
        receive(&mut self.shard, &mut self.around, slot, bytes);
        self.turn();
    }

    /// A turn of the shard: everything that was begun is done.
    pub fn turn(&mut self) {
        loop {
            if let Some(version) = self.around.persisted.take() {
                self.shard.persisted(&mut self.around, version);
            }
            resume(&mut self.shard, &mut self.around);
            if self.around.persisted.is_none() {
                break;
            }
        }
        let frontier = self.around.appended;
        self.shard.committed(&mut self.around, frontier);
        self.shard.end_turn(&mut self.around);
        resume(&mut self.shard, &mut self.around);
    }

    /// Lets time pass, in ticks of 100 ms.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(100) {
            self.now_ms += 100;
            self.shard.set_time(self.now_ms);
            tick(&mut self.shard, &mut self.around, self.now_ms);
            while self.shard.tick(&mut self.around) {}
            self.shard.carry_off(&mut self.around);
        }
        self.turn();
    }

    /// Takes what waits to be written.
    pub fn take(&mut self, slot: u32) -> Vec<u8> {
        let bytes = self.around.front.output(slot).pending().to_vec();
        self.discard(slot);
        bytes
    }

    /// Throws away what waits to be written. Returns how many bytes that were.
    pub fn discard(&mut self, slot: u32) -> usize {
        let output = self.around.front.output(slot);
        let count = output.pending().len();
        output.advance(count);
        self.around.front.wrote(slot);
        if let Some(connection) = self.around.front.connection_id(slot) {
            self.shard.output_drained(&mut self.around, connection, 0);
        }
        count
    }

    /// A connection with channel 1 open.
    pub fn open(&mut self) -> u32 {
        let slot = self.accept();
        self.send(slot, &handshake());
        self.take(slot);
        slot
    }
}

/// A frame.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
    out.push(FRAME_END);
    out
}

/// A method frame: class and method id, arguments.
pub fn method(channel: u16, class: u16, id: u16, arguments: &[u8]) -> Vec<u8> {
    let mut payload = class.to_be_bytes().to_vec();
    payload.extend_from_slice(&id.to_be_bytes());
    payload.extend_from_slice(arguments);
    frame(1, channel, &payload)
}

/// Everything up to an open channel 1, without waiting for an answer.
pub fn handshake() -> Vec<u8> {
    [
        b"AMQP\x00\x00\x09\x01".to_vec(),
        method(0, 10, 11, b"\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US"),
        method(0, 10, 31, &[7, 255, 0, 2, 0, 0, 0, 60]),
        method(0, 10, 40, &[1, b'/', 0, 0]),
        method(1, 20, 10, &[0]),
    ]
    .concat()
}
