//! Records and headers there and back.

use super::*;
use proptest::prelude::*;

#[test]
fn a_segment_header_is_one_block_and_comes_back() {
    let header = SegmentHeader { shard: 3, segment: 77, epoch: 5 };
    let mut block = Vec::new();
    header.write(&mut block);
    assert_eq!(block.len(), BLOCK_BYTES);
    assert_eq!(SegmentHeader::read(&block), Ok(header));
    block[17] ^= 1;
    assert_eq!(SegmentHeader::read(&block), Err(BadHeader::Unreadable));
    assert_eq!(SegmentHeader::read(&[0; BLOCK_BYTES]), Err(BadHeader::Unreadable));
}

#[test]
fn a_later_format_is_told_from_damage() {
    let mut block = Vec::new();
    SegmentHeader { shard: 0, segment: 1, epoch: 1 }.write(&mut block);
    block[8] = 9;
    let crc = crc32c::crc32c(&block[..28]);
    block[28..32].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(SegmentHeader::read(&block), Err(BadHeader::Newer(9)));
}

fn commit(payload: &[u8], records: u32) -> Vec<u8> {
    let mut bytes = vec![0; COMMIT_HEADER_BYTES];
    bytes.extend_from_slice(payload);
    let header = CommitHeader {
        segment: 4,
        first_commit: 2,
        commit: 9,
        frontier: 8,
        epoch: 2,
        payload_bytes: payload.len() as u32,
        records,
    };
    header.seal(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn records_come_back_as_they_were_put(
        sequence in any::<u64>(),
        published_ms in any::<u64>(),
        ttl_ms in prop::option::of(0..u64::MAX),
        spilled in any::<bool>(),
        queues in prop::collection::vec(any::<u64>(), 1..5),
        content in prop::collection::vec(any::<u8>(), 0..300),
        cut in any::<prop::sample::Index>(),
        settled in prop::collection::vec((any::<u64>(), any::<u64>()), 1..20),
        transactions in prop::collection::vec(any::<u64>().prop_map(TxName), 0..5),
        step in prop::sample::select(&[TxStep::Decided, TxStep::Committed, TxStep::RolledBack, TxStep::Forgotten][..]),
    ) {
        let head = MessageHead { sequence, published_ms, ttl_ms, spilled };
        let mut payload = Vec::new();
        let (front, back) = content.split_at(cut.index(content.len() + 1));
        put_message(&mut payload, &head, queues.iter().copied(), &[front, back]);
        prop_assert_eq!(payload.len(), message_bytes(queues.len(), content.len()));
        put_settled(&mut payload, &settled);
        put_prepared(&mut payload, TxName(sequence), published_ms, queues.len());
        let before = payload.len();
        put_step(&mut payload, step, transactions.iter().copied());
        prop_assert_eq!(payload.len() - before, step_bytes(transactions.len()));
        let bytes = commit(&payload, 4);
        let (header, read) = CommitHeader::read(&bytes, 4).unwrap();
        prop_assert_eq!((header.commit, header.records), (9, 4));
        let records: Vec<_> = read_records(read).collect::<Result<_, _>>().unwrap();
        let prepared =
            Record::Prepared { tx: TxName(sequence), first: published_ms, records: queues.len() as u32 };
        let message = Record::Message { head, queues, content: &content };
        prop_assert_eq!(records, [message, Record::Settled(settled), prepared, Record::Step(step, transactions)]);
        prop_assert!(CommitHeader::read(&bytes, 5).is_none(), "of another segment");
    }

    #[test]
    fn a_changed_bit_or_a_missing_end_is_noticed(
        payload in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let bytes = commit(&payload, 1);
        let mut changed = bytes.clone();
        changed[at.index(bytes.len())] ^= 1 << bit;
        prop_assert!(CommitHeader::read(&changed, 4).is_none());
        prop_assert!(CommitHeader::read(&bytes[..at.index(bytes.len())], 4).is_none());
    }

    #[test]
    fn anything_can_be_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = SegmentHeader::read(&bytes);
        let _ = CommitHeader::read(&bytes, 0);
        for record in read_records(&bytes) {
            let _ = record;
        }
    }
}
