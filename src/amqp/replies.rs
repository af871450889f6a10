//! What the shard says, written into the connection's output as AMQP.

use amq_protocol::protocol::{AMQPClass, basic, channel, connection, exchange, queue, tx};
use lepus_shards::message::MessageView;
use lepus_shards::shard::{Address, FrontEnd, Reply, Traced};
use lepus_shards::{ConsumerId, DeliveryTag, Refusal};

use super::codec::{put_confirm, put_deliver, put_get_ok, put_return};
use super::failure::Failure;
use super::front::Front;
use super::method;
use super::peer::{Asked, Busy, ChannelState, ConsumerName, Pause};
use super::trace;

impl FrontEnd for Front {
    fn deliver(
        &mut self,
        to: Address,
        consumer: ConsumerId,
        tag: DeliveryTag,
        redelivered: bool,
        message: MessageView<'_>,
    ) {
        let slot = to.connection.slot;
        if !self.is_current(to) {
            return;
        }
        // The name is taken out for the moment of writing: it lies beside the output.
        let frame_max = self.peer(slot).frame_max;
        self.out(slot);
        let peer = self.peer(slot);
        let Some(name) = peer.consumers.get(&consumer) else { return };
        let out = peer.output.buffer();
        put_deliver(out, name.channel, name.tag.as_bytes(), tag.0, redelivered, &message, frame_max);
    }

    fn got(
        &mut self,
        to: Address,
        tag: DeliveryTag,
        redelivered: bool,
        remaining: u64,
        message: MessageView<'_>,
    ) {
        let slot = to.connection.slot;
        if !self.is_current(to) {
            return;
        }
        let frame_max = self.peer(slot).frame_max;
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        put_get_ok(self.out(slot), to.channel, tag.0, redelivered, remaining, &message, frame_max);
        self.answered(to);
    }

    fn reply(&mut self, to: Address, reply: Reply) {
        if !self.is_current(to) {
            return;
        }
        match reply {
            Reply::ChannelClosed => self.channel_closed(to),
            Reply::Refused(refusal) => self.refused(to, refusal),
            good => {
                let Some(busy) = self.answered(to) else { return };
                self.write_good_reply(to, busy, good);
            }
        }
    }

    fn confirm(&mut self, to: Address, first: u64, last: u64, accepted: bool) {
        if self.is_current(to) {
            put_confirm(self.out(to.connection.slot), to.channel, last, last > first, accepted);
        }
    }

    fn returned(&mut self, to: Address, message: MessageView<'_>) {
        let slot = to.connection.slot;
        if self.is_current(to) {
            let frame_max = self.peer(slot).frame_max;
            put_return(self.out(slot), to.channel, &message, frame_max);
        }
    }

    fn consumer_cancelled(&mut self, to: Address, consumer: ConsumerId) {
        let slot = to.connection.slot;
        if !self.is_current(to) {
            return;
        }
        let Some(name) = self.peer(slot).consumers.remove(&consumer) else { return };
        if self.peer(slot).capabilities.cancel_notify {
            let cancel = basic::Cancel { consumer_tag: (&*name.tag).into(), nowait: true };
            method::write(self.out(slot), to.channel, &AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)));
        }
    }

    fn channel_failed(&mut self, to: Address, refusal: Refusal) {
        let slot = to.connection.slot;
        if !self.is_current(to) {
            return;
        }
        let Some(channel) = self.channel(slot, to.channel) else { return };
        if channel.state != ChannelState::Open {
            return;
        }
        // An answer that is under way finds nobody waiting.
        channel.busy = None;
        channel.unreleased = true;
        self.write_channel_close(slot, to.channel, &Failure::from_refusal(refusal, (0, 0)));
        self.mark_resumable(slot);
    }

    fn publishing_held(&mut self, to: Address, held: bool) {
        let slot = to.connection.slot;
        if !self.is_current(to) {
            return;
        }
        if let Some(channel) = self.channel(slot, to.channel) {
            channel.publishing_held = held;
        }
        if !held {
            self.mark_resumable(slot);
        }
    }

    fn traced(&self, message: &MessageView<'_>, traced: &Traced<'_>) -> Vec<u8> {
        let peer = self.peers.get(traced.channel.connection.slot as usize);
        let connection = peer.map(|peer| format!("{} -> {}", peer.ends.0, peer.ends.1)).unwrap_or_default();
        let user = peer.map_or("", |peer| &peer.user);
        let party = trace::Party { node: &self.config.cluster_name, connection: &connection, user };
        trace::traced(message, traced, &party)
    }

    fn publishing_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
        let publishers = self.peers.iter().filter(|(_, peer)| peer.publishes || peer.pause.is_some());
        let slots: Vec<u32> = publishers.map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            self.tell_blocked(slot, blocked);
            if !blocked && self.peer(slot).pause == Some(Pause::Blocked) {
                self.mark_resumable(slot);
            }
        }
    }
}

impl Front {
    /// The address is of the connection that has the slot now.
    fn is_current(&self, to: Address) -> bool {
        let peer = self.peers.get(to.connection.slot as usize);
        peer.is_some_and(|peer| peer.connection == Some(to.connection))
    }

    /// Tells a publisher, once, that it is blocked, or that it is not any more.
    pub(super) fn tell_blocked(&mut self, slot: u32, blocked: bool) {
        let peer = self.peer(slot);
        if !peer.capabilities.blocked || peer.told_blocked == blocked || !peer.is_running() {
            return;
        }
        peer.told_blocked = blocked;
        let told = match blocked {
            true => connection::AMQPMethod::Blocked(connection::Blocked { reason: "low on memory".into() }),
            false => connection::AMQPMethod::Unblocked(connection::Unblocked {}),
        };
        method::write(self.out(slot), 0, &AMQPClass::Connection(told));
    }

    /// The channel's request has its answer: what was held back may go on.
    fn answered(&mut self, to: Address) -> Option<Busy> {
        let slot = to.connection.slot;
        let channel = self.channel(slot, to.channel)?;
        let busy = channel.busy.take();
        if !channel.held.is_empty() || self.peer(slot).pause == Some(Pause::Held) {
            self.mark_resumable(slot);
        }
        busy
    }

    fn channel_closed(&mut self, to: Address) {
        let slot = to.connection.slot;
        let peer = self.peer(slot);
        let Ok(index) = peer.index(to.channel) else { return };
        let channel = &mut peer.channels[index].1;
        match &mut channel.state {
            ChannelState::Refused { close_ok: false, released } => {
                *released = true;
                return;
            }
            ChannelState::Refused { close_ok: true, .. } => {}
            ChannelState::Open | ChannelState::Closing => {
                let ok = channel::AMQPMethod::CloseOk(channel::CloseOk {});
                method::write(self.out(slot), to.channel, &AMQPClass::Channel(ok));
            }
        }
        self.forget_channel(slot, to.channel);
    }

    /// A channel has ended on both sides; its number is free. What came behind it on the same number
    /// is for the next one.
    pub(super) fn forget_channel(&mut self, slot: u32, number: u16) {
        let peer = self.peer(slot);
        let Ok(index) = peer.index(number) else { return };
        let (_, channel) = peer.channels.remove(index);
        if !channel.held.is_empty() {
            peer.orphans.push((number, channel.held));
        }
        if !peer.orphans.is_empty() || peer.pause == Some(Pause::Held) {
            self.mark_resumable(slot);
        }
    }

    fn refused(&mut self, to: Address, refusal: Refusal) {
        let slot = to.connection.slot;
        let Some(busy) = self.answered(to) else { return };
        if let Asked::Consume { consumer, .. } = busy.asked {
            self.peer(slot).consumers.remove(&consumer);
        }
        let failure = Failure::from_refusal(refusal, busy.ids);
        if failure.ends_connection() {
            self.peer(slot).failure = Some(failure);
        } else {
            self.write_channel_close(slot, to.channel, &failure);
            if let Some(channel) = self.channel(slot, to.channel) {
                channel.unreleased = true;
            }
        }
        self.mark_resumable(slot);
    }

    /// Closes a channel towards the client; from now on its frames are ignored.
    pub(super) fn write_channel_close(&mut self, slot: u32, number: u16, failure: &Failure) {
        let close = channel::Close {
            reply_code: failure.code.0,
            reply_text: failure.reply_text().into(),
            class_id: failure.ids.0,
            method_id: failure.ids.1,
        };
        method::write(self.out(slot), number, &AMQPClass::Channel(channel::AMQPMethod::Close(close)));
        self.peer(slot).consumers.retain(|_, name| name.channel != number);
        let reserved = match self.channel(slot, number) {
            Some(channel) => {
                channel.state = ChannelState::Refused { close_ok: false, released: false };
                channel.content.take().map_or(0, |content| content.body.len() as u64)
            }
            None => 0,
        };
        self.release_assembly(slot, reserved);
    }

    fn write_good_reply(&mut self, to: Address, busy: Busy, reply: Reply) {
        let slot = to.connection.slot;
        let nowait = busy.nowait;
        let class = match (busy.asked, reply) {
            (Asked::Consume { tag, .. }, Reply::Consuming { .. }) => {
                basic_ok(basic::AMQPMethod::ConsumeOk(basic::ConsumeOk { consumer_tag: tag.into() }))
            }
            (Asked::Cancel { tag }, Reply::Cancelled { consumer }) => {
                self.peer(slot).consumers.remove(&consumer);
                basic_ok(basic::AMQPMethod::CancelOk(basic::CancelOk { consumer_tag: tag.into() }))
            }
            (Asked::Get, Reply::Empty) => basic_ok(basic::AMQPMethod::GetEmpty(basic::GetEmpty {})),
            (Asked::Qos, Reply::PrefetchSet) => basic_ok(basic::AMQPMethod::QosOk(basic::QosOk {})),
            (Asked::Commit, Reply::Committed) => AMQPClass::Tx(tx::AMQPMethod::CommitOk(tx::CommitOk {})),
            (Asked::QueueDeclare, Reply::QueueDeclared { name, messages, consumers }) => {
                if let Some(channel) = self.channel(slot, to.channel) {
                    channel.last_queue = name.to_string();
                }
                queue_ok(queue::AMQPMethod::DeclareOk(queue::DeclareOk {
                    queue: (&*name).into(),
                    message_count: u32::try_from(messages).unwrap_or(u32::MAX),
                    consumer_count: u32::try_from(consumers).unwrap_or(u32::MAX),
                }))
            }
            (Asked::QueueDelete, Reply::QueueDeleted { messages }) => {
                let message_count = u32::try_from(messages).unwrap_or(u32::MAX);
                queue_ok(queue::AMQPMethod::DeleteOk(queue::DeleteOk { message_count }))
            }
            (Asked::QueuePurge, Reply::QueuePurged { messages }) => {
                let message_count = u32::try_from(messages).unwrap_or(u32::MAX);
                queue_ok(queue::AMQPMethod::PurgeOk(queue::PurgeOk { message_count }))
            }
            (asked, Reply::Done) => done(&asked),
            (asked, reply) => unreachable!("{reply:?} does not answer {asked:?}"),
        };
        if !nowait {
            method::write(self.out(slot), to.channel, &class);
        }
    }

    /// A consumer is about to be: its deliveries will need its name.
    pub(super) fn name_consumer(&mut self, slot: u32, consumer: ConsumerId, channel: u16, tag: &str) {
        self.peer(slot).consumers.insert(consumer, ConsumerName { channel, tag: tag.into() });
    }
}

fn basic_ok(method: basic::AMQPMethod) -> AMQPClass {
    AMQPClass::Basic(method)
}

fn queue_ok(method: queue::AMQPMethod) -> AMQPClass {
    AMQPClass::Queue(method)
}

fn done(asked: &Asked) -> AMQPClass {
    use exchange::AMQPMethod as Exchange;
    match asked {
        Asked::ExchangeDeclare => AMQPClass::Exchange(Exchange::DeclareOk(exchange::DeclareOk {})),
        Asked::ExchangeDelete => AMQPClass::Exchange(Exchange::DeleteOk(exchange::DeleteOk {})),
        Asked::ExchangeBind => AMQPClass::Exchange(Exchange::BindOk(exchange::BindOk {})),
        Asked::ExchangeUnbind => AMQPClass::Exchange(Exchange::UnbindOk(exchange::UnbindOk {})),
        Asked::QueueBind => queue_ok(queue::AMQPMethod::BindOk(queue::BindOk {})),
        Asked::QueueUnbind => queue_ok(queue::AMQPMethod::UnbindOk(queue::UnbindOk {})),
        asked => unreachable!("{asked:?} has an answer of its own"),
    }
}
