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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bucket::{Destination, ExchangeIndex};
    use super::*;

    fn table(fields: &[(&str, Value)]) -> Arguments {
        fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    fn text(text: &str) -> Value {
        Value::LongString(text.into())
    }

    fn matches(binding: &[(&str, Value)], headers: &[(&str, Value)]) -> bool {
        Matcher::compile(&table(binding)).matches(&table(headers))
    }

    #[test]
    fn all_wants_every_condition_and_any_wants_one() {
        let headers = [("b", Value::I32(2))];
        for (mode, expected) in [("all", false), ("any", true), ("all-with-x", false), ("any-with-x", true)] {
            let binding = [("x-match", text(mode)), ("a", Value::I32(1)), ("b", Value::I32(2))];
            assert_eq!(matches(&binding, &headers), expected, "{mode}");
        }
        assert!(!matches(&[("a", Value::I32(1)), ("b", Value::I32(2))], &headers), "all is the default");
    }

    #[test]
    fn without_conditions_all_matches_everything_and_any_nothing() {
        assert!(matches(&[], &[]));
        assert!(!matches(&[("x-match", text("any"))], &[("a", Value::I32(1))]));
        assert!(!matches(&[("x-match", text("any")), ("x-a", Value::Void)], &[("x-a", Value::I32(1))]));
    }

    #[test]
    fn headers_with_x_count_only_where_asked_for() {
        let wrong = [("x-a", Value::I32(2))];
        let right = [("x-a", Value::I32(1))];
        let binding = |mode| [("x-match", text(mode)), ("x-a", Value::I32(1))];
        assert!(matches(&binding("all"), &wrong));
        assert!(!matches(&binding("all-with-x"), &wrong));
        assert!(matches(&binding("all-with-x"), &right));
        assert!(!matches(&binding("any"), &right));
        assert!(matches(&binding("any-with-x"), &right));
    }

    #[test]
    fn values_are_compared_as_rabbitmq_compares_them() {
        let condition = |wanted: Value, value: Value| matches(&[("a", wanted)], &[("a", value)]);
        assert!(condition(Value::I32(7), Value::U8(7)), "integers of any width");
        assert!(!condition(Value::I32(7), text("7")));
        assert!(!condition(Value::I32(1), Value::Bool(true)));
        assert!(!condition(Value::I32(1), Value::F64(1.0)));
        assert!(condition(text("x"), Value::Bytes(b"x".to_vec())));
        assert!(condition(Value::F32(0.5), Value::F64(0.5)));
        assert!(condition(Value::Timestamp(9), Value::Timestamp(9)));
        assert!(condition(Value::Void, Value::I32(7)), "presence");
        assert!(!condition(Value::I32(7), Value::Void));
        let array = |second| Value::Array(vec![Value::I32(1), second]);
        assert!(condition(array(Value::I32(2)), array(Value::I32(2))));
        assert!(!condition(array(Value::I32(2)), array(Value::I64(2))), "types count within a value");
    }

    /// The definition, on the arguments as they came.
    fn naive(arguments: &Arguments, headers: &Arguments) -> bool {
        let mode = arguments.get("x-match").and_then(Value::as_text).unwrap_or("all");
        let mut held = Vec::new();
        for (name, wanted) in arguments {
            if name == "x-match" || (!mode.ends_with("-with-x") && name.starts_with("x-")) {
                continue;
            }
            held.push(match (wanted, headers.get(name)) {
                (_, None) => false,
                (Value::Void, Some(_)) => true,
                (wanted, Some(value)) => {
                    wanted == value
                        || (wanted.as_integer().is_some() && wanted.as_integer() == value.as_integer())
                }
            });
        }
        if mode.starts_with("any") { held.contains(&true) } else { !held.contains(&false) }
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Void),
            (0..2i32).prop_map(Value::I32),
            (0..2i64).prop_map(Value::I64),
            any::<bool>().prop_map(Value::Bool),
            "[ab]".prop_map(|text| Value::LongString(text.into_bytes())),
        ]
    }

    fn fields() -> impl Strategy<Value = Arguments> {
        prop::collection::btree_map(
            prop::sample::select(vec!["a", "b", "x-a"]).prop_map(str::to_owned),
            value(),
            0..4,
        )
    }

    fn binding() -> impl Strategy<Value = Arguments> {
        let modes = vec![None, Some("all"), Some("any"), Some("all-with-x"), Some("any-with-x")];
        (fields(), prop::sample::select(modes)).prop_map(|(mut arguments, mode)| {
            if let Some(mode) = mode {
                arguments.insert("x-match".to_owned(), text(mode));
            }
            arguments
        })
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_the_definition(
            bindings in prop::collection::vec(binding(), 1..8),
            removed in 0..8u32,
            headers in fields(),
        ) {
            let mut table = HeadersTable::default();
            for (n, arguments) in (0..).zip(&bindings) {
                let destination = Destination::Exchange(ExchangeIndex(n));
                table.add(arguments, Entry { destination, binding: BindingIndex(n) });
            }
            if (removed as usize) < bindings.len() {
                table.remove(removed);
            }
            let mut found = Vec::new();
            table.matches(&headers, |entry| found.push(entry.binding.0));
            found.sort_unstable();
            let expected: Vec<u32> = (0..bindings.len() as u32)
                .filter(|&n| n != removed && naive(&bindings[n as usize], &headers))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
