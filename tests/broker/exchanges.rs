//! Exchange types beyond the four of the specification, and routing keys that the sender adds.

use lepus_tests::wire::{exchange_declare, queue_bind};
use lepus_tests::{Arguments, Broker, Close, Delivery, Event, Properties, Wire};

/// Declares a durable exchange of this type under a name of its own.
fn exchange(broker: &Broker, wire: &mut Wire, kind: &str, arguments: &Arguments) -> String {
    let name = broker.name("x");
    wire.call(1, exchange_declare(&name, kind, [false, true, false, false, false], arguments));
    name
}

fn keys(keys: &[&str]) -> Vec<u8> {
    let mut inside = Vec::new();
    for key in keys {
        inside.push(b'S');
        inside.extend((key.len() as u32).to_be_bytes());
        inside.extend(key.as_bytes());
    }
    [b"A", &(inside.len() as u32).to_be_bytes()[..], &inside].concat()
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned()).collect()
}

#[test]
fn a_hash_sends_each_message_to_one_queue_and_a_key_always_to_the_same() {
    let broker = Broker::start();
    for kind in ["x-consistent-hash", "x-modulus-hash"] {
        let mut wires: Vec<Wire> = (0..2).map(|_| broker.channel()).collect();
        let exchange = exchange(&broker, &mut wires[0], kind, &Arguments::new());
        let queues: Vec<String> = (0..3).map(|_| broker.name("q")).collect();
        for queue in &queues {
            wires[0].declare(1, queue);
            wires[0].bind(1, queue, &exchange, "1", &Arguments::new());
        }
        for wire in &mut wires {
            wire.select_confirms(1);
            for key in 0..60 {
                wire.publish(1, &exchange, &format!("key.{key}"), key.to_string().as_bytes());
            }
            wire.confirmed(60);
        }
        let mut total = 0;
        for queue in &queues {
            let mut found = bodies(&wires[0].drain(1, queue));
            total += found.len();
            // Chance has its part in it: names are random. Less than this is 4 standard deviations away.
            assert!(found.len() > 8, "{kind}: a share of about 40, not {}", found.len());
            found.sort();
            assert!(found.chunks(2).all(|pair| pair[0] == pair[1]), "{kind}: both publishers agree");
        }
        assert_eq!(total, 120);
    }
}

#[test]
fn hashes_of_headers_and_properties_do_not_look_at_the_routing_key() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let header = Arguments::new().text("hash-header", "h");
    let property = Arguments::new().text("hash-property", "message_id");
    for arguments in [header, property] {
        let exchange = exchange(&broker, &mut wire, "x-consistent-hash", &arguments);
        let queues: Vec<String> = (0..4).map(|_| wire.declare_exclusive(1)).collect();
        for queue in &queues {
            wire.bind(1, queue, &exchange, "1", &Arguments::new());
        }
        for value in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            // Flags of headers and message-id, and both: each exchange looks at its own.
            let mut properties = vec![0b0010_0000, 0b1000_0000];
            properties.extend(Arguments::new().text("h", value).wire());
            properties.push(1);
            properties.extend(value.as_bytes());
            for key in 0..4 {
                let properties = Properties(properties.clone());
                wire.publish_as(1, &exchange, &key.to_string(), false, &properties, value.as_bytes());
            }
        }
        wire.round_trip(1);
        let found: Vec<Vec<String>> = queues.iter().map(|queue| bodies(&wire.drain(1, queue))).collect();
        assert!(found.iter().filter(|queue| !queue.is_empty()).count() > 1, "values are spread: {found:?}");
        for value in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            let counts = found.iter().map(|queue| queue.iter().filter(|body| *body == value).count());
            assert_eq!(counts.filter(|count| *count > 0).collect::<Vec<_>>(), [4], "{value} stays together");
        }
    }
}

#[test]
fn a_lot_is_drawn_for_each_message() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    for kind in ["x-random", "x-local-random"] {
        let exchange = exchange(&broker, &mut wire, kind, &Arguments::new());
        let queues: Vec<String> = (0..2).map(|_| wire.declare_exclusive(1)).collect();
        for queue in &queues {
            wire.bind(1, queue, &exchange, "", &Arguments::new());
        }
        for _ in 0..200 {
            wire.publish(1, &exchange, "same", b"m");
        }
        wire.round_trip(1);
        let counts: Vec<usize> = queues.iter().map(|queue| wire.drain(1, queue).len()).collect();
        assert_eq!(counts.iter().sum::<usize>(), 200, "{kind}");
        assert!(counts.iter().all(|count| *count > 40), "{kind}: {counts:?}");
    }
}

#[test]
fn a_binding_to_a_history_brings_the_last_messages() {
    let broker = Broker::start();
    let mut wires: Vec<Wire> = (0..2).map(|_| broker.channel()).collect();
    let length = Arguments::new().int("x-recent-history-length", 3);
    let exchange = exchange(&broker, &mut wires[0], "x-recent-history", &length);
    // One after another they are put on one shard and the other: one of the two keeps the history, too, and
    // remembers a message before a queue of its own gets it.
    let probes = [broker.name("probe"), broker.name("probe")];
    for probe in &probes {
        wires[0].declare(1, probe);
        wires[0].bind(1, probe, &exchange, "any", &Arguments::new());
    }
    for (number, wire) in (0..4).flat_map(|_| 0..2).enumerate() {
        let wire = &mut wires[wire];
        let body = number.to_string();
        wire.publish_as(1, &exchange, &body, false, &Properties::persistent(), body.as_bytes());
        // Messages of different publishers come in any order, unless one waits for the other.
        for probe in &probes {
            while wire.get(1, probe, true).is_none() {}
        }
    }
    let no_store = Properties::headers(&Arguments::new().bool("x-recent-history-no-store", true));
    wires[0].publish_as(1, &exchange, "", false, &no_store, b"not to be kept");
    wires[0].round_trip(1);
    for wire in &mut wires {
        let queue = broker.name("q");
        wire.declare(1, &queue);
        wire.bind(1, &queue, &exchange, "any", &Arguments::new());
        // The history is on its way when the binding is answered.
        wire.consume(1, &queue, "t", true);
        let found = wire.deliveries(3);
        assert_eq!(bodies(&found), ["5", "6", "7"]);
        for delivery in found {
            let body = String::from_utf8_lossy(&delivery.body).into_owned();
            assert_eq!((delivery.exchange, delivery.routing_key), (exchange.clone(), body));
            assert_eq!(delivery.properties, Properties::persistent());
        }
    }
}

#[test]
fn a_mandatory_message_that_only_a_history_takes_is_returned() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let exchange = exchange(&broker, &mut wire, "x-recent-history", &Arguments::new());
    wire.select_confirms(1);
    wire.publish_as(1, &exchange, "", true, &Properties::none(), b"m");
    assert!(matches!(wire.event(), Event::Return(_)));
    assert!(matches!(wire.event(), Event::Ack(1, 1, false)));
}

#[test]
fn copies_go_where_their_keys_lead_and_blind_ones_are_not_told() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queues: Vec<String> = (0..3).map(|_| wire.declare_exclusive(1)).collect();
    let headers = |blind: Option<&str>| {
        let headers = Arguments::new().field("CC", &keys(&[&queues[1], &queues[0]]));
        let headers = match blind {
            Some(key) => headers.field("BCC", &keys(&[key])),
            None => headers,
        };
        Properties::headers(&headers.int("n", 7))
    };
    wire.publish_as(1, "", &queues[0], true, &headers(Some(&queues[2])), b"m");
    wire.round_trip(1);
    for queue in &queues {
        let got = wire.drain(1, queue);
        assert_eq!(bodies(&got), ["m"], "once in each");
        assert_eq!(got[0].routing_key, queues[0]);
        assert_eq!(got[0].properties, headers(None), "without the blind copies");
    }
    // The key in the method leads nowhere, one of the others does.
    let blind = Arguments::new().field("BCC", &keys(&[&queues[1]]));
    wire.select_confirms(1);
    wire.publish_as(1, "", "nowhere", true, &Properties::headers(&blind), b"n");
    assert!(matches!(wire.event(), Event::Ack(..)), "routed, so not returned");
    let got = wire.get(1, &queues[1], true).expect("a blind copy");
    assert_eq!(got.properties, Properties::headers(&Arguments::new()), "an empty table stays");
}

#[test]
fn copies_go_through_every_exchange_that_reads_keys() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let copies = Properties::headers(&Arguments::new().field("CC", &keys(&["b.x", "c.d.e"])));
    for (kind, patterns, expected) in [
        ("direct", ["a", "b.x", "c"], [1, 1, 0]),
        ("topic", ["a", "*.x", "c.#"], [1, 1, 1]),
        ("fanout", ["", "", ""], [1, 1, 1]),
    ] {
        let exchange = exchange(&broker, &mut wire, kind, &Arguments::new());
        let queues = patterns.map(|pattern| {
            let queue = wire.declare_exclusive(1);
            wire.call(1, queue_bind(&queue, &exchange, pattern, &Arguments::new()));
            queue
        });
        wire.publish_as(1, &exchange, "a", false, &copies, b"m");
        // The same key without copies must not go the same way.
        wire.publish_as(1, &exchange, "nowhere", false, &Properties::none(), b"n");
        wire.publish_as(1, &exchange, "nowhere", false, &copies, b"o");
        wire.round_trip(1);
        let counts =
            queues.map(|queue| bodies(&wire.drain(1, &queue)).iter().filter(|body| *body == "m").count());
        assert_eq!(counts, expected, "{kind}");
    }
}

#[test]
fn a_returned_message_does_not_show_its_blind_copies() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let shown = Arguments::new().field("CC", &keys(&["nobody"]));
    let all = Arguments::new().field("CC", &keys(&["nobody"])).field("BCC", &keys(&["nowhere"]));
    wire.publish_as(1, "", "none", true, &Properties::headers(&all), b"m");
    match wire.event() {
        Event::Return(returned) => assert_eq!(returned.properties, Properties::headers(&shown)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn copies_that_are_no_array_are_406() {
    let broker = Broker::start();
    for (name, value, kind) in [
        ("CC", &b"S\0\0\0\x01q"[..], "longstr"),
        ("BCC", b"I\0\0\0\x05", "signedint"),
        ("CC", b"V", "void"),
        ("BCC", b"F\0\0\0\0", "table"),
    ] {
        let mut wire = broker.channel();
        wire.open(2);
        let headers = Properties::headers(&Arguments::new().field(name, value));
        wire.publish_as(1, "", "q", false, &headers, b"m");
        let text = format!(
            "PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,\"{name}\",{kind}}}"
        );
        assert_eq!(wire.closed(), Close { channel: 1, code: 406, text, ids: (60, 40) });
        wire.round_trip(2);
    }
}

#[test]
fn exchanges_of_every_type_and_their_bindings_survive_a_restart() {
    let Some(broker) = Broker::own(lepus_tests::Setup::new()) else { return };
    let mut wire = broker.channel();
    let queue = broker.name("q");
    wire.declare(1, &queue);
    let kinds = ["x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random", "x-recent-history"];
    let exchanges = kinds.map(|kind| {
        let exchange = exchange(&broker, &mut wire, kind, &Arguments::new());
        let key = if kind == "x-consistent-hash" { "2" } else { "" };
        wire.bind(1, &queue, &exchange, key, &Arguments::new());
        exchange
    });
    let data = broker.kill();
    let broker = lepus_tests::Setup::new().start_in(data);
    let mut wire = broker.channel();
    for exchange in &exchanges {
        wire.publish(1, exchange, "key", exchange.as_bytes());
    }
    wire.round_trip(1);
    assert_eq!(bodies(&wire.drain(1, &queue)), exchanges);
}

#[test]
fn a_dead_letter_goes_to_its_copies_too_unless_the_queue_gives_the_key() {
    let broker = Broker::start();
    for key in [None, Some("given")] {
        let mut wire = broker.channel();
        let exchange = exchange(&broker, &mut wire, "direct", &Arguments::new());
        let mut arguments = Arguments::new().text("x-dead-letter-exchange", &exchange);
        if let Some(key) = key {
            arguments = arguments.text("x-dead-letter-routing-key", key);
        }
        let source = broker.name("q");
        wire.declare_as(1, &source, [false, true, false, false, false], &arguments);
        let [copied, given] = ["copy", "given"].map(|key| {
            let queue = wire.declare_exclusive(1);
            wire.bind(1, &queue, &exchange, key, &Arguments::new());
            queue
        });
        let headers = Properties::headers(&Arguments::new().field("CC", &keys(&["copy"])));
        wire.publish_as(1, "", &source, false, &headers, b"m");
        wire.round_trip(1);
        let got = wire.get(1, &source, false).expect("a message");
        wire.reject(1, got.tag, false);
        let (to, other) = if key.is_some() { (&given, &copied) } else { (&copied, &given) };
        wire.consume(1, to, "t", true);
        let death = wire.delivery().properties.0;
        let listed = [&b"\x0crouting-keys"[..], &keys(&[&source, "copy"])].concat();
        assert!(death.windows(listed.len()).any(|part| part == listed), "the history lists the copies");
        assert_eq!(wire.look(1, other).0, 0);
    }
}
