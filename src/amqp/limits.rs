//! Every bound of the protocol layer, and how they relate.

/// The smallest frame that a client may negotiate (specification 4.2.3 asks for 4,096).
pub const FRAME_MIN_BYTES: u32 = 4096;

/// Type, channel, size and end byte around a frame's payload.
pub const FRAME_OVERHEAD_BYTES: usize = 8;

/// Raw frames that may be held for a channel whose request is not answered yet. Past this the
/// connection is not read.
pub const HELD_BYTES_MAX: usize = 256 * 1024;

/// Output that may wait to be written before the connection is not read any more: who does not
/// read answers gets no more questions in.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// How deep tables and arrays may be nested in one another. What reads them is recursive.
pub const TABLE_DEPTH_MAX: usize = 64;

/// Longest reply text, in bytes (a short string).
pub const REPLY_TEXT_BYTES_MAX: usize = 255;

/// Output buffers that a shard keeps for use by any connection.
pub const POOLED_BUFFERS_MAX: usize = 64;

/// A buffer that has grown past this is not kept.
pub const POOLED_BUFFER_BYTES_MAX: usize = 1024 * 1024;

/// Longest a connection may be kept waiting for the other side's close-ok, in milliseconds.
pub const CLOSE_TIMEOUT_MS: u64 = 5_000;

/// Longest time to live of a message, in milliseconds: ten years of 365 days, as in RabbitMQ.
pub const TTL_MS_MAX: u64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// How long others wait for one connection that sends nothing of a body that they wait for, in
/// milliseconds.
pub const ASSEMBLY_SILENCE_MS: u64 = 5_000;

/// How long a connection waits for memory before it is told so, in milliseconds.
pub const ASSEMBLY_TOLD_MS: u64 = 1_000;

/// How long others wait for one connection to complete a body that memory for such is short for, in
/// milliseconds: a body of the largest size comes in that time at 5 MB/s.
pub const ASSEMBLY_TURN_MS: u64 = 30_000;

/// How long the answer to wrong credentials takes, in milliseconds: always the same.
pub const REFUSED_LOGIN_DELAY_MS: u64 = 500;

const _: () = assert!(HELD_BYTES_MAX > 128 * 1024, "a held frame of the usual largest size fits");
