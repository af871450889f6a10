//! The runtime facade: threads that shards run on, tasks, timers, wake-ups and sockets.
//!
//! Only here is the executor library named, and only `eventfd` below holds unsafe code. Everything but
//! [`Doorbell`] and [`spawn_shards`] is used on one shard's thread.

mod doorbell;
mod eventfd;
mod executor;
mod notify;
mod socket;

pub use doorbell::{Doorbell, DoorbellWaiter};
pub use executor::{
    Placement, RuntimeError, ShardOptions, ShardThreads, sleep, spawn, spawn_shards, yield_now,
};
pub use notify::Notify;
pub use socket::{Listener, Socket};

#[cfg(test)]
mod tests;
