//! The topology: what is declared is there, everywhere, before the answer goes out.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use lepus_tests::limits::{PATIENCE, declare_tries};
use lepus_tests::wire::{exchange_declare, queue_declare};
use lepus_tests::{Arguments, Broker, Event, Method, Properties, Wire};

#[test]
fn a_declare_that_was_answered_is_seen_by_every_publisher() {
    const PUBLISHERS: usize = 4;
    let broker = Broker::start();
    let tries = declare_tries();
    // Connections are handed to shards in turn: four publishers are on all of them.
    let mut publishers: Vec<Wire> = (0..PUBLISHERS).map(|_| broker.channel()).collect();
    let mut declarers: Vec<Wire> = (0..2).map(|_| broker.channel()).collect();
    for publisher in &mut publishers {
        publisher.select_confirms(1);
    }
    for attempt in 0..tries {
        let declarer = &mut declarers[attempt % 2];
        let queue = declarer.declare_exclusive(1);
        let chosen = fastrand::usize(..PUBLISHERS);
        let publisher = &mut publishers[chosen];
        publisher.publish_as(1, "", &queue, true, &Properties::none(), b"m");
        match publisher.event() {
            Event::Ack(..) => {}
            other => panic!("try {attempt}: publisher {chosen} did not find {queue}: {other:?}"),
        }
        assert_eq!(declarer.delete_queue(1, &queue), 1, "try {attempt}");
    }
}

#[test]
fn a_binding_that_was_answered_is_seen_by_every_publisher() {
    let broker = Broker::start();
    let exchange = broker.name("x");
    let mut declarer = broker.channel();
    declarer.declare_exchange(1, &exchange, "topic");
    let queue = declarer.declare_exclusive(1);
    let mut publishers: Vec<Wire> = (0..4).map(|_| broker.channel()).collect();
    for publisher in &mut publishers {
        publisher.select_confirms(1);
    }
    for attempt in 0..500 {
        let key = format!("key.{attempt}");
        let publisher = &mut publishers[fastrand::usize(..4)];
        declarer.bind(1, &queue, &exchange, &key, &Arguments::new());
        publisher.publish_as(1, &exchange, &key, true, &Properties::none(), b"m");
        assert!(matches!(publisher.event(), Event::Ack(..)), "try {attempt}: bound but returned");
        let unbind = Method::new(50, 50).short(0).shortstr(&queue).shortstr(&exchange).shortstr(&key);
        declarer.call(1, unbind.table(&Arguments::new()));
        publisher.publish_as(1, &exchange, &key, true, &Properties::none(), b"m");
        assert!(matches!(publisher.event(), Event::Return(_)), "try {attempt}: unbound but routed");
        assert!(matches!(publisher.event(), Event::Ack(..)));
    }
    assert_eq!(declarer.look(1, &queue).0, 500);
}

#[test]
fn a_deleted_queue_is_gone_for_every_publisher() {
    let broker = Broker::start();
    let mut declarer = broker.channel();
    let mut publishers: Vec<Wire> = (0..4).map(|_| broker.channel()).collect();
    for _ in 0..200 {
        let queue = declarer.declare_exclusive(1);
        declarer.delete_queue(1, &queue);
        let publisher = &mut publishers[fastrand::usize(..4)];
        publisher.publish_as(1, "", &queue, true, &Properties::none(), b"m");
        assert!(matches!(publisher.event(), Event::Return(_)));
    }
}

#[test]
fn one_name_declared_by_many_at_once_is_one_queue() {
    let broker = Broker::start();
    for _ in 0..20 {
        let queue = broker.name("race");
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..6 {
                let (broker, queue, sender) = (&broker, &queue, sender.clone());
                scope.spawn(move || {
                    let mut wire = broker.channel();
                    wire.declare(1, queue);
                    wire.select_confirms(1);
                    wire.publish(1, "", queue, b"m");
                    wire.confirmed(1);
                    sender.send(()).expect("the test waits");
                    wire.close();
                });
            }
        });
        assert_eq!(receiver.try_iter().count(), 6);
        assert_eq!(broker.channel().look(1, &queue), (6, 0));
    }
}

#[test]
fn exclusive_queues_go_with_their_connection() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let mut owner = broker.channel();
    let names: Vec<String> = (0..20).map(|_| owner.declare_exclusive(1)).collect();
    owner.close();
    for name in &names {
        publish_until_returned(&mut wire, name);
    }
    let mut owner = broker.channel();
    let names: Vec<String> = (0..20).map(|_| owner.declare_exclusive(1)).collect();
    owner.vanish();
    for name in &names {
        publish_until_returned(&mut wire, name);
    }
}

#[test]
fn auto_delete_waits_for_a_first_consumer_and_goes_with_the_last() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    wire.open(2);
    let queue = broker.name("auto");
    let declare = queue_declare(&queue, [false, true, false, true, false], &Arguments::new());
    wire.call(1, declare.clone());
    wire.publish(1, "", &queue, b"m");
    wire.consume(1, &queue, "a", true);
    wire.consume(2, &queue, "b", true);
    wire.cancel(1, "a");
    assert_eq!(wire.look(1, &queue).1, 1);
    wire.close_channel(2);
    publish_until_returned(&mut wire, &queue);
    // A consumer that vanishes is a last one, too.
    wire.call(1, declare);
    let mut victim = broker.channel();
    victim.consume(1, &queue, "c", true);
    victim.vanish();
    publish_until_returned(&mut wire, &queue);
}

/// Waits until no queue of this name takes messages; the harness's patience ends it if one always does.
fn publish_until_returned(wire: &mut Wire, queue: &str) {
    let began = Instant::now();
    loop {
        wire.publish_as(1, "", queue, true, &Properties::none(), b"m");
        wire.round_trip(1);
        if wire.returned() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{queue} is still there");
    }
}

#[test]
fn topic_bindings_match_as_the_words_say() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let exchange = broker.name("topic");
    wire.declare_exchange(1, &exchange, "topic");
    let patterns =
        ["a.b.c", "a.*.c", "a.#", "#.c", "#", "*", "*.*", "a.#.c", "#.#", "", "a..c", "*.b.#", "#.b.#"];
    let queues: Vec<String> = patterns
        .iter()
        .map(|pattern| {
            let queue = wire.declare_exclusive(1);
            wire.bind(1, &queue, &exchange, pattern, &Arguments::new());
            queue
        })
        .collect();
    for key in
        ["a.b.c", "a.c", "a", "", "a.b", "b", "c", "a..c", "x.b.y.z", "a.b.b.c", ".", "a.", ".c", "aa.b.c"]
    {
        wire.publish(1, &exchange, key, b"m");
        wire.round_trip(1);
        for (pattern, queue) in patterns.iter().zip(&queues) {
            let expected = usize::from(matches(pattern, key));
            assert_eq!(wire.drain(1, queue).len(), expected, "pattern {pattern:?}, key {key:?}");
        }
    }
}

/// The rule of the specification, written for clearness: `*` is one word, `#` none or more.
fn matches(pattern: &str, key: &str) -> bool {
    fn words(pattern: &[&str], key: &[&str]) -> bool {
        match pattern.split_first() {
            None => key.is_empty(),
            Some((&"#", rest)) => (0..=key.len()).any(|skip| words(rest, &key[skip..])),
            Some((&word, rest)) => key
                .split_first()
                .is_some_and(|(first, left)| (word == "*" || word == *first) && words(rest, left)),
        }
    }
    fn parts(text: &str) -> Vec<&str> {
        if text.is_empty() { Vec::new() } else { text.split('.').collect() }
    }
    words(&parts(pattern), &parts(key))
}

#[test]
fn headers_bindings_match_any_and_all() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let exchange = broker.name("headers");
    wire.declare_exchange(1, &exchange, "headers");
    let base = || Arguments::new().int("a", 1).text("b", "two");
    let rows = [
        ("default is all", base()),
        ("all", base().text("x-match", "all")),
        ("any", base().text("x-match", "any")),
        ("presence", Arguments::new().field("a", b"V")),
    ];
    let queues: Vec<String> = rows
        .iter()
        .map(|(_, arguments)| {
            let queue = wire.declare_exclusive(1);
            wire.bind(1, &queue, &exchange, "", arguments);
            queue
        })
        .collect();
    let messages = [
        (base(), [1, 1, 1, 1]),
        (base().int("c", 3), [1, 1, 1, 1]),
        (Arguments::new().int("a", 1), [0, 0, 1, 1]),
        (Arguments::new().text("b", "two"), [0, 0, 1, 0]),
        (Arguments::new().int("a", 2), [0, 0, 0, 1]),
        (Arguments::new().text("a", "1"), [0, 0, 0, 1]),
        (Arguments::new(), [0, 0, 0, 0]),
    ];
    for (headers, expected) in messages {
        wire.publish_as(1, &exchange, "", false, &Properties::headers(&headers), b"m");
        wire.round_trip(1);
        for ((name, _), (queue, expected)) in rows.iter().zip(queues.iter().zip(expected)) {
            assert_eq!(wire.drain(1, queue).len(), expected, "{name} with {headers:?}");
        }
    }
}

#[test]
fn chains_and_circles_of_exchanges_deliver_once() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let names: Vec<String> = (0..5).map(|_| broker.name("x")).collect();
    for name in &names {
        wire.declare_exchange(1, name, "fanout");
    }
    let queue = wire.declare_exclusive(1);
    for (at, name) in names.iter().enumerate() {
        let next = &names[(at + 1) % names.len()];
        let bind = Method::new(40, 30).short(0).shortstr(next).shortstr(name).shortstr("").bits(&[false]);
        wire.call(1, bind.table(&Arguments::new()));
        wire.bind(1, &queue, name, "", &Arguments::new());
    }
    for name in &names {
        wire.publish_as(1, name, "", true, &Properties::none(), b"m");
        wire.round_trip(1);
        assert_eq!(wire.drain(1, &queue).len(), 1);
    }
}

#[test]
fn an_alternate_exchange_is_tried_and_then_the_next() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let (first, second, last) = (broker.name("x"), broker.name("x"), broker.name("x"));
    let with = |name: &str, kind: &str, alternate: &str| {
        let arguments = Arguments::new().text("alternate-exchange", alternate);
        exchange_declare(name, kind, [false, true, false, false, false], &arguments)
    };
    wire.declare_exchange(1, &last, "fanout");
    wire.call(1, with(&second, "direct", &last));
    wire.call(1, with(&first, "direct", &second));
    let (near, far) = (wire.declare_exclusive(1), wire.declare_exclusive(1));
    wire.bind(1, &near, &second, "near", &Arguments::new());
    wire.bind(1, &far, &last, "", &Arguments::new());
    for (key, expected) in [("near", (1, 0)), ("far", (0, 1))] {
        wire.publish_as(1, &first, key, true, &Properties::none(), b"m");
        wire.round_trip(1);
        assert_eq!((wire.drain(1, &near).len(), wire.drain(1, &far).len()), expected, "{key}");
        assert!(!wire.returned());
    }
}

#[test]
fn a_deleted_queue_cancels_its_consumers() {
    let broker = Broker::start();
    let mut consumer = broker.channel();
    let mut other = broker.channel();
    let queue = broker.name("gone");
    other.declare(1, &queue);
    consumer.consume(1, &queue, "mine", false);
    other.delete_queue(1, &queue);
    let mut cancel = consumer.expect(1, (60, 30));
    assert_eq!(cancel.shortstr(), "mine");
    consumer.round_trip(1);
}
