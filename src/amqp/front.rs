//! All connections of a shard, as the protocol sees them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use lepus_shards::shard::Effects;
use lepus_shards::{ConnectionId, VhostId};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::auth::Authenticate;
use super::codec::FrameHead;
use super::limits::{OUTPUT_BYTES_MAX, POOLED_BUFFER_BYTES_MAX, POOLED_BUFFERS_MAX};
use super::output::Output;
use super::peer::{Capabilities, Channel, Pause, Peer, Phase};

/// What the protocol must know of the configuration.
pub struct FrontConfig {
    /// Channels that a connection may have, offered in tune.
    pub channel_max: u16,
    /// Largest frame, offered in tune, in bytes.
    pub frame_max: u32,
    /// Consumers that a channel may have; 0 is no bound.
    pub consumers_per_channel_max: usize,
    /// Heartbeat interval offered in tune, in seconds; 0 is none.
    pub heartbeat_s: u16,
    /// Largest body, in bytes.
    pub max_message_bytes: u64,
    /// From accept to open.
    pub handshake_timeout_ms: u64,
    /// How long a client may leave its output unread.
    pub write_stall_timeout_ms: u64,
    /// Bytes that bodies which are not complete may take on this shard, all connections together.
    pub assembly_budget_bytes: u64,
    /// `product` of the server properties.
    pub product: String,
    /// `version` of the server properties.
    pub version: String,
    /// `cluster_name` of the server properties.
    pub cluster_name: String,
    /// Who may log in.
    pub authenticate: Arc<dyn Authenticate>,
}

/// What the server should do with a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Read and write it.
    Open,
    /// Write what is pending, then close it.
    FlushThenClose,
    /// Close it now.
    CloseNow,
}

/// A body that may go past the budget of incomplete ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AssemblyTurn {
    pub slot: u32,
    pub channel: u16,
    pub since_ms: u64,
}

/// Whether there is memory for a part of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    Taken,
    /// When another connection's body is complete.
    Later,
    /// The connection itself keeps another body incomplete that goes first, and would wait for itself.
    Never,
}

/// Effects that lead to a front.
pub trait HasFront: Effects {
    /// The front of the same shard.
    fn front(&mut self) -> &mut Front;
}

/// See the module.
pub struct Front {
    pub(super) config: FrontConfig,
    pub(super) peers: Slab<Box<Peer>>,
    dirty: VecDeque<u32>,
    pub(super) resumable: Vec<u32>,
    pool: Vec<Vec<u8>>,
    pub(super) now_ms: u64,
    /// Seconds since 1970.
    pub(super) unix_s: u64,
    pub(super) blocked: bool,
    /// Bytes of bodies that are not complete.
    pub(super) assembly_reserved_bytes: u64,
    /// The body that may go past the budget.
    pub(super) assembly_turn: Option<AssemblyTurn>,
    /// Connections that wait for it.
    pub(super) assembly_waiting: Vec<u32>,
    /// Where the next look at deadlines and heartbeats begins.
    pub(super) sweep_from: usize,
}

impl Front {
    /// A front without connections.
    pub fn new(config: FrontConfig) -> Front {
        Front {
            config,
            peers: Slab::new(),
            dirty: VecDeque::new(),
            resumable: Vec::new(),
            pool: Vec::new(),
            now_ms: 0,
            unix_s: 0,
            blocked: false,
            assembly_reserved_bytes: 0,
            assembly_turn: None,
            assembly_waiting: Vec::new(),
            sweep_from: 0,
        }
    }

    /// A new connection; its slot names it in every other call until [`super::disconnected`].
    pub fn accept(&mut self, peer: SocketAddr, local: SocketAddr, now_ms: u64) -> u32 {
        self.now_ms = self.now_ms.max(now_ms);
        let peer = Peer {
            phase: Phase::Header,
            connection: None,
            vhost: VhostId(0),
            user: String::new(),
            ends: (peer, local),
            from_loopback: peer.ip().to_canonical().is_loopback(),
            capabilities: Capabilities::default(),
            output: Output::default(),
            stash: Vec::new(),
            streaming: None,
            pause: None,
            channels: Vec::new(),
            consumers: FxHashMap::default(),
            orphans: Vec::new(),
            frame_max: self.config.frame_max as usize,
            channel_max: self.config.channel_max,
            heartbeat_ms: 0,
            last_read_ms: self.now_ms,
            last_write_ms: self.now_ms,
            deadline_ms: Some(self.now_ms + self.config.handshake_timeout_ms),
            stall: None,
            told_blocked: false,
            publishes: false,
            listed_dirty: false,
            listed_resume: false,
            failure: None,
        };
        u32::try_from(self.peers.insert(Box::new(peer))).expect("fewer than 2^32 connections")
    }

    /// Sets the clock on the wall, in seconds since 1970: dead letters carry it.
    pub fn set_unix_time(&mut self, unix_s: u64) {
        self.unix_s = unix_s;
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// There is no connection.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// What is to be written to a connection.
    ///
    /// # Panics
    /// When the slot is free.
    pub fn output(&mut self, slot: u32) -> &mut Output {
        &mut self.peers[slot as usize].output
    }

    /// To be called when output was written: takes the memory of an empty one back.
    pub fn wrote(&mut self, slot: u32) {
        let peer = &mut self.peers[slot as usize];
        if let Some(mut buffer) = peer.output.take_empty()
            && self.pool.len() < POOLED_BUFFERS_MAX
            && buffer.capacity() <= POOLED_BUFFER_BYTES_MAX
        {
            buffer.clear();
            self.pool.push(buffer);
        }
    }

    /// A connection that has new output, or another disposition, since it was last given here.
    pub fn next_dirty(&mut self) -> Option<u32> {
        while let Some(slot) = self.dirty.pop_front() {
            if let Some(peer) = self.peers.get_mut(slot as usize)
                && std::mem::take(&mut peer.listed_dirty)
            {
                return Some(slot);
            }
        }
        None
    }

    /// What to do with a connection's socket.
    ///
    /// # Panics
    /// When the slot is free.
    pub fn disposition(&self, slot: u32) -> Disposition {
        match self.peers[slot as usize].phase {
            Phase::Dead => Disposition::CloseNow,
            Phase::Flushing => Disposition::FlushThenClose,
            _ => Disposition::Open,
        }
    }

    /// The connection may be read: its frames can be used.
    ///
    /// # Panics
    /// When the slot is free.
    pub fn wants_input(&self, slot: u32) -> bool {
        let peer = &self.peers[slot as usize];
        peer.pause.is_none() && peer.output.pending().len() < OUTPUT_BYTES_MAX
    }

    /// The kernel's name of an open connection.
    ///
    /// # Panics
    /// When the slot is free.
    pub fn connection_id(&self, slot: u32) -> Option<ConnectionId> {
        self.peers[slot as usize].connection
    }

    /// Memory that is kept for what a connection has sent, in bytes. For tests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_bytes(&self, slot: u32) -> usize {
        let peer = &self.peers[slot as usize];
        let contents = peer.channels.iter().filter_map(|(_, channel)| channel.content.as_deref());
        let contents = contents.map(|content| {
            let names = content.exchange.capacity() + content.routing_key.capacity();
            names + content.properties.capacity() + content.body.capacity()
        });
        let held = peer.channels.iter().map(|(_, channel)| channel.held.capacity());
        let orphans = peer.orphans.iter().map(|(_, frames)| frames.capacity());
        peer.stash.capacity() + held.sum::<usize>() + orphans.sum::<usize>() + contents.sum::<usize>()
    }

    pub(super) fn peer(&mut self, slot: u32) -> &mut Peer {
        &mut self.peers[slot as usize]
    }

    /// The end of a connection's output, to append to; the connection becomes dirty.
    #[inline]
    pub(super) fn out(&mut self, slot: u32) -> &mut Vec<u8> {
        let Front { peers, pool, dirty, now_ms, .. } = self;
        let peer = &mut peers[slot as usize];
        if !peer.listed_dirty {
            peer.listed_dirty = true;
            dirty.push_back(slot);
        }
        peer.last_write_ms = *now_ms;
        let buffer = peer.output.buffer();
        if buffer.capacity() == 0
            && let Some(pooled) = pool.pop()
        {
            *buffer = pooled;
        }
        buffer
    }

    /// The connection's disposition has changed.
    pub(super) fn mark_dirty(&mut self, slot: u32) {
        let peer = &mut self.peers[slot as usize];
        if !peer.listed_dirty {
            peer.listed_dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// The connection may be able to go on.
    pub(super) fn mark_resumable(&mut self, slot: u32) {
        let peer = &mut self.peers[slot as usize];
        if !peer.listed_resume {
            peer.listed_resume = true;
            self.resumable.push(slot);
        }
    }

    /// An open channel of a connection that still runs.
    pub(super) fn channel(&mut self, slot: u32, number: u16) -> Option<&mut Channel> {
        self.peers.get_mut(slot as usize)?.channel(number)
    }

    /// Takes memory for a part of a body that is not complete. Past the budget one body at a time may go
    /// on, so that some body always gets complete. Nothing at all takes no turn: whose turn it is has
    /// something that can be given back.
    pub(super) fn reserve_assembly(&mut self, slot: u32, channel: u16, bytes: u64) -> Room {
        if bytes > 0 && self.assembly_reserved_bytes + bytes > self.config.assembly_budget_bytes {
            let own = AssemblyTurn { slot, channel, since_ms: self.now_ms };
            let turn = *self.assembly_turn.get_or_insert(own);
            if turn.slot != slot {
                self.assembly_waiting.push(slot);
                return Room::Later;
            }
            if turn.channel != channel {
                return Room::Never;
            }
        }
        self.assembly_reserved_bytes += bytes;
        Room::Taken
    }

    /// A body of the connection has been completed, or given up: others may go on.
    pub(super) fn release_assembly(&mut self, slot: u32, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.assembly_reserved_bytes -= bytes;
        if self.assembly_turn.is_some_and(|turn| turn.slot == slot) {
            self.assembly_turn = None;
        }
        for waiting in std::mem::take(&mut self.assembly_waiting) {
            if self.peers.get(waiting as usize).is_some_and(|peer| peer.pause == Some(Pause::Assembly)) {
                self.mark_resumable(waiting);
            }
        }
    }
}

const _: () = assert!(FrameHead::BYTES + 1 == super::limits::FRAME_OVERHEAD_BYTES, "head and end byte");
