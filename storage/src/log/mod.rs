//! One shard's log: messages that must outlive the process, and what became of them.
//!
//! | module | what it owns |
//! |---|---|
//! | `format` | how it lies on disk, described once, with its version |
//! | `disk` | what is asked of a disk |
//! | `shard_log` | appending, settling |
//! | `commit` | group commit |
//! | `directory` | where each live message is |
//! | `reading` | messages that come back from the disk |
//! | `summary` | what is in a closed segment, written beside it |
//! | `space` | segment files: prepared ahead, given back, emptied |
//! | `uring_disk` | the real disk: a ring for commits, a thread for files |
//! | `transactions` | what is on disk as a whole or not at all, in one log or in several |
//! | `recovery` | reading a log back: where each message is |
//! | `undecided` | transactions that a log had not ended, and how they end |
//! | `live` | the messages that were found, in order |
//! | `unacked_index` | which messages were delivered, in a mapped file |

mod commit;
mod directory;
mod disk;
mod format;
mod live;
mod reading;
mod recovery;
mod shard_log;
mod space;
mod summary;
mod transactions;
mod tx_name;
mod unacked_index;
mod undecided;
mod uring_disk;

pub use disk::{AlignedBuffer, Completion, Disk};
pub use format::{FORMAT, NOBODY, Sequence};
pub use live::{LiveMessage, SummaryGone, find_content};
pub use reading::Loaded;
pub use recovery::{Damage, FoundSegment, Recovered, RecoveryError, SegmentFiles, recover};
pub use shard_log::{LogCounts, LogFailed, LogOptions, Settlement, ShardLog};
pub use transactions::TxMessage;
pub use tx_name::TxName;
pub use unacked_index::{IndexEntry, IndexError, Standing, UnackedIndex};
pub use undecided::outcomes;
pub use uring_disk::{
    DirectoryFiles, Method, UringDisk, UringOptions, list_segments, sync_segment, truncate_segment,
};

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod power_loss_tests;
#[cfg(test)]
mod simulated_disk;
#[cfg(test)]
mod transaction_tests;
#[cfg(test)]
mod transaction_world;
#[cfg(test)]
mod transaction_world_tests;
