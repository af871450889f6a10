//! A log that lives, dies and is read back, on a seed: what was confirmed is there, what was settled on
//! disk is not, and nothing is made up. `LEPUS_SIM_SEEDS` sets how many seeds.

use std::collections::{BTreeMap, BTreeSet};

use super::simulated_disk::{Faults, SimulatedDisk};
use super::space::Relocation;
use super::*;

/// What the outside knows of a message.
struct Known {
    queues: Vec<u64>,
    content: Vec<u8>,
    /// Queues that have settled it, and whether that is on disk.
    settled: BTreeMap<u64, bool>,
    confirmed: bool,
    /// It ends with the process.
    spilled: bool,
    /// It was to be on stable storage before it was confirmed.
    sync: bool,
}

struct Life {
    disk: SimulatedDisk,
    log: ShardLog<SimulatedDisk>,
    epoch: u32,
    now_ms: u64,
    known: BTreeMap<Sequence, Known>,
    rng: fastrand::Rng,
    sync: bool,
    /// Messages that were asked for and have not come.
    loads: BTreeSet<Sequence>,
    loaded: u64,
}

fn options(epoch: u32, sync: bool) -> LogOptions {
    let (segment_bytes, commit_bytes, commit_delay_max_ms) = (64 * 1024, 16 * 1024, 0);
    LogOptions { shard: 7, epoch, segment_bytes, commit_bytes, sync, commit_delay_max_ms }
}

/// As if nothing had been written beside the segments.
struct AllOfIt<'a>(&'a SimulatedDisk);

impl SegmentFiles for AllOfIt<'_> {
    fn segment(&self, segment: u64) -> std::io::Result<Vec<u8>> {
        self.0.segment(segment)
    }

    fn summary(&self, _: u64) -> Option<Vec<u8>> {
        None
    }
}

fn read_all(disk: &SimulatedDisk) -> Recovered {
    recover(7, &disk.segments(), &AllOfIt(disk)).expect("the log can be read back")
}

fn read_back(disk: &SimulatedDisk) -> Recovered {
    recover(7, &disk.segments(), disk).expect("the log can be read back")
}

/// What is live, in order.
fn messages(recovered: &Recovered, files: &impl SegmentFiles) -> Vec<LiveMessage> {
    let mut messages = Vec::new();
    recovered.each_live(files, |message| messages.push(*message)).expect("the summaries are still there");
    messages
}

impl Life {
    fn new(seed: u64, faults: Faults, sync: bool) -> Life {
        let disk = SimulatedDisk::new(seed);
        disk.0.borrow_mut().faults = faults;
        let log = ShardLog::new(disk.clone(), options(1, sync), Recovered::default());
        let rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        Life {
            disk,
            log,
            epoch: 1,
            now_ms: 0,
            known: BTreeMap::new(),
            rng,
            sync,
            loads: BTreeSet::new(),
            loaded: 0,
        }
    }

    fn append(&mut self) {
        let queues: Vec<u64> =
            (0..[1, 1, 1, 2, 3][self.rng.usize(..5)]).map(|n| n * 10 + self.rng.u64(1..10)).collect();
        let most = [10, 300, 5_000, 40_000, 100_000][self.rng.usize(..5).min(self.rng.usize(..5))];
        let (len, byte) = (self.rng.usize(..most), self.rng.u8(..));
        let content: Vec<u8> = (0..len).map(|index| byte.wrapping_add((index % 251) as u8)).collect();
        let (front, back) = content.split_at(content.len() / 3);
        let parts = [front, back];
        let spilled = self.rng.u8(..10) == 0;
        let sync = self.sync && self.rng.u8(..4) > 0;
        let (sequence, queues) = match spilled {
            true => (self.log.spill(&parts), vec![NOBODY]),
            false => (self.log.append(1_000, None, sync, queues.iter().copied(), &parts), queues),
        };
        let known = Known { queues, content, settled: BTreeMap::new(), confirmed: false, spilled, sync };
        assert!(self.known.insert(sequence, known).is_none(), "a sequence is used once");
    }

    /// Reads a message that is live and durable.
    fn load(&mut self) {
        let committed = self.log.committed();
        let durable: Vec<Sequence> = self
            .known
            .range(..=committed)
            .filter(|(_, known)| known.settled.len() < known.queues.len())
            .map(|(&sequence, _)| sequence)
            .collect();
        if durable.is_empty() {
            return;
        }
        let sequence = durable[self.rng.usize(..durable.len())];
        self.loads.insert(sequence);
        self.try_load(sequence);
    }

    fn try_load(&mut self, sequence: Sequence) {
        let known = &self.known[&sequence];
        if known.settled.len() == known.queues.len() {
            self.loads.remove(&sequence);
            return;
        }
        match self.log.load(sequence, sequence) {
            Loaded::Content(content) => {
                assert!(*known.content == *content, "{sequence:x} comes back as it was");
                self.loads.remove(&sequence);
                self.loaded += 1;
            }
            Loaded::Later => {}
            Loaded::Lost => panic!("{sequence:x} is on disk and cannot be loaded"),
        }
    }

    /// Mostly the oldest are settled, but some stay for long.
    fn settle(&mut self) {
        let open: Vec<(Sequence, u64)> = self
            .known
            .iter()
            .flat_map(|(&sequence, known)| known.queues.iter().map(move |&queue| (sequence, queue, known)))
            .filter(|(_, queue, known)| !known.settled.contains_key(queue))
            .map(|(sequence, queue, _)| (sequence, queue))
            .take(40)
            .collect();
        if open.is_empty() {
            return;
        }
        let (sequence, queue) = open[self.rng.usize(..open.len())];
        let known = self.known.get_mut(&sequence).expect("it was just found");
        known.settled.insert(queue, false);
        self.log.settle(sequence, queue);
    }

    fn poll(&mut self) -> Result<(), LogFailed> {
        self.now_ms += self.rng.u64(..30);
        self.log.poll(self.now_ms)?;
        let committed = self.log.committed();
        self.known.range_mut(..=committed).for_each(|(_, known)| known.confirmed = true);
        for (sequence, queue) in self.log.take_written_settlements() {
            if let Some(known) = self.known.get_mut(&sequence) {
                known.settled.insert(queue, true);
            }
        }
        for sequence in self.log.take_arrived() {
            if self.loads.contains(&sequence) {
                self.try_load(sequence);
            }
        }
        Ok(())
    }

    fn steps(&mut self, count: usize) -> Result<(), LogFailed> {
        // Now and then more is settled than appended, and the other way round.
        let appends = self.rng.u8(20..70);
        for _ in 0..count {
            match self.rng.u8(..100) {
                step if step < appends => self.append(),
                step if step < 75 => self.settle(),
                step if step < 80 => self.load(),
                _ => self.poll()?,
            }
        }
        Ok(())
    }

    /// Reads the log back and says what is wrong with it.
    fn check(&self, recovered: &Recovered) -> Result<(), String> {
        let mut found: BTreeSet<(Sequence, u64)> = BTreeSet::new();
        for message in &messages(recovered, &self.disk) {
            let (sequence, queue) = (message.sequence, message.queue);
            let known = self.known.get(&sequence).ok_or(format!("{sequence:x} was never appended"))?;
            let segment = self.disk.segment(message.segment).map_err(|error| error.to_string())?;
            if find_content(&segment, message) != Some(&known.content) {
                return Err(format!("{sequence:x} has other content"));
            }
            if known.spilled || !known.queues.contains(&queue) {
                return Err(format!("{sequence:x} was never in {queue}"));
            }
            if known.settled.get(&queue) == Some(&true) {
                return Err(format!("{sequence:x} came back to {queue}, and its settlement was on disk"));
            }
            found.insert((sequence, queue));
        }
        let kept = |known: &Known| known.confirmed && !known.spilled && known.sync == self.sync;
        for (&sequence, known) in self.known.iter().filter(|(_, known)| kept(known)) {
            for &queue in known.queues.iter().filter(|queue| !known.settled.contains_key(queue)) {
                if !found.contains(&(sequence, queue)) {
                    return Err(format!("{sequence:x} was confirmed, and is not in {queue}"));
                }
            }
        }
        match recovered.damage.first() {
            None => Ok(()),
            Some(damage) => Err(format!("damage without a cause: {damage}")),
        }
    }

    /// Begins again with what was read back.
    fn begin_again(&mut self, recovered: Recovered) {
        self.epoch += 1;
        let live = messages(&recovered, &self.disk);
        self.log = ShardLog::new(self.disk.clone(), options(self.epoch, self.sync), recovered);
        self.loads.clear();
        let mut former = std::mem::take(&mut self.known);
        for rows in live.chunk_by(|one, other| one.sequence == other.sequence) {
            let sequence = rows[0].sequence;
            let mut known = former.remove(&sequence).expect("checked before");
            known.queues = rows.iter().map(|row| row.queue).collect();
            // What came through one loss of power is on stable storage.
            (known.confirmed, known.sync) = (true, self.sync);
            known.settled.clear();
            self.known.insert(sequence, known);
        }
    }

    /// Settles everything and lets the log come to rest.
    fn come_to_rest(&mut self) {
        for _ in 0..100_000 {
            self.settle();
            self.poll().expect("nothing fails here");
            let all_settled = self.known.values().all(|known| known.queues.len() == known.settled.len());
            if all_settled && self.log.is_idle() && self.known.values().all(|known| known.confirmed) {
                return;
            }
        }
        panic!("the log does not come to rest: {:?}", self.log.counts());
    }
}

fn seeds() -> u64 {
    std::env::var("LEPUS_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(500)
}

/// Several lives on one disk; gives the first thing that is wrong.
fn lives(seed: u64, faults: Faults, sync: bool) -> Result<Life, String> {
    let mut life = Life::new(seed, faults, sync);
    for _ in 0..4 {
        let steps = life.rng.usize(1..400);
        let alive = life.steps(steps);
        if alive.is_err() && faults.fails_one_in.is_none() {
            return Err("a write failed by itself".to_owned());
        }
        match sync {
            true => life.disk.lose_power(),
            false => life.disk.kill(),
        }
        let recovered = read_back(&life.disk);
        life.check(&recovered)?;
        let all = read_all(&life.disk);
        if messages(&recovered, &life.disk) != messages(&all, &AllOfIt(&life.disk)) {
            return Err("the summaries say something else than the segments".to_owned());
        }
        life.begin_again(recovered);
    }
    Ok(life)
}

#[test]
fn nothing_that_was_confirmed_is_lost_with_the_power() {
    let mut loaded = 0;
    for seed in 0..seeds() {
        match lives(seed, Faults::default(), true) {
            Ok(life) => loaded += life.loaded,
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    assert!(loaded > seeds(), "messages are loaded on the way: {loaded}");
}

#[test]
fn nothing_that_was_confirmed_is_lost_with_the_process() {
    for seed in 0..seeds() / 2 {
        if let Err(wrong) = lives(seed, Faults::default(), false) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn a_confirm_before_the_write_is_done_would_be_noticed() {
    let faults = Faults { lies: true, ..Faults::default() };
    let caught = (0..50).find(|&seed| lives(seed, faults, true).is_err());
    let seed = caught.expect("a disk that lies goes unnoticed: the check is worth nothing");
    println!("a disk that lies is caught with seed {seed}");
}

#[test]
fn a_failed_write_ends_the_log_and_nothing_before_it_is_lost() {
    for seed in 0..seeds() / 2 {
        let faults = Faults { fails_one_in: Some(20), ..Faults::default() };
        let mut life = Life::new(seed, faults, true);
        let failed = (0..50).find_map(|_| life.steps(100).err());
        let Some(failed) = failed else { continue };
        assert!(failed.to_string().contains("the log of shard 7 cannot be written"), "{failed}");
        let committed = life.log.committed();
        life.append();
        assert!(life.poll().is_err(), "it stays failed");
        assert_eq!(life.log.committed(), committed);
        life.disk.lose_power();
        if let Err(wrong) = life.check(&read_back(&life.disk)) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn a_full_disk_makes_the_log_wait_and_loses_nothing() {
    for seed in 0..50 {
        let faults = Faults { capacity: Some(256 * 1024), ..Faults::default() };
        let mut life = Life::new(seed, faults, true);
        let mut full = false;
        for _ in 0..2_000 {
            life.append();
            life.poll().expect("a full disk is no failure");
            full |= life.log.out_of_space().is_some();
        }
        assert!(full, "seed {seed}: the disk was meant to be full");
        assert!(
            life.known.values().any(|known| !known.confirmed),
            "seed {seed}: what does not fit is not confirmed"
        );
        life.disk.lose_power();
        let recovered = read_back(&life.disk);
        life.check(&recovered).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        life.disk.0.borrow_mut().faults.capacity = None;
        life.begin_again(recovered);
        life.come_to_rest();
        assert!(life.log.out_of_space().is_none());
    }
}

#[test]
fn space_comes_back() {
    for seed in 0..30 {
        let mut life = Life::new(seed, Faults::default(), true);
        for _ in 0..20 {
            life.steps(300).expect("nothing fails here");
        }
        life.come_to_rest();
        for _ in 0..200 {
            life.poll().expect("nothing fails here");
        }
        let counts = life.log.counts();
        assert_eq!((counts.messages, counts.live_bytes), (0, 0));
        assert!(life.disk.segments().len() <= 2, "seed {seed}: {:?}", life.disk.segments());
        assert_eq!(read_back(&life.disk).live(), 0);
    }
}

#[test]
fn a_message_that_stays_for_long_does_not_keep_the_segments_behind_it() {
    let mut life = Life::new(1, Faults::default(), true);
    life.append();
    let (&first, _) = life.known.first_key_value().expect("it was just appended");
    let mut most = 0;
    for round in 0..20_000 {
        life.append();
        let (&sequence, known) = life.known.last_key_value().expect("it was just appended");
        let queues = known.queues.clone();
        // Most reach the disk before they are settled.
        while round % 8 == 0 && life.log.committed() < sequence {
            life.poll().expect("nothing fails here");
        }
        for queue in queues {
            life.log.settle(sequence, queue);
        }
        life.known.remove(&sequence);
        life.poll().expect("nothing fails here");
        most = most.max(life.log.counts().file_bytes);
    }
    assert!(life.log.counts().relocated > 0);
    assert!(most <= 12 * 64 * 1024, "{most} bytes of segments for one message");
    life.disk.lose_power();
    let recovered = read_back(&life.disk);
    assert!(
        life.known[&first].spilled
            || messages(&recovered, &life.disk).iter().any(|message| message.sequence == first)
    );
}

#[test]
fn a_message_that_is_settled_at_once_is_not_written() {
    let mut life = Life::new(3, Faults::default(), true);
    let mut last = 0;
    for _ in 0..1_000 {
        last = life.log.append(0, None, true, [1].into_iter(), &[b"gone"]);
        life.log.settle(last, 1);
    }
    life.log.poll(1).expect("nothing fails here");
    assert_eq!(life.log.committed(), last, "it counts as confirmed");
    assert_eq!((life.log.counts().elided, life.log.counts().commits), (1_000, 0));
    assert!(life.log.is_idle());
}

#[test]
fn a_commit_waits_for_more_as_long_as_it_may_and_no_longer() {
    let disk = SimulatedDisk::new(8);
    let options = LogOptions { commit_delay_max_ms: 5, ..options(1, true) };
    let mut log = ShardLog::new(disk, options, Recovered::default());
    let poll = |log: &mut ShardLog<SimulatedDisk>, now_ms| {
        (0..1_000).for_each(|_| log.poll(now_ms).expect("nothing fails here"));
        log.counts().commits
    };
    assert_eq!(poll(&mut log, 10), 0);
    let append = |log: &mut ShardLog<SimulatedDisk>, bytes: usize| {
        log.append(0, None, true, [1].into_iter(), &[&vec![7; bytes]])
    };
    append(&mut log, 10);
    assert_eq!((poll(&mut log, 14), log.commit_due_ms()), (0, Some(15)));
    let last = append(&mut log, 10);
    assert_eq!((poll(&mut log, 15), log.commit_due_ms(), log.committed()), (1, None, last));
    // A full one does not wait.
    append(&mut log, 10_000);
    append(&mut log, 10_000);
    assert_eq!((poll(&mut log, 16), log.commit_due_ms()), (2, Some(20)));
    log.flush();
    assert_eq!(poll(&mut log, 16), 3, "nor does the last one");
    assert!(log.is_idle());
}

#[test]
fn damage_in_the_middle_is_reported_with_its_place_and_the_rest_is_kept() {
    let mut life = Life::new(5, Faults::default(), true);
    for _ in 0..40 {
        life.append();
        let (&sequence, _) = life.known.last_key_value().expect("it was just appended");
        while life.log.committed() < sequence {
            life.poll().expect("nothing fails here");
        }
    }
    let disk = life.disk.clone();
    let names = |recovered: &Recovered| -> BTreeSet<Sequence> {
        messages(recovered, &disk).iter().map(|row| row.sequence).collect()
    };
    let durable = life.known.values().filter(|known| !known.spilled).count();
    let first = life.known.values().next().expect("some were appended");
    assert!(!first.spilled, "the seed begins with a durable one");
    assert_eq!(names(&read_back(&life.disk)).len(), durable);
    let segment = life.disk.segments()[0];
    life.disk.change(segment, |file| file[4096 + 100] ^= 1);
    let recovered = read_all(&life.disk);
    assert_eq!(names(&recovered).len(), durable - 1);
    let [damage] = recovered.damage.as_slice() else { panic!("{:?}", recovered.damage) };
    assert_eq!(damage.segment, segment);
    // Nothing but the first block lost is nothing lost.
    life.disk.change(segment, |file| file[..4096].fill(0));
    assert_eq!(read_all(&life.disk).damage, recovered.damage);
    // A start that trusts the summary notices it when the message is to be loaded, and loses no other.
    life.disk.lose_power();
    let recovered = read_back(&life.disk);
    let live = names(&recovered);
    let mut log = ShardLog::new(life.disk.clone(), options(2, true), recovered);
    let mut lost = 0;
    for sequence in live {
        loop {
            match log.load(sequence, sequence) {
                Loaded::Content(content) => break assert!(*life.known[&sequence].content == *content),
                Loaded::Lost => break lost += 1,
                Loaded::Later => log.poll(0).expect("nothing fails here"),
            }
        }
    }
    assert_eq!(lost, 1);
}

#[test]
fn a_log_of_a_later_version_or_of_another_shard_is_refused() {
    let mut life = Life::new(6, Faults::default(), true);
    life.append();
    while life.log.committed() < *life.known.first_key_value().expect("one was appended").0 {
        life.poll().expect("nothing fails here");
    }
    let read = |shard| recover(shard, &life.disk.segments(), &life.disk);
    assert!(matches!(read(8), Err(RecoveryError::OtherShard { found: 7, expected: 8, .. })));
    let segment = life.disk.segments()[0];
    life.disk.change(segment, |file| {
        file[8] = 9;
        let crc = crc32c::crc32c(&file[..28]);
        file[28..32].copy_from_slice(&crc.to_le_bytes());
    });
    let error = read(7).expect_err("a later format");
    assert!(error.to_string().contains("format 9"), "{error}");
}

#[test]
fn a_message_that_is_moved_while_one_of_its_queues_settles_it_stays_in_the_other() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let mut log = ShardLog::new(disk.clone(), options(1, true), Recovered::default());
        let shared = log.append(1_000, None, true, [1, 2].into_iter(), &[b"shared"]);
        let (mut last, mut settled) = (0, false);
        while log.counts().relocated == 0 {
            if last != 0 && log.committed() >= last {
                log.settle(last, 1);
                last = 0;
            } else if last == 0 {
                last = log.append(1_000, None, true, [1].into_iter(), &[&[7; 3_000]]);
            }
            log.poll(0).expect("nothing fails here");
            // The settlement and the copy go out in the same commit, when the one under way is done.
            if matches!(log.relocation, Relocation::Reading(_)) && log.is_writing() && !settled {
                log.settle(shared, 1);
                settled = true;
            }
        }
        log.flush();
        while !log.is_idle() {
            log.poll(0).expect("nothing fails here");
        }
        disk.lose_power();
        let there = messages(&read_back(&disk), &disk);
        let queues: Vec<_> = there.iter().filter(|row| row.sequence == shared).map(|row| row.queue).collect();
        assert!(settled, "seed {seed}");
        assert_eq!(queues, [2], "seed {seed}");
    }
}
