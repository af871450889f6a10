//! Shards, the links between them, their logs and the topology store, all under the hand of one
//! seeded generator: it decides which batch arrives next, when a write completes, when a turn ends.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use lepus_shards::message::MessageView;
use lepus_shards::shard::{
    Address, Backplane, Batch, FrontEnd, HeaderSource, Lane, LogHandle, LogSequence, Logged, NoHeaders,
    Reply, Shard, ShardConfig,
};
use lepus_shards::topology::{StoreWrite, Writer};
use lepus_shards::{ConsumerId, DeliveryTag, DurableId, ShardId};

/// What a shard said to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Deliver { to: Address, consumer: ConsumerId, tag: u64, redelivered: bool, body: Vec<u8> },
    Got { to: Address, tag: u64, redelivered: bool, body: Vec<u8> },
    Reply { to: Address, reply: Reply },
    Confirm { to: Address, first: u64, last: u64, accepted: bool },
    Returned { to: Address, body: Vec<u8> },
    Cancelled { to: Address, consumer: ConsumerId },
    Blocked(bool),
}

/// The surroundings of one shard.
pub struct Surroundings {
    outgoing: Vec<[Batch; 2]>,
    pub events: Vec<Event>,
    appended: LogSequence,
    committed: LogSequence,
    /// What is in the log: the queues of each message.
    pub logged: BTreeMap<u32, Vec<DurableId>>,
    persisting: VecDeque<u64>,
}

fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::Reply => 0,
        Lane::Forward => 1,
    }
}

impl FrontEnd for Surroundings {
    fn deliver(
        &mut self,
        to: Address,
        consumer: ConsumerId,
        tag: DeliveryTag,
        redelivered: bool,
        message: MessageView<'_>,
    ) {
        self.events.push(Event::Deliver {
            to,
            consumer,
            tag: tag.0,
            redelivered,
            body: message.body.to_vec(),
        });
    }
    fn got(
        &mut self,
        to: Address,
        tag: DeliveryTag,
        redelivered: bool,
        _remaining: u64,
        message: MessageView<'_>,
    ) {
        self.events.push(Event::Got { to, tag: tag.0, redelivered, body: message.body.to_vec() });
    }
    fn reply(&mut self, to: Address, reply: Reply) {
        self.events.push(Event::Reply { to, reply });
    }
    fn confirm(&mut self, to: Address, first: u64, last: u64, accepted: bool) {
        self.events.push(Event::Confirm { to, first, last, accepted });
    }
    fn returned(&mut self, to: Address, message: MessageView<'_>) {
        self.events.push(Event::Returned { to, body: message.body.to_vec() });
    }
    fn header_source<'a>(&self, _properties: &'a [u8]) -> Box<dyn HeaderSource + 'a> {
        Box::new(NoHeaders)
    }
    fn consumer_cancelled(&mut self, to: Address, consumer: ConsumerId) {
        self.events.push(Event::Cancelled { to, consumer });
    }
    fn publishing_blocked(&mut self, blocked: bool) {
        self.events.push(Event::Blocked(blocked));
    }
}

impl Backplane for Surroundings {
    fn outgoing(&mut self, to: ShardId, lane: Lane) -> &mut Batch {
        &mut self.outgoing[to.index()][lane_index(lane)]
    }
    fn append(&mut self, _message: &MessageView<'_>, _ttl_ms: Option<u64>, queues: &[DurableId]) -> Logged {
        assert!(!queues.is_empty(), "what is appended is in some queue");
        self.appended += 1;
        let handle = LogHandle(u32::try_from(self.appended).expect("a short run"));
        self.logged.insert(handle.0, queues.to_vec());
        Logged { sequence: self.appended, handle }
    }
    fn claimed(&mut self, message: LogHandle, queue: DurableId) {
        assert!(
            self.logged[&message.0].contains(&queue),
            "only what is in the log for a queue is claimed there"
        );
    }
    fn settled(&mut self, message: LogHandle, queue: DurableId) {
        let queues = self.logged.get_mut(&message.0).expect("only what is in the log is settled");
        let at = queues.iter().position(|other| *other == queue).expect("a queue settles a message once");
        queues.remove(at);
        if queues.is_empty() {
            self.logged.remove(&message.0);
        }
    }
    fn persist(&mut self, version: u64, writes: Vec<StoreWrite>) {
        assert!(!writes.is_empty());
        self.persisting.push_back(version);
    }
}

/// Batches on their way from one shard to another: Reply and Forward.
#[derive(Default)]
struct Link {
    lanes: [VecDeque<Batch>; 2],
}

/// Everything but the clients.
pub struct World {
    pub shards: Vec<Shard>,
    pub around: Vec<Surroundings>,
    links: Vec<Vec<Link>>,
    pub random: fastrand::Rng,
    pub now_ms: u64,
    trace: DefaultHasher,
}

impl World {
    pub fn new(seed: u64, count: usize, memory_budget_bytes: u64) -> World {
        let (writer, changes) = Writer::restore(count, Vec::new(), "/", fastrand::Rng::with_seed(seed))
            .expect("no rows, no fault");
        let mut writer = Some(writer);
        let shards = (0..count)
            .map(|index| {
                let config =
                    ShardConfig { id: ShardId(index as u16), shards: count, epoch: 1, memory_budget_bytes };
                Shard::new(config, &changes, if index == 0 { writer.take() } else { None })
            })
            .collect();
        let around = (0..count)
            .map(|_| Surroundings {
                outgoing: (0..count).map(|_| Default::default()).collect(),
                events: Vec::new(),
                appended: 0,
                committed: 0,
                logged: BTreeMap::new(),
                persisting: VecDeque::new(),
            })
            .collect();
        let links = (0..count).map(|_| (0..count).map(|_| Link::default()).collect()).collect();
        let random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        World { shards, around, links, random, now_ms: 0, trace: DefaultHasher::new() }
    }

    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// A shard with its surroundings, for a client's call.
    pub fn at(&mut self, shard: usize) -> (&mut Shard, &mut Surroundings) {
        (&mut self.shards[shard], &mut self.around[shard])
    }

    /// Takes what the shards have said since last asked, and notes it in the trace.
    pub fn take_events(&mut self) -> Vec<(usize, Event)> {
        let mut all = Vec::new();
        for (shard, around) in self.around.iter_mut().enumerate() {
            for event in around.events.drain(..) {
                format!("{shard} {event:?}").hash(&mut self.trace);
                all.push((shard, event));
            }
        }
        all
    }

    pub fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// Ends a shard's turn: confirms go out, batches leave, Reply before Forward.
    pub fn end_turn(&mut self, shard: usize) {
        self.shards[shard].end_turn(&mut self.around[shard]);
        for to in 0..self.count() {
            for lane in 0..2 {
                let batch = &mut self.around[shard].outgoing[to][lane];
                if !batch.is_empty() {
                    self.links[shard][to].lanes[lane].push_back(std::mem::take(batch));
                }
            }
        }
    }

    /// One thing happens that no client asked for. False if nothing could.
    pub fn happen(&mut self) -> bool {
        let shard = self.random.usize(..self.count());
        match self.random.u8(..8) {
            0..4 => self.receive(shard),
            4 => {
                self.end_turn(shard);
                true
            }
            5 => self.commit(shard),
            6 => self.store(),
            _ => {
                self.advance_time(shard);
                true
            }
        }
    }

    /// A shard looks at one peer: it notes the Forward batches, reads Reply, all of it before any
    /// noted Forward one.
    fn receive(&mut self, to: usize) -> bool {
        let from = self.random.usize(..self.count());
        let noted = self.links[from][to].lanes[1].len();
        let waiting = self.links[from][to].lanes[0].len();
        let replies = if self.random.bool() { waiting } else { self.random.usize(..=waiting) };
        self.take_batches(from, to, 0, replies);
        if replies == waiting {
            let forward = self.random.usize(..=noted);
            self.take_batches(from, to, 1, forward);
        }
        waiting + noted > 0
    }

    fn take_batches(&mut self, from: usize, to: usize, lane: usize, count: usize) {
        for _ in 0..count {
            let mut batch = self.links[from][to].lanes[lane].pop_front().expect("counted before");
            self.shards[to].receive_batch(&mut self.around[to], ShardId(from as u16), &mut batch);
            assert!(batch.is_empty());
            self.check();
        }
    }

    fn commit(&mut self, shard: usize) -> bool {
        let around = &mut self.around[shard];
        if around.committed == around.appended {
            return false;
        }
        around.committed = self.random.u64(around.committed + 1..=around.appended);
        let frontier = around.committed;
        self.shards[shard].committed(&mut self.around[shard], frontier);
        true
    }

    /// Everything that the shard has appended is on disk.
    pub fn commit_all(&mut self, shard: usize) {
        while self.commit(shard) {}
    }

    /// Every batch that has left arrives.
    pub fn settle_links(&mut self) {
        for to in 0..self.count() {
            for from in 0..self.count() {
                for lane in 0..2 {
                    let count = self.links[from][to].lanes[lane].len();
                    self.take_batches(from, to, lane, count);
                }
            }
        }
    }

    fn store(&mut self) -> bool {
        let Some(version) = self.around[0].persisting.pop_front() else { return false };
        self.shards[0].persisted(&mut self.around[0], version);
        true
    }

    pub fn advance_time(&mut self, shard: usize) {
        self.now_ms += self.random.u64(..20);
        self.shards[shard].set_time(self.now_ms);
        self.shards[shard].tick(&mut self.around[shard]);
    }

    /// Lets everything that is underway arrive.
    pub fn settle_down(&mut self) {
        loop {
            let mut busy = false;
            for shard in 0..self.count() {
                while self.shards[shard].has_rubble() {
                    busy = true;
                    self.shards[shard].tick(&mut self.around[shard]);
                }
                self.end_turn(shard);
                while self.commit(shard) || (shard == 0 && self.store()) {
                    busy = true;
                }
                self.end_turn(shard);
                for from in 0..self.count() {
                    for lane in 0..2 {
                        let count = self.links[from][shard].lanes[lane].len();
                        busy |= count > 0;
                        self.take_batches(from, shard, lane, count);
                    }
                }
                self.end_turn(shard);
            }
            if !busy && self.links.iter().flatten().all(|link| link.lanes.iter().all(VecDeque::is_empty)) {
                break;
            }
        }
    }

    pub fn check(&self) {
        for shard in &self.shards {
            shard.assert_consistent();
        }
    }
}
