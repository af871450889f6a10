//! What a queue is asked to do, read from its arguments in one place.
//!
//! The owner keeps the settings of each of its queues and looks nowhere else, so that other settings can
//! take their place while the queue lives. Values that make no sense were refused when the queue was
//! declared (`topology/checks.rs`); here they count as not given.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::Arguments;

/// What happens when a queue is as long as it may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overflow {
    /// The first ready message goes.
    #[default]
    DropHead,
    /// The new message is refused: its publisher gets a nack if it wants confirms.
    RejectPublish,
    /// As above, and the refused message is dead-lettered.
    RejectPublishDeadLetter,
    /// The new message waits outside, and its publisher's channel with it.
    Block,
}

impl Overflow {
    /// The overflow that `x-overflow` names.
    pub fn from_name(name: &str) -> Option<Overflow> {
        Some(match name {
            "drop-head" => Overflow::DropHead,
            "reject-publish" => Overflow::RejectPublish,
            "reject-publish-dlx" => Overflow::RejectPublishDeadLetter,
            "block" => Overflow::Block,
            _ => return None,
        })
    }
}

/// How long a queue may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Most ready messages (`x-max-length`).
    pub messages: Option<u64>,
    /// Most bytes of ready bodies (`x-max-length-bytes`).
    pub bytes: Option<u64>,
    /// What happens there (`x-overflow`).
    pub overflow: Overflow,
}

impl Bound {
    /// Whether this many ready messages, with this many bytes of bodies, are more than may be.
    pub fn is_exceeded_by(&self, messages: u64, bytes: u64) -> bool {
        self.messages.is_some_and(|most| messages > most) || self.bytes.is_some_and(|most| bytes > most)
    }
}

/// Where the messages go that a queue gives up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetterTo {
    /// The exchange that they are published to; it need not exist. Empty is the default exchange.
    pub exchange: Box<str>,
    /// Their new routing key; none keeps their own.
    pub routing_key: Option<Box<str>>,
    /// The queue keeps a message until every queue that it goes to has it.
    pub at_least_once: bool,
    /// They have only waited: they go on as they were published, with no death in their history.
    pub has_waited: bool,
}

/// The effective settings of a queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueSettings {
    /// How long a message may wait, in milliseconds (`x-message-ttl`).
    pub message_ttl_ms: Option<u64>,
    /// How long the queue may go unused before it is deleted, in milliseconds (`x-expires`).
    pub expires_ms: Option<u64>,
    /// How long the queue may be; one field, so that a queue without bounds costs one look.
    pub bound: Option<Bound>,
    /// Where given-up messages go (`x-dead-letter-exchange` and what belongs to it).
    pub dead_letter: Option<Arc<DeadLetterTo>>,
    /// How often a message may come back from consumers that failed (`x-delivery-limit`).
    pub delivery_limit: Option<u32>,
    /// Highest priority of a message; none has no priorities (`x-max-priority`).
    pub max_priority: Option<u8>,
    /// One consumer at a time gets messages (`x-single-active-consumer`).
    pub single_active_consumer: bool,
}

impl QueueSettings {
    /// The settings that these arguments ask for.
    pub fn from_arguments(arguments: &Arguments) -> QueueSettings {
        let text = |name: &str| arguments.get(name).and_then(|value| value.as_text());
        let number = |name: &str| -> Option<u64> { arguments.get(name)?.as_integer()?.try_into().ok() };
        let dead_letter = text("x-dead-letter-exchange").map(|exchange| {
            Arc::new(DeadLetterTo {
                exchange: exchange.into(),
                routing_key: text("x-dead-letter-routing-key").map(Into::into),
                at_least_once: text("x-dead-letter-strategy") == Some("at-least-once"),
                has_waited: false,
            })
        });
        let (messages, bytes) = (number("x-max-length"), number("x-max-length-bytes"));
        let overflow = text("x-overflow").and_then(Overflow::from_name).unwrap_or_default();
        let bound = (messages.is_some() || bytes.is_some()).then_some(Bound { messages, bytes, overflow });
        QueueSettings {
            message_ttl_ms: number("x-message-ttl"),
            expires_ms: number("x-expires"),
            bound,
            dead_letter,
            // A negative one is no limit.
            delivery_limit: number("x-delivery-limit").map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            max_priority: number("x-max-priority").and_then(|most| u8::try_from(most).ok()),
            single_active_consumer: arguments.get("x-single-active-consumer")
                == Some(&crate::Value::Bool(true)),
        }
    }

    /// The time to live of a message that has, or has not, one of its own: the shorter one counts.
    pub fn ttl_ms(&self, own_ms: Option<u64>) -> Option<u64> {
        match (own_ms, self.message_ttl_ms) {
            (Some(own), Some(queue)) => Some(own.min(queue)),
            (own, queue) => own.or(queue),
        }
    }

    /// A message whose consumers have failed this often is given up.
    pub fn is_past_delivery_limit(&self, failures: u32) -> bool {
        self.delivery_limit.is_some_and(|most| failures > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    fn settings(arguments: &[(&str, Value)]) -> QueueSettings {
        let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        QueueSettings::from_arguments(&arguments)
    }

    fn text(text: &str) -> Value {
        Value::LongString(text.as_bytes().to_vec())
    }

    #[test]
    fn arguments_are_read_and_others_passed_over() {
        assert_eq!(settings(&[("x-unknown", Value::I32(1))]), QueueSettings::default());
        let all = settings(&[
            ("x-max-length", Value::U8(3)),
            ("x-max-length-bytes", Value::I64(1 << 40)),
            ("x-overflow", text("reject-publish-dlx")),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-delivery-limit", Value::I64(-1)),
            ("x-max-priority", Value::I32(255)),
            ("x-single-active-consumer", Value::Bool(true)),
        ]);
        let overflow = Overflow::RejectPublishDeadLetter;
        assert_eq!(all.bound, Some(Bound { messages: Some(3), bytes: Some(1 << 40), overflow }));
        let dead_letter = all.dead_letter.unwrap();
        assert_eq!((&*dead_letter.exchange, &dead_letter.routing_key), ("", &None));
        assert!(dead_letter.at_least_once);
        assert_eq!((all.delivery_limit, all.max_priority), (None, Some(255)));
        assert!(all.single_active_consumer);
    }

    #[test]
    fn the_bound_that_is_passed_first_counts() {
        let both = settings(&[("x-max-length", Value::I32(2)), ("x-max-length-bytes", Value::I32(10))]);
        let bound = both.bound.unwrap();
        assert!(!bound.is_exceeded_by(2, 10));
        assert!(bound.is_exceeded_by(3, 0) && bound.is_exceeded_by(1, 11));
        assert_eq!(settings(&[("x-overflow", text("reject-publish"))]).bound, None, "nothing to pass");
    }
}
