//! The path of a message through one shard, with neither sockets nor threads: publish frames in,
//! route, enter, claim, deliver frames out, ack frames in. Made for counting instructions:
//!
//! ```sh
//! cargo build --release --example hot_path
//! valgrind --tool=callgrind --toggle-collect='*measured*' target/release/examples/hot_path ack 16
//! ```
//!
//! The collected instructions, divided by the printed number of messages, are the cost of one. Modes:
//! `ack` (a consumer with prefetch 500 acks each read with one `multiple`), `no-ack`, and `confirm`
//! (persistent, durable queue, confirms, acks).

use std::sync::Arc;

use lepus::amqp::{self, Credentials, Front, FrontConfig, HasFront};
use lepus_shards::message::MessageView;
use lepus_shards::shard::{
    Address, Backplane, Batch, DeadLetterProperties, Death, FrontEnd, Lane, Loaded, LogGroup, LogSequence,
    Logged, LoggedGroup, MessageProperty, PropertyFormat, Reply, Returns, Shard, ShardConfig, TransactionLog,
};
use lepus_shards::topology::{StoreWrite, Writer};
use lepus_shards::{
    Arguments, ConsumerId, DeliveryTag, Durability, DurableId, QueueId, Refusal, ShardId, TxName, Value,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PER_TURN: usize = 100;
const TURNS: usize = 1_000;

/// A shard's surroundings without anything around.
struct Alone {
    front: Front,
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
    fn publishing_blocked(&mut self, blocked: bool) {
        self.front.publishing_blocked(blocked);
    }
}

struct Broker {
    shard: Shard,
    around: Alone,
}

impl Broker {
    fn new() -> Broker {
        let (writer, changes) =
            Writer::restore(1, Vec::new(), "/", fastrand::Rng::with_seed(1)).expect("no rows, no fault");
        let config = ShardConfig {
            id: ShardId(0),
            shards: 1,
            epoch: 1,
            memory_budget_bytes: u64::MAX,
            durability: Durability::Fsync,
            consumer_timeout_ms: 1_800_000,
        };
        let front = Front::new(FrontConfig {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_s: 0,
            max_message_bytes: 1 << 27,
            handshake_timeout_ms: 10_000,
            write_stall_timeout_ms: 30_000,
            assembly_budget_bytes: 1 << 28,
            product: "Lepus".into(),
            version: "0".into(),
            cluster_name: "lepus".into(),
            authenticate: Arc::new(Credentials {
                user: "guest".into(),
                password: "guest".into(),
                loopback_users: Vec::new(),
            }),
        });
        let around = Alone { front, appended: 0, persisted: None };
        Broker { shard: Shard::new(config, &changes, Some(writer)), around }
    }

    fn receive(&mut self, slot: u32, bytes: &[u8]) {
        amqp::receive(&mut self.shard, &mut self.around, slot, bytes);
    }

    fn turn(&mut self) {
        if let Some(version) = self.around.persisted.take() {
            self.shard.persisted(&mut self.around, version);
        }
        amqp::resume(&mut self.shard, &mut self.around);
        let frontier = self.around.appended;
        self.shard.committed(&mut self.around, frontier);
        self.shard.end_turn(&mut self.around);
    }

    /// Throws output away; returns how many bytes there were.
    fn drain(&mut self, slot: u32) -> usize {
        let output = self.around.front.output(slot);
        let count = output.pending().len();
        output.advance(count);
        self.around.front.wrote(slot);
        if let Some(id) = self.around.front.connection_id(slot) {
            self.shard.output_drained(&mut self.around, id, 0);
        }
        count
    }

    fn connect(&mut self) -> u32 {
        let slot = self.around.front.accept("127.0.0.1:1".parse().expect("an address"), 0);
        for bytes in [
            b"AMQP\x00\x00\x09\x01".to_vec(),
            method(0, 10, 11, b"\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US"),
            method(0, 10, 31, &[7, 255, 0, 2, 0, 0, 0, 0]),
            method(0, 10, 40, &[1, b'/', 0, 0]),
            method(1, 20, 10, &[0]),
        ] {
            self.receive(slot, &bytes);
            self.turn();
        }
        self.drain(slot);
        slot
    }
}

fn method(channel: u16, class: u16, id: u16, arguments: &[u8]) -> Vec<u8> {
    let mut payload = class.to_be_bytes().to_vec();
    payload.extend_from_slice(&id.to_be_bytes());
    payload.extend_from_slice(arguments);
    frame(1, channel, &payload)
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
    out.push(0xCE);
    out
}

/// What is counted: turns of publishes, deliveries and acks.
#[inline(never)]
fn measured(broker: &mut Broker, publisher: u32, consumer: u32, publishes: &[u8], acks: bool) -> usize {
    let (mut delivered_bytes, mut tag) = (0, 0u64);
    let mut ack = method(1, 60, 80, &[0, 0, 0, 0, 0, 0, 0, 0, 1]);
    for _ in 0..TURNS {
        broker.receive(publisher, publishes);
        broker.turn();
        broker.drain(publisher);
        delivered_bytes += broker.drain(consumer);
        tag += PER_TURN as u64;
        if acks {
            ack[11..19].copy_from_slice(&tag.to_be_bytes());
            broker.receive(consumer, &ack);
            broker.turn();
        }
    }
    delivered_bytes
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_else(|| "ack".into());
    let body_bytes: usize = arguments.next().map_or(16, |text| text.parse().expect("bytes of body"));
    let (acks, confirms) = (mode != "no-ack", mode == "confirm");

    let mut broker = Broker::new();
    let (publisher, consumer) = (broker.connect(), broker.connect());
    let durable = if confirms { 2 } else { 0 };
    broker.receive(publisher, &method(1, 50, 10, &[0, 0, 1, b'q', durable, 0, 0, 0, 0]));
    broker.turn();
    broker.turn();
    if confirms {
        broker.receive(publisher, &method(1, 85, 10, &[0]));
    }
    broker.receive(consumer, &method(1, 60, 10, &[0, 0, 0, 0, 1, 244, 0]));
    broker.receive(
        consumer,
        &method(1, 60, 20, &[0, 0, 1, b'q', 1, b'c', if acks { 0 } else { 2 }, 0, 0, 0, 0]),
    );
    broker.turn();
    broker.drain(consumer);

    let mut publish = method(1, 60, 40, b"\0\0\0\x01q\0");
    let mut header = vec![0, 60, 0, 0];
    header.extend_from_slice(&(body_bytes as u64).to_be_bytes());
    header.extend_from_slice(if confirms { &[0x10, 0, 2][..] } else { &[0, 0][..] });
    publish.extend_from_slice(&frame(2, 1, &header));
    publish.extend_from_slice(&frame(3, 1, &vec![b'x'; body_bytes]));
    let publishes = publish.repeat(PER_TURN);

    let start = std::time::Instant::now();
    let bytes = measured(&mut broker, publisher, consumer, &publishes, acks);
    let messages = PER_TURN * TURNS;
    assert!(bytes > messages * (body_bytes + 40), "everything was delivered");
    let each_ns = start.elapsed().as_nanos() as f64 / messages as f64;
    println!("{messages} messages of {body_bytes} bytes, {mode}: {each_ns:.0} ns each");
}
