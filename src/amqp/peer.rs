//! The protocol's state of one connection and of its channels.

use std::net::SocketAddr;

use lepus_shards::{ChannelId, ConnectionId, ConsumerId, VhostId};
use rustc_hash::FxHashMap;

use super::codec::METHOD;
use super::failure::Ids;
use super::output::Output;

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Nothing has come yet: the protocol header is due.
    Header,
    /// `connection.start` was sent.
    Start,
    /// `connection.tune` was sent.
    Tune,
    /// `connection.open` is due.
    Open,
    /// Channels may be used.
    Running,
    /// `connection.close` was sent; only its answer counts.
    Closing,
    /// `connection.close` was sent and the input is out of step: it is thrown away until the client
    /// closes the socket. Closing it first would reset it, and the client might not read why.
    Deaf,
    /// Wrong credentials: closed without a word, after a delay.
    LoginRefused,
    /// Output is written, then the socket closes. Input is thrown away.
    Flushing,
    /// The socket is to be closed now.
    Dead,
}

/// Why a connection is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// It wants to publish, and memory is short.
    Blocked,
    /// A channel holds back all that it may, or the connection's close waits for the channels.
    Held,
    /// Memory for incomplete bodies is used up: another one's turn is first.
    Assembly,
}

/// A body frame that is taken in pieces, as they come.
#[derive(Clone, Copy, Debug)]
pub struct Streaming {
    /// The channel.
    pub channel: u16,
    /// Bytes of the frame's payload that are still to come.
    pub remaining: usize,
}

/// What a client can do, as it said.
#[derive(Clone, Copy, Default, Debug)]
pub struct Capabilities {
    /// Wants `connection.blocked`.
    pub blocked: bool,
    /// Wants `basic.cancel`.
    pub cancel_notify: bool,
    /// Wants a close frame when its login is refused.
    pub authentication_failure_close: bool,
}

/// What a channel's unanswered request is, and so what its answer looks like.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeBind,
    ExchangeUnbind,
    QueueDeclare,
    QueueBind,
    QueueUnbind,
    QueueDelete,
    QueuePurge,
    Consume { tag: String, consumer: ConsumerId },
    Cancel { tag: String },
    Get,
    Qos,
    Commit,
}

/// What a channel's publishes are answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Nothing.
    #[default]
    Plain,
    /// A confirm for each.
    Confirming,
    /// A commit for several, and for settlements with them.
    Transactional,
}

/// An unanswered request.
#[derive(Clone, Debug)]
pub struct Busy {
    pub asked: Asked,
    /// The client does not want a good answer.
    pub nowait: bool,
    pub ids: Ids,
}

/// Where a channel is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelState {
    Open,
    /// The client closed it; close-ok follows when the shard has let go of it.
    Closing,
    /// We closed it: its frames are ignored until close-ok has come. The number is free when the shard
    /// has let go of it, too.
    Refused {
        close_ok: bool,
        released: bool,
    },
}

/// A publish whose content is on its way.
#[derive(Default, Debug)]
pub struct Content {
    pub exchange: Vec<u8>,
    pub routing_key: Vec<u8>,
    pub mandatory: bool,
    pub immediate: bool,
    /// None until the header has come.
    pub body_size: Option<u64>,
    pub properties: Vec<u8>,
    /// What has come of the body; it counts against the shard's assembly budget.
    pub body: Vec<u8>,
}

/// A channel.
#[derive(Debug)]
pub struct Channel {
    pub id: ChannelId,
    pub state: ChannelState,
    pub busy: Option<Busy>,
    /// It was refused while answering: the shard must still be told.
    pub unreleased: bool,
    /// Raw frames that wait for the answer to a request.
    pub held: Vec<u8>,
    /// What an empty queue name means.
    pub last_queue: String,
    pub content: Option<Box<Content>>,
    pub mode: Mode,
    /// A queue is full and makes the channel's publishes wait: they are held, and what comes behind them,
    /// except for acks and the channel's close.
    pub publishing_held: bool,
}

impl Channel {
    pub fn new(id: ChannelId) -> Channel {
        Channel {
            id,
            state: ChannelState::Open,
            busy: None,
            unreleased: false,
            held: Vec::new(),
            last_queue: String::new(),
            content: None,
            mode: Mode::Plain,
            publishing_held: false,
        }
    }

    /// This frame must wait for room in a queue. A content that has begun does not wait any more, and neither
    /// do acks, nacks and rejects, which may make that room, nor the channel's close.
    pub fn awaits_room(&self, kind: u8, ids: Option<Ids>) -> bool {
        let passes = kind == METHOD && matches!(ids, Some((60, 80 | 90 | 120) | (20, 40)));
        self.publishing_held && self.content.is_none() && self.state == ChannelState::Open && !passes
    }

    /// Frames are held only because a queue has no room for the channel's publishes.
    pub fn only_awaits_room(&self) -> bool {
        self.publishing_held
            && self.content.is_none()
            && self.state == ChannelState::Open
            && self.busy.is_none()
    }

    /// This frame must wait, now that it has come.
    pub fn must_hold(&self, kind: u8, ids: Option<Ids>) -> bool {
        match self.only_awaits_room() {
            true => self.awaits_room(kind, ids),
            false => self.holds_back(),
        }
    }

    /// Later frames must wait.
    #[inline]
    pub fn holds_back(&self) -> bool {
        let closing = match self.state {
            ChannelState::Open => false,
            ChannelState::Closing => true,
            ChannelState::Refused { close_ok, released } => close_ok && !released,
        };
        closing || self.busy.is_some() || !self.held.is_empty()
    }
}

/// A consumer, as deliveries name it.
#[derive(Debug)]
pub struct ConsumerName {
    pub channel: u16,
    pub tag: Box<str>,
}

/// A connection.
#[derive(Debug)]
pub struct Peer {
    pub phase: Phase,
    pub connection: Option<ConnectionId>,
    pub vhost: VhostId,
    pub user: String,
    /// The client's address, and ours.
    pub ends: (SocketAddr, SocketAddr),
    pub from_loopback: bool,
    pub capabilities: Capabilities,
    pub output: Output,
    /// Bytes that were read and cannot be used yet.
    pub stash: Vec<u8>,
    pub streaming: Option<Streaming>,
    pub pause: Option<Pause>,
    /// Sorted by number; most connections have few.
    pub channels: Vec<(u16, Box<Channel>)>,
    pub consumers: FxHashMap<ConsumerId, ConsumerName>,
    /// Frames held by channels that have ended; they belong to their numbers' next channels.
    pub orphans: Vec<(u16, Vec<u8>)>,
    pub frame_max: usize,
    pub channel_max: u16,
    pub heartbeat_ms: u64,
    pub last_read_ms: u64,
    pub last_write_ms: u64,
    /// When the handshake, or the close, must be done.
    pub deadline_ms: Option<u64>,
    /// What had been written when output began to stand still, and when that was.
    pub stall: Option<(u64, u64)>,
    pub told_blocked: bool,
    pub publishes: bool,
    pub listed_dirty: bool,
    pub listed_resume: bool,
    /// A refusal that ends the connection, found while answering.
    pub failure: Option<super::failure::Failure>,
}

impl Peer {
    pub fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        let index = self.index(number).ok()?;
        Some(&mut self.channels[index].1)
    }

    pub fn index(&self, number: u16) -> Result<usize, usize> {
        self.channels.binary_search_by_key(&number, |(number, _)| *number)
    }

    /// Some channel has frames, or a request, that are not done with.
    pub fn is_busy(&self) -> bool {
        !self.orphans.is_empty()
            || self.channels.iter().any(|(_, channel)| channel.holds_back() && !channel.only_awaits_room())
    }

    /// The socket is still read and its frames count.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }
}
