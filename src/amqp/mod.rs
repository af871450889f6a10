//! AMQP 0-9-1, without I/O: bytes in, calls on the shard, bytes out.
//!
//! One [`Front`] on each shard holds the protocol's state of the shard's connections. The server hands
//! it what it read ([`receive`]) and writes what is in [`Front::output`]. What the shard has to say to a
//! client - a delivery, an answer, a confirm - it says to the front at once, in the order in which the
//! client must see it; what a client's frames still held back may do next happens in [`resume`].
//!
//! A channel with an unanswered request holds its later frames back, so that everything on a channel
//! happens in order; other channels go on.

#![forbid(unsafe_code)]

mod auth;
mod codec;
mod content;
mod copies;
mod dead_letter;
mod edit;
mod failure;
mod front;
mod handshake;
mod limits;
mod method;
mod methods;
mod output;
mod peer;
mod properties;
mod replies;
mod session;
mod table;
mod timing;
mod trace;
mod transactions;
#[cfg(any(test, feature = "fuzzing"))]
pub mod trial;

pub use auth::{Authenticate, Credentials};
pub use front::{Disposition, Front, FrontConfig, HasFront};
pub use output::Output;
pub use session::{disconnected, receive, resume, shutdown};
pub use timing::tick;

#[cfg(test)]
mod session_tests;
