//! What the logs of all shards would say after a crash: everything that was asked of a log, in order, of
//! which a crash leaves a beginning.

use std::collections::{BTreeMap, BTreeSet};

use lepus_shards::shard::{LogGroup, LogSequence};
use lepus_shards::{DurableId, TxName};

/// A message of the log: its name, the queues that it was for, and its body.
type Message = (LogSequence, Vec<DurableId>, Vec<u8>);

/// The durable part of a transaction on a shard.
#[derive(Clone, Debug)]
pub struct Group {
    pub messages: Vec<Message>,
    pub settlements: Vec<(LogSequence, DurableId)>,
}

impl Group {
    /// With these names for its messages.
    pub fn new(group: &LogGroup<'_>, names: &[LogSequence]) -> Group {
        let messages = group.messages.iter().zip(names);
        let messages = messages.map(|(message, name)| {
            assert!(!message.queues.is_empty(), "what is logged is for some queue");
            (*name, message.queues.to_vec(), message.message.body.to_vec())
        });
        assert!(group.messages.len() + group.settlements.len() > 0, "a group is about something");
        Group { messages: messages.collect(), settlements: group.settlements.to_vec() }
    }
}

#[derive(Debug)]
enum Entry {
    Append(Message),
    Settle(LogSequence, DurableId),
    Group(Group),
    Prepare(TxName, Group),
    Decide(TxName),
    Resolve(TxName, bool),
    Forget(TxName),
}

/// The history of one shard's log. Entries stand under the sequence that says that they are on disk.
#[derive(Default, Debug)]
pub struct Journal {
    entries: Vec<(LogSequence, Entry)>,
}

impl Journal {
    pub fn append(&mut self, at: LogSequence, queues: &[DurableId], body: &[u8]) {
        self.entries.push((at, Entry::Append((at, queues.to_vec(), body.to_vec()))));
    }

    pub fn settle(&mut self, at: LogSequence, message: LogSequence, queue: DurableId) {
        self.entries.push((at, Entry::Settle(message, queue)));
    }

    pub fn group(&mut self, at: LogSequence, group: Group) {
        self.entries.push((at, Entry::Group(group)));
    }

    pub fn prepare(&mut self, at: LogSequence, name: TxName, group: Group) {
        self.entries.push((at, Entry::Prepare(name, group)));
    }

    pub fn decide(&mut self, at: LogSequence, name: TxName) {
        self.entries.push((at, Entry::Decide(name)));
    }

    pub fn resolve(&mut self, at: LogSequence, name: TxName, committed: bool) {
        self.entries.push((at, Entry::Resolve(name, committed)));
    }

    pub fn forget(&mut self, at: LogSequence, name: TxName) {
        self.entries.push((at, Entry::Forget(name)));
    }

    fn until(&self, cut: LogSequence) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take_while(move |(at, _)| *at <= cut).map(|(_, entry)| entry)
    }
}

/// What was ever in the logs, and what was ever settled there: queue and body.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Recovered {
    pub born: BTreeSet<(DurableId, Vec<u8>)>,
    pub ended: BTreeSet<(DurableId, Vec<u8>)>,
}

/// How far a transaction has come in the logs of those that it needs prepared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Progress {
    /// In how many logs it is prepared.
    pub prepared: usize,
    pub decided: bool,
    /// In how many logs its outcome is.
    pub resolved: usize,
}

impl Progress {
    /// The step that comes next, if it is prepared in `all` in the end.
    pub fn step(self, all: usize) -> &'static str {
        let Progress { prepared, decided, resolved } = self;
        match (decided, prepared == all, resolved) {
            (false, _, 1..) => "it is being rolled back",
            (false, false, 0) => "it is being prepared",
            (false, true, 0) => "it is prepared everywhere",
            (true, true, 0) => "it is decided",
            (true, true, resolved) if resolved < all => "it is being resolved",
            (true, true, _) => "it is resolved everywhere",
            (true, false, _) => panic!("it is decided, and prepared in {prepared} of {all} logs"),
        }
    }
}

/// How far transactions over several shards are when each log is cut off behind one of its sequences.
pub fn progress(journals: &[(&Journal, LogSequence)]) -> BTreeMap<TxName, Progress> {
    let mut all: BTreeMap<TxName, Progress> = BTreeMap::new();
    for entry in journals.iter().flat_map(|(journal, cut)| journal.until(*cut)) {
        match entry {
            Entry::Prepare(name, _) => all.entry(*name).or_default().prepared += 1,
            Entry::Decide(name) => all.entry(*name).or_default().decided = true,
            Entry::Resolve(name, _) => all.entry(*name).or_default().resolved += 1,
            _ => {}
        }
    }
    all
}

/// What the logs say when each is cut off behind one of its sequences.
pub fn recover(journals: &[(&Journal, LogSequence)]) -> Recovered {
    let mut decided = BTreeSet::new();
    for entry in journals.iter().flat_map(|(journal, cut)| journal.until(*cut)) {
        match entry {
            Entry::Decide(name) => {
                decided.insert(*name);
            }
            Entry::Forget(name) => assert!(decided.remove(name), "what was decided is forgotten"),
            _ => {}
        }
    }
    let mut all = Recovered::default();
    for (journal, cut) in journals {
        let mut replay = Replay { bodies: BTreeMap::new(), all: &mut all };
        let mut prepared = BTreeMap::new();
        for entry in journal.until(*cut) {
            match entry {
                Entry::Append(message) => replay.born(message),
                Entry::Settle(message, queue) => replay.ended(*message, *queue),
                Entry::Group(group) => replay.group(group),
                Entry::Prepare(name, group) => {
                    prepared.insert(*name, group);
                }
                Entry::Resolve(name, committed) => {
                    let group = prepared.remove(name).expect("what was prepared is resolved, once");
                    if *committed {
                        replay.group(group);
                    }
                }
                Entry::Decide(_) | Entry::Forget(_) => {}
            }
        }
        for (name, group) in prepared {
            if decided.contains(&name) {
                replay.group(group);
            }
        }
    }
    all
}

struct Replay<'a> {
    bodies: BTreeMap<LogSequence, Vec<u8>>,
    all: &'a mut Recovered,
}

impl Replay<'_> {
    fn born(&mut self, (name, queues, body): &Message) {
        self.bodies.insert(*name, body.clone());
        self.all.born.extend(queues.iter().map(|queue| (*queue, body.clone())));
    }

    fn ended(&mut self, message: LogSequence, queue: DurableId) {
        let body = self.bodies.get(&message).expect("what is settled was there");
        let first = self.all.ended.insert((queue, body.clone()));
        assert!(first, "a queue settles a message once");
    }

    fn group(&mut self, group: &Group) {
        group.messages.iter().for_each(|message| self.born(message));
        group.settlements.iter().for_each(|&(message, queue)| self.ended(message, queue));
    }
}
