//! A delayed exchange that two queues are bound to, on random shards, short of memory or not. Whatever order
//! things happen in, each message comes to each queue once and not before its time, and nothing waits any
//! more when all times have come.

use std::collections::{BTreeMap, BTreeSet};

use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{HeaderSource, NewConnection, Publish, Published, Reply, Request};
use lepus_shards::topology::{BindingSpec, DestinationKind, Operation};
use lepus_shards::{Arguments, ChannelId, ConnectionId, Value, VhostId};

use crate::world::{Event, World};

const VHOST: VhostId = VhostId(0);
const EXCHANGE: &str = "later";
const QUEUES: [&str; 2] = ["a", "b"];
const DELAY_MS_MAX: i64 = 300;
const STEPS: usize = 1_000;

#[derive(Debug)]
struct Delay(i64);

impl HeaderSource for Delay {
    fn headers(&self) -> Arguments {
        [("x-delay".to_owned(), Value::I64(self.0))].into()
    }
}

struct Client {
    shard: usize,
    connection: ConnectionId,
    channel: ChannelId,
    asked: Option<&'static str>,
}

struct Run<'a> {
    world: &'a mut World,
    clients: Vec<Client>,
    /// When each message may come, by its number.
    due_ms: Vec<u64>,
    came: BTreeMap<&'static str, BTreeSet<u64>>,
    /// By client.
    confirmed: Vec<u64>,
}

impl Run<'_> {
    fn ask(&mut self, operation: Operation) {
        let Client { shard, channel, .. } = self.clients[0];
        let (kernel, around) = self.world.at(shard);
        kernel.request(around, channel, Request::Topology(operation));
        self.world.settle_down();
        let good = |event: &Event| match event {
            Event::Reply { reply, .. } => matches!(reply, Reply::Done | Reply::QueueDeclared { .. }),
            _ => false,
        };
        let events = self.world.take_events();
        assert!(events.iter().any(|(_, event)| good(event)), "{events:?}");
    }

    fn declare(&mut self) {
        let arguments = [("x-delayed-type".to_owned(), Value::LongString("fanout".into()))].into();
        let (vhost, name, kind) = (VHOST, EXCHANGE.to_owned(), "x-delayed-message".to_owned());
        let (passive, durable, auto_delete, internal) = (false, true, false, false);
        self.ask(Operation::DeclareExchange {
            vhost,
            name,
            kind,
            passive,
            durable,
            auto_delete,
            internal,
            arguments,
        });
        for queue in QUEUES {
            let (name, exclusive, arguments) = (queue.to_owned(), false, Arguments::new());
            self.ask(Operation::DeclareQueue {
                vhost,
                name,
                passive,
                durable,
                exclusive,
                auto_delete,
                arguments: arguments.clone(),
            });
            let (source, destination) = (EXCHANGE.to_owned(), queue.to_owned());
            let (kind, routing_key) = (DestinationKind::Queue, String::new());
            let binding = BindingSpec { source, destination, kind, routing_key, arguments };
            self.ask(Operation::Bind { vhost, binding });
        }
    }

    fn publish(&mut self, client: usize) {
        let (now_ms, number) = (self.world.now_ms, self.due_ms.len() as u64);
        let random = &mut self.world.random;
        let (delay, persistent) = (Delay(random.i64(1..=DELAY_MS_MAX)), random.bool());
        self.due_ms.push(now_ms + delay.0 as u64);
        // Whoever takes it in knows what time it is.
        for shard in 0..self.world.count() {
            self.world.at(shard).0.set_time(now_ms);
        }
        let message = MessageView {
            exchange: EXCHANGE.as_bytes(),
            routing_key: b"",
            properties: &[0, u8::from(persistent)],
            body: &number.to_le_bytes(),
        };
        let durability = if persistent { Durability::Fsync } else { Durability::Memory };
        let (mandatory, ttl_ms, further_keys) = (false, None, &[][..]);
        let publish = Publish { message, durability, mandatory, ttl_ms, further_keys, headers: &delay };
        let Client { shard, channel, .. } = self.clients[client];
        let (kernel, around) = self.world.at(shard);
        let published = kernel.publish(around, channel, &publish).expect("the exchange exists");
        assert_eq!(published, Published::Routed(1), "it waits in one place");
    }

    fn get(&mut self, client: usize, queue: &'static str) {
        let client = &mut self.clients[client];
        client.asked = Some(queue);
        let (kernel, around) = self.world.at(client.shard);
        let request = Request::Get { vhost: VHOST, queue: queue.into(), no_ack: true };
        kernel.request(around, client.channel, request);
    }

    fn listen(&mut self) {
        for (_, event) in self.world.take_events() {
            let position =
                |connection| self.clients.iter().position(|client| client.connection == connection);
            match event {
                Event::Got { to, body, redelivered, .. } => {
                    let number = u64::from_le_bytes(body[..].try_into().expect("a number"));
                    let client = position(to.connection).expect("a client");
                    let queue = self.clients[client].asked.take().expect("it was asked for");
                    assert!(!redelivered);
                    assert!(self.world.now_ms >= self.due_ms[number as usize], "{number} comes too early");
                    assert!(self.came.entry(queue).or_default().insert(number), "{number} comes twice");
                }
                Event::Reply { to, reply: Reply::Empty } => {
                    let client = position(to.connection).expect("a client");
                    assert!(self.clients[client].asked.take().is_some());
                }
                Event::Confirm { to, first, last, accepted } => {
                    let client = position(to.connection).expect("a client");
                    assert!(accepted && first == self.confirmed[client] + 1, "confirms have no gaps");
                    self.confirmed[client] = last;
                }
                Event::Blocked(_) => {}
                other => panic!("nobody asked for {other:?}"),
            }
        }
    }

    fn step(&mut self) {
        let client = self.world.random.usize(..self.clients.len());
        let shard = self.clients[client].shard;
        match self.world.random.u8(..8) {
            0 if !self.world.shards[shard].publishing_blocked() => self.publish(client),
            1 if self.clients[client].asked.is_none() => {
                let queue = QUEUES[self.world.random.usize(..QUEUES.len())];
                self.get(client, queue);
            }
            _ => drop(self.world.happen()),
        }
        self.world.check();
        self.listen();
    }

    /// All times have come: everything is where it belongs.
    fn account(&mut self) {
        let expected: BTreeSet<u64> = (0..self.due_ms.len() as u64).collect();
        for _ in 0..200 {
            self.world.settle_down();
            self.world.now_ms += DELAY_MS_MAX as u64;
            for shard in 0..self.world.count() {
                let now_ms = self.world.now_ms;
                let (kernel, around) = self.world.at(shard);
                kernel.set_time(now_ms);
                while kernel.tick(around) {}
            }
            self.world.settle_down();
            self.listen();
            for queue in QUEUES {
                self.get(0, queue);
                self.world.settle_down();
                self.listen();
                while self.came.get(queue).is_none_or(|came| came.len() < expected.len()) {
                    let before = self.came.get(queue).map_or(0, BTreeSet::len);
                    self.get(0, queue);
                    self.world.settle_down();
                    self.listen();
                    if self.came.get(queue).map_or(0, BTreeSet::len) == before {
                        break;
                    }
                }
            }
            if QUEUES.iter().all(|queue| self.came.get(queue).is_some_and(|came| *came == expected)) {
                break;
            }
        }
        for queue in QUEUES {
            assert_eq!(self.came.get(queue), Some(&expected), "what came to {queue}");
        }
        assert_eq!(self.confirmed.iter().sum::<u64>(), expected.len() as u64);
        let logged: usize = self.world.around.iter().map(|around| around.logged.len()).sum();
        assert_eq!(logged, 0, "the logs keep nothing of what has ended");
    }
}

/// Gives how many messages there were.
pub fn run(world: &mut World) -> u64 {
    let clients: Vec<Client> = (0..3)
        .map(|slot| {
            let shard = world.random.usize(..world.count());
            let (kernel, _) = world.at(shard);
            let connection = kernel.open_connection(slot, NewConnection { vhost: VHOST });
            let channel = kernel.open_channel(connection, 1);
            kernel.select_confirms(channel);
            Client { shard, connection, channel, asked: None }
        })
        .collect();
    let confirmed = vec![0; clients.len()];
    let mut run = Run { world, clients, due_ms: Vec::new(), came: BTreeMap::new(), confirmed };
    run.declare();
    (0..STEPS).for_each(|_| run.step());
    run.account();
    run.due_ms.len() as u64
}
