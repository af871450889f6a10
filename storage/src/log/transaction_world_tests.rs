//! Transactions over several logs that die together, on a seed: whatever step of a commit the end comes at, a
//! transaction is there as a whole or not at all, in every log, and what was answered is there.
//! `LEPUS_SIM_SEEDS` sets how many seeds.
//!
//! A driver plays coordinators and participants; what they tell each other is as late as chance has it. The
//! power goes, or the process is killed, at any moment, in a recovery as well.

use std::collections::{BTreeMap, BTreeSet};

use super::simulated_disk::SimulatedDisk;
use super::*;

type Log = ShardLog<SimulatedDisk>;

const QUEUES: u64 = 4;

/// What the driver does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
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
struct Entry {
    /// The transaction that is to settle it, or has.
    by: Option<usize>,
    /// It was settled without a transaction, too, or by one.
    settled: bool,
    /// That is on disk.
    on_disk: bool,
}

#[derive(Clone, Debug)]
struct Known {
    entries: BTreeMap<u64, Entry>,
    content: Vec<u8>,
    confirmed: bool,
    /// The transaction that it came with.
    tx: Option<usize>,
    /// It is resolved, or came without one.
    visible: bool,
}

#[derive(Clone, Debug, Default)]
struct Part {
    /// Queues and content of its messages.
    messages: Vec<(Vec<u64>, Vec<u8>)>,
    settlements: Vec<(Sequence, u64)>,
    names: Vec<Sequence>,
    /// What to wait for, once it is with its log.
    last: Option<Sequence>,
    prepared: bool,
    resolved: bool,
    resolved_on_disk: bool,
}

#[derive(Clone, Debug)]
struct Tx {
    name: TxName,
    coordinator: usize,
    parts: BTreeMap<usize, Part>,
    /// What to wait for, once it is decided.
    decided: Option<Sequence>,
    rolled_back: bool,
    /// The others know that it is committed, or will.
    told: bool,
    answered: bool,
    forgotten: bool,
}

/// What is on its way between shards.
#[derive(Clone, Copy, Debug)]
enum Mail {
    Prepare(usize, usize),
    Prepared(usize, usize),
    Outcome(usize, usize, bool),
    Resolved(usize, usize),
}

struct World {
    rng: fastrand::Rng,
    disks: Vec<SimulatedDisk>,
    logs: Vec<Log>,
    epoch: u32,
    now_ms: u64,
    known: BTreeMap<(usize, Sequence), Known>,
    transactions: Vec<Tx>,
    mail: Vec<Mail>,
    mistake: Mistake,
    /// Where ends came.
    ends: BTreeSet<&'static str>,
}

fn options(shard: usize, epoch: u32) -> LogOptions {
    let (shard, segment_bytes, commit_bytes, commit_delay_max_ms) = (shard as u32, 64 * 1024, 16 * 1024, 0);
    LogOptions { shard, epoch, segment_bytes, commit_bytes, sync: true, commit_delay_max_ms }
}

fn read(disks: &[SimulatedDisk]) -> Vec<Recovered> {
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
    fn new(seed: u64, mistake: Mistake) -> World {
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
    fn open(&self, shard: usize, taken: bool) -> Vec<(Sequence, u64)> {
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

    fn entry(&mut self, shard: usize, name: Sequence, queue: u64) -> &mut Entry {
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
    fn receive(&mut self) {
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

    fn poll(&mut self, shard: usize) {
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

    fn steps(&mut self, count: usize) {
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

    /// The end of all logs at once, at any moment.
    fn end(&mut self) {
        for tx in self.transactions.iter().filter(|tx| tx.parts.len() > 1) {
            let on_disk = |&(&shard, part): &(&usize, &Part)| {
                part.last.is_some_and(|last| self.logs[shard].committed() >= last)
            };
            let (prepared, parts) = (tx.parts.iter().filter(on_disk).count(), tx.parts.len());
            let resolved = tx.parts.values().filter(|part| part.resolved_on_disk).count();
            let decided = tx.decided.map(|last| self.logs[tx.coordinator].committed() >= last);
            self.ends.insert(match (prepared, decided) {
                (0, _) => "nothing is prepared",
                (some, _) if some < parts => "some are prepared",
                (_, None) => "all are prepared",
                (_, Some(false)) => "the decision is under way",
                (_, Some(true)) if resolved == 0 => "the decision is on disk",
                (_, Some(true)) if resolved < parts => "some are resolved",
                (_, Some(true)) => "all are resolved",
            });
        }
        match self.rng.bool() {
            true => self.disks.iter().for_each(SimulatedDisk::lose_power),
            false => self.disks.iter().for_each(SimulatedDisk::kill),
        }
        self.epoch += 1;
    }

    /// As a start does it; it may break off, and begins again.
    fn recover(&mut self) -> Vec<Recovered> {
        loop {
            let found = read(&self.disks);
            let outcomes = outcomes(&found.iter().collect::<Vec<_>>());
            let mut logs: Vec<Log> = Vec::new();
            for (shard, (recovered, outcomes)) in found.into_iter().zip(outcomes).enumerate() {
                let mut log = ShardLog::new(self.disks[shard].clone(), options(shard, self.epoch), recovered);
                outcomes.into_iter().for_each(|(tx, committed)| log.resolve(tx, committed));
                log.flush();
                logs.push(log);
            }
            let breaks_off = self.rng.bool().then(|| self.rng.usize(..60));
            let mut polls = 0;
            while !logs.iter().all(Log::is_idle) && breaks_off != Some(polls) {
                let shard = self.rng.usize(..logs.len());
                logs[shard].poll(0).expect("nothing fails here");
                polls += 1;
            }
            if breaks_off == Some(polls) {
                self.ends.insert("in a recovery");
                self.end();
                continue;
            }
            // The files are closed.
            self.disks.iter().for_each(SimulatedDisk::kill);
            let mut found = read(&self.disks);
            assert!(found.iter().all(|recovered| recovered.undecided().count() == 0));
            found.iter_mut().for_each(Recovered::forget_decisions);
            return found;
        }
    }

    /// Compares what is there with what may be, and says what is wrong.
    fn check(&self, found: &[Recovered]) -> Result<BTreeMap<(usize, Sequence), BTreeSet<u64>>, String> {
        let mut there: BTreeMap<(usize, Sequence), BTreeSet<u64>> = BTreeMap::new();
        for (shard, recovered) in found.iter().enumerate() {
            let mut rows = Vec::new();
            let disk = &self.disks[shard];
            recovered.each_live(disk, |row| rows.push(*row)).map_err(|gone| gone.to_string())?;
            for row in rows {
                let name = (shard, row.sequence);
                let known = self.known.get(&name).ok_or(format!("{name:x?} was never appended"))?;
                let segment = disk.segment(row.segment).map_err(|error| error.to_string())?;
                if find_content(&segment, &row) != Some(&known.content) {
                    return Err(format!("{name:x?} has other content"));
                }
                let entry =
                    known.entries.get(&row.queue).ok_or(format!("{name:x?} was never in {}", row.queue))?;
                if entry.on_disk {
                    return Err(format!("{name:x?} came back to {}, and is settled on disk", row.queue));
                }
                there.entry(name).or_default().insert(row.queue);
            }
        }
        for (name, known) in self.known.iter().filter(|(_, known)| known.tx.is_none() && known.confirmed) {
            for (queue, entry) in &known.entries {
                let has = there.get(name).is_some_and(|queues| queues.contains(queue));
                if !has && !entry.settled && entry.by.is_none() {
                    return Err(format!("{name:x?} was confirmed, and is not in {queue}"));
                }
            }
        }
        (0..self.transactions.len()).try_for_each(|index| self.check_transaction(index, &there))?;
        Ok(there)
    }

    fn check_transaction(
        &self,
        index: usize,
        there: &BTreeMap<(usize, Sequence), BTreeSet<u64>>,
    ) -> Result<(), String> {
        let tx = &self.transactions[index];
        let has =
            |shard, name, queue: u64| there.get(&(shard, name)).is_some_and(|queues| queues.contains(&queue));
        let mut evidence: Vec<(bool, String)> = Vec::new();
        if tx.answered {
            evidence.push((true, "it was answered".to_owned()));
        }
        if tx.decided.is_none() {
            evidence.push((false, "nobody decided it".to_owned()));
        }
        for (&shard, part) in &tx.parts {
            for &name in &part.names {
                for (&queue, entry) in &self.known[&(shard, name)].entries {
                    match has(shard, name, queue) {
                        true => evidence.push((true, format!("{name:x} is in {queue}"))),
                        false if entry.settled => {}
                        false => evidence.push((false, format!("{name:x} is not in {queue}"))),
                    }
                }
            }
            for &(name, queue) in part.settlements.iter().filter(|_| part.last.is_some()) {
                let known = &self.known[&(shard, name)];
                let entry = known.entries[&queue];
                let otherwise = entry.settled && !part.resolved;
                match has(shard, name, queue) {
                    true => evidence.push((false, format!("{name:x} is not settled in {queue}"))),
                    false if otherwise || !known.confirmed || entry.by != Some(index) => {}
                    false => evidence.push((true, format!("{name:x} is settled in {queue}"))),
                }
            }
        }
        let disagree = evidence.iter().find(|(committed, _)| *committed != evidence[0].0);
        match disagree {
            None => Ok(()),
            Some((_, why)) => Err(format!("transaction {index}: {}, but {why}: {tx:?}", evidence[0].1)),
        }
    }

    /// Goes on with what is there.
    fn go_on(&mut self, found: Vec<Recovered>, there: BTreeMap<(usize, Sequence), BTreeSet<u64>>) {
        let mut former = std::mem::take(&mut self.known);
        for (name, queues) in there {
            let content = former.remove(&name).expect("checked before").content;
            let entries = queues.into_iter().map(|queue| (queue, Entry::default())).collect();
            let known = Known { entries, content, confirmed: true, tx: None, visible: true };
            self.known.insert(name, known);
        }
        self.transactions.clear();
        self.mail.clear();
        let log = |(shard, recovered)| {
            ShardLog::new(self.disks[shard].clone(), options(shard, self.epoch), recovered)
        };
        self.logs = found.into_iter().enumerate().map(log).collect();
    }

    /// Everything that was begun ends, and all is settled.
    fn come_to_rest(&mut self) {
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

fn lives(seed: u64, mistake: Mistake) -> Result<World, String> {
    let mut world = World::new(seed, mistake);
    for _ in 0..4 {
        let steps = world.rng.usize(1..400);
        world.steps(steps);
        world.end();
        let found = world.recover();
        let there = world.check(&found)?;
        world.go_on(found, there);
    }
    Ok(world)
}

fn seeds() -> u64 {
    std::env::var("LEPUS_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(500)
}

#[test]
fn a_transaction_over_several_logs_is_there_as_a_whole_or_not_at_all_after_a_power_loss() {
    let mut ends = BTreeSet::new();
    for seed in 0..seeds() {
        match lives(seed, Mistake::None) {
            Ok(world) => ends.extend(world.ends),
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    assert!(ends.len() == 8 || seeds() < 100, "the end came at every step: {ends:?}");
}

#[test]
fn a_wrong_order_of_steps_in_a_power_loss_would_be_noticed() {
    for mistake in [Mistake::AnswersEarly, Mistake::DecidesEarly, Mistake::ForgetsEarly] {
        let caught = (0..500).find_map(|seed| Some((seed, lives(seed, mistake).err()?)));
        let (seed, wrong) = caught.unwrap_or_else(|| panic!("{mistake:?} goes unnoticed"));
        println!("{mistake:?} is caught with seed {seed}: {wrong}");
    }
}

#[test]
fn space_comes_back_from_transactions_in_power_loss_worlds() {
    for seed in 0..30 {
        let mut world = lives(seed, Mistake::None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        for _ in 0..10 {
            world.steps(300);
        }
        world.come_to_rest();
        for round in 0..600 {
            world.poll(round % world.logs.len());
        }
        for (log, disk) in world.logs.iter().zip(&world.disks) {
            let counts = log.counts();
            let left = (counts.messages, counts.live_bytes, counts.prepared, counts.decisions);
            assert_eq!(left, (0, 0, 0, 0), "seed {seed}");
            assert!(disk.segments().len() <= 2, "seed {seed}: {:?}", disk.segments());
        }
    }
}
