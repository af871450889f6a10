//! How the shard log lies on disk: format version 3. Everything is little endian.
//!
//! A log is a row of segment files, numbered upwards from 1. A segment begins with one block that says
//! what it is; commits follow, each at a multiple of the block size:
//!
//! ```text
//! segment header, one block of 4,096 bytes
//!   magic "LEPUSLOG" | format u32 | shard u32 | segment u64 | epoch u32 | crc u32 (of what precedes it) | zeros
//! commit, padded with zeros to whole blocks
//!   magic u32 | crc u32 (of everything behind it, padding excepted) | segment u64 | first commit u64
//!   | commit u64 | frontier u64 | epoch u32 | payload bytes u32 | records u32 | zero u32 | payload
//! record
//!   bytes u32 (of what follows) | kind u8 | count u24 | ...
//!   kind 1, message in `count` queues: sequence u64 | published, ms since 1970, u64 | time to live, ms, u64
//!     (all ones: none) | queue u64 ... | content
//!   kind 2, `count` settlements: (sequence u64 | queue u64) ...
//!   kind 3, a message that was only moved out of memory, and ends with the process: as kind 1
//!   kind 4, the `count` records behind it are prepared: transaction u64 | first sequence u64
//!   kind 5, `count` transactions are decided to be committed: transaction u64 ...
//!   kind 6, what was prepared here of `count` transactions is committed; 7, is rolled back; 8, the decisions
//!     on them are forgotten: as kind 5
//! ```
//!
//! Queue 0 is nobody's: the place of a queue that had settled the message before it was written. Version 1
//! had neither that nor kind 3, version 2 no kinds from 4 on; they are read as they are.
//!
//! *Prepared* messages and settlements are a group, whole in one commit, and named by its first sequence; a
//! group that is appended again takes the place of the former. They count for nothing until a later record
//! says that their transaction is committed. Where none says how it ended, it is committed if a log has a
//! *decision* on it that is not forgotten, and else rolled back.
//!
//! *Commits* are numbered upwards through all segments; the *first commit* is that of the segment.
//! *Frontier* is the last commit that was on stable storage when this one was written: what is missing
//! behind the last frontier was never confirmed to be there.
//! Segments are used again under a new number, which stands in each of their commits, so that what a
//! segment held before is never read as new. *Sequences* name messages: the epoch of the broker's start
//! in the upper 24 bits and a count in the lower 40, so that none is ever used twice, even when a power
//! loss has cut the log short.

use super::tx_name::TxName;

/// The version of the format that this module writes, and the newest that it reads.
pub const FORMAT: u32 = 3;

/// Everything on disk begins at a multiple of this: what direct I/O asks for.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes of a commit before its payload.
pub const COMMIT_HEADER_BYTES: usize = 56;

const SEGMENT_MAGIC: &[u8; 8] = b"LEPUSLOG";
const COMMIT_MAGIC: u32 = u32::from_le_bytes(*b"LEPC");
const MESSAGE: u32 = 1;
const SETTLED: u32 = 2;
const SPILLED: u32 = 3;
const PREPARED: u32 = 4;
const DECIDED: u32 = 5;
const COMMITTED: u32 = 6;
const ROLLED_BACK: u32 = 7;
const FORGOTTEN: u32 = 8;
/// Where the queues of a message's record begin.
const QUEUES_OFFSET: usize = MESSAGE_HEAD_BYTES;
/// The queue that is nobody's.
pub const NOBODY: u64 = 0;
const MESSAGE_HEAD_BYTES: usize = 4 + 4 + 8 + 8 + 8;
const SETTLED_HEAD_BYTES: usize = 4 + 4;
const STEP_HEAD_BYTES: usize = 4 + 4;
/// Bytes of a record that says that others are prepared.
pub const PREPARED_BYTES: usize = 4 + 4 + 8 + 8;
/// Most queues of a message, and most settlements of a record.
pub const COUNT_MAX: usize = (1 << 24) - 1;
const NO_TTL: u64 = u64::MAX;
const COUNT_BITS: u32 = 40;

/// A message's name in its shard's log. See the module.
pub type Sequence = u64;

/// The sequence before the first one of an epoch.
pub fn first_sequence(epoch: u32) -> Sequence {
    u64::from(epoch) << COUNT_BITS
}

/// The start of the broker that a sequence is of.
pub fn epoch_of(sequence: Sequence) -> u32 {
    (sequence >> COUNT_BITS) as u32
}

/// A whole number of blocks that holds this many bytes.
pub fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// What the first block of a segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The shard whose log it belongs to.
    pub shard: u32,
    /// Its number.
    pub segment: u64,
    /// The start of the broker that began it.
    pub epoch: u32,
}

/// Why a segment's first block is not a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadHeader {
    /// It is not one of ours, or damaged.
    Unreadable,
    /// It was written by a later version.
    Newer(u32),
}

impl SegmentHeader {
    const BYTES: usize = 32;

    /// Appends one block.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.shard.to_le_bytes());
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        let crc = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(start + BLOCK_BYTES, 0);
    }

    /// # Errors
    /// [`BadHeader`].
    pub fn read(block: &[u8]) -> Result<SegmentHeader, BadHeader> {
        let head = block.get(..Self::BYTES).ok_or(BadHeader::Unreadable)?;
        let mut reader = Reader(head);
        let (covered, crc) = head.split_at(Self::BYTES - 4);
        if reader.take(8) != Some(SEGMENT_MAGIC) || crc != crc32c::crc32c(covered).to_le_bytes() {
            return Err(BadHeader::Unreadable);
        }
        let format = reader.u32().ok_or(BadHeader::Unreadable)?;
        if format > FORMAT {
            return Err(BadHeader::Newer(format));
        }
        let mut rest =
            || Some(SegmentHeader { shard: reader.u32()?, segment: reader.u64()?, epoch: reader.u32()? });
        rest().ok_or(BadHeader::Unreadable)
    }
}

/// What stands in front of a commit's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitHeader {
    /// The segment that it is in.
    pub segment: u64,
    /// The number of the first commit in that segment.
    pub first_commit: u64,
    /// Its own number.
    pub commit: u64,
    /// The last commit known to be on disk when this one was written.
    pub frontier: u64,
    /// The start of the broker that wrote it.
    pub epoch: u32,
    /// Bytes of its records.
    pub payload_bytes: u32,
    /// How many records there are.
    pub records: u32,
}

impl CommitHeader {
    /// Writes the header over the first bytes of `commit`, whose payload is all there.
    ///
    /// # Panics
    /// When `commit` is not header and payload and nothing else.
    pub fn seal(&self, commit: &mut [u8]) {
        assert_eq!(commit.len(), COMMIT_HEADER_BYTES + self.payload_bytes as usize, "header and payload");
        let mut head = Vec::with_capacity(COMMIT_HEADER_BYTES);
        head.extend_from_slice(&COMMIT_MAGIC.to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        for long in [self.segment, self.first_commit, self.commit, self.frontier] {
            head.extend_from_slice(&long.to_le_bytes());
        }
        for word in [self.epoch, self.payload_bytes, self.records, 0] {
            head.extend_from_slice(&word.to_le_bytes());
        }
        commit[..COMMIT_HEADER_BYTES].copy_from_slice(&head);
        let crc = crc32c::crc32c(&commit[8..]);
        commit[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The whole commit of this segment at the start of `bytes`, if one is there: its header and its
    /// records.
    pub fn read(bytes: &[u8], segment: u64) -> Option<(CommitHeader, &[u8])> {
        let mut reader = Reader(bytes);
        if reader.u32()? != COMMIT_MAGIC {
            return None;
        }
        let crc = reader.u32()?;
        let (found, first_commit) = (reader.u64()?, reader.u64()?);
        let (commit, frontier) = (reader.u64()?, reader.u64()?);
        let (epoch, payload_bytes, records, _) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let payload = reader.take(payload_bytes as usize)?;
        if found != segment || crc32c::crc32c(&bytes[8..COMMIT_HEADER_BYTES + payload.len()]) != crc {
            return None;
        }
        Some((
            CommitHeader { segment, first_commit, commit, frontier, epoch, payload_bytes, records },
            payload,
        ))
    }
}

/// Bytes of the commit that begins here, with its padding, as its header has it - which may be damaged.
pub fn commit_bytes(bytes: &[u8], segment: u64) -> Option<usize> {
    let mut reader = Reader(bytes);
    if reader.u32()? != COMMIT_MAGIC {
        return None;
    }
    let _crc = reader.u32()?;
    let found = reader.u64()?;
    let _ = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u32()?);
    let payload = reader.u32()? as usize;
    (found == segment).then(|| padded(COMMIT_HEADER_BYTES + payload))
}

/// A message as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageHead {
    /// Its name.
    pub sequence: Sequence,
    /// When it was published, in milliseconds since 1970.
    pub published_ms: u64,
    /// Its own time to live, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// It was only moved out of memory.
    pub spilled: bool,
}

/// Bytes of a message's record.
pub fn message_bytes(queues: usize, content_bytes: usize) -> usize {
    MESSAGE_HEAD_BYTES + 8 * queues + content_bytes
}

/// Appends a message. Its content is `parts`, one behind the other.
///
/// # Panics
/// With more than [`COUNT_MAX`] queues or content of 4 GiB.
pub fn put_message(
    out: &mut Vec<u8>,
    head: &MessageHead,
    queues: impl ExactSizeIterator<Item = u64>,
    parts: &[&[u8]],
) {
    let content: usize = parts.iter().map(|part| part.len()).sum();
    let bytes = message_bytes(queues.len(), content) - 4;
    out.reserve(bytes + 4);
    out.extend_from_slice(&u32::try_from(bytes).expect("a message is below 4 GiB").to_le_bytes());
    put_kind(out, if head.spilled { SPILLED } else { MESSAGE }, queues.len());
    out.extend_from_slice(&head.sequence.to_le_bytes());
    out.extend_from_slice(&head.published_ms.to_le_bytes());
    out.extend_from_slice(&head.ttl_ms.unwrap_or(NO_TTL).to_le_bytes());
    queues.for_each(|queue| out.extend_from_slice(&queue.to_le_bytes()));
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// A message, spilled or not.
    Message,
    /// Settlements.
    Settled,
    /// The head of a group.
    Prepared,
    /// How far transactions have come.
    Step,
}

/// A record in a commit that is being put together.
pub struct RecordInPlace<'a>(pub &'a mut [u8]);

impl RecordInPlace<'_> {
    /// Bytes of the record that begins here.
    #[inline]
    pub fn bytes(&self) -> usize {
        4 + word_at(self.0, 0) as usize
    }

    /// A message's name.
    pub fn sequence(&self) -> Sequence {
        long_at(self.0, 8)
    }

    /// Nearly all are.
    #[inline]
    pub fn is_message(&self) -> bool {
        matches!(word_at(self.0, 4) & 0xff, MESSAGE | SPILLED)
    }

    /// What it is.
    pub fn kind(&self) -> RecordKind {
        match word_at(self.0, 4) & 0xff {
            MESSAGE | SPILLED => RecordKind::Message,
            SETTLED => RecordKind::Settled,
            PREPARED => RecordKind::Prepared,
            _ => RecordKind::Step,
        }
    }

    /// The transaction of a group's head, or the first one of a step.
    pub fn transaction(&self) -> TxName {
        TxName(long_at(self.0, 8))
    }

    /// The first sequence of a group, by its head.
    pub fn first_sequence(&self) -> Sequence {
        long_at(self.0, 16)
    }

    /// Settlements.
    pub fn settlements(&self) -> Vec<(Sequence, u64)> {
        let at = |index| SETTLED_HEAD_BYTES + 16 * index;
        (0..self.count()).map(|index| (long_at(self.0, at(index)), long_at(self.0, at(index) + 8))).collect()
    }

    /// When it was published and its own time to live, as [`MessageHead`] has them.
    pub fn times(&self) -> (u64, Option<u64>) {
        let ttl_ms = long_at(self.0, 24);
        (long_at(self.0, 16), (ttl_ms != NO_TTL).then_some(ttl_ms))
    }

    /// Where in it its content begins.
    pub fn content_offset(&self) -> usize {
        QUEUES_OFFSET + 8 * self.count()
    }

    /// How many queues, settlements, records or transactions it counts.
    pub fn count(&self) -> usize {
        (word_at(self.0, 4) >> 8) as usize
    }

    /// Its queues, [`NOBODY`] among them.
    pub fn queues(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        (0..self.count()).map(|index| long_at(self.0, QUEUES_OFFSET + 8 * index))
    }

    /// Makes the place of a queue nobody's.
    pub fn strike(&mut self, queue: u64) {
        let index = self.queues().position(|other| other == queue);
        if let Some(index) = index {
            let at = QUEUES_OFFSET + 8 * index;
            self.0[at..at + 8].copy_from_slice(&NOBODY.to_le_bytes());
        }
    }
}

#[inline]
fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put_kind(out: &mut Vec<u8>, kind: u32, count: usize) {
    assert!(count <= COUNT_MAX, "a record counts in 24 bits");
    out.extend_from_slice(&(kind | (count as u32) << 8).to_le_bytes());
}

/// Most settlements of a record, so that its length fits.
pub const SETTLED_MAX: usize = COUNT_MAX;

/// How many records so many settlements are.
pub fn settled_records(count: usize) -> usize {
    count.div_ceil(SETTLED_MAX)
}

/// Bytes of the records of so many settlements.
pub fn settled_bytes(count: usize) -> usize {
    SETTLED_HEAD_BYTES * settled_records(count) + 16 * count
}

/// Appends settlements: message and queue. Of none there is no record.
pub fn put_settled(out: &mut Vec<u8>, settled: &[(Sequence, u64)]) {
    for settled in settled.chunks(SETTLED_MAX) {
        let bytes = settled_bytes(settled.len()) - 4;
        out.reserve(bytes + 4);
        out.extend_from_slice(&u32::try_from(bytes).expect("2^24 settlements fit").to_le_bytes());
        put_kind(out, SETTLED, settled.len());
        for (sequence, queue) in settled {
            out.extend_from_slice(&sequence.to_le_bytes());
            out.extend_from_slice(&queue.to_le_bytes());
        }
    }
}

/// Appends the head of a group: the `records` behind it are prepared.
///
/// # Panics
/// With more than [`COUNT_MAX`] records.
pub fn put_prepared(out: &mut Vec<u8>, tx: TxName, first: Sequence, records: usize) {
    out.extend_from_slice(&(PREPARED_BYTES as u32 - 4).to_le_bytes());
    put_kind(out, PREPARED, records);
    out.extend_from_slice(&tx.0.to_le_bytes());
    out.extend_from_slice(&first.to_le_bytes());
}

/// How far a transaction has come, as a log says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxStep {
    /// It is to be committed in every log that has prepared it.
    Decided,
    /// What was prepared of it in this log is committed.
    Committed,
    /// What was prepared of it in this log is rolled back.
    RolledBack,
    /// The decision in this log is not needed any more.
    Forgotten,
}

/// Bytes of a step of so many transactions.
pub fn step_bytes(count: usize) -> usize {
    STEP_HEAD_BYTES + 8 * count
}

/// Appends a step of these transactions.
///
/// # Panics
/// With more than [`COUNT_MAX`].
pub fn put_step(out: &mut Vec<u8>, step: TxStep, transactions: impl ExactSizeIterator<Item = TxName>) {
    let bytes = step_bytes(transactions.len()) - 4;
    out.extend_from_slice(&u32::try_from(bytes).expect("2^24 transactions fit").to_le_bytes());
    let kind = match step {
        TxStep::Decided => DECIDED,
        TxStep::Committed => COMMITTED,
        TxStep::RolledBack => ROLLED_BACK,
        TxStep::Forgotten => FORGOTTEN,
    };
    put_kind(out, kind, transactions.len());
    transactions.for_each(|tx| out.extend_from_slice(&tx.0.to_le_bytes()));
}

/// A record as it is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A message in these queues.
    Message {
        /// Its name and times.
        head: MessageHead,
        /// Queues that it is in.
        queues: Vec<u64>,
        /// Opaque to the log.
        content: &'a [u8],
    },
    /// These messages are done with in these queues.
    Settled(Vec<(Sequence, u64)>),
    /// The records behind it are prepared.
    Prepared {
        /// Their transaction.
        tx: TxName,
        /// The group's name, and of its messages, the first one's.
        first: Sequence,
        /// How many they are.
        records: u32,
    },
    /// These transactions have come so far.
    Step(TxStep, Vec<TxName>),
}

/// Gives the records of a commit, in order.
///
/// # Errors
/// [`Malformed`] at the first record that is none: the commit's checksum held, so it was written so.
pub fn read_records(payload: &[u8]) -> impl Iterator<Item = Result<Record<'_>, Malformed>> {
    let mut rest = Reader(payload);
    std::iter::from_fn(move || {
        if rest.0.is_empty() {
            return None;
        }
        let record = read_record(&mut rest);
        if record.is_none() {
            rest = Reader(&[]);
        }
        Some(record.ok_or(Malformed))
    })
}

/// A commit holds something that this version does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record that this version does not know")]
pub struct Malformed;

fn read_record<'a>(rest: &mut Reader<'a>) -> Option<Record<'a>> {
    let bytes = rest.u32()? as usize;
    let mut reader = Reader(rest.take(bytes)?);
    let kind = reader.u32()?;
    let (kind, count) = (kind & 0xff, kind >> 8);
    match kind {
        MESSAGE | SPILLED => {
            let (sequence, published_ms, ttl) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let queues = (0..count).map(|_| reader.u64()).collect::<Option<Vec<_>>>()?;
            let (ttl_ms, spilled) = ((ttl != NO_TTL).then_some(ttl), kind == SPILLED);
            let head = MessageHead { sequence, published_ms, ttl_ms, spilled };
            Some(Record::Message { head, queues, content: reader.0 })
        }
        SETTLED => {
            let settled =
                (0..count).map(|_| Some((reader.u64()?, reader.u64()?))).collect::<Option<Vec<_>>>()?;
            reader.0.is_empty().then_some(Record::Settled(settled))
        }
        PREPARED => {
            let (tx, first) = (TxName(reader.u64()?), reader.u64()?);
            reader.0.is_empty().then_some(Record::Prepared { tx, first, records: count })
        }
        _ => {
            let step = step_of(kind)?;
            let transactions = (0..count).map(|_| Some(TxName(reader.u64()?))).collect::<Option<Vec<_>>>()?;
            reader.0.is_empty().then_some(Record::Step(step, transactions))
        }
    }
}

fn step_of(kind: u32) -> Option<TxStep> {
    match kind {
        DECIDED => Some(TxStep::Decided),
        COMMITTED => Some(TxStep::Committed),
        ROLLED_BACK => Some(TxStep::RolledBack),
        FORGOTTEN => Some(TxStep::Forgotten),
        _ => None,
    }
}

/// Reads numbers off the front of bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
