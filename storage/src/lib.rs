//! What Lepus keeps on disk.
//!
//! | module | what it owns |
//! |---|---|
//! | [`data_dir`] | the data directory: that it is ours, writable, in a format we read, and used by one process |
//! | [`log`] | one shard's messages and settlements in segment files, with group commit and recovery |
//! | [`topology_store`] | durable topology as versioned, conditional transactions on an embedded store |
//!
//! Nothing here knows what a queue or an exchange is: rows are keys and values.

// `log::uring_disk::ring` lends buffers to the kernel, `log::unacked_index` maps a file: they allow it for themselves.
#![deny(unsafe_code)]

pub mod data_dir;
pub mod limits;
pub mod log;
#[cfg(test)]
mod test_dir;
pub mod topology_store;

pub use data_dir::{DataDir, DataDirError};
pub use topology_store::{Committed, Snapshot, StoreError, TopologyStore, Write};
