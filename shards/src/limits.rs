//! Every bound of the kernel, and how they relate.

/// Most shards a broker can have: they are numbered in 10 bits of a queue's id.
pub const SHARDS_MAX: usize = 1024;

/// Bytes of deliveries that a shard may have on the way to one connection, beyond one message: what a
/// client that does not read can make a shard hold. Twice what a shard reads of a publisher in one turn: with
/// less, a consumer on another shard cannot keep up with a publisher however fast it is, since credit that it
/// gives back is seen a turn later.
pub const DELIVERY_WINDOW_BYTES: usize = 512 * 1024;

/// A connection gives delivery credit back once it owes this much: at most two returns a window.
pub const DELIVERY_RETURN_BYTES: usize = DELIVERY_WINDOW_BYTES / 4;

/// Bodies above this travel between shards by reference count and not by copy: an atomic add is
/// cheaper than copying from here on.
pub const SHARED_BODY_BYTES_MIN: usize = 16 * 1024;

/// A batch is closed and a new one begun when its arena reaches this.
pub const BATCH_BYTES_MAX: usize = 256 * 1024;

/// Messages of a queue that stay in memory next to its cursor while there is room.
pub const POSITIONS_KEPT_AHEAD: u64 = 256;

/// Messages that leave memory in a turn: some 200 µs of work.
pub const PAGED_OUT_PER_TURN: u64 = 2048;

/// Queues that are looked at in a turn for what can leave memory.
pub const PAGING_QUEUES_PER_TURN: usize = 256;

/// Expired messages of one queue that may wait for a read at once: fewer than the reads that a log keeps.
pub const EXPIRED_READS_MAX: usize = 4;

/// Expired messages that were read and are ended in one step.
pub const EXPIRED_PER_STEP: usize = 1024;

/// Batches in flight from one shard to another on one lane.
pub const RING_BATCHES: usize = 64;

/// Bytes of direct replies that a connection may leave unread; further ones are dropped. Nothing keeps
/// them elsewhere, so this is what a client that does not read can make a shard hold.
pub const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most parts of a name, in bytes (an AMQP short string).
pub const NAME_BYTES_MAX: usize = 255;

/// Messages that an x-recent-history exchange remembers unless it says otherwise: RabbitMQ's number.
pub const HISTORY_LENGTH: usize = 20;

/// How often a message may come back to a quorum queue unless the queue says otherwise, as in RabbitMQ 4.
pub const QUORUM_DELIVERY_LIMIT: u32 = 20;

/// The share of a shard's memory budget that the histories of its exchanges may take: one part of this
/// many. They do not drain: a larger share could block publishers for good.
pub const HISTORY_MEMORY_SHARE: u64 = 8;

/// Bytes of messages that a channel may publish between two commits. A message of the largest size that
/// is usually configured (128 MiB) fits.
pub const TRANSACTION_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The share of a shard's memory budget that messages of transactions may take before they are committed: one
/// part of this many. They do not drain either.
pub const TRANSACTION_MEMORY_SHARE: u64 = 8;

const _: () = assert!(
    HISTORY_MEMORY_SHARE >= 4 && TRANSACTION_MEMORY_SHARE >= 4,
    "what does not drain is less than what blocks publishers"
);
/// Of so many messages one is followed through its queue, to see how long it waits. A prime: what comes in batches is
/// met at any place of its batch.
pub const WAIT_SAMPLE_EVERY: u32 = 61;

/// How long a message is followed, in microseconds: most that are not delivered by then never are.
pub const WAIT_PATIENCE_US: u64 = 10_000_000;

const _: () =
    assert!(DELIVERY_RETURN_BYTES * 2 <= DELIVERY_WINDOW_BYTES, "credit must come back before it runs out");
const _: () = assert!(SHARED_BODY_BYTES_MIN * 4 <= BATCH_BYTES_MAX, "several copied bodies fit a batch");
