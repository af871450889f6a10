//! What boot hands to the server. Made on the main thread, consumed by it.

use std::fmt;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use lepus_storage::TopologyStore;

use super::inquiry::Inquiry;
use super::pulse::Pulse;
use super::shutdown::ShutdownSignal;
use crate::config::Settings;

/// Everything that a running broker starts from. The host has been checked and the data directory is
/// locked; nothing in here can still turn out to be misconfigured.
pub struct ServerPlan {
    /// Bound, listening and non-blocking.
    pub listeners: Vec<TcpListener>,
    /// One shard for each entry, pinned to that CPU. At least one. A CPU appears more than once when
    /// more shards than CPUs were asked for.
    pub cpus: Vec<usize>,
    /// The configuration, settled.
    pub settings: Arc<Settings>,
    /// The data directory.
    pub data_dir: PathBuf,
    /// Where durable topology goes. Dropping it waits for what was handed in.
    pub store: TopologyStore,
    /// Version of the stored topology.
    pub version: u64,
    /// Counts the starts on this data directory, from 1: tells this run's names from earlier runs'.
    pub boot_epoch: u64,
    /// The stored topology: keys and values, ordered by key.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Asks for a drain and a stop.
    pub shutdown: Arc<ShutdownSignal>,
    /// Where each shard notes that it turns.
    pub pulse: Arc<Pulse>,
    /// Asks each shard to log its timings.
    pub inquiry: Arc<Inquiry>,
    /// To be called once, when all shards run and connections are accepted: says so on stdout.
    pub on_ready: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for ServerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPlan")
            .field("listeners", &self.listeners)
            .field("cpus", &self.cpus)
            .field("version", &self.version)
            .field("boot_epoch", &self.boot_epoch)
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}
