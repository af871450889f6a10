//! What clients rely on when they declare, bind and delete, one behaviour per test.

use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::shard::NoHeaders;
use crate::{Arguments, ConnectionId, QueueId, RefusalKind, ShardId, Value, VhostId};

const VHOST: VhostId = VhostId(0);

/// A writer, and the requests of two connections on two shards.
struct Broker {
    writer: Writer,
}

fn connection(shard: u16) -> ConnectionId {
    ConnectionId { shard: ShardId(shard), slot: 3, generation: 0 }
}

fn requester(shard: u16) -> Requester {
    Requester { connection: connection(shard) }
}

fn arguments(fields: &[(&str, Value)]) -> Arguments {
    fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn text(text: &str) -> Value {
    Value::LongString(text.into())
}

fn exchange(name: &str, kind: &str) -> Operation {
    Operation::DeclareExchange {
        vhost: VHOST,
        name: name.into(),
        kind: kind.into(),
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Arguments::new(),
    }
}

fn auto_delete_exchange(name: &str) -> Operation {
    let mut operation = exchange(name, "fanout");
    if let Operation::DeclareExchange { auto_delete, .. } = &mut operation {
        *auto_delete = true;
    }
    operation
}

fn exchange_with(name: &str, given: &[(&str, Value)]) -> Operation {
    let mut operation = exchange(name, "direct");
    if let Operation::DeclareExchange { arguments: field, .. } = &mut operation {
        *field = arguments(given);
    }
    operation
}

fn queue_with(name: &str, given: &[(&str, Value)]) -> Operation {
    Operation::DeclareQueue {
        vhost: VHOST,
        name: name.into(),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: arguments(given),
    }
}

fn queue(name: &str) -> Operation {
    queue_with(name, &[])
}

fn exclusive_queue(name: &str) -> Operation {
    let mut operation = queue(name);
    if let Operation::DeclareQueue { exclusive, .. } = &mut operation {
        *exclusive = true;
    }
    operation
}

fn passive(mut operation: Operation) -> Operation {
    match &mut operation {
        Operation::DeclareExchange { passive, .. } | Operation::DeclareQueue { passive, .. } => *passive = true,
        _ => panic!("only declares are passive"),
    }
    operation
}

fn spec(source: &str, destination: &str, kind: DestinationKind, key: &str) -> BindingSpec {
    let arguments = Arguments::new();
    BindingSpec {
        source: source.into(),
        destination: destination.into(),
        kind,
        routing_key: key.into(),
        arguments,
    }
}

fn bind(source: &str, queue: &str, key: &str) -> Operation {
    Operation::Bind { vhost: VHOST, binding: spec(source, queue, DestinationKind::Queue, key) }
}

fn bind_exchange(source: &str, destination: &str, key: &str) -> Operation {
    Operation::Bind { vhost: VHOST, binding: spec(source, destination, DestinationKind::Exchange, key) }
}

fn unbind(source: &str, queue: &str, key: &str) -> Operation {
    Operation::Unbind { vhost: VHOST, binding: spec(source, queue, DestinationKind::Queue, key) }
}

fn delete_queue(name: &str) -> Operation {
    Operation::DeleteQueue { vhost: VHOST, name: name.into(), if_unused: false, if_empty: false }
}

fn delete_exchange(name: &str, if_unused: bool) -> Operation {
    Operation::DeleteExchange { vhost: VHOST, name: name.into(), if_unused }
}

impl Broker {
    fn new() -> Broker {
        let (writer, _) = Writer::restore(2, [], "/", fastrand::Rng::with_seed(7)).unwrap();
        Broker { writer }
    }

    fn ask(&mut self, operation: &Operation) -> Evaluation {
        self.writer.evaluate(operation, requester(0))
    }

    /// Expects a yes; deletions go through both halves.
    fn run(&mut self, operation: &Operation) -> Outcome {
        let mut evaluation = self.ask(operation);
        if let Evaluation::DropQueues { queues, .. } = &evaluation {
            evaluation = self.writer.queues_dropped(queues, 0);
        }
        match evaluation {
            Evaluation::Changed { outcome, .. } | Evaluation::Unchanged(outcome) => outcome,
            other => panic!("{operation:?} gave {other:?}"),
        }
    }

    fn refused_by(&mut self, shard: u16, operation: &Operation) -> (RefusalKind, String) {
        match self.writer.evaluate(operation, requester(shard)) {
            Evaluation::Refused(refusal) => (refusal.kind, refusal.text),
            other => panic!("{operation:?} gave {other:?}"),
        }
    }

    fn refused(&mut self, operation: &Operation) -> (RefusalKind, String) {
        self.refused_by(0, operation)
    }

    fn queue_id(&self, name: &str) -> QueueId {
        self.writer.topology().queue(VHOST, name).unwrap().id
    }

    fn has_exchange(&self, name: &str) -> bool {
        self.writer.topology().exchange(VHOST, name).is_some()
    }

    fn route(&self, exchange: &str, key: &str) -> Result<Vec<String>, String> {
        let mut scratch = RouteScratch::default();
        let topology = self.writer.topology();
        topology
            .route(VHOST, exchange, key.as_bytes(), &NoHeaders, &mut scratch)
            .map_err(|refusal| refusal.text)?;
        let mut names: Vec<String> =
            scratch.queues.iter().map(|&id| topology.queue_by_id(id).unwrap().name.to_string()).collect();
        names.sort();
        Ok(names)
    }
}

fn precondition(text: &str) -> (RefusalKind, String) {
    (RefusalKind::PreconditionFailed, text.to_owned())
}

fn access(text: &str) -> (RefusalKind, String) {
    (RefusalKind::AccessRefused, text.to_owned())
}

fn missing(text: &str) -> (RefusalKind, String) {
    (RefusalKind::NotFound, text.to_owned())
}

#[test]
fn a_new_broker_has_the_predeclared_exchanges() {
    let broker = Broker::new();
    for name in ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"] {
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
    assert_eq!(broker.refused(&bind_exchange("amq.direct", "x", "")), missing("no exchange 'x' in vhost '/'"));
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
    assert_eq!(broker.refused(&queue("amq.q")), access("queue name 'amq.q' contains reserved prefix 'amq.*'"));
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
        assert_eq!(broker.refused(&exchange(name, "x-random")), precondition("unknown exchange type 'x-random'"));
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
    check(&mut broker, &changed(|durable, _, _| *durable = false), "durable", "'false' but current is 'true'");
    check(&mut broker, &changed(|_, auto, _| *auto = true), "auto_delete", "'true' but current is 'false'");
    check(&mut broker, &changed(|_, _, internal| *internal = true), "internal", "'true' but current is 'false'");
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
    check(&[ttl.clone(), ("x-queue-type", text("quorum"))], "x-queue-type", "'quorum' but current is 'classic'");
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
    let received = |arg, values| precondition(&format!("inequivalent arg '{arg}' for queue 'q' in vhost '/': {values}"));
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
}

#[test]
fn times_longer_than_32_bits_are_kept() {
    let mut broker = Broker::new();
    let given = [("x-message-ttl", Value::I64(134_217_728_000)), ("x-expires", Value::U32(5))];
    broker.run(&queue_with("q", &given));
    let info = broker.writer.topology().queue(VHOST, "q").unwrap();
    assert_eq!((info.message_ttl_ms(), info.expires_ms()), (Some(134_217_728_000), Some(5)));
}

#[test]
fn arguments_without_a_feature_behind_them_are_refused_by_name() {
    let mut broker = Broker::new();
    let features = [
        "x-max-length",
        "x-max-length-bytes",
        "x-overflow",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-priority",
        "x-single-active-consumer",
        "x-delivery-limit",
        "x-consumer-timeout",
        "x-message-deduplication",
        "x-durability",
    ];
    for argument in features {
        let (kind, text) = broker.refused(&queue_with("q", &[(argument, Value::I32(5))]));
        assert_eq!(kind, RefusalKind::NotImplemented, "{argument}");
        assert!(text.contains(argument), "{text}");
    }
    for name in ["quorum", "stream"] {
        let (kind, text) = broker.refused(&queue_with("q", &[("x-queue-type", text(name))]));
        assert_eq!(kind, RefusalKind::NotImplemented);
        assert!(text.contains("x-queue-type") && text.contains(name), "{text}");
    }
    broker.run(&queue_with("q", &[("x-queue-mode", text("lazy")), ("x-queue-version", Value::I32(2))]));
}

#[test]
fn an_exclusive_queue_is_locked_for_others_and_lives_on_its_shard() {
    let mut broker = Broker::new();
    let mut declare = exclusive_queue("e");
    broker.writer.evaluate(&declare, requester(1));
    let info = Arc::clone(broker.writer.topology().queue(VHOST, "e").unwrap());
    assert_eq!((info.id.owner(), info.durable, info.exclusive), (ShardId(1), false, Some(connection(1))));
    let locked = (RefusalKind::ResourceLocked, crate::Refusal::locked_queue("e", "/").text);
    let all = [declare.clone(), queue("e"), passive(queue("e")), delete_queue("e"), bind("amq.direct", "e", "k")];
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
        assert!(random.len() == 22 && random.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
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

#[test]
fn bindings_differ_by_key_and_arguments_and_are_made_once() {
    let mut broker = Broker::new();
    broker.run(&queue("q"));
    let mut with_arguments = bind("amq.direct", "q", "k");
    if let Operation::Bind { binding, .. } = &mut with_arguments {
        binding.arguments = arguments(&[("a", Value::F64(f64::NAN))]);
    }
    for operation in [bind("amq.direct", "q", "k"), bind("amq.direct", "q", "l"), with_arguments] {
        assert!(matches!(broker.ask(&operation), Evaluation::Changed { .. }));
        assert_eq!(broker.ask(&operation), Evaluation::Unchanged(Outcome::Done));
    }
    assert_eq!(broker.writer.topology().bindings().count(), 3);
    assert_eq!(broker.route("amq.direct", "k").unwrap(), ["q"], "once, however many bindings match");
    broker.run(&unbind("amq.direct", "q", "k"));
    assert_eq!(broker.route("amq.direct", "k").unwrap(), ["q"], "the one with arguments is there still");
    assert_eq!(broker.writer.topology().bindings().count(), 2);
}

#[test]
fn a_headers_binding_must_say_what_to_match() {
    let mut broker = Broker::new();
    broker.run(&queue("q"));
    let mut binding = spec("amq.headers", "q", DestinationKind::Queue, "");
    binding.arguments = arguments(&[("x-match", text("foo"))]);
    assert_eq!(
        broker.refused(&Operation::Bind { vhost: VHOST, binding: binding.clone() }),
        precondition(
            "Invalid x-match field value <<\"foo\">>; expected all, any, all-with-x, or any-with-x"
        )
    );
    binding.arguments = arguments(&[("x-match", Value::I32(5))]);
    assert_eq!(
        broker.refused(&Operation::Bind { vhost: VHOST, binding }),
        precondition("Invalid x-match field type signedint (value 5); expected longstr")
    );
}

#[test]
fn an_exchange_in_use_is_deleted_only_without_conditions() {
    let mut broker = Broker::new();
    broker.run(&exchange("x", "fanout"));
    broker.run(&queue("q"));
    broker.run(&bind_exchange("amq.fanout", "x", ""));
    broker.run(&bind("x", "q", ""));
    assert_eq!(
        broker.refused(&delete_exchange("x", true)),
        precondition("exchange 'x' in vhost '/' in use")
    );
    broker.run(&unbind("x", "q", ""));
    broker.run(&delete_exchange("x", true));
    assert!(!broker.has_exchange("x"), "being a destination is no use");
    assert_eq!(broker.writer.topology().bindings().count(), 0);
}

#[test]
fn auto_delete_exchanges_go_with_their_last_binding_one_after_another() {
    let mut broker = Broker::new();
    for name in ["a", "b", "c"] {
        broker.run(&auto_delete_exchange(name));
    }
    broker.run(&queue("q"));
    broker.run(&bind_exchange("a", "b", ""));
    broker.run(&bind("b", "q", ""));
    broker.run(&bind("b", "q", "again"));
    broker.run(&unbind("b", "q", ""));
    assert!(broker.has_exchange("b"), "it has one more");
    broker.run(&delete_queue("q"));
    assert!(!broker.has_exchange("b") && !broker.has_exchange("a"));
    assert!(broker.has_exchange("c"), "never bound, never abandoned");
    broker.run(&delete_exchange("c", false));
}

#[test]
fn an_exchange_bound_to_itself_can_be_deleted() {
    let mut broker = Broker::new();
    broker.run(&auto_delete_exchange("a"));
    broker.run(&bind_exchange("a", "a", ""));
    broker.run(&delete_exchange("a", false));
    assert!(!broker.has_exchange("a"));
    assert_eq!(broker.writer.topology().bindings().count(), 0);
}

#[test]
fn a_long_chain_of_auto_delete_exchanges_falls_as_one() {
    let mut broker = Broker::new();
    broker.run(&queue("q"));
    broker.run(&auto_delete_exchange("0"));
    broker.run(&bind("0", "q", ""));
    for n in 1..20_000u32 {
        broker.run(&auto_delete_exchange(&n.to_string()));
        broker.run(&bind_exchange(&n.to_string(), &(n - 1).to_string(), ""));
    }
    broker.run(&delete_queue("q"));
    assert_eq!(broker.writer.topology().exchanges().count(), 6, "the predeclared ones");
}

#[test]
fn routes_follow_exchanges_in_circles_and_reach_a_queue_once() {
    let mut broker = Broker::new();
    for name in ["a", "b", "c"] {
        broker.run(&exchange(name, "fanout"));
    }
    broker.run(&queue("q1"));
    broker.run(&queue("q2"));
    for (source, destination) in [("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")] {
        broker.run(&bind_exchange(source, destination, ""));
    }
    broker.run(&bind("b", "q1", ""));
    broker.run(&bind("c", "q1", ""));
    broker.run(&bind("c", "q2", ""));
    assert_eq!(broker.route("a", "").unwrap(), ["q1", "q2"]);
}

#[test]
fn an_alternate_exchange_gets_what_its_exchange_has_no_binding_for() {
    let mut broker = Broker::new();
    broker.run(&exchange("first", "fanout"));
    broker.run(&exchange_with("middle", &[("alternate-exchange", text("last"))]));
    broker.run(&exchange_with("last", &[("alternate-exchange", text("middle"))]));
    broker.run(&bind_exchange("first", "middle", ""));
    broker.run(&queue("q1"));
    broker.run(&queue("q2"));
    broker.run(&bind("middle", "q1", "k"));
    broker.run(&bind("last", "q2", "l"));
    assert_eq!(broker.route("first", "k").unwrap(), ["q1"]);
    assert_eq!(broker.route("first", "l").unwrap(), ["q2"], "not only the first exchange has an alternate");
    assert_eq!(broker.route("first", "m").unwrap(), Vec::<String>::new(), "a circle of alternates ends");
    broker.run(&exchange_with("to-default", &[("alternate-exchange", text(""))]));
    assert_eq!(broker.route("to-default", "q1").unwrap(), Vec::<String>::new());
}

#[test]
fn a_publish_is_refused_by_exchanges_that_are_missing_or_internal() {
    let mut broker = Broker::new();
    let mut internal_exchange = exchange("x", "fanout");
    if let Operation::DeclareExchange { internal, .. } = &mut internal_exchange {
        *internal = true;
    }
    broker.run(&internal_exchange);
    broker.run(&queue("q"));
    broker.run(&bind("x", "q", ""));
    broker.run(&bind_exchange("amq.fanout", "x", ""));
    assert_eq!(broker.route("y", "").unwrap_err(), "no exchange 'y' in vhost '/'");
    assert_eq!(broker.route("x", "").unwrap_err(), "cannot publish to internal exchange 'x' in vhost '/'");
    assert_eq!(broker.route("amq.fanout", "").unwrap(), ["q"]);
    assert_eq!(broker.route("", "q").unwrap(), ["q"]);
    assert_eq!(broker.route("", "missing").unwrap(), Vec::<String>::new());
}

/// Hands the same headers to every exchange and counts how often it is asked.
#[derive(Debug)]
struct Counted(std::cell::Cell<u32>);

impl crate::shard::HeaderSource for Counted {
    fn headers(&self) -> Arguments {
        self.0.set(self.0.get() + 1);
        arguments(&[("a", Value::I32(1))])
    }
}

#[test]
fn headers_are_parsed_once_and_only_if_an_exchange_asks() {
    let mut broker = Broker::new();
    broker.run(&queue("q"));
    broker.run(&bind("amq.fanout", "q", ""));
    let asked = Counted(std::cell::Cell::new(0));
    let mut scratch = RouteScratch::default();
    let mut route = |broker: &Broker, exchange: &str| {
        let topology = broker.writer.topology();
        let cacheable = topology.route(VHOST, exchange, b"", &asked, &mut scratch).unwrap();
        (cacheable.0, scratch.queues.len(), asked.0.get())
    };
    assert_eq!(route(&broker, "amq.fanout"), (true, 1, 0));
    assert_eq!(route(&broker, "amq.headers"), (true, 0, 0), "without bindings there is nothing to ask");
    let mut binding = spec("amq.headers", "q", DestinationKind::Queue, "");
    binding.arguments = arguments(&[("a", Value::I64(1))]);
    broker.run(&Operation::Bind { vhost: VHOST, binding: binding.clone() });
    binding.source = "amq.match".into();
    broker.run(&Operation::Bind { vhost: VHOST, binding });
    broker.run(&bind_exchange("amq.headers", "amq.match", ""));
    assert_eq!(route(&broker, "amq.headers"), (false, 1, 1));
}
