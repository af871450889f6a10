//! Load on an AMQP 0-9-1 broker over a socket, from frames that are encoded before the clock starts.
//!
//! It knows nothing of the broker's insides and works against any broker. One thread for each
//! publisher and each consumer; blocking sockets with large reads and writes, so that the generator
//! costs little beside what it measures.

mod client;
mod confirms;
mod throughput;

pub use client::{Client, ClientError};
pub use confirms::{Confirms, ConfirmsReport};
pub use throughput::{Report, Throughput, cpu_seconds};
