//! What the types of exchanges ask of arguments and bindings, in the words of RabbitMQ.

#![forbid(unsafe_code)]

use super::checks::{Named, erlang_term, headers_match, precondition, type_name};
use super::{BindingSpec, ExchangeInfo, ExchangeKind, QueueInfo, QueueKind, delayed, spread};
use crate::shard::MessageProperty;
use crate::{Arguments, Refusal, Value};

/// The arguments of a new exchange.
pub(super) fn exchange_arguments(
    exchange: Named<'_>,
    kind: ExchangeKind,
    arguments: &Arguments,
) -> Result<(), Refusal> {
    if let Some(value) = arguments.get("alternate-exchange").filter(|value| value.as_text().is_none()) {
        return Err(precondition(format!(
            "invalid type '{}' for arg 'alternate-exchange' in {exchange}",
            type_name(value)
        )));
    }
    let kind = match kind {
        ExchangeKind::Delayed => delayed::check(exchange, arguments)?,
        kind => kind,
    };
    match kind {
        ExchangeKind::ConsistentHash => hash_arguments(exchange, arguments),
        ExchangeKind::RecentHistory => history_arguments(arguments),
        _ => Ok(()),
    }
}

/// At most one of `hash-header`, `hash-property`, and what they name.
fn hash_arguments(exchange: Named<'_>, arguments: &Arguments) -> Result<(), Refusal> {
    for argument in ["hash-header", "hash-property"] {
        if let Some(value) = arguments.get(argument).filter(|value| value.as_text().is_none()) {
            let kind = type_name(value);
            return Err(precondition(format!("invalid type '{kind}' for arg '{argument}' in {exchange}")));
        }
    }
    match (arguments.get("hash-header"), arguments.get("hash-property")) {
        (Some(_), Some(_)) => Err(precondition("hash-header and hash-property are mutually exclusive")),
        (_, Some(property)) if property.as_text().and_then(MessageProperty::from_name).is_none() => {
            let name = property.as_text().unwrap_or_default();
            Err(precondition(format!("Unsupported property: {name}")))
        }
        _ => Ok(()),
    }
}

fn history_arguments(arguments: &Arguments) -> Result<(), Refusal> {
    match arguments.get("x-recent-history-length") {
        None => Ok(()),
        Some(length) if length.as_integer().is_some_and(|length| length > 0) => Ok(()),
        Some(length) => Err(precondition(format!(
            "Invalid argument {}, 'x-recent-history-length' must be a positive integer",
            erlang_term(length)
        ))),
    }
}

/// A new binding of this exchange. The queue is the destination, unless that is an exchange.
pub(super) fn binding(
    source: &ExchangeInfo,
    binding: &BindingSpec,
    queue: Option<&QueueInfo>,
) -> Result<(), Refusal> {
    let key = &binding.routing_key;
    match source.routes_as() {
        ExchangeKind::Headers => headers_match(&binding.arguments),
        ExchangeKind::ConsistentHash => match spread::weight(key) {
            None => {
                let key = erlang_term(&Value::LongString(key.clone().into()));
                Err(precondition(format!("The binding key must be an integer: {key}")))
            }
            Some(weight) if weight < 1.0 => Err(precondition("The binding key must be greater than 0")),
            Some(_) => Ok(()),
        },
        ExchangeKind::LocalRandom if !key.is_empty() => {
            Err(precondition(format!("Non empty binding '{key}' key not permitted")))
        }
        ExchangeKind::LocalRandom => match queue.map(QueueInfo::kind) {
            None => Err(precondition("Destination not found")),
            Some(QueueKind::Classic) => Ok(()),
            Some(QueueKind::Quorum) => {
                Err(precondition("Queue type rabbit_quorum_queue not valid for this exchange type"))
            }
        },
        _ => Ok(()),
    }
}
