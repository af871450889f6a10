//! Several logs, and a driver that plays coordinators and participants of transactions over them, on a seed. What
//! they tell each other is as late as chance has it, but comes in order.

use std::collections::{BTreeMap, BTreeSet};

use super::simulated_disk::SimulatedDisk;
use super::*;

pub type Log = ShardLog<SimulatedDisk>;

const QUEUES: u64 = 4;

/// What the driver does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    None,
    /// It answers when it has decided, and not when that is on disk.
    AnswersEarly,
    /// It decides before all have it on disk.
    DecidesEarly,
    /// It forgets its decision when it has told of it.
    ForgetsEarly,
}

/// A message in one of its queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// The transaction that is to settle it, or has.
    pub by: Option<usize>,
    /// It was settled without a transaction, too, or by one.
    pub settled: bool,
    /// That is on disk.
    pub on_disk: bool,
}

#[derive(Clone, Debug)]
pub struct Known {
    pub entries: BTreeMap<u64, Entry>,
    pub content: Vec<u8>,
    pub confirmed: bool,
    /// The transaction that it came with.
    pub tx: Option<usize>,
    /// It is resolved, or came without one.
    pub visible: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Queues and content of its messages.
    pub messages: Vec<(Vec<u64>, Vec<u8>)>,
    pub settlements: Vec<(Sequence, u64)>,
    pub names: Vec<Sequence>,
    /// What to wait for, once it is with its log.
    pub last: Option<Sequence>,
    pub prepared: bool,
    pub resolved: bool,
    pub resolved_on_disk: bool,
}

#[derive(Clone, Debug)]
pub struct Tx {
    pub name: TxName,
    pub coordinator: usize,
    pub parts: BTreeMap<usize, Part>,
    /// What to wait for, once it is decided.
    pub decided: Option<Sequence>,
    pub rolled_back: bool,
    /// The others know that it is committed, or will.
    pub told: bool,
    pub answered: bool,
    pub forgotten: bool,
}

/// What is on its way between shards.
#[derive(Clone, Copy, Debug)]
pub enum Mail {
    Prepare(usize, usize),
    Prepared(usize, usize),
    Outcome(usize, usize, bool),
    Resolved(usize, usize),
}

pub struct World {
    pub rng: fastrand::Rng,
    pub disks: Vec<SimulatedDisk>,
    pub logs: Vec<Log>,
    pub epoch: u32,
    pub now_ms: u64,
    pub known: BTreeMap<(usize, Sequence), Known>,
    pub transactions: Vec<Tx>,
    pub mail: Vec<Mail>,
    pub mistake: Mistake,
    /// Where ends came.
    pub ends: BTreeSet<&'static str>,
}

pub fn options(shard: usize, epoch: u32) -> LogOptions {
    let (shard, segment_bytes, commit_bytes, commit_delay_max_ms) = (shard as u32, 64 * 1024, 16 * 1024, 0);
    LogOptions { shard, epoch, segment_bytes, commit_bytes, sync: true, commit_delay_max_ms }
}

pub fn read(disks: &[SimulatedDisk]) -> Vec<Recovered> {
    let read = |(shard, disk): (usize, &SimulatedDisk)| {
        let recovered = recover(shard as u32, &disk.segments(), disk).expect("the log can be read back");
        assert!(recovered.damage.is_empty(), "damage without a cause: {:?}", recovered.damage);
        // As a start does: what it builds on is not to go with the power afterwards.
        let unsure = recovered.segments.iter().filter(|found| !found.is_stable());
        unsure.for_each(|found| disk.sync(found.segment));
        recovered
    };
    disks.iter().enumerate().map(read).collect()
}

impl World {
    pub fn new(seed: u64, mistake: Mistake) -> World {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x7a5);
        let count = rng.usize(2..=3);
        let disks: Vec<_> =
            (0..count).map(|disk| SimulatedDisk::new(seed.wrapping_mul(31) + disk as u64)).collect();
        let log = |(shard, disk): (usize, &SimulatedDisk)| {
            ShardLog::new(disk.clone(), options(shard, 1), Recovered::default())
        };
        let logs = disks.iter().enumerate().map(log).collect();
        let (known, transactions, mail, ends) = (BTreeMap::new(), Vec::new(), Vec::new(), BTreeSet::new());
        World { rng, disks, logs, epoch: 1, now_ms: 0, known, transactions, mail, mistake, ends }
    }

    fn queues_of(&mut self, shard: usize) -> Vec<u64> {
        let logs = self.logs.len() as u64;
        let mut queues: Vec<u64> = (1..=QUEUES).filter(|queue| queue % logs == shard as u64).collect();
        if queues.len() > 1 && self.rng.bool() {
            queues.swap_remove(self.rng.usize(..queues.len()));
        }
        queues
    }

    fn content(&mut self) -> Vec<u8> {
        let most = [10, 300, 3_000, 12_000][self.rng.usize(..4).min(self.rng.usize(..4))];
        vec![self.rng.u8(..); self.rng.usize(..most)]
    }

    fn note(&mut self, shard: usize, name: Sequence, queues: &[u64], content: Vec<u8>, tx: Option<usize>) {
        let entries = queues.iter().map(|&queue| (queue, Entry::default())).collect();
        let visible = tx.is_none();
        let known = Known { entries, content, confirmed: false, tx, visible };
        assert!(self.known.insert((shard, name), known).is_none(), "a sequence is used once");
    }

    fn append(&mut self) {
        let shard = self.rng.usize(..self.logs.len());
        let (queues, content) = (self.queues_of(shard), self.content());
        let name = self.logs[shard].append(1_000, None, true, queues.iter().copied(), &[&content]);
        self.note(shard, name, &queues, content, None);
    }

    /// Messages in a log that a client has and has not settled. Those that a transaction is to settle, too, if
    /// `taken`.
    pub fn open(&self, shard: usize, taken: bool) -> Vec<(Sequence, u64)> {
        let of_shard = self.known.range((shard, 0)..=(shard, u64::MAX)).filter(|(_, known)| known.visible);
        let entries = of_shard.flat_map(|(&(_, name), known)| {
            known.entries.iter().map(move |(&queue, entry)| (name, queue, *entry))
        });
        let open = entries.filter(|(.., entry)| {
            !entry.settled && entry.by.is_none_or(|tx| taken && self.is_prepared(tx, shard))
        });
        open.map(|(name, queue, _)| (name, queue)).take(30).collect()
    }

    fn is_prepared(&self, tx: usize, shard: usize) -> bool {
        let tx = &self.transactions[tx];
        tx.parts.len() > 1 && tx.parts[&shard].last.is_some() && !tx.parts[&shard].resolved
    }

    fn settle(&mut self) {
        let shard = self.rng.usize(..self.logs.len());
        // A queue may drop what a transaction is about to settle.
        let taken = self.rng.u8(..10) == 0;
        let open = self.open(shard, taken);
        if let Some(&(name, queue)) = self.rng.choice(&open) {
            self.logs[shard].settle(name, queue);
            self.entry(shard, name, queue).settled = true;
        }
    }

    pub fn entry(&mut self, shard: usize, name: Sequence, queue: u64) -> &mut Entry {
        let known = self.known.get_mut(&(shard, name)).expect("it is known");
        known.entries.get_mut(&queue).expect("it is in this queue")
    }

    fn load(&mut self) {
        let shard = self.rng.usize(..self.logs.len());
        let open = self.open(shard, false);
        let Some(&(name, _)) = self.rng.choice(&open) else { return };
        if self.logs[shard].committed() >= name {
            match self.logs[shard].load(name, name) {
                Loaded::Content(content) => assert!(*self.known[&(shard, name)].content == *content),
                Loaded::Later => {}
                Loaded::Lost => panic!("{name:x} is on disk and cannot be loaded"),
            }
        }
    }

    /// A client commits.
    fn begin(&mut self) {
        let index = self.transactions.len();
        let coordinator = self.rng.usize(..self.logs.len());
        let name = TxName::new(coordinator as u32, self.epoch, index as u64);
        let mut parts = BTreeMap::new();
        for shard in 0..self.logs.len() {
            if self.rng.u8(..3) == 0 && !parts.is_empty() {
                continue;
            }
            let mut part = Part::default();
            for _ in 0..self.rng.usize(..4) {
                part.messages.push((self.queues_of(shard), self.content()));
            }
            let mut open = self.open(shard, false);
            self.rng.shuffle(&mut open);
            open.truncate(self.rng.usize(..4));
            for &(name, queue) in &open {
                self.entry(shard, name, queue).by = Some(index);
            }
            part.settlements = open;
            parts.insert(shard, part);
        }
        let (decided, rolled_back, told, answered, forgotten) = (None, false, false, false, false);
        if parts.len() > 1 {
            self.mail.extend(parts.keys().map(|&shard| Mail::Prepare(index, shard)));
        }
        let tx = Tx { name, coordinator, parts, decided, rolled_back, told, answered, forgotten };
        self.transactions.push(tx);
        if self.transactions[index].parts.len() == 1 {
            self.hand_over(index, *self.transactions[index].parts.keys().next().expect("there is one"));
        }
    }

    /// A part goes to its log.
    fn hand_over(&mut self, index: usize, shard: usize) {
        let tx = &self.transactions[index];
        let (name, alone, part) = (tx.name, tx.parts.len() == 1, tx.parts[&shard].clone());
        let bodies: Vec<[&[u8]; 1]> = part.messages.iter().map(|(_, content)| [&content[..]]).collect();
        let messages = part.messages.iter().zip(&bodies).map(|((queues, _), parts)| TxMessage {
            published_ms: 1_000,
            ttl_ms: None,
            queues,
            parts,
        });
        let log = &mut self.logs[shard];
        let (names, last) = match alone {
            true => log.append_group(true, messages, &part.settlements),
            false => log.prepare(name, true, messages, &part.settlements),
        };
        for (&name, (queues, content)) in names.iter().zip(&part.messages) {
            self.note(shard, name, queues, content.clone(), Some(index));
        }
        let part = self.transactions[index].parts.get_mut(&shard).expect("it has this part");
        (part.names, part.last) = (names, Some(last));
        if alone {
            self.transactions[index].decided = Some(last);
            self.take_effect(index, shard);
        }
    }

    fn take_effect(&mut self, index: usize, shard: usize) {
        let part = self.transactions[index].parts.get_mut(&shard).expect("it has this part");
        part.resolved = true;
        let (names, settlements) = (part.names.clone(), part.settlements.clone());
        for name in names {
            self.known.get_mut(&(shard, name)).expect("it is known").visible = true;
        }
        settlements.into_iter().for_each(|(name, queue)| self.entry(shard, name, queue).settled = true);
    }

    fn roll_back(&mut self, index: usize, shard: usize) {
        let part = self.transactions[index].parts.get_mut(&shard).expect("it has this part");
        part.resolved = true;
        for (name, queue) in part.settlements.clone() {
            let entry = self.entry(shard, name, queue);
            if entry.by == Some(index) {
                entry.by = None;
            }
        }
    }

    /// Some letter arrives.
    pub fn receive(&mut self) {
        if self.mail.is_empty() {
            return;
        }
        let mail = self.mail.swap_remove(self.rng.usize(..self.mail.len()));
        match mail {
            Mail::Prepare(index, shard) => self.hand_over(index, shard),
            Mail::Prepared(index, shard) => {
                let part = self.transactions[index].parts.get_mut(&shard).expect("it has this part");
                part.prepared = true;
                self.decide(index);
            }
            Mail::Outcome(index, shard, committed) => self.resolve(index, shard, committed),
            Mail::Resolved(index, shard) => {
                let tx = &mut self.transactions[index];
                tx.parts.get_mut(&shard).expect("it has this part").resolved_on_disk = true;
                if tx.parts.values().all(|part| part.resolved_on_disk) {
                    self.forget(index);
                }
            }
        }
    }

    fn decide(&mut self, index: usize) {
        let tx = &mut self.transactions[index];
        let early = self.mistake == Mistake::DecidesEarly;
        let ready = tx.parts.values().all(|part| part.prepared || (early && part.last.is_some()));
        if tx.decided.is_some() || tx.rolled_back {
            return;
        }
        if self.rng.u8(..20) == 0 {
            return self.begin_rollback(index);
        }
        if !ready {
            return;
        }
        tx.decided = Some(self.logs[tx.coordinator].decide(tx.name, true));
        tx.answered = self.mistake == Mistake::AnswersEarly;
    }

    /// The client is gone, or one of the shards cannot take part.
    fn begin_rollback(&mut self, index: usize) {
        let tx = &mut self.transactions[index];
        tx.rolled_back = true;
        self.mail.extend(tx.parts.keys().map(|&shard| Mail::Outcome(index, shard, false)));
    }

    fn resolve(&mut self, index: usize, shard: usize, committed: bool) {
        let tx = &self.transactions[index];
        let last = tx.parts[&shard].last;
        // Letters between two shards do not overtake each other.
        let early = committed && last.is_some_and(|last| self.logs[shard].committed() < last);
        if early || last.is_none() {
            assert!(!early || self.mistake == Mistake::DecidesEarly, "it is decided when all are prepared");
            return self.mail.push(Mail::Outcome(index, shard, committed));
        }
        self.logs[shard].resolve(tx.name, committed);
        match committed {
            true => self.take_effect(index, shard),
            false => self.roll_back(index, shard),
        }
    }

    fn forget(&mut self, index: usize) {
        let tx = &mut self.transactions[index];
        if tx.decided.is_some() && !tx.forgotten {
            tx.forgotten = true;
            self.logs[tx.coordinator].forget_decision(tx.name);
        }
    }

    pub fn poll(&mut self, shard: usize) {
        self.now_ms += self.rng.u64(..20);
        let log = &mut self.logs[shard];
        log.poll(self.now_ms).expect("nothing fails here");
        let committed = log.committed();
        let written: Vec<_> = log.take_written_settlements().collect();
        let resolved: BTreeSet<TxName> = log.take_resolved().collect();
        log.take_arrived();
        for (_, known) in self.known.range_mut((shard, 0)..=(shard, committed)) {
            known.confirmed = true;
        }
        for (name, queue) in written {
            if let Some(known) = self.known.get_mut(&(shard, name))
                && let Some(entry) = known.entries.get_mut(&queue)
            {
                (entry.settled, entry.on_disk) = (true, true);
            }
        }
        for index in 0..self.transactions.len() {
            let tx = &self.transactions[index];
            if resolved.contains(&tx.name) {
                self.mail.push(Mail::Resolved(index, shard));
            }
            self.look_at(index, shard, committed);
        }
    }

    /// What a transaction waits for may be on disk.
    fn look_at(&mut self, index: usize, shard: usize, committed: Sequence) {
        let alone = self.transactions[index].parts.len() == 1;
        let tx = &mut self.transactions[index];
        if let Some(part) = tx.parts.get(&shard)
            && part.last.is_some_and(|last| last <= committed)
            && !(alone || part.prepared || tx.rolled_back)
            && !self
                .mail
                .iter()
                .any(|mail| matches!(mail, Mail::Prepared(i, s) if (*i, *s) == (index, shard)))
        {
            self.mail.push(Mail::Prepared(index, shard));
        }
        let decides = if alone { tx.parts.contains_key(&shard) } else { tx.coordinator == shard };
        if decides && !tx.told && tx.decided.is_some_and(|last| last <= committed) {
            (tx.answered, tx.told) = (true, true);
            if !alone {
                self.mail.extend(tx.parts.keys().map(|&shard| Mail::Outcome(index, shard, true)));
                if self.mistake == Mistake::ForgetsEarly {
                    self.forget(index);
                }
            }
        }
    }

    pub fn steps(&mut self, count: usize) {
        let (appends, begins) = (self.rng.u8(5..35), self.rng.u8(40..50));
        for _ in 0..count {
            match self.rng.u8(..100) {
                step if step < appends => self.append(),
                step if step < 35 => self.settle(),
                step if step < begins => self.begin(),
                step if step < 52 => self.load(),
                step if step < 70 => (0..self.rng.usize(1..4)).for_each(|_| self.receive()),
                _ => {
                    let shard = self.rng.usize(..self.logs.len());
                    self.poll(shard);
                }
            }
        }
    }

    /// Everything that was begun ends, and all is settled.
    pub fn come_to_rest(&mut self) {
        for round in 0..200_000 {
            self.receive();
            let shard = round % self.logs.len();
            self.poll(shard);
            for (name, queue) in self.open(shard, false) {
                self.logs[shard].settle(name, queue);
                self.entry(shard, name, queue).settled = true;
            }
            let done = |known: &Known| known.entries.values().all(|entry| entry.on_disk) || !known.visible;
            let ended = |tx: &Tx| tx.parts.len() == 1 || tx.rolled_back || tx.forgotten;
            if self.mail.is_empty()
                && self.logs.iter().all(Log::is_idle)
                && self.known.values().all(done)
                && self.transactions.iter().all(ended)
            {
                return;
            }
        }
        panic!("the logs do not come to rest");
    }
}
