//! Requests of the protocol: resolved on this shard's topology, sent to the owner or the writer.

use super::batch::{Ask, ConsumeAsk, PeerMessage};
use super::direct_reply::queue_name;
use super::effects::Effects;
use super::front_end::{Address, NewConsumer, Reply, Request};
use super::home::Channel;
use super::outward::Outward;
use super::{Shard, WRITER};
use crate::mesh::Lane;
use crate::topology::{Operation, QueueKind, Requester, exchange_of_delay_queue};
use crate::{ChannelId, ConnectionId, ConsumerId, QueueId, Refusal, RefusalKind, ShardId, VhostId};

impl Shard {
    /// Takes a request of a channel. It is answered once, now or later, through the front end.
    pub fn request<E: Effects>(&mut self, fx: &mut E, id: ChannelId, request: Request) {
        self.home.open_channel_mut(id).declares =
            matches!(request, Request::Topology(Operation::DeclareQueue { passive: false, .. }));
        let Some(request) = self.request_of_replies(fx, id, request) else { return self.finish_step(fx) };
        if let Some(refusal) = self.refuses_for_delays(id, &request) {
            let to = address(self.home.open_channel_mut(id));
            fx.reply(to, Reply::Refused(refusal));
            return self.finish_step(fx);
        }
        match request {
            Request::Topology(operation) => self.request_change(fx, id, operation),
            Request::Get { vhost, queue, no_ack } => {
                let Some(queue) = self.resolve(fx, id, vhost, queue) else { return };
                if self.refuses_gets(fx, id, queue) {
                    return;
                }
                self.note_owner(id, queue);
                if queue.owner() == self.id {
                    let mut out = Outward { shard: self.id, fx, home: &mut self.home };
                    self.owner.get(&mut out, self.id, id, queue, no_ack);
                } else {
                    fx.outgoing(queue.owner(), Lane::Forward).push(PeerMessage::Get {
                        queue,
                        channel: id,
                        no_ack,
                    });
                }
            }
            Request::Consume { vhost, queue, consumer } => {
                let Some(queue) = self.resolve(fx, id, vhost, queue) else { return };
                self.request_consumer(fx, id, queue, consumer);
            }
            Request::Cancel { consumer } => self.request_cancel(fx, id, consumer),
            Request::Purge { vhost, queue } => {
                let Some(queue) = self.resolve(fx, id, vhost, queue) else { return };
                let message = PeerMessage::Purge { queue, channel: id };
                self.send_forward(fx, queue.owner(), message);
            }
        }
        self.finish_step(fx);
    }

    /// A queue where a delayed exchange's messages wait is looked at and purged; anything else is refused.
    fn refuses_for_delays(&mut self, id: ChannelId, request: &Request) -> Option<Refusal> {
        let allowed = matches!(
            request,
            Request::Purge { .. } | Request::Topology(Operation::DeclareQueue { passive: true, .. })
        );
        let name = queue_name(request).filter(|name| !allowed && exchange_of_delay_queue(name).is_some())?;
        let vhost = self.topology.vhost_name(self.home.open_channel_mut(id).vhost);
        Some(Refusal::new(
            RefusalKind::AccessRefused,
            format!(
                "queue '{name}' in vhost '{vhost}' belongs to its exchange: it can only be looked at or purged"
            ),
        ))
    }

    /// Prefetch of the channel's later consumers, or with `global` of the channel as a whole; 0 is no
    /// bound. Answered with [`Reply::PrefetchSet`] when it holds everywhere.
    pub fn set_prefetch<E: Effects>(&mut self, fx: &mut E, id: ChannelId, count: u16, global: bool) {
        let channel = self.home.open_channel_mut(id);
        let to = address(channel);
        if global {
            channel.limit = u32::from(count);
        } else {
            channel.prefetch = count;
        }
        if !global || channel.owners.is_empty() {
            fx.reply(to, Reply::PrefetchSet);
            return self.finish_step(fx);
        }
        if count == 0 {
            channel.wants.clear();
        }
        // Every owner is asked, also where only the number changes: its answer comes behind all
        // deliveries that the old limit allowed.
        let (owners, connection) = (channel.owners.clone(), channel.connection);
        channel.limit_awaited = owners.len() as u32;
        for owner in owners {
            let message = PeerMessage::Limit { channel: id, connection, limited: count > 0 };
            self.send_forward(fx, owner, message);
        }
        self.finish_step(fx);
    }

    /// An owner has taken over whether the channel is limited.
    pub(super) fn limited<E: Effects>(&mut self, fx: &mut E, id: ChannelId) {
        let Some(channel) = self.home.channel_mut(id) else { return };
        channel.limit_awaited -= 1;
        if channel.limit_awaited == 0 {
            self.home.answer(fx, id, Reply::PrefetchSet);
            self.give_grants(fx, id);
        }
    }

    fn request_change<E: Effects>(&mut self, fx: &mut E, id: ChannelId, operation: Operation) {
        let connection = self.home.open_channel_mut(id).connection;
        if matches!(operation, Operation::DeclareQueue { exclusive: true, .. }) {
            self.home.connection_mut(connection).expect("an open channel's connection is open").owns_queues =
                true;
        }
        let ask = Ask { operation, requester: Requester { connection }, answer_to: Some(id) };
        self.send_forward(fx, WRITER, PeerMessage::Topology(Box::new(ask)));
    }

    /// The exclusive queues of a connection that has ended are to go.
    pub(super) fn release_queues<E: Effects>(&mut self, fx: &mut E, connection: ConnectionId) {
        let operation = Operation::ReleaseConnection { connection };
        let ask = Ask { operation, requester: Requester { connection }, answer_to: None };
        self.send_forward(fx, WRITER, PeerMessage::Topology(Box::new(ask)));
    }

    /// Asks a queue's owner what is in it.
    pub(super) fn send_status<E: Effects>(&mut self, fx: &mut E, id: ChannelId, queue: QueueId) {
        self.send_forward(fx, queue.owner(), PeerMessage::Status { queue, channel: id });
    }

    /// To another shard on the lane behind publishes, or to this one when the step is done.
    pub(super) fn send_forward<E: Effects>(&mut self, fx: &mut E, to: ShardId, message: PeerMessage) {
        if to == self.id {
            self.home.loopback.push_back(message);
        } else {
            fx.outgoing(to, Lane::Forward).push(message);
        }
    }

    /// The queue of this name, if it exists and the channel's connection may use it; else the request
    /// is answered here.
    fn resolve<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        vhost: VhostId,
        name: String,
    ) -> Option<QueueId> {
        let channel = self.home.open_channel_mut(id);
        let vhost_name = self.topology.vhost_name(vhost);
        let refusal = match self.topology.queue(vhost, &name) {
            None => Refusal::no_queue(&name, vhost_name),
            Some(info) if info.exclusive.is_some_and(|owner| owner != channel.connection) => {
                Refusal::locked_queue(&name, vhost_name)
            }
            Some(info) => {
                channel.asked_queue = Some(name);
                return Some(info.id);
            }
        };
        fx.reply(address(channel), Reply::Refused(refusal));
        None
    }

    /// Out of a queue with a single active consumer nobody else takes messages.
    fn refuses_gets<E: Effects>(&mut self, fx: &mut E, id: ChannelId, queue: QueueId) -> bool {
        let info = self.topology.queue_by_id(queue).expect("it was just found by its name");
        if !info.has_single_active_consumer() {
            return false;
        }
        let vhost = self.topology.vhost_name(info.vhost);
        let kind = match info.kind() {
            QueueKind::Classic => "classic",
            // RabbitMQ prints a term here.
            QueueKind::Quorum => "<<\"quorum\">>",
        };
        let text = format!(
            "cannot obtain access to locked queue '{}' in vhost '{vhost}'. basic.get operations are not supported \
             by {kind} queues with single active consumer",
            info.name
        );
        let refusal = Refusal::new(RefusalKind::ResourceLocked, text);
        fx.reply(address(self.home.open_channel_mut(id)), Reply::Refused(refusal));
        true
    }

    /// The owner will have to be asked when the channel closes.
    fn note_owner(&mut self, id: ChannelId, queue: QueueId) {
        self.note_timeout(id, queue);
        let owner = queue.owner();
        let channel = self.home.open_channel_mut(id);
        if channel.owners.contains(&owner) {
            return;
        }
        channel.owners.push(owner);
        let connection = channel.connection;
        let connection = self.home.connection_mut(connection).expect("an open channel's connection is open");
        if !connection.owners.contains(&owner) {
            connection.owners.push(owner);
        }
    }

    fn request_consumer<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        queue: QueueId,
        consumer: NewConsumer,
    ) {
        self.note_owner(id, queue);
        let channel = self.home.open_channel_mut(id);
        channel.asked_consumer = Some(queue);
        let ask = ConsumeAsk {
            queue,
            channel: id,
            connection: channel.connection,
            consumer,
            prefetch: u32::from(channel.prefetch),
            limited: channel.limit > 0,
        };
        self.send_forward(fx, queue.owner(), PeerMessage::Consume(Box::new(ask)));
    }

    fn request_cancel<E: Effects>(&mut self, fx: &mut E, id: ChannelId, consumer: ConsumerId) {
        match self.home.consumers.get(&consumer) {
            // Its queue was deleted, and the client has not heard of it yet.
            None => self.home.answer(fx, id, Reply::Cancelled { consumer }),
            Some(&queue) => {
                self.send_forward(fx, queue.owner(), PeerMessage::Cancel { consumer, channel: id });
            }
        }
    }
}

pub(super) fn address(channel: &Channel) -> Address {
    Address { connection: channel.connection, channel: channel.number }
}
