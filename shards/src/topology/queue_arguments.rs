//! What the writer checks of a queue's arguments, in RabbitMQ's words.
//!
//! What a dead-letter exchange is asked to do is checked, but not whether it exists: it may come later.

#![forbid(unsafe_code)]

use super::checks::{Named, invalid, non_negative, precondition, type_name};
use crate::queue::Overflow;
use crate::{Arguments, Refusal, Value};

/// Most priorities: a message has one in a byte.
const PRIORITY_MAX: i64 = 255;

/// The arguments that bound a queue, order it, and say what becomes of what it gives up.
pub(super) fn check(queue: Named<'_>, arguments: &Arguments) -> Result<(), Refusal> {
    let with = |name, check: fn(Named<'_>, &str, &Value) -> Result<(), Refusal>| {
        arguments.get(name).map_or(Ok(()), |value| check(queue, name, value))
    };
    with("x-max-length", number)?;
    with("x-max-length-bytes", number)?;
    with("x-overflow", overflow)?;
    if let Some(value) = arguments.get("x-dead-letter-exchange")
        && !matches!(value, Value::LongString(_))
    {
        let kind = type_name(value);
        let text = format!("invalid type '{kind}' for arg 'x-dead-letter-exchange' in {queue}");
        return Err(precondition(text));
    }
    with("x-dead-letter-routing-key", text)?;
    let key = "x-dead-letter-routing-key";
    if arguments.contains_key(key) && !arguments.contains_key("x-dead-letter-exchange") {
        return Err(invalid(queue, key, "routing_key_but_no_dlx_defined"));
    }
    with("x-dead-letter-strategy", strategy)?;
    with("x-max-priority", priority)?;
    with("x-single-active-consumer", flag)?;
    with("x-delivery-limit", integer)?;
    with("x-consumer-timeout", number)
}

fn number(queue: Named<'_>, argument: &str, value: &Value) -> Result<(), Refusal> {
    non_negative(queue, argument, value).map(drop)
}

fn integer(queue: Named<'_>, argument: &str, value: &Value) -> Result<(), Refusal> {
    match value.as_integer() {
        Some(_) => Ok(()),
        None => Err(invalid(queue, argument, &format!("\"expected integer, got {}\"", type_name(value)))),
    }
}

fn priority(queue: Named<'_>, argument: &str, value: &Value) -> Result<(), Refusal> {
    match non_negative(queue, argument, value)? {
        most if most > PRIORITY_MAX => {
            Err(invalid(queue, argument, &format!("{{max_value_exceeded,{most}}}")))
        }
        _ => Ok(()),
    }
}

fn text(queue: Named<'_>, argument: &str, value: &Value) -> Result<(), Refusal> {
    match value {
        Value::LongString(text)
            if text.len() <= crate::limits::NAME_BYTES_MAX && value.as_text().is_some() =>
        {
            Ok(())
        }
        Value::LongString(_) => Err(invalid(queue, argument, "\"not a name of at most 255 bytes of UTF-8\"")),
        _ => Err(unacceptable(queue, argument, value)),
    }
}

fn flag(queue: Named<'_>, argument: &str, value: &Value) -> Result<(), Refusal> {
    match value {
        Value::Bool(_) => Ok(()),
        _ => Err(unacceptable(queue, argument, value)),
    }
}

fn overflow(queue: Named<'_>, argument: &str, value: &Value) -> Result<(), Refusal> {
    match value {
        Value::LongString(_) if value.as_text().and_then(Overflow::from_name).is_some() => Ok(()),
        Value::LongString(_) => Err(invalid(queue, argument, "invalid_overflow")),
        _ => Err(unacceptable(queue, argument, value)),
    }
}

fn strategy(queue: Named<'_>, argument: &str, value: &Value) -> Result<(), Refusal> {
    match value {
        Value::LongString(_) if matches!(value.as_text(), Some("at-most-once" | "at-least-once")) => Ok(()),
        Value::LongString(_) => Err(invalid(queue, argument, "invalid_dlx_strategy")),
        _ => Err(unacceptable(queue, argument, value)),
    }
}

fn unacceptable(queue: Named<'_>, argument: &str, value: &Value) -> Refusal {
    invalid(queue, argument, &format!("{{unacceptable_type,{}}}", type_name(value)))
}
