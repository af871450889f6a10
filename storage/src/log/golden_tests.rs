//! Files of each version of the formats, kept as they were written once: what is read must stay readable, and
//! what is written must not change without a new version.

use super::format::{
    BLOCK_BYTES, COMMIT_HEADER_BYTES, CommitHeader, MessageHead, NOBODY, SegmentHeader, TxStep, padded,
    put_message, put_prepared, put_settled, put_step,
};
use super::*;
use crate::test_dir::TestDir;

const INDEX_BYTES: usize = 1024 * 1024;

const SEQUENCE: Sequence = (3 << 40) + 7;
const TX: u64 = 2 << 54 | 3 << 30;

/// A file as it was written once. `LEPUS_BLESS=1` writes those of a new version; one that is there is never
/// touched.
fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/log/golden").join(name);
    if !path.exists() && std::env::var_os("LEPUS_BLESS").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(&path).unwrap()
}

/// Two commits: two messages, then that one of them is settled in one of its queues. Since version 2, also one
/// that one of its queues had settled before, and one that was only moved out of memory. Since version 3, three
/// groups of transactions, and behind them that one is committed and one rolled back, that another one is decided,
/// and that a decision is forgotten.
fn segment() -> Vec<u8> {
    let mut segment = Vec::new();
    SegmentHeader { shard: 2, segment: 5, epoch: 3 }.write(&mut segment);
    let mut messages = Vec::new();
    let head =
        MessageHead { sequence: SEQUENCE, published_ms: 1_700_000_000_000, ttl_ms: None, spilled: false };
    put_message(&mut messages, &head, [11, 12].into_iter(), &[b"\x00\x01", b"content"]);
    let head = MessageHead {
        sequence: SEQUENCE + 1,
        published_ms: 1_700_000_000_001,
        ttl_ms: Some(60_000),
        spilled: false,
    };
    put_message(&mut messages, &head, [11].into_iter(), &[b""]);
    let head =
        MessageHead { sequence: SEQUENCE + 2, published_ms: 1_700_000_000_001, ttl_ms: None, spilled: false };
    put_message(&mut messages, &head, [NOBODY, 12].into_iter(), &[b"left"]);
    let head = MessageHead { sequence: SEQUENCE + 3, published_ms: 0, ttl_ms: None, spilled: true };
    put_message(&mut messages, &head, [].into_iter(), &[b"spilled"]);
    let mut settled = Vec::new();
    put_settled(&mut settled, &[(SEQUENCE, 12)]);
    let (mut groups, mut steps) = (Vec::new(), Vec::new());
    for (tx, settlement) in [(TX, (SEQUENCE + 1, 11)), (TX + 1, (SEQUENCE, 11)), (TX + 2, (SEQUENCE, 11))] {
        let sequence = SEQUENCE + 4 + tx - TX;
        let head = MessageHead { sequence, published_ms: 1_700_000_000_002, ttl_ms: None, spilled: false };
        put_prepared(&mut groups, TxName(tx), sequence, 2);
        put_message(&mut groups, &head, [11, 13].into_iter(), &[b"prepared"]);
        put_settled(&mut groups, &[settlement]);
    }
    put_step(&mut steps, TxStep::Decided, [TxName(TX + 7), TxName(TX + 8)].into_iter());
    put_step(&mut steps, TxStep::Committed, [TxName(TX)].into_iter());
    put_step(&mut steps, TxStep::RolledBack, [TxName(TX + 1)].into_iter());
    put_step(&mut steps, TxStep::Forgotten, [TxName(TX + 7)].into_iter());
    let commits = [(41, messages, 4), (42, settled, 1), (43, groups, 9), (44, steps, 4)];
    for (number, payload, records) in commits {
        let mut commit = vec![0; COMMIT_HEADER_BYTES];
        commit.extend_from_slice(&payload);
        let header = CommitHeader {
            segment: 5,
            first_commit: 41,
            commit: number,
            frontier: number - 1,
            epoch: 3,
            payload_bytes: payload.len() as u32,
            records,
        };
        header.seal(&mut commit);
        commit.resize(padded(commit.len()), 0);
        segment.extend_from_slice(&commit);
    }
    segment
}

fn index(directory: &std::path::Path) -> UnackedIndex {
    let mut index = UnackedIndex::open(directory, 2).unwrap();
    index.delivered(SEQUENCE, 11);
    index.delivered(SEQUENCE, 11);
    index.settled(SEQUENCE + 1, 11);
    // Since version 2.
    index.delivered(SEQUENCE, 12);
    index.returned(SEQUENCE, 12, true);
    index
}

/// What an index has that is opened with this as its first block.
fn read_index(first_block: Vec<u8>) -> Vec<IndexEntry> {
    let mut file = first_block;
    file.resize(INDEX_BYTES, 0);
    let dir = TestDir::new();
    std::fs::write(dir.path().join("unacked.index"), file).unwrap();
    let mut entries: Vec<IndexEntry> = UnackedIndex::open(dir.path(), 2).unwrap().entries().collect();
    entries.sort_by_key(|entry| (entry.sequence, entry.queue));
    assert_eq!(std::fs::read(dir.path().join("unacked.index")).unwrap()[8], 2, "it becomes one of today's");
    entries
}

const HELD: IndexEntry =
    IndexEntry { sequence: SEQUENCE, queue: 11, deliveries: 2, failures: 1, standing: Standing::Back };
const DONE: IndexEntry =
    IndexEntry { sequence: SEQUENCE + 1, queue: 11, deliveries: 0, failures: 0, standing: Standing::Settled };

struct OneFile(Vec<u8>);

impl SegmentFiles for OneFile {
    fn segment(&self, _: u64) -> std::io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }

    fn summary(&self, _: u64) -> Option<Vec<u8>> {
        None
    }
}

fn messages(recovered: &Recovered, file: &[u8]) -> Vec<LiveMessage> {
    let mut messages = Vec::new();
    recovered.each_live(&OneFile(file.to_vec()), |message| messages.push(*message)).unwrap();
    messages
}

#[test]
fn version_1_of_a_segment_is_read() {
    let frozen = golden("segment-v1.log", &[]);
    let recovered = recover(2, &[5], &OneFile(frozen.clone())).unwrap();
    assert!(recovered.damage.is_empty() && recovered.unused.is_empty());
    assert_eq!((recovered.last_commit, recovered.last_sequence), (42, SEQUENCE + 1));
    let live = messages(&recovered, &frozen);
    let [first, second] = live.as_slice() else { panic!("{live:?}") };
    assert_eq!(first.queue, 11);
    assert_eq!(find_content(&frozen, first), Some(&b"\x00\x01content"[..]));
    assert_eq!(first.published_ms, 1_700_000_000_000);
    assert_eq!((second.sequence, second.ttl_ms.map(|ttl| ttl.get())), (SEQUENCE + 1, Some(60_000)));
}

#[test]
fn version_2_of_a_segment_is_read() {
    let frozen = golden("segment-v2.log", &[]);
    let recovered = recover(2, &[5], &OneFile(frozen.clone())).unwrap();
    assert!(recovered.damage.is_empty() && recovered.unused.is_empty());
    assert_eq!((recovered.last_commit, recovered.last_sequence), (42, SEQUENCE + 3));
    let live = messages(&recovered, &frozen);
    let names: Vec<_> = live.iter().map(|row| (row.sequence - SEQUENCE, row.queue)).collect();
    assert_eq!(names, [(0, 11), (1, 11), (2, 12)]);
    assert_eq!(find_content(&frozen, &live[2]), Some(&b"left"[..]));
}

#[test]
fn version_3_of_a_segment_is_read_and_written_as_ever() {
    let frozen = golden("segment-v3.log", &segment());
    assert_eq!((segment() == frozen, frozen.len()), (true, 5 * BLOCK_BYTES), "frozen: count the version up");
    let recovered = recover(2, &[5], &OneFile(frozen.clone())).unwrap();
    assert!(recovered.damage.is_empty() && recovered.unused.is_empty());
    assert_eq!((recovered.last_commit, recovered.last_sequence), (44, SEQUENCE + 6));
    let live = messages(&recovered, &frozen);
    let names: Vec<_> = live.iter().map(|row| (row.sequence - SEQUENCE, row.queue)).collect();
    assert_eq!(names, [(0, 11), (2, 12), (4, 11), (4, 13)]);
    assert_eq!(find_content(&frozen, &live[2]), Some(&b"prepared"[..]));
    assert_eq!(recovered.undecided().collect::<Vec<_>>(), [TxName(TX + 2)]);
    assert_eq!(recovered.decisions().collect::<Vec<_>>(), [TxName(TX + 8)]);
    assert_eq!(outcomes(&[&recovered]), [[(TxName(TX + 2), false)]]);
}

#[test]
fn version_1_of_the_unacked_index_is_read() {
    assert_eq!(read_index(golden("unacked-v1.index", &[])), [HELD, DONE]);
}

#[test]
fn version_2_of_the_unacked_index_is_read_and_written_as_ever() {
    let dir = TestDir::new();
    drop(index(dir.path()));
    let written = std::fs::read(dir.path().join("unacked.index")).unwrap();
    assert_eq!(written.len(), INDEX_BYTES);
    // The first block; the rest is zeros.
    let frozen = golden("unacked-v2.index", &written[..BLOCK_BYTES]);
    assert!(written[..BLOCK_BYTES] == frozen, "frozen: count the version up");
    assert!(written[BLOCK_BYTES..].iter().all(|&byte| byte == 0));
    let back = IndexEntry { queue: 12, deliveries: 1, ..HELD };
    assert_eq!(read_index(frozen), [HELD, back, DONE]);
}
