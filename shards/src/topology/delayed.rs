//! x-delayed-message exchanges: a message with the header `x-delay` waits so many milliseconds before it is
//! routed, as the type says that `x-delayed-type` names.
//!
//! Messages wait in a queue of the exchange's own, which comes and goes with it: so they are kept, paged out
//! and counted as messages in queues are, and end their wait exactly in time wherever they stand. The queue's
//! name tells clients whose it is; they can look at it and purge it, and nothing else. No policy and no
//! binding holds for it, and no publish reaches it by its name.
//!
//! Those of one moment go on in the order of their publishing, but for those that have to be read from the log
//! first. A message goes on by its routing key and those that its headers show (`CC`); what `BCC` said is known only
//! while it is published.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::checks::{Named, precondition};
use super::operation::{ExchangeInfo, ExchangeKind, QueueInfo};
use crate::limits::NAME_BYTES_MAX;
use crate::queue::{DeadLetterTo, QueueSettings};
use crate::{Arguments, Refusal, Value};

/// How long a message waits, in milliseconds.
pub(super) const DELAY: &str = "x-delay";

/// The start of the names of such queues; the exchange's name follows. Clients declare no queue `amq.*`.
const PREFIX: &str = "amq.delayed.";

const TYPE: &str = "x-delayed-type";

/// The name of the queue where an exchange's messages wait.
pub(super) fn queue_of(exchange: &str) -> String {
    format!("{PREFIX}{exchange}")
}

/// The exchange whose messages wait in a queue of this name; none if it is any other queue.
pub fn exchange_of_delay_queue(queue: &str) -> Option<&str> {
    queue.strip_prefix(PREFIX)
}

impl QueueInfo {
    /// What is asked of a queue where messages wait.
    pub(super) fn delay_settings(exchange: &str) -> QueueSettings {
        let to = DeadLetterTo {
            exchange: exchange.into(),
            routing_key: None,
            at_least_once: true,
            has_waited: true,
        };
        QueueSettings { dead_letter: Some(Arc::new(to)), ..QueueSettings::default() }
    }
}

impl ExchangeInfo {
    /// How it routes: by its kind, or for a delayed exchange as `x-delayed-type` says.
    pub fn routes_as(&self) -> ExchangeKind {
        match self.kind {
            ExchangeKind::Delayed => delayed_type(&self.arguments).unwrap_or(ExchangeKind::Direct),
            kind => kind,
        }
    }
}

fn delayed_type(arguments: &Arguments) -> Option<ExchangeKind> {
    let kind = arguments.get(TYPE).and_then(Value::as_text).and_then(ExchangeKind::from_name)?;
    (kind != ExchangeKind::Delayed).then_some(kind)
}

/// The arguments of a new delayed exchange, but for those of the type that it routes as.
pub(super) fn check(exchange: Named<'_>, arguments: &Arguments) -> Result<ExchangeKind, Refusal> {
    match delayed_type(arguments) {
        // What is handed on after its wait is not remembered: better none than half of a history.
        Some(ExchangeKind::RecentHistory) => {
            Err(precondition(format!("'x-recent-history' cannot be the '{TYPE}' of {exchange}")))
        }
        Some(_) if queue_of(exchange.name).len() > NAME_BYTES_MAX => {
            let most = NAME_BYTES_MAX - PREFIX.len();
            Err(precondition(format!("the name of a delayed exchange has at most {most} bytes")))
        }
        Some(kind) => Ok(kind),
        None => Err(precondition(format!(
            "Invalid argument, '{TYPE}' must be an existing exchange type, but not 'x-delayed-message'"
        ))),
    }
}

/// How long a message with these headers waits; none if it does not.
pub(super) fn delay_ms(headers: &Arguments) -> Option<u64> {
    let delay = headers.get(DELAY)?.as_integer()?;
    u64::try_from(delay).ok().filter(|delay| *delay > 0)
}
