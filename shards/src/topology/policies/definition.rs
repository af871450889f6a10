//! The settings that a policy can make: which there are, which values they take, in RabbitMQ's words, and
//! how two of them become one.

#![forbid(unsafe_code)]

use super::super::checks::{TIME_MS_MAX, erlang_term, precondition};
use super::PolicyOf;
use crate::limits::NAME_BYTES_MAX;
use crate::queue::Overflow;
use crate::topology::QueueKind;
use crate::{Arguments, Refusal, Value};

/// What values a setting takes.
#[derive(Clone, Copy)]
enum Form {
    /// An integer from the first to the second.
    Number(i64, i64),
    Text,
    /// One of these.
    Word(&'static [&'static str]),
    Overflow,
}

/// A setting.
struct Setting {
    name: &'static str,
    /// What a wrong value is said not to be.
    called: &'static str,
    form: Form,
    /// Operator policies may make it.
    of_operators: bool,
    merge: Merge,
}

/// How what two say becomes one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Merge {
    /// The lower.
    Lower,
    /// The lower, where a negative number is no limit.
    LowerLimit,
    /// The lower, where 0 is no limit.
    LowerAboveZero,
    /// What the second says.
    Second,
}

const fn setting(name: &'static str, called: &'static str, form: Form) -> Setting {
    Setting { name, called, form, of_operators: false, merge: Merge::Second }
}

const fn limit(name: &'static str, called: &'static str, form: Form) -> Setting {
    Setting { name, called, form, of_operators: true, merge: Merge::Lower }
}

const NUMBER: Form = Form::Number(0, i64::MAX);
const TIME: Form = Form::Number(0, TIME_MS_MAX);

/// All settings that Lepus acts on, and those of RabbitMQ that ask for nothing here.
const SETTINGS: [Setting; 13] = [
    limit("message-ttl", "message TTL", TIME),
    limit("expires", "queue expiry", Form::Number(1, TIME_MS_MAX)),
    limit("max-length", "maximum length", NUMBER),
    limit("max-length-bytes", "maximum length in bytes", NUMBER),
    Setting {
        merge: Merge::LowerLimit,
        ..limit("delivery-limit", "delivery limit", Form::Number(i64::MIN, i64::MAX))
    },
    Setting { of_operators: true, ..setting("overflow", "overflow value", Form::Overflow) },
    setting("dead-letter-exchange", "dead letter exchange name", Form::Text),
    setting("dead-letter-routing-key", "dead letter routing key", Form::Text),
    setting("dead-letter-strategy", "dead letter strategy", Form::Word(&["at-most-once", "at-least-once"])),
    setting("alternate-exchange", "alternate exchange name", Form::Text),
    setting("queue-mode", "queue-mode value", Form::Word(&["default", "lazy"])),
    Setting { of_operators: true, ..setting("queue-version", "queue-version value", Form::Number(1, 2)) },
    Setting { merge: Merge::LowerAboveZero, ..setting("consumer-timeout", "consumer timeout", NUMBER) },
];

/// Settings that RabbitMQ's queues of a type do not know, although those of another type do.
const NOT_OF_CLASSIC: [&str; 2] = ["delivery-limit", "dead-letter-strategy"];
const NOT_OF_QUORUM: [&str; 1] = ["queue-mode"];

/// Whether queues of this type know all settings. A policy with one that they do not know is not for them,
/// as a whole: another one counts, or none.
pub(super) fn fits(kind: QueueKind, definition: &Arguments) -> bool {
    let unknown: &[&str] = match kind {
        QueueKind::Classic => &NOT_OF_CLASSIC,
        QueueKind::Quorum => &NOT_OF_QUORUM,
    };
    !unknown.iter().any(|name| definition.contains_key(*name))
}

/// What a policy's setting and a queue's argument come to.
pub(super) fn with_argument(kind: QueueKind, name: &str, by_policy: &Value, given: Option<&Value>) -> Value {
    match given {
        // The one setting where a policy overrules arguments.
        Some(_) if name == "overflow" && kind == QueueKind::Quorum => by_policy.clone(),
        Some(given) => merged(name, by_policy, given),
        None => by_policy.clone(),
    }
}

/// A definition that a policy may have.
///
/// # Errors
/// It is empty, or makes a setting that there is not, or with a value that it does not take.
pub(in super::super) fn check(of: PolicyOf, definition: &Arguments) -> Result<(), Refusal> {
    if definition.is_empty() {
        return Err(precondition("no policy provided"));
    }
    let known = |name: &str| {
        let setting = SETTINGS.iter().find(|setting| setting.name == name);
        setting.filter(|setting| of == PolicyOf::User || setting.of_operators)
    };
    let unknown: Vec<String> = definition
        .iter()
        .filter(|(name, _)| known(name).is_none())
        .map(|(name, value)| format!("{{<<\"{name}\">>,{}}}", erlang_term(value)))
        .collect();
    if !unknown.is_empty() {
        return Err(precondition(format!("[{}] are not recognised policy settings", unknown.join(","))));
    }
    for (name, value) in definition {
        let Some(setting) = known(name) else { unreachable!("unknown ones were refused above") };
        if !setting.form.takes(value) {
            let (value, called) = (erlang_term(value), setting.called);
            return Err(precondition(format!("{value} is not a valid {called}")));
        }
    }
    Ok(())
}

impl Form {
    fn takes(self, value: &Value) -> bool {
        match self {
            Form::Number(first, last) => {
                value.as_integer().is_some_and(|number| (first..=last).contains(&number))
            }
            Form::Text => value.as_text().is_some_and(|text| text.len() <= NAME_BYTES_MAX),
            Form::Word(words) => value.as_text().is_some_and(|text| words.contains(&text)),
            Form::Overflow => value.as_text().and_then(Overflow::from_name).is_some(),
        }
    }
}

/// What two say of a setting.
pub(super) fn merged(name: &str, first: &Value, second: &Value) -> Value {
    let merge =
        SETTINGS.iter().find(|setting| setting.name == name).map_or(Merge::Second, |setting| setting.merge);
    let (Some(a), Some(b)) = (first.as_integer(), second.as_integer()) else { return second.clone() };
    let first_counts = match merge {
        Merge::Second => false,
        Merge::LowerLimit if a < 0 || b < 0 => a > b,
        Merge::LowerAboveZero if a == 0 || b == 0 => a > b,
        Merge::Lower | Merge::LowerLimit | Merge::LowerAboveZero => a < b,
    };
    if first_counts { first.clone() } else { second.clone() }
}
