//! Clients that do everything a client can, at random, and a model of what they may expect.
//!
//! The model knows each message by its number. It holds the shards to this: nothing is delivered that
//! is settled, nothing comes twice without `redelivered`, no prefetch is exceeded, confirms come in
//! order and without gaps, first deliveries of a publisher come to a consumer in order, and in the end
//! every message that went into a kept queue has been accepted or can still be fetched.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{
    Address, NewConnection, NewConsumer, NoHeaders, Publish, Published, Reply, Request, Verdict,
};
use lepus_shards::topology::{BindingSpec, DestinationKind, Operation};
use lepus_shards::{Arguments, ChannelId, ConnectionId, ConsumerId, DeliveryTag, VhostId};

use crate::policies;
use crate::world::{Event, World};

const VHOST: VhostId = VhostId(0);
/// Queues that are never deleted, purged or left to expire: every message in them is accounted for.
const KEPT: [&str; 4] = ["kept-0", "kept-1", "kept-2", "kept-3"];
/// The only kept queue that is read without acks: what is on its way to a client that goes is lost
/// then, as it must be, so it is not part of the final account.
const UNACKED: &str = KEPT[3];
const LOOSE: [&str; 3] = ["loose-0", "loose-1", "loose-2"];
const FANOUT: &str = "amq.fanout";

struct Consumer {
    queue: String,
    no_ack: bool,
    prefetch: u32,
    outstanding: u32,
    cancelled: bool,
    /// Per publisher, the last message that came for the first time.
    last_first: HashMap<u64, u64>,
}

struct Held {
    queue: String,
    message: u64,
    consumer: Option<ConsumerId>,
}

struct Channel {
    id: ChannelId,
    publisher: u64,
    busy: Option<Asked>,
    prefetch: u32,
    limit: u32,
    /// Deliveries to consumers that the channel holds.
    counted: u32,
    held: BTreeMap<u64, Held>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    confirming: bool,
    published: u64,
    confirmed: u64,
}

enum Asked {
    Get { queue: String, no_ack: bool },
    Consume { queue: String, no_ack: bool },
    Limit { count: u32 },
    Close,
    Other,
}

struct Connection {
    id: ConnectionId,
    slot: u32,
    channels: BTreeMap<u16, Channel>,
    next_number: u16,
}

/// What is known of a message in a queue.
#[derive(Default, Clone, Copy)]
struct Fate {
    deliveries: u32,
    ended: bool,
}

/// All clients of a run.
pub struct Clients {
    connections: Vec<BTreeMap<u32, Connection>>,
    next_slot: Vec<u32>,
    next_publisher: u64,
    next_message: u64,
    publisher_of: HashMap<u64, u64>,
    kept: HashMap<(String, u64), Fate>,
    bound: BTreeSet<&'static str>,
    pub blocked: Vec<bool>,
    pub deliveries: u64,
    pub redeliveries: u64,
}

impl Clients {
    /// Declares the kept queues; two of them get everything that the fanout exchange gets.
    pub fn new(world: &mut World) -> Clients {
        let mut clients = Clients {
            connections: (0..world.count()).map(|_| BTreeMap::new()).collect(),
            next_slot: vec![0; world.count()],
            next_publisher: 0,
            next_message: 0,
            publisher_of: HashMap::new(),
            kept: HashMap::new(),
            bound: BTreeSet::new(),
            blocked: vec![false; world.count()],
            deliveries: 0,
            redeliveries: 0,
        };
        clients.open_connection(world, 0);
        clients.open_channel(world, 0, 0);
        for name in KEPT {
            clients.request(world, (0, 0, 1), Asked::Other, Request::Topology(declare(name, true, false)));
            world.settle_down();
            clients.listen(world);
        }
        for name in &KEPT[..2] {
            let binding = BindingSpec {
                source: FANOUT.into(),
                destination: (*name).into(),
                kind: DestinationKind::Queue,
                routing_key: String::new(),
                arguments: Arguments::new(),
            };
            let operation = Operation::Bind { vhost: VHOST, binding };
            clients.request(world, (0, 0, 1), Asked::Other, Request::Topology(operation));
            world.settle_down();
            clients.listen(world);
            clients.bound.insert(name);
        }
        clients
    }

    fn open_connection(&mut self, world: &mut World, shard: usize) -> u32 {
        let slot = (0..).find(|slot| !self.connections[shard].contains_key(slot)).expect("a free slot");
        self.next_slot[shard] += 1;
        let id = world.at(shard).0.open_connection(slot, NewConnection { vhost: VHOST });
        self.connections[shard]
            .insert(slot, Connection { id, slot, channels: BTreeMap::new(), next_number: 1 });
        slot
    }

    fn open_channel(&mut self, world: &mut World, shard: usize, slot: u32) {
        let connection = self.connections[shard].get_mut(&slot).expect("an open connection");
        let number = connection.next_number;
        connection.next_number += 1;
        let id = world.at(shard).0.open_channel(connection.id, number);
        self.next_publisher += 1;
        let channel = Channel {
            id,
            publisher: self.next_publisher,
            busy: None,
            prefetch: 0,
            limit: 0,
            counted: 0,
            held: BTreeMap::new(),
            consumers: BTreeMap::new(),
            confirming: false,
            published: 0,
            confirmed: 0,
        };
        connection.channels.insert(number, channel);
    }

    /// One client does one thing. Returns what, for the trace of a failure.
    pub fn act(&mut self, world: &mut World) -> String {
        let shard = world.random.usize(..world.count());
        let slots: Vec<u32> = self.connections[shard].keys().copied().collect();
        if slots.is_empty() || (slots.len() < 4 && world.random.u8(..20) == 0) {
            return format!("open connection {shard}/{}", self.open_connection(world, shard));
        }
        let slot = slots[world.random.usize(..slots.len())];
        if world.random.u16(..200) == 0 {
            self.drop_connection(world, shard, slot);
            return format!("lose connection {shard}/{slot}");
        }
        let numbers: Vec<u16> = self.connections[shard][&slot].channels.keys().copied().collect();
        if numbers.is_empty() || (numbers.len() < 3 && world.random.u8(..10) == 0) {
            self.open_channel(world, shard, slot);
            return format!("open channel on {shard}/{slot}");
        }
        let number = numbers[world.random.usize(..numbers.len())];
        let at = (shard, slot, number);
        if self.channel(at).busy.is_some() {
            return "busy".into();
        }
        let choice = world.random.u8(..100);
        let what = match choice {
            0..35 => self.publish(world, at),
            35..65 => self.settle(world, at),
            65..73 => self.get(world, at),
            73..80 => self.consume(world, at),
            80..83 => self.cancel(world, at),
            83..87 => self.set_prefetch(world, at),
            87..89 => self.recover(world, at),
            89..91 => self.close_channel(world, at),
            91..93 => self.select_confirms(world, at),
            _ => self.change_topology(world, at),
        };
        format!("{at:?} {what}")
    }

    fn channel(&mut self, (shard, slot, number): (usize, u32, u16)) -> &mut Channel {
        let connection = self.connections[shard].get_mut(&slot).expect("an open connection");
        connection.channels.get_mut(&number).expect("an open channel")
    }

    fn request(&mut self, world: &mut World, at: (usize, u32, u16), asked: Asked, request: Request) {
        let channel = self.channel(at);
        channel.busy = Some(asked);
        let id = channel.id;
        let (shard, fx) = world.at(at.0);
        shard.request(fx, id, request);
    }

    fn any_queue(&self, world: &mut World) -> &'static str {
        match world.random.u8(..8) {
            0 => LOOSE[world.random.usize(..LOOSE.len())],
            _ => KEPT[world.random.usize(..KEPT.len())],
        }
    }

    fn publish(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        if world.shards[at.0].publishing_blocked() {
            return "blocked".into();
        }
        let message = self.next_message;
        self.next_message += 1;
        let fanout = world.random.u8(..6) == 0;
        let queue = self.any_queue(world);
        let large = world.random.u8(..40) == 0;
        let (persistent, mandatory) = (world.random.bool(), world.random.bool());
        let channel = self.channel(at);
        let (id, publisher) = (channel.id, channel.publisher);
        let mut body = message.to_le_bytes().to_vec();
        if large {
            body.resize(20_000, 7);
        }
        let (exchange, key) = if fanout { (FANOUT, "") } else { ("", queue) };
        let view = MessageView {
            exchange: exchange.as_bytes(),
            routing_key: key.as_bytes(),
            properties: &[0, u8::from(persistent)],
            body: &body,
        };
        let durability = if persistent { Durability::Fsync } else { Durability::Memory };
        let publish = Publish {
            message: view,
            durability,
            mandatory,
            ttl_ms: None,
            further_keys: &[],
            headers: &NoHeaders,
        };
        let (shard, fx) = world.at(at.0);
        let published = shard.publish(fx, id, &publish).expect("both exchanges exist");
        let channel = self.channel(at);
        if channel.confirming {
            channel.published += 1;
        }
        self.publisher_of.insert(message, publisher);
        let kept: Vec<&str> = match fanout {
            true => self.bound.iter().copied().collect(),
            false => KEPT.iter().copied().filter(|name| *name == queue).collect(),
        };
        assert!(matches!(published, Published::Routed(n) if n as usize >= kept.len()) || kept.is_empty());
        for name in kept {
            self.kept.insert((name.into(), message), Fate::default());
        }
        format!("publish {message} to '{exchange}' '{key}'")
    }

    fn publish_to(&mut self, world: &mut World, at: (usize, u32, u16), queue: &str, message: u64) {
        let body = message.to_le_bytes();
        let (exchange, routing_key) = (&b""[..], queue.as_bytes());
        let view = MessageView { exchange, routing_key, properties: &[0, 0], body: &body };
        let publish = Publish {
            message: view,
            durability: Durability::Memory,
            mandatory: false,
            ttl_ms: None,
            further_keys: &[],
            headers: &NoHeaders,
        };
        let channel = self.channel(at);
        let (id, publisher) = (channel.id, channel.publisher);
        self.publisher_of.insert(message, publisher);
        let (shard, fx) = world.at(at.0);
        shard.publish(fx, id, &publish).expect("the queue exists");
    }

    fn settle(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let tags: Vec<u64> = self.channel(at).held.keys().copied().collect();
        let id = self.channel(at).id;
        if tags.is_empty() || world.random.u8(..30) == 0 {
            let unknown = 1_000_000 + world.random.u64(..10);
            let (shard, fx) = world.at(at.0);
            let refused = shard.settle(fx, id, DeliveryTag(unknown), false, Verdict::Accept);
            assert!(refused.is_err(), "an unknown tag is refused");
            return "settle unknown".into();
        }
        let mut tag = tags[world.random.usize(..tags.len())];
        let multiple = world.random.u8(..4) == 0;
        if multiple && world.random.u8(..5) == 0 {
            tag = 0;
        }
        let verdict = match world.random.u8(..10) {
            0..6 => Verdict::Accept,
            6..9 => Verdict::Requeue,
            _ => Verdict::Reject,
        };
        let ended: Vec<u64> = match multiple {
            true => tags.into_iter().filter(|&other| tag == 0 || other <= tag).collect(),
            false => vec![tag],
        };
        for tag in ended {
            let held = self.channel(at).held.remove(&tag).expect("it was held");
            self.let_go(at, &held);
            if verdict != Verdict::Requeue
                && let Some(fate) = self.kept.get_mut(&(held.queue, held.message))
            {
                fate.ended = true;
            }
        }
        let (shard, fx) = world.at(at.0);
        shard.settle(fx, id, DeliveryTag(tag), multiple, verdict).expect("a held tag is known");
        assert!(self.channel(at).busy.is_none());
        format!("settle {tag} multiple {multiple} {verdict:?}")
    }

    fn let_go(&mut self, at: (usize, u32, u16), held: &Held) {
        let Some(id) = held.consumer else { return };
        let channel = self.channel(at);
        channel.counted -= 1;
        if let Some(consumer) = channel.consumers.get_mut(&id) {
            consumer.outstanding -= 1;
        }
    }

    fn get(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let queue = self.any_queue(world);
        let no_ack = queue == UNACKED && world.random.bool();
        let asked = Asked::Get { queue: queue.into(), no_ack };
        self.request(world, at, asked, Request::Get { vhost: VHOST, queue: queue.into(), no_ack });
        format!("get {queue}")
    }

    fn consume(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        if self.channel(at).consumers.values().filter(|consumer| !consumer.cancelled).count() >= 3 {
            return "enough consumers".into();
        }
        let queue = self.any_queue(world);
        let no_ack = queue == UNACKED && world.random.bool();
        let exclusive = world.random.u8(..20) == 0;
        let priority = i32::from(world.random.u8(..3));
        let id = world.at(at.0).0.new_consumer_id();
        let consumer = NewConsumer { id, no_ack, exclusive, priority };
        let asked = Asked::Consume { queue: queue.into(), no_ack };
        self.request(world, at, asked, Request::Consume { vhost: VHOST, queue: queue.into(), consumer });
        format!("consume {queue} as {id:?}")
    }

    fn cancel(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let ids: Vec<ConsumerId> = self.channel(at).consumers.keys().copied().collect();
        if ids.is_empty() {
            return "nothing to cancel".into();
        }
        let consumer = ids[world.random.usize(..ids.len())];
        if self.channel(at).consumers[&consumer].cancelled {
            return "cancelled already".into();
        }
        self.request(world, at, Asked::Other, Request::Cancel { consumer });
        format!("cancel {consumer:?}")
    }

    fn set_prefetch(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let (count, global) = ([0, 1, 3, 10][world.random.usize(..4)], world.random.bool());
        let channel = self.channel(at);
        channel.busy = Some(if global { Asked::Limit { count } } else { Asked::Other });
        if global {
            // Not enforced on what is underway until the answer comes.
            channel.limit = 0;
        } else {
            channel.prefetch = count;
        }
        let id = channel.id;
        let (shard, fx) = world.at(at.0);
        shard.set_prefetch(fx, id, count as u16, global);
        format!("prefetch {count} global {global}")
    }

    fn recover(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let id = self.channel(at).id;
        for held in std::mem::take(&mut self.channel(at).held).into_values() {
            self.let_go(at, &held);
        }
        let (shard, fx) = world.at(at.0);
        shard.recover(fx, id);
        "recover".into()
    }

    fn close_channel(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let channel = self.channel(at);
        channel.busy = Some(Asked::Close);
        let id = channel.id;
        let (shard, fx) = world.at(at.0);
        shard.close_channel(fx, id);
        "close".into()
    }

    fn drop_connection(&mut self, world: &mut World, shard: usize, slot: u32) {
        let connection = self.connections[shard].remove(&slot).expect("it is open");
        assert_eq!(connection.slot, slot);
        let (kernel, fx) = world.at(shard);
        kernel.close_connection(fx, connection.id);
    }

    fn select_confirms(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let channel = self.channel(at);
        channel.confirming = true;
        let id = channel.id;
        world.at(at.0).0.select_confirms(id);
        "confirm.select".into()
    }

    fn change_topology(&mut self, world: &mut World, at: (usize, u32, u16)) -> String {
        let name = LOOSE[world.random.usize(..LOOSE.len())];
        let request = match world.random.u8(..8) {
            0..2 => Request::Topology(declare(name, world.random.bool(), false)),
            2 => Request::Topology(declare("", false, true)),
            3 => Request::Topology(Operation::DeleteQueue {
                vhost: VHOST,
                name: name.into(),
                if_unused: world.random.bool(),
                if_empty: world.random.bool(),
            }),
            4 => Request::Purge { vhost: VHOST, queue: name.into() },
            5 | 6 => Request::Topology(policies::change(&mut world.random)),
            _ => Request::Topology(declare(self.any_queue(world), true, false)),
        };
        let what = format!("{request:?}");
        self.request(world, at, Asked::Other, request);
        what
    }

    /// Hears what the shards said, and holds them to it.
    pub fn listen(&mut self, world: &mut World) {
        for (shard, event) in world.take_events() {
            match event {
                Event::Deliver { to, consumer, tag, redelivered, body, .. } => {
                    self.delivered(shard, to, consumer, tag, redelivered, &body);
                }
                Event::Got { to, tag, redelivered, body, .. } => self.got(shard, to, tag, redelivered, &body),
                Event::Reply { to, reply } => self.replied(shard, to, reply),
                Event::Confirm { to, first, last, accepted } => {
                    let channel = self.channel(address(shard, to));
                    assert!(accepted, "nothing refuses a publish here");
                    assert_eq!(first, channel.confirmed + 1, "confirms have no gaps");
                    assert!(last <= channel.published, "nothing is confirmed before it is published");
                    channel.confirmed = last;
                }
                Event::Returned { .. } => unreachable!("only direct replies come back late"),
                Event::Cancelled { to, consumer } => {
                    let channel = self.channel(address(shard, to));
                    channel.consumers.get_mut(&consumer).expect("a known consumer").cancelled = true;
                }
                Event::Failed { refusal, .. } => panic!("nobody is late here: {refusal}"),
                Event::Held { .. } => panic!("no queue here makes publishers wait"),
                Event::Blocked(blocked) => {
                    assert_ne!(self.blocked[shard], blocked, "told once");
                    self.blocked[shard] = blocked;
                }
            }
        }
    }

    fn delivered(
        &mut self,
        shard: usize,
        to: Address,
        id: ConsumerId,
        tag: u64,
        redelivered: bool,
        body: &[u8],
    ) {
        let message = u64::from_le_bytes(body[..8].try_into().expect("eight bytes of number"));
        let publisher = self.publisher_of[&message];
        let at = address(shard, to);
        let channel = self.channel(at);
        let consumer = channel.consumers.get_mut(&id).expect("a delivery follows consume-ok");
        assert!(!consumer.cancelled, "nothing is delivered after the cancellation");
        if !redelivered {
            let last = consumer.last_first.entry(publisher).or_insert(0);
            assert!(*last <= message, "first deliveries of a publisher come in order");
            *last = message;
        }
        let (queue, no_ack) = (consumer.queue.clone(), consumer.no_ack);
        if !no_ack {
            consumer.outstanding += 1;
            let within = consumer.prefetch == 0 || consumer.outstanding <= consumer.prefetch;
            assert!(within, "a consumer's prefetch is not exceeded");
            channel.counted += 1;
            assert!(channel.limit == 0 || channel.counted <= channel.limit, "nor the channel's");
            channel.held.insert(tag, Held { queue: queue.clone(), message, consumer: Some(id) });
        }
        self.note_delivery(&queue, message, redelivered, no_ack);
    }

    fn got(&mut self, shard: usize, to: Address, tag: u64, redelivered: bool, body: &[u8]) {
        let message = u64::from_le_bytes(body[..8].try_into().expect("eight bytes of number"));
        let channel = self.channel(address(shard, to));
        let Some(Asked::Get { queue, no_ack }) = channel.busy.take() else { panic!("a message for no get") };
        if !no_ack {
            channel.held.insert(tag, Held { queue: queue.clone(), message, consumer: None });
        }
        self.note_delivery(&queue, message, redelivered, no_ack);
    }

    fn note_delivery(&mut self, queue: &str, message: u64, redelivered: bool, ends: bool) {
        self.deliveries += 1;
        self.redeliveries += u64::from(redelivered);
        let Some(fate) = self.kept.get_mut(&(queue.to_string(), message)) else { return };
        assert!(!fate.ended, "{message} in {queue} was settled and comes again");
        assert!(fate.deliveries == 0 || redelivered, "{message} in {queue} comes twice as if it were new");
        fate.deliveries += 1;
        fate.ended = ends;
    }

    fn replied(&mut self, shard: usize, to: Address, reply: Reply) {
        let at = address(shard, to);
        let channel = self.channel(at);
        let asked = channel.busy.take().unwrap_or_else(|| panic!("an answer to nothing: {reply:?}"));
        match (asked, reply) {
            (Asked::Consume { queue, no_ack }, Reply::Consuming { consumer }) => {
                let prefetch = channel.prefetch;
                let (outstanding, cancelled, last_first) = (0, false, HashMap::new());
                let new = Consumer { queue, no_ack, prefetch, outstanding, cancelled, last_first };
                channel.consumers.insert(consumer, new);
            }
            (Asked::Limit { count }, Reply::PrefetchSet) => channel.limit = count,
            (Asked::Close, Reply::ChannelClosed) => {
                let connection = self.connections[shard].get_mut(&at.1).expect("an open connection");
                connection.channels.remove(&at.2);
            }
            (Asked::Other, Reply::Cancelled { consumer }) => {
                channel.consumers.get_mut(&consumer).expect("a known consumer").cancelled = true;
            }
            (Asked::Get { .. }, Reply::Empty | Reply::Refused(_)) => {}
            (Asked::Consume { .. }, Reply::Refused(_)) => {}
            (Asked::Other, _) => {}
            (_, reply) => panic!("the wrong answer: {reply:?}"),
        }
    }

    /// The run ends: all connections go, and what is left in the kept queues is fetched. Every
    /// message must have ended, or be there, once.
    pub fn account(&mut self, world: &mut World) {
        world.settle_down();
        self.listen(world);
        for shard in 0..world.count() {
            for connection in self.connections[shard].values() {
                for channel in connection.channels.values() {
                    assert!(channel.busy.is_none(), "every request is answered");
                    assert_eq!(channel.confirmed, channel.published, "every publish is confirmed");
                }
            }
            let slots: Vec<u32> = self.connections[shard].keys().copied().collect();
            for slot in slots {
                self.drop_connection(world, shard, slot);
                self.listen(world);
            }
        }
        world.settle_down();
        self.listen(world);
        let slot = self.open_connection(world, 0);
        self.open_channel(world, 0, slot);
        let at = (0, slot, 1);
        for name in KEPT {
            loop {
                let before = self.deliveries;
                let asked = Asked::Get { queue: name.into(), no_ack: true };
                self.request(
                    world,
                    at,
                    asked,
                    Request::Get { vhost: VHOST, queue: name.into(), no_ack: true },
                );
                world.settle_down();
                self.listen(world);
                if self.deliveries == before {
                    break;
                }
            }
        }
        let lost = self.kept.iter().filter(|((queue, _), fate)| queue != UNACKED && !fate.ended);
        let lost: Vec<_> = lost.map(|(key, _)| key).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
    }
}

fn address(shard: usize, to: Address) -> (usize, u32, u16) {
    assert_eq!(to.connection.shard.index(), shard, "clients are told on their own shard");
    (shard, to.connection.slot, to.channel)
}

fn declare(name: &str, durable: bool, exclusive: bool) -> Operation {
    Operation::DeclareQueue {
        vhost: VHOST,
        name: name.into(),
        passive: false,
        durable,
        exclusive,
        auto_delete: name.starts_with("loose-2"),
        arguments: Arguments::new(),
    }
}

/// One client holds messages, another one waits for them; the first goes, with or without a close of
/// its channel. What it held must reach the other in publication order, wherever the three live.
pub fn hand_on_what_a_lost_client_held(world: &mut World, close_channel: bool) {
    let mut clients = Clients::new(world);
    let places: Vec<usize> = (0..2).map(|_| world.random.usize(..world.count())).collect();
    let ats: Vec<(usize, u32, u16)> = places
        .into_iter()
        .map(|shard| {
            let slot = clients.open_connection(world, shard);
            clients.open_channel(world, shard, slot);
            (shard, slot, 1)
        })
        .collect();
    let (holder, heir) = (ats[0], ats[1]);
    for message in 0..20u64 {
        clients.publish_to(world, heir, KEPT[0], message);
    }
    clients.next_message = 20;
    for at in ats {
        let id = world.at(at.0).0.new_consumer_id();
        let consumer = NewConsumer { id, no_ack: false, exclusive: false, priority: 0 };
        let asked = Asked::Consume { queue: KEPT[0].into(), no_ack: false };
        clients.request(world, at, asked, Request::Consume { vhost: VHOST, queue: KEPT[0].into(), consumer });
        world.settle_down();
        clients.listen(world);
    }
    assert_eq!(clients.channel(holder).held.len(), 20);
    if close_channel {
        clients.close_channel(world, holder);
    } else {
        clients.drop_connection(world, holder.0, holder.1);
    }
    for _ in 0..200 {
        world.happen();
        clients.listen(world);
    }
    world.settle_down();
    clients.listen(world);
    let order: Vec<u64> = clients.channel(heir).held.values().map(|held| held.message).collect();
    assert_eq!(order, (0..20).collect::<Vec<_>>(), "everything comes, in publication order");
}
