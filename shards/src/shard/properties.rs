//! What the kernel asks of a message's properties. They are the protocol's own and opaque to the kernel,
//! which stores and delivers them as they are; only what queues do beyond that needs to look into them.

use std::fmt;

use super::front_end::{HeaderSource, MessageProperty};
use crate::ledger::Returns;
use crate::message::MessageView;
use crate::{Arguments, Value};

/// Why a queue gave a message up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A consumer rejected it.
    Rejected,
    /// Its time to live ran out.
    Expired,
    /// The queue is as long as it may be.
    MaxLength,
    /// It came back too often.
    DeliveryLimit,
}

impl Reason {
    /// The reason's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Rejected => "rejected",
            Reason::Expired => "expired",
            Reason::MaxLength => "maxlen",
            Reason::DeliveryLimit => "delivery_limit",
        }
    }
}

/// The end of a message in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Death<'a> {
    /// The queue.
    pub queue: &'a str,
    /// Why.
    pub reason: Reason,
}

/// A message's properties as those of a dead letter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetterProperties {
    /// What is stored and delivered: the history is in it, and the time to live is not.
    pub properties: Vec<u8>,
    /// To be kept over a restart by durable queues.
    pub persistent: bool,
    /// Queues that gave the message up since it was last rejected by a consumer, this one included. If it
    /// goes to one of them, it goes in circles by itself: there it is dropped.
    pub circled: Vec<String>,
}

/// A message's properties when it has waited in a delayed exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitedProperties {
    /// What is stored and delivered: they do not say any more that the message is to wait.
    pub properties: Vec<u8>,
    /// To be kept over a restart by durable queues.
    pub persistent: bool,
    /// Time to live in milliseconds, if the message has one of its own.
    pub ttl_ms: Option<u64>,
}

/// Reads and rewrites properties. The bytes were accepted by the same protocol before.
pub trait PropertyFormat {
    /// The headers, or an empty table when there are none.
    fn headers(&self, properties: &[u8]) -> Arguments;

    /// A property that an exchange may route by, if it is there.
    fn property(&self, properties: &[u8], property: MessageProperty) -> Option<Value>;

    /// Routing keys beside the message's own that are to be seen in it.
    fn further_keys(&self, properties: &[u8]) -> Vec<Vec<u8>>;

    /// The priority; 0 when there is none.
    fn priority(&self, properties: &[u8]) -> u8;

    /// The properties of `message`, which a queue gives up, as those of a dead letter.
    fn dead_letter(&self, message: &MessageView<'_>, death: &Death<'_>) -> DeadLetterProperties;

    /// The properties of a message that has waited in a delayed exchange. The header `x-delay` gets a minus, as
    /// with RabbitMQ: it has been obeyed.
    fn waited(&self, properties: &[u8]) -> WaitedProperties;

    /// The properties with a note of how often the message has come back, for one delivery.
    fn with_returns(&self, properties: &[u8], returns: Returns) -> Vec<u8>;
}

/// Headers and properties of a stored message, read only if an exchange asks.
pub(super) struct StoredHeaders<'a, F> {
    pub format: &'a F,
    pub properties: &'a [u8],
}

impl<F> fmt::Debug for StoredHeaders<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredHeaders").field("properties", &self.properties).finish_non_exhaustive()
    }
}

impl<F: PropertyFormat> HeaderSource for StoredHeaders<'_, F> {
    fn headers(&self) -> Arguments {
        self.format.headers(self.properties)
    }

    fn property(&self, property: MessageProperty) -> Option<Value> {
        self.format.property(self.properties, property)
    }
}
