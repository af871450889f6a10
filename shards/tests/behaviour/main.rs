//! What the kernel does, behaviour by behaviour, on two shards under a clock that only the test moves.
//!
//! The world is the simulator's, without its dice: what is said is done at once unless a test holds it up.
#![allow(clippy::unwrap_used)]

#[path = "../simulator/world.rs"]
#[allow(dead_code, reason = "the simulator uses all of it")]
mod world;

mod client;
mod confirms;
mod credit;
mod dead_letters;
mod delayed;
mod exchange_client;
mod exchanges;
mod firehose;
mod lengths;
mod lifetimes;
mod order;
mod paging;
mod policies;
mod priorities;
mod replies;
mod timeouts;
mod transactions;
mod waiting;
