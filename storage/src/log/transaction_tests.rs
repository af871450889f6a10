//! Transactions of one log and of two, step by step.

use super::simulated_disk::SimulatedDisk;
use super::space::Relocation;
use super::*;

type Log = ShardLog<SimulatedDisk>;

const NAME: TxName = TxName(77);
const SEGMENT_BYTES: u64 = 64 * 1024;

fn options(shard: u32, epoch: u32) -> LogOptions {
    let (commit_bytes, commit_delay_max_ms) = (16 * 1024, 0);
    LogOptions { shard, epoch, segment_bytes: SEGMENT_BYTES, commit_bytes, sync: true, commit_delay_max_ms }
}

fn open(disk: &SimulatedDisk, shard: u32, epoch: u32) -> (Log, Vec<(Sequence, u64)>) {
    let recovered = recover(shard, &disk.segments(), disk).expect("the log can be read back");
    assert!(recovered.damage.is_empty(), "{:?}", recovered.damage);
    let rows = rows(&recovered, disk);
    (ShardLog::new(disk.clone(), options(shard, epoch), recovered), rows)
}

fn rows(recovered: &Recovered, disk: &SimulatedDisk) -> Vec<(Sequence, u64)> {
    let mut rows = Vec::new();
    recovered.each_live(disk, |row| rows.push((row.sequence, row.queue))).expect("the summaries are there");
    rows
}

fn after_power_loss(disk: &SimulatedDisk) -> Vec<(Sequence, u64)> {
    disk.lose_power();
    rows(&recover(0, &disk.segments(), disk).expect("the log can be read back"), disk)
}

fn poll_until(log: &mut Log, done: impl Fn(&Log) -> bool) {
    for _ in 0..100_000 {
        if done(log) {
            return;
        }
        log.poll(0).expect("nothing fails here");
    }
    panic!("it is never done: {:?}", log.counts());
}

fn append(log: &mut Log, queues: &[u64], bytes: usize) -> Sequence {
    log.append(1_000, None, true, queues.iter().copied(), &[&vec![7; bytes]])
}

fn wait_for(log: &mut Log, sequence: Sequence) {
    poll_until(log, |log| log.committed() >= sequence);
}

fn come_to_rest(log: &mut Log) {
    log.flush();
    poll_until(log, Log::is_idle);
}

fn message<'a>(queues: &'a [u64], parts: &'a [&'a [u8]]) -> TxMessage<'a> {
    TxMessage { published_ms: 1_000, ttl_ms: None, queues, parts }
}

/// Appends and settles until a message was appended again for its space.
fn churn(log: &mut Log, done: impl Fn(&Log) -> bool) {
    for _ in 0..10_000 {
        let filler = append(log, &[9], 3_000);
        wait_for(log, filler);
        log.settle(filler, 9);
        if done(log) {
            return;
        }
    }
    panic!("nothing comes of it: {:?}", log.counts());
}

#[test]
fn a_group_is_one_commit_with_its_settlements_however_large_it_is() {
    let disk = SimulatedDisk::new(1);
    let (mut log, _) = open(&disk, 0, 1);
    let acked = append(&mut log, &[1], 10);
    wait_for(&mut log, acked);
    let before = log.counts().commits;
    let body = vec![3; 30_000];
    let parts: [&[u8]; 1] = [&body];
    let messages = [message(&[1], &parts), message(&[1, 2], &parts), message(&[2], &parts)];
    let (names, last) = log.append_group(true, messages.iter().copied(), &[(acked, 1)]);
    assert_eq!((names.len(), names[2]), (3, last));
    assert_eq!(log.take_written_settlements().count(), 0, "it is not on disk yet");
    wait_for(&mut log, last);
    assert_eq!(log.counts().commits, before + 1);
    assert_eq!(log.take_written_settlements().collect::<Vec<_>>(), [(acked, 1)]);
    assert!(log.is_idle());
    let expected = [(names[0], 1), (names[1], 1), (names[1], 2), (names[2], 2)];
    assert_eq!(after_power_loss(&disk), expected);
}

#[test]
fn a_group_without_messages_can_be_waited_for() {
    let disk = SimulatedDisk::new(2);
    let (mut log, _) = open(&disk, 0, 1);
    let acked = append(&mut log, &[1], 10);
    wait_for(&mut log, acked);
    let (names, last) = log.append_group(true, [].into_iter(), &[(acked, 1)]);
    assert!(names.is_empty() && log.committed() < last);
    wait_for(&mut log, last);
    assert!(after_power_loss(&disk).is_empty());
}

#[test]
fn what_a_group_settles_is_written_if_the_group_is_in_a_later_commit() {
    let mut found = [false; 3];
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let (mut log, _) = open(&disk, 0, 1);
        let acked = append(&mut log, &[1], 100);
        // It does not fit in with the other one.
        let body = vec![3; 20_000];
        let parts: [&[u8]; 1] = [&body];
        let (names, _) = log.append_group(true, std::iter::once(message(&[2], &parts)), &[(acked, 1)]);
        let polls = fastrand::Rng::with_seed(seed).usize(..60);
        (0..polls).for_each(|_| log.poll(0).expect("nothing fails here"));
        let confirmed = log.committed() >= acked;
        let there = after_power_loss(&disk);
        assert!(
            there == [(acked, 1)] || there == [(names[0], 2)] || (there.is_empty() && !confirmed),
            "{there:?}"
        );
        found[if there.is_empty() { 0 } else { 1 + usize::from(there == [(names[0], 2)]) }] = true;
    }
    assert_eq!(found, [true; 3], "every state was met");
}

#[test]
fn what_is_prepared_counts_for_nothing_until_it_is_resolved() {
    for committed in [true, false] {
        let disk = SimulatedDisk::new(3);
        let (mut log, _) = open(&disk, 0, 1);
        let acked = append(&mut log, &[1], 10);
        let parts: [&[u8]; 1] = [b"prepared"];
        let (names, last) = log.prepare(NAME, true, std::iter::once(message(&[1, 2], &parts)), &[(acked, 1)]);
        wait_for(&mut log, last);
        assert_eq!(after_power_loss(&disk), [(acked, 1)]);
        let (mut log, _) = open(&disk, 0, 2);
        assert_eq!(log.counts().prepared, 1);
        log.resolve(NAME, committed);
        assert_eq!(log.take_resolved().count(), 0, "its resolution is not on disk yet");
        come_to_rest(&mut log);
        assert_eq!(log.take_resolved().collect::<Vec<_>>(), [NAME]);
        let settled: Vec<_> = log.take_written_settlements().collect();
        let there = after_power_loss(&disk);
        match committed {
            true => assert_eq!((there, settled), (vec![(names[0], 1), (names[0], 2)], vec![(acked, 1)])),
            false => assert_eq!((there, settled), (vec![(acked, 1)], vec![])),
        }
    }
}

#[test]
fn what_is_rolled_back_before_its_commit_begins_is_not_written() {
    let disk = SimulatedDisk::new(4);
    let (mut log, _) = open(&disk, 0, 1);
    let parts: [&[u8]; 1] = [b"prepared"];
    let (_, last) = log.prepare(NAME, true, std::iter::once(message(&[1, 2], &parts)), &[]);
    log.resolve(NAME, false);
    wait_for(&mut log, last);
    assert_eq!(log.take_resolved().collect::<Vec<_>>(), [NAME]);
    assert_eq!((log.counts().commits, log.counts().messages, log.counts().live_bytes), (0, 0, 0));
}

#[test]
fn a_message_that_a_transaction_settles_may_be_settled_before() {
    for moved in [false, true] {
        let disk = SimulatedDisk::new(5);
        let (mut log, _) = open(&disk, 0, 1);
        let (alone, shared) = (append(&mut log, &[1], 10), append(&mut log, &[1, 2], 10));
        let (_, last) = log.prepare(NAME, true, [].into_iter(), &[(alone, 1), (shared, 1)]);
        wait_for(&mut log, last);
        log.settle(alone, 1);
        log.settle(shared, 1);
        if moved {
            churn(&mut log, |log| log.counts().relocated >= 1);
        }
        log.resolve(NAME, true);
        come_to_rest(&mut log);
        assert_eq!(after_power_loss(&disk), [(shared, 2)]);
    }
}

#[test]
fn a_message_that_is_moved_behind_the_group_that_settles_it_stays_settled() {
    let disk = SimulatedDisk::new(6);
    let (mut log, _) = open(&disk, 0, 1);
    let acked = append(&mut log, &[1], 10);
    wait_for(&mut log, acked);
    let (_, last) = log.prepare(NAME, true, [].into_iter(), &[(acked, 1)]);
    wait_for(&mut log, last);
    // Now the group stands before the message that it settles, and is the first to go.
    let first = disk.segments()[0];
    churn(&mut log, |log| log.counts().relocated >= 1 && matches!(log.relocation, Relocation::Idle));
    log.resolve(NAME, true);
    churn(&mut log, |_| disk.segments()[0] > first + 20);
    come_to_rest(&mut log);
    assert!(after_power_loss(&disk).is_empty());
}

#[test]
fn an_undecided_transaction_keeps_no_space_but_its_own() {
    for committed in [true, false] {
        let disk = SimulatedDisk::new(7);
        let (mut log, _) = open(&disk, 0, 1);
        let acked = append(&mut log, &[1], 10);
        let parts: [&[u8]; 1] = [b"prepared"];
        let (names, last) = log.prepare(NAME, true, std::iter::once(message(&[1, 2], &parts)), &[(acked, 1)]);
        let decided = log.decide(TxName(78), true);
        wait_for(&mut log, last.max(decided));
        for _ in 0..3 {
            let first = *disk.segments().last().expect("there is one");
            churn(&mut log, |_| disk.segments()[0] > first);
            assert!(log.counts().file_bytes <= 8 * SEGMENT_BYTES, "{:?}", log.counts());
        }
        disk.lose_power();
        let (mut log, there) = open(&disk, 0, 2);
        assert!(there.contains(&(acked, 1)) && !there.iter().any(|&(sequence, _)| sequence == names[0]));
        assert_eq!((log.counts().prepared, log.counts().decisions), (1, 1));
        log.resolve(NAME, committed);
        log.forget_decision(TxName(78));
        churn(&mut log, |_| disk.segments()[0] > 100);
        come_to_rest(&mut log);
        let mut there = after_power_loss(&disk);
        there.retain(|&(_, queue)| queue != 9);
        let expected = if committed { vec![(names[0], 1), (names[0], 2)] } else { vec![(acked, 1)] };
        assert_eq!(there, expected);
    }
}

#[test]
fn a_decision_is_kept_until_it_is_forgotten_and_then_its_space_comes_back() {
    let disk = SimulatedDisk::new(8);
    let (mut log, _) = open(&disk, 0, 1);
    let names: Vec<TxName> = (0..1_000).map(|count| TxName::new(0, 1, count)).collect();
    let last = names.iter().map(|&tx| log.decide(tx, true)).last().expect("there are some");
    wait_for(&mut log, last);
    churn(&mut log, |_| disk.segments()[0] > 20);
    disk.lose_power();
    let recovered = recover(0, &disk.segments(), &disk).expect("the log can be read back");
    let mut found: Vec<TxName> = recovered.decisions().collect();
    found.sort_unstable();
    assert_eq!(found, names);
    let mut log = ShardLog::new(disk.clone(), options(0, 2), recovered);
    names[1..].iter().for_each(|&tx| log.forget_decision(tx));
    churn(&mut log, |_| disk.segments()[0] > 40);
    disk.lose_power();
    let mut recovered = recover(0, &disk.segments(), &disk).expect("the log can be read back");
    assert_eq!(recovered.decisions().collect::<Vec<_>>(), [names[0]]);
    recovered.forget_decisions();
    let mut log = ShardLog::new(disk.clone(), options(0, 3), recovered);
    churn(&mut log, |_| true);
    come_to_rest(&mut log);
    (0..1_000).for_each(|_| log.poll(0).expect("nothing fails here"));
    assert!(disk.segments().len() <= 2, "{:?}", disk.segments());
    disk.lose_power();
    let recovered = recover(0, &disk.segments(), &disk).expect("the log can be read back");
    assert_eq!(recovered.decisions().count(), 0);
}

#[test]
fn a_transaction_of_several_commits_is_resolved_as_one() {
    for committed in [true, false] {
        let disk = SimulatedDisk::new(9);
        let (mut log, _) = open(&disk, 0, 1);
        let body = vec![3; 30_000];
        let parts: [&[u8]; 1] = [&body];
        let mut names = Vec::new();
        for _ in 0..3 {
            names.extend(log.prepare(NAME, true, std::iter::once(message(&[1], &parts)), &[]).0);
        }
        wait_for(&mut log, names[2]);
        assert!(log.counts().commits >= 3);
        assert!(after_power_loss(&disk).is_empty());
        let (mut log, _) = open(&disk, 0, 2);
        log.resolve(NAME, committed);
        come_to_rest(&mut log);
        let there = after_power_loss(&disk);
        assert_eq!(there.len(), if committed { 3 } else { 0 });
    }
}

#[test]
fn what_a_group_settles_is_kept_until_the_group_is_on_disk() {
    for seed in 0..30 {
        let disk = SimulatedDisk::new(seed);
        let (mut log, _) = open(&disk, 0, 1);
        let acked = append(&mut log, &[1], 10);
        churn(&mut log, |log| log.segments.len() > 2);
        come_to_rest(&mut log);
        let content: &[&[u8]] = &[b"new"];
        let (names, _) = log.append_group(true, [message(&[2], content)].into_iter(), &[(acked, 1)]);
        // The commit has begun; nothing but the message keeps its segment.
        log.poll(0).expect("nothing fails here");
        let left = after_power_loss(&disk);
        assert!(left == [(acked, 1)] || left == [(names[0], 2)], "seed {seed}: {left:?}");
    }
}
