//! The bindings of one headers exchange, compiled when they are made.
//!
//! Part of every replica. `x-match` is `all` (the default), `any`, `all-with-x` or `any-with-x`; the
//! first two ignore conditions on headers that start with `x-`
//! (<https://www.rabbitmq.com/docs/exchanges#headers>). A condition without a value asks for the
//! header's presence; integers of any width, and text and bytes, are compared by value.

#![forbid(unsafe_code)]

use super::bucket::{BindingIndex, Entry};
use crate::{Arguments, Value};

/// The bindings of an exchange in one list: each is asked, and says no at its first unmet condition.
#[derive(Clone, Default, Debug)]
pub(super) struct HeadersTable {
    bindings: Vec<HeadersBinding>,
}

#[derive(Clone, Debug)]
struct HeadersBinding {
    entry: Entry,
    matcher: Matcher,
}

/// A binding's arguments, ready to be asked.
#[derive(Clone, Debug)]
struct Matcher {
    /// All conditions must hold, or one.
    all: bool,
    conditions: Box<[(String, Condition)]>,
}

#[derive(Clone, Debug)]
enum Condition {
    Present,
    Integer(i64),
    Text(Vec<u8>),
    Float(f64),
    Other(Value),
}

impl HeadersTable {
    /// Adds a binding and returns its position.
    pub fn add(&mut self, arguments: &Arguments, entry: Entry) -> u32 {
        self.bindings.push(HeadersBinding { entry, matcher: Matcher::compile(arguments) });
        self.bindings.len() as u32 - 1
    }

    /// Removes the binding at `position`; returns the one that was moved there, if one was.
    pub fn remove(&mut self, position: u32) -> Option<BindingIndex> {
        self.bindings.swap_remove(position as usize);
        self.bindings.get(position as usize).map(|moved| moved.entry.binding)
    }

    /// Calls `found` for every binding that the headers satisfy.
    pub fn matches(&self, headers: &Arguments, mut found: impl FnMut(&Entry)) {
        for binding in self.bindings.iter().filter(|binding| binding.matcher.matches(headers)) {
            found(&binding.entry);
        }
    }

    /// Whether there is nothing to ask.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }
}

impl Matcher {
    fn compile(arguments: &Arguments) -> Matcher {
        let mode = arguments.get("x-match").and_then(Value::as_text).unwrap_or("all");
        let with_x = matches!(mode, "all-with-x" | "any-with-x");
        let conditions = arguments
            .iter()
            .filter(|(name, _)| *name != "x-match" && (with_x || !name.starts_with("x-")))
            .map(|(name, value)| (name.clone(), Condition::compile(value)))
            .collect();
        Matcher { all: !matches!(mode, "any" | "any-with-x"), conditions }
    }

    fn matches(&self, headers: &Arguments) -> bool {
        let holds = |(name, condition): &(String, Condition)| {
            headers.get(name).is_some_and(|value| condition.holds(value))
        };
        match self.all {
            true => self.conditions.iter().all(holds),
            false => self.conditions.iter().any(holds),
        }
    }
}

impl Condition {
    fn compile(value: &Value) -> Condition {
        match value {
            Value::Void => Condition::Present,
            Value::LongString(bytes) | Value::Bytes(bytes) => Condition::Text(bytes.clone()),
            Value::F32(value) => Condition::Float((*value).into()),
            Value::F64(value) => Condition::Float(*value),
            value => match value.as_integer() {
                Some(integer) => Condition::Integer(integer),
                None => Condition::Other(value.clone()),
            },
        }
    }

    fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Condition::Present, _) => true,
            (Condition::Text(wanted), Value::LongString(bytes) | Value::Bytes(bytes)) => wanted == bytes,
            (Condition::Float(wanted), Value::F32(value)) => *wanted == f64::from(*value),
            (Condition::Float(wanted), Value::F64(value)) => wanted == value,
            (Condition::Integer(wanted), value) => value.as_integer() == Some(*wanted),
            (Condition::Other(wanted), value) => wanted == value,
            _ => false,
        }
    }
}
