//! Direct replies: from who answers straight to the channel that asked, one hop, no queue between
//! (<https://www.rabbitmq.com/docs/direct-reply-to>).
//!
//! The asking channel consumes [`REPLY_QUEUE`], which gives it an address; its questions carry the
//! address as a name in `reply-to`. A message to that name through the default exchange goes to the
//! channel's home and there into the connection's output. Nothing keeps it: it comes at most once, and
//! not at all if the channel, or its consumer, is gone, or leaves too much unread. Then, if it was
//! mandatory and had nowhere else to go, it is returned, before its confirm.

use smallvec::SmallVec;

use super::batch::{PeerMessage, Publisher, RecordRef};
use super::effects::Effects;
use super::firehose::TapSource;
use super::front_end::{NewConsumer, Published, Reply, Request};
use super::home::ChannelState;
use super::requests::address;
use super::{Address, Publish, Shard};
use crate::limits::REPLY_BYTES_MAX;
use crate::mesh::Lane;
use crate::message::MessageView;
use crate::topology::{DestinationKind, Operation, REPLY_QUEUE, ReplyAddress, is_reply_name};
use crate::{ChannelId, ConsumerId, QueueId, Refusal, RefusalKind, VhostId};

/// Addresses that a message goes to.
pub(super) type Replies = SmallVec<[ReplyAddress; 1]>;

/// A channel's consumer of direct replies.
pub(super) struct ReplyConsumer {
    pub consumer: ConsumerId,
    pub address: ReplyAddress,
    /// The address, as questions carry it.
    pub name: Box<str>,
}

/// A direct reply on its way to another shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectReply {
    to: ReplyAddress,
    /// Of the sender: addresses hold within their vhost.
    vhost: VhostId,
    from: Publisher,
    /// The sender wants the message back if it cannot be delivered.
    return_it: bool,
}

/// The question whether an address still leads to somebody.
#[derive(Clone, Debug)]
pub(crate) struct ReplyStatus {
    to: ReplyAddress,
    vhost: VhostId,
    asker: ChannelId,
    name: String,
}

impl Shard {
    /// The name under which direct replies reach the channel; none if it does not consume them.
    pub fn reply_name(&mut self, id: ChannelId) -> Option<&str> {
        self.home.open_channel_mut(id).reply_consumer.as_deref().map(|consumer| &*consumer.name)
    }

    /// The addresses that a message's route has met, each once.
    pub(super) fn take_replies(&mut self) -> Replies {
        let mut replies = std::mem::take(&mut self.route.replies);
        replies.retain(|to| to.shard.index() < self.shards);
        replies.sort_unstable_by_key(|to| (to.shard, to.channel));
        replies.dedup();
        replies
    }

    /// Sends a message to its queues, and to the channels whose addresses its route has met.
    pub(super) fn send_replies<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        publish: &Publish<'_>,
        targets: &[QueueId],
    ) -> Published {
        let replies = self.take_replies();
        let elsewhere = replies.iter().filter(|to| to.shard != self.id).count();
        let owners = targets.chunk_by(|a, b| a.owner() == b.owner()).count();
        let from = self.publisher(id, || owners + elsewhere);
        let record = RecordRef::View(publish.message);
        self.dispatch(fx, record, targets, publish.durability, publish.ttl_ms, Some(&from));
        let vhost = self.home.open_channel_mut(id).vhost;
        let return_it = publish.mandatory && targets.is_empty() && replies.len() == 1;
        let handed_out = self.hand_out_replies(fx, vhost, from, record, replies, return_it);
        match targets.len() + handed_out {
            0 => Published::Unroutable,
            count => Published::Routed(count as u32),
        }
    }

    /// Sends a message to the channels that wait for it under these addresses. Gives how many may have it: of
    /// another shard's that is not known yet.
    pub(super) fn hand_out_replies<E: Effects>(
        &mut self,
        fx: &mut E,
        vhost: VhostId,
        from: Publisher,
        record: RecordRef<'_>,
        replies: Replies,
        return_it: bool,
    ) -> usize {
        let mut handed_out = 0;
        for to in replies {
            if to.shard == self.id {
                handed_out += usize::from(self.deliver_reply(fx, to, vhost, record.view()));
            } else {
                handed_out += 1;
                let batch = fx.outgoing(to.shard, Lane::Forward);
                let payload = batch.add_record(record);
                let reply = Box::new(DirectReply { to, vhost, from, return_it });
                batch.push(PeerMessage::DirectReply { payload, reply });
            }
        }
        handed_out
    }

    /// A direct reply from another shard.
    pub(super) fn take_reply<E: Effects>(&mut self, fx: &mut E, reply: &DirectReply, record: RecordRef<'_>) {
        let DirectReply { to, vhost, from, return_it } = *reply;
        let Publisher { home, channel, number } = from;
        let delivered = self.deliver_reply(fx, to, vhost, record.view());
        // What goes back, and behind it the confirm.
        if return_it && !delivered {
            let batch = fx.outgoing(home, Lane::Reply);
            let payload = batch.add_record(record);
            batch.push(PeerMessage::Returned { channel, payload });
        }
        if number > 0 {
            fx.outgoing(home, Lane::Reply).push(PeerMessage::Confirmed { channel, number, accepted: true });
        }
    }

    /// A mandatory message of this shard's channel has found nobody on another shard.
    pub(super) fn returned<E: Effects>(&mut self, fx: &mut E, id: ChannelId, message: MessageView<'_>) {
        if let Some(channel) = self.home.channel_mut(id).filter(|channel| channel.state == ChannelState::Open)
        {
            fx.returned(address(channel), message);
        }
    }

    /// Writes a reply to the channel that waits for it; false if none does.
    fn deliver_reply<E: Effects>(
        &mut self,
        fx: &mut E,
        to: ReplyAddress,
        vhost: VhostId,
        message: MessageView<'_>,
    ) -> bool {
        let Some(channel) = self.home.channel_mut(to.channel) else { return false };
        let Some(ReplyConsumer { consumer, address, .. }) = channel.reply_consumer.as_deref() else {
            return false;
        };
        if *address != to || channel.vhost != vhost || channel.state != ChannelState::Open {
            return false;
        }
        let (connection, number, consumer) = (channel.connection, channel.number, *consumer);
        let traced = channel.traced;
        let unread =
            &mut self.home.connection_mut(connection).expect("an open channel's is open").reply_bytes;
        if *unread >= REPLY_BYTES_MAX {
            return false;
        }
        *unread += message.size();
        let tag = self.home.channel_mut(to.channel).expect("it was just found").unacked.skip();
        let address = Address { connection, channel: number };
        fx.deliver(address, consumer, tag, false, message);
        if traced {
            let name = String::from_utf8_lossy(message.routing_key).into_owned();
            self.home.tap(address, vhost, TapSource::Named(name), false, &message);
        }
        true
    }

    /// Answers a request that names a queue of direct replies, where that differs from other queues.
    /// Gives the request back if it does not.
    pub(super) fn request_of_replies<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        request: Request,
    ) -> Option<Request> {
        let Some(name) = queue_name(&request).filter(|name| is_reply_name(name)) else {
            return Some(request);
        };
        let (name, general) = (name.to_owned(), name == REPLY_QUEUE);
        let to = self.home.open_channel_mut(id);
        let (to, vhost) = (address(to), to.vhost);
        let vhost_name = self.topology.vhost_name(vhost);
        let refuse = |kind, text: String| Reply::Refused(Refusal::new(kind, text));
        let reply = match request {
            Request::Consume { consumer, .. } if general => self.consume_replies(id, &consumer),
            Request::Consume { .. } => refuse(
                RefusalKind::PreconditionFailed,
                format!("only creator channel may consume from queue '{name}' in vhost '{vhost_name}'"),
            ),
            Request::Topology(Operation::DeclareQueue { .. }) if general => {
                Reply::QueueDeclared { name: name.into(), messages: 0, consumers: 1 }
            }
            Request::Topology(Operation::DeclareQueue { .. }) => {
                self.ask_reply_status(fx, id, vhost, name);
                return None;
            }
            Request::Topology(Operation::DeleteQueue { .. }) => Reply::QueueDeleted { messages: 0 },
            request if general => return Some(request),
            Request::Purge { .. } => Reply::QueuePurged { messages: 0 },
            Request::Get { .. } => refuse(
                RefusalKind::NotImplemented,
                format!("basic.get not supported by volatile queue '{name}' in vhost '{vhost_name}'"),
            ),
            _ => refuse(
                RefusalKind::AccessRefused,
                "cannot bind or unbind to a volatile (direct reply-to) queue".to_owned(),
            ),
        };
        fx.reply(to, reply);
        None
    }

    fn consume_replies(&mut self, id: ChannelId, consumer: &NewConsumer) -> Reply {
        let refuse = |text| Reply::Refused(Refusal::new(RefusalKind::PreconditionFailed, text));
        if !consumer.no_ack {
            return refuse("reply consumer cannot acknowledge");
        }
        let (shard, secret) = (self.id, self.home.new_secret());
        let channel = self.home.open_channel_mut(id);
        if channel.reply_consumer.is_some() {
            return refuse("reply consumer already set");
        }
        let address = ReplyAddress { shard, channel: id, secret };
        let name = address.to_string().into();
        channel.reply_consumer = Some(Box::new(ReplyConsumer { consumer: consumer.id, address, name }));
        Reply::Consuming { consumer: consumer.id }
    }

    fn ask_reply_status<E: Effects>(&mut self, fx: &mut E, id: ChannelId, vhost: VhostId, name: String) {
        match ReplyAddress::from_name(name.as_bytes()).filter(|to| to.shard.index() < self.shards) {
            Some(to) => {
                let status = Box::new(ReplyStatus { to, vhost, asker: id, name });
                self.send_forward(fx, to.shard, PeerMessage::ReplyStatus(status));
            }
            None => {
                let refusal = Refusal::no_queue(&name, self.topology.vhost_name(vhost));
                self.home.answer(fx, id, Reply::Refused(refusal));
            }
        }
    }

    /// Whether an address leads to a channel of this shard.
    pub(super) fn reply_status(&mut self, status: ReplyStatus) -> (ChannelId, Reply) {
        let ReplyStatus { to, vhost, asker, name } = status;
        let known = self.home.channel_mut(to.channel).is_some_and(|channel| {
            let consumer = channel.reply_consumer.as_deref();
            channel.vhost == vhost && consumer.is_some_and(|consumer| consumer.address == to)
        });
        let reply = match known {
            true => Reply::QueueDeclared { name: name.into(), messages: 0, consumers: 1 },
            false => Reply::Refused(Refusal::no_queue(&name, self.topology.vhost_name(vhost))),
        };
        (asker, reply)
    }
}

/// The queue that a request is about.
pub(super) fn queue_name(request: &Request) -> Option<&str> {
    match request {
        Request::Get { queue, .. } | Request::Consume { queue, .. } | Request::Purge { queue, .. } => {
            Some(queue)
        }
        Request::Topology(Operation::DeclareQueue { name, .. } | Operation::DeleteQueue { name, .. }) => {
            Some(name)
        }
        Request::Topology(Operation::Bind { binding, .. } | Operation::Unbind { binding, .. })
            if binding.kind == DestinationKind::Queue =>
        {
            Some(&binding.destination)
        }
        Request::Topology(_) | Request::Cancel { .. } => None,
    }
}
