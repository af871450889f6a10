//! The runtime facade: threads that shards run on, tasks, timers, wake-ups and sockets.
//!
//! All that a shard waits for comes through one `io_uring` of its thread, which only `ring` below knows; it also
//! holds all unsafe code. Everything but [`Doorbell`] and [`spawn_shards`] is used on one shard's thread.

mod doorbell;
mod executor;
mod notify;
mod reactor;
mod ring;
mod socket;

pub use doorbell::{Doorbell, DoorbellWaiter};
pub use executor::{
    Placement, RuntimeError, ShardOptions, ShardThreads, sleep, spawn, spawn_shards, spin, yield_now,
};
pub use notify::Notify;
pub use socket::{Listener, Socket};

#[cfg(test)]
mod tests;
