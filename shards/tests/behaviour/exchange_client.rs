//! What clients say of exchanges, and of direct replies.

use lepus_shards::message::MessageView;
use lepus_shards::shard::{NoHeaders, Publish, Published, Reply, Request};
use lepus_shards::topology::{BindingSpec, DestinationKind, Operation, REPLY_QUEUE};
use lepus_shards::{Arguments, ConsumerId, Durability, Value, VhostId};

use crate::client::{Bench, Client};
use crate::world::Event;

const VHOST: VhostId = VhostId(0);

impl Bench {
    /// A request that is answered with a plain yes.
    pub fn ask(&mut self, client: Client, request: Request) {
        assert_eq!(self.request(client, request), Reply::Done);
    }

    /// A request whose answer nobody waits for yet.
    pub fn begin(&mut self, client: Client, request: Request) {
        let (kernel, around) = self.world.at(client.shard);
        kernel.request(around, client.channel, request);
    }

    /// Publishes a mandatory message through the default exchange, and does nothing else.
    pub fn send_mandatory(&mut self, client: Client, keys: &[&str], body: &str) -> Published {
        let message = MessageView {
            exchange: b"",
            routing_key: keys[0].as_bytes(),
            properties: &[0, 0],
            body: body.as_bytes(),
        };
        let further_keys: Vec<&[u8]> = keys[1..].iter().map(|key| key.as_bytes()).collect();
        let publish = Publish {
            message,
            durability: Durability::Memory,
            mandatory: true,
            ttl_ms: None,
            further_keys: &further_keys,
            headers: &NoHeaders,
        };
        let (kernel, around) = self.world.at(client.shard);
        kernel.publish(around, client.channel, &publish).unwrap()
    }

    /// Bodies of messages that came back after they were taken as routed, since last asked.
    pub fn returned(&mut self, client: Client) -> Vec<String> {
        self.take(client, |event| match event {
            Event::Returned { body, .. } => Some(String::from_utf8_lossy(body).into_owned()),
            _ => None,
        })
    }

    /// What became of publishes, since last asked, in the order in which it was said.
    pub fn confirms_and_returns(&mut self, client: Client) -> Vec<String> {
        self.take(client, |event| match event {
            Event::Returned { body, .. } => Some(format!("returned {}", String::from_utf8_lossy(body))),
            Event::Confirm { last, accepted: true, .. } => Some(format!("confirmed {last}")),
            _ => None,
        })
    }

    /// Consumes direct replies, and gives the name under which they come.
    pub fn consume_replies(&mut self, client: Client) -> (ConsumerId, String) {
        match self.consume(client, REPLY_QUEUE, 0, false, true) {
            Reply::Consuming { consumer } => {
                let name = self.world.at(client.shard).0.reply_name(client.channel).unwrap().to_owned();
                (consumer, name)
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn declare_exchange(name: &str, kind: &str, arguments: &[(&str, i64)]) -> Request {
    let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), Value::I64(*value))).collect();
    Request::Topology(Operation::DeclareExchange {
        vhost: VHOST,
        name: name.into(),
        kind: kind.into(),
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        arguments,
    })
}

pub fn delete_exchange(name: &str) -> Request {
    Request::Topology(Operation::DeleteExchange { vhost: VHOST, name: name.into(), if_unused: false })
}

fn binding(source: &str, destination: &str, kind: DestinationKind, key: &str) -> BindingSpec {
    BindingSpec {
        source: source.into(),
        destination: destination.into(),
        kind,
        routing_key: key.into(),
        arguments: Arguments::new(),
    }
}

pub fn bind(exchange: &str, queue: &str, key: &str) -> Request {
    let binding = binding(exchange, queue, DestinationKind::Queue, key);
    Request::Topology(Operation::Bind { vhost: VHOST, binding })
}

pub fn bind_exchange(source: &str, destination: &str, key: &str) -> Request {
    let binding = binding(source, destination, DestinationKind::Exchange, key);
    Request::Topology(Operation::Bind { vhost: VHOST, binding })
}

pub fn unbind(exchange: &str, queue: &str, key: &str) -> Request {
    let binding = binding(exchange, queue, DestinationKind::Queue, key);
    Request::Topology(Operation::Unbind { vhost: VHOST, binding })
}
