//! Bounds of the load generator.

use std::time::Duration;

/// The largest frame that is offered and accepted; RabbitMQ's default.
pub const FRAME_BYTES_MAX: usize = 131_072;

/// Bytes of a frame around its payload: type, channel, size, end.
pub const FRAME_OVERHEAD_BYTES: usize = 8;

/// What one read takes at most; a whole frame fits behind the rest of an earlier one.
pub const READ_BYTES: usize = 512 * 1024;

/// What one write offers the socket at most.
pub const WRITE_BYTES_MAX: usize = 256 * 1024;

/// A deck of messages has at least this many bytes, so that a write is worth a system call.
pub const DECK_BYTES_MIN: usize = 256 * 1024;

/// A deck has at most this many bytes, unless one message is larger.
pub const DECK_BYTES_MAX: usize = 8 * 1024 * 1024;

/// All decks of a run together, unless they are at their least.
pub const DECKS_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Messages of a deck whose sizes or keys differ: enough that a distribution shows.
pub const DECK_MIXED_MESSAGES: usize = 4096;

/// The largest body that is sent: RabbitMQ's default limit.
pub const BODY_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Bytes of the time that a timed message carries at the start of its body.
pub const STAMP_BYTES: usize = 8;

/// How long an answer to a call may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a broker may take to agree to the end of a connection, before it is cut.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest sleep of a group of connections, so that it sees the end of a run.
pub const GROUP_SLEEP_MAX: Duration = Duration::from_millis(20);

/// Steps of a rate limit that nobody times: messages of this long go out together.
pub const PACE_STEP: Duration = Duration::from_millis(1);

/// The longest latency that a histogram tells apart.
pub const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// Significant decimal digits of a histogram.
pub const LATENCY_DIGITS: u8 = 3;

/// Between two samples of the rates.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Samples for a plot at most; beyond that they are thinned.
pub const SAMPLES_MAX: usize = 4096;

/// Connections of one run at most.
pub const CONNECTIONS_MAX: usize = 100_000;

/// Queues of one run at most.
pub const QUEUES_MAX: usize = 100_000;

const _: () = assert!(READ_BYTES >= 2 * (FRAME_BYTES_MAX + FRAME_OVERHEAD_BYTES));
const _: () = assert!(WRITE_BYTES_MAX <= DECK_BYTES_MAX && DECK_BYTES_MIN <= DECK_BYTES_MAX);
