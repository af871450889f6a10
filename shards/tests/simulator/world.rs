//! Shards, the links between them, their logs and the topology store, all under the hand of one
//! seeded generator: it decides which batch arrives next, when a write completes, when a turn ends.

#[path = "journal.rs"]
pub mod journal;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use lepus_shards::ledger::Returns;
use lepus_shards::message::MessageView;
use lepus_shards::queue::encode_record;
use lepus_shards::shard::{
    Address, Backplane, Batch, DeadLetterProperties, Death, FrontEnd, Lane, Loaded, LogGroup, LogSequence,
    Logged, LoggedGroup, MessageProperty, PropertyFormat, Reply, Shard, ShardConfig, TraceEvent, Traced,
    TransactionLog, WaitedProperties,
};
use lepus_shards::topology::{StoreWrite, Writer};
use lepus_shards::{
    Arguments, ConsumerId, DeliveryTag, Durability, DurableId, QueueId, Refusal, ShardId, TxName, Value,
};

use self::journal::{Group, Journal, Progress, Recovered};

/// Of queues that have no other.
pub const CONSUMER_TIMEOUT_MS: u64 = 30 * 60 * 1000;

/// What a shard said to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Deliver {
        to: Address,
        consumer: ConsumerId,
        tag: u64,
        redelivered: bool,
        properties: Vec<u8>,
        body: Vec<u8>,
    },
    Got {
        to: Address,
        tag: u64,
        redelivered: bool,
        properties: Vec<u8>,
        body: Vec<u8>,
    },
    Reply {
        to: Address,
        reply: Reply,
    },
    Confirm {
        to: Address,
        first: u64,
        last: u64,
        accepted: bool,
    },
    Returned {
        to: Address,
        body: Vec<u8>,
    },
    Cancelled {
        to: Address,
        consumer: ConsumerId,
    },
    Failed {
        to: Address,
        refusal: Refusal,
    },
    Held {
        to: Address,
        held: bool,
    },
    Blocked(bool),
}

/// The surroundings of one shard.
pub struct Surroundings {
    outgoing: Vec<[Batch; 2]>,
    pub events: Vec<Event>,
    appended: LogSequence,
    committed: LogSequence,
    /// What is in the log: the queues of each message; none of one that was spilled.
    pub logged: BTreeMap<LogSequence, (Vec<DurableId>, Vec<u8>)>,
    /// What was asked of the log, in order.
    pub log_story: Vec<String>,
    /// What a crash would leave a beginning of.
    journal: Journal,
    /// Groups whose outcome is not known.
    prepared: BTreeMap<TxName, Group>,
    /// Settlements that the log has made, or will make, by itself; true for those that it was told of before
    /// it could.
    own_settlements: BTreeMap<(LogSequence, DurableId), bool>,
    /// Outcomes that are not on disk.
    resolving: VecDeque<(LogSequence, TxName)>,
    pub decisions: BTreeSet<TxName>,
    /// Queues that wait for something to be read.
    reading: VecDeque<QueueId>,
    /// What has been read; it is given once.
    read: Vec<LogSequence>,
    /// How much was loaded.
    pub loaded: u64,
    /// How much was spilled.
    pub spilled: u64,
    /// Transient messages can leave memory.
    pub spills: bool,
    /// One message in so many is not given back.
    pub loses_every: Option<LogSequence>,
    persisting: VecDeque<u64>,
    /// Of messages in prepared groups.
    records: BTreeMap<LogSequence, Vec<u8>>,
}

fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::Reply => 0,
        Lane::Forward => 1,
    }
}

/// Properties of this world: a byte of priority, a byte that is 1 for a persistent message, and lines that
/// say how it died, the latest first, and how often it came back.
impl PropertyFormat for Surroundings {
    fn headers(&self, _properties: &[u8]) -> Arguments {
        Arguments::new()
    }
    fn property(&self, _properties: &[u8], _property: MessageProperty) -> Option<Value> {
        None
    }
    fn further_keys(&self, _properties: &[u8]) -> Vec<Vec<u8>> {
        Vec::new()
    }
    fn priority(&self, properties: &[u8]) -> u8 {
        properties[0]
    }
    fn dead_letter(&self, message: &MessageView<'_>, death: &Death<'_>) -> DeadLetterProperties {
        let (head, history) = message.properties.split_at(2);
        let history = String::from_utf8_lossy(history);
        let deaths = format!("{} {}\n{history}", death.reason.name(), death.queue);
        let unforced = deaths.lines().take_while(|death| !death.starts_with("rejected "));
        let circled = unforced.filter_map(|death| Some(death.split_once(' ')?.1.to_owned())).collect();
        let properties = [head, deaths.as_bytes()].concat();
        DeadLetterProperties { properties, persistent: head[1] == 1, circled }
    }
    fn waited(&self, properties: &[u8]) -> WaitedProperties {
        let properties = [properties, b"waited\n"].concat();
        WaitedProperties { persistent: properties[1] == 1, properties, ttl_ms: None }
    }
    fn with_returns(&self, properties: &[u8], returns: Returns) -> Vec<u8> {
        let note = format!("returned {} {}\n", returns.all, returns.failures);
        [properties, note.as_bytes()].concat()
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
            properties: message.properties.to_vec(),
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
        let (properties, body) = (message.properties.to_vec(), message.body.to_vec());
        self.events.push(Event::Got { to, tag: tag.0, redelivered, properties, body });
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
    fn consumer_cancelled(&mut self, to: Address, consumer: ConsumerId) {
        self.events.push(Event::Cancelled { to, consumer });
    }
    fn channel_failed(&mut self, to: Address, refusal: Refusal) {
        self.events.push(Event::Failed { to, refusal });
    }
    fn publishing_held(&mut self, to: Address, held: bool) {
        self.events.push(Event::Held { to, held });
    }
    /// What happened, in a line behind the head.
    fn traced(&self, message: &MessageView<'_>, traced: &Traced<'_>) -> Vec<u8> {
        let (channel, vhost) = (traced.channel.channel, traced.vhost);
        let story = match traced.event {
            TraceEvent::Published { queues } => {
                format!("published on {channel} in {vhost} to {}", queues.join(","))
            }
            TraceEvent::Delivered { redelivered } => {
                format!("delivered on {channel} in {vhost} {redelivered}")
            }
        };
        let exchange = String::from_utf8_lossy(message.exchange);
        [&[0, 0], format!("{story} from '{exchange}'\n").as_bytes()].concat()
    }
    fn publishing_blocked(&mut self, blocked: bool) {
        self.events.push(Event::Blocked(blocked));
    }
}

impl Backplane for Surroundings {
    fn outgoing(&mut self, to: ShardId, lane: Lane) -> &mut Batch {
        &mut self.outgoing[to.index()][lane_index(lane)]
    }
    fn append(
        &mut self,
        message: &MessageView<'_>,
        _ttl_ms: Option<u64>,
        _sync: bool,
        queues: &[DurableId],
    ) -> Logged {
        assert!(!queues.is_empty(), "what is appended is in some queue");
        let sequence = self.enter(message, queues.to_vec());
        self.journal.append(sequence, queues, message.body);
        self.log_story.push(format!("append {sequence}"));
        Logged { sequence, in_log: true }
    }
    fn claimed(&mut self, message: LogSequence, queue: DurableId) {
        let (queues, _) = &self.logged[&message];
        assert!(
            queues.is_empty() || queues.contains(&queue),
            "only what is in the log for a queue is claimed there"
        );
    }
    fn came_back(&mut self, message: LogSequence, queue: DurableId, _failed: bool) {
        self.claimed(message, queue);
    }
    fn settled(&mut self, message: LogSequence, queue: Option<DurableId>) {
        self.log_story.push(format!("settle {message}"));
        let spilled = self.logged.get(&message).is_some_and(|(queues, _)| queues.is_empty());
        let Some(queue) = queue.filter(|_| !spilled) else {
            self.logged.remove(&message).expect("only what is in the log is settled");
            return;
        };
        match self.own_settlements.get_mut(&(message, queue)) {
            Some(told) if self.logged.get(&message).is_some_and(|(queues, _)| queues.contains(&queue)) => {
                assert!(!std::mem::replace(told, true), "a queue settles a message once");
            }
            Some(_) => drop(self.own_settlements.remove(&(message, queue))),
            None => {
                self.appended += 1;
                self.journal.settle(self.appended, message, queue);
                self.end(message, queue);
            }
        }
    }
    fn spill(&mut self, message: &MessageView<'_>) -> Option<LogSequence> {
        if !self.spills {
            return None;
        }
        self.spilled += 1;
        Some(self.enter(message, Vec::new()))
    }
    fn load(&mut self, message: LogSequence, waiter: QueueId) -> Loaded<'_> {
        assert!(message <= self.committed, "only what is committed is loaded");
        if self.loses_every.is_some_and(|every| message.is_multiple_of(every)) {
            return Loaded::Lost;
        }
        let (_, record) = self.logged.get(&message).expect("only what is in the log is loaded");
        match self.read.iter().position(|read| *read == message) {
            Some(at) => {
                self.read.swap_remove(at);
                self.loaded += 1;
                Loaded::Record(record)
            }
            None => {
                self.reading.push_back(waiter);
                self.read.push(message);
                Loaded::Later
            }
        }
    }
    fn persist(&mut self, version: u64, writes: Vec<StoreWrite>) {
        assert!(!writes.is_empty());
        self.persisting.push_back(version);
    }
}

impl TransactionLog for Surroundings {
    fn append_group(&mut self, group: &LogGroup<'_>) -> Option<LoggedGroup> {
        let (names, group) = self.name_group(group);
        self.appended += 1;
        self.log_story.push(format!("group {names:?}"));
        self.journal.group(self.appended, group.clone());
        self.count_group(&group);
        Some(LoggedGroup { names, sequence: self.appended })
    }
    fn prepare(&mut self, name: TxName, group: &LogGroup<'_>) -> Option<LoggedGroup> {
        let (names, group) = self.name_group(group);
        self.appended += 1;
        self.log_story.push("prepare".into());
        self.journal.prepare(self.appended, name, group.clone());
        assert!(self.prepared.insert(name, group).is_none(), "a name is used once");
        Some(LoggedGroup { names, sequence: self.appended })
    }
    fn decide(&mut self, name: TxName, sync: bool) -> LogSequence {
        self.appended += 1;
        assert!(sync, "all queues here ask for it");
        self.log_story.push("decide".into());
        self.journal.decide(self.appended, name);
        assert!(self.decisions.insert(name), "decided once");
        self.appended
    }
    fn resolve(&mut self, name: TxName, committed: bool) {
        let group = self.prepared.remove(&name).expect("what was prepared is resolved once");
        self.appended += 1;
        self.log_story.push(format!("resolve {committed}"));
        self.journal.resolve(self.appended, name, committed);
        self.resolving.push_back((self.appended, name));
        if committed {
            return self.count_group(&group);
        }
        for (message, queue) in group.settlements {
            if self.own_settlements.remove(&(message, queue)).expect("it was noted") {
                self.settled(message, Some(queue));
            }
        }
    }
    fn forget_decision(&mut self, name: TxName) {
        self.appended += 1;
        self.log_story.push("forget".into());
        self.journal.forget(self.appended, name);
        assert!(self.decisions.remove(&name), "what was decided is forgotten once");
    }
}

impl Surroundings {
    fn name_group(&mut self, group: &LogGroup<'_>) -> (Vec<LogSequence>, Group) {
        let names: Vec<LogSequence> =
            (1..=group.messages.len() as u64).map(|count| self.appended + count).collect();
        self.appended += names.len() as u64;
        let logged = Group::new(group, &names);
        for (message, name) in group.messages.iter().zip(&names) {
            let mut record = Vec::new();
            encode_record(&message.message, &mut record);
            self.records.insert(*name, record);
        }
        for &settlement in &logged.settlements {
            let (message, queue) = settlement;
            assert!(self.logged[&message].0.contains(&queue), "what is settled is in the log");
            assert!(self.own_settlements.insert(settlement, false).is_none(), "settled by one transaction");
        }
        (names, logged)
    }

    /// A group is in the log from now on.
    fn count_group(&mut self, group: &Group) {
        for (name, queues, _) in &group.messages {
            let record = self.records.remove(name).expect("it was kept");
            self.logged.insert(*name, (queues.clone(), record));
        }
        for &(message, queue) in &group.settlements {
            self.end(message, queue);
            if self.own_settlements[&(message, queue)] {
                self.own_settlements.remove(&(message, queue));
            }
        }
    }

    fn end(&mut self, message: LogSequence, queue: DurableId) {
        let (queues, _) = self.logged.get_mut(&message).expect("only what is in the log is settled");
        let at = queues.iter().position(|other| *other == queue).expect("a queue settles a message once");
        queues.remove(at);
        if queues.is_empty() {
            self.logged.remove(&message);
        }
    }

    /// Nothing of a transaction is left over.
    pub fn assert_no_transactions(&self) {
        assert!(self.prepared.is_empty() && self.decisions.is_empty() && self.resolving.is_empty());
        assert!(self.own_settlements.is_empty(), "queues have let go of what was settled");
    }

    fn enter(&mut self, message: &MessageView<'_>, queues: Vec<DurableId>) -> LogSequence {
        self.appended += 1;
        let mut record = Vec::new();
        encode_record(message, &mut record);
        self.logged.insert(self.appended, (queues, record));
        self.appended
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
                let config = ShardConfig {
                    id: ShardId(index as u16),
                    shards: count,
                    epoch: 1,
                    memory_budget_bytes,
                    durability: Durability::Fsync,
                    consumer_timeout_ms: CONSUMER_TIMEOUT_MS,
                };
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
                reading: VecDeque::new(),
                read: Vec::new(),
                loaded: 0,
                spilled: 0,
                spills: true,
                loses_every: None,
                log_story: Vec::new(),
                journal: Journal::default(),
                prepared: BTreeMap::new(),
                own_settlements: BTreeMap::new(),
                resolving: VecDeque::new(),
                decisions: BTreeSet::new(),
                records: BTreeMap::new(),
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
        match self.random.u8(..9) {
            0..4 => self.receive(shard),
            4 => {
                self.end_turn(shard);
                true
            }
            5 => self.commit(shard),
            6 => self.store(),
            7 => self.arrive(shard),
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
        let mut resolved = Vec::new();
        while let Some(&(_, name)) = around.resolving.front().filter(|(at, _)| *at <= frontier) {
            resolved.push(name);
            around.resolving.pop_front();
        }
        self.shards[shard].committed(&mut self.around[shard], frontier);
        self.shards[shard].resolved(&mut self.around[shard], resolved);
        true
    }

    /// What the logs would say if the process ended now: of each log at least what is committed is there. With
    /// `at_least`, no more than that.
    pub fn crash(&mut self, at_least: bool) -> (Recovered, BTreeMap<TxName, Progress>) {
        let random = &mut self.random;
        let journals = self.around.iter().map(|around| {
            let cut =
                if at_least { around.committed } else { random.u64(around.committed..=around.appended) };
            (&around.journal, cut)
        });
        let journals: Vec<_> = journals.collect();
        (journal::recover(&journals), journal::progress(&journals))
    }

    /// Something that a queue waits for has been read.
    fn arrive(&mut self, shard: usize) -> bool {
        let Some(queue) = self.around[shard].reading.pop_front() else { return false };
        self.shards[shard].arrived(&mut self.around[shard], [queue]);
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
        self.shards[shard].carry_off(&mut self.around[shard]);
    }

    /// Lets everything that is underway arrive.
    pub fn settle_down(&mut self) {
        loop {
            let mut busy = false;
            for shard in 0..self.count() {
                while self.shards[shard].has_rubble() {
                    busy = true;
                    self.shards[shard].carry_off(&mut self.around[shard]);
                }
                self.end_turn(shard);
                while self.commit(shard) || self.arrive(shard) || (shard == 0 && self.store()) {
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
