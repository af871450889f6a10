//! What the types of queues ask of a new queue: `classic`, the default, and `quorum`. `stream` is not there.
//!
//! On one node a quorum queue is a durable queue, with a quorum queue's rules of declaration and its
//! defaults; what says how it is to be spread over nodes is checked and kept.

#![forbid(unsafe_code)]

use super::checks::{Named, invalid, non_negative, precondition, type_name};
use super::operation::QueueKind;
use crate::{Arguments, Refusal, RefusalKind, Value};

/// Arguments that a quorum queue does not know, although other types do.
const NOT_OF_QUORUM: [&str; 7] = [
    "x-max-priority",
    "x-queue-mode",
    "x-queue-version",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
];

/// What a request says about a queue's properties.
#[derive(Clone, Copy)]
pub(super) struct Properties {
    pub durable: bool,
    pub exclusive: bool,
    pub auto_delete: bool,
    /// The broker makes up its name.
    pub server_named: bool,
}

/// The type of a new queue, and whether it may be as it is wanted.
pub(super) fn checked(
    queue: Named<'_>,
    wanted: Properties,
    arguments: &Arguments,
) -> Result<QueueKind, Refusal> {
    let kind = match arguments.get("x-queue-type") {
        None => QueueKind::Classic,
        Some(value) => kind_of(queue, value)?,
    };
    if let Some(value) = arguments.get("x-queue-leader-locator")
        && !matches!(value.as_text(), Some("client-local" | "balanced"))
    {
        return Err(invalid(queue, "x-queue-leader-locator", "invalid_queue_locator_arg"));
    }
    if kind == QueueKind::Quorum {
        quorum(queue, wanted, arguments)?;
    }
    Ok(kind)
}

fn kind_of(queue: Named<'_>, value: &Value) -> Result<QueueKind, Refusal> {
    let Value::LongString(name) = value else {
        let text = format!("{{unacceptable_type,{}}}", type_name(value));
        return Err(invalid(queue, "x-queue-type", &text));
    };
    match name.as_slice() {
        b"" | b"classic" => Ok(QueueKind::Classic),
        b"quorum" => Ok(QueueKind::Quorum),
        b"stream" => Err(Refusal::new(
            RefusalKind::NotImplemented,
            format!(
                "argument 'x-queue-type' for {queue}: type 'stream' is not supported; use 'classic' or 'quorum'"
            ),
        )),
        name => {
            let text = format!("\"unsupported queue type '{}'\"", String::from_utf8_lossy(name));
            Err(invalid(queue, "x-queue-type", &text))
        }
    }
}

fn quorum(queue: Named<'_>, wanted: Properties, arguments: &Arguments) -> Result<(), Refusal> {
    let Properties { durable, exclusive, auto_delete, server_named } = wanted;
    if server_named {
        return Err(precondition("Cannot declare a server-named queue for type rabbit_quorum_queue"));
    }
    let properties =
        [(auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (!durable, "non-durable")];
    if let Some((_, property)) = properties.iter().find(|(wrong, _)| *wrong) {
        return Err(precondition(format!("invalid property '{property}' for {queue}")));
    }
    if let Some(argument) = NOT_OF_QUORUM.iter().find(|argument| arguments.contains_key(**argument)) {
        return Err(precondition(format!(
            "invalid arg '{argument}' for {queue} of queue type rabbit_quorum_queue"
        )));
    }
    for argument in ["x-quorum-initial-group-size", "x-quorum-target-group-size"] {
        if let Some(value) = arguments.get(argument)
            && non_negative(queue, argument, value)? == 0
        {
            return Err(invalid(queue, argument, "{value_zero,0}"));
        }
    }
    Ok(())
}
