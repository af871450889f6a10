//! Exchanges that send each message to one of their bindings, chosen by a hash.
//!
//! Part of every replica. The choice depends on the message and on the set of bindings alone, not on the
//! order in which they were made: so it is the same on every shard and after a restart.
//!
//! - **x-consistent-hash**: the binding's routing key is its weight. Weighted rendezvous hashing: every
//!   destination gets a number out of the message's hash, its own name and its weight, and the highest
//!   wins. Shares are exactly by weight, and a destination that comes takes messages from the others only
//!   to itself, one that goes leaves its own to the others. Of several bindings to one destination the
//!   one with the highest weight counts (RabbitMQ counts the first, which is not known after a restart).
//! - **x-modulus-hash**: the binding at position hash modulo count, in the order of their identities.
//!   The routing keys of the bindings mean nothing. A change of the set moves most keys.

#![forbid(unsafe_code)]

use super::bucket::{BindingIndex, Entry};
use super::routing::RoutingData;
use super::stable_hash::{StableHash, mix};
use super::{BindingSpec, DestinationKind, ExchangeInfo, rows};
use crate::shard::MessageProperty;
use crate::{Arguments, Value};

/// What of a message is hashed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum HashOn {
    RoutingKey,
    /// `hash-header`
    Header(String),
    /// `hash-property`
    Property(MessageProperty),
}

impl HashOn {
    /// As the exchange was declared; the writer has checked the arguments.
    pub fn of(exchange: &ExchangeInfo) -> HashOn {
        let text = |argument: &str| exchange.arguments.get(argument).and_then(Value::as_text);
        match (text("hash-header"), text("hash-property").and_then(MessageProperty::from_name)) {
            (Some(header), _) => HashOn::Header(header.to_owned()),
            (None, Some(property)) => HashOn::Property(property),
            (None, None) => HashOn::RoutingKey,
        }
    }

    /// Hashes a message. `headers` keeps its parsed headers from one exchange to the next.
    fn hash(&self, message: &RoutingData<'_>, headers: &mut Option<Arguments>) -> u64 {
        match self {
            HashOn::RoutingKey => hash_of_keys(message),
            HashOn::Header(name) => {
                let headers = headers.get_or_insert_with(|| message.headers.headers());
                StableHash::new().value(headers.get(name)).finish()
            }
            HashOn::Property(property) => {
                StableHash::new().value(message.headers.property(*property).as_ref()).finish()
            }
        }
    }
}

fn hash_of_keys(message: &RoutingData<'_>) -> u64 {
    let hash = StableHash::new().bytes(message.routing_key);
    message.further_keys.iter().fold(hash, |hash, key| hash.part(key)).finish()
}

/// The bindings of an x-consistent-hash exchange.
#[derive(Clone, Debug)]
pub(super) struct ConsistentHashTable {
    on: HashOn,
    bindings: Vec<Weighted>,
}

#[derive(Clone, Debug)]
struct Weighted {
    entry: Entry,
    /// Hash of the destination's kind and name.
    destination: u64,
    weight: f64,
}

impl Weighted {
    /// The destination's number for a message, below 0. With `u` evenly spread in (0, 1), the highest
    /// of all `ln(u) / weight` is each one's as often as its weight says.
    fn score(&self, message: u64) -> f64 {
        let bits = mix(message ^ self.destination) >> 12;
        let u = (bits as f64 + 0.5) / (1_u64 << 52) as f64;
        u.ln() / self.weight
    }
}

impl ConsistentHashTable {
    pub fn new(exchange: &ExchangeInfo) -> ConsistentHashTable {
        ConsistentHashTable { on: HashOn::of(exchange), bindings: Vec::new() }
    }

    /// Adds a binding and returns its position.
    pub fn add(&mut self, binding: &BindingSpec, entry: Entry) -> u32 {
        let kind: &[u8] = match binding.kind {
            DestinationKind::Queue => b"q",
            DestinationKind::Exchange => b"e",
        };
        let destination = StableHash::new().bytes(kind).bytes(binding.destination.as_bytes()).finish();
        let weight = weight(&binding.routing_key).unwrap_or(1.0);
        self.bindings.push(Weighted { entry, destination, weight });
        self.bindings.len() as u32 - 1
    }

    /// Removes the binding at `position`; returns the one that was moved there, if one was.
    pub fn remove(&mut self, position: u32) -> Option<BindingIndex> {
        self.bindings.swap_remove(position as usize);
        self.bindings.get(position as usize).map(|moved| moved.entry.binding)
    }

    /// The binding that gets the message; none if there is no binding.
    pub fn choose(&self, message: &RoutingData<'_>, headers: &mut Option<Arguments>) -> Option<&Entry> {
        let (first, rest) = self.bindings.split_first()?;
        if rest.is_empty() {
            return Some(&first.entry);
        }
        let hash = self.on.hash(message, headers);
        let (mut best, mut best_score) = (first, first.score(hash));
        for binding in rest {
            let score = binding.score(hash);
            // Equal scores: the order of bindings must not decide.
            if score > best_score || (score == best_score && binding.destination > best.destination) {
                (best, best_score) = (binding, score);
            }
        }
        Some(&best.entry)
    }

    /// The choice depends on the routing key alone.
    pub fn is_cacheable(&self) -> bool {
        self.on == HashOn::RoutingKey || self.bindings.len() < 2
    }
}

/// The bindings of an x-modulus-hash exchange, in the order of their identities.
#[derive(Clone, Default, Debug)]
pub(super) struct ModulusTable {
    bindings: Vec<(Box<[u8]>, Entry)>,
}

impl ModulusTable {
    pub fn add(&mut self, binding: &BindingSpec, entry: Entry) {
        let identity = identity(binding);
        let position = self.bindings.partition_point(|(other, _)| *other < identity);
        self.bindings.insert(position, (identity, entry));
    }

    pub fn remove(&mut self, binding: &BindingSpec) {
        let identity = identity(binding);
        let found = self.bindings.binary_search_by(|(other, _)| other.cmp(&identity));
        self.bindings.remove(found.expect("a binding stands under its identity"));
    }

    /// The binding that gets the message; none if there is no binding.
    pub fn choose(&self, message: &RoutingData<'_>) -> Option<&Entry> {
        let count = self.bindings.len() as u64;
        let position = hash_of_keys(message).checked_rem(count)?;
        Some(&self.bindings[position as usize].1)
    }
}

/// What tells the bindings of one exchange apart.
fn identity(binding: &BindingSpec) -> Box<[u8]> {
    rows::binding_key("", binding).into_boxed_slice()
}

/// A weight in a binding's routing key: a positive integer in decimal, as Erlang reads one; none if it is
/// something else.
pub(super) fn weight(key: &str) -> Option<f64> {
    let digits = key.strip_prefix(['+', '-']).unwrap_or(key);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    key.parse().ok()
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;
