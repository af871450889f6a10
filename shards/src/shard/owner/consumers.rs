//! Consumers on the owner of their queue: credit, standing, and the window of their connection.

use super::Owner;
use crate::ledger::Position;
use crate::limits::DELIVERY_WINDOW_BYTES;
use crate::shard::batch::{Ask, ConsumeAsk, PeerMessage};
use crate::shard::effects::Effects;
use crate::shard::front_end::Reply;
use crate::shard::outward::{Delivery, Outward};
use crate::topology::{Operation, Requester};
use crate::{ChannelId, ConnectionId, ConsumerId, QueueId, Refusal, RefusalKind, ShardId};

/// Why a consumer is, or is not, among those whose turn can come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// In its queue's turns.
    InTurn,
    /// Its prefetch is used up; an ack brings it back.
    NoPrefetch,
    /// The channel has a prefetch of its own and was asked for a grant.
    AwaitingGrant,
    /// Its connection has not written what it was sent; it stands in the link's list.
    AwaitingWindow,
    /// Another consumer of the queue is the active one.
    Passive,
    /// Cancelled; kept until its last delivery is settled.
    Gone,
}

/// A consumer of a queue of this shard.
#[derive(Debug)]
pub(super) struct Consumer {
    pub home: ShardId,
    pub id: ConsumerId,
    pub channel: ChannelId,
    pub queue: QueueId,
    pub link: u32,
    pub priority: i32,
    /// Most unacked deliveries; 0 is no bound.
    pub prefetch: u32,
    pub unacked: u32,
    pub no_ack: bool,
    /// Each delivery needs a grant of the channel.
    pub limited: bool,
    pub standing: Standing,
}

impl Consumer {
    pub fn has_prefetch_left(&self) -> bool {
        self.prefetch == 0 || self.unacked < self.prefetch
    }

    pub fn delivery(&self, entry: Option<(QueueId, Position)>, redelivered: bool, granted: bool) -> Delivery {
        Delivery { home: self.home, channel: self.channel, consumer: self.id, entry, redelivered, granted }
    }
}

/// A connection, as the owner of queues that it consumes from sees it.
#[derive(Debug)]
pub(super) struct Link {
    pub connection: ConnectionId,
    /// Bytes delivered to it and not yet written to its socket.
    pub used_bytes: usize,
    /// Its consumers, by slot.
    pub consumers: Vec<u32>,
    /// Those of them that wait for the window.
    pub waiting: Vec<u32>,
}

impl Link {
    pub fn is_full(&self) -> bool {
        self.used_bytes >= DELIVERY_WINDOW_BYTES
    }

    pub fn forget(&mut self, consumer: u32) {
        self.consumers.retain(|&slot| slot != consumer);
        self.waiting.retain(|&slot| slot != consumer);
    }
}

impl Owner {
    /// The consumer that takes the queue's next message, if one can. Consumers found without credit
    /// leave the turns here, and are brought back by what gives them credit.
    #[inline(always)]
    pub(super) fn next_taker<E: Effects>(&mut self, out: &mut Outward<'_, E>, slot: usize) -> Option<u32> {
        loop {
            let queue = self.queues[slot].as_deref_mut().expect("a served queue exists");
            let taker = queue.turns.next()?;
            let consumer = &mut self.consumers[taker as usize];
            let link = &mut self.links[consumer.link as usize];
            if link.is_full() {
                consumer.standing = Standing::AwaitingWindow;
                link.waiting.push(taker);
            } else if consumer.limited {
                consumer.standing = Standing::AwaitingGrant;
                let (channel, id) = (consumer.channel, consumer.id);
                // At least one: the message that is being admitted is not counted yet.
                let count = u32::try_from(queue.entries.ready().max(1)).unwrap_or(u32::MAX);
                out.tell(consumer.home, PeerMessage::Want { channel, consumer: id, count });
            } else {
                return Some(taker);
            }
            queue.turns.remove(taker, consumer.priority);
        }
    }

    /// Starts a consumer and answers; deliveries follow the answer.
    pub fn consume<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        home: ShardId,
        vhost: &str,
        ask: ConsumeAsk,
    ) {
        let Some(slot) = self.slot_of(ask.queue) else { return out.queue_gone(home, ask.channel) };
        let queue = self.queues[slot].as_deref_mut().expect("the slot was just looked up");
        let single = queue.settings.single_active_consumer;
        let alone = queue.consumers.is_empty() && !single;
        if queue.exclusively_consumed || (ask.consumer.exclusive && !alone) {
            let text = format!("queue '{}' in vhost '{vhost}' in exclusive use", queue.info.name);
            let refusal = Refusal::new(RefusalKind::AccessRefused, text);
            return out.answer(home, ask.channel, Reply::Refused(refusal));
        }
        let link = *self.link_of.entry(ask.connection).or_insert_with(|| {
            let connection = ask.connection;
            let link = Link { connection, used_bytes: 0, consumers: Vec::new(), waiting: Vec::new() };
            self.links.insert(link) as u32
        });
        let no_ack = ask.consumer.no_ack;
        let consumer = Consumer {
            home,
            id: ask.consumer.id,
            channel: ask.channel,
            queue: ask.queue,
            link,
            priority: ask.consumer.priority,
            // What is settled as it is delivered is never unacked: no bound applies.
            prefetch: if no_ack { 0 } else { ask.prefetch },
            unacked: 0,
            no_ack,
            limited: ask.limited && !no_ack,
            standing: if single { Standing::Passive } else { Standing::InTurn },
        };
        let consumer_slot = self.consumers.insert(consumer) as u32;
        self.by_name.insert((home, ask.consumer.id), consumer_slot);
        self.links[link as usize].consumers.push(consumer_slot);
        queue.consumers.push(consumer_slot);
        queue.exclusively_consumed = ask.consumer.exclusive;
        if !single {
            queue.turns.add(consumer_slot, ask.consumer.priority);
        }
        queue.last_used_ms = self.now_ms;
        self.activate(slot);
        out.answer(home, ask.channel, Reply::Consuming { consumer: ask.consumer.id });
        self.mark_dirty(slot);
    }

    /// Stops a consumer: nothing is delivered to it any more. What it holds stays unacked.
    pub fn cancel<E: Effects>(&mut self, out: &mut Outward<'_, E>, home: ShardId, id: ConsumerId) {
        let Some(slot) = self.by_name.remove(&(home, id)) else { return };
        let now_ms = self.now_ms;
        let consumer = &mut self.consumers[slot as usize];
        let was = std::mem::replace(&mut consumer.standing, Standing::Gone);
        let (queue_id, priority, unacked) = (consumer.queue, consumer.priority, consumer.unacked);
        let connection = self.links[consumer.link as usize].connection;
        self.links[consumer.link as usize].forget(slot);
        if unacked == 0 {
            self.consumers.remove(slot as usize);
        }
        let queue = self.queue_mut(queue_id).expect("a consumer's queue exists");
        queue.consumers.retain(|&other| other != slot);
        if unacked > 0 {
            queue.lingering.push(slot);
        }
        if was == Standing::InTurn {
            queue.turns.remove(slot, priority);
        }
        queue.exclusively_consumed = false;
        queue.last_used_ms = now_ms;
        if queue.active == Some(slot) && unacked == 0 {
            queue.active = None;
            self.activate(queue_id.slot() as usize);
        }
        let queue = self.queue_mut(queue_id).expect("a consumer's queue exists");
        if queue.info.auto_delete && queue.consumers.is_empty() {
            let operation = Operation::ExpireQueue { queue: queue_id, if_unused: true };
            let ask = Ask { operation, requester: Requester { connection }, answer_to: None };
            out.ask_writer(PeerMessage::Topology(Box::new(ask)));
        }
    }

    /// Lets the next consumer of a queue with a single active one have the messages, if nobody has them: of
    /// the highest priority, the one that has been there longest.
    fn activate(&mut self, queue_slot: usize) {
        let queue = self.queues[queue_slot].as_deref_mut().expect("a consumer's queue exists");
        if !queue.settings.single_active_consumer || queue.active.is_some() {
            return;
        }
        let priority = |slot: &u32| self.consumers[*slot as usize].priority;
        let Some(highest) = queue.consumers.iter().map(priority).max() else { return };
        let next = queue.consumers.iter().copied().find(|slot| priority(slot) == highest);
        let next = next.expect("somebody has the highest priority");
        self.consumers[next as usize].standing = Standing::InTurn;
        queue.active = Some(next);
        queue.turns.add(next, highest);
        self.mark_dirty(queue_slot);
    }

    /// Ends all consumers of a closing channel.
    pub fn release_channel<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        home: ShardId,
        channel: ChannelId,
        connection: ConnectionId,
    ) {
        for id in self.consumers_of(channel, connection) {
            self.cancel(out, home, id);
        }
        self.forget_gets(home, channel);
    }

    /// Whether the channel has a prefetch of its own, from now on.
    pub fn limit_channel(&mut self, channel: ChannelId, connection: ConnectionId, limited: bool) {
        for id in self.consumers_of(channel, connection) {
            let slot = self.by_name[&(connection.shard, id)];
            let consumer = &mut self.consumers[slot as usize];
            consumer.limited = limited && !consumer.no_ack;
            if !limited && consumer.standing == Standing::AwaitingGrant {
                self.rejoin(slot);
            }
        }
    }

    fn consumers_of(&self, channel: ChannelId, connection: ConnectionId) -> Vec<ConsumerId> {
        let Some(&link) = self.link_of.get(&connection) else { return Vec::new() };
        let consumers =
            self.links[link as usize].consumers.iter().map(|&slot| &self.consumers[slot as usize]);
        consumers.filter(|consumer| consumer.channel == channel).map(|consumer| consumer.id).collect()
    }

    /// A connection is gone, and all its channels were released before.
    pub fn forget_connection(&mut self, connection: ConnectionId) {
        let Some(link) = self.link_of.remove(&connection) else { return };
        let link = self.links.remove(link as usize);
        assert!(link.consumers.is_empty(), "a connection's channels are released before it is forgotten");
    }

    /// The channel lets a consumer have this many deliveries. What it cannot use goes back at once, so
    /// that no grant lies idle.
    pub fn grant<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        home: ShardId,
        channel: ChannelId,
        id: ConsumerId,
        count: u32,
    ) {
        let mut left = count;
        if let Some(&consumer) = self.by_name.get(&(home, id))
            && self.consumers[consumer as usize].standing == Standing::AwaitingGrant
        {
            let slot = self.consumers[consumer as usize].queue.slot() as usize;
            while left > 0
                && !self.queue_at(slot).awaits_load
                && self.can_take(consumer)
                && self.next_is_in_memory(out, slot)
            {
                self.hand_over(out, slot, consumer, true);
                left -= 1;
            }
            self.rejoin(consumer);
        }
        if left > 0 {
            out.tell(home, PeerMessage::Ungrant { channel, count: left });
        }
    }

    fn can_take(&self, consumer: u32) -> bool {
        let consumer = &self.consumers[consumer as usize];
        consumer.has_prefetch_left() && !self.links[consumer.link as usize].is_full()
    }

    /// A consumer that stood outside the turns may have credit again.
    fn rejoin(&mut self, slot: u32) {
        let consumer = &mut self.consumers[slot as usize];
        if !consumer.has_prefetch_left() {
            consumer.standing = Standing::NoPrefetch;
            return;
        }
        consumer.standing = Standing::InTurn;
        let (queue, priority) = (consumer.queue.slot() as usize, consumer.priority);
        self.queues[queue].as_deref_mut().expect("a consumer's queue exists").turns.add(slot, priority);
        self.mark_dirty(queue);
    }

    /// The connection's home has written this much of what this shard delivered to it.
    pub fn drained(&mut self, connection: ConnectionId, bytes: usize) {
        let Some(&link) = self.link_of.get(&connection) else { return };
        let link = &mut self.links[link as usize];
        link.used_bytes = link.used_bytes.checked_sub(bytes).expect("no more is written than was delivered");
        if !link.is_full() {
            for slot in std::mem::take(&mut link.waiting) {
                self.rejoin(slot);
            }
        }
    }

    /// One delivery of this consumer was settled.
    pub(super) fn settled_by(&mut self, slot: u32, queue_slot: usize) {
        let consumer = &mut self.consumers[slot as usize];
        if consumer.no_ack {
            return;
        }
        consumer.unacked -= 1;
        match consumer.standing {
            Standing::NoPrefetch => self.rejoin(slot),
            Standing::Gone if consumer.unacked == 0 => {
                self.consumers.remove(slot as usize);
                let queue = self.queues[queue_slot].as_deref_mut().expect("the settled entry's queue exists");
                queue.lingering.retain(|&other| other != slot);
                if queue.active == Some(slot) {
                    // What it held has been settled, or is back in its place: the next one goes on from there.
                    queue.active = None;
                    self.activate(queue_slot);
                }
            }
            _ => {}
        }
    }

    /// What a full count of credit must give. For tests and the simulator.
    pub(super) fn assert_credit(&self) {
        for (slot, consumer) in &self.consumers {
            if consumer.prefetch > 0 {
                assert!(consumer.unacked <= consumer.prefetch, "prefetch is never exceeded");
            }
            let named = self.by_name.get(&(consumer.home, consumer.id)) == Some(&(slot as u32));
            assert_eq!(named, consumer.standing != Standing::Gone, "cancelled consumers have no name");
            let Some(queue) = self.queue(consumer.queue) else { panic!("a consumer's queue exists") };
            assert_eq!(queue.consumers.contains(&(slot as u32)), named);
            let may_be_active = !queue.settings.single_active_consumer || queue.active == Some(slot as u32);
            let is_passive = matches!(consumer.standing, Standing::Passive | Standing::Gone);
            assert!(may_be_active || is_passive, "one consumer at a time is active");
        }
    }
}
