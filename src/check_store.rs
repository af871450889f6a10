//! `lepus check-store`: reads everything that a stopped broker has left, changes nothing in its logs, and
//! says what is there and what is damaged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use lepus_shards::topology::{Change, TopologyError, Writer};
use lepus_storage::log::{
    DirectoryFiles, IndexError, Recovered, RecoveryError, Standing, UnackedIndex, list_segments, outcomes,
    recover,
};
use lepus_storage::{DataDir, DataDirError, StoreError, TopologyStore};
use thiserror::Error;

/// Why a store cannot be checked, or is not a store.
#[derive(Debug, Error)]
pub enum CheckError {
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
    /// The topology cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The topology does not make sense.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A log cannot be read.
    #[error("{}: {source}", path.display())]
    Log {
        /// The log's directory.
        path: PathBuf,
        /// What is wrong.
        source: RecoveryError,
    },
    /// A log's directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The unacked index is not one.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// What was found.
#[derive(Debug)]
pub struct Findings {
    /// Lines for people.
    pub text: String,
    /// How many places are damaged.
    pub damage: usize,
}

/// Messages of a queue.
#[derive(Default)]
struct QueueCount {
    messages: u64,
    delivered: u64,
}

/// Checks a data directory that no broker uses.
///
/// # Errors
/// [`CheckError`], when it cannot be read at all. Damage that leaves the rest readable is in the findings.
pub fn check_store(path: &Path) -> Result<Findings, CheckError> {
    fs::metadata(path).map_err(|source| CheckError::Missing { path: path.to_owned(), source })?;
    let data_dir = DataDir::open(path)?;
    let (store, snapshot) = TopologyStore::open(&data_dir)?;
    let shards = shard_directories(path)?;
    let (_, changes) = Writer::restore(shards.len().max(1), snapshot.rows, "/", fastrand::Rng::new())?;
    drop(store);
    let names: BTreeMap<u64, String> = changes
        .iter()
        .filter_map(|change| match change {
            Change::CreateQueue(info) => Some((info.durable_id?.0, info.name.to_string())),
            _ => None,
        })
        .collect();
    let mut findings = Findings { text: String::new(), damage: 0 };
    let mut queues: BTreeMap<&str, QueueCount> = BTreeMap::new();
    let (mut orphans, mut logs) = (0, Vec::new());
    for (shard, directory) in shards {
        let unreadable = |source| CheckError::Unreadable { path: directory.clone(), source };
        let segments = list_segments(&directory).map_err(unreadable)?;
        let files = DirectoryFiles { directory: &directory, summaries: false };
        let recovered = recover(shard, &segments, &files)
            .map_err(|source| CheckError::Log { path: directory.clone(), source })?;
        let index = UnackedIndex::open(&directory, shard)?;
        let noted: BTreeMap<_, _> =
            index.entries().map(|entry| ((entry.sequence, entry.queue), entry)).collect();
        let counted = recovered.each_live(&files, |message| {
            let note = noted.get(&(message.sequence, message.queue));
            if note.is_some_and(|note| note.standing == Standing::Settled) {
                return;
            }
            match names.get(&message.queue) {
                Some(name) => {
                    let count = queues.entry(name).or_default();
                    count.messages += 1;
                    count.delivered += u64::from(note.is_some());
                }
                None => orphans += 1,
            }
        });
        counted.map_err(|gone| unreadable(io::Error::other(gone)))?;
        let commits: u64 = recovered.segments.iter().map(|segment| segment.commits).sum();
        let bytes: u64 = recovered.segments.iter().map(|segment| segment.used_bytes).sum();
        let _ = writeln!(
            findings.text,
            "shard {shard}: {} segments, {commits} commits, {bytes} bytes, {} messages",
            recovered.segments.len(),
            recovered.live()
        );
        for damage in &recovered.damage {
            let _ = writeln!(findings.text, "shard {shard}: DAMAGED: {damage}");
        }
        findings.damage += recovered.damage.len();
        logs.push(recovered);
    }
    for (name, count) in queues {
        let QueueCount { messages, delivered } = count;
        let _ = writeln!(
            findings.text,
            "queue '{name}': {messages} messages, {delivered} of them delivered before"
        );
    }
    if orphans > 0 {
        let _ = writeln!(findings.text, "{orphans} messages of queues that were deleted");
    }
    findings.text.push_str(&undecided(&logs));
    let verdict = match findings.damage {
        0 => "no damage".to_owned(),
        count => format!("{count} places are damaged; what is listed above can be read"),
    };
    let _ = writeln!(findings.text, "{verdict}");
    Ok(findings)
}

/// A line on the transactions that were under way, if there are any.
fn undecided(logs: &[Recovered]) -> String {
    let outcomes: BTreeMap<_, _> = outcomes(&logs.iter().collect::<Vec<_>>()).into_iter().flatten().collect();
    if outcomes.is_empty() {
        return String::new();
    }
    let committed = outcomes.values().filter(|&&committed| committed).count();
    let rolled_back = outcomes.len() - committed;
    format!(
        "{} transactions are undecided: the next start commits {committed} of them and rolls {rolled_back} back\n",
        outcomes.len()
    )
}

fn shard_directories(path: &Path) -> Result<Vec<(u32, PathBuf)>, CheckError> {
    let unreadable = |source| CheckError::Unreadable { path: path.to_owned(), source };
    let mut shards = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("shard-")?.parse().ok());
        shards.extend(number.map(|number| (number, path.join(&name))));
    }
    shards.sort_unstable();
    Ok(shards)
}
