//! Load on an AMQP 0-9-1 broker over a socket, from frames that are encoded before the clock starts, and
//! comparisons of brokers: what `lepus bench` runs.
//!
//! It knows nothing of the broker's insides and works against any broker. Layers, from the bottom: [`wire`] (frames),
//! [`client`] (connections, and what a run leaves behind: nothing), [`engine`] (connections under load), [`workload`]
//! (one file for each), [`report`] (tables, JSON, plots), [`compare`], and [`cli`].
//!
//! A figure of one run on one machine means little. CPU time of the broker (`--pid`) is disturbed least;
//! [`compare`] runs brokers in turns; [`workload::limit`] says what the machine itself can do.

#![forbid(unsafe_code)]

pub mod cli;
pub mod client;
pub mod clock;
pub mod compare;
pub mod engine;
mod error;
pub mod limits;
pub mod options;
pub mod process;
pub mod report;
pub mod stop;
mod threads;
pub mod uri;
pub mod wire;
pub mod workload;

pub use error::BenchError;
