//! One shard's log: messages that must outlive the process, and what became of them.

mod disk;
mod format;

pub use disk::{AlignedBuffer, Completion, Disk};
