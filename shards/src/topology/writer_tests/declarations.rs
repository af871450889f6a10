//! Exchanges and queues: declared, declared again, refused, deleted.

use std::collections::HashSet;
use std::sync::Arc;

use super::*;

#[test]
fn a_new_broker_has_the_predeclared_exchanges() {
    let broker = Broker::new();
    for name in ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", TRACE_EXCHANGE] {
        assert!(broker.has_exchange(name), "{name}");
    }
    assert_eq!(broker.writer.version(), 1);
}

#[test]
fn a_change_counts_a_version_and_a_repetition_does_not() {
    let mut broker = Broker::new();
    let first = broker.ask(&queue("q"));
    let id = broker.queue_id("q");
    let outcome = |created| Outcome::QueueDeclared { queue: id, name: "q".into(), created };
    assert!(
        matches!(&first, Evaluation::Changed { version: 2, changes, outcome: found } if changes.len() == 1 && *found == outcome(true)),
        "{first:?}"
    );
    assert_eq!(broker.ask(&queue("q")), Evaluation::Unchanged(outcome(false)));
    assert_eq!(broker.ask(&passive(queue("q"))), Evaluation::Unchanged(outcome(false)));
    assert_eq!(broker.writer.version(), 2);
}

#[test]
fn names_that_are_missing_are_404_and_the_source_is_named_first() {
    let mut broker = Broker::new();
    assert_eq!(broker.refused(&passive(queue("q"))), missing("no queue 'q' in vhost '/'"));
    assert_eq!(broker.refused(&passive(exchange("x", "direct"))), missing("no exchange 'x' in vhost '/'"));
    assert_eq!(broker.refused(&bind("x", "q", "")), missing("no exchange 'x' in vhost '/'"));
    assert_eq!(broker.refused(&bind("amq.direct", "q", "")), missing("no queue 'q' in vhost '/'"));
    assert_eq!(
        broker.refused(&bind_exchange("amq.direct", "x", "")),
        missing("no exchange 'x' in vhost '/'")
    );
}

#[test]
fn removing_what_does_not_exist_is_fine() {
    let mut broker = Broker::new();
    for operation in [delete_exchange("x", true), unbind("x", "q", ""), unbind("amq.direct", "q", "")] {
        assert_eq!(broker.ask(&operation), Evaluation::Unchanged(Outcome::Done));
    }
    let none = Evaluation::Unchanged(Outcome::QueueDeleted { messages: 0 });
    assert_eq!(broker.ask(&delete_queue("q")), none);
    let expired = QueueId::new(ShardId(0), 9, 9);
    assert_eq!(broker.ask(&Operation::ExpireQueue { queue: expired, if_unused: true }), none);
    assert_eq!(broker.ask(&Operation::ReleaseConnection { connection: connection(1) }), none);
}

#[test]
fn reserved_names_are_403() {
    let mut broker = Broker::new();
    assert_eq!(
        broker.refused(&queue("amq.q")),
        access("queue name 'amq.q' contains reserved prefix 'amq.*'")
    );
    assert_eq!(
        broker.refused(&exchange("amq.x", "direct")),
        access("exchange name 'amq.x' contains reserved prefix 'amq.*'")
    );
    broker.run(&exchange("amq.direct", "direct"));
    broker.run(&passive(exchange("amq.direct", "direct")));
    assert_eq!(
        broker.refused(&delete_exchange("amq.direct", false)),
        access("deletion of system exchange 'amq.direct' in vhost '/' not allowed")
    );
}

#[test]
fn the_default_exchange_cannot_be_changed() {
    let mut broker = Broker::new();
    broker.run(&queue("q"));
    let all = [
        exchange("", "direct"),
        passive(exchange("\r\n", "direct")),
        delete_exchange("", false),
        bind("", "q", "k"),
        bind("", "missing", "k"),
        unbind("", "q", "k"),
        bind_exchange("", "amq.direct", ""),
        bind_exchange("amq.direct", "", ""),
    ];
    for operation in all {
        assert_eq!(broker.refused(&operation), access("operation not permitted on the default exchange"));
    }
}

#[test]
fn an_unknown_exchange_type_is_406_before_anything_else() {
    let mut broker = Broker::new();
    for name in ["x", "", "amq.direct", "amq.x"] {
        assert_eq!(broker.refused(&exchange(name, "x-foo")), precondition("unknown exchange type 'x-foo'"));
    }
}

#[test]
fn an_exchange_declared_otherwise_is_406() {
    let mut broker = Broker::new();
    broker.run(&exchange_with("x", &[("alternate-exchange", text("a")), ("other", Value::I32(1))]));
    let prefix = |arg: &str| format!("inequivalent arg '{arg}' for exchange 'x' in vhost '/': received ");
    let check = |broker: &mut Broker, operation: &Operation, arg: &str, rest: &str| {
        assert_eq!(broker.refused(operation), precondition(&(prefix(arg) + rest)));
    };
    check(&mut broker, &exchange("x", "fanout"), "type", "'fanout' but current is 'direct'");
    let changed = |change: fn(&mut bool, &mut bool, &mut bool)| {
        let mut operation = exchange("x", "direct");
        if let Operation::DeclareExchange { durable, auto_delete, internal, .. } = &mut operation {
            change(durable, auto_delete, internal);
        }
        operation
    };
    check(
        &mut broker,
        &changed(|durable, _, _| *durable = false),
        "durable",
        "'false' but current is 'true'",
    );
    check(&mut broker, &changed(|_, auto, _| *auto = true), "auto_delete", "'true' but current is 'false'");
    check(
        &mut broker,
        &changed(|_, _, internal| *internal = true),
        "internal",
        "'true' but current is 'false'",
    );
    let none = "none but current is the value 'a' of type 'longstr'";
    check(&mut broker, &exchange("x", "direct"), "alternate-exchange", none);
    let five = exchange_with("x", &[("alternate-exchange", Value::I32(5))]);
    check(&mut broker, &five, "alternate-exchange", "'5' but current is 'a'");
    broker.run(&exchange_with("x", &[("alternate-exchange", text("a"))]));
}

#[test]
fn an_alternate_exchange_is_text() {
    let mut broker = Broker::new();
    assert_eq!(
        broker.refused(&exchange_with("x", &[("alternate-exchange", Value::I32(5))])),
        precondition("invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'")
    );
}

#[test]
fn a_queue_declared_otherwise_is_406() {
    let mut broker = Broker::new();
    broker.run(&queue_with("q", &[("x-message-ttl", Value::I32(10)), ("x-foo", Value::I32(1))]));
    let mut check = |given: &[(&str, Value)], arg: &str, rest: &str| {
        let text = format!("inequivalent arg '{arg}' for queue 'q' in vhost '/': received {rest}");
        assert_eq!(broker.refused(&queue_with("q", given)), precondition(&text));
    };
    let ttl = ("x-message-ttl", Value::U8(10));
    check(&[], "x-message-ttl", "none but current is the value '10' of type 'signedint'");
    check(&[("x-message-ttl", Value::I32(20))], "x-message-ttl", "'20' but current is '10'");
    check(&[("x-message-ttl", text("10"))], "x-message-ttl", "'10' but current is '10'");
    let rest = "the value '5' of type 'long' but current is none";
    check(&[ttl.clone(), ("x-expires", Value::I64(5))], "x-expires", rest);
    let rest = "the value '5' of type 'signedint' but current is none";
    check(&[ttl.clone(), ("x-max-length", Value::I32(5))], "x-max-length", rest);
    check(
        &[ttl.clone(), ("x-queue-type", text("quorum"))],
        "x-queue-type",
        "'quorum' but current is 'classic'",
    );
    // Neither an integer's width nor what the type does not know counts.
    broker.run(&queue_with("q", &[ttl, ("x-queue-type", text("classic")), ("x-bar", Value::I32(1))]));
}

#[test]
fn a_queue_declared_with_other_flags_is_406() {
    let mut broker = Broker::new();
    broker.run(&queue("q"));
    let mut operation = queue("q");
    if let Operation::DeclareQueue { durable, .. } = &mut operation {
        *durable = false;
    }
    let received =
        |arg, values| precondition(&format!("inequivalent arg '{arg}' for queue 'q' in vhost '/': {values}"));
    assert_eq!(broker.refused(&operation), received("durable", "received 'false' but current is 'true'"));
    let mut operation = queue("q");
    if let Operation::DeclareQueue { auto_delete, .. } = &mut operation {
        *auto_delete = true;
    }
    assert_eq!(broker.refused(&operation), received("auto_delete", "received 'true' but current is 'false'"));
}

#[test]
fn values_of_queue_arguments_are_checked() {
    let mut broker = Broker::new();
    let mut check = |argument: &str, value: Value, reason: &str| {
        let text = format!("invalid arg '{argument}' for queue 'q' in vhost '/': {reason}");
        assert_eq!(broker.refused(&queue_with("q", &[(argument, value)])), precondition(&text));
    };
    check("x-expires", Value::I32(0), "{value_zero,0}");
    check("x-expires", Value::I32(-1), "{value_negative,-1}");
    check("x-expires", text("10"), "\"expected integer, got longstr\"");
    check("x-expires", Value::Void, "\"expected integer, got void\"");
    check("x-message-ttl", Value::I32(-1), "{value_negative,-1}");
    check("x-message-ttl", Value::F64(1.5), "\"expected integer, got double\"");
    check("x-message-ttl", Value::I64(315_360_000_001), "{value_too_large,315360000001}");
    check("x-queue-version", Value::I32(3), "\"unsupported queue version '3'\"");
    check("x-queue-type", text("foo"), "\"unsupported queue type 'foo'\"");
    check("x-queue-type", Value::I32(5), "{unacceptable_type,signedint}");
    check("x-max-length", Value::I32(-1), "{value_negative,-1}");
    check("x-max-length-bytes", text("a"), "\"expected integer, got longstr\"");
    check("x-overflow", text("foo"), "invalid_overflow");
    check("x-overflow", Value::I32(1), "{unacceptable_type,signedint}");
    check("x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined");
    check("x-dead-letter-routing-key", Value::I32(1), "{unacceptable_type,signedint}");
    check("x-max-priority", Value::I32(-1), "{value_negative,-1}");
    check("x-max-priority", Value::I32(256), "{max_value_exceeded,256}");
    check("x-single-active-consumer", Value::I32(1), "{unacceptable_type,signedint}");
    check("x-delivery-limit", text("a"), "\"expected integer, got longstr\"");
    check("x-consumer-timeout", Value::I32(-1), "{value_negative,-1}");
}

#[test]
fn a_dead_letter_exchange_is_a_name_and_its_strategy_one_of_two() {
    let mut broker = Broker::new();
    let with = |value| [("x-dead-letter-exchange", value)];
    let refused = "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'";
    assert_eq!(broker.refused(&queue_with("q", &with(Value::I32(1)))), precondition(refused));
    let [exchange] = with(text("not there yet"));
    let wrong = ("x-dead-letter-strategy", text("foo"));
    let refused = "invalid arg 'x-dead-letter-strategy' for queue 'q' in vhost '/': invalid_dlx_strategy";
    assert_eq!(broker.refused(&queue_with("q", &[exchange.clone(), wrong])), precondition(refused));
    let all = [
        exchange,
        ("x-dead-letter-routing-key", text("k")),
        ("x-dead-letter-strategy", text("at-least-once")),
    ];
    broker.run(&queue_with("q", &all));
    let info = broker.writer.topology().queue(VHOST, "q").unwrap();
    assert!(info.settings().dead_letter.is_some_and(|to| to.at_least_once));
}

#[test]
fn times_longer_than_32_bits_are_kept() {
    let mut broker = Broker::new();
    let given = [("x-message-ttl", Value::I64(134_217_728_000)), ("x-expires", Value::U32(5))];
    broker.run(&queue_with("q", &given));
    let info = broker.writer.topology().queue(VHOST, "q").unwrap();
    let settings = info.settings();
    assert_eq!((settings.message_ttl_ms, settings.expires_ms), (Some(134_217_728_000), Some(5)));
}

#[test]
fn arguments_without_a_feature_behind_them_are_refused_by_name() {
    let mut broker = Broker::new();
    let features = ["x-message-deduplication"];
    for argument in features {
        let (kind, text) = broker.refused(&queue_with("q", &[(argument, Value::I32(5))]));
        assert_eq!(kind, RefusalKind::NotImplemented, "{argument}");
        assert!(text.contains(argument), "{text}");
    }
    let (kind, refusal) = broker.refused(&queue_with("q", &[("x-queue-type", text("stream"))]));
    assert_eq!(kind, RefusalKind::NotImplemented);
    assert!(refusal.contains("x-queue-type") && refusal.contains("stream"), "{refusal}");
    broker.run(&queue_with("q", &[("x-queue-mode", text("lazy")), ("x-queue-version", Value::I32(2))]));
}

#[test]
fn a_queue_says_what_its_messages_outlive_by_name() {
    let mut broker = Broker::new();
    for value in [text("disk"), text(""), Value::I32(1)] {
        let (kind, text) = broker.refused(&queue_with("q", &[("x-durability", value)]));
        assert_eq!(kind, RefusalKind::PreconditionFailed);
        assert!(text.contains("expected fsync, os or memory"), "{text}");
    }
    for name in ["fsync", "os", "memory"] {
        broker.run(&queue_with(name, &[("x-durability", text(name))]));
        let info = broker.writer.topology().queue(VHOST, name).unwrap();
        assert_eq!(info.durability(), crate::Durability::from_name(name));
    }
    let (_, text) = broker.refused(&queue_with("os", &[("x-durability", text("fsync"))]));
    assert!(text.contains("inequivalent arg 'x-durability'"), "{text}");
}

#[test]
fn an_exclusive_queue_is_locked_for_others_and_lives_on_its_shard() {
    let mut broker = Broker::new();
    let mut declare = exclusive_queue("e");
    broker.writer.evaluate(&declare, requester(1));
    let info = Arc::clone(broker.writer.topology().queue(VHOST, "e").unwrap());
    assert_eq!((info.id.owner(), info.durable, info.exclusive), (ShardId(1), false, Some(connection(1))));
    let locked = (RefusalKind::ResourceLocked, crate::Refusal::locked_queue("e", "/").text);
    let all =
        [declare.clone(), queue("e"), passive(queue("e")), delete_queue("e"), bind("amq.direct", "e", "k")];
    for operation in &all {
        assert_eq!(broker.refused(operation), locked, "{operation:?}");
    }
    assert_eq!(broker.refused_by(1, &queue("e")), locked, "the exclusive property differs");
    assert_eq!(broker.refused(&bind("x", "e", "k")), missing("no exchange 'x' in vhost '/'"));
    assert_eq!(broker.ask(&unbind("amq.direct", "e", "k")), Evaluation::Unchanged(Outcome::Done));
    // To its own connection a durable exclusive queue equals one that is not durable.
    if let Operation::DeclareQueue { durable, .. } = &mut declare {
        *durable = false;
    }
    assert!(matches!(broker.writer.evaluate(&declare, requester(1)), Evaluation::Unchanged(_)));
    broker.run(&queue("q"));
    assert_eq!(broker.refused(&exclusive_queue("q")).0, RefusalKind::ResourceLocked);
}

#[test]
fn a_connection_that_ends_takes_its_exclusive_queues_along() {
    let mut broker = Broker::new();
    for name in ["e1", "e2"] {
        broker.writer.evaluate(&exclusive_queue(name), requester(1));
    }
    broker.writer.evaluate(&exclusive_queue("other"), requester(0));
    broker.run(&queue("q"));
    let release = Operation::ReleaseConnection { connection: connection(1) };
    let queues = vec![broker.queue_id("e1"), broker.queue_id("e2")];
    assert_eq!(
        broker.ask(&release),
        Evaluation::DropQueues { queues: queues.clone(), if_unused: false, if_empty: false }
    );
    let evaluation = broker.writer.queues_dropped(&queues, 5);
    let Evaluation::Changed { changes, outcome, .. } = evaluation else { panic!("{evaluation:?}") };
    assert_eq!(changes, [Change::RemoveQueue(queues[0]), Change::RemoveQueue(queues[1])]);
    assert_eq!(outcome, Outcome::QueueDeleted { messages: 5 });
    assert!(matches!(broker.ask(&release), Evaluation::Unchanged(_)));
    assert_eq!(broker.writer.topology().queues().count(), 2);
}

#[test]
fn conditions_of_a_deletion_are_the_owners_to_judge() {
    let mut broker = Broker::new();
    broker.run(&queue("q"));
    let id = broker.queue_id("q");
    let delete = Operation::DeleteQueue { vhost: VHOST, name: "q".into(), if_unused: true, if_empty: true };
    assert_eq!(
        broker.ask(&delete),
        Evaluation::DropQueues { queues: vec![id], if_unused: true, if_empty: true }
    );
    assert!(broker.writer.topology().queue_by_id(id).is_some(), "not before the owner has dropped it");
    assert_eq!(
        broker.ask(&Operation::ExpireQueue { queue: id, if_unused: true }),
        Evaluation::DropQueues { queues: vec![id], if_unused: true, if_empty: false }
    );
}

#[test]
fn a_queue_declared_again_has_a_new_id() {
    let mut broker = Broker::new();
    let mut seen = HashSet::new();
    for _ in 0..50 {
        broker.run(&queue("q"));
        assert!(seen.insert(broker.queue_id("q")), "ids never repeat");
        broker.run(&delete_queue("q"));
    }
}

#[test]
fn server_named_queues_have_distinct_names_of_the_known_form() {
    let mut broker = Broker::new();
    let mut names = HashSet::new();
    for _ in 0..100 {
        let Outcome::QueueDeclared { name, created, .. } = broker.run(&queue("")) else { panic!() };
        let random = name.strip_prefix("amq.gen-").unwrap();
        assert!(
            random.len() == 22 && random.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        );
        assert!(created && names.insert(name));
    }
    assert_eq!(broker.refused(&passive(queue(""))).0, RefusalKind::NotFound);
}

#[test]
fn queues_spread_over_the_shards() {
    let mut broker = Broker::new();
    for n in 0..4 {
        broker.run(&queue(&n.to_string()));
    }
    let on_first = broker.writer.topology().queues().filter(|queue| queue.id.owner() == ShardId(0)).count();
    assert_eq!(on_first, 2);
}

#[test]
fn line_ends_vanish_from_names() {
    let mut broker = Broker::new();
    broker.run(&queue("a\r\nb"));
    broker.run(&exchange("x\n", "direct"));
    broker.run(&bind("x\r", "ab\n", "k\n"));
    assert_eq!(broker.route("x", "k\n").unwrap(), ["ab"], "but not from routing keys");
    broker.run(&delete_queue("\nab"));
    assert!(broker.writer.topology().queue(VHOST, "ab").is_none());
}
