//! A whole connection on trial: the protocol over a real kernel of one shard, without sockets and clocks.
//!
//! For tests and fuzzers only. [`check_connection`] and [`check_codec`] take any bytes: unit tests give them
//! random ones, `tests/fuzz` lets a fuzzer look for worse.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::sync::Arc;

use amq_protocol::frame::{AMQPFrame, parse_frame};
use amq_protocol::protocol::{AMQPClass, basic};
use lepus_shards::message::MessageView;
use lepus_shards::shard::{
    Address, Backplane, Batch, FrontEnd, Lane, LogHandle, LogSequence, Logged, Reply, Shard, ShardConfig,
};
use lepus_shards::topology::{StoreWrite, Writer};
use lepus_shards::{ConsumerId, DeliveryTag, DurableId, ShardId};

use super::codec::{ContentHeader, FRAME_END, FrameHead, HEADER, METHOD, PublishMethod};
use super::properties::Properties;
use super::{Credentials, Disposition, Front, FrontConfig, HasFront, disconnected, receive, resume, tick};

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
    fn append(&mut self, _message: &MessageView<'_>, _ttl_ms: Option<u64>, _queues: &[DurableId]) -> Logged {
        self.appended += 1;
        Logged { sequence: self.appended, handle: LogHandle::NONE }
    }
    fn claimed(&mut self, _message: LogHandle, _queue: DurableId) {}
    fn settled(&mut self, _message: LogHandle, _queue: DurableId) {}
    fn persist(&mut self, version: u64, _writes: Vec<StoreWrite>) {
        self.persisted = Some(version);
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
    fn consumer_cancelled(&mut self, to: Address, consumer: ConsumerId) {
        self.front.consumer_cancelled(to, consumer);
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
    ///
    /// # Panics
    /// Never: nothing is stored that could be unreadable.
    pub fn new(memory_budget_bytes: u64) -> Trial {
        let (writer, changes) = Writer::restore(1, Vec::new(), "/", fastrand::Rng::with_seed(1)).unwrap();
        let config = ShardConfig { id: ShardId(0), shards: 1, epoch: 1, memory_budget_bytes };
        let credentials =
            Credentials { user: "guest".into(), password: "guest".into(), loopback_users: Vec::new() };
        let front = Front::new(FrontConfig {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_s: 60,
            max_message_bytes: 1 << 20,
            handshake_timeout_ms: 10_000,
            write_stall_timeout_ms: 15_000,
            assembly_budget_bytes: 1 << 20,
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
        self.around.front.accept("127.0.0.1:1".parse().unwrap(), self.now_ms)
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

    /// Lets time pass.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(100) {
            self.now_ms += 100;
            tick(&mut self.shard, &mut self.around, self.now_ms);
        }
    }

    /// Takes what waits to be written.
    pub fn take(&mut self, slot: u32) -> Vec<u8> {
        let output = self.around.front.output(slot);
        let bytes = output.pending().to_vec();
        output.advance(bytes.len());
        self.around.front.wrote(slot);
        bytes
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

/// What a connection may keep for each byte that it was sent, and beside that: names, channels, queues,
/// answers. An answer has at most a few hundred bytes, and asking takes 8 at least.
const BYTES_PER_BYTE: usize = 64;
const BYTES_BESIDE: usize = 64 * 1024;

/// Plays a script against a connection and checks that it does no harm: no panic, output that is frames,
/// bounded memory, and nothing left behind.
///
/// The script: an odd first byte says that the connection is open already. Then pieces, each behind a byte:
/// up to 239 is the piece's length less one; from 240 on, time passes.
pub fn check_connection(script: &[u8]) {
    let mut trial = Trial::new(u64::MAX);
    let Some((&first, mut rest)) = script.split_first() else { return };
    let slot = if first & 1 == 1 { trial.open() } else { trial.accept() };
    let (mut output, mut sent) = (Vec::new(), 0);
    while let Some((&control, behind)) = rest.split_first() {
        rest = behind;
        if control >= 240 {
            trial.pass(u64::from(control - 239) * 1000);
        } else {
            let (piece, behind) = rest.split_at(rest.len().min(usize::from(control) + 1));
            rest = behind;
            trial.send(slot, piece);
            sent += piece.len();
        }
        output.extend(trial.take(slot));
        let kept = output.len() + trial.around.front.kept_bytes(slot);
        assert!(kept <= BYTES_BESIDE + BYTES_PER_BYTE * sent, "{kept} bytes kept or said for {sent}");
    }
    let mut frames = output.strip_prefix(b"AMQP\0\0\x09\x01").unwrap_or(&output);
    while let Some(head) = FrameHead::read(frames) {
        assert_eq!(frames[head.frame_bytes() - 1], FRAME_END, "what is said is frames");
        frames = &frames[head.frame_bytes()..];
    }
    assert!(frames.is_empty(), "what is said is whole frames");
    disconnected(&mut trial.shard, &mut trial.around, slot);
    trial.turn();
    assert!(trial.around.front.is_empty() && trial.around.front.assembly_reserved_bytes == 0);
    trial.shard.assert_consistent();
    // Others are served as ever.
    let healthy = trial.open();
    trial.send(healthy, &method(1, 50, 10, &[0, 0, 0, 4, 0, 0, 0, 0]));
    assert!(trial.take(healthy).len() > 20, "an exclusive queue is declared");
    assert_eq!(trial.around.front.disposition(healthy), Disposition::Open);
}

/// Reads bytes in every way that the hot codec has, and compares with the other codec where both read them.
pub fn check_codec(bytes: &[u8]) {
    let _ = ContentHeader::read(bytes);
    let _ = PublishMethod::read(bytes);
    if let Ok(properties) = Properties::parse(bytes) {
        let _ = lepus_shards::shard::HeaderSource::headers(&properties);
    }
    let _ = super::table::check_table(bytes);
    let _ = super::method::ids(bytes);
    let _ = super::method::read(bytes);
    let Some(head) = FrameHead::read(bytes) else { return };
    let Some(whole) = bytes.get(..head.frame_bytes()) else { return };
    // The other codec recurses over nested tables; those that we refuse first it is spared.
    let payload = &whole[FrameHead::BYTES..whole.len() - 1];
    if whole.last() != Some(&FRAME_END) || (head.kind == METHOD && super::method::read(payload).is_err()) {
        return;
    }
    if head.kind == HEADER
        && ContentHeader::read(payload).is_ok_and(|header| Properties::parse(header.properties).is_err())
    {
        return;
    }
    match parse_frame(whole) {
        Ok((_, AMQPFrame::Method(_, AMQPClass::Basic(basic::AMQPMethod::Publish(other))))) => {
            let ours = PublishMethod::read(&payload[4..]).expect("what the other codec reads");
            assert_eq!(ours.exchange, other.exchange.as_str().as_bytes());
            assert_eq!(ours.routing_key, other.routing_key.as_str().as_bytes());
            assert_eq!((ours.mandatory, ours.immediate), (other.mandatory, other.immediate));
        }
        Ok((_, AMQPFrame::Header(_, other))) => {
            // Ours refuses what belongs to another class.
            if let Ok(ours) = ContentHeader::read(payload) {
                assert_eq!(ours.body_size, other.body_size);
            }
        }
        _ => {}
    }
}
