//! Every bound of the stores.

/// Bytes of a segment that is emptied which are looked through in one turn: what is settled there is only
/// skipped, and a segment of nothing else would otherwise be gone through at once, which takes 10 ms and more.
pub const RELOCATION_SCAN_BYTES: usize = 512 * 1024;

/// The format of the data directory that this version writes, and the newest that it reads.
pub const DATA_FORMAT: u32 = 1;

/// Most commits that a topology store holds before their completions are taken. A declare is a few
/// hundred bytes, so this is a fraction of a megabyte, and more than one synchronous write can use up.
pub const COMMITS_OUTSTANDING_MAX: usize = 1024;

/// Pages of the topology file kept in memory. Rows are read once, at start: the cache only serves
/// the inner pages that commits touch.
pub const TOPOLOGY_CACHE_BYTES: usize = 16 * 1024 * 1024;

/// A commit of a shard's log is closed when it has this many bytes.
pub const COMMIT_BYTES_MAX: usize = 1024 * 1024;

/// Most bytes of a group of records that must be in one commit: [`crate::log::ShardLog::append_group`] and
/// [`crate::log::ShardLog::prepare`] ask their callers to keep to it, but for a single message. A message of the
/// group that comes back from the disk costs a read of all of it.
pub const GROUP_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long settlements wait for a commit to ride on, in milliseconds.
pub const SETTLE_DELAY_MS: u64 = 100;

/// Settlements that go in one commit: 64 KiB.
pub const SETTLEMENTS_PER_COMMIT_MAX: usize = 4096;

/// How long after a segment could not be prepared it is tried again, in milliseconds.
pub const NO_SPACE_RETRY_MS: u64 = 1000;

/// Segments that the files of a log may take beyond twice what is live in them.
pub const SPARE_SEGMENTS: u64 = 4;

/// A read of messages that do not follow on others: about what a disk gives in the time of its latency.
pub const READ_BYTES_MIN: usize = 128 * 1024;

/// A read of messages in a row.
pub const READ_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Reads that a log keeps, so that several queues can read different parts of it.
pub const CHUNKS_KEPT: usize = 8;

/// The smallest segment of a shard's log.
pub const SEGMENT_BYTES_MIN: u64 = 256 * 1024;

const _: () =
    assert!(SETTLEMENTS_PER_COMMIT_MAX * 16 * 8 < COMMIT_BYTES_MAX, "settlements do not crowd out messages");
