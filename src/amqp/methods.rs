//! Methods on an open channel.

use amq_protocol::protocol::{AMQPClass, access, basic, channel, confirm, exchange, queue};
use lepus_shards::shard::{NewConsumer, Request, Shard, Verdict};
use lepus_shards::topology::{BindingSpec, DestinationKind, Operation};
use lepus_shards::{ChannelId, DeliveryTag, VhostId};

use super::codec::read_settlement;
use super::failure::{
    CHANNEL_ERROR, COMMAND_INVALID, Failure, Ids, NOT_ALLOWED, NOT_FOUND, NOT_IMPLEMENTED,
    PRECONDITION_FAILED, SYNTAX_ERROR,
};
use super::front::HasFront;
use super::method;
use super::peer::{Asked, Busy, Channel, ChannelState};
use super::table::to_arguments;
use super::transactions;

/// Ack, reject and nack: read in place.
pub(super) fn take_settlement<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    ids: Ids,
    arguments: &[u8],
) -> Result<(), Failure> {
    let malformed = |_| Failure::new(SYNTAX_ERROR, "arguments cannot be read", ids);
    let (tag, bits) = read_settlement(arguments).map_err(malformed)?;
    let (multiple, verdict) = match ids.1 {
        80 => (bits & 1 != 0, Verdict::Accept),
        // RabbitMQ counts a rejected message against the delivery limit, and a nacked one not.
        90 => (false, if bits & 1 != 0 { Verdict::Fail } else { Verdict::Reject }),
        _ => (bits & 1 != 0, if bits & 2 != 0 { Verdict::Requeue } else { Verdict::Reject }),
    };
    let id = open(fx, slot, number).id;
    let settled = shard.settle(fx, id, DeliveryTag(tag), multiple, verdict);
    settled.map_err(|refusal| Failure::from_refusal(refusal, ids))
}

/// Any other method.
pub(super) fn take<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    class: AMQPClass,
    ids: Ids,
) -> Result<(), Failure> {
    let at = At { slot, number, ids };
    match class {
        AMQPClass::Channel(method) => take_channel(shard, fx, at, method),
        AMQPClass::Exchange(method) => take_exchange(shard, fx, at, method),
        AMQPClass::Queue(method) => take_queue(shard, fx, at, method),
        AMQPClass::Basic(method) => take_basic(shard, fx, at, method),
        AMQPClass::Confirm(confirm::AMQPMethod::Select(select)) => {
            transactions::select_confirms(shard, fx, at, select.nowait)
        }
        AMQPClass::Tx(method) => transactions::take(shard, fx, at, method),
        AMQPClass::Access(access::AMQPMethod::Request(_)) => {
            let ok = access::AMQPMethod::RequestOk(access::RequestOk {});
            method::write(fx.front().out(slot), number, &AMQPClass::Access(ok));
            Ok(())
        }
        _ => at.refuse_unimplemented(),
    }
}

/// `basic.qos` with a prefetch in bytes, which `amq-protocol` reads over.
pub(super) fn check_prefetch_size(arguments: &[u8]) -> Result<(), Failure> {
    match arguments.first_chunk::<4>().map(|size| u32::from_be_bytes(*size)) {
        None | Some(0) => Ok(()),
        Some(size) => Err(Failure::new(NOT_IMPLEMENTED, format!("prefetch_size!=0 ({size})"), (60, 10))),
    }
}

/// Where a method came in.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub slot: u32,
    pub number: u16,
    pub ids: Ids,
}

impl At {
    pub fn refuse(self, code: super::failure::Code, text: impl Into<String>) -> Result<(), Failure> {
        Err(Failure::new(code, text, self.ids))
    }

    pub fn refuse_unimplemented(self) -> Result<(), Failure> {
        self.refuse(COMMAND_INVALID, "unimplemented method")
    }

    /// The channel is busy until the shard has answered.
    pub fn begin<E: HasFront>(self, fx: &mut E, asked: Asked, nowait: bool) -> ChannelId {
        let channel = open(fx, self.slot, self.number);
        channel.busy = Some(Busy { asked, nowait, ids: self.ids });
        channel.id
    }

    /// Hands a request to the shard.
    fn ask<E: HasFront>(self, shard: &mut Shard, fx: &mut E, asked: Asked, nowait: bool, request: Request) {
        let id = self.begin(fx, asked, nowait);
        shard.request(fx, id, request);
    }

    fn vhost<E: HasFront>(self, fx: &mut E) -> VhostId {
        fx.front().peer(self.slot).vhost
    }

    /// The queue that a name means: an empty one is the last that the channel declared.
    fn queue_name<E: HasFront>(self, fx: &mut E, name: &str) -> Result<String, Failure> {
        if !name.is_empty() {
            return Ok(name.to_owned());
        }
        match open(fx, self.slot, self.number).last_queue.as_str() {
            "" => Err(Failure::new(NOT_FOUND, "no previously declared queue", self.ids)),
            last => Ok(last.to_owned()),
        }
    }
}

pub(super) fn open<E: HasFront>(fx: &mut E, slot: u32, number: u16) -> &mut Channel {
    let channel = fx.front().channel(slot, number).expect("the channel was looked up for this frame");
    debug_assert_eq!(channel.state, ChannelState::Open);
    channel
}

fn take_channel<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    method: channel::AMQPMethod,
) -> Result<(), Failure> {
    match method {
        channel::AMQPMethod::Open(_) => at.refuse(CHANNEL_ERROR, "second 'channel.open' seen"),
        channel::AMQPMethod::Close(_) => {
            let peer = fx.front().peer(at.slot);
            peer.consumers.retain(|_, name| name.channel != at.number);
            let channel = open(fx, at.slot, at.number);
            channel.state = ChannelState::Closing;
            if channel.publishing_held {
                // Publishes that wait for room are not waited for.
                channel.held.clear();
            }
            let id = channel.id;
            shard.close_channel(fx, id);
            Ok(())
        }
        channel::AMQPMethod::Flow(flow) if flow.active => {
            let ok = channel::AMQPMethod::FlowOk(channel::FlowOk { active: true });
            method::write(fx.front().out(at.slot), at.number, &AMQPClass::Channel(ok));
            Ok(())
        }
        channel::AMQPMethod::Flow(_) => at.refuse(NOT_IMPLEMENTED, "active=false"),
        channel::AMQPMethod::CloseOk(_) | channel::AMQPMethod::FlowOk(_) => Ok(()),
        _ => at.refuse_unimplemented(),
    }
}

fn take_exchange<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    method: exchange::AMQPMethod,
) -> Result<(), Failure> {
    let vhost = at.vhost(fx);
    let (asked, nowait, operation) = match method {
        exchange::AMQPMethod::Declare(declare) => {
            let operation = Operation::DeclareExchange {
                vhost,
                name: declare.exchange.as_str().into(),
                kind: declare.kind.as_str().into(),
                passive: declare.passive,
                durable: declare.durable,
                auto_delete: declare.auto_delete,
                internal: declare.internal,
                arguments: to_arguments(&declare.arguments),
            };
            (Asked::ExchangeDeclare, declare.nowait, operation)
        }
        exchange::AMQPMethod::Delete(delete) => {
            let (name, if_unused) = (delete.exchange.as_str().into(), delete.if_unused);
            (Asked::ExchangeDelete, delete.nowait, Operation::DeleteExchange { vhost, name, if_unused })
        }
        exchange::AMQPMethod::Bind(bind) => {
            let binding = BindingSpec {
                source: bind.source.as_str().into(),
                destination: bind.destination.as_str().into(),
                kind: DestinationKind::Exchange,
                routing_key: bind.routing_key.as_str().into(),
                arguments: to_arguments(&bind.arguments),
            };
            (Asked::ExchangeBind, bind.nowait, Operation::Bind { vhost, binding })
        }
        exchange::AMQPMethod::Unbind(unbind) => {
            let binding = BindingSpec {
                source: unbind.source.as_str().into(),
                destination: unbind.destination.as_str().into(),
                kind: DestinationKind::Exchange,
                routing_key: unbind.routing_key.as_str().into(),
                arguments: to_arguments(&unbind.arguments),
            };
            (Asked::ExchangeUnbind, unbind.nowait, Operation::Unbind { vhost, binding })
        }
        _ => return at.refuse_unimplemented(),
    };
    at.ask(shard, fx, asked, nowait, Request::Topology(operation));
    Ok(())
}

fn take_queue<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    method: queue::AMQPMethod,
) -> Result<(), Failure> {
    let vhost = at.vhost(fx);
    let (asked, nowait, request) = match method {
        queue::AMQPMethod::Declare(declare) => {
            // A passive declaration of nothing in particular is of the channel's last queue.
            let name = match declare.passive {
                true => at.queue_name(fx, declare.queue.as_str())?,
                false => declare.queue.as_str().into(),
            };
            let operation = Operation::DeclareQueue {
                vhost,
                name,
                passive: declare.passive,
                durable: declare.durable,
                exclusive: declare.exclusive,
                auto_delete: declare.auto_delete,
                arguments: to_arguments(&declare.arguments),
            };
            (Asked::QueueDeclare, declare.nowait, Request::Topology(operation))
        }
        queue::AMQPMethod::Delete(delete) => {
            let name = at.queue_name(fx, delete.queue.as_str())?;
            let (if_unused, if_empty) = (delete.if_unused, delete.if_empty);
            let operation = Operation::DeleteQueue { vhost, name, if_unused, if_empty };
            (Asked::QueueDelete, delete.nowait, Request::Topology(operation))
        }
        queue::AMQPMethod::Purge(purge) => {
            let queue = at.queue_name(fx, purge.queue.as_str())?;
            (Asked::QueuePurge, purge.nowait, Request::Purge { vhost, queue })
        }
        queue::AMQPMethod::Bind(bind) => {
            let destination = at.queue_name(fx, bind.queue.as_str())?;
            // With neither queue nor key given, the key is the queue's name (RabbitMQ, as specified).
            let routing_key = match (bind.queue.as_str(), bind.routing_key.as_str()) {
                ("", "") => destination.clone(),
                (_, key) => key.into(),
            };
            let binding = BindingSpec {
                source: bind.exchange.as_str().into(),
                destination,
                kind: DestinationKind::Queue,
                routing_key,
                arguments: to_arguments(&bind.arguments),
            };
            (Asked::QueueBind, bind.nowait, Request::Topology(Operation::Bind { vhost, binding }))
        }
        queue::AMQPMethod::Unbind(unbind) => {
            let destination = at.queue_name(fx, unbind.queue.as_str())?;
            let routing_key = match (unbind.queue.as_str(), unbind.routing_key.as_str()) {
                ("", "") => destination.clone(),
                (_, key) => key.into(),
            };
            let binding = BindingSpec {
                source: unbind.exchange.as_str().into(),
                destination,
                kind: DestinationKind::Queue,
                routing_key,
                arguments: to_arguments(&unbind.arguments),
            };
            (Asked::QueueUnbind, false, Request::Topology(Operation::Unbind { vhost, binding }))
        }
        _ => return at.refuse_unimplemented(),
    };
    at.ask(shard, fx, asked, nowait, request);
    Ok(())
}

fn take_basic<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    method: basic::AMQPMethod,
) -> Result<(), Failure> {
    match method {
        basic::AMQPMethod::Qos(qos) => {
            let id = at.begin(fx, Asked::Qos, false);
            shard.set_prefetch(fx, id, qos.prefetch_count, qos.global);
            Ok(())
        }
        basic::AMQPMethod::Consume(consume) => take_consume(shard, fx, at, &consume),
        basic::AMQPMethod::Cancel(cancel) => take_cancel(shard, fx, at, &cancel),
        basic::AMQPMethod::Get(get) => {
            let (vhost, queue) = (at.vhost(fx), at.queue_name(fx, get.queue.as_str())?);
            let request = Request::Get { vhost, queue, no_ack: get.no_ack };
            at.ask(shard, fx, Asked::Get, false, request);
            Ok(())
        }
        basic::AMQPMethod::Recover(recover) => {
            if !recover.requeue {
                return at.refuse(NOT_IMPLEMENTED, "requeue=false");
            }
            // What comes again must come behind the answer.
            let ok = basic::AMQPMethod::RecoverOk(basic::RecoverOk {});
            method::write(fx.front().out(at.slot), at.number, &AMQPClass::Basic(ok));
            let id = open(fx, at.slot, at.number).id;
            shard.recover(fx, id);
            Ok(())
        }
        basic::AMQPMethod::RecoverAsync(recover) => {
            if !recover.requeue {
                return at.refuse(NOT_IMPLEMENTED, "requeue=false");
            }
            let id = open(fx, at.slot, at.number).id;
            shard.recover(fx, id);
            Ok(())
        }
        // The answer to a cancellation of ours: nothing waits for it.
        basic::AMQPMethod::CancelOk(_) => Ok(()),
        _ => at.refuse_unimplemented(),
    }
}

fn take_consume<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    consume: &basic::Consume,
) -> Result<(), Failure> {
    let queue = at.queue_name(fx, consume.queue.as_str())?;
    let tag = match consume.consumer_tag.as_str() {
        "" => generated_tag(),
        tag => tag.to_owned(),
    };
    let most = fx.front().config.consumers_per_channel_max;
    let mut consumers = fx.front().peer(at.slot).consumers.values().filter(|name| name.channel == at.number);
    if most > 0 && consumers.clone().count() >= most {
        return at.refuse(NOT_ALLOWED, format!("reached maximum ({most}) of consumers per channel"));
    }
    if consumers.any(|name| *name.tag == *tag) {
        return at.refuse(NOT_ALLOWED, format!("attempt to reuse consumer tag '{tag}'"));
    }
    let arguments = to_arguments(&consume.arguments);
    let priority = match arguments.get("x-priority") {
        None => 0,
        Some(value) => match value.as_integer() {
            Some(priority) => priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
            None => return at.refuse(PRECONDITION_FAILED, "invalid arg 'x-priority': not an integer"),
        },
    };
    let id = shard.new_consumer_id();
    let (no_ack, exclusive) = (consume.no_ack, consume.exclusive);
    fx.front().name_consumer(at.slot, id, at.number, &tag);
    let consumer = NewConsumer { id, no_ack, exclusive, priority };
    let asked = Asked::Consume { tag, consumer: id };
    let request = Request::Consume { vhost: at.vhost(fx), queue, consumer };
    at.ask(shard, fx, asked, consume.nowait, request);
    Ok(())
}

fn take_cancel<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    cancel: &basic::Cancel,
) -> Result<(), Failure> {
    let tag = cancel.consumer_tag.as_str();
    let mut consumers = fx.front().peer(at.slot).consumers.iter();
    let known = consumers.find(|(_, name)| name.channel == at.number && *name.tag == *tag);
    match known.map(|(id, _)| *id) {
        Some(consumer) => {
            let asked = Asked::Cancel { tag: tag.to_owned() };
            at.ask(shard, fx, asked, cancel.nowait, Request::Cancel { consumer });
        }
        None if cancel.nowait => {}
        // Cancelling what is not there is fine.
        None => {
            let ok = basic::AMQPMethod::CancelOk(basic::CancelOk { consumer_tag: tag.into() });
            method::write(fx.front().out(at.slot), at.number, &AMQPClass::Basic(ok));
        }
    }
    Ok(())
}

/// A name for a consumer that has none, in the form that clients know.
fn generated_tag() -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letter = |_| char::from(LETTERS[fastrand::usize(..LETTERS.len())]);
    format!("amq.ctag-{}", (0..22).map(letter).collect::<String>())
}
