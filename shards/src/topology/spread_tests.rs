//! Shares by weight, and who moves when bindings come and go.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::bucket::Destination;
use super::*;
use crate::VhostId;
use crate::shard::{HeaderSource, NoHeaders};

fn exchange(kind: super::super::ExchangeKind, arguments: Arguments) -> ExchangeInfo {
    ExchangeInfo {
        vhost: VhostId(0),
        name: "x".into(),
        kind,
        durable: false,
        auto_delete: false,
        internal: false,
        arguments,
        policy: None,
    }
}

fn hashing(arguments: &[(&str, &str)]) -> ConsistentHashTable {
    let arguments =
        arguments.iter().map(|(name, value)| ((*name).to_owned(), Value::LongString((*value).into())));
    ConsistentHashTable::new(&exchange(super::super::ExchangeKind::ConsistentHash, arguments.collect()))
}

fn binding(destination: &str, key: &str) -> BindingSpec {
    BindingSpec {
        source: "x".into(),
        destination: destination.into(),
        kind: DestinationKind::Queue,
        routing_key: key.into(),
        arguments: Arguments::new(),
    }
}

fn entry(n: u32) -> Entry {
    Entry { destination: Destination::Exchange(super::super::ExchangeIndex(n)), binding: BindingIndex(n) }
}

/// Bindings to d0, d1, ... with these weights.
fn weighted(weights: &[u32]) -> ConsistentHashTable {
    let mut table = hashing(&[]);
    for (n, weight) in (0..).zip(weights) {
        table.add(&binding(&format!("d{n}"), &weight.to_string()), entry(n));
    }
    table
}

fn by_key<'a>(key: &'a [u8]) -> RoutingData<'a> {
    RoutingData { routing_key: key, further_keys: &[], headers: &NoHeaders }
}

fn chosen(table: &ConsistentHashTable, key: &str) -> Option<u32> {
    table.choose(&by_key(key.as_bytes()), &mut None).map(|entry| entry.binding.0)
}

fn choices(table: &ConsistentHashTable, keys: u32) -> Vec<u32> {
    (0..keys).map(|n| chosen(table, &format!("key.{n}")).unwrap()).collect()
}

#[test]
fn shares_follow_the_weights() {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    for choice in choices(&weighted(&[1, 2, 5]), 80_000) {
        *counts.entry(choice).or_default() += 1;
    }
    // A binomial count of 80,000 strays from its mean by more than 800 once in 10^8 times.
    for (binding, mean) in [(0, 10_000), (1, 20_000), (2, 50_000)] {
        assert!(counts[&binding].abs_diff(mean) < 800, "{counts:?}");
    }
}

#[test]
fn a_new_destination_takes_its_share_and_nothing_else_moves() {
    let (before, after) = (choices(&weighted(&[3, 3, 3]), 10_000), choices(&weighted(&[3, 3, 3, 3]), 10_000));
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
    let moved: Vec<_> = moved.collect();
    assert!(moved.iter().all(|(_, after)| **after == 3), "what moves, moves to the new one");
    assert!((2_000..3_000).contains(&moved.len()), "a quarter moves: {}", moved.len());
}

#[test]
fn what_a_removed_destination_had_is_all_that_moves() {
    let mut table = weighted(&[1, 4, 2]);
    let before = choices(&table, 10_000);
    assert_eq!(table.remove(1), Some(BindingIndex(2)));
    for (before, after) in before.into_iter().zip(choices(&table, 10_000)) {
        assert!(before == after || before == 1, "only keys of the removed one move");
        assert_ne!(after, 1);
    }
}

#[test]
fn the_order_in_which_bindings_were_made_does_not_matter() {
    let mut table = hashing(&[]);
    for (n, weight) in [(2, "2"), (0, "1"), (1, "4")] {
        table.add(&binding(&format!("d{n}"), weight), entry(n));
    }
    assert_eq!(choices(&table, 1_000), choices(&weighted(&[1, 4, 2]), 1_000));
}

#[test]
fn of_several_bindings_to_one_destination_the_heaviest_counts() {
    let mut table = weighted(&[1, 1]);
    table.add(&binding("d0", "3"), entry(0));
    assert_eq!(choices(&table, 1_000), choices(&weighted(&[3, 1]), 1_000));
}

#[test]
fn weights_are_read_as_erlang_reads_integers() {
    for (key, expected) in [("1", 1.0), ("+3", 3.0), ("007", 7.0), ("-1", -1.0), ("0", 0.0)] {
        assert_eq!(weight(key), Some(expected), "{key}");
    }
    for key in ["", "a", "1.5", " 3", "3 ", "1e3", "+", "-", "inf"] {
        assert_eq!(weight(key), None, "{key}");
    }
}

/// A message with one header and one property.
#[derive(Debug)]
struct Tagged(&'static str);

impl HeaderSource for Tagged {
    fn headers(&self) -> Arguments {
        [("h".to_owned(), Value::LongString(self.0.into()))].into()
    }

    fn property(&self, property: MessageProperty) -> Option<Value> {
        (property == MessageProperty::MessageId).then(|| Value::LongString(self.0.into()))
    }
}

#[test]
fn headers_and_properties_decide_where_they_are_asked_for() {
    for (argument, value) in [("hash-header", "h"), ("hash-property", "message_id")] {
        let mut table = hashing(&[(argument, value)]);
        for n in 0..8 {
            table.add(&binding(&format!("d{n}"), "1"), entry(n));
        }
        assert!(!table.is_cacheable());
        let choose = |key: &[u8], headers: &dyn HeaderSource| {
            let message = RoutingData { routing_key: key, further_keys: &[], headers };
            table.choose(&message, &mut None).unwrap().binding.0
        };
        let same: Vec<u32> = (0..50).map(|n| choose(format!("{n}").as_bytes(), &Tagged("one"))).collect();
        assert!(same.iter().all(|choice| *choice == same[0]), "the routing key does not matter");
        let tags = ["a", "b", "c", "d", "e", "f", "g", "h"];
        assert!(tags.iter().any(|tag| choose(b"", &Tagged(tag)) != same[0]), "{argument} does");
        let missing: Vec<u32> = (0..50).map(|n| choose(format!("{n}").as_bytes(), &NoHeaders)).collect();
        assert!(missing.iter().all(|choice| *choice == missing[0]), "messages without it stay together");
    }
}

#[test]
fn further_keys_count_in_the_hash() {
    let table = weighted(&[1; 16]);
    let choose = |further_keys: &[&[u8]]| {
        let message = RoutingData { routing_key: b"k", further_keys, headers: &NoHeaders };
        table.choose(&message, &mut None).unwrap().binding.0
    };
    let keys: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert!(keys.iter().any(|key| choose(&[key.as_bytes()]) != choose(&[])));
    assert_eq!(choose(&[b"a", b"b"]), choose(&[b"a", b"b"]));
}

proptest! {
    #[test]
    fn modulus_takes_the_position_in_the_order_of_identities(
        names in prop::collection::btree_set(("[a-c]{1,2}", "[xy]?"), 0..12),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        keys in prop::collection::vec("[a-z]{0,3}", 1..20),
    ) {
        let mut bindings: Vec<BindingSpec> =
            names.iter().map(|(destination, key)| binding(destination, key)).collect();
        let mut table = ModulusTable::default();
        let mut numbered: Vec<(BindingSpec, u32)> = bindings.drain(..).zip(0..).collect();
        for (binding, n) in numbered.iter().rev() {
            table.add(binding, entry(*n));
        }
        for index in removed {
            if !numbered.is_empty() {
                let (binding, _) = numbered.remove(index.index(numbered.len()));
                table.remove(&binding);
            }
        }
        numbered.sort_by_key(|(binding, _)| rows::binding_key("", binding));
        for key in keys {
            let found = table.choose(&by_key(key.as_bytes())).map(|entry| entry.binding.0);
            let hash = StableHash::new().bytes(key.as_bytes()).finish();
            let expected = hash.checked_rem(numbered.len() as u64).map(|n| numbered[n as usize].1);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_choice_is_the_best_of_a_plain_look_at_all(
        weights in prop::collection::vec(1..9u32, 1..10),
        keys in prop::collection::vec("[a-z]{0,3}", 1..20),
    ) {
        let table = weighted(&weights);
        for key in keys {
            let hash = StableHash::new().bytes(key.as_bytes()).finish();
            let score = |n: usize| {
                let name = StableHash::new().bytes(format!("qd{n}").as_bytes()).finish();
                let u = ((mix(hash ^ name) >> 12) as f64 + 0.5) / 2_f64.powi(52);
                u.ln() / f64::from(weights[n])
            };
            let best = (0..weights.len()).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap();
            prop_assert_eq!(chosen(&table, &key), Some(best as u32));
        }
    }
}
