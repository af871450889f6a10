//! Which policy counts, what it may say, and how what several say becomes one.

use super::*;
use crate::queue::Overflow;
use crate::{DurableId, QueueId, ShardId};

fn text(text: &str) -> Value {
    Value::LongString(text.into())
}

fn number(number: i64) -> Value {
    Value::I64(number)
}

fn definition(fields: &[(&str, Value)]) -> Arguments {
    fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn policy(name: &str, pattern: &str, priority: i64, fields: &[(&str, Value)]) -> Policy {
    Policy {
        name: name.into(),
        pattern: pattern.into(),
        apply_to: ApplyTo::All,
        priority,
        definition: definition(fields),
    }
}

fn queue(name: &str, fields: &[(&str, Value)]) -> QueueInfo {
    QueueInfo {
        id: QueueId::new(ShardId(0), 0, 0),
        vhost: crate::VhostId(0),
        name: name.into(),
        durable: true,
        durable_id: Some(DurableId(1)),
        auto_delete: false,
        exclusive: None,
        arguments: definition(fields),
        policy: None,
    }
}

fn policies(all: &[(PolicyOf, Policy)]) -> Policies {
    let mut policies = Policies::default();
    for (of, policy) in all {
        policies.set("/", *of, policy.clone()).unwrap();
    }
    policies
}

fn names(policies: &Policies, queue_name: &str) -> (Option<String>, Option<String>) {
    let found = policies.for_queue("/", &queue(queue_name, &[]));
    let name = |name: &Option<Arc<str>>| name.as_ref().map(ToString::to_string);
    found.map_or((None, None), |found| (name(&found.policy), name(&found.operator_policy)))
}

#[test]
fn the_highest_priority_that_fits_counts_and_only_that_one() {
    let limit = [("max-length", number(1))];
    let policies = policies(&[
        (PolicyOf::User, policy("low", "^orders", 1, &limit)),
        (PolicyOf::User, policy("high", r"^orders\.", 5, &limit)),
        (PolicyOf::User, policy("equal", "orders", 5, &limit)),
        (PolicyOf::Operator, policy("bound", "s$", 0, &limit)),
    ]);
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(names(&policies, "orders.1"), (some("equal"), None), "the first by name among equals");
    assert_eq!(names(&policies, "orders"), (some("equal"), some("bound")));
    assert_eq!(names(&policies, "bills"), (None, some("bound")), "found anywhere in the name");
    assert_eq!(names(&policies, "x"), (None, None));
    assert!(policies.for_queue("other", &queue("orders", &[])).is_none(), "of its vhost only");
}

#[test]
fn patterns_look_around() {
    let not_system = [("max-length", number(1))];
    let policies = policies(&[(PolicyOf::User, policy("p", r"^(?!amq\.).*", 0, &not_system))]);
    assert_eq!(names(&policies, "amq.gen-1").0, None);
    assert!(names(&policies, "q").0.is_some());
    let broken = Policies::default().set("/", PolicyOf::User, policy("p", "a(", 0, &not_system));
    assert!(broken.unwrap_err().text.starts_with("pattern should be regular expression but is invalid: "));
}

#[test]
fn a_policy_applies_to_what_it_says() {
    let exchange = ExchangeInfo {
        vhost: crate::VhostId(0),
        name: "x".into(),
        kind: super::super::ExchangeKind::Direct,
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Arguments::new(),
        policy: None,
    };
    let quorum = queue("x", &[("x-queue-type", text("quorum"))]);
    for (name, classic, is_quorum, of_exchange) in [
        ("all", true, true, true),
        ("queues", true, true, false),
        ("classic_queues", true, false, false),
        ("quorum_queues", false, true, false),
        ("streams", false, false, false),
        ("exchanges", false, false, true),
    ] {
        let apply_to = ApplyTo::from_name(name).unwrap();
        assert_eq!(apply_to.name(), name);
        let limit = Policy { apply_to, ..policy("p", "", 0, &[("max-length", number(1))]) };
        let policies = policies(&[(PolicyOf::User, limit)]);
        assert_eq!(policies.for_queue("/", &queue("x", &[])).is_some(), classic, "{name}");
        assert_eq!(policies.for_queue("/", &quorum).is_some(), is_quorum, "{name}");
        assert_eq!(policies.for_exchange("/", &exchange).is_some(), of_exchange, "{name}");
    }
    assert_eq!(ApplyTo::from_name("foo"), None);
}

#[test]
fn a_policy_with_a_setting_that_a_queues_type_does_not_know_is_not_for_it_at_all() {
    let limit = ("max-length", number(1));
    let policies = policies(&[
        (PolicyOf::User, policy("high", "", 5, &[("delivery-limit", number(5)), limit.clone()])),
        (PolicyOf::User, policy("middle", "", 3, &[("queue-mode", text("lazy")), limit.clone()])),
        (PolicyOf::User, policy("low", "", 1, &[limit])),
        (PolicyOf::Operator, policy("bound", "", 1, &[("delivery-limit", number(5))])),
    ]);
    let name = |queue: &QueueInfo| {
        let found = policies.for_queue("/", queue).unwrap();
        (found.policy.clone().unwrap(), found.operator_policy.clone())
    };
    assert_eq!(name(&queue("q", &[])), ("middle".into(), None));
    let quorum = queue("q", &[("x-queue-type", text("quorum"))]);
    assert_eq!(name(&quorum), ("high".into(), Some("bound".into())));
}

#[test]
fn what_becomes_of_too_much_is_said_by_the_argument_or_for_a_quorum_queue_by_the_policy() {
    let asked = [("overflow", text("reject-publish")), ("max-length", number(3))];
    let policies = policies(&[(PolicyOf::User, policy("p", "", 0, &asked))]);
    for (kind, expected) in [("classic", Overflow::DropHead), ("quorum", Overflow::RejectPublish)] {
        let mut queue = queue("q", &[("x-queue-type", text(kind)), ("x-overflow", text("drop-head"))]);
        queue.policy = policies.for_queue("/", &queue);
        assert_eq!(queue.settings().bound.unwrap().overflow, expected, "{kind}");
    }
}

#[test]
fn an_operator_bounds_what_a_policy_asks_for() {
    let policies = policies(&[
        (
            PolicyOf::User,
            policy(
                "p",
                "",
                0,
                &[
                    ("max-length", number(10)),
                    ("message-ttl", number(5)),
                    ("overflow", text("drop-head")),
                    ("delivery-limit", number(-1)),
                    ("consumer-timeout", number(60_000)),
                    ("dead-letter-exchange", text("dlx")),
                ],
            ),
        ),
        (
            PolicyOf::Operator,
            policy(
                "o",
                "",
                0,
                &[
                    ("max-length", number(3)),
                    ("message-ttl", number(7)),
                    ("overflow", text("reject-publish")),
                    ("delivery-limit", number(4)),
                    ("expires", number(9)),
                ],
            ),
        ),
    ]);
    let quorum = [("x-queue-type", text("quorum"))];
    let found = policies.for_queue("/", &queue("q", &quorum)).unwrap();
    let expected = [
        ("max-length", number(3)),
        ("message-ttl", number(5)),
        ("overflow", text("reject-publish")),
        ("delivery-limit", number(4)),
        ("consumer-timeout", number(60_000)),
        ("dead-letter-exchange", text("dlx")),
        ("expires", number(9)),
    ];
    assert_eq!(found.definition, definition(&expected));
}

#[test]
fn of_limits_the_lower_counts_and_of_the_rest_what_the_argument_says() {
    let asked = [
        ("max-length", number(10)),
        ("message-ttl", number(5)),
        ("dead-letter-exchange", text("by-policy")),
        ("dead-letter-routing-key", text("key")),
        ("overflow", text("reject-publish")),
    ];
    let policies = policies(&[(PolicyOf::User, policy("p", "", 0, &asked))]);
    let mut queue = queue(
        "q",
        &[
            ("x-max-length", Value::I32(3)),
            ("x-message-ttl", Value::I32(9)),
            ("x-dead-letter-exchange", text("by-argument")),
            ("x-unknown", text("kept")),
        ],
    );
    queue.policy = policies.for_queue("/", &queue);
    let settings = queue.settings();
    let bound = settings.bound.unwrap();
    assert_eq!((bound.messages, bound.overflow), (Some(3), Overflow::RejectPublish));
    assert_eq!(settings.message_ttl_ms, Some(5));
    let dead_letter = settings.dead_letter.unwrap();
    assert_eq!((&*dead_letter.exchange, dead_letter.routing_key.as_deref()), ("by-argument", Some("key")));
}

#[test]
fn a_quorum_queues_limit_is_bounded_by_policies_like_any_other() {
    let limited = |argument: Option<i64>, by_policy: Option<i64>| {
        let mut fields = vec![("x-queue-type", text("quorum"))];
        fields.extend(argument.map(|limit| ("x-delivery-limit", number(limit))));
        let mut queue = queue("q", &fields);
        let asked = by_policy.map(|limit| policy("p", "", 0, &[("delivery-limit", number(limit))]));
        queue.policy =
            policies(&asked.map(|policy| (PolicyOf::User, policy)).into_iter().collect::<Vec<_>>())
                .for_queue("/", &queue);
        queue.settings().delivery_limit
    };
    assert_eq!(limited(None, None), Some(20));
    assert_eq!(limited(None, Some(50)), Some(50));
    assert_eq!(limited(Some(7), Some(50)), Some(7));
    assert_eq!(limited(Some(-1), Some(50)), Some(50));
    assert_eq!(limited(None, Some(-1)), None);
}

#[test]
fn a_definition_is_checked_in_rabbitmqs_words() {
    let said = |of, fields: &[(&str, Value)]| match check(of, &definition(fields)) {
        Ok(()) => "ok".to_owned(),
        Err(refusal) => refusal.text,
    };
    let user = |name: &str, value: Value| said(PolicyOf::User, &[(name, value)]);
    assert_eq!(said(PolicyOf::User, &[]), "no policy provided");
    assert_eq!(user("foo", number(1)), "[{<<\"foo\">>,1}] are not recognised policy settings");
    assert_eq!(
        user("max-priority", number(3)),
        "[{<<\"max-priority\">>,3}] are not recognised policy settings"
    );
    for (name, value, expected) in [
        ("message-ttl", text("a"), "<<\"a\">> is not a valid message TTL"),
        ("message-ttl", number(-1), "-1 is not a valid message TTL"),
        ("expires", number(0), "0 is not a valid queue expiry"),
        ("max-length", number(-1), "-1 is not a valid maximum length"),
        ("overflow", text("foo"), "<<\"foo\">> is not a valid overflow value"),
        ("dead-letter-exchange", number(5), "5 is not a valid dead letter exchange name"),
        ("alternate-exchange", number(5), "5 is not a valid alternate exchange name"),
        ("dead-letter-strategy", text("foo"), "<<\"foo\">> is not a valid dead letter strategy"),
        ("dead-letter-exchange", text(&"x".repeat(255)), "ok"),
        ("queue-version", number(3), "3 is not a valid queue-version value"),
        ("delivery-limit", number(-1), "ok"),
        ("queue-mode", text("lazy"), "ok"),
        ("overflow", text("block"), "ok"),
    ] {
        assert_eq!(user(name, value), expected);
    }
    assert_ne!(user("dead-letter-exchange", text(&"x".repeat(256))), "ok", "no exchange has such a name");
    let operator = |name: &str, value: Value| said(PolicyOf::Operator, &[(name, value)]);
    for name in ["alternate-exchange", "dead-letter-exchange", "consumer-timeout"] {
        assert_eq!(
            operator(name, text("a")),
            format!("[{{<<\"{name}\">>,<<\"a\">>}}] are not recognised policy settings")
        );
    }
    assert_eq!(operator("overflow", text("drop-head")), "ok");
    assert_eq!(operator("expires", number(5)), "ok");
}
