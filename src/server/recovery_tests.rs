//! Transactions that were under way, in logs on a real file system.

use lepus_storage::log::{TxMessage, TxName};

use super::*;
use crate::test_dir::TestDir;

const SETTINGS: LogSettings =
    LogSettings { sync: true, segment_bytes: 256 * 1024, free_limit_bytes: 0, commit_delay_max_ms: 0 };

type Log = ShardLog<UringDisk>;

fn open(data_dir: &Path, shard: usize, epoch: u32) -> Log {
    let ReadLog { directory, recovered, .. } = read_log(shard, shard_directory(data_dir, shard)).unwrap();
    let disk = UringDisk::open(&directory, UringOptions::default()).unwrap();
    ShardLog::new(disk, SETTINGS.options(shard as u32, epoch), recovered)
}

fn wait_for(log: &mut Log, sequence: u64) {
    while log.committed() < sequence {
        log.poll(0).unwrap();
        thread::yield_now();
    }
}

fn prepare(log: &mut Log, tx: TxName, body: &[u8], settlements: &[(u64, u64)]) {
    let parts = [body];
    let message = TxMessage { published_ms: 1, ttl_ms: None, queues: &[1], parts: &parts };
    let (_, last) = log.prepare(tx, true, std::iter::once(message), settlements);
    wait_for(log, last);
}

fn contents(seeds: &[LogSeed]) -> Vec<Vec<Vec<u8>>> {
    let contents_of = |seed: &LogSeed| {
        let files = DirectoryFiles { directory: &seed.directory, summaries: true };
        let mut contents = Vec::new();
        let each = |row: &LiveMessage| {
            let bytes = files.segment(row.segment).unwrap();
            contents.push(find_content(&bytes, row).unwrap().to_vec());
        };
        seed.recovered.each_live(&files, each).unwrap();
        contents
    };
    seeds.iter().map(contents_of).collect()
}

/// Three logs, and two transactions over the first two, of which the third has decided one.
fn under_way(data_dir: &Path) -> (TxName, TxName) {
    let (decided, other) = (TxName::new(2, 1, 0), TxName::new(2, 1, 1));
    let mut coordinator = open(data_dir, 2, 1);
    for shard in 0..2 {
        let mut log = open(data_dir, shard, 1);
        let settled = log.append(1, None, true, [1].into_iter(), &[b"settled"]);
        let kept = log.append(1, None, true, [1].into_iter(), &[b"kept"]);
        wait_for(&mut log, kept);
        prepare(&mut log, decided, b"committed", &[(settled, 1)]);
        prepare(&mut log, other, b"rolled back", &[(kept, 1)]);
    }
    let decision = coordinator.decide(decided, true);
    wait_for(&mut coordinator, decision);
    (decided, other)
}

#[test]
fn a_transaction_that_was_under_way_ends_as_its_coordinator_decided_also_when_that_shard_is_no_more() {
    for shards in [2, 3] {
        let dir = TestDir::new();
        under_way(dir.path());
        let queues = FxHashMap::default();
        for epoch in 2..4 {
            let seeds = recover_logs(dir.path(), shards, epoch, &SETTINGS, &queues).unwrap();
            let contents = contents(&seeds);
            let expected = [&b"kept"[..], b"committed"];
            assert_eq!(contents[..2], [expected, expected], "{shards} shards, start {epoch}");
            assert!(seeds.iter().all(|seed| seed.recovered.undecided().count() == 0));
        }
        assert_eq!(shard_directory(dir.path(), 2).exists(), shards == 3);
    }
}

#[test]
fn a_start_that_broke_off_after_one_resolution_is_gone_on_with() {
    let dir = TestDir::new();
    let (decided, other) = under_way(dir.path());
    let mut first = open(dir.path(), 0, 2);
    first.resolve(decided, true);
    first.resolve(other, false);
    first.flush();
    while !first.is_idle() {
        first.poll(0).unwrap();
        thread::yield_now();
    }
    drop(first);
    let seeds = recover_logs(dir.path(), 3, 3, &SETTINGS, &FxHashMap::default()).unwrap();
    let expected = [&b"kept"[..], b"committed"];
    assert_eq!(contents(&seeds)[..2], [expected, expected]);
}

#[test]
fn undecided_transactions_are_named_by_check_store() {
    let dir = TestDir::new();
    under_way(dir.path());
    let found = crate::check_store::check_store(dir.path()).unwrap();
    let line = "2 transactions are undecided: the next start commits 1 of them and rolls 1 back\n";
    assert!(found.text.contains(line), "{}", found.text);
    recover_logs(dir.path(), 3, 2, &SETTINGS, &FxHashMap::default()).unwrap();
    let found = crate::check_store::check_store(dir.path()).unwrap();
    assert!(!found.text.contains("undecided"), "{}", found.text);
}
