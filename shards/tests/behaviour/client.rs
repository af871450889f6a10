//! Clients of the world: each a connection with one channel.

use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{NewConnection, NewConsumer, NoHeaders, Publish, Reply, Request, Verdict};
use lepus_shards::topology::{BindingSpec, DestinationKind, Operation};
use lepus_shards::{
    Arguments, ChannelId, ConnectionId, ConsumerId, DeliveryTag, RefusalKind, Value, VhostId,
};

use crate::world::{Event, World};

const VHOST: VhostId = VhostId(0);

/// Two shards, and the slots that are taken on each.
pub struct Bench {
    pub world: World,
    next_slot: u32,
    /// What was said and not asked for yet.
    events: Vec<(usize, Event)>,
}

/// A connection with channel 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    pub shard: usize,
    pub connection: ConnectionId,
    pub channel: ChannelId,
}

/// A delivery, or what a get got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub tag: u64,
    pub redelivered: bool,
    /// What the properties say of deaths and returns, a line each.
    pub notes: Vec<String>,
    pub body: String,
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with_budget(u64::MAX)
    }

    pub fn with_budget(memory_budget_bytes: u64) -> Bench {
        Bench { world: World::new(1, 2, memory_budget_bytes), next_slot: 0, events: Vec::new() }
    }

    pub fn connect(&mut self, shard: usize) -> Client {
        let (kernel, _) = self.world.at(shard);
        let connection = kernel.open_connection(self.next_slot, NewConnection { vhost: VHOST });
        self.next_slot += 1;
        let channel = kernel.open_channel(connection, 1);
        Client { shard, connection, channel }
    }

    pub fn disconnect(&mut self, client: Client) {
        let (kernel, around) = self.world.at(client.shard);
        kernel.close_connection(around, client.connection);
        self.settle_down();
    }

    /// Everything that is under way is done.
    pub fn settle_down(&mut self) {
        self.world.settle_down();
        self.events.extend(self.world.take_events());
        self.world.check();
    }

    /// Takes what was said so far, without letting anything more happen.
    pub fn collect(&mut self) {
        self.events.extend(self.world.take_events());
    }

    /// Time passes, on all shards.
    pub fn pass(&mut self, ms: u64) {
        self.world.now_ms += ms;
        for shard in 0..self.world.count() {
            let now_ms = self.world.now_ms;
            let (kernel, around) = self.world.at(shard);
            kernel.set_time(now_ms);
            while kernel.tick(around) {}
        }
        self.settle_down();
    }

    /// The events of a client that `pick` wants, in order; the others stay.
    pub fn take<T>(&mut self, client: Client, pick: impl Fn(&Event) -> Option<T>) -> Vec<T> {
        let (mut taken, mut rest) = (Vec::new(), Vec::new());
        for (shard, event) in self.events.drain(..) {
            let its = match &event {
                Event::Deliver { to, .. } | Event::Got { to, .. } | Event::Reply { to, .. } => Some(to),
                Event::Confirm { to, .. } | Event::Cancelled { to, .. } | Event::Returned { to, .. } => {
                    Some(to)
                }
                Event::Failed { to, .. } | Event::Held { to, .. } => Some(to),
                Event::Blocked(_) => None,
            };
            let its = its.map_or(shard == client.shard, |to| to.connection == client.connection);
            match if its { pick(&event) } else { None } {
                Some(wanted) => taken.push(wanted),
                None => rest.push((shard, event)),
            }
        }
        self.events = rest;
        taken
    }

    pub fn request(&mut self, client: Client, request: Request) -> Reply {
        let (kernel, around) = self.world.at(client.shard);
        kernel.request(around, client.channel, request);
        self.settle_down();
        let mut replies = self.replies(client);
        assert_eq!(replies.len(), 1, "a request has one answer");
        replies.remove(0)
    }

    /// Answers since last asked.
    pub fn replies(&mut self, client: Client) -> Vec<Reply> {
        self.take(client, |event| match event {
            Event::Reply { reply, .. } => Some(reply.clone()),
            _ => None,
        })
    }

    pub fn refused(&mut self, client: Client, request: Request) -> RefusalKind {
        match self.request(client, request) {
            Reply::Refused(refusal) => refusal.kind,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub fn declare(&mut self, client: Client, name: &str, arguments: &[(&str, i64)]) {
        let reply = self.request(client, declare(name, [true, false, false], arguments));
        assert!(matches!(reply, Reply::QueueDeclared { .. }), "{reply:?}");
    }

    /// A durable queue with arguments of any type.
    pub fn declare_with(&mut self, client: Client, name: &str, arguments: &[(&str, Value)]) {
        let mut request = declare(name, [true, false, false], &[]);
        if let Request::Topology(Operation::DeclareQueue { arguments: given, .. }) = &mut request {
            given.extend(arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        }
        let reply = self.request(client, request);
        assert!(matches!(reply, Reply::QueueDeclared { .. }), "{reply:?}");
    }

    /// A durable queue with arguments, whose dead letters go to another queue.
    pub fn declare_with_dead_letters(
        &mut self,
        client: Client,
        name: &str,
        to: &str,
        more: &[(&str, Value)],
    ) {
        let mut arguments =
            vec![("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(to))];
        arguments.extend_from_slice(more);
        self.declare_with(client, name, &arguments);
    }

    /// Ready messages and consumers; none when there is no such queue.
    pub fn look(&mut self, client: Client, name: &str) -> Option<(u64, u64)> {
        let mut request = declare(name, [true, false, false], &[]);
        if let Request::Topology(Operation::DeclareQueue { passive, .. }) = &mut request {
            *passive = true;
        }
        match self.request(client, request) {
            Reply::QueueDeclared { messages, consumers, .. } => Some((messages, consumers)),
            _ => None,
        }
    }

    pub fn bind_fanout(&mut self, client: Client, queue: &str) {
        self.bind(client, "amq.fanout", queue, "");
    }

    pub fn bind(&mut self, client: Client, exchange: &str, queue: &str, key: &str) {
        let binding = BindingSpec {
            source: exchange.into(),
            destination: queue.into(),
            kind: DestinationKind::Queue,
            routing_key: key.into(),
            arguments: Arguments::new(),
        };
        let request = Request::Topology(Operation::Bind { vhost: VHOST, binding });
        assert_eq!(self.request(client, request), Reply::Done);
    }

    /// Publishes and does nothing else.
    pub fn send(
        &mut self,
        client: Client,
        exchange: &str,
        key: &str,
        body: &str,
        persistent: bool,
        ttl_ms: Option<u64>,
    ) {
        self.send_with(client, exchange, key, body, [0, u8::from(persistent)], ttl_ms);
    }

    /// As [`Self::send`], with priority and persistence as the properties say them.
    pub fn send_with(
        &mut self,
        client: Client,
        exchange: &str,
        key: &str,
        body: &str,
        properties: [u8; 2],
        ttl_ms: Option<u64>,
    ) {
        let message = MessageView {
            exchange: exchange.as_bytes(),
            routing_key: key.as_bytes(),
            properties: &properties,
            body: body.as_bytes(),
        };
        let durability = if properties[1] == 1 { Durability::Fsync } else { Durability::Memory };
        let publish =
            Publish { message, durability, mandatory: false, ttl_ms, further_keys: &[], headers: &NoHeaders };
        let (kernel, around) = self.world.at(client.shard);
        kernel.publish(around, client.channel, &publish).unwrap();
    }

    pub fn publish(&mut self, client: Client, queue: &str, body: &str) {
        self.send(client, "", queue, body, true, None);
        self.settle_down();
    }

    pub fn get(&mut self, client: Client, queue: &str, no_ack: bool) -> Option<Got> {
        let request = Request::Get { vhost: VHOST, queue: queue.into(), no_ack };
        let (kernel, around) = self.world.at(client.shard);
        kernel.request(around, client.channel, request);
        self.settle_down();
        let mut got = self.take(client, |event| match event {
            Event::Got { tag, redelivered, properties, body, .. } => {
                Some(Some(got(*tag, *redelivered, properties, body)))
            }
            Event::Reply { reply: Reply::Empty, .. } => Some(None),
            _ => None,
        });
        got.pop().expect("a get has one answer")
    }

    pub fn bodies(&mut self, client: Client, queue: &str) -> Vec<String> {
        std::iter::from_fn(|| self.get(client, queue, true)).map(|got| got.body).collect()
    }

    pub fn consume(
        &mut self,
        client: Client,
        queue: &str,
        priority: i32,
        exclusive: bool,
        no_ack: bool,
    ) -> Reply {
        let id = self.world.at(client.shard).0.new_consumer_id();
        let consumer = NewConsumer { id, no_ack, exclusive, priority };
        self.request(client, Request::Consume { vhost: VHOST, queue: queue.into(), consumer })
    }

    /// A plain consumer.
    pub fn subscribe(&mut self, client: Client, queue: &str) -> ConsumerId {
        match self.consume(client, queue, 0, false, false) {
            Reply::Consuming { consumer } => consumer,
            other => panic!("{other:?}"),
        }
    }

    pub fn prefetch(&mut self, client: Client, count: u16, global: bool) {
        let (kernel, around) = self.world.at(client.shard);
        kernel.set_prefetch(around, client.channel, count, global);
        self.settle_down();
        let set = self.take(client, |event| {
            matches!(event, Event::Reply { reply: Reply::PrefetchSet, .. }).then_some(())
        });
        assert_eq!(set.len(), 1);
    }

    pub fn settle(&mut self, client: Client, tag: u64, multiple: bool, verdict: Verdict) {
        let (kernel, around) = self.world.at(client.shard);
        kernel.settle(around, client.channel, DeliveryTag(tag), multiple, verdict).unwrap();
        self.settle_down();
    }

    /// Deliveries since last asked.
    pub fn deliveries(&mut self, client: Client) -> Vec<Got> {
        self.take(client, |event| match event {
            Event::Deliver { tag, redelivered, properties, body, .. } => {
                Some(got(*tag, *redelivered, properties, body))
            }
            _ => None,
        })
    }

    /// Confirms since last asked: first, last, accepted.
    pub fn confirms(&mut self, client: Client) -> Vec<(u64, u64, bool)> {
        self.take(client, |event| match event {
            Event::Confirm { first, last, accepted, .. } => Some((*first, *last, *accepted)),
            _ => None,
        })
    }

    /// Consumers of the client whose queues have gone, since last asked.
    pub fn cancelled(&mut self, client: Client) -> usize {
        self.take(client, |event| matches!(event, Event::Cancelled { .. }).then_some(())).len()
    }

    /// What the client's channel was closed for, since last asked.
    pub fn failures(&mut self, client: Client) -> Vec<String> {
        self.take(client, |event| match event {
            Event::Failed { refusal, .. } => Some(refusal.text.clone()),
            _ => None,
        })
    }

    /// Whether the client's publishes were held, since last asked.
    pub fn holds(&mut self, client: Client) -> Vec<bool> {
        self.take(client, |event| match event {
            Event::Held { held, .. } => Some(*held),
            _ => None,
        })
    }

    /// What was said of blocking on the client's shard, since last asked.
    pub fn blocked(&mut self, client: Client) -> Vec<bool> {
        self.take(client, |event| match event {
            Event::Blocked(blocked) => Some(*blocked),
            _ => None,
        })
    }
}

fn got(tag: u64, redelivered: bool, properties: &[u8], body: &[u8]) -> Got {
    let notes = String::from_utf8_lossy(&properties[2..]).lines().map(str::to_owned).collect();
    Got { tag, redelivered, notes, body: String::from_utf8_lossy(body).into_owned() }
}

/// A text as an argument.
pub fn text(text: &str) -> Value {
    Value::LongString(text.as_bytes().to_vec())
}

/// Flags: durable, exclusive, auto-delete.
pub fn declare(
    name: &str,
    [durable, exclusive, auto_delete]: [bool; 3],
    arguments: &[(&str, i64)],
) -> Request {
    let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), Value::I64(*value))).collect();
    let (vhost, name, passive) = (VHOST, name.to_owned(), false);
    Request::Topology(Operation::DeclareQueue {
        vhost,
        name,
        passive,
        durable,
        exclusive,
        auto_delete,
        arguments,
    })
}

pub fn purge(queue: &str) -> Request {
    Request::Purge { vhost: VHOST, queue: queue.into() }
}

pub fn delete(queue: &str) -> Request {
    let (vhost, name) = (VHOST, queue.to_owned());
    Request::Topology(Operation::DeleteQueue { vhost, name, if_unused: false, if_empty: false })
}
