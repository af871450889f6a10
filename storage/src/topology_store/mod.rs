//! Durable topology: rows of keys and values, changed by conditional, versioned commits.
//!
//! A [`TopologyStore`] lives on the shard that alone writes topology. The file behind it is written by
//! one helper thread of the store, because a commit blocks until the disk has it and a shard must not.
//! Commits that wait while one is being synced are written together in the next transaction.
//!
//! # Versions
//!
//! A topology's version also counts changes that are never stored (exclusive queues and the like), so
//! stored versions rise with gaps. A commit names the stored version it builds on and the one it makes;
//! it is refused with [`StoreError::Conflict`], and changes nothing, when something else is stored by
//! then. Commits may be handed in while earlier ones are under way: each builds on the one before
//! ([`TopologyStore::last_version`]), so that behind a refused one the rest is refused too and never
//! applied to a state it was not made for.
//!
//! # Invariants
//!
//! - Every accepted commit gets exactly one completion, in the order they were handed in, and only
//!   when the disk has it (or it has failed for good).
//! - After a failed transaction the store is poisoned: what the disk holds is then unknown, so nothing
//!   more is written, and every commit from then on fails. The file is right again when opened anew.
//! - The boot epoch rises with every opening and is on disk before anybody sees it.
//!
//! # The file
//!
//! `topology.redb`, a redb database with two tables: `meta` (text to u64: `version`, `boot_epoch`) and
//! `rows` (bytes to bytes). Its layout is covered by the version in the data directory's `format`.

mod writer;

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use redb::StorageBackend;
use redb::backends::FileBackend;
use thiserror::Error;

use crate::DataDir;
use crate::limits::COMMITS_OUTSTANDING_MAX;
use writer::{Commit, Writer};

/// The store's file in the data directory.
pub const TOPOLOGY_FILE: &str = "topology.redb";

/// One row set or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The row's key.
    pub key: Vec<u8>,
    /// Its new value; none removes the row, if there is one.
    pub value: Option<Vec<u8>>,
}

/// The commit that made this version is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The stored version from now on.
    pub version: u64,
}

/// What the store held when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The stored version; 0 in a new store.
    pub version: u64,
    /// How often the store has been opened, this time included.
    pub boot_epoch: u64,
    /// All rows, ordered by key.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why the store, or a commit, failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The file cannot be opened or read.
    #[error(
        "cannot open the topology store {path}: {reason}; if the disk is full, free some space; if the file is \
         damaged, restore it from a backup, or move it away to start with no definitions"
    )]
    Open {
        /// The file.
        path: String,
        /// What the system or the database said.
        reason: String,
    },
    /// Another version is stored than the commit builds on. Nothing was written.
    #[error("topology version {version} builds on {expected}, but the stored version is {stored}")]
    Conflict {
        /// The version that was to be made.
        version: u64,
        /// The version that it builds on.
        expected: u64,
        /// The version that is stored.
        stored: u64,
    },
    /// A commit would not raise the version. Nothing was written.
    #[error("topology version {version} does not come after {expected}")]
    NotRising {
        /// The version that was to be made.
        version: u64,
        /// The version that it builds on.
        expected: u64,
    },
    /// Too many commits wait for their completion to be taken.
    #[error("{COMMITS_OUTSTANDING_MAX} commits of the topology are outstanding")]
    Full,
    /// This commit, or an earlier one, could not be written. Nothing will be any more.
    #[error("the topology store failed and takes no more changes: {reason}; check the disk, then restart")]
    Poisoned {
        /// What the system or the database said first.
        reason: Arc<str>,
    },
}

/// Makes an empty store under another name first: a process that is killed meanwhile leaves no half of one.
fn make_store(path: &std::path::Path) -> Result<(), String> {
    let draft = path.with_extension("new");
    let text = |error: std::io::Error| error.to_string();
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&draft).map_err(text)?;
    let backend = FileBackend::new(file).map_err(|error| error.to_string())?;
    let made = Writer::make(backend).map_err(|error| error.to_string());
    made.and_then(|()| std::fs::rename(&draft, path).map_err(text))
}

type Completion = Result<Committed, StoreError>;
type Notify = Arc<dyn Fn() + Send + Sync>;

/// Who is told of completions: set by the owner once it has a doorbell.
#[derive(Default)]
struct Bell(Mutex<Option<Notify>>);

impl Bell {
    fn ring(&self) {
        let notify = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(notify) = notify {
            notify();
        }
    }
}

/// The handle on the store. Dropping it waits until everything handed in is written.
pub struct TopologyStore {
    /// None only while being dropped.
    commits: Option<SyncSender<Commit>>,
    completions: Receiver<Completion>,
    bell: Arc<Bell>,
    outstanding: usize,
    last_version: u64,
    thread: Option<JoinHandle<()>>,
}

impl TopologyStore {
    /// Opens the store in a data directory, or makes it, counts the boot epoch up, and reads all rows.
    /// Blocks on the disk: call it before the shards run.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    pub fn open(directory: &DataDir) -> Result<(TopologyStore, Snapshot), StoreError> {
        let path = directory.path().join(TOPOLOGY_FILE);
        let failed = |reason: String| StoreError::Open { path: path.display().to_string(), reason };
        if !path.exists() {
            make_store(&path).map_err(failed)?;
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| failed(error.to_string()))?;
        let backend = FileBackend::new(file).map_err(|error| failed(error.to_string()))?;
        let opened = TopologyStore::open_backend(backend).map_err(failed)?;
        directory.sync_names().map_err(|error| failed(error.to_string()))?;
        Ok(opened)
    }

    fn open_backend(backend: impl StorageBackend) -> Result<(TopologyStore, Snapshot), String> {
        let (writer, snapshot) = Writer::open(backend).map_err(|error| error.to_string())?;
        let bell = Arc::new(Bell::default());
        let (commits, queue) = mpsc::sync_channel(COMMITS_OUTSTANDING_MAX);
        let (outbox, completions) = mpsc::channel();
        let ring = Arc::clone(&bell);
        let thread = thread::Builder::new()
            .name("lepus-topology".to_owned())
            .spawn(move || serve(writer, &queue, &outbox, &ring))
            .map_err(|error| error.to_string())?;
        let store = TopologyStore {
            commits: Some(commits),
            completions,
            bell,
            outstanding: 0,
            last_version: snapshot.version,
            thread: Some(thread),
        };
        Ok((store, snapshot))
    }

    /// Sets who is told that completions wait, on the store's thread: a doorbell that wakes the shard.
    /// Called at once if there are completions already, for nobody was told of those.
    pub fn notify(&self, notify: Arc<dyn Fn() + Send + Sync>) {
        *self.bell.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&notify));
        if self.outstanding > 0 {
            notify();
        }
    }

    /// The version that a new commit builds on: of the last commit handed in, or else the stored one.
    /// After a refusal, the stored version that the refusal named.
    pub fn last_version(&self) -> u64 {
        self.last_version
    }

    /// Whether [`Self::commit`] would take a commit now.
    pub fn has_room(&self) -> bool {
        self.outstanding < COMMITS_OUTSTANDING_MAX
    }

    /// Hands in a commit: all its writes or none, if `expected_version` is what is stored when its turn
    /// comes. Does not block. The completion comes through [`Self::completion`].
    ///
    /// # Errors
    /// [`StoreError::NotRising`], [`StoreError::Full`] and [`StoreError::Poisoned`], and then there
    /// is no completion.
    pub fn commit(
        &mut self,
        expected_version: u64,
        version: u64,
        writes: Vec<Write>,
    ) -> Result<(), StoreError> {
        if version <= expected_version {
            return Err(StoreError::NotRising { version, expected: expected_version });
        }
        if !self.has_room() {
            return Err(StoreError::Full);
        }
        let commits = self.commits.as_ref().expect("present until the handle is dropped");
        match commits.try_send(Commit { expected_version, version, writes }) {
            Ok(()) => {
                self.outstanding += 1;
                self.last_version = version;
                Ok(())
            }
            Err(TrySendError::Full(_)) => unreachable!("no more than the queue's length is outstanding"),
            Err(TrySendError::Disconnected(_)) => {
                Err(StoreError::Poisoned { reason: "its thread has ended".into() })
            }
        }
    }

    /// The next completion, if one is there: one for each commit that was taken, in their order.
    pub fn completion(&mut self) -> Option<Result<Committed, StoreError>> {
        match self.completions.try_recv() {
            Ok(completion) => Some(self.complete(completion)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Waits for the next completion; none when no commit is outstanding. For tools and tests: a shard
    /// asks [`Self::completion`].
    pub fn wait(&mut self) -> Option<Result<Committed, StoreError>> {
        if self.outstanding == 0 {
            return None;
        }
        let completion = self.completions.recv().ok()?;
        Some(self.complete(completion))
    }

    fn complete(&mut self, completion: Completion) -> Completion {
        self.outstanding -= 1;
        if let Err(StoreError::Conflict { stored, .. }) = completion
            && self.outstanding == 0
        {
            self.last_version = stored;
        }
        completion
    }
}

impl Drop for TopologyStore {
    fn drop(&mut self) {
        // The thread ends when it has written what is queued and the queue is closed.
        drop(self.commits.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the topology store panicked");
        }
    }
}

impl fmt::Debug for TopologyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopologyStore")
            .field("outstanding", &self.outstanding)
            .field("last_version", &self.last_version)
            .finish_non_exhaustive()
    }
}

/// The store's thread: takes whatever has gathered, writes it as one group, reports.
fn serve(mut writer: Writer, queue: &Receiver<Commit>, outbox: &Sender<Completion>, bell: &Bell) {
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        group.extend(queue.try_iter());
        for completion in writer.write(group) {
            // Nobody listens any more once the handle is being dropped; the commits still count.
            let _ = outbox.send(completion);
        }
        bell.ring();
    }
}

#[cfg(test)]
mod tests;
