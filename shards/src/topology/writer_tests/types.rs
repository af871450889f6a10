//! The rules of the types of exchanges and queues.

use super::*;
use crate::limits::QUORUM_DELIVERY_LIMIT;

fn typed(kind: &str, given: &[(&str, Value)]) -> Operation {
    let mut operation = exchange("x", kind);
    if let Operation::DeclareExchange { arguments: field, .. } = &mut operation {
        *field = arguments(given);
    }
    operation
}

fn quorum(given: &[(&str, Value)]) -> Operation {
    let mut given = given.to_vec();
    given.push(("x-queue-type", text("quorum")));
    queue_with("q", &given)
}

#[test]
fn a_hash_is_of_the_key_or_of_one_header_or_of_one_property() {
    let mut broker = Broker::new();
    for (given, said) in [
        (
            vec![("hash-header", text("h")), ("hash-property", text("message_id"))],
            "hash-header and hash-property are mutually exclusive",
        ),
        (vec![("hash-property", text("app_id"))], "Unsupported property: app_id"),
        (
            vec![("hash-property", Value::I32(5))],
            "invalid type 'signedint' for arg 'hash-property' in exchange 'x' in vhost '/'",
        ),
        (
            vec![("hash-header", Value::Bool(true))],
            "invalid type 'bool' for arg 'hash-header' in exchange 'x' in vhost '/'",
        ),
    ] {
        assert_eq!(broker.refused(&typed("x-consistent-hash", &given)), precondition(said));
    }
    for property in ["message_id", "correlation_id", "timestamp"] {
        broker.run(&typed("x-consistent-hash", &[("hash-property", text(property))]));
        broker.run(&Operation::DeleteExchange { vhost: VHOST, name: "x".into(), if_unused: false });
    }
    broker.run(&typed("x-consistent-hash", &[("hash-header", text("h"))]));
}

#[test]
fn a_history_has_a_length_above_zero() {
    let mut broker = Broker::new();
    let length = |value| typed("x-recent-history", &[("x-recent-history-length", value)]);
    for (value, printed) in
        [(Value::I32(0), "0"), (Value::I64(-1), "-1"), (text("a"), "<<\"a\">>"), (Value::Bool(true), "true")]
    {
        let said =
            format!("Invalid argument {printed}, 'x-recent-history-length' must be a positive integer");
        assert_eq!(broker.refused(&length(value)), precondition(&said));
    }
    broker.run(&length(Value::I32(3)));
    assert_eq!(broker.writer.topology().exchange(VHOST, "x").unwrap().history_length(), 3);
}

#[test]
fn a_weight_is_a_positive_integer() {
    let mut broker = Broker::new();
    broker.run(&typed("x-consistent-hash", &[]));
    broker.run(&queue("q"));
    for (key, said) in [
        ("", "The binding key must be an integer: <<>>"),
        ("a", "The binding key must be an integer: <<\"a\">>"),
        ("1.5", "The binding key must be an integer: <<\"1.5\">>"),
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
    ] {
        assert_eq!(broker.refused(&bind("x", "q", key)), precondition(said));
    }
    broker.run(&bind("x", "q", "+3"));
    broker.run(&bind_exchange("x", "amq.fanout", "1"));
    assert!(broker.refused(&bind_exchange("x", "amq.topic", "")).1.contains("must be an integer"));
}

#[test]
fn a_local_lot_is_drawn_among_classic_queues_without_a_key() {
    let mut broker = Broker::new();
    broker.run(&typed("x-local-random", &[]));
    broker.run(&quorum(&[]));
    let key = "Non empty binding 'k' key not permitted";
    assert_eq!(broker.refused(&bind("x", "q", "k")), precondition(key));
    assert_eq!(broker.refused(&bind_exchange("x", "amq.fanout", "k")), precondition(key));
    let said = "Destination not found";
    assert_eq!(broker.refused(&bind_exchange("x", "amq.fanout", "")), precondition(said));
    let said = "Queue type rabbit_quorum_queue not valid for this exchange type";
    assert_eq!(broker.refused(&bind("x", "q", "")), precondition(said));
    broker.run(&queue("classic"));
    broker.run(&bind("x", "classic", ""));
}

#[test]
fn a_quorum_queue_is_durable_shared_and_named_by_its_client() {
    let mut broker = Broker::new();
    let with = |name: &str, [wanted_durable, wanted_exclusive, wanted_auto_delete]: [bool; 3]| {
        let mut operation = quorum(&[]);
        if let Operation::DeclareQueue { name: field, durable, exclusive, auto_delete, .. } = &mut operation {
            *field = name.into();
            (*durable, *exclusive, *auto_delete) = (wanted_durable, wanted_exclusive, wanted_auto_delete);
        }
        operation
    };
    for (flags, property) in [
        ([false, false, false], "non-durable"),
        ([true, true, false], "exclusive-owner"),
        ([true, false, true], "auto-delete"),
    ] {
        let said = format!("invalid property '{property}' for queue 'q' in vhost '/'");
        assert_eq!(broker.refused(&with("q", flags)), precondition(&said));
    }
    let said = "Cannot declare a server-named queue for type rabbit_quorum_queue";
    assert_eq!(broker.refused(&with("", [true, false, false])), precondition(said));
    broker.run(&with("q", [true, false, false]));
    let info = broker.writer.topology().queue(VHOST, "q").unwrap();
    assert!(info.durable && info.durable_id.is_some() && info.kind() == QueueKind::Quorum);
    assert_eq!(info.settings().delivery_limit, Some(QUORUM_DELIVERY_LIMIT));
    assert_eq!(
        broker.refused(&queue("q")),
        precondition(
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'classic' but current is 'quorum'"
        )
    );
}

#[test]
fn arguments_that_a_quorum_queue_does_not_know_are_406() {
    let mut broker = Broker::new();
    for argument in ["x-max-priority", "x-queue-mode", "x-queue-version", "x-max-age"] {
        let said =
            format!("invalid arg '{argument}' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue");
        assert_eq!(broker.refused(&quorum(&[(argument, Value::I32(2))])), precondition(&said));
    }
    for (argument, value, why) in [
        ("x-quorum-initial-group-size", Value::I32(0), "{value_zero,0}"),
        ("x-queue-leader-locator", text("foo"), "invalid_queue_locator_arg"),
    ] {
        let said = format!("invalid arg '{argument}' for queue 'q' in vhost '/': {why}");
        assert_eq!(broker.refused(&quorum(&[(argument, value)])), precondition(&said));
    }
    let given =
        [("x-quorum-initial-group-size", Value::I32(3)), ("x-queue-leader-locator", text("balanced"))];
    broker.run(&quorum(&given));
}
