//! The broker at work: shards on their threads, sockets on shards.
//!
//! | file | what it owns |
//! |---|---|
//! | `protocol` | what the server needs of a protocol |
//! | `amqp` | that AMQP is one; [`run`] |
//! | `broker` | making the shards, their ways to each other, and waiting for their end |
//! | `worker` | one shard's thread: turns, and in `sockets` reading and writing |
//! | `alarm` | wake-ups that are asked for once |
//! | `connection` | one client connection's tasks |
//! | `accept` | accepting, and handing to shards |
//! | `surroundings` | what a shard has effects on: connections, outboxes, log, store |
//! | `message_log` | the shard's log |
//! | `recovery` | reading the logs, before shards exist |
//! | `outboxes` | batches on their way to other shards |
//! | `store` | the topology store on its shard |
//! | `drain` | how the broker stops |
#![forbid(unsafe_code)]

mod accept;
mod alarm;
mod amqp;
mod broker;
mod connection;
mod drain;
pub mod limits;
mod message_log;
mod outboxes;
mod own_settlements;
pub mod protocol;
mod recovery;
mod store;
mod surroundings;
mod timings;
mod worker;

pub use amqp::run;
pub use broker::{Broker, ServerError};
pub use protocol::{Disposition, Protocol};
pub use recovery::LogError;
pub(crate) use store::write_now;
pub use surroundings::Surroundings;

#[cfg(test)]
mod tests;
