//! What other shards, and the shard itself, have to say: one place for each kind of message.

use super::Shard;
use super::batch::{Batch, DEAD_LETTERS, PeerMessage};
use super::effects::Effects;
use super::front_end::Reply;
use super::home::Want;
use super::outward::Outward;
use crate::topology::Outcome;
use crate::{ChannelId, Refusal, ShardId};

impl Shard {
    /// Takes in a batch of another shard and leaves it empty.
    pub fn receive_batch<E: Effects>(&mut self, fx: &mut E, from: ShardId, batch: &mut Batch) {
        let mut messages = std::mem::take(&mut batch.messages);
        for message in messages.drain(..) {
            match message {
                PeerMessage::Publish { payload, queues, durability, ttl_ms, from } => {
                    let mut out = Outward { shard: self.id, fx, home: &mut self.home };
                    let (record, queues) = (batch.record(payload), batch.queues(queues));
                    self.owner.admit(&mut out, record, queues, durability, ttl_ms, from.as_ref());
                }
                PeerMessage::Deliver { channel, consumer, entry, redelivered, granted, payload } => {
                    let record = batch.record(payload);
                    self.home.deliver(
                        fx,
                        channel,
                        consumer,
                        entry,
                        redelivered,
                        granted,
                        from,
                        record.view(),
                    );
                }
                PeerMessage::Got { channel, entry, redelivered, remaining, payload } => {
                    let record = batch.record(payload);
                    self.home.got(fx, channel, entry, redelivered, remaining, record.view());
                }
                PeerMessage::Remember { payload, remembered } => {
                    self.keep_in_history(fx, &remembered, batch.record(payload));
                }
                PeerMessage::DirectReply { payload, reply } => {
                    self.take_reply(fx, &reply, batch.record(payload));
                }
                PeerMessage::Returned { channel, payload } => {
                    self.returned(fx, channel, batch.record(payload).view());
                }
                other => self.handle(fx, from, other),
            }
        }
        batch.messages = messages;
        batch.clear();
        self.finish_step(fx);
    }

    /// Takes in a message that has no payload.
    pub(super) fn handle<E: Effects>(&mut self, fx: &mut E, from: ShardId, message: PeerMessage) {
        match message {
            PeerMessage::Publish { .. }
            | PeerMessage::Remember { .. }
            | PeerMessage::DirectReply { .. }
            | PeerMessage::Deliver { .. }
            | PeerMessage::Got { .. }
            | PeerMessage::Returned { .. } => unreachable!("a payload travels in a batch only"),
            PeerMessage::ReplyStatus(status) => {
                let (channel, reply) = self.reply_status(*status);
                let mut out = Outward { shard: self.id, fx, home: &mut self.home };
                out.answer(from, channel, reply);
            }
            PeerMessage::Get { .. }
            | PeerMessage::Consume(_)
            | PeerMessage::Cancel { .. }
            | PeerMessage::Purge { .. }
            | PeerMessage::Status { .. }
            | PeerMessage::Release { .. }
            | PeerMessage::Limit { .. }
            | PeerMessage::ForgetConnection { .. }
            | PeerMessage::DropQueue { .. }
            | PeerMessage::Grant { .. }
            | PeerMessage::Drained { .. } => self.handle_as_owner(fx, from, message),
            PeerMessage::Settle { queue, position, verdict } => self.settle_one(fx, queue, position, verdict),
            PeerMessage::Answer { channel, reply } => self.home.answer(fx, channel, *reply),
            PeerMessage::QueueGone { channel } => self.queue_gone(fx, channel),
            PeerMessage::TopologyAnswer { channel, result } => self.topology_answer(fx, channel, *result),
            PeerMessage::Released { channel } => self.released(fx, channel),
            PeerMessage::Limited { channel } => self.limited(fx, channel),
            PeerMessage::Confirmed { channel: DEAD_LETTERS, number, accepted } => {
                self.owner.dead_letter_confirmed(fx, number, accepted);
            }
            PeerMessage::Confirmed { channel, number, accepted } => {
                self.home.confirmed(channel, number, accepted)
            }
            PeerMessage::HoldPublisher { channel, held } => self.home.hold_publisher(fx, channel, held),
            PeerMessage::ConsumerCancelled { channel, consumer } => {
                self.home.forget_consumer(channel, consumer);
                if let Some(channel) = self.home.channel_mut(channel)
                    && channel.state == super::ChannelState::Open
                {
                    fx.consumer_cancelled(super::requests::address(channel), consumer);
                }
            }
            PeerMessage::Want { channel, consumer, count } => {
                let known = self.home.consumers.contains_key(&consumer);
                if let Some(place) = self.home.channel_mut(channel).filter(|_| known) {
                    place.wants.push_back(Want { consumer, owner: from, count });
                    self.give_grants(fx, channel);
                }
            }
            PeerMessage::Ungrant { channel, count } => {
                if let Some(place) = self.home.channel_mut(channel) {
                    place.in_use -= count;
                    self.give_grants(fx, channel);
                }
            }
            PeerMessage::Transaction(message) => self.take_transaction(fx, from, message),
            PeerMessage::Pressure { pressed } => self.pressure(fx, from, pressed),
            PeerMessage::Topology(_)
            | PeerMessage::Apply { .. }
            | PeerMessage::Applied { .. }
            | PeerMessage::Dropped { .. } => self.handle_control(fx, from, message),
        }
    }

    fn handle_as_owner<E: Effects>(&mut self, fx: &mut E, from: ShardId, message: PeerMessage) {
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        match message {
            PeerMessage::Get { queue, channel, no_ack } => {
                self.owner.get(&mut out, from, channel, queue, no_ack)
            }
            PeerMessage::Consume(ask) => {
                let vhost = self.owner.queue(ask.queue).map(|queue| queue.info.vhost);
                let vhost = vhost.map_or("", |vhost| self.topology.vhost_name(vhost));
                self.owner.consume(&mut out, from, vhost, *ask);
            }
            PeerMessage::Cancel { consumer, channel } => {
                self.owner.cancel(&mut out, from, consumer);
                out.answer(from, channel, Reply::Cancelled { consumer });
            }
            PeerMessage::Purge { queue, channel } => self.owner.purge(&mut out, from, channel, queue),
            PeerMessage::Status { queue, channel } => match self.owner.status(queue) {
                Some((messages, consumers)) => {
                    let name = self.owner.queue(queue).expect("it was just found").info.name.clone();
                    out.answer(from, channel, Reply::QueueDeclared { name, messages, consumers });
                }
                None => out.queue_gone(from, channel),
            },
            PeerMessage::Release { channel, connection } => {
                self.owner.release_channel(&mut out, from, channel, connection);
                out.tell(from, PeerMessage::Released { channel });
            }
            PeerMessage::Limit { channel, connection, limited } => {
                self.owner.limit_channel(channel, connection, limited);
                out.tell(from, PeerMessage::Limited { channel });
            }
            PeerMessage::ForgetConnection { connection } => self.owner.forget_connection(connection),
            PeerMessage::DropQueue { queue, if_unused, if_empty } => {
                let vhost = self.owner.queue(queue).map(|queue| queue.info.vhost);
                let vhost = vhost.map_or("", |vhost| self.topology.vhost_name(vhost));
                let result = self.owner.drop_queue(&mut out, vhost, queue, if_unused, if_empty);
                out.tell(from, PeerMessage::Dropped { queue, result: Box::new(result) });
            }
            PeerMessage::Grant { channel, consumer, count } => {
                self.owner.grant(&mut out, from, channel, consumer, count);
            }
            PeerMessage::Drained { connection, bytes } => self.owner.drained(connection, bytes),
            other => unreachable!("not for an owner: {other:?}"),
        }
    }

    fn handle_control<E: Effects>(&mut self, fx: &mut E, from: ShardId, message: PeerMessage) {
        if let PeerMessage::Apply { version, changes } = message {
            self.apply(fx, version, &changes);
            let mut out = Outward { shard: self.id, fx, home: &mut self.home };
            return out.tell(from, PeerMessage::Applied { version });
        }
        let control = self.control.as_mut().expect("only the writer's shard is asked");
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        match message {
            PeerMessage::Topology(ask) => control.ask(&mut out, from, *ask),
            PeerMessage::Applied { version } => control.applied(&mut out, version),
            PeerMessage::Dropped { queue, result } => control.dropped(&mut out, queue, *result),
            other => unreachable!("not for the writer: {other:?}"),
        }
    }

    /// The queue that a request named is gone: as if it had never been there.
    fn queue_gone<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        let Some(channel) = self.home.channel_mut(id) else { return };
        let name = channel.asked_queue.take().unwrap_or_default();
        if channel.declares {
            // It was there when it was declared, and was deleted before its owner could say what is in it.
            let reply = Reply::QueueDeclared { name: name.into(), messages: 0, consumers: 0 };
            return self.home.answer(fx, id, reply);
        }
        let refusal = Refusal::no_queue(&name, self.topology.vhost_name(channel.vhost));
        self.home.answer(fx, id, Reply::Refused(refusal));
    }

    fn topology_answer<E: Effects>(&mut self, fx: &mut E, id: ChannelId, result: Result<Outcome, Refusal>) {
        let reply = match result {
            Err(refusal) => Reply::Refused(refusal),
            Ok(Outcome::Done) => Reply::Done,
            Ok(Outcome::QueueDeleted { messages }) => Reply::QueueDeleted { messages },
            Ok(Outcome::QueueDeclared { name, created: true, .. }) => {
                Reply::QueueDeclared { name, messages: 0, consumers: 0 }
            }
            Ok(Outcome::QueueDeclared { queue, name, created: false }) => {
                // What is in it, its owner knows.
                if let Some(channel) = self.home.channel_mut(id) {
                    channel.asked_queue = Some(name.to_string());
                }
                return self.send_status(fx, id, queue);
            }
        };
        self.home.answer(fx, id, reply);
    }

    fn pressure<E: Effects>(&mut self, fx: &mut E, from: ShardId, pressed: bool) {
        let was_blocked = self.publishing_blocked();
        self.home.pressed.retain(|shard| *shard != from);
        if pressed {
            self.home.pressed.push(from);
        }
        if was_blocked != self.publishing_blocked() {
            fx.publishing_blocked(!was_blocked);
        }
    }
}
