//! Transactions over several logs that die together, on a seed: whatever step of a commit the end comes at, a
//! transaction is there as a whole or not at all, in every log, and what was answered is there.
//! `LEPUS_SIM_SEEDS` sets how many seeds.
//!
//! The power goes, or the process is killed, at any moment, in a recovery as well.

use std::collections::{BTreeMap, BTreeSet};

use super::simulated_disk::SimulatedDisk;
use super::transaction_world::{Entry, Known, Log, Mistake, Part, World, options, read};
use super::*;

impl World {
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
                        // Another transaction may have settled it: that one's evidence says so.
                        false if entry.settled || entry.by.is_some() => {}
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
        let log = |(shard, recovered): (usize, Recovered)| {
            ShardLog::new(self.disks[shard].clone(), options(shard, self.epoch), recovered)
        };
        self.logs = found.into_iter().enumerate().map(log).collect();
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
