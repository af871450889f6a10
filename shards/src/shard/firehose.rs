//! Tracing of a vhost: each message that a client publishes in it, and each one that a client gets, is
//! published once more, with a word on where it came from, to [`TRACE_EXCHANGE`].
//!
//! Runs on the home of the channel that published or got it. A channel knows whether its vhost is traced, and
//! while it is, keeps no route: so a publish that need not be traced pays nothing, and a delivery one look at
//! what it has looked at anyway. What is traced is transient, and nobody waits for it. Messages that come from
//! the trace exchange are not traced again.

use super::Shard;
use super::batch::RecordRef;
use super::effects::Effects;
use super::front_end::{Address, Publish};
use super::home::Home;
use super::properties::StoredHeaders;
use crate::ledger::Position;
use crate::limits::NAME_BYTES_MAX;
use crate::message::{Durability, MessageView};
use crate::queue::Record;
use crate::topology::{ReplyAddress, RoutingData, TRACE_EXCHANGE};
use crate::{ConsumerId, QueueId, VhostId};

/// What is to be said of a message that is traced.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// The channel that published or got it.
    pub channel: Address,
    /// The vhost.
    pub vhost: &'a str,
    /// Routing keys beside the message's own.
    pub further_keys: &'a [&'a [u8]],
    /// Which of the two it was.
    pub event: TraceEvent<'a>,
}

/// What happened to it.
#[derive(Clone, Copy, Debug)]
pub enum TraceEvent<'a> {
    /// It was published, and goes to these queues.
    Published { queues: &'a [&'a str] },
    /// It was delivered, or got.
    Delivered { redelivered: bool },
}

/// A delivery that is to be traced when the step that made it is done.
pub(super) struct Tap {
    pub channel: Address,
    pub vhost: VhostId,
    pub source: TapSource,
    pub redelivered: bool,
    pub record: Record,
}

/// The queue that a traced delivery came from.
pub(super) enum TapSource {
    Queue(QueueId),
    /// By its name: of a get, and of a direct reply.
    Named(String),
}

impl Home {
    /// Remembers a delivery that is to be traced.
    #[cold]
    pub(super) fn tap(
        &mut self,
        channel: Address,
        vhost: VhostId,
        source: TapSource,
        redelivered: bool,
        message: &MessageView<'_>,
    ) {
        if message.exchange != TRACE_EXCHANGE.as_bytes() {
            let record = Record::of(message);
            self.taps.push(Tap { channel, vhost, source, redelivered, record });
        }
    }

    /// The same of a delivery to a consumer. One that is settled as it is made does not say where it was.
    #[cold]
    pub(super) fn tap_delivery(
        &mut self,
        channel: Address,
        vhost: VhostId,
        consumer: ConsumerId,
        entry: Option<(QueueId, Position)>,
        redelivered: bool,
        message: &MessageView<'_>,
    ) {
        let queue = entry.map(|(queue, _)| queue).or_else(|| self.consumers.get(&consumer).copied());
        if let Some(queue) = queue {
            self.tap(channel, vhost, TapSource::Queue(queue), redelivered, message);
        }
    }

    /// The vhost is traced from now on, or no longer.
    pub(super) fn trace_vhost(&mut self, vhost: VhostId, on: bool) {
        for channel in self.channels_mut().filter(|channel| channel.vhost == vhost) {
            channel.traced = on;
        }
    }
}

impl Shard {
    /// The names of everything that a message goes to, for its trace.
    pub(super) fn routed_names(&self, publish: &Publish<'_>, targets: &[QueueId]) -> Vec<String> {
        let queues = targets.iter().filter_map(|&queue| self.topology.queue_by_id(queue));
        let mut names: Vec<String> = queues.map(|queue| queue.name.to_string()).collect();
        if !self.route.replies.is_empty() {
            let keys =
                std::iter::once(publish.message.routing_key).chain(publish.further_keys.iter().copied());
            let replies = keys.filter(|key| ReplyAddress::from_name(key).is_some());
            names.extend(replies.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        names
    }

    /// Traces a message of a channel, which has gone to these queues.
    pub(super) fn trace_publish<E: Effects>(
        &mut self,
        fx: &mut E,
        channel: Address,
        vhost: VhostId,
        publish: &Publish<'_>,
        queues: &[String],
    ) {
        let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
        let (event, key) = (TraceEvent::Published { queues: &queues }, publish.message.exchange);
        self.trace(fx, channel, vhost, &publish.message, publish.further_keys, ("publish.", key), event);
    }

    /// Traces the deliveries of this step. False if there were none.
    pub(super) fn publish_taps<E: Effects>(&mut self, fx: &mut E) -> bool {
        if self.home.taps.is_empty() {
            return false;
        }
        for tap in std::mem::take(&mut self.home.taps) {
            let name = match tap.source {
                TapSource::Named(name) => name,
                TapSource::Queue(queue) => match self.topology.queue_by_id(queue) {
                    Some(queue) => queue.name.to_string(),
                    // It was deleted while the message was on its way.
                    None => String::new(),
                },
            };
            let message = tap.record.view();
            let keys = fx.further_keys(message.properties);
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let (event, name) = (TraceEvent::Delivered { redelivered: tap.redelivered }, name.as_bytes());
            self.trace(fx, tap.channel, tap.vhost, &message, &keys, ("deliver.", name), event);
        }
        true
    }

    /// Publishes a message once more. The routing key is made of two parts.
    #[allow(clippy::too_many_arguments, reason = "the parts of one event")]
    fn trace<E: Effects>(
        &mut self,
        fx: &mut E,
        channel: Address,
        vhost: VhostId,
        message: &MessageView<'_>,
        further_keys: &[&[u8]],
        key: (&str, &[u8]),
        event: TraceEvent<'_>,
    ) {
        let exchange = self.topology.exchange_index(vhost, TRACE_EXCHANGE);
        if exchange.is_none_or(|exchange| self.topology.bindings_from_count(exchange) == 0) {
            return;
        }
        let vhost_name = self.topology.vhost_name(vhost);
        let properties = fx.traced(message, &Traced { channel, vhost: vhost_name, further_keys, event });
        let mut key = format!("{}{}", key.0, String::from_utf8_lossy(key.1));
        // A key has no more bytes than a name has, and this is a name and more.
        while key.len() > NAME_BYTES_MAX {
            key.pop();
        }
        let key = key.as_bytes();
        let message = MessageView {
            exchange: TRACE_EXCHANGE.as_bytes(),
            routing_key: key,
            properties: &properties,
            body: message.body,
        };
        let headers = StoredHeaders { format: fx, properties: &properties };
        let data = RoutingData { routing_key: key, further_keys: &[], headers: &headers };
        self.topology.route_inside(vhost, TRACE_EXCHANGE, &data, &mut self.route);
        let (targets, record) = (std::mem::take(&mut self.route.queues), RecordRef::View(message));
        self.dispatch(fx, record, &targets, Durability::Memory, None, None);
        self.dispatch_delayed(fx, record, Durability::Memory, None);
        self.route.queues = targets;
    }
}
