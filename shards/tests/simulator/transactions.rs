//! Clients with transactions over several queues on random shards, which commit, roll back, and get lost at
//! any moment. What anybody sees of a transaction, and what the logs would say of it if the process ended at
//! this moment, is all or nothing; what was answered is all.

use std::collections::{BTreeMap, BTreeSet};

use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{NewConnection, NoHeaders, Publish, Reply, Request, Verdict};
use lepus_shards::topology::{BindingSpec, DestinationKind, Operation};
use lepus_shards::{
    Arguments, ChannelId, ConnectionId, DeliveryTag, DurableId, RefusalKind, TxName, Value, VhostId,
};

use crate::world::journal::Progress;
use crate::world::{Event, World};

const VHOST: VhostId = VhostId(0);
const STEPS: usize = 1_500;
const FANOUT: &str = "amq.fanout";
/// All but the last are bound to the fanout exchange; the last is short, and rejects what is too much.
const QUEUES: [&str; 5] = ["a", "b", "c", "d", "short"];
const SHORT: usize = 4;

/// A message in a queue.
type Place = (usize, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Open,
    /// Asked for, and not answered; whoever asked may be gone.
    Committing,
    Committed,
    /// Or refused: nothing of it counts.
    Undone,
}

struct Tx {
    outcome: Outcome,
    published: Vec<Place>,
    /// Accepted or rejected.
    ended: Vec<Place>,
}

enum Asked {
    Get(usize),
    Commit,
}

struct Client {
    shard: usize,
    connection: ConnectionId,
    channel: ChannelId,
    busy: Option<Asked>,
    held: BTreeMap<u64, Place>,
    /// Settled since the last commit.
    settled: BTreeMap<u64, Place>,
    /// The transaction that it is in.
    tx: usize,
}

struct Run<'a> {
    world: &'a mut World,
    clients: Vec<Client>,
    next_slot: u32,
    /// By position.
    durables: Vec<DurableId>,
    txs: Vec<Tx>,
    next_number: u64,
    persistent: BTreeSet<u64>,
    publisher_of: BTreeMap<u64, usize>,
    /// Delivered at least once, or there at the end.
    seen: BTreeSet<Place>,
    commits: u64,
    /// How far transactions over several shards were when it was seen what a crash would leave.
    crashed_at: BTreeSet<(TxName, Progress)>,
}

/// What has happened in a run.
pub struct Outcomes {
    /// Commits that were answered.
    pub commits: u64,
    /// Steps of commits over several shards at which it was seen what a crash would leave.
    pub crashed_at: BTreeSet<&'static str>,
}

fn declare(name: &str, arguments: Arguments) -> Request {
    Request::Topology(Operation::DeclareQueue {
        vhost: VHOST,
        name: name.into(),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments,
    })
}

fn bind(queue: &str) -> Request {
    let binding = BindingSpec {
        source: FANOUT.into(),
        destination: queue.into(),
        kind: DestinationKind::Queue,
        routing_key: String::new(),
        arguments: Arguments::new(),
    };
    Request::Topology(Operation::Bind { vhost: VHOST, binding })
}

impl Run<'_> {
    fn connect(&mut self) -> Client {
        let shard = self.world.random.usize(..self.world.count());
        let (kernel, _) = self.world.at(shard);
        let connection = kernel.open_connection(self.next_slot, NewConnection { vhost: VHOST });
        self.next_slot += 1;
        let channel = kernel.open_channel(connection, 1);
        let (held, settled) = (BTreeMap::new(), BTreeMap::new());
        Client { shard, connection, channel, busy: None, held, settled, tx: 0 }
    }

    fn connect_transactional(&mut self) -> Client {
        let client = self.connect();
        self.world.at(client.shard).0.select_transactions(client.channel);
        Client { tx: self.begin(), ..client }
    }

    fn begin(&mut self) -> usize {
        self.txs.push(Tx { outcome: Outcome::Open, published: Vec::new(), ended: Vec::new() });
        self.txs.len() - 1
    }

    fn set_up(&mut self) {
        let client = self.connect();
        let short =
            [("x-max-length", Value::I32(3)), ("x-overflow", Value::LongString(b"reject-publish".to_vec()))];
        for (at, name) in QUEUES.into_iter().enumerate() {
            let arguments = if at == SHORT { &short[..] } else { &[] };
            let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let mut requests = vec![declare(name, arguments.collect())];
            requests.extend((at != SHORT).then(|| bind(name)));
            for request in requests {
                let (kernel, around) = self.world.at(client.shard);
                kernel.request(around, client.channel, request);
                self.world.settle_down();
            }
            let info = self.world.shards[0].topology().queue(VHOST, name).expect("it was declared");
            self.durables.push(info.durable_id.expect("a durable queue"));
        }
        self.world.take_events();
        self.clients = (0..3).map(|_| self.connect_transactional()).collect();
    }

    fn publish(&mut self, at: usize) {
        let shard = self.clients[at].shard;
        if self.world.shards[shard].publishing_blocked() {
            return;
        }
        let (random, number) = (&mut self.world.random, self.next_number);
        let persistent = random.u8(..4) > 0;
        let targets = match random.u8(..12) {
            0..5 => (0..SHORT).collect(),
            5 => vec![SHORT],
            _ => vec![random.usize(..SHORT)],
        };
        let (exchange, key) = if targets.len() > 1 { (FANOUT, "") } else { ("", QUEUES[targets[0]]) };
        let message = MessageView {
            exchange: exchange.as_bytes(),
            routing_key: key.as_bytes(),
            properties: &[0, u8::from(persistent)],
            body: &number.to_le_bytes(),
        };
        let durability = if persistent { Durability::Fsync } else { Durability::Memory };
        let (mandatory, ttl_ms, further_keys) = (false, None, &[][..]);
        let publish = Publish { message, durability, mandatory, ttl_ms, further_keys, headers: &NoHeaders };
        let channel = self.clients[at].channel;
        let (kernel, around) = self.world.at(shard);
        if let Err(refusal) = kernel.publish(around, channel, &publish) {
            assert_eq!(refusal.kind, RefusalKind::ResourceError, "{refusal:?}");
            return self.lose(at);
        }
        self.next_number += 1;
        if persistent {
            self.persistent.insert(number);
        }
        let tx = self.clients[at].tx;
        self.publisher_of.insert(number, tx);
        self.txs[tx].published.extend(targets.into_iter().map(|queue| (queue, number)));
    }

    fn get(&mut self, at: usize, queue: usize, no_ack: bool) {
        let client = &mut self.clients[at];
        client.busy = Some(Asked::Get(queue));
        let request = Request::Get { vhost: VHOST, queue: QUEUES[queue].into(), no_ack };
        let (kernel, around) = self.world.at(client.shard);
        kernel.request(around, client.channel, request);
    }

    fn settle(&mut self, at: usize) {
        let random = &mut self.world.random;
        let client = &mut self.clients[at];
        if client.held.is_empty() {
            return;
        }
        let tag = *client.held.keys().nth(random.usize(..client.held.len())).expect("within");
        let multiple = random.u8(..4) == 0;
        let verdict =
            [Verdict::Accept, Verdict::Accept, Verdict::Reject, Verdict::Requeue][random.usize(..4)];
        let mut settled = client.held.split_off(&(tag + 1));
        std::mem::swap(&mut settled, &mut client.held);
        if !multiple {
            let one = settled.remove(&tag).expect("it was held");
            client.held.extend(std::mem::replace(&mut settled, BTreeMap::from([(tag, one)])));
        }
        if verdict != Verdict::Requeue {
            self.txs[client.tx].ended.extend(settled.values());
        }
        client.settled.extend(settled);
        let (kernel, around) = self.world.at(client.shard);
        let known = kernel.settle(around, client.channel, DeliveryTag(tag), multiple, verdict);
        known.expect("a held tag is known");
    }

    fn commit(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.busy = Some(Asked::Commit);
        client.settled.clear();
        self.txs[client.tx].outcome = Outcome::Committing;
        let (kernel, around) = self.world.at(client.shard);
        kernel.commit(around, client.channel);
    }

    fn undo(&mut self, tx: usize) {
        let tx = &mut self.txs[tx];
        assert_ne!(tx.outcome, Outcome::Committed, "what was answered is not undone");
        tx.outcome = Outcome::Undone;
        tx.ended.clear();
    }

    fn roll_back(&mut self, at: usize) {
        let next = self.begin();
        let client = &mut self.clients[at];
        client.held.append(&mut client.settled);
        let undone = std::mem::replace(&mut client.tx, next);
        let (kernel, _) = self.world.at(client.shard);
        kernel.roll_back(client.channel);
        self.undo(undone);
    }

    fn recover(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.held.clear();
        let (kernel, around) = self.world.at(client.shard);
        kernel.recover(around, client.channel);
    }

    fn lose(&mut self, at: usize) {
        let new = self.connect_transactional();
        let lost = std::mem::replace(&mut self.clients[at], new);
        if self.txs[lost.tx].outcome == Outcome::Open {
            self.undo(lost.tx);
        }
        let (kernel, around) = self.world.at(lost.shard);
        kernel.close_connection(around, lost.connection);
    }

    fn step(&mut self) {
        let at = self.world.random.usize(..self.clients.len());
        let free = self.clients[at].busy.is_none();
        match self.world.random.u8(..30) {
            0..4 if free => self.publish(at),
            4..7 if free => {
                let queue = self.world.random.usize(..QUEUES.len());
                self.get(at, queue, false);
            }
            7..9 if free => self.settle(at),
            9 if free => self.commit(at),
            10 if free && self.world.random.u8(..4) == 0 => self.roll_back(at),
            11 if free && self.world.random.u8(..8) == 0 => self.recover(at),
            12 if self.world.random.u8(..12) == 0 => self.lose(at),
            _ => drop(self.world.happen()),
        }
        self.world.check();
        self.listen();
        if self.world.random.u8(..4) == 0 {
            self.check_crash();
        }
    }

    /// The process ends at this moment: the logs say all or nothing of each transaction.
    fn check_crash(&mut self) {
        let body = |&(queue, number): &Place| (self.durables[queue], number.to_le_bytes().to_vec());
        let logged = |place: &&Place| self.persistent.contains(&place.1);
        for at_least in [false, true] {
            let (said, progress) = self.world.crash(at_least);
            self.crashed_at.extend(progress);
            for (name, tx) in self.txs.iter().enumerate() {
                let born = tx.published.iter().filter(logged).map(|place| said.born.contains(&body(place)));
                let ended = tx.ended.iter().filter(logged).map(|place| said.ended.contains(&body(place)));
                let all: Vec<bool> = born.chain(ended).collect();
                match tx.outcome {
                    Outcome::Open | Outcome::Undone => assert!(!all.contains(&true), "{name}: {all:?}"),
                    // A log may have more than it says, and not less.
                    Outcome::Committed => assert!(!all.contains(&false), "{name}: {all:?}"),
                    Outcome::Committing => {
                        let same = all.iter().all(|one| *one == all[0]);
                        assert!(same, "{name} is there in part: {all:?}");
                    }
                }
            }
        }
    }

    fn client(&mut self, connection: ConnectionId) -> &mut Client {
        let client = self.clients.iter_mut().find(|client| client.connection == connection);
        client.expect("nothing is said to a lost connection")
    }

    fn listen(&mut self) {
        for (_, event) in self.world.take_events() {
            match event {
                Event::Got { to, tag, body, .. } => {
                    let number = u64::from_le_bytes(body[..].try_into().expect("a number"));
                    let client = self.client(to.connection);
                    let Some(Asked::Get(queue)) = client.busy.take() else { panic!("a message for no get") };
                    client.held.insert(tag, (queue, number));
                    self.delivered((queue, number));
                }
                Event::Reply { to, reply } => self.replied(to.connection, reply),
                Event::Blocked(_) => {}
                other => panic!("nobody asked for {other:?}"),
            }
        }
    }

    fn delivered(&mut self, place: Place) {
        let outcome = self.txs[self.publisher_of[&place.1]].outcome;
        let counts = matches!(outcome, Outcome::Committing | Outcome::Committed);
        assert!(counts, "{place:?} is seen, and its transaction is {outcome:?}");
        // A commit that was asked for by who is gone, and that was refused.
        let refused: Vec<usize> = (0..self.txs.len())
            .filter(|&tx| self.txs[tx].outcome == Outcome::Committing && self.txs[tx].ended.contains(&place))
            .collect();
        for tx in refused {
            assert!(
                self.txs[tx].published.iter().any(|(queue, _)| *queue == SHORT),
                "nothing else is refused"
            );
            self.undo(tx);
        }
        let ended = |tx: &Tx| tx.outcome == Outcome::Committed && tx.ended.contains(&place);
        assert!(!self.txs.iter().any(ended), "{place:?} has ended and comes again");
        self.seen.insert(place);
    }

    fn replied(&mut self, connection: ConnectionId, reply: Reply) {
        let next = self.begin();
        let client = self.client(connection);
        match (client.busy.take(), reply) {
            (Some(Asked::Get(_)), Reply::Empty) => {}
            (Some(Asked::Commit), Reply::Committed) => {
                let tx = std::mem::replace(&mut client.tx, next);
                self.txs[tx].outcome = Outcome::Committed;
                self.commits += 1;
            }
            (Some(Asked::Commit), Reply::Refused(refusal)) => {
                assert_eq!(refusal.kind, RefusalKind::PreconditionFailed);
                let tx = client.tx;
                assert!(self.txs[tx].published.iter().any(|(queue, _)| *queue == SHORT));
                self.undo(tx);
                let at = self.clients.iter().position(|client| client.connection == connection);
                self.lose(at.expect("it was just found"));
            }
            (_, reply) => panic!("an answer to something else: {reply:?}"),
        }
    }

    /// All clients go, and what is left is fetched.
    fn account(&mut self) {
        self.world.settle_down();
        self.listen();
        (0..self.clients.len()).for_each(|at| self.lose(at));
        self.world.settle_down();
        self.listen();
        let mut left = BTreeSet::new();
        self.clients[0] = self.connect();
        for queue in 0..QUEUES.len() {
            loop {
                self.get(0, queue, true);
                self.world.settle_down();
                let events = self.world.take_events();
                let got = events.into_iter().find_map(|(_, event)| match event {
                    Event::Got { body, .. } => Some(body),
                    _ => None,
                });
                self.clients[0].busy = None;
                let Some(body) = got else { break };
                let place = (queue, u64::from_le_bytes(body[..].try_into().expect("a number")));
                assert!(left.insert(place), "{place:?} is there twice");
                self.delivered(place);
            }
        }
        for (name, tx) in self.txs.iter().enumerate() {
            let seen: Vec<bool> = tx.published.iter().map(|place| self.seen.contains(place)).collect();
            let same = seen.iter().all(|one| *one == seen[0]);
            assert!(same, "{name} was seen in part: {seen:?}");
            assert!(tx.outcome != Outcome::Committed || !seen.contains(&false), "{name} was answered");
            // Nobody asked what became of some; whatever it is, their settlements fared alike.
            let gone: Vec<bool> = tx.ended.iter().map(|place| !left.contains(place)).collect();
            assert!(!gone.contains(&false), "{name}: what has ended is there: {gone:?}");
        }
        // Whatever did not end is there.
        let ended: BTreeSet<Place> = self.txs.iter().flat_map(|tx| tx.ended.iter().copied()).collect();
        for tx in self.txs.iter().filter(|tx| tx.outcome == Outcome::Committed) {
            let lost: Vec<_> =
                tx.published.iter().filter(|place| !left.contains(place) && !ended.contains(place)).collect();
            assert!(lost.is_empty(), "lost: {lost:?}");
        }
        self.check_crash();
        for around in &self.world.around {
            around.assert_no_transactions();
            assert!(around.logged.is_empty(), "the logs keep nothing of what has ended");
        }
    }
}

pub fn run(world: &mut World) -> Outcomes {
    let mut run = Run {
        world,
        clients: Vec::new(),
        next_slot: 0,
        durables: Vec::new(),
        txs: Vec::new(),
        next_number: 0,
        persistent: BTreeSet::new(),
        publisher_of: BTreeMap::new(),
        seen: BTreeSet::new(),
        commits: 0,
        crashed_at: BTreeSet::new(),
    };
    run.set_up();
    (0..STEPS).for_each(|_| run.step());
    run.account();
    // All logs have all of it now.
    let (_, at_last) = run.world.crash(true);
    let crashed_at = run.crashed_at.iter().map(|(name, progress)| progress.step(at_last[name].prepared));
    Outcomes { commits: run.commits, crashed_at: crashed_at.collect() }
}
