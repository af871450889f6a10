//! What shards say to each other, and the batches that carry it.
//!
//! Two lanes lead from each shard to each other one. *Forward* carries publishes and requests and may
//! fill; *Reply* carries everything that drains: deliveries, answers, settlements, credit. A request
//! that must not overtake publishes (get, purge, the release of a channel) goes Forward behind them;
//! per peer, the receiver reads Reply first.

use std::sync::Arc;

use bytes::Bytes;

use super::commit::TxMessage;
use super::direct_reply::{DirectReply, ReplyStatus};
use super::front_end::{NewConsumer, Reply, Verdict};
use super::history::Remembered;
use crate::ledger::Position;
use crate::limits::BATCH_BYTES_MAX;
use crate::message::MessageView;
use crate::queue::{Record, encode_record, view_record};
use crate::topology::{Change, Operation, Outcome, Requester};
use crate::{ChannelId, ConnectionId, ConsumerId, Durability, QueueId, Refusal, ShardId};

/// Where a record's bytes are in its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload {
    /// A range of the arena.
    Inline { offset: u32, len: u32 },
    /// A large record that travels by reference count.
    Shared { index: u32 },
}

/// Queues of the receiver, as a range of the batch's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRange {
    start: u32,
    count: u32,
}

/// Who has published a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publisher {
    pub home: ShardId,
    pub channel: ChannelId,
    /// The publish's number on the channel, if a confirm is owed for it; else 0.
    pub number: u64,
}

/// In place of a channel: the shard itself publishes what its queues give up.
pub(crate) const DEAD_LETTERS: ChannelId = ChannelId { slot: u32::MAX, generation: 0 };

/// A request to the topology's writer.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub operation: Operation,
    pub requester: Requester,
    /// Who waits for the answer; nobody for what the broker does by itself.
    pub answer_to: Option<ChannelId>,
}

/// A consumer on its way to its queue's owner.
#[derive(Clone, Debug)]
pub(crate) struct ConsumeAsk {
    pub queue: QueueId,
    pub channel: ChannelId,
    pub connection: ConnectionId,
    pub consumer: NewConsumer,
    /// Most unacked deliveries of this consumer; 0 is no bound.
    pub prefetch: u32,
    /// The channel has a prefetch of its own: each delivery needs its grant.
    pub limited: bool,
}

/// One thing that a shard says to another. The sender is the batch's.
#[derive(Debug)]
pub(crate) enum PeerMessage {
    // Forward
    Publish {
        payload: Payload,
        queues: QueueRange,
        durability: Durability,
        ttl_ms: Option<u64>,
        /// Nobody, for what the broker publishes and does not wait for.
        from: Option<Publisher>,
    },
    /// A message for the history of an exchange that the receiver keeps.
    Remember {
        payload: Payload,
        remembered: Box<Remembered>,
    },
    /// A message for a channel of the receiver, by its address.
    DirectReply {
        payload: Payload,
        reply: Box<DirectReply>,
    },
    /// Whether a reply address leads to a channel of the receiver. Answered with `Answer`.
    ReplyStatus(Box<ReplyStatus>),
    Get {
        queue: QueueId,
        channel: ChannelId,
        no_ack: bool,
    },
    Consume(Box<ConsumeAsk>),
    Cancel {
        consumer: ConsumerId,
        channel: ChannelId,
    },
    Purge {
        queue: QueueId,
        channel: ChannelId,
    },
    Status {
        queue: QueueId,
        channel: ChannelId,
    },
    /// The channel is closing: its consumers end here. Answered with `Released`.
    Release {
        channel: ChannelId,
        connection: ConnectionId,
    },
    /// Whether the channel's consumers need grants. Answered with `Limited`.
    Limit {
        channel: ChannelId,
        connection: ConnectionId,
        limited: bool,
    },
    ForgetConnection {
        connection: ConnectionId,
    },
    Topology(Box<Ask>),
    /// A part of a transaction; everything else about transactions is on the Reply lane.
    Transaction(TxMessage),
    DropQueue {
        queue: QueueId,
        if_unused: bool,
        if_empty: bool,
    },

    // Reply
    Deliver {
        channel: ChannelId,
        consumer: ConsumerId,
        entry: Option<(QueueId, Position)>,
        redelivered: bool,
        granted: bool,
        payload: Payload,
    },
    Got {
        channel: ChannelId,
        entry: Option<(QueueId, Position)>,
        redelivered: bool,
        remaining: u64,
        payload: Payload,
    },
    /// A mandatory message of the channel that found nobody.
    Returned {
        channel: ChannelId,
        payload: Payload,
    },
    Answer {
        channel: ChannelId,
        reply: Box<Reply>,
    },
    /// The queue that a request named has gone meanwhile.
    QueueGone {
        channel: ChannelId,
    },
    TopologyAnswer {
        channel: ChannelId,
        result: Box<Result<Outcome, Refusal>>,
    },
    Released {
        channel: ChannelId,
    },
    Limited {
        channel: ChannelId,
    },
    Confirmed {
        channel: ChannelId,
        number: u64,
        accepted: bool,
    },
    /// The channel has, or has no longer, a message that waits for room in a queue of the sender.
    HoldPublisher {
        channel: ChannelId,
        held: bool,
    },
    ConsumerCancelled {
        channel: ChannelId,
        consumer: ConsumerId,
    },
    Settle {
        queue: QueueId,
        position: Position,
        verdict: Verdict,
    },
    /// A consumer of a limited channel could take this many.
    Want {
        channel: ChannelId,
        consumer: ConsumerId,
        count: u32,
    },
    Grant {
        channel: ChannelId,
        consumer: ConsumerId,
        count: u32,
    },
    /// Of a grant, this many were not needed.
    Ungrant {
        channel: ChannelId,
        count: u32,
    },
    /// The connection has written this many bytes of the receiver's deliveries.
    Drained {
        connection: ConnectionId,
        bytes: usize,
    },
    /// The sender is past its memory budget, or no longer.
    Pressure {
        pressed: bool,
    },
    Apply {
        version: u64,
        changes: Arc<Vec<Change>>,
    },
    Applied {
        version: u64,
    },
    Dropped {
        queue: QueueId,
        result: Box<Result<u64, Refusal>>,
    },
}

/// A record wherever it is: borrowed from a read buffer, from a batch, or stored.
#[derive(Clone, Copy)]
pub(crate) enum RecordRef<'a> {
    View(MessageView<'a>),
    Bytes(&'a [u8]),
    Stored(&'a Record),
    Shared(&'a Bytes),
}

impl RecordRef<'_> {
    pub fn view(&self) -> MessageView<'_> {
        match self {
            RecordRef::View(view) => *view,
            RecordRef::Bytes(bytes) => view_record(bytes),
            RecordRef::Stored(record) => record.view(),
            RecordRef::Shared(bytes) => view_record(bytes),
        }
    }

    /// A record that owns its bytes: one allocation and one copy, none for a shared one.
    pub fn to_record(self) -> Record {
        match self {
            RecordRef::View(view) => Record::of(&view),
            RecordRef::Bytes(bytes) => Record::Own(bytes.into()),
            RecordRef::Stored(record) => record.clone(),
            RecordRef::Shared(bytes) => Record::Shared(bytes.clone()),
        }
    }
}

/// What one shard has to say to another on one lane, this turn. Its buffers are used again.
#[derive(Default, Debug)]
pub struct Batch {
    pub(crate) messages: Vec<PeerMessage>,
    pub(crate) arena: Vec<u8>,
    pub(crate) queues: Vec<QueueId>,
    pub(crate) shared: Vec<Bytes>,
    shared_bytes: usize,
    /// When it was handed to the mesh, by the clock that all shards share.
    pub sent_us: u64,
}

impl Batch {
    /// Nothing to say.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes of messages' records in the batch, copied or shared.
    pub fn bytes_len(&self) -> usize {
        self.arena.len() + self.shared_bytes
    }

    /// The batch should go and a new one begin.
    pub fn is_full(&self) -> bool {
        self.bytes_len() >= BATCH_BYTES_MAX || self.messages.len() >= BATCH_BYTES_MAX / 64
    }

    /// Empties the batch and keeps its buffers, unless one message has made them unusually large.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.queues.clear();
        self.shared.clear();
        self.shared_bytes = 0;
        if self.arena.capacity() > 4 * BATCH_BYTES_MAX {
            self.arena = Vec::new();
        } else {
            self.arena.clear();
        }
    }

    pub(crate) fn push(&mut self, message: PeerMessage) {
        self.messages.push(message);
    }

    /// Copies a record in, or takes a reference to a large one.
    pub(crate) fn add_record(&mut self, record: RecordRef<'_>) -> Payload {
        let shared = match record {
            RecordRef::Shared(bytes) | RecordRef::Stored(Record::Shared(bytes)) => Some(bytes.clone()),
            RecordRef::View(view) => match Record::of_large(&view) {
                Some(bytes) => Some(bytes),
                None => {
                    let offset = self.arena.len();
                    encode_record(&view, &mut self.arena);
                    return self.inline(offset);
                }
            },
            RecordRef::Bytes(_) | RecordRef::Stored(Record::Own(_)) => None,
        };
        if let Some(bytes) = shared {
            self.shared_bytes += bytes.len();
            self.shared.push(bytes);
            return Payload::Shared { index: (self.shared.len() - 1) as u32 };
        }
        let offset = self.arena.len();
        match record {
            RecordRef::Bytes(bytes) => self.arena.extend_from_slice(bytes),
            RecordRef::Stored(stored) => self.arena.extend_from_slice(stored.bytes()),
            RecordRef::View(_) | RecordRef::Shared(_) => unreachable!("returned above"),
        }
        self.inline(offset)
    }

    fn inline(&self, offset: usize) -> Payload {
        let len = self.arena.len() - offset;
        Payload::Inline {
            offset: u32::try_from(offset).expect("an arena is far below 4 GiB"),
            len: u32::try_from(len).expect("a copied record is small"),
        }
    }

    /// The record that [`Self::add_record`] put in.
    pub(crate) fn record(&self, payload: Payload) -> RecordRef<'_> {
        match payload {
            Payload::Inline { offset, len } => {
                RecordRef::Bytes(&self.arena[offset as usize..offset as usize + len as usize])
            }
            Payload::Shared { index } => RecordRef::Shared(&self.shared[index as usize]),
        }
    }

    pub(crate) fn add_queues(&mut self, queues: &[QueueId]) -> QueueRange {
        let start = self.queues.len() as u32;
        self.queues.extend_from_slice(queues);
        QueueRange { start, count: queues.len() as u32 }
    }

    pub(crate) fn queues(&self, range: QueueRange) -> &[QueueId] {
        &self.queues[range.start as usize..(range.start + range.count) as usize]
    }
}
