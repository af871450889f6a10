//! Bindings: made, removed, followed.

use super::*;

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
        precondition("Invalid x-match field value <<\"foo\">>; expected all, any, all-with-x, or any-with-x")
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
    assert_eq!(broker.refused(&delete_exchange("x", true)), precondition("exchange 'x' in vhost '/' in use"));
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
    assert_eq!(broker.writer.topology().exchanges().count(), 7, "the predeclared ones");
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
        let message = RoutingData { routing_key: b"", further_keys: &[], headers: &asked };
        let cacheable = topology.route(VHOST, exchange, &message, &mut scratch).unwrap();
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
