//! Transactions of channels: what a channel publishes and settles between two commits is kept on its home
//! shard, and nobody sees anything of it.
//!
//! A message is routed when it is published: an exchange that does not exist is the publisher's error then. A
//! delivery that is settled leaves the channel's unacked at once, so that it cannot be settled twice, and
//! keeps its prefetch. A rollback drops the messages and puts the deliveries back among the unacked. So does
//! the end of a channel, and they go back to their queues with the rest. `recover` concerns the unacked
//! alone, as in RabbitMQ. How a transaction is committed: see `commit.rs`.
//!
//! Kept messages are memory that no consumer frees: they are bounded for each channel, and for all channels of
//! a shard together.

use smallvec::SmallVec;

use super::Shard;
use super::commit::{Beside, Committing, Rest, TxPart, TxPublish, TxSettlement};
use super::effects::Effects;
use super::front_end::{Publish, Published, Verdict};
use super::home::{Channel, ChannelState};
use crate::ledger::Held;
use crate::limits::TRANSACTION_BYTES_MAX;
use crate::queue::Record;
use crate::{ChannelId, DeliveryTag, QueueId, Refusal, RefusalKind, ShardId, TxName};

/// What a kept message costs beside its record: its place in the list, the list of its queues.
const OVERHEAD_BYTES: u64 = 128;

/// A delivery that is settled when the transaction is committed.
pub(super) struct Settled {
    tag: DeliveryTag,
    held: Held,
    verdict: Verdict,
}

/// What a channel has done since the last commit.
#[derive(Default)]
pub(super) struct Transaction {
    publishes: Vec<TxPublish>,
    /// Mandatory messages that no queue takes.
    returns: Vec<Record>,
    /// Copies that go elsewhere than to queues.
    beside: Vec<Beside>,
    /// In the order in which they were settled.
    settled: Vec<Settled>,
    /// Of all messages, overhead included.
    bytes: u64,
}

/// Prefetch of their channel that settled deliveries still use.
pub(super) fn counted(settled: &[Settled]) -> u32 {
    settled.iter().filter(|settled| settled.held.counted).count() as u32
}

/// The transactions of a shard's channels.
pub(super) struct Transactions {
    epoch: u32,
    /// How many were named.
    named: u64,
    /// Of all channels' kept messages.
    bytes: u64,
    bytes_max: u64,
    pub committing: rustc_hash::FxHashMap<TxName, Committing>,
}

impl Transactions {
    pub fn new(epoch: u32, bytes_max: u64) -> Transactions {
        Transactions { epoch, named: 0, bytes: 0, bytes_max, committing: Default::default() }
    }

    /// Bytes of messages that are not committed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn name(&mut self, coordinator: ShardId) -> TxName {
        self.named += 1;
        TxName::new(coordinator, self.epoch, self.named)
    }
}

impl Shard {
    /// From now on the channel's publishes and settlements count when they are committed.
    pub fn select_transactions(&mut self, id: ChannelId) {
        let channel = self.home.open_channel_mut(id);
        channel.transaction.get_or_insert_default();
        // A message whose route is known is published at once: none is, from now on.
        channel.route.version = 0;
    }

    /// Keeps a message of a channel with transactions until its commit.
    pub(super) fn keep_publish(
        &mut self,
        id: ChannelId,
        publish: &Publish<'_>,
        targets: &[QueueId],
    ) -> Result<Published, Refusal> {
        let replies = self.take_replies();
        let histories = self.take_remembered(publish);
        let (mut delayed, delay_ms) = (std::mem::take(&mut self.route.delayed), self.route.delay_ms);
        delayed.sort_unstable();
        let record = Record::of(&publish.message);
        let queues_bytes = size_of_val(targets) + size_of_val(delayed.as_slice());
        let bytes = (record.bytes().len() + queues_bytes) as u64 + OVERHEAD_BYTES;
        let transaction = self.home.open_channel_mut(id).transaction.as_deref_mut().expect("it has one");
        let refuse = |text| Err(Refusal::new(RefusalKind::ResourceError, text));
        if transaction.bytes + bytes > TRANSACTION_BYTES_MAX {
            return refuse(format!("a transaction has more than {TRANSACTION_BYTES_MAX} bytes"));
        }
        if self.transactions.bytes + bytes > self.transactions.bytes_max {
            let most = self.transactions.bytes_max;
            return refuse(format!("transactions that are not committed have more than {most} bytes"));
        }
        let nowhere = targets.is_empty() && replies.is_empty() && delayed.is_empty();
        if nowhere && histories.is_empty() && !publish.mandatory {
            return Ok(Published::Kept);
        }
        transaction.bytes += bytes;
        self.transactions.bytes += bytes;
        if !replies.is_empty() || !histories.is_empty() {
            let return_it = publish.mandatory && targets.is_empty() && replies.len() == 1;
            transaction.beside.push(Beside { record: record.clone(), histories, replies, return_it });
        }
        let durability = publish.durability;
        if !delayed.is_empty() {
            // The time that it waits there is its time to live in the queues where it does.
            let (record, queues, ttl_ms) = (record.clone(), SmallVec::from_slice(&delayed), Some(delay_ms));
            transaction.publishes.push(TxPublish { record, queues, durability, ttl_ms });
        }
        if !targets.is_empty() {
            let (queues, ttl_ms) = (targets.into(), publish.ttl_ms);
            transaction.publishes.push(TxPublish { record, queues, durability, ttl_ms });
        } else if nowhere && publish.mandatory {
            transaction.returns.push(record);
        }
        Ok(Published::Kept)
    }

    /// Ends unacked deliveries of a channel with transactions, once that is committed. False if the tag is
    /// not that of an unacked delivery.
    #[cold]
    pub(super) fn keep_settlements(
        &mut self,
        id: ChannelId,
        tag: DeliveryTag,
        multiple: bool,
        verdict: Verdict,
    ) -> bool {
        let Channel { unacked, transaction, .. } = self.home.open_channel_mut(id);
        let settled = &mut transaction.as_deref_mut().expect("it has one").settled;
        if multiple {
            return unacked.take_up_to(tag, |tag, held| settled.push(Settled { tag, held, verdict }));
        }
        let held = unacked.take(tag);
        settled.extend(held.map(|held| Settled { tag, held, verdict }));
        held.is_some()
    }

    /// Forgets what the channel has published since the last commit; what it has settled is unacked again.
    ///
    /// # Panics
    /// When the channel has no transactions.
    pub fn roll_back(&mut self, id: ChannelId) {
        let channel = self.home.channel_mut(id).expect("a channel is rolled back before it ends");
        let transaction =
            channel.transaction.as_deref_mut().expect("the protocol knows which channel has one");
        let Transaction { settled, bytes, .. } = std::mem::take(transaction);
        self.transactions.bytes -= bytes;
        put_back(channel, settled);
    }

    /// What a refused transaction has settled is unacked again. If the channel has let go of what it held, or
    /// is gone, it goes back to its queues as the rest did.
    pub(super) fn put_back<E: Effects>(&mut self, fx: &mut E, id: ChannelId, settled: Vec<Settled>) {
        let channel = self.home.channel_mut(id);
        let holds =
            |channel: &&mut Channel| !matches!(channel.state, ChannelState::Closing { returned: true, .. });
        if let Some(channel) = channel.filter(holds) {
            return put_back(channel, settled);
        }
        for Settled { held: Held { queue, position, .. }, .. } in settled {
            self.settle_one(fx, queue, position, Verdict::Fail);
        }
    }

    /// A channel closes: what it has not committed is undone.
    pub(super) fn abandon_transaction(&mut self, id: ChannelId) {
        if self.home.channel_mut(id).is_some_and(|channel| channel.transaction.is_some()) {
            self.roll_back(id);
            self.home.channel_mut(id).expect("it was just there").transaction = None;
        }
    }

    /// Everything that the channel has published and settled since the last commit counts, for everybody, or
    /// nothing of it does. Answered with [`super::Reply::Committed`] when it is as durable as asked for.
    ///
    /// # Panics
    /// When the channel has no transactions.
    pub fn commit<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        let channel = self.home.open_channel_mut(id);
        let transaction =
            channel.transaction.as_deref_mut().expect("the protocol knows which channel has one");
        let transaction = std::mem::take(transaction);
        let Transaction { publishes, returns, beside, settled, bytes } = transaction;
        let vhost = channel.vhost;
        self.transactions.bytes -= bytes;
        let name = self.transactions.name(self.id);
        let parts = parts(name, publishes, &settled);
        self.begin_commit(fx, name, Rest { channel: id, vhost, settled, returns, beside }, parts);
        self.finish_step(fx);
    }

    /// Asserts what holds between steps, with full counts. For tests and simulators.
    pub(super) fn assert_transactions(&self) {
        let transactions = self.home.channels().filter_map(|channel| channel.transaction.as_deref());
        let bytes: u64 = transactions.map(|transaction| transaction.bytes).sum();
        assert_eq!(bytes, self.transactions.bytes, "bytes of messages that are not committed");
    }
}

fn put_back(channel: &mut Channel, mut settled: Vec<Settled>) {
    settled.sort_unstable_by_key(|settled| settled.tag);
    channel.unacked.put_back(settled.into_iter().map(|settled| (settled.tag, settled.held)));
}

/// What each owner has to do with a transaction.
fn parts(name: TxName, publishes: Vec<TxPublish>, settled: &[Settled]) -> Vec<(ShardId, TxPart)> {
    let mut parts: Vec<(ShardId, TxPart)> = Vec::new();
    for TxPublish { record, queues, durability, ttl_ms } in publishes {
        let mut record = Some(record);
        let mut owners = queues.chunk_by(|a, b| a.owner() == b.owner()).peekable();
        while let Some(queues) = owners.next() {
            let record = if owners.peek().is_some() { record.clone() } else { record.take() };
            let record = record.expect("the last owner takes it");
            let part = part_of(&mut parts, name, queues[0].owner());
            part.publishes.push(TxPublish { record, queues: queues.into(), durability, ttl_ms });
        }
    }
    for &Settled { held: Held { queue, position, .. }, verdict, .. } in settled {
        let part = part_of(&mut parts, name, queue.owner());
        part.settlements.push(TxSettlement { queue, position, verdict });
    }
    parts
}

fn part_of(parts: &mut Vec<(ShardId, TxPart)>, name: TxName, owner: ShardId) -> &mut TxPart {
    let at = parts.iter().position(|(other, _)| *other == owner).unwrap_or_else(|| {
        parts.push((owner, TxPart::new(name)));
        parts.len() - 1
    });
    &mut parts[at].1
}
