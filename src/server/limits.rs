//! Bounds of the server: sockets, turns, and the way between them and the shard.

use std::time::Duration;

/// The buffer that all sockets of a shard are read into, one at a time.
pub const READ_BUFFER_BYTES: usize = 256 * 1024;

/// Batches for one peer and lane that may wait for room in its ring before sockets that fill it are
/// not read any more. Each is at most a little over `BATCH_BYTES_MAX`.
pub const OUTBOX_BATCHES_MAX: usize = 4;

/// Emptied batches that a shard keeps for filling again.
pub const SPARE_BATCHES_MAX: usize = 16;

/// Accepted connections on their way to one shard.
pub const HANDOVERS_MAX: usize = 256;

/// Settlements that wait for the log when a queue's remains are not carried off any further: some commits'
/// worth. Each has an entry in the unacked index until it is written.
pub const WAITING_SETTLEMENTS_MAX: usize = 16 * 1024;

/// How often the clock's work is looked at while a shard is busy, and while nothing has happened.
pub const TICK_BUSY: Duration = Duration::from_millis(10);
/// See [`TICK_BUSY`].
pub const TICK_IDLE: Duration = Duration::from_millis(100);

/// Deadlines are looked at when they come, but not more often than this, in milliseconds: an expiry is late by
/// no more, and many of them cost no more than one look.
pub const DEADLINE_PAUSE_MS: u64 = 2;

/// So long a shard carries off what purged and deleted queues had, in microseconds, before it turns to others.
pub const RUBBLE_STINT_US: u64 = 300;

/// So long others have the core then. A shard that does nothing else would carry off twice as much, and be late
/// for everything meanwhile: the system lets a thread that never sleeps wait for its core for milliseconds.
pub const RUBBLE_PAUSE_US: u64 = 500;

/// How long a connection that has been sent its close may take to read it and end its side: closing
/// the socket over unread input would reset it and could lose the close frame on its way.
pub const LINGER_MS: u64 = 2_000;

/// How long all connections together may take to end when the broker stops. Within the 10 s that an
/// operator waits for a drain.
pub const DRAIN_MS: u64 = 8_000;

/// First and longest pause of accepting after the process ran out of descriptors or memory.
pub const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
/// See [`ACCEPT_PAUSE_MIN`].
pub const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(
    lepus_shards::limits::TRANSACTION_BYTES_MAX <= lepus_storage::limits::GROUP_BYTES_MAX as u64,
    "a log takes any transaction"
);
const _: () = assert!(LINGER_MS < DRAIN_MS, "a lingering client does not use the drain up");
const _: () = assert!(TICK_BUSY.as_millis() < TICK_IDLE.as_millis());

/// How long after a commit began a shard looks for its end instead of sleeping until it is told: a
/// synchronous write takes less on the disks that this is for, and being woken would take as long again.
pub const COMMIT_SPIN: Duration = Duration::from_micros(400);

/// Turns whose commits are waited for, of which the time is taken: beyond that, the disk stands still.
pub const COMMIT_MARKS_MAX: usize = 256;

/// A shard that stalls says so no more often than this, in microseconds.
pub const STALL_REPORT_PAUSE_US: u64 = 1_000_000;

/// How often a shard looks how much space its disk has.
pub const FREE_SPACE_CHECK: Duration = Duration::from_secs(1);
