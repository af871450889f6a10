//! The topology store, as the shard that writes topology uses it.

use std::collections::VecDeque;

use lepus_shards::topology::StoreWrite;
use lepus_storage::{StoreError, TopologyStore, Write};

/// Hands commits to the store one after another, each building on the one before, and keeps those
/// that it has no room for.
#[derive(Debug)]
pub struct Persistence {
    store: TopologyStore,
    /// The kernel counts versions from 1 in each run; the store goes on from where it was.
    base: u64,
    waiting: VecDeque<(u64, Vec<Write>)>,
    failed: Option<StoreError>,
}

/// Writes these rows and waits until they are on disk; where there are no shards.
///
/// # Errors
/// When they cannot be written.
pub(crate) fn write_now(store: &mut TopologyStore, writes: Vec<StoreWrite>) -> Result<(), StoreError> {
    if writes.is_empty() {
        return Ok(());
    }
    let writes = writes.into_iter().map(|write| Write { key: write.key, value: write.value }).collect();
    let version = store.last_version();
    store.commit(version, version + 1, writes)?;
    store.wait().expect("a commit is under way").map(drop)
}

impl Persistence {
    /// Over an open store.
    pub fn new(store: TopologyStore) -> Persistence {
        Persistence { base: store.last_version(), store, waiting: VecDeque::new(), failed: None }
    }

    /// Writes these rows as this version.
    pub fn persist(&mut self, version: u64, writes: Vec<StoreWrite>) {
        let writes = writes.into_iter().map(|write| Write { key: write.key, value: write.value }).collect();
        self.waiting.push_back((version, writes));
        self.hand_in();
    }

    fn hand_in(&mut self) {
        while self.store.has_room()
            && let Some((version, writes)) = self.waiting.pop_front()
        {
            if let Err(error) = self.store.commit(self.store.last_version(), self.base + version, writes) {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// The next version that is on disk.
    ///
    /// # Errors
    /// When something could not be written. Nothing will be any more, and nothing that depends on it
    /// may be answered: the broker has to stop.
    pub fn persisted(&mut self) -> Result<Option<u64>, StoreError> {
        let completion = self.store.completion().transpose();
        self.hand_in();
        match (completion, &self.failed) {
            (Err(error), _) => Err(error),
            (Ok(_), Some(error)) => Err(error.clone()),
            (Ok(committed), None) => Ok(committed.map(|committed| committed.version - self.base)),
        }
    }

    /// Who is told, on another thread, that versions have reached the disk.
    pub fn notify(&self, notify: std::sync::Arc<dyn Fn() + Send + Sync>) {
        self.store.notify(notify);
    }
}
