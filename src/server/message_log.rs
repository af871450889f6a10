//! A shard's log as its surroundings see it: the segment log, the unacked index, and the clock on the
//! wall.
//!
//! Runs on the shard's thread. In each turn [`MessageLog::poll`] takes what the disk has done and begins
//! the next commit. What is live is not in memory, here or in the log: it is loaded when its turn comes. A
//! delivery is noted in the index before it goes out, and a settlement stays noted
//! there until the log has it on disk: so a killed process forgets neither.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lepus_shards::ledger::Returns;
use lepus_shards::message::MessageView;
use lepus_shards::queue::record_head;
use lepus_shards::shard::{Loaded, LogGroup, LogSequence, Logged, LoggedGroup, Restored, TransactionLog};
use lepus_shards::{DurableId, QueueId, TxName};
use lepus_storage::limits::{COMMIT_BYTES_MAX, SEGMENT_BYTES_MIN};
use lepus_storage::log::{
    self, DirectoryFiles, LiveMessage, LogFailed, LogOptions, NOBODY, Recovered, SegmentFiles as _, ShardLog,
    Standing, TxMessage, UnackedIndex, UringDisk, UringOptions, find_content,
};
use lepus_tuning::disk;
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::{error, info, warn};

use super::limits::{COMMIT_SPIN, FREE_SPACE_CHECK, WAITING_SETTLEMENTS_MAX};
use super::own_settlements::OwnSettlements;

/// What a shard's log begins with. Made on the main thread, used up on the shard's.
#[derive(Debug)]
pub(super) struct LogSeed {
    pub directory: PathBuf,
    pub options: LogOptions,
    /// What was in it.
    pub recovered: Recovered,
    pub index: UnackedIndex,
    /// Free bytes of the file system below which nothing is published.
    pub free_limit_bytes: u64,
}

/// One moment by the shard's clock and by the one on the wall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    /// Milliseconds since the shard's clock began.
    pub shard_ms: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

impl Clocks {
    /// Now, by a clock that began then.
    pub fn now(began: Instant) -> Clocks {
        Clocks { shard_ms: began.elapsed().as_millis() as u64, unix_ms: unix_ms() }
    }
}

/// See the module.
pub(super) struct MessageLog {
    log: ShardLog<UringDisk>,
    index: UnackedIndex,
    own_settlements: OwnSettlements,
    directory: PathBuf,
    /// Milliseconds since 1970, by the shard's clock.
    unix_ms: u64,
    /// What that was when the shard's clock began, as of this turn.
    unix_zero_ms: u64,
    /// Commits when the one under way began, and when that was.
    writing: Option<(u64, Instant)>,
    /// What commits took lately: each counts for an eighth.
    commits_take: Duration,
    free_limit_bytes: u64,
    checked: Option<Instant>,
    short_of_space: bool,
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl MessageLog {
    /// Begins the log, and gives what is in it to `restore`, in order. `queues` are the durable queues of
    /// the shard; what is in the log for others was left by deleted ones, and is dropped. Messages of
    /// `with_records` are given with their records. How old a message is is told as of
    /// the time that `clocks` has.
    ///
    /// # Errors
    /// When the disk cannot be used.
    pub fn start(
        seed: LogSeed,
        doorbell: BorrowedFd<'_>,
        queues: &FxHashMap<DurableId, QueueId>,
        with_records: &FxHashSet<QueueId>,
        clocks: Clocks,
        mut restore: impl FnMut(Restored),
    ) -> std::io::Result<MessageLog> {
        let Clocks { shard_ms, unix_ms } = clocks;
        let LogSeed { directory, options, recovered, mut index, free_limit_bytes } = seed;
        let disk = UringDisk::open(&directory, UringOptions::default())?;
        disk.register_eventfd(doorbell)?;
        info!(shard = options.shard, writes = %disk.method(), messages = recovered.live(), "log opened");
        let noted = index_by_message(&index);
        // What the log and the index agree on stays noted; the rest is of messages that are gone.
        let mut kept = FxHashSet::default();
        let mut records = Records { directory: &directory, last: None };
        let mut gone = Vec::new();
        let files = DirectoryFiles { directory: &directory, summaries: true };
        let read = recovered.each_live(&files, |message| {
            let name = (message.sequence, message.queue);
            let note = noted.get(&name);
            if note.is_some() {
                kept.insert(name);
            }
            let queue = queues.get(&DurableId(message.queue));
            let Some(&queue) = queue.filter(|_| note.is_none_or(|note| note.standing != Standing::Settled))
            else {
                return gone.push(name);
            };
            let record = with_records.contains(&queue).then(|| records.read(message)).flatten();
            if record.is_none() && with_records.contains(&queue) {
                error!(queue = ?queue, "a message cannot be read back from the log and is lost");
                return gone.push(name);
            }
            restore(Restored {
                message: message.sequence,
                queue,
                returns: note.map_or(Returns::default(), |note| Returns {
                    all: note.deliveries,
                    failures: note.failures,
                }),
                ttl_ms: message.ttl_ms.map(|ttl_ms| ttl_ms.get()),
                age_ms: unix_ms.saturating_sub(message.published_ms),
                record,
            });
        });
        read.map_err(std::io::Error::other)?;
        let mut log = ShardLog::new(disk, options, recovered);
        for name @ (sequence, queue) in gone {
            log.settle(sequence, queue);
            index.settled(sequence, queue);
            kept.insert(name);
        }
        index.retain(|entry| kept.contains(&(entry.sequence, entry.queue)));
        Ok(MessageLog {
            log,
            index,
            own_settlements: OwnSettlements::default(),
            directory,
            unix_ms,
            unix_zero_ms: unix_ms.saturating_sub(shard_ms),
            writing: None,
            commits_take: Duration::ZERO,
            free_limit_bytes,
            checked: None,
            short_of_space: false,
        })
    }

    /// Sets the time, by the shard's clock: what is appended from now on was published then. An idle shard's
    /// last turn may be long ago when something comes in.
    #[inline]
    pub fn set_time(&mut self, now_ms: u64) {
        self.unix_ms = self.unix_zero_ms + now_ms;
    }

    pub fn append(
        &mut self,
        message: &MessageView<'_>,
        ttl_ms: Option<u64>,
        sync: bool,
        queues: &[DurableId],
    ) -> Logged {
        let queues = queues.iter().map(|queue| queue.0);
        let sequence =
            self.log.append(self.unix_ms, ttl_ms, sync, queues, &record(message, &record_head(message)));
        Logged { sequence, in_log: true }
    }

    pub fn spill(&mut self, message: &MessageView<'_>) -> LogSequence {
        self.log.spill(&record(message, &record_head(message)))
    }

    pub fn claimed(&mut self, message: LogSequence, queue: DurableId) {
        if !self.log.is_spilled(message) {
            self.index.delivered(message, queue.0);
        }
    }

    pub fn came_back(&mut self, message: LogSequence, queue: DurableId, failed: bool) {
        if !self.log.is_spilled(message) {
            self.index.returned(message, queue.0, failed);
        }
    }

    pub fn settled(&mut self, message: LogSequence, queue: Option<DurableId>) {
        if let Some(name) = self.unless_own(message, queue) {
            self.settle(name);
        }
    }

    /// Of a queue that is gone: the index need not remember it until the log has it on disk.
    pub fn discarded(&mut self, message: LogSequence, queue: Option<DurableId>) {
        if let Some((message, queue)) = self.unless_own(message, queue) {
            self.log.settle(message, queue);
        }
    }

    /// What the log is to be told, unless it settles that by itself.
    fn unless_own(&mut self, message: LogSequence, queue: Option<DurableId>) -> Option<(u64, u64)> {
        let name = (message, queue.map_or(NOBODY, |queue| queue.0));
        (!self.own_settlements.takes(name)).then_some(name)
    }

    fn settle(&mut self, (message, queue): (u64, u64)) {
        if self.log.settle(message, queue) {
            self.index.settled(message, queue);
        }
    }

    pub fn load(&mut self, message: LogSequence, waiter: QueueId) -> Loaded<'_> {
        match self.log.load(message, waiter.to_bits()) {
            log::Loaded::Content(record) => Loaded::Record(record),
            log::Loaded::Later => Loaded::Later,
            log::Loaded::Lost => Loaded::Lost,
        }
    }

    /// Transactions whose outcome is on disk here since this was last asked.
    pub fn take_resolved(&mut self) -> Vec<TxName> {
        self.log.take_resolved().map(|tx| TxName(tx.0)).collect()
    }

    /// Those that the log settles by itself. A message that is only out of memory is not kept for its queue:
    /// there is nothing to be atomic about.
    fn lasting(&self, settlements: &[(LogSequence, DurableId)]) -> Vec<(u64, u64)> {
        let lasting = settlements.iter().filter(|(message, _)| !self.log.is_spilled(*message));
        lasting.map(|(message, queue)| (*message, queue.0)).collect()
    }

    /// Queues that asked for something that is there now.
    pub fn take_arrived(&mut self) -> impl Iterator<Item = QueueId> + use<> {
        self.log.take_arrived().into_iter().map(QueueId::from_bits)
    }

    /// Takes what the disk has done, and gives it more to do. Gives the frontier.
    ///
    /// # Errors
    /// When a commit failed: nothing may be confirmed any more.
    pub fn poll(&mut self, now_ms: u64) -> Result<LogSequence, LogFailed> {
        self.unix_zero_ms = unix_ms().saturating_sub(now_ms);
        self.set_time(now_ms);
        self.log.poll(now_ms)?;
        for (sequence, queue) in self.log.take_written_settlements() {
            self.index.forget(sequence, queue);
        }
        self.note_commit();
        Ok(self.log.committed())
    }

    fn note_commit(&mut self) {
        let commits = self.log.counts().commits;
        if self.log.is_writing() && self.writing.is_some_and(|(same, _)| same == commits) {
            return;
        }
        if let Some((_, since)) = self.writing {
            self.commits_take = (self.commits_take * 7 + since.elapsed()) / 8;
        }
        self.writing = self.log.is_writing().then(|| (commits, Instant::now()));
    }

    /// A commit is about to be done: looking at it again costs less than sleeping until it is.
    pub fn is_about_to_commit(&self) -> bool {
        self.commits_take < COMMIT_SPIN
            && self.writing.is_some_and(|(_, since)| since.elapsed() < COMMIT_SPIN)
    }

    /// It is not done yet, but still about to be. Costs no system call.
    pub fn is_still_about_to_commit(&mut self) -> bool {
        self.is_about_to_commit() && !self.log.disk_mut().has_news()
    }

    /// When the log is to be polled for a commit that is being held back, if there is one.
    pub fn commit_due_ms(&self) -> Option<u64> {
        self.log.commit_due_ms()
    }

    /// Bytes that wait to be written.
    pub fn backlog_bytes(&self) -> u64 {
        self.log.backlog_bytes()
    }

    /// So many settlements wait that no more should be made for their own sake.
    pub fn is_behind_with_settlements(&self) -> bool {
        self.log.waiting_settlements() >= WAITING_SETTLEMENTS_MAX
    }

    /// There is more to do for the log right now, besides what it is told.
    pub fn has_more_to_do(&self) -> bool {
        self.log.has_more_to_relocate()
    }

    /// Nothing waits to be written.
    pub fn is_idle(&self) -> bool {
        self.log.is_idle()
    }

    /// The broker is about to end: whatever waits is written.
    pub fn flush(&mut self) {
        self.log.flush();
    }

    /// Whether the disk is too full to take more messages. Looks about once a second.
    pub fn short_of_space(&mut self) -> bool {
        let due = self.checked.is_none_or(|checked| checked.elapsed() >= FREE_SPACE_CHECK);
        if due {
            self.checked = Some(Instant::now());
            let why = match (self.log.out_of_space(), free_bytes(&self.directory)) {
                (Some(reason), _) => Some(format!("no further segment can be had: {reason}")),
                (None, Some(free)) if free < self.free_limit_bytes => {
                    Some(format!("{free} bytes are free, and the limit is {}", self.free_limit_bytes))
                }
                _ => None,
            };
            let short = why.is_some();
            if let Some(why) = why.filter(|_| !self.short_of_space) {
                warn!(directory = %self.directory.display(), "publishing is blocked: {why}");
            } else if !short && self.short_of_space {
                info!(directory = %self.directory.display(), "there is space again");
            }
            self.short_of_space = short;
        }
        self.short_of_space
    }
}

impl TransactionLog for MessageLog {
    fn append_group(&mut self, group: &LogGroup<'_>) -> Option<LoggedGroup> {
        let settlements = self.lasting(group.settlements);
        self.own_settlements.made(&settlements);
        let (names, sequence) = with_messages(group, self.unix_ms, |messages| {
            self.log.append_group(group.sync, messages.iter().copied(), &settlements)
        });
        Some(LoggedGroup { names, sequence })
    }

    fn prepare(&mut self, name: TxName, group: &LogGroup<'_>) -> Option<LoggedGroup> {
        let settlements = self.lasting(group.settlements);
        let tx = log::TxName(name.0);
        let (names, sequence) = with_messages(group, self.unix_ms, |messages| {
            self.log.prepare(tx, group.sync, messages.iter().copied(), &settlements)
        });
        self.own_settlements.prepared(name, settlements);
        Some(LoggedGroup { names, sequence })
    }

    fn decide(&mut self, name: TxName, sync: bool) -> LogSequence {
        self.log.decide(log::TxName(name.0), sync)
    }

    fn resolve(&mut self, name: TxName, committed: bool) {
        self.log.resolve(log::TxName(name.0), committed);
        for settlement in self.own_settlements.resolved(name, committed) {
            self.settle(settlement);
        }
    }

    fn forget_decision(&mut self, name: TxName) {
        self.log.forget_decision(log::TxName(name.0));
    }
}

/// Gives the messages of a group as the log takes them.
fn with_messages<R>(
    group: &LogGroup<'_>,
    published_ms: u64,
    append: impl for<'m> FnOnce(&'m [TxMessage<'m>]) -> R,
) -> R {
    let heads: Vec<_> = group.messages.iter().map(|message| record_head(&message.message)).collect();
    let parts = group.messages.iter().zip(&heads).map(|(message, head)| record(&message.message, head));
    let parts: Vec<_> = parts.collect();
    let queues = group.messages.iter().map(|message| message.queues.iter().map(|queue| queue.0).collect());
    let queues: Vec<Vec<u64>> = queues.collect();
    let messages = group
        .messages
        .iter()
        .zip(&queues)
        .zip(&parts)
        .map(|((message, queues), parts)| TxMessage { published_ms, ttl_ms: message.ttl_ms, queues, parts });
    append(&messages.collect::<Vec<_>>())
}

/// Records of a log that is being opened; the segment that was read last is kept.
struct Records<'a> {
    directory: &'a Path,
    last: Option<(u64, Vec<u8>)>,
}

impl Records<'_> {
    fn read(&mut self, message: &LiveMessage) -> Option<Box<[u8]>> {
        if self.last.as_ref().is_none_or(|(segment, _)| *segment != message.segment) {
            let files = DirectoryFiles { directory: self.directory, summaries: false };
            self.last = Some((message.segment, files.segment(message.segment).ok()?));
        }
        find_content(&self.last.as_ref()?.1, message).map(Into::into)
    }
}

/// The parts of a message's record, as [`lepus_shards::queue::view_record`] takes them apart.
fn record<'a>(message: &MessageView<'a>, head: &'a [u8]) -> [&'a [u8]; 5] {
    [head, message.exchange, message.routing_key, message.properties, message.body]
}

fn free_bytes(directory: &Path) -> Option<u64> {
    disk::free_bytes(directory).ok()
}

type Notes = FxHashMap<(u64, u64), lepus_storage::log::IndexEntry>;

fn index_by_message(index: &UnackedIndex) -> Notes {
    index.entries().map(|entry| ((entry.sequence, entry.queue), entry)).collect()
}

/// How a log is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogSettings {
    /// Settlements go to stable storage, and not only to the kernel.
    pub sync: bool,
    /// Size of a segment file, in bytes.
    pub segment_bytes: u64,
    /// Free bytes of the file system below which nothing is published.
    pub free_limit_bytes: u64,
    /// How long a commit waits for more to go out with it.
    pub commit_delay_max_ms: u64,
}

impl LogSettings {
    pub fn options(&self, shard: u32, epoch: u32) -> LogOptions {
        // A commit leaves room for others in its segment.
        let commit_bytes = COMMIT_BYTES_MAX.min(self.segment_bytes as usize / 4);
        LogOptions {
            shard,
            epoch,
            segment_bytes: self.segment_bytes.max(SEGMENT_BYTES_MIN),
            commit_bytes,
            sync: self.sync,
            commit_delay_max_ms: self.commit_delay_max_ms,
        }
    }
}
