//! Every bound of the kernel, and how they relate.

/// Most shards a broker can have: they are numbered in 10 bits of a queue's id.
pub const SHARDS_MAX: usize = 1024;

/// Bytes of deliveries that a shard may have on the way to one connection, beyond one message: what a
/// client that does not read can make a shard hold. Large enough that a connection at 4 GB/s with
/// 65 µs between two shards is never idle for want of credit.
pub const DELIVERY_WINDOW_BYTES: usize = 256 * 1024;

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

/// How long an expired message that is being read from disk waits before it is looked at again.
pub const EXPIRED_LOAD_RETRY_MS: u64 = 5;

/// Batches in flight from one shard to another on one lane.
pub const RING_BATCHES: usize = 64;

/// Most parts of a name, in bytes (an AMQP short string).
pub const NAME_BYTES_MAX: usize = 255;

const _: () =
    assert!(DELIVERY_RETURN_BYTES * 2 <= DELIVERY_WINDOW_BYTES, "credit must come back before it runs out");
const _: () = assert!(SHARED_BODY_BYTES_MIN * 4 <= BATCH_BYTES_MAX, "several copied bodies fit a batch");
