//! One shard's log: messages that must outlive the process, and what became of them.
//!
//! | module | what it owns |
//! |---|---|
//! | `format` | how it lies on disk, described once, with its version |
//! | `disk` | what is asked of a disk |
//! | `shard_log` | appending, settling, group commit |
//! | `space` | segment files: prepared ahead, given back, emptied |
//! | `uring_disk` | the real disk: a ring for commits, a thread for files |
//! | `recovery` | reading a log back |
//! | `unacked_index` | which messages were delivered, in a mapped file |

mod disk;
mod format;
mod recovery;
mod shard_log;
mod space;
mod unacked_index;
mod uring_disk;

pub use disk::{AlignedBuffer, Completion, Disk};
pub use format::{FORMAT, MessageHead, Sequence};
pub use recovery::{Damage, LiveMessage, Recovered, RecoveryError, SegmentSummary, recover};
pub use shard_log::{Appended, Handle, LogCounts, LogFailed, LogOptions, Settlement, ShardLog};
pub use unacked_index::{IndexEntry, IndexError, UnackedIndex};
pub use uring_disk::{Method, UringDisk, UringOptions, list_segments, read_segment, truncate_segment};

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod power_loss_tests;
#[cfg(test)]
mod simulated_disk;
