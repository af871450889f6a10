//! Groups of commits as transactions of the database. Runs on the store's own thread.

use std::sync::Arc;

use redb::{Database, ReadableTable as _, StorageBackend, TableDefinition, WriteTransaction};

use super::{Committed, Completion, Snapshot, StoreError, Write};
use crate::limits::TOPOLOGY_CACHE_BYTES;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
const VERSION: &str = "version";
const BOOT_EPOCH: &str = "boot_epoch";

/// A commit on its way to the disk.
pub(super) struct Commit {
    pub expected_version: u64,
    pub version: u64,
    pub writes: Vec<Write>,
}

pub(super) struct Writer {
    database: Database,
    /// What went wrong first; nothing is written after it.
    poison: Option<Arc<str>>,
}

impl Writer {
    /// Opens the database and begins a new boot epoch in it.
    pub fn open(backend: impl StorageBackend) -> Result<(Writer, Snapshot), redb::Error> {
        let database =
            Database::builder().set_cache_size(TOPOLOGY_CACHE_BYTES).create_with_backend(backend)?;
        let transaction = database.begin_write()?;
        let snapshot = begin_epoch(&transaction)?;
        transaction.commit()?;
        Ok((Writer { database, poison: None }, snapshot))
    }

    /// Makes an empty store.
    pub fn make(backend: impl StorageBackend) -> Result<(), redb::Error> {
        Database::builder().create_with_backend(backend)?;
        Ok(())
    }

    /// Writes a group in one transaction; one completion for each commit, in order.
    pub fn write(&mut self, group: Vec<Commit>) -> Vec<Completion> {
        if let Some(reason) = &self.poison {
            return all_poisoned(group.len(), reason);
        }
        let commits = group.len();
        match write_group(&self.database, group) {
            Ok(completions) => completions,
            Err(error) => {
                let reason: Arc<str> = error.to_string().into();
                tracing::error!(%reason, "the topology store failed");
                self.poison = Some(Arc::clone(&reason));
                all_poisoned(commits, &reason)
            }
        }
    }
}

fn all_poisoned(commits: usize, reason: &Arc<str>) -> Vec<Completion> {
    vec![Err(StoreError::Poisoned { reason: Arc::clone(reason) }); commits]
}

fn begin_epoch(transaction: &WriteTransaction) -> Result<Snapshot, redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let version = meta.get(VERSION)?.map_or(0, |value| value.value());
    let boot_epoch = meta.get(BOOT_EPOCH)?.map_or(0, |value| value.value()) + 1;
    meta.insert(BOOT_EPOCH, boot_epoch)?;
    let mut rows = Vec::new();
    for row in transaction.open_table(ROWS)?.iter()? {
        let (key, value) = row?;
        rows.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(Snapshot { version, boot_epoch, rows })
}

/// Nothing of the group is reported as committed unless the whole transaction is on disk.
fn write_group(database: &Database, group: Vec<Commit>) -> Result<Vec<Completion>, redb::Error> {
    let transaction = database.begin_write()?;
    let mut completions = Vec::with_capacity(group.len());
    let before;
    let mut stored;
    {
        let mut meta = transaction.open_table(META)?;
        let mut rows = transaction.open_table(ROWS)?;
        before = meta.get(VERSION)?.map_or(0, |value| value.value());
        stored = before;
        for Commit { expected_version: expected, version, writes } in group {
            if expected != stored {
                completions.push(Err(StoreError::Conflict { version, expected, stored }));
                continue;
            }
            for Write { key, value } in writes {
                match value {
                    Some(value) => drop(rows.insert(key.as_slice(), value.as_slice())?),
                    None => drop(rows.remove(key.as_slice())?),
                }
            }
            stored = version;
            completions.push(Ok(Committed { version }));
        }
        if stored != before {
            meta.insert(VERSION, stored)?;
        }
    }
    if stored == before {
        transaction.abort()?;
    } else {
        transaction.commit()?;
    }
    Ok(completions)
}
