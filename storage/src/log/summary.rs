//! What is in a closed segment, written beside it, so that a start reads a fraction of the log.
//!
//! A summary is a help and not the truth: it is not synced, and one that is missing, torn or of another time
//! means that the segment itself is read. Format version 2, little endian:
//!
//! ```text
//! magic "LEPUSSUM" | format u32 | shard u32 | segment u64 | first commit u64 | last commit u64 | used bytes u64
//!   | items bytes u64 | crc u32 (of what precedes it, and the items) | items
//! item 1, a message:  1 | sequence +- | published, ms, +- | time to live, ms, plus 1, or 0 | blocks + | bytes
//!   | count | queue ...
//! item 2, settlements: 2 | count | (sequence +- | queue) ...
//! item 3, the `count` items behind it are prepared: 3 | transaction +- | first sequence +- | count
//! item 4, so far have transactions come: 4 | step | count | transaction +- ...
//! step: 0 decided, 1 committed, 2 rolled back, 3 decision forgotten
//! queue: its place in the list of queues so far; if that is the list's length, its u64 follows
//! ```
//!
//! All numbers of items but a queue's u64 are variable: seven bits a byte, lowest first, the eighth says that
//! more follow. `+` is counted from the last one of its kind, from 0 at first; with `+-` it may be lower and
//! stands as twice the distance, plus 1 if it is. Blocks say where the message's commit begins.
//! Version 1 had items 1 and 2 only, and is read as it is.

use rustc_hash::FxHashMap;

use super::format::{SETTLED_MAX, Sequence, TxStep};
use super::tx_name::TxName;

const MAGIC: &[u8; 8] = b"LEPUSSUM";
const FORMAT: u32 = 2;
const HEAD_BYTES: usize = 8 + 4 + 4 + 5 * 8;
const MESSAGE: u8 = 1;
const SETTLED: u8 = 2;
const PREPARED: u8 = 3;
const STEP: u8 = 4;
/// As they are numbered.
const STEPS: [TxStep; 4] = [TxStep::Decided, TxStep::Committed, TxStep::RolledBack, TxStep::Forgotten];

#[derive(Default, Clone, Copy)]
struct Last {
    sequence: u64,
    published_ms: u64,
    block: u32,
    tx: u64,
}

/// Before the items.
const ITEMS_AT: usize = HEAD_BYTES + 4;

/// Puts a summary together while its segment is written.
pub(super) struct SummaryWriter {
    /// Room for the head, then the items: megabytes, which are not copied when the segment is closed.
    out: Vec<u8>,
    /// Bytes of the summary that was finished last.
    bytes: usize,
    first_commit: u64,
    queues: FxHashMap<u64, u64>,
    /// The queue that was named last, and its number: mostly the next one is the same.
    last_queue: Option<(u64, u64)>,
    last: Last,
}

impl Default for SummaryWriter {
    fn default() -> SummaryWriter {
        SummaryWriter::with_room(0)
    }
}

impl SummaryWriter {
    /// A segment begins with this commit.
    pub fn begin(&mut self, first_commit: u64) {
        // As much as the last one had, so that it is not moved while it grows.
        let room = self.bytes + self.bytes / 8;
        *self = SummaryWriter { first_commit, ..SummaryWriter::with_room(room) };
    }

    fn with_room(items_bytes: usize) -> SummaryWriter {
        let mut out = Vec::with_capacity(ITEMS_AT + items_bytes);
        out.resize(ITEMS_AT, 0);
        let (queues, last) = (FxHashMap::default(), Last::default());
        SummaryWriter { out, bytes: 0, first_commit: 0, queues, last_queue: None, last }
    }

    /// The number of the first commit in the segment.
    pub fn first_commit(&self) -> u64 {
        self.first_commit
    }

    /// A message of these queues is in it.
    pub fn message(&mut self, message: &SummarizedMessage, queues: impl ExactSizeIterator<Item = u64>) {
        let &SummarizedMessage { sequence, published_ms, ttl_ms, block, bytes } = message;
        let tx = self.last.tx;
        let last = std::mem::replace(&mut self.last, Last { sequence, published_ms, block, tx });
        self.out.push(MESSAGE);
        put_signed(&mut self.out, sequence, last.sequence);
        put_signed(&mut self.out, published_ms, last.published_ms);
        put(&mut self.out, ttl_ms.map_or(0, |ttl_ms| ttl_ms.saturating_add(1)));
        put(&mut self.out, u64::from(block - last.block));
        put(&mut self.out, u64::from(bytes));
        put(&mut self.out, queues.len() as u64);
        for queue in queues {
            self.queue(queue);
        }
    }

    /// These settlements are in it, of which there are some: in as many items as they are records.
    pub fn settled(&mut self, settled: &[(Sequence, u64)]) {
        settled.chunks(SETTLED_MAX).for_each(|settled| self.settled_record(settled));
    }

    fn settled_record(&mut self, settled: &[(Sequence, u64)]) {
        self.out.push(SETTLED);
        put(&mut self.out, settled.len() as u64);
        for &(sequence, queue) in settled {
            let last = std::mem::replace(&mut self.last.sequence, sequence);
            put_signed(&mut self.out, sequence, last);
            self.queue(queue);
        }
    }

    /// The `records` items to come are prepared.
    pub fn prepared(&mut self, tx: TxName, first: Sequence, records: u32) {
        self.out.push(PREPARED);
        self.transaction(tx);
        let last = std::mem::replace(&mut self.last.sequence, first);
        put_signed(&mut self.out, first, last);
        put(&mut self.out, u64::from(records));
    }

    /// These transactions have come so far.
    pub fn step(&mut self, step: TxStep, transactions: impl ExactSizeIterator<Item = TxName>) {
        let number = STEPS.iter().position(|&other| other == step).expect("all are there");
        self.out.extend([STEP, number as u8]);
        put(&mut self.out, transactions.len() as u64);
        transactions.for_each(|tx| self.transaction(tx));
    }

    fn transaction(&mut self, tx: TxName) {
        let last = std::mem::replace(&mut self.last.tx, tx.0);
        put_signed(&mut self.out, tx.0, last);
    }

    fn queue(&mut self, queue: u64) {
        if let Some((last, at)) = self.last_queue
            && last == queue
        {
            return put(&mut self.out, at);
        }
        let new = self.queues.len() as u64;
        let at = *self.queues.entry(queue).or_insert(new);
        self.last_queue = Some((queue, at));
        put(&mut self.out, at);
        if at == new {
            self.out.extend_from_slice(&queue.to_le_bytes());
        }
    }

    /// The summary of the segment, which has this last commit and so many bytes in use.
    pub fn finish(&mut self, shard: u32, segment: u64, used_bytes: u64, last_commit: u64) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.out);
        self.bytes = out.len();
        let items_bytes = (out.len() - ITEMS_AT) as u64;
        let mut head = Vec::with_capacity(ITEMS_AT);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&FORMAT.to_le_bytes());
        head.extend_from_slice(&shard.to_le_bytes());
        for long in [segment, self.first_commit, last_commit, used_bytes, items_bytes] {
            head.extend_from_slice(&long.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), &out[ITEMS_AT..]);
        head.extend_from_slice(&crc.to_le_bytes());
        out[..ITEMS_AT].copy_from_slice(&head);
        out
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_signed(out: &mut Vec<u8>, number: u64, last: u64) {
    let distance = number.wrapping_sub(last) as i64;
    put(out, ((distance << 1) ^ (distance >> 63)) as u64);
}

/// An item of a summary.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// A message is in a commit.
    Message(SummarizedMessage, &'a [u64]),
    /// These are settled.
    Settled(&'a [(Sequence, u64)]),
    /// The items behind it are prepared.
    Prepared {
        tx: TxName,
        /// The group's name.
        first: Sequence,
        /// How many they are.
        records: u32,
    },
    /// These transactions have come so far.
    Step(TxStep, &'a [TxName]),
}

/// A message, but for its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SummarizedMessage {
    pub sequence: Sequence,
    pub published_ms: u64,
    pub ttl_ms: Option<u64>,
    /// Where its commit begins.
    pub block: u32,
    /// Bytes of its record.
    pub bytes: u32,
}

/// A summary that is whole.
pub(super) struct Summary<'a> {
    pub first_commit: u64,
    pub last_commit: u64,
    pub used_bytes: u64,
    items: &'a [u8],
}

impl<'a> Summary<'a> {
    /// None if it is not a whole summary of this segment of this shard in a version that is known.
    pub fn read(bytes: &'a [u8], shard: u32, segment: u64) -> Option<Summary<'a>> {
        let head = bytes.get(..HEAD_BYTES)?;
        let crc = bytes.get(HEAD_BYTES..HEAD_BYTES + 4)?;
        let items = &bytes[HEAD_BYTES + 4..];
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let named = head.starts_with(MAGIC)
            && (1..=FORMAT).contains(&word(8))
            && word(12) == shard
            && long(16) == segment;
        let whole = crc32c::crc32c_append(crc32c::crc32c(head), items).to_le_bytes() == *crc;
        (named && whole && long(48) == items.len() as u64).then(|| Summary {
            first_commit: long(24),
            last_commit: long(32),
            used_bytes: long(40),
            items,
        })
    }

    /// Gives its items in order, and then every queue that they name. None at an item that is none: the
    /// checksum held, so it was written so.
    pub fn each(&self, mut item: impl FnMut(Item<'_>)) -> Option<Vec<u64>> {
        let mut reader = Reader { bytes: self.items, queues: Vec::new() };
        let mut last = Last::default();
        let (mut queues, mut settled, mut transactions) = (Vec::new(), Vec::new(), Vec::new());
        while !reader.bytes.is_empty() {
            match reader.byte()? {
                MESSAGE => {
                    let sequence = reader.signed(last.sequence)?;
                    let published_ms = reader.signed(last.published_ms)?;
                    let ttl_ms = reader.number()?.checked_sub(1);
                    let block = last.block.checked_add(u32::try_from(reader.number()?).ok()?)?;
                    let bytes = u32::try_from(reader.number()?).ok()?;
                    queues.clear();
                    for _ in 0..reader.number()? {
                        queues.push(reader.queue()?);
                    }
                    last = Last { sequence, published_ms, block, ..last };
                    let message = SummarizedMessage { sequence, published_ms, ttl_ms, block, bytes };
                    item(Item::Message(message, &queues));
                }
                SETTLED => {
                    settled.clear();
                    for _ in 0..reader.number()? {
                        last.sequence = reader.signed(last.sequence)?;
                        settled.push((last.sequence, reader.queue()?));
                    }
                    item(Item::Settled(&settled));
                }
                PREPARED => {
                    last.tx = reader.signed(last.tx)?;
                    last.sequence = reader.signed(last.sequence)?;
                    let records = u32::try_from(reader.number()?).ok()?;
                    item(Item::Prepared { tx: TxName(last.tx), first: last.sequence, records });
                }
                STEP => {
                    let step = *STEPS.get(usize::from(reader.byte()?))?;
                    transactions.clear();
                    for _ in 0..reader.number()? {
                        last.tx = reader.signed(last.tx)?;
                        transactions.push(TxName(last.tx));
                    }
                    item(Item::Step(step, &transactions));
                }
                _ => return None,
            }
        }
        Some(reader.queues)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    queues: Vec<u64>,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
            shift += 7;
        }
    }

    fn signed(&mut self, last: u64) -> Option<u64> {
        let number = self.number()?;
        let distance = (number >> 1) as i64 ^ -((number & 1) as i64);
        Some(last.wrapping_add(distance as u64))
    }

    fn queue(&mut self) -> Option<u64> {
        let at = self.number()?;
        if at == self.queues.len() as u64 {
            let (long, rest) = self.bytes.split_first_chunk::<8>()?;
            self.bytes = rest;
            self.queues.push(u64::from_le_bytes(*long));
        }
        self.queues.get(usize::try_from(at).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::message_bytes;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Put {
        Message(u64, u64, Option<u64>, u32, Vec<u64>, usize),
        Settled(Vec<(u64, u64)>),
        Prepared(u64, u64, u32),
        Step(usize, Vec<u64>),
    }

    fn puts() -> impl Strategy<Value = Vec<Put>> {
        let queues = prop::collection::vec(0u64..5, 1..4);
        let message =
            (any::<u64>(), any::<u64>(), prop::option::of(0..u64::MAX - 1), 0u32..3, queues, 0usize..300)
                .prop_map(|(s, p, t, b, q, l)| Put::Message(s, p, t, b, q, l));
        let settled = prop::collection::vec((any::<u64>(), 0u64..9), 1..5).prop_map(Put::Settled);
        let prepared =
            any::<(u64, u64, u32)>().prop_map(|(tx, first, records)| Put::Prepared(tx, first, records));
        let step = (0usize..4, prop::collection::vec(any::<u64>(), 0..4))
            .prop_map(|(step, txs)| Put::Step(step, txs));
        prop::collection::vec(prop_oneof![message, settled, prepared, step], 0..50)
    }

    /// What was put, in words that can be compared.
    fn in_words(item: &Item<'_>) -> String {
        format!("{item:?}")
    }

    fn write(puts: &[Put]) -> (Vec<u8>, Vec<String>) {
        let mut writer = SummaryWriter::default();
        writer.begin(17);
        let (mut items, mut block) = (Vec::new(), 1);
        for put in puts {
            match put.clone() {
                Put::Message(sequence, published_ms, ttl_ms, blocks, queues, len) => {
                    block += blocks;
                    let bytes = message_bytes(queues.len(), len) as u32;
                    let message = SummarizedMessage { sequence, published_ms, ttl_ms, block, bytes };
                    writer.message(&message, queues.iter().copied());
                    items.push(in_words(&Item::Message(message, &queues)));
                }
                Put::Settled(settled) => {
                    writer.settled(&settled);
                    items.push(in_words(&Item::Settled(&settled)));
                }
                Put::Prepared(tx, first, records) => {
                    let tx = TxName(tx);
                    writer.prepared(tx, first, records);
                    items.push(in_words(&Item::Prepared { tx, first, records }));
                }
                Put::Step(step, transactions) => {
                    let transactions: Vec<TxName> = transactions.into_iter().map(TxName).collect();
                    writer.step(STEPS[step], transactions.iter().copied());
                    items.push(in_words(&Item::Step(STEPS[step], &transactions)));
                }
            }
        }
        (writer.finish(3, 9, 4096, 20), items)
    }

    proptest! {
        #[test]
        fn items_come_back_as_they_were_put(puts in puts()) {
            let (bytes, items) = write(&puts);
            let summary = Summary::read(&bytes, 3, 9).unwrap();
            prop_assert_eq!((summary.first_commit, summary.last_commit, summary.used_bytes), (17, 20, 4096));
            let mut read = Vec::new();
            prop_assert!(summary.each(|item| read.push(in_words(&item))).is_some());
            prop_assert_eq!(read, items);
            prop_assert!(Summary::read(&bytes, 2, 9).is_none() && Summary::read(&bytes, 3, 8).is_none());
        }

        #[test]
        fn one_of_version_1_is_read(puts in puts()) {
            let (mut bytes, items) = write(&puts);
            bytes[8] = 1;
            let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..HEAD_BYTES]), &bytes[HEAD_BYTES + 4..]);
            bytes[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
            let mut read = Vec::new();
            Summary::read(&bytes, 3, 9).unwrap().each(|item| read.push(in_words(&item)));
            prop_assert_eq!(read, items);
            bytes[8] = 3;
            let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..HEAD_BYTES]), &bytes[HEAD_BYTES + 4..]);
            bytes[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
            prop_assert!(Summary::read(&bytes, 3, 9).is_none(), "a later version is passed over");
        }

        #[test]
        fn one_that_is_torn_or_changed_is_none(
            puts in puts(),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (mut bytes, _) = write(&puts);
            let at = at.index(bytes.len());
            prop_assert!(Summary::read(&bytes[..at], 3, 9).is_none());
            bytes[at] ^= 1 << bit;
            prop_assert!(Summary::read(&bytes, 3, 9).is_none());
        }
    }
}
