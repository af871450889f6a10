//! The home's half of a shard: its connections and channels, their unacked deliveries, prefetch and
//! confirms. It talks to the protocol; the owners of queues are on any shard.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::ages::Ages;
use super::batch::PeerMessage;
use super::confirms::Confirms;
use super::direct_reply::ReplyConsumer;
use super::effects::Effects;
use super::firehose::{Tap, TapSource};
use super::front_end::{Address, NewConnection, Reply};
use super::owner::delivery_cost;
use super::transactions::Transaction;
use crate::ledger::{Held, Position, Unacked};
use crate::message::MessageView;
use crate::queue::record_size;
use crate::{ChannelId, ConnectionId, ConsumerId, QueueId, ShardId, VhostId};

/// A connection of this shard.
pub(super) struct Connection {
    pub id: ConnectionId,
    pub vhost: VhostId,
    pub channels: SmallVec<[ChannelId; 2]>,
    /// Bytes of deliveries of each owner that are not given back yet, by shard.
    pub owed: SmallVec<[usize; 2]>,
    /// Owners that know the connection.
    pub owners: SmallVec<[ShardId; 4]>,
    /// It has declared an exclusive queue.
    pub owns_queues: bool,
    /// Bytes of direct replies that may not be written yet.
    pub reply_bytes: usize,
}

/// Where a channel is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChannelState {
    Open,
    /// Waits for this many owners. First they let go of its consumers: what the channel holds goes back
    /// only when nobody can be given it who is about to go. With `returned` it has gone back, and they
    /// say that they have it.
    Closing {
        awaited: u32,
        answer: bool,
        returned: bool,
    },
}

/// A consumer of a limited channel that could take messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub consumer: ConsumerId,
    pub owner: ShardId,
    pub count: u32,
}

/// The route of the channel's last publish: most publishers send to one place.
#[derive(Default)]
pub(super) struct LastRoute {
    /// Topology version that it was found in; 0 is none.
    pub version: u64,
    pub exchange: SmallVec<[u8; 24]>,
    pub routing_key: SmallVec<[u8; 32]>,
    pub queues: SmallVec<[QueueId; 2]>,
}

impl LastRoute {
    pub fn is_for(&self, version: u64, message: &MessageView<'_>) -> bool {
        self.version == version
            && self.routing_key.as_slice() == message.routing_key
            && self.exchange.as_slice() == message.exchange
    }
}

/// A channel of a connection of this shard.
pub(super) struct Channel {
    pub connection: ConnectionId,
    pub number: u16,
    pub vhost: VhostId,
    pub state: ChannelState,
    /// What happens in its vhost is traced.
    pub traced: bool,
    pub unacked: Unacked,
    /// Prefetch of consumers to come; 0 is no bound.
    pub prefetch: u16,
    /// Prefetch of the channel as a whole; 0 is no bound.
    pub limit: u32,
    /// Of `limit`: consumers' unacked deliveries and grants that are on their way.
    pub in_use: u32,
    pub wants: VecDeque<Want>,
    pub confirms: Option<Box<Confirms>>,
    /// What it has done since its last commit, if it has transactions.
    pub transaction: Option<Box<Transaction>>,
    /// Queues in front of which messages of the channel wait.
    pub holds: u32,
    pub consumers: SmallVec<[ConsumerId; 1]>,
    /// Its consumer of direct replies, which no owner knows.
    pub reply_consumer: Option<Box<ReplyConsumer>>,
    /// Owners that have, or had, consumers of this channel, or answered its gets.
    pub owners: SmallVec<[ShardId; 2]>,
    /// Owners that have not yet taken over a new `limit`.
    pub limit_awaited: u32,
    /// The queue that the request under way names.
    pub asked_queue: Option<String>,
    /// The request under way makes the queue if it is not there.
    pub declares: bool,
    /// The queue of the consumer that the request under way starts.
    pub asked_consumer: Option<QueueId>,
    pub route: LastRoute,
    pub ages: Ages,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    channel: Option<Box<Channel>>,
}

/// Connections and channels. See the module.
pub(super) struct Home {
    shard: ShardId,
    shards: usize,
    pub connections: Vec<Option<Box<Connection>>>,
    generations: Vec<u32>,
    channels: Vec<Slot>,
    free_channels: Vec<u32>,
    /// Where each consumer's queue is.
    pub consumers: FxHashMap<ConsumerId, QueueId>,
    next_consumer: u32,
    /// Makes numbers that nobody outside can guess, from the system's randomness.
    secrets: RandomState,
    secrets_made: u64,
    /// What this shard has to say to itself once the current step is done.
    pub loopback: VecDeque<PeerMessage>,
    /// Channels with confirms to emit.
    pub confirming: Vec<ChannelId>,
    /// Shards that are past their memory budget.
    pub pressed: SmallVec<[ShardId; 4]>,
    /// Deliveries of this step that are to be traced.
    pub taps: Vec<Tap>,
}

impl Home {
    pub fn new(shard: ShardId, shards: usize) -> Home {
        Home {
            shard,
            shards,
            connections: Vec::new(),
            generations: Vec::new(),
            channels: Vec::new(),
            free_channels: Vec::new(),
            consumers: FxHashMap::default(),
            next_consumer: 0,
            secrets: RandomState::new(),
            secrets_made: 0,
            loopback: VecDeque::new(),
            confirming: Vec::new(),
            pressed: SmallVec::new(),
            taps: Vec::new(),
        }
    }

    pub fn open_connection(&mut self, slot: u32, new: NewConnection) -> ConnectionId {
        let index = slot as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
            self.generations.resize(index + 1, 0);
        }
        assert!(self.connections[index].is_none(), "a connection's slot is free when it opens");
        self.generations[index] = self.generations[index].wrapping_add(1);
        let id = ConnectionId { shard: self.shard, slot, generation: self.generations[index] };
        self.connections[index] = Some(Box::new(Connection {
            id,
            vhost: new.vhost,
            channels: SmallVec::new(),
            owed: SmallVec::new(),
            owners: SmallVec::new(),
            owns_queues: false,
            reply_bytes: 0,
        }));
        id
    }

    pub fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(id.slot as usize)?.as_deref_mut()?;
        (connection.id == id).then_some(connection)
    }

    pub fn open_channel(&mut self, connection: ConnectionId, number: u16) -> ChannelId {
        let vhost = self.connection_mut(connection).expect("a channel opens on an open connection").vhost;
        let slot = self.free_channels.pop().unwrap_or_else(|| {
            self.channels.push(Slot::default());
            (self.channels.len() - 1) as u32
        });
        let place = &mut self.channels[slot as usize];
        place.generation = place.generation.wrapping_add(1);
        place.channel = Some(Box::new(Channel {
            connection,
            number,
            vhost,
            state: ChannelState::Open,
            traced: false,
            unacked: Unacked::default(),
            prefetch: 0,
            limit: 0,
            in_use: 0,
            wants: VecDeque::new(),
            confirms: None,
            transaction: None,
            holds: 0,
            consumers: SmallVec::new(),
            reply_consumer: None,
            owners: SmallVec::new(),
            limit_awaited: 0,
            asked_queue: None,
            declares: false,
            asked_consumer: None,
            route: LastRoute::default(),
            ages: Ages::default(),
        }));
        let id = ChannelId { slot, generation: place.generation };
        self.connection_mut(connection).expect("looked up above").channels.push(id);
        id
    }

    pub fn channel_mut(&mut self, id: ChannelId) -> Option<&mut Channel> {
        let slot = self.channels.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        slot.channel.as_deref_mut()
    }

    /// The channel that the protocol names: it is open, or the protocol has called after closing it.
    pub fn open_channel_mut(&mut self, id: ChannelId) -> &mut Channel {
        let channel = self.channel_mut(id).expect("the protocol names open channels only");
        debug_assert_eq!(channel.state, ChannelState::Open);
        channel
    }

    /// All channels that are left, closing ones too. For tests and the simulator.
    pub fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter_map(|slot| slot.channel.as_deref())
    }

    /// All channels that are left, closing ones too.
    pub fn channels_mut(&mut self) -> impl Iterator<Item = &mut Channel> {
        self.channels.iter_mut().filter_map(|slot| slot.channel.as_deref_mut())
    }

    pub fn free_channel(&mut self, id: ChannelId) {
        let slot = &mut self.channels[id.slot as usize];
        let channel = slot.channel.take().expect("a freed channel existed");
        self.free_channels.push(id.slot);
        if let Some(connection) = self.connection_mut(channel.connection) {
            connection.channels.retain(|other| *other != id);
        }
    }

    pub fn new_consumer_id(&mut self) -> ConsumerId {
        loop {
            self.next_consumer = self.next_consumer.wrapping_add(1);
            let id = ConsumerId(self.next_consumer);
            if !self.consumers.contains_key(&id) {
                return id;
            }
        }
    }

    /// A number for a reply address.
    pub fn new_secret(&mut self) -> u64 {
        self.secrets_made += 1;
        self.secrets.hash_one(self.secrets_made)
    }

    pub fn forget_consumer(&mut self, channel: ChannelId, consumer: ConsumerId) {
        self.consumers.remove(&consumer);
        if let Some(channel) = self.channel_mut(channel) {
            channel.consumers.retain(|other| *other != consumer);
            channel.wants.retain(|want| want.consumer != consumer);
            channel.reply_consumer.take_if(|replies| replies.consumer == consumer);
        }
    }

    /// A delivery has arrived for a consumer: it gets its tag and goes to the client, in that order.
    #[allow(clippy::too_many_arguments, reason = "the parts of one delivery, on the hot path")]
    pub fn deliver<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        consumer: ConsumerId,
        entry: Option<(QueueId, Position)>,
        redelivered: bool,
        granted: bool,
        owner: ShardId,
        message: MessageView<'_>,
    ) {
        let channel = self.channel_mut(id).expect("deliveries end before the release is answered");
        let (connection, number) = (channel.connection, channel.number);
        let tag = match entry {
            Some((queue, position)) => channel.unacked.push(Held { queue, position, counted: true }),
            None => channel.unacked.skip(),
        };
        if entry.is_some() && !granted {
            // A grant was counted when it was given.
            channel.in_use += 1;
        }
        // A closing channel holds it until it goes back with the rest.
        if channel.state == ChannelState::Open {
            let (to, vhost, traced) =
                (Address { connection, channel: number }, channel.vhost, channel.traced);
            fx.deliver(to, consumer, tag, redelivered, message);
            if traced {
                self.tap_delivery(to, vhost, consumer, entry, redelivered, &message);
            }
        }
        self.owe(connection, owner, delivery_cost(record_size(&message)));
    }

    fn owe(&mut self, connection: ConnectionId, owner: ShardId, bytes: usize) {
        let shards = self.shards;
        let Some(connection) = self.connection_mut(connection) else { return };
        if connection.owed.is_empty() {
            connection.owed.resize(shards, 0);
        }
        connection.owed[owner.index()] += bytes;
    }

    pub fn got<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        entry: Option<(QueueId, Position)>,
        redelivered: bool,
        remaining: u64,
        message: MessageView<'_>,
    ) {
        let channel = self.channel_mut(id).expect("a channel's get is answered before its release");
        let queue = channel.asked_queue.take();
        let tag = match entry {
            Some((queue, position)) => channel.unacked.push(Held { queue, position, counted: false }),
            None => channel.unacked.skip(),
        };
        if channel.state == ChannelState::Open {
            let to = Address { connection: channel.connection, channel: channel.number };
            let (vhost, traced) = (channel.vhost, channel.traced);
            fx.got(to, tag, redelivered, remaining, message);
            if traced {
                self.tap(to, vhost, TapSource::Named(queue.unwrap_or_default()), redelivered, &message);
            }
        }
    }

    /// The answer to a request, for the client that still waits for it.
    pub fn answer<E: Effects>(&mut self, fx: &mut E, id: ChannelId, reply: Reply) {
        match &reply {
            Reply::Cancelled { consumer } => self.forget_consumer(id, *consumer),
            Reply::Consuming { consumer } => self.register_consumer(id, *consumer),
            _ => {}
        }
        let Some(channel) = self.channel_mut(id) else { return };
        channel.asked_queue = None;
        channel.asked_consumer = None;
        if channel.state == ChannelState::Open {
            fx.reply(Address { connection: channel.connection, channel: channel.number }, reply);
        }
    }

    /// The owner has taken the consumer. A closing channel does not: its release is on the way.
    fn register_consumer(&mut self, id: ChannelId, consumer: ConsumerId) {
        let Some(channel) = self.channel_mut(id).filter(|channel| channel.state == ChannelState::Open) else {
            return;
        };
        let queue = channel.asked_consumer.expect("a consumer that was asked for");
        channel.consumers.push(consumer);
        self.consumers.insert(consumer, queue);
    }

    pub fn confirmed(&mut self, id: ChannelId, number: u64, accepted: bool) {
        let Some(channel) = self.channel_mut(id) else { return };
        let Some(confirms) = channel.confirms.as_deref_mut() else { return };
        if confirms.resolve(number, accepted) {
            self.confirming.push(id);
        }
    }

    /// One queue more, or one less, makes the channel's publishes wait.
    pub fn hold_publisher<E: Effects>(&mut self, fx: &mut E, id: ChannelId, held: bool) {
        let Some(channel) = self.channel_mut(id) else { return };
        let was = channel.holds;
        channel.holds = if held { was + 1 } else { was - 1 };
        if (was == 0 || channel.holds == 0) && channel.state == ChannelState::Open {
            fx.publishing_held(Address { connection: channel.connection, channel: channel.number }, held);
        }
    }

    /// Emits what can be confirmed, coalesced.
    pub fn emit_confirms<E: Effects>(&mut self, fx: &mut E) {
        let mut confirming = std::mem::take(&mut self.confirming);
        for id in confirming.drain(..) {
            let Some(channel) = self.channel_mut(id) else { continue };
            let to = Address { connection: channel.connection, channel: channel.number };
            let open = channel.state == ChannelState::Open;
            let Some(confirms) = channel.confirms.as_deref_mut() else { continue };
            confirms.emit(|first, last, accepted| {
                if open {
                    fx.confirm(to, first, last, accepted);
                }
            });
        }
        self.confirming = confirming;
    }
}
