use super::super::simulated_disk::SimulatedDisk;
use super::super::{LogOptions, Recovered};
use super::*;

/// A log with so many small messages, all of them on disk and in one read.
fn written(messages: u64) -> (ShardLog<SimulatedDisk>, Vec<Sequence>) {
    let (segment_bytes, commit_bytes, commit_delay_max_ms) = (64 * 1024, 16 * 1024, 0);
    let options =
        LogOptions { shard: 0, epoch: 1, segment_bytes, commit_bytes, sync: true, commit_delay_max_ms };
    let mut log = ShardLog::new(SimulatedDisk::new(1), options, Recovered::default());
    let append = |number: u64| log.append(1_000, None, true, [1].into_iter(), &[&number.to_le_bytes()[..]]);
    let sequences: Vec<Sequence> = (0..messages).map(append).collect();
    log.flush();
    while log.committed() < *sequences.last().expect("there are some") {
        log.poll(0).expect("the disk has no faults");
    }
    (log, sequences)
}

/// Who has been named when the disk has nothing more to do.
fn arrived(log: &mut ShardLog<SimulatedDisk>) -> Vec<u64> {
    let mut named = Vec::new();
    for _ in 0..1_000 {
        log.poll(0).expect("the disk has no faults");
        named.extend(log.take_arrived());
    }
    named
}

#[test]
fn who_asks_for_several_messages_of_a_read_is_named_once_and_finds_all_of_them() {
    let (mut log, sequences) = written(20);
    for waiter in [7, 8, 7] {
        for &sequence in &sequences {
            assert_eq!(log.load(sequence, waiter), Loaded::Later);
        }
    }
    assert_eq!(arrived(&mut log), [7, 8]);
    for (&sequence, number) in sequences.iter().zip(0u64..) {
        assert_eq!(log.load(sequence, 7), Loaded::Content(&number.to_le_bytes()));
    }
    assert_eq!(arrived(&mut log), Vec::<u64>::new());
}
