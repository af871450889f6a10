//! From an exchange and a routing key to the queues, as for the first message with a key: no route is cached.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use gungraun::{library_benchmark, library_benchmark_group};
use lepus_shards::shard::HeaderSource;
use lepus_shards::topology::{
    BindingSpec, Change, DestinationKind, ExchangeInfo, ExchangeKind, QueueInfo, RouteScratch, RoutingData,
    Topology,
};
use lepus_shards::{Arguments, QueueId, ShardId, Value, VhostId};

use crate::TIMES;

const VHOST: VhostId = VhostId(0);
const QUEUES: u32 = 10;

/// What a message is routed by.
struct Message {
    topology: Topology,
    scratch: RouteScratch,
    key: &'static [u8],
    headers: Headers,
    /// How many queues it goes to.
    queues: usize,
}

#[derive(Clone, Debug, Default)]
struct Headers(Arguments);

impl HeaderSource for Headers {
    fn headers(&self) -> Arguments {
        self.0.clone()
    }
}

fn topology(kind: ExchangeKind) -> Topology {
    let mut topology = Topology::new();
    topology.apply(&Change::CreateVhost { id: VHOST, name: "/".into() });
    let exchange = |name: &str, kind| ExchangeInfo {
        vhost: VHOST,
        name: name.into(),
        kind,
        durable: false,
        auto_delete: false,
        internal: false,
        arguments: Arguments::default(),
        policy: None,
    };
    topology.apply(&Change::CreateExchange(Arc::new(exchange("", ExchangeKind::Direct))));
    topology.apply(&Change::CreateExchange(Arc::new(exchange("x", kind))));
    for queue in 0..QUEUES {
        topology.apply(&Change::CreateQueue(Arc::new(QueueInfo {
            id: QueueId::new(ShardId(0), queue, 1),
            vhost: VHOST,
            name: format!("q{queue}").into(),
            durable: false,
            durable_id: None,
            auto_delete: false,
            exclusive: None,
            arguments: Arguments::default(),
            policy: None,
        })));
    }
    topology
}

fn bind(topology: &mut Topology, queue: u32, routing_key: &str, arguments: Arguments) {
    let binding = BindingSpec {
        source: "x".into(),
        destination: format!("q{}", queue % QUEUES),
        kind: DestinationKind::Queue,
        routing_key: routing_key.into(),
        arguments,
    };
    topology.apply(&Change::AddBinding { vhost: VHOST, binding: Arc::new(binding) });
}

fn message(topology: Topology, key: &'static [u8], headers: Headers, queues: usize) -> Message {
    let mut message = Message { topology, scratch: RouteScratch::with_seed(1), key, headers, queues };
    route(&mut message, 1);
    assert_eq!(message.scratch.queues.len(), queues, "the message goes where it should");
    message
}

/// A queue for each key.
fn direct() -> Message {
    let mut topology = topology(ExchangeKind::Direct);
    (0..QUEUES).for_each(|queue| bind(&mut topology, queue, &format!("key{queue}"), Arguments::default()));
    message(topology, b"key7", Headers::default(), 1)
}

/// Everything to all queues.
fn fanout() -> Message {
    let mut topology = topology(ExchangeKind::Fanout);
    (0..QUEUES).for_each(|queue| bind(&mut topology, queue, "", Arguments::default()));
    message(topology, b"key", Headers::default(), QUEUES as usize)
}

/// A thousand patterns, of which two match.
fn topic() -> Message {
    let mut topology = topology(ExchangeKind::Topic);
    let mut pattern = String::new();
    for binding in 0..1_000 {
        pattern.clear();
        // Writing to a string cannot fail.
        let _ = write!(pattern, "region{}.*.event{binding}", binding % 7);
        bind(&mut topology, binding, &pattern, Arguments::default());
    }
    bind(&mut topology, 9, "region3.#", Arguments::default());
    message(topology, b"region3.host42.event10", Headers::default(), 2)
}

/// Ten bindings with two headers each, of which one matches.
fn headers() -> Message {
    let table = |number: u32| {
        let kind = ("kind".into(), Value::LongString(b"order".to_vec()));
        Headers([kind, ("number".into(), Value::I32(number as i32))].into_iter().collect())
    };
    let mut topology = topology(ExchangeKind::Headers);
    (0..QUEUES).for_each(|queue| bind(&mut topology, queue, "", table(queue).0));
    message(topology, b"", table(4), 1)
}

fn route(message: &mut Message, times: usize) {
    let Message { topology, scratch, key, headers, .. } = message;
    let data = RoutingData { routing_key: black_box(key), further_keys: &[], headers };
    for _ in 0..times {
        black_box(topology.route(VHOST, "x", black_box(&data), scratch)).expect("there is such an exchange");
    }
}

#[library_benchmark]
#[bench::direct(direct())]
#[bench::fanout_10(fanout())]
#[bench::topic_1000(topic())]
#[bench::headers_10(headers())]
fn uncached(mut message: Message) -> (Message, bool) {
    route(&mut message, TIMES);
    let right = message.scratch.queues.len() == message.queues;
    (message, right)
}

library_benchmark_group!(name = routing_group, benchmarks = [uncached]);
