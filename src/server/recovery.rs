//! Reading the shards' logs, on the main thread before shards exist: each on a thread of its own.
//!
//! A shard's log is in `shard-N` of the data directory. Each queue's messages are in the log of the shard
//! that owns it - unless there are fewer shards than before. Then the messages of those that are gone
//! move: they are appended to the logs of their queues' new owners, and when they are on disk there, the
//! old logs are removed. A crash in between leaves both; the copies are recognised, since no two messages
//! of a queue have the same time and content.
//!
//! Before anything else, transactions that were under way are ended: what a log has prepared is committed if
//! any log has decided so. That is on stable storage before the decisions are given up, so that a crash in
//! between changes nothing.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::{fs, io, thread};

use lepus_shards::topology::Change;
use lepus_shards::{DurableId, QueueId};
use lepus_storage::log::{
    DirectoryFiles, IndexEntry, IndexError, LiveMessage, LogFailed, Recovered, RecoveryError,
    SegmentFiles as _, ShardLog, Standing, UnackedIndex, UringDisk, UringOptions, find_content,
    list_segments, outcomes, recover, sync_segment, truncate_segment,
};
use rustc_hash::FxHashMap;
use tracing::{error, info};

use super::message_log::{LogSeed, LogSettings};

/// Why the logs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A directory or file.
    #[error("cannot use the log in {path}: {source}; make it readable and writable for this user")]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is in it.
    #[error("{path}: {source}")]
    Recovery {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        source: RecoveryError,
    },
    /// The unacked index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Messages that have to move cannot be written.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}

/// The durable queues that there are.
pub(super) fn durable_queues(changes: &[Change]) -> FxHashMap<DurableId, QueueId> {
    let queues = changes.iter().filter_map(|change| match change {
        Change::CreateQueue(info) => Some((info.durable_id?, info.id)),
        _ => None,
    });
    queues.collect()
}

pub(super) fn shard_directory(data_dir: &Path, shard: usize) -> PathBuf {
    data_dir.join(format!("shard-{shard}"))
}

/// The logs of this many shards, read.
///
/// # Errors
/// [`LogError`]. Damage is none: it is logged, and what can be read is kept.
pub(super) fn recover_logs(
    data_dir: &Path,
    shards: usize,
    epoch: u32,
    settings: &LogSettings,
    queues: &FxHashMap<DurableId, QueueId>,
) -> Result<Vec<LogSeed>, LogError> {
    let mut logs = read_logs(data_dir, shards)?;
    if end_transactions(epoch, settings, &logs)? {
        logs = read_logs(data_dir, shards)?;
    }
    if move_strays(data_dir, shards, epoch, settings, queues, &logs)? {
        logs = read_logs(data_dir, shards)?;
    }
    logs.truncate(shards);
    logs.iter_mut().for_each(|log| log.recovered.forget_decisions());
    let seeds = logs.into_iter().map(|log| {
        let index = UnackedIndex::open(&log.directory, log.shard as u32)?;
        Ok(LogSeed {
            options: settings.options(log.shard as u32, epoch),
            directory: log.directory,
            recovered: log.recovered,
            index,
            free_limit_bytes: settings.free_limit_bytes,
        })
    });
    seeds.collect()
}

struct ReadLog {
    shard: usize,
    directory: PathBuf,
    recovered: Recovered,
}

/// The logs of these shards, and behind them of any that there were once.
fn read_logs(data_dir: &Path, shards: usize) -> Result<Vec<ReadLog>, LogError> {
    let io = |source| LogError::Io { path: data_dir.to_owned(), source };
    let mut numbers: Vec<usize> = (0..shards).collect();
    for entry in fs::read_dir(data_dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("shard-")?.parse::<usize>().ok());
        numbers.extend(number.filter(|&number| number >= shards));
    }
    numbers.sort_unstable();
    thread::scope(|scope| {
        let readers: Vec<_> = numbers
            .iter()
            .map(|&shard| scope.spawn(move || read_log(shard, shard_directory(data_dir, shard))))
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn read_log(shard: usize, directory: PathBuf) -> Result<ReadLog, LogError> {
    let io = |source| LogError::Io { path: directory.clone(), source };
    fs::create_dir_all(&directory).map_err(io)?;
    let segments = list_segments(&directory).map_err(io)?;
    let files = DirectoryFiles { directory: &directory, summaries: true };
    let recovered = recover(shard as u32, &segments, &files)
        .map_err(|source| LogError::Recovery { path: directory.clone(), source })?;
    for damage in &recovered.damage {
        error!(directory = %directory.display(), "the log is damaged: {damage}; what else is there is kept");
    }
    // A segment that is not written to any more gives back what it does not use.
    for segment in recovered.segments.iter().filter(|segment| segment.used_bytes < segment.bytes) {
        truncate_segment(&directory, segment.segment, segment.used_bytes).map_err(io)?;
    }
    let mut recovered = recovered;
    recovered.segments.iter_mut().for_each(|segment| segment.bytes = segment.used_bytes);
    Ok(ReadLog { shard, directory, recovered })
}

/// Ends what was under way when the broker ended, in every log. True if any has changed.
fn end_transactions(epoch: u32, settings: &LogSettings, logs: &[ReadLog]) -> Result<bool, LogError> {
    let found: Vec<&Recovered> = logs.iter().map(|log| &log.recovered).collect();
    let outcomes = outcomes(&found);
    let decided = found.iter().any(|recovered| recovered.decisions().next().is_some());
    if outcomes.iter().all(Vec::is_empty) && !decided {
        return Ok(false);
    }
    // A process that was killed may have left what only the kernel has: nothing is concluded from that. A
    // decision, and a resolution that lets it go, would be forgotten with the power.
    for log in logs {
        for found in log.recovered.segments.iter().filter(|found| !found.is_stable()) {
            sync_segment(&log.directory, found.segment)
                .map_err(|source| LogError::Io { path: log.directory.clone(), source })?;
        }
    }
    for (log, outcomes) in logs.iter().zip(&outcomes).filter(|(_, outcomes)| !outcomes.is_empty()) {
        let committed = outcomes.iter().filter(|(_, committed)| *committed).count();
        let rolled_back = outcomes.len() - committed;
        info!(shard = log.shard, committed, rolled_back, "transactions that were under way are ended");
        with_log(
            log,
            epoch,
            settings,
            |_| false,
            |running, _| {
                outcomes.iter().for_each(|&(tx, committed)| running.resolve(tx, committed));
            },
        )?;
    }
    Ok(outcomes.iter().any(|outcomes| !outcomes.is_empty()))
}

/// A message of one log that belongs in another: what it is, its queues there, and what the index has of it
/// for each.
struct Stray {
    published_ms: u64,
    ttl_ms: Option<u64>,
    content: Box<[u8]>,
    queues: Vec<(u64, Option<IndexEntry>)>,
}

/// Moves messages to the logs of the shards that own their queues. True if any log has changed.
fn move_strays(
    data_dir: &Path,
    shards: usize,
    epoch: u32,
    settings: &LogSettings,
    queues: &FxHashMap<DurableId, QueueId>,
    logs: &[ReadLog],
) -> Result<bool, LogError> {
    // A queue whose messages have all been settled counts too; that is rare, and looked at more closely then.
    let none_astray = logs
        .iter()
        .all(|log| log.recovered.queues.iter().all(|&queue| elsewhere(log, queues, queue).is_none()));
    let obsolete = logs.iter().filter(|log| log.shard >= shards);
    if none_astray && obsolete.clone().next().is_none() {
        return Ok(false);
    }
    for log in logs {
        move_strays_of(log, epoch, settings, queues, logs)?;
    }
    // Everything is on disk in its new place.
    for log in logs {
        if log.shard >= shards {
            info!(directory = %log.directory.display(), "the log of a shard that is no more is removed");
            fs::remove_dir_all(&log.directory)
                .map_err(|source| LogError::Io { path: log.directory.clone(), source })?;
        } else {
            settle_strays(log, epoch, settings, queues)?;
        }
    }
    fs::File::open(data_dir)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| LogError::Io { path: data_dir.to_owned(), source })?;
    Ok(true)
}

/// Appends what is astray in one log to the logs where it belongs: a segment's worth at a time is in memory.
fn move_strays_of(
    log: &ReadLog,
    epoch: u32,
    settings: &LogSettings,
    queues: &FxHashMap<DurableId, QueueId>,
    logs: &[ReadLog],
) -> Result<(), LogError> {
    let index = UnackedIndex::open(&log.directory, log.shard as u32)?;
    let noted: HashMap<_, _> = index.entries().map(|entry| ((entry.sequence, entry.queue), entry)).collect();
    let mut rows = selected(log, &log.recovered, |row| elsewhere(log, queues, row.queue).is_some())?;
    rows.sort_by_key(|row| (row.segment, row.sequence));
    let files = DirectoryFiles { directory: &log.directory, summaries: false };
    for in_segment in rows.chunk_by(|one, other| one.segment == other.segment) {
        let bytes = files
            .segment(in_segment[0].segment)
            .map_err(|source| LogError::Io { path: log.directory.clone(), source })?;
        let mut to: HashMap<usize, Vec<Stray>> = HashMap::new();
        for rows in in_segment.chunk_by(|one, other| one.sequence == other.sequence) {
            let Some(content) = find_content(&bytes, &rows[0]) else {
                let (segment, sequence) = (rows[0].segment, rows[0].sequence);
                error!(directory = %log.directory.display(), segment, sequence, "a message cannot be read back and is lost");
                continue;
            };
            let mut by_owner: HashMap<usize, Vec<(u64, Option<IndexEntry>)>> = HashMap::new();
            for row in rows {
                let note = noted.get(&(row.sequence, row.queue));
                if let Some(owner) = elsewhere(log, queues, row.queue)
                    && note.is_none_or(|note| note.standing != Standing::Settled)
                {
                    by_owner.entry(owner).or_default().push((row.queue, note.copied()));
                }
            }
            for (owner, queues) in by_owner {
                to.entry(owner).or_default().push(Stray {
                    published_ms: rows[0].published_ms,
                    ttl_ms: rows[0].ttl_ms.map(|ttl_ms| ttl_ms.get()),
                    content: content.into(),
                    queues,
                });
            }
        }
        for (owner, strays) in to {
            append_strays(&logs[owner], epoch, settings, &strays)?;
        }
    }
    Ok(())
}

/// The live messages of a log that are wanted.
fn selected(
    log: &ReadLog,
    recovered: &Recovered,
    wanted: impl Fn(&LiveMessage) -> bool,
) -> Result<Vec<LiveMessage>, LogError> {
    let mut rows = Vec::new();
    let files = DirectoryFiles { directory: &log.directory, summaries: true };
    let read = recovered.each_live(&files, |row| rows.extend(wanted(row).then_some(*row)));
    read.map_err(|gone| LogError::Io { path: log.directory.clone(), source: io::Error::other(gone) })?;
    Ok(rows)
}

/// The shard that owns this queue, if it is not the log's.
fn elsewhere(log: &ReadLog, queues: &FxHashMap<DurableId, QueueId>, durable: u64) -> Option<usize> {
    let owner = queues.get(&DurableId(durable))?.owner().index();
    (owner != log.shard).then_some(owner)
}

fn append_strays(
    log: &ReadLog,
    epoch: u32,
    settings: &LogSettings,
    strays: &[Stray],
) -> Result<(), LogError> {
    let mut index = UnackedIndex::open(&log.directory, log.shard as u32)?;
    let files = DirectoryFiles { directory: &log.directory, summaries: false };
    let sought: HashSet<(u64, u64)> = strays
        .iter()
        .flat_map(|stray| stray.queues.iter().map(|&(queue, _)| (queue, stray.published_ms)))
        .collect();
    let may_be_copy = |row: &LiveMessage| sought.contains(&(row.queue, row.published_ms));
    with_log(log, epoch, settings, may_be_copy, |running, there| {
        let there = contents_of(there, &files);
        let mut moved = 0;
        for Stray { published_ms, ttl_ms, content, queues } in strays {
            let mut new = queues.clone();
            new.retain(|&(queue, _)| !there.contains(&(queue, *published_ms, content.clone())));
            if new.is_empty() {
                continue;
            }
            let names = new.iter().map(|&(queue, _)| queue);
            let sequence = running.append(*published_ms, *ttl_ms, true, names, &[content]);
            for note in new.into_iter().filter_map(|(_, note)| note) {
                index.note(&IndexEntry { sequence, ..note });
            }
            moved += 1;
        }
        info!(shard = log.shard, messages = moved, "messages of queues that have moved here are appended");
    })
}

/// These messages as an earlier attempt may have brought them here: queue, time and content.
fn contents_of(mut rows: Vec<LiveMessage>, files: &DirectoryFiles<'_>) -> HashSet<(u64, u64, Box<[u8]>)> {
    rows.sort_by_key(|row| row.segment);
    let mut copies = HashSet::new();
    for in_segment in rows.chunk_by(|one, other| one.segment == other.segment) {
        let Ok(bytes) = files.segment(in_segment[0].segment) else { continue };
        for row in in_segment {
            if let Some(content) = find_content(&bytes, row) {
                copies.insert((row.queue, row.published_ms, content.into()));
            }
        }
    }
    copies
}

fn settle_strays(
    log: &ReadLog,
    epoch: u32,
    settings: &LogSettings,
    queues: &FxHashMap<DurableId, QueueId>,
) -> Result<(), LogError> {
    let is_stray = |row: &LiveMessage| elsewhere(log, queues, row.queue).is_some();
    with_log(log, epoch, settings, is_stray, |running, strays| {
        for row in strays {
            running.settle(row.sequence, row.queue);
        }
    })
}

/// Opens a log, changes it with a view to those of its messages that are wanted, and waits until that is
/// on disk.
fn with_log(
    log: &ReadLog,
    epoch: u32,
    settings: &LogSettings,
    wanted: impl Fn(&LiveMessage) -> bool,
    change: impl FnOnce(&mut ShardLog<UringDisk>, Vec<LiveMessage>),
) -> Result<(), LogError> {
    let io = |source| LogError::Io { path: log.directory.clone(), source };
    // Read again: this may be the second change.
    let segments = list_segments(&log.directory).map_err(io)?;
    let files = DirectoryFiles { directory: &log.directory, summaries: true };
    let recovered = recover(log.shard as u32, &segments, &files)
        .map_err(|source| LogError::Recovery { path: log.directory.clone(), source })?;
    let disk = UringDisk::open(&log.directory, UringOptions::default()).map_err(io)?;
    let rows = selected(log, &recovered, wanted)?;
    let mut running = ShardLog::new(disk, settings.options(log.shard as u32, epoch), recovered);
    change(&mut running, rows);
    running.flush();
    loop {
        running.poll(0)?;
        if running.is_idle() {
            return Ok(());
        }
        if let Some(reason) = running.out_of_space() {
            return Err(io(io::Error::new(io::ErrorKind::StorageFull, reason.to_owned())));
        }
        thread::yield_now();
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
