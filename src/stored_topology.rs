//! The topology of a broker that does not run, for commands that read or change it.
//!
//! The topology store is opened under the lock of the data directory, so that a running broker and this
//! never write it both. A change is decided by the same writer as in the broker, with the same refusals, and
//! is on disk when it returns; the broker goes by it from its next start on.

use std::path::{Path, PathBuf};
use std::{fs, io};

use lepus_shards::topology::{Evaluation, Operation, Requester, TopologyError, Writer};
use lepus_shards::{ConnectionId, ShardId, VhostId, limits};
use lepus_storage::{DataDir, DataDirError, StoreError, TopologyStore};
use thiserror::Error;

use crate::server::write_now;

/// Why a stopped broker's topology cannot be read or changed.
#[derive(Debug, Error)]
pub enum StoredTopologyError {
    /// There is no such directory.
    #[error("there is no data directory {}: {source}", path.display())]
    Missing {
        /// What was named.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A running broker has it, or it is not one of ours.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The topology cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The topology does not make sense.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The change makes no sense, or is of something that is not there.
    #[error("{0}")]
    Refused(String),
}

/// The topology in a data directory, which is held as long as this lives.
pub struct StoredTopology {
    writer: Writer,
    vhost: VhostId,
    store: TopologyStore,
    _data_dir: DataDir,
}

impl StoredTopology {
    /// Opens the data directory of a stopped broker. `vhost` is the one that is changed; it need not exist yet.
    ///
    /// # Errors
    /// [`StoredTopologyError`], among others when a broker runs on the directory.
    pub fn open(path: &Path, vhost: &str) -> Result<StoredTopology, StoredTopologyError> {
        fs::metadata(path)
            .map_err(|source| StoredTopologyError::Missing { path: path.to_owned(), source })?;
        let data_dir = DataDir::open(path)?;
        let (store, snapshot) = TopologyStore::open(&data_dir)?;
        // With as many shards as there can be, no queue has to move.
        let (writer, _) = Writer::restore(limits::SHARDS_MAX, snapshot.rows, vhost, fastrand::Rng::new())?;
        let vhost = writer.topology().vhost(vhost).expect("the default vhost exists in any case");
        Ok(StoredTopology { writer, vhost, store, _data_dir: data_dir })
    }

    /// What is there.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The vhost that is changed.
    pub fn vhost(&self) -> VhostId {
        self.vhost
    }

    /// Makes a change that asks nothing of queues' owners, and stores it.
    ///
    /// # Errors
    /// It is refused, or cannot be stored.
    pub fn change(&mut self, operation: &Operation) -> Result<(), StoredTopologyError> {
        // Nobody's connection: such changes look at none.
        let connection = ConnectionId { shard: ShardId(0), slot: 0, generation: 0 };
        if let Evaluation::Refused(refusal) = self.writer.evaluate(operation, Requester { connection }) {
            return Err(StoredTopologyError::Refused(refusal.text));
        }
        Ok(write_now(&mut self.store, self.writer.take_store_writes())?)
    }
}
