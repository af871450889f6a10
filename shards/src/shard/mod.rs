//! The kernel of one core: commands in, effects out, nothing awaited.
//!
//! A shard is two things at once. It is the *home* of connections: their channels, delivery tags,
//! prefetch and confirms. And it is the *owner* of queues: their messages, cursors and consumers. The
//! two talk through [`PeerMessage`]s - between shards in batches, within a shard by a direct call where
//! speed or order asks for it, else through a loop that is run empty before each step ends. Shard 0
//! also has the topology's writer.

mod ages;
mod batch;
mod commit;
mod confirms;
mod control;
mod dead_letters;
mod direct_reply;
mod effects;
mod firehose;
mod front_end;
mod history;
mod home;
mod outward;
mod owner;
mod properties;
mod publish;
mod receive;
mod requests;
mod transaction_log;
mod transactions;

use std::sync::Arc;

pub use self::batch::Batch;
use self::batch::PeerMessage;
use self::confirms::Confirms;
use self::control::Control;
pub use self::effects::{Backplane, Effects, Loaded, LogSequence, Logged};
pub use self::firehose::{TraceEvent, Traced};
pub use self::front_end::{
    Address, FrontEnd, HeaderSource, MessageProperty, NewConnection, NewConsumer, NoHeaders, Publish,
    Published, Reply, Request, Restored, Verdict,
};
use self::history::Histories;
use self::home::{ChannelState, Home};
use self::outward::Outward;
use self::owner::Owner;
pub use self::owner::WaitTimes;
pub(crate) use self::owner::WaitingRoom;
pub use self::properties::{DeadLetterProperties, Death, PropertyFormat, Reason, WaitedProperties};
pub use self::transaction_log::{GroupMessage, LogGroup, LoggedGroup, TransactionLog};
use self::transactions::Transactions;
use crate::ledger::Held;
use crate::limits::{HISTORY_MEMORY_SHARE, TRANSACTION_MEMORY_SHARE};
pub use crate::mesh::Lane;
use crate::topology::{Change, RouteScratch, Topology, Writer};
use crate::{
    ChannelId, ConnectionId, ConsumerId, DeliveryTag, Durability, QueueId, Refusal, RefusalKind, ShardId,
};

/// The shard that has the topology's writer.
pub const WRITER: ShardId = ShardId(0);

/// What a shard is told when it starts.
pub struct ShardConfig {
    /// Which one it is.
    pub id: ShardId,
    /// How many there are.
    pub shards: usize,
    /// Counts the starts of this broker: tells this owner from former ones.
    pub epoch: u32,
    /// Bytes of messages from which on publishers are blocked.
    pub memory_budget_bytes: u64,
    /// Of durable queues that do not say otherwise.
    pub durability: Durability,
    /// How long a delivery may stay unacked, in milliseconds, where a queue does not say; 0 is for ever.
    pub consumer_timeout_ms: u64,
}

/// What a shard holds at a moment, for metrics and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCounts {
    /// Bytes that messages take.
    pub memory_bytes: u64,
}

/// The kernel of one core. See the module.
pub struct Shard {
    id: ShardId,
    shards: usize,
    home: Home,
    owner: Owner,
    topology: Topology,
    control: Option<Control>,
    histories: Histories,
    transactions: Transactions,
    /// Reused from publish to publish.
    route: RouteScratch,
    targets: Vec<QueueId>,
    held: Vec<Held>,
    more_to_page: bool,
    now_ms: u64,
    consumer_timeout_ms: u64,
    /// When deliveries are looked at again.
    next_ageing_ms: u64,
}

impl Shard {
    /// A shard whose topology begins with these changes, as version 1. Shard 0 is given the writer.
    ///
    /// # Panics
    /// When the writer is given to another shard, or not given to shard 0.
    pub fn new(config: ShardConfig, changes: &[Change], writer: Option<Writer>) -> Shard {
        assert_eq!(writer.is_some(), config.id == WRITER, "shard 0 has the writer, and only it");
        let mut shard = Shard {
            id: config.id,
            shards: config.shards,
            home: Home::new(config.id, config.shards),
            owner: Owner::new(config.epoch, config.memory_budget_bytes, config.durability),
            topology: Topology::new(),
            control: writer.map(|writer| Control::new(writer, config.shards)),
            histories: Histories::new(config.memory_budget_bytes / HISTORY_MEMORY_SHARE),
            transactions: Transactions::new(
                config.epoch,
                config.memory_budget_bytes / TRANSACTION_MEMORY_SHARE,
            ),
            // Different on every shard and in every run, and the same where a run is repeated.
            route: RouteScratch::with_seed(u64::from(config.epoch) << 16 | u64::from(config.id.0)),
            targets: Vec::new(),
            held: Vec::new(),
            more_to_page: false,
            now_ms: 0,
            consumer_timeout_ms: config.consumer_timeout_ms,
            next_ageing_ms: 0,
        };
        shard.topology.apply_all(1, changes);
        for change in changes {
            if let Change::CreateQueue(info) = change
                && info.id.owner() == shard.id
            {
                shard.owner.create_queue(info);
            }
        }
        shard.create_histories();
        shard
    }

    /// Which shard this is.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// This shard's replica of the topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Sets the time, in milliseconds since any fixed moment; it must not go back.
    pub fn set_time(&mut self, now_ms: u64) {
        self.set_time_us(now_ms * 1_000);
    }

    /// The same in microseconds, so that what is quick can be timed.
    pub fn set_time_us(&mut self, now_us: u64) {
        self.now_ms = now_us / 1_000;
        self.owner.set_time(now_us);
    }

    /// How long messages have waited in queues since this was last asked.
    pub fn take_waits(&mut self) -> WaitTimes {
        self.owner.take_waits()
    }

    /// What the shard holds.
    pub fn counts(&self) -> ShardCounts {
        ShardCounts { memory_bytes: self.owner.memory_bytes() + self.uncounted_bytes() }
    }

    /// Bytes that the owner does not know of.
    fn uncounted_bytes(&self) -> u64 {
        self.histories.bytes() + self.transactions.bytes()
    }

    /// Some shard is past its memory budget: nothing may be published until it is not.
    pub fn publishing_blocked(&self) -> bool {
        !self.home.pressed.is_empty()
    }

    /// Takes a message of a queue back in that was in the log when the shard starts. To be called in the order in
    /// which they were appended, before anything else happens.
    pub fn restore(&mut self, format: &impl PropertyFormat, restored: Restored) {
        self.owner.restore(format, restored);
    }

    /// Messages of this queue are to be restored with their records.
    pub fn needs_records(&self, queue: QueueId) -> bool {
        self.owner.queue(queue).is_some_and(|queue| !queue.is_pageable())
    }

    /// Begins a connection in a slot that the protocol chose and that is free.
    pub fn open_connection(&mut self, slot: u32, new: NewConnection) -> ConnectionId {
        self.home.open_connection(slot, new)
    }

    /// Begins a channel of an open connection.
    pub fn open_channel(&mut self, connection: ConnectionId, number: u16) -> ChannelId {
        let id = self.home.open_channel(connection, number);
        let channel = self.home.open_channel_mut(id);
        channel.traced = self.topology.is_traced(channel.vhost);
        id
    }

    /// From now on the channel's publishes are counted and confirmed.
    pub fn select_confirms(&mut self, channel: ChannelId) {
        let channel = self.home.open_channel_mut(channel);
        channel.confirms.get_or_insert_with(|| Box::new(Confirms::new()));
    }

    /// A name for a consumer that is about to be.
    pub fn new_consumer_id(&mut self) -> ConsumerId {
        self.home.new_consumer_id()
    }

    /// Ends unacked deliveries of a channel: one, or with `multiple` all up to the tag (0: all). On a channel with
    /// transactions they end when that is committed.
    ///
    /// # Errors
    /// When the tag is not that of an unacked delivery; nothing has happened then.
    pub fn settle<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        tag: DeliveryTag,
        multiple: bool,
        verdict: Verdict,
    ) -> Result<(), Refusal> {
        let channel = self.home.open_channel_mut(id);
        let known = if channel.transaction.is_some() {
            self.keep_settlements(id, tag, multiple, verdict)
        } else if multiple {
            self.settle_up_to(fx, id, tag, verdict)
        } else if let Some(Held { queue, position, counted, .. }) = channel.unacked.take(tag) {
            channel.in_use -= u32::from(counted);
            let wanted = !channel.wants.is_empty();
            self.settle_one(fx, queue, position, verdict);
            if wanted {
                self.give_grants(fx, id);
            }
            true
        } else {
            false
        };
        self.finish_step(fx);
        if known {
            return Ok(());
        }
        Err(Refusal::new(RefusalKind::PreconditionFailed, format!("unknown delivery tag {}", tag.0)))
    }

    /// Puts everything that the channel holds back into its queues.
    pub fn recover<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        self.settle_up_to(fx, id, DeliveryTag(0), Verdict::Requeue);
        self.finish_step(fx);
    }

    /// Ends the deliveries up to a tag (0: all). False if it is not that of an unacked one.
    fn settle_up_to<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        tag: DeliveryTag,
        verdict: Verdict,
    ) -> bool {
        let mut held = std::mem::take(&mut self.held);
        let known = self.home.open_channel_mut(id).unacked.take_up_to(tag, |_, one| held.push(one));
        self.settle_held(fx, id, &held, verdict);
        held.clear();
        self.held = held;
        known
    }

    /// Tells the owners what became of deliveries that the channel held, and gives the channel's own
    /// prefetch back.
    fn settle_held<E: Effects>(&mut self, fx: &mut E, id: ChannelId, held: &[Held], verdict: Verdict) {
        for &Held { queue, position, .. } in held {
            self.settle_one(fx, queue, position, verdict);
        }
        let counted = held.iter().filter(|held| held.counted).count() as u32;
        let Some(channel) = self.home.channel_mut(id) else { return };
        channel.in_use -= counted;
        if !channel.wants.is_empty() {
            self.give_grants(fx, id);
        }
    }

    fn settle_one<E: Effects>(
        &mut self,
        fx: &mut E,
        queue: QueueId,
        position: crate::ledger::Position,
        verdict: Verdict,
    ) {
        if queue.owner() == self.id {
            let mut out = Outward { shard: self.id, fx, home: &mut self.home };
            self.owner.settle(&mut out, queue, position, verdict);
        } else {
            fx.outgoing(queue.owner(), Lane::Reply).push(PeerMessage::Settle { queue, position, verdict });
        }
    }

    /// Lets consumers of a limited channel have what is free of its prefetch, shared among those who
    /// asked.
    fn give_grants<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        let (home, mut granted) = (self.id, Vec::new());
        let Some(channel) = self.home.channel_mut(id) else { return };
        while channel.in_use < channel.limit
            && let Some(want) = channel.wants.pop_front()
        {
            let waiting = channel.wants.len() as u32 + 1;
            let share = ((channel.limit - channel.in_use) / waiting).max(1);
            let count = share.min(want.count);
            channel.in_use += count;
            granted.push((want, count));
        }
        for (want, count) in granted {
            let message = PeerMessage::Grant { channel: id, consumer: want.consumer, count };
            if want.owner == home {
                self.home.loopback.push_back(message);
            } else {
                fx.outgoing(want.owner, Lane::Reply).push(message);
            }
        }
    }

    /// Closes a channel: its consumers end, what it holds goes back to its queues, and when that is
    /// done everywhere, [`Reply::ChannelClosed`] follows. The protocol does not name it again.
    pub fn close_channel<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        self.begin_close(fx, id, true);
        self.finish_step(fx);
    }

    /// Forgets a connection: its channels close, its exclusive queues go. No answer.
    pub fn close_connection<E: Effects>(&mut self, fx: &mut E, id: ConnectionId) {
        let Some(connection) = self.home.connection_mut(id) else { return };
        for channel in connection.channels.clone() {
            self.begin_close(fx, channel, false);
        }
        let connection = self.home.connections[id.slot as usize].take().expect("it was just looked at");
        for &owner in &connection.owners {
            if owner == self.id {
                self.owner.forget_connection(id);
            } else {
                fx.outgoing(owner, Lane::Forward).push(PeerMessage::ForgetConnection { connection: id });
            }
        }
        if connection.owns_queues {
            self.release_queues(fx, id);
        }
        self.finish_step(fx);
    }

    fn begin_close<E: Effects>(&mut self, fx: &mut E, id: ChannelId, answer: bool) {
        self.abandon_transaction(id);
        let Some(channel) = self.home.channel_mut(id) else { return };
        if let ChannelState::Closing { answer: answers, .. } = &mut channel.state {
            // The connection goes while its channel is closing: nobody is there for the answer.
            *answers &= answer;
            return;
        }
        channel.state = ChannelState::Closing { awaited: 0, answer, returned: false };
        channel.wants.clear();
        channel.confirms = None;
        channel.reply_consumer = None;
        for consumer in std::mem::take(&mut channel.consumers) {
            self.home.consumers.remove(&consumer);
        }
        self.send_releases(fx, id);
    }

    /// Asks every owner to let go of the channel's consumers, which a second time says no more than
    /// that everything before it has arrived.
    fn send_releases<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        let channel = self.home.channel_mut(id).expect("a closing channel is kept until it is released");
        let (owners, connection) = (channel.owners.clone(), channel.connection);
        let ChannelState::Closing { awaited, .. } = &mut channel.state else { unreachable!("it is closing") };
        *awaited = owners.len() as u32;
        if owners.is_empty() {
            return self.end_channel(fx, id);
        }
        for owner in owners {
            if owner == self.id {
                let mut out = Outward { shard: self.id, fx, home: &mut self.home };
                self.owner.release_channel(&mut out, self.id, id, connection);
                self.home.loopback.push_back(PeerMessage::Released { channel: id });
            } else {
                fx.outgoing(owner, Lane::Forward).push(PeerMessage::Release { channel: id, connection });
            }
        }
    }

    /// An owner has let go of a closing channel. When all have, what the channel holds goes back, all at
    /// once; if somebody waits for the answer, it follows when the owners have it.
    fn released<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        let channel = self.home.channel_mut(id).expect("a closing channel is kept until it is released");
        let ChannelState::Closing { awaited, returned, answer } = &mut channel.state else {
            unreachable!("only a closing channel is released")
        };
        *awaited -= 1;
        if *awaited > 0 {
            return;
        }
        let ask_again = *answer && !*returned;
        if !std::mem::replace(returned, true) {
            let mut held = std::mem::take(&mut self.held);
            channel.unacked.take_up_to(DeliveryTag(0), |_, one| held.push(one));
            self.settle_held(fx, id, &held, Verdict::Fail);
            let nothing = held.is_empty();
            held.clear();
            self.held = held;
            if ask_again && !nothing {
                return self.send_releases(fx, id);
            }
        }
        self.end_channel(fx, id);
    }

    fn end_channel<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        let channel = self.home.channel_mut(id).expect("a channel ends once");
        let to = Address { connection: channel.connection, channel: channel.number };
        let answer = matches!(channel.state, ChannelState::Closing { answer: true, .. });
        self.home.free_channel(id);
        if answer {
            fx.reply(to, Reply::ChannelClosed);
        }
    }

    /// The connection's output has been written down to this many bytes: what it took of the owners'
    /// windows is given back, unless much is still waiting.
    pub fn output_drained<E: Effects>(&mut self, fx: &mut E, id: ConnectionId, pending_bytes: usize) {
        let (home, mut local) = (self.id, 0);
        let Some(connection) = self.home.connection_mut(id) else { return };
        connection.reply_bytes = connection.reply_bytes.min(pending_bytes);
        if pending_bytes > crate::limits::DELIVERY_WINDOW_BYTES / 2 {
            return;
        }
        for (shard, owed) in connection.owed.iter_mut().enumerate() {
            if *owed < crate::limits::DELIVERY_RETURN_BYTES {
                continue;
            }
            let (owner, bytes) = (ShardId(shard as u16), std::mem::take(owed));
            if owner == home {
                local = bytes;
            } else {
                fx.outgoing(owner, Lane::Reply).push(PeerMessage::Drained { connection: id, bytes });
            }
        }
        if local > 0 {
            self.owner.drained(id, local);
            self.finish_step(fx);
        }
    }

    /// What the log has: bytes that wait to be written count as memory; while it is `behind`, no long queue's
    /// remains are carried off; and while the disk has no space, nothing may be published.
    pub fn note_log(&mut self, backlog_bytes: u64, behind: bool, short_of_space: bool) {
        self.owner.note_log(backlog_bytes + self.uncounted_bytes(), behind, short_of_space);
        if let Some(control) = &mut self.control {
            control.note_space(short_of_space);
        }
    }

    /// The log is as durable as configured up to this sequence.
    pub fn committed<E: Effects>(&mut self, fx: &mut E, frontier: LogSequence) {
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        self.owner.committed(&mut out, frontier);
        self.finish_step(fx);
    }

    /// These queues asked for messages that can be loaded now.
    pub fn arrived<E: Effects>(&mut self, fx: &mut E, queues: impl IntoIterator<Item = QueueId>) {
        for queue in queues {
            let mut out = Outward { shard: self.id, fx, home: &mut self.home };
            self.owner.arrived(&mut out, queue);
        }
        self.finish_step(fx);
    }

    /// The topology store has everything up to this version. Only on the writer's shard.
    ///
    /// # Panics
    /// On any other shard.
    pub fn persisted<E: Effects>(&mut self, fx: &mut E, version: u64) {
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        self.control.as_mut().expect("only the writer's shard persists").persisted(&mut out, version);
        self.finish_step(fx);
    }

    /// To be called when the inputs of a turn are done: emits coalesced confirms, tells of memory
    /// pressure.
    pub fn end_turn<E: Effects>(&mut self, fx: &mut E) {
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        self.more_to_page = self.owner.page_out(&mut out);
        if let Some(pressed) = self.owner.pressure_change() {
            let mut out = Outward { shard: self.id, fx, home: &mut self.home };
            for shard in 0..self.shards {
                out.tell(ShardId(shard as u16), PeerMessage::Pressure { pressed });
            }
        }
        self.finish_step(fx);
        self.home.emit_confirms(fx);
    }

    /// Expired messages that were read are left: [`Self::tick`] has work to do.
    pub fn has_more_due(&self) -> bool {
        self.owner.has_expired_to_end()
    }

    /// What purged and deleted queues had is left: [`Self::carry_off`] has work to do right now. It can wait for
    /// others, but not for ever.
    pub fn has_rubble(&self) -> bool {
        self.owner.has_rubble()
    }

    /// Frees a slice of what purged and deleted queues had.
    pub fn carry_off<E: Effects>(&mut self, fx: &mut E) {
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        self.owner.carry_off(&mut out);
        self.finish_step(fx);
    }

    /// More messages could leave memory now: the next turn is to come soon.
    pub fn has_more_to_page(&self) -> bool {
        self.more_to_page
    }

    /// When there is next something to do by the clock: [`Self::tick`] does it.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.owner.next_deadline_ms()
    }

    /// To be called when a deadline has come, and at least every 100 ms: what is due by the clock, in slices.
    /// True if more is left to do right now.
    pub fn tick<E: Effects>(&mut self, fx: &mut E) -> bool {
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        let more_due = self.owner.expire_due(&mut out);
        self.age_deliveries(fx);
        self.finish_step(fx);
        more_due
    }

    /// Serves the queues that this step has touched, sends off what they gave up, and runs the loop empty.
    fn finish_step<E: Effects>(&mut self, fx: &mut E) {
        loop {
            let mut out = Outward { shard: self.id, fx, home: &mut self.home };
            self.owner.serve_dirty(&mut out);
            if self.publish_dead_letters(fx) || self.publish_taps(fx) {
                continue;
            }
            let Some(message) = self.home.loopback.pop_front() else { break };
            self.handle(fx, self.id, message);
        }
    }

    /// Asserts the invariants that hold between steps, with full counts. For tests and simulators.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn assert_consistent(&self) {
        self.owner.assert_consistent();
        for channel in self.home.channels() {
            assert!(channel.unacked.counted() <= channel.in_use, "what a channel holds is in its use");
        }
        self.assert_transactions();
        assert!(self.home.loopback.is_empty(), "a step ends with its loop empty");
    }

    fn apply<E: Effects>(&mut self, fx: &mut E, version: u64, changes: &Arc<Vec<Change>>) {
        for change in changes.iter() {
            match change {
                Change::CreateQueue(info) if info.id.owner() == self.id => self.owner.create_queue(info),
                Change::UpdateQueue(info) if info.id.owner() == self.id => self.owner.update_queue(info),
                Change::RemoveQueue(queue) if queue.owner() == self.id => {
                    let mut out = Outward { shard: self.id, fx, home: &mut self.home };
                    let dropped = self.owner.drop_queue(&mut out, "", *queue, false, false);
                    debug_assert!(dropped.is_ok(), "without conditions nothing is refused");
                }
                Change::TraceVhost { vhost, on } => self.home.trace_vhost(*vhost, *on),
                _ => self.forget_histories(change),
            }
        }
        self.topology.apply_all(version, changes);
        for change in changes.iter() {
            self.apply_to_histories(fx, version, change);
        }
    }
}
