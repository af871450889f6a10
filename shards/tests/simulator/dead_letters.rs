//! One queue that gives messages up in every way there is, and one that gets them, on random shards with
//! random arguments. Whatever order things happen in, each message ends in one place: a client has
//! accepted it, once, or it is in one of the two queues when all is still.

use std::collections::{BTreeMap, BTreeSet};

use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{NewConnection, NoHeaders, Publish, Reply, Request, Verdict};
use lepus_shards::topology::Operation;
use lepus_shards::{ChannelId, ConnectionId, DeliveryTag, Value, VhostId};

use crate::world::{Event, World};

const VHOST: VhostId = VhostId(0);
const SOURCE: &str = "source";
const GRAVE: &str = "grave";
const STEPS: usize = 1_500;

/// A connection with one channel.
struct Client {
    shard: usize,
    connection: ConnectionId,
    channel: ChannelId,
    busy: Option<&'static str>,
    /// By tag: where it came from, and its number.
    held: BTreeMap<u64, (&'static str, u64)>,
}

struct Run<'a> {
    world: &'a mut World,
    publisher: Client,
    takers: Vec<Client>,
    next_slot: u32,
    publishing_held: bool,
    published: u64,
    confirmed: u64,
    /// What clients have accepted, or taken without acks in the end.
    ended: BTreeSet<u64>,
}

fn text(text: &str) -> Value {
    Value::LongString(text.as_bytes().to_vec())
}

impl Run<'_> {
    fn connect(world: &mut World, next_slot: &mut u32) -> Client {
        let shard = world.random.usize(..world.count());
        let (kernel, _) = world.at(shard);
        let connection = kernel.open_connection(*next_slot, NewConnection { vhost: VHOST });
        *next_slot += 1;
        let channel = kernel.open_channel(connection, 1);
        Client { shard, connection, channel, busy: None, held: BTreeMap::new() }
    }

    fn declare(&mut self, name: &str, arguments: Vec<(&str, Value)>) {
        let arguments = arguments.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let operation = Operation::DeclareQueue {
            vhost: VHOST,
            name: name.to_owned(),
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments,
        };
        let (kernel, around) = self.world.at(self.publisher.shard);
        kernel.request(around, self.publisher.channel, Request::Topology(operation));
        self.world.settle_down();
        let declared = self.world.take_events();
        let is_good =
            |event: &Event| matches!(event, Event::Reply { reply: Reply::QueueDeclared { .. }, .. });
        assert!(declared.iter().any(|(_, event)| is_good(event)), "{declared:?}");
    }

    /// Random arguments for both queues. Dead letters that may be dropped on their way are left out.
    fn declare_queues(&mut self) {
        let random = &mut self.world.random;
        let kept = random.bool();
        let mut source =
            vec![("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(GRAVE))];
        let mut grave = Vec::new();
        if kept {
            source.push(("x-dead-letter-strategy", text("at-least-once")));
        }
        if random.bool() {
            source.push(("x-max-length", Value::I32(random.i32(1..6))));
            let overflows = ["drop-head", "reject-publish-dlx", "block"];
            source.push(("x-overflow", text(overflows[random.usize(..3)])));
        } else if random.bool() {
            source.push(("x-max-length-bytes", Value::I32(random.i32(8..60))));
        }
        if random.bool() {
            source.push(("x-message-ttl", Value::I32(random.i32(0..60))));
        }
        if random.bool() {
            source.push(("x-max-priority", Value::I32(random.i32(0..9))));
        }
        if random.bool() {
            source.push(("x-delivery-limit", Value::I32(random.i32(0..3))));
        }
        if random.bool() {
            grave.push(("x-max-length", Value::I32(random.i32(1..4))));
            let overflow = if kept && random.bool() { "reject-publish" } else { "block" };
            grave.push(("x-overflow", text(overflow)));
        }
        // In either order: they may be on one shard or two.
        let both = [(SOURCE, source), (GRAVE, grave)];
        both.into_iter().for_each(|(name, arguments)| self.declare(name, arguments));
    }

    fn publish(&mut self) {
        if self.publishing_held {
            return;
        }
        let (random, number) = (&mut self.world.random, self.published);
        let properties = [random.u8(..10), u8::from(random.bool())];
        let ttl_ms = (random.u8(..4) == 0).then(|| random.u64(..80));
        let message = MessageView {
            exchange: b"",
            routing_key: SOURCE.as_bytes(),
            properties: &properties,
            body: &number.to_le_bytes(),
        };
        let persistent = properties[1] == 1;
        let durability = if persistent { Durability::Fsync } else { Durability::Memory };
        let publish =
            Publish { message, durability, mandatory: false, ttl_ms, further_keys: &[], headers: &NoHeaders };
        self.published += 1;
        let (kernel, around) = self.world.at(self.publisher.shard);
        kernel.publish(around, self.publisher.channel, &publish).expect("the default exchange exists");
    }

    fn get(&mut self, taker: usize, queue: &'static str, no_ack: bool) {
        let taker = &mut self.takers[taker];
        taker.busy = Some(queue);
        let (kernel, around) = self.world.at(taker.shard);
        kernel.request(around, taker.channel, Request::Get { vhost: VHOST, queue: queue.into(), no_ack });
    }

    fn settle(&mut self, taker: usize) {
        let Some((&tag, &(queue, number))) = self.takers[taker].held.first_key_value() else { return };
        let verdict = match (queue, self.world.random.u8(..4)) {
            (_, 0) => Verdict::Accept,
            (_, 1) => Verdict::Requeue,
            (_, 2) => Verdict::Fail,
            (SOURCE, _) => Verdict::Reject,
            // Nothing comes behind the grave.
            _ => Verdict::Accept,
        };
        let taker = &mut self.takers[taker];
        taker.held.remove(&tag);
        if verdict == Verdict::Accept {
            assert!(self.ended.insert(number), "{number} is accepted twice");
        }
        let (kernel, around) = self.world.at(taker.shard);
        let settled = kernel.settle(around, taker.channel, DeliveryTag(tag), false, verdict);
        settled.expect("it was held");
    }

    fn lose_connection(&mut self, taker: usize) {
        let new = Self::connect(self.world, &mut self.next_slot);
        let lost = std::mem::replace(&mut self.takers[taker], new);
        let (kernel, around) = self.world.at(lost.shard);
        kernel.close_connection(around, lost.connection);
    }

    fn step(&mut self) {
        let taker = self.world.random.usize(..self.takers.len());
        match self.world.random.u8(..16) {
            0 | 1 => self.publish(),
            2..5 if self.takers[taker].busy.is_none() => {
                let queue = if self.world.random.u8(..3) == 0 { GRAVE } else { SOURCE };
                self.get(taker, queue, false);
            }
            5 if self.takers[taker].busy.is_none() => self.settle(taker),
            6 if self.world.random.u8(..20) == 0 => self.lose_connection(taker),
            _ => drop(self.world.happen()),
        }
        self.world.check();
        self.listen(false);
    }

    fn listen(&mut self, no_ack: bool) {
        for (_, event) in self.world.take_events() {
            match event {
                Event::Got { to, tag, body, .. } => {
                    let number = u64::from_le_bytes(body[..].try_into().expect("a number"));
                    assert!(!self.ended.contains(&number), "{number} was accepted and comes again");
                    let taker = self.takers.iter_mut().find(|taker| taker.connection == to.connection);
                    let taker = taker.expect("nothing is said to a lost connection");
                    let queue = taker.busy.take().expect("it was asked for");
                    match no_ack {
                        true => assert!(self.ended.insert(number), "{number} is in two places"),
                        false => assert!(taker.held.insert(tag, (queue, number)).is_none()),
                    }
                }
                Event::Reply { to, reply } => {
                    let taker = self.takers.iter_mut().find(|taker| taker.connection == to.connection);
                    assert_eq!(
                        (taker.and_then(|taker| taker.busy.take()).is_some(), reply),
                        (true, Reply::Empty)
                    );
                }
                Event::Confirm { first, last, .. } => {
                    assert_eq!(first, self.confirmed + 1, "confirms have no gaps");
                    self.confirmed = last;
                }
                Event::Held { held, .. } => {
                    assert_ne!(self.publishing_held, held, "told once");
                    self.publishing_held = held;
                }
                other => panic!("nobody asked for {other:?}"),
            }
        }
    }

    /// All that is under way arrives, and time passes for what waits to be tried again.
    fn calm_down(&mut self, no_ack: bool) {
        self.world.settle_down();
        self.world.now_ms += 1_100;
        for shard in 0..self.world.count() {
            let now_ms = self.world.now_ms;
            let (kernel, around) = self.world.at(shard);
            kernel.set_time(now_ms);
            while kernel.tick(around) {}
        }
        self.world.settle_down();
        self.world.check();
        self.listen(no_ack);
    }

    fn account(&mut self) {
        self.calm_down(false);
        (0..self.takers.len()).for_each(|taker| self.lose_connection(taker));
        let mut rounds = 0;
        while (self.ended.len() as u64) < self.published {
            for queue in [SOURCE, GRAVE] {
                loop {
                    let before = self.ended.len();
                    self.get(0, queue, true);
                    self.world.settle_down();
                    self.listen(true);
                    if self.ended.len() == before {
                        break;
                    }
                }
            }
            self.calm_down(true);
            rounds += 1;
            assert!(rounds < 1_000, "lost: {:?}", (0..self.published).filter(|n| !self.ended.contains(n)));
        }
        assert_eq!(self.confirmed, self.published, "every publish is confirmed, or refused");
        assert!(!self.publishing_held);
        let logged: usize = self.world.around.iter().map(|around| around.logged.len()).sum();
        assert_eq!(logged, 0, "the logs keep nothing of what has ended");
    }
}

/// Gives how many messages there were.
pub fn run(world: &mut World) -> u64 {
    let mut next_slot = 0;
    let publisher = Run::connect(world, &mut next_slot);
    let takers = (0..3).map(|_| Run::connect(world, &mut next_slot)).collect();
    let (published, confirmed) = (0, 0);
    let ended = BTreeSet::new();
    let mut run =
        Run { world, publisher, takers, next_slot, publishing_held: false, published, confirmed, ended };
    run.declare_queues();
    run.world.at(run.publisher.shard).0.select_confirms(run.publisher.channel);
    (0..STEPS).for_each(|_| run.step());
    run.account();
    run.published
}
