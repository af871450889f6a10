//! What the writer checks before it changes anything, and the words in which it says no.
//!
//! The texts are RabbitMQ's, because clients read them. Where RabbitMQ prints an Erlang term, so does
//! this file.

#![forbid(unsafe_code)]

use super::{ExchangeInfo, ExchangeKind, QueueInfo};
use crate::{Arguments, Durability, Refusal, RefusalKind, Value};

/// Arguments of queues that are compared when one is declared again, in the order of comparison.
const COMPARED: [&str; 14] = [
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-single-active-consumer",
    "x-durability",
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-consumer-timeout",
];

/// Arguments that change what a queue does in a way that Lepus does not have. A queue with one of
/// them must not be made as if they were not there.
const NOT_IMPLEMENTED: [&str; 1] = ["x-message-deduplication"];

/// Longest time in an argument, in milliseconds: ten years of 365 days, as in RabbitMQ.
pub(super) const TIME_MS_MAX: i64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// What an object is called in a refusal: `queue 'q' in vhost '/'`.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    /// `queue` or `exchange`
    pub what: &'a str,
    pub name: &'a str,
    pub vhost: &'a str,
}

impl std::fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} '{}' in vhost '{}'", self.what, self.name, self.vhost)
    }
}

/// What a request says about an exchange's properties.
pub(super) struct WantedExchange<'a> {
    pub kind: ExchangeKind,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: &'a Arguments,
}

pub(super) fn precondition(text: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::PreconditionFailed, text)
}

/// Names lose carriage returns and line feeds, which old clients left in them.
pub(super) fn stripped(name: &str) -> String {
    name.replace(['\r', '\n'], "")
}

/// The default exchange is what it is for everybody.
pub(super) fn not_default_exchange(name: &str) -> Result<(), Refusal> {
    match name.is_empty() {
        true => {
            Err(Refusal::new(RefusalKind::AccessRefused, "operation not permitted on the default exchange"))
        }
        false => Ok(()),
    }
}

/// New names must not begin with `amq.`.
pub(super) fn not_reserved(what: &str, name: &str) -> Result<(), Refusal> {
    match name.starts_with("amq.") {
        true => Err(Refusal::new(
            RefusalKind::AccessRefused,
            format!("{what} name '{name}' contains reserved prefix 'amq.*'"),
        )),
        false => Ok(()),
    }
}

/// The predeclared exchanges stay.
pub(super) fn deletable(exchange: Named<'_>) -> Result<(), Refusal> {
    match exchange.name.starts_with("amq.") {
        true => Err(Refusal::new(
            RefusalKind::AccessRefused,
            format!("deletion of system {exchange} not allowed"),
        )),
        false => Ok(()),
    }
}

/// The type of an exchange by its name.
pub(super) fn exchange_kind(name: &str) -> Result<ExchangeKind, Refusal> {
    ExchangeKind::from_name(name).ok_or_else(|| precondition(format!("unknown exchange type '{name}'")))
}

/// An exchange that is declared again must be declared as it is.
pub(super) fn same_exchange(
    exchange: Named<'_>,
    current: &ExchangeInfo,
    wanted: &WantedExchange<'_>,
) -> Result<(), Refusal> {
    same(exchange, "type", current.kind.name(), wanted.kind.name())?;
    same(exchange, "durable", current.durable, wanted.durable)?;
    same(exchange, "auto_delete", current.auto_delete, wanted.auto_delete)?;
    same(exchange, "internal", current.internal, wanted.internal)?;
    same_argument(exchange, "alternate-exchange", &current.arguments, wanted.arguments)?;
    match wanted.kind {
        ExchangeKind::Delayed => {
            same_argument(exchange, "x-delayed-type", &current.arguments, wanted.arguments)
        }
        _ => Ok(()),
    }
}

/// A queue that is declared again must be declared as it is. Who may use it was checked before.
pub(super) fn same_queue(
    queue: Named<'_>,
    current: &QueueInfo,
    durable: bool,
    auto_delete: bool,
    arguments: &Arguments,
) -> Result<(), Refusal> {
    same(queue, "durable", current.durable, durable)?;
    same(queue, "auto_delete", current.auto_delete, auto_delete)?;
    for argument in COMPARED {
        same_argument(queue, argument, &current.arguments, arguments)?;
    }
    let classic = Value::LongString(b"classic".to_vec());
    let kind = |arguments: &Arguments| match arguments.get("x-queue-type") {
        None => classic.clone(),
        Some(value) if value.as_text() == Some("") => classic.clone(),
        Some(value) => value.clone(),
    };
    let (current_kind, wanted_kind) = (kind(&current.arguments), kind(arguments));
    if !equal(&current_kind, &wanted_kind) {
        return Err(inequivalent(queue, "x-queue-type", &quoted(&current_kind), &quoted(&wanted_kind)));
    }
    same_argument(queue, "x-queue-version", &current.arguments, arguments)
}

/// The arguments of a new queue, but for its type.
pub(super) fn queue_arguments(queue: Named<'_>, arguments: &Arguments) -> Result<(), Refusal> {
    if let Some(value) = arguments.get("x-expires") {
        let time = time(queue, "x-expires", value)?;
        if time == 0 {
            return Err(invalid(queue, "x-expires", "{value_zero,0}"));
        }
    }
    if let Some(value) = arguments.get("x-message-ttl") {
        time(queue, "x-message-ttl", value)?;
    }
    if let Some(value) = arguments.get("x-queue-version") {
        let version = non_negative(queue, "x-queue-version", value)?;
        if !matches!(version, 1 | 2) {
            let text = format!("\"unsupported queue version '{version}'\"");
            return Err(invalid(queue, "x-queue-version", &text));
        }
    }
    if let Some(value) = arguments.get("x-durability")
        && value.as_text().and_then(Durability::from_name).is_none()
    {
        return Err(invalid(queue, "x-durability", "expected fsync, os or memory"));
    }
    super::queue_arguments::check(queue, arguments)?;
    // `false` asks for nothing.
    let asked =
        |argument: &&&str| arguments.get(**argument).is_some_and(|value| *value != Value::Bool(false));
    match NOT_IMPLEMENTED.iter().find(asked) {
        None => Ok(()),
        Some(argument) => Err(Refusal::new(
            RefusalKind::NotImplemented,
            format!("argument '{argument}' for {queue} is not supported; declare the queue without it"),
        )),
    }
}

/// A headers binding's `x-match` is one of four words, or absent.
pub(super) fn headers_match(arguments: &Arguments) -> Result<(), Refusal> {
    match arguments.get("x-match") {
        None => Ok(()),
        Some(Value::LongString(word)) => match word.as_slice() {
            b"all" | b"any" | b"all-with-x" | b"any-with-x" => Ok(()),
            word => Err(precondition(format!(
                "Invalid x-match field value <<\"{}\">>; expected all, any, all-with-x, or any-with-x",
                String::from_utf8_lossy(word)
            ))),
        },
        Some(value) => Err(precondition(format!(
            "Invalid x-match field type {} (value {}); expected longstr",
            type_name(value),
            plain(value)
        ))),
    }
}

/// A time in milliseconds, from 0 to [`TIME_MS_MAX`].
fn time(queue: Named<'_>, argument: &str, value: &Value) -> Result<i64, Refusal> {
    let time = non_negative(queue, argument, value)?;
    match time > TIME_MS_MAX {
        true => Err(invalid(queue, argument, &format!("{{value_too_large,{time}}}"))),
        false => Ok(time),
    }
}

pub(super) fn non_negative(queue: Named<'_>, argument: &str, value: &Value) -> Result<i64, Refusal> {
    match value.as_integer() {
        None => Err(invalid(queue, argument, &format!("\"expected integer, got {}\"", type_name(value)))),
        Some(number) if number < 0 => Err(invalid(queue, argument, &format!("{{value_negative,{number}}}"))),
        Some(number) => Ok(number),
    }
}

pub(super) fn invalid(queue: Named<'_>, argument: &str, reason: &str) -> Refusal {
    precondition(format!("invalid arg '{argument}' for {queue}: {reason}"))
}

fn inequivalent(object: Named<'_>, argument: &str, current: &str, received: &str) -> Refusal {
    precondition(format!(
        "inequivalent arg '{argument}' for {object}: received {received} but current is {current}"
    ))
}

fn same<T: PartialEq + std::fmt::Display>(
    object: Named<'_>,
    property: &str,
    current: T,
    wanted: T,
) -> Result<(), Refusal> {
    match current == wanted {
        true => Ok(()),
        false => Err(inequivalent(object, property, &format!("'{current}'"), &format!("'{wanted}'"))),
    }
}

fn same_argument(
    object: Named<'_>,
    argument: &str,
    current: &Arguments,
    wanted: &Arguments,
) -> Result<(), Refusal> {
    let (current, wanted) = match (current.get(argument), wanted.get(argument)) {
        (None, None) => return Ok(()),
        (Some(current), Some(wanted)) if equal(current, wanted) => return Ok(()),
        (Some(current), Some(wanted)) => (quoted(current), quoted(wanted)),
        (current, wanted) => (described(current), described(wanted)),
    };
    Err(inequivalent(object, argument, &current, &wanted))
}

/// Equal by value: integers of any width, and text and bytes.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::LongString(a) | Value::Bytes(a), Value::LongString(b) | Value::Bytes(b)) => a == b,
        (Value::F32(a), Value::F64(b)) | (Value::F64(b), Value::F32(a)) => f64::from(*a) == *b,
        _ => a == b || a.as_integer().is_some_and(|a| b.as_integer() == Some(a)),
    }
}

fn quoted(value: &Value) -> String {
    format!("'{}'", plain(value))
}

fn described(value: Option<&Value>) -> String {
    match value {
        None => "none".to_owned(),
        Some(value) => format!("the value '{}' of type '{}'", plain(value), type_name(value)),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::LongString(bytes) | Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Void => "undefined".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::F32(value) => format!("{value:?}"),
        Value::F64(value) => format!("{value:?}"),
        Value::Timestamp(seconds) => seconds.to_string(),
        Value::Decimal(scale, unscaled) => format!("{{{scale},{unscaled}}}"),
        Value::Array(values) => format!("[{}]", values.iter().map(plain).collect::<Vec<_>>().join(",")),
        Value::Table(table) => {
            let fields: Vec<String> =
                table.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
        integer => integer.as_integer().expect("what is left are the integers").to_string(),
    }
}

/// A value as Erlang prints it, where RabbitMQ puts a term into a text.
pub(super) fn erlang_term(value: &Value) -> String {
    match value {
        Value::LongString(bytes) | Value::Bytes(bytes) if bytes.is_empty() => "<<>>".to_owned(),
        Value::LongString(_) | Value::Bytes(_) => format!("<<\"{}\">>", plain(value)),
        value => plain(value),
    }
}

/// RabbitMQ's names of the field types.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Void => "void",
        Value::Bool(_) => "bool",
        Value::I8(_) => "byte",
        Value::U8(_) => "unsignedbyte",
        Value::I16(_) => "short",
        Value::U16(_) => "unsignedshort",
        Value::I32(_) => "signedint",
        Value::U32(_) => "unsignedint",
        Value::I64(_) => "long",
        Value::F32(_) => "float",
        Value::F64(_) => "double",
        Value::Decimal(..) => "decimal",
        Value::LongString(_) => "longstr",
        Value::Bytes(_) => "binary",
        Value::Timestamp(_) => "timestamp",
        Value::Array(_) => "array",
        Value::Table(_) => "table",
    }
}
