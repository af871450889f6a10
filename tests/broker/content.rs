//! What a message carries, and what its publisher hears.

use lepus_tests::wire::{FRAME_BODY, basic_publish, frame, header_frame, method_frame};
use lepus_tests::{Arguments, Broker, Event, Login, Properties, Wire};

/// A field of every type there is.
fn typed_headers() -> Arguments {
    let nested = Arguments::new().nested("deeper", &Arguments::new().int("n", -1));
    Arguments::new()
        .bool("bool", true)
        .field("byte", b"b\x80")
        .field("unsigned byte", b"B\xff")
        .field("short", b"s\xfe\xd4")
        .field("unsigned short", b"u\xfd\xe8")
        .int("int", i32::MIN)
        .field("unsigned int", b"i\xff\xff\xff\xff")
        .field("long", b"l\x80\0\0\0\0\0\0\x01")
        .field("float", b"f\x3d\xcc\xcc\xcd")
        .field("double", b"d\x3f\xb9\x99\x99\x99\x99\x99\x9a")
        .field("decimal", b"D\x02\0\0\x30\x39")
        .text("text", "grün")
        .field("no text", b"S\0\0\0\x03\xff\xfe\0")
        .field("bytes", b"x\0\0\0\x02\0\xff")
        .field("timestamp", b"T\0\0\0\0\x65\x53\xf1\0")
        .field("void", b"V")
        .field("array", b"A\0\0\0\x07I\0\0\0\x01t\x01")
        .field("empty array", b"A\0\0\0\0")
        .nested("table", &nested)
        .nested("empty table", &Arguments::new())
        .text("", "a field without a name")
}

/// Every property there is, in wire form.
fn every_property() -> Properties {
    let mut wire = vec![0xFF, 0xFC];
    let short = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    wire.extend(short("application/json"));
    wire.extend(short("gzip"));
    wire.extend(typed_headers().wire());
    wire.extend([2, 9]);
    for text in ["correlation", "reply", "3600000", "message"] {
        wire.extend(short(text));
    }
    wire.extend(1_700_000_000u64.to_be_bytes());
    for text in ["type", "guest", "app", "cluster"] {
        wire.extend(short(text));
    }
    Properties(wire)
}

fn body_of(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}

#[test]
fn properties_and_typed_headers_come_back_byte_for_byte() {
    let broker = Broker::start();
    if !broker.is_lepus() {
        return; // RabbitMQ 4 decodes headers and sorts them.
    }
    let mut wire = broker.channel();
    wire.open(2);
    let queue = wire.declare_exclusive(1);
    let all = [
        Properties::none(),
        Properties::persistent(),
        Properties::headers(&typed_headers()),
        every_property(),
    ];
    for properties in all {
        wire.publish_as(1, "", &queue, false, &properties, b"body");
        let got = wire.get(1, &queue, false).expect("published before");
        assert_eq!(got.properties, properties, "on get");
        wire.consume(2, &queue, "t", false);
        wire.nack(1, got.tag, false, true);
        let got = wire.delivery();
        assert_eq!(got.properties, properties, "on deliver");
        wire.ack(2, got.tag, false);
        wire.cancel(2, "t");
    }
}

#[test]
fn a_return_carries_properties_and_body_unchanged() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let headers = Arguments::new().int("sequence", 42);
    for body in [body_of(0), body_of(1), body_of(131_072), body_of(400_000)] {
        wire.publish_as(1, "amq.topic", "a.b", true, &Properties::headers(&headers), &body);
        match wire.event() {
            Event::Return(back) => {
                assert_eq!(back.reply, Some((312, "NO_ROUTE".to_owned())));
                assert_eq!((back.exchange.as_str(), back.routing_key.as_str()), ("amq.topic", "a.b"));
                assert_eq!(back.properties, Properties::headers(&headers));
                assert_eq!(back.body, body);
            }
            other => panic!("waited for a return, got {other:?}"),
        }
    }
}

#[test]
fn the_return_comes_before_the_confirm() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    wire.select_confirms(1);
    for sequence in 1..=100 {
        wire.publish_as(1, "", "nobody", true, &Properties::none(), b"m");
        assert!(matches!(wire.event(), Event::Return(_)), "publish {sequence}");
        assert_eq!(wire.event(), Event::Ack(1, sequence, false));
    }
    // In a burst, too, no confirm covers a message whose return has not come.
    let mut burst = Vec::new();
    for _ in 0..500 {
        burst.extend(lepus_tests::wire::publish_frames(
            4096,
            1,
            "",
            "nobody",
            true,
            &Properties::none(),
            b"m",
        ));
    }
    wire.send(&burst);
    let (mut returned, mut confirmed) = (100, 100);
    while confirmed < 600 {
        match wire.event() {
            Event::Return(_) => returned += 1,
            Event::Ack(1, tag, _) => {
                confirmed = confirmed.max(tag);
                assert!(confirmed <= returned, "{confirmed} confirmed, {returned} returned");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(returned, 600);
}

#[test]
fn confirms_cover_every_message_once_and_in_order() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queues: Vec<String> = (0..4).map(|_| wire.declare_exclusive(1)).collect();
    wire.select_confirms(1);
    let mut burst = Vec::new();
    for number in 0..4000usize {
        let key = if number % 5 == 4 { "nobody" } else { &queues[number % 5] };
        burst.extend(lepus_tests::wire::publish_frames(4096, 1, "", key, false, &Properties::none(), b"m"));
    }
    wire.send(&burst);
    let mut confirmed = vec![false; 4001];
    confirmed[0] = true;
    while confirmed.iter().any(|done| !done) {
        match wire.event() {
            Event::Ack(1, tag, multiple) => {
                let tag = usize::try_from(tag).expect("tags are small here");
                assert!(!confirmed[tag], "{tag} was confirmed twice");
                let from =
                    if multiple { confirmed.iter().position(|done| !done).expect("tag is not") } else { tag };
                confirmed[from..=tag].fill(true);
            }
            other => panic!("{other:?}"),
        }
    }
    wire.round_trip(1);
    assert_eq!(queues.iter().map(|queue| wire.look(1, queue).0).sum::<u32>(), 3200);
}

#[test]
fn confirm_select_twice_counts_on() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    wire.select_confirms(1);
    wire.publish(1, "", "nobody", b"m");
    assert_eq!(wire.event(), Event::Ack(1, 1, false));
    wire.select_confirms(1);
    wire.publish(1, "", "nobody", b"m");
    assert_eq!(wire.event(), Event::Ack(1, 2, false));
}

#[test]
fn bodies_of_all_sizes_around_the_frame_come_back() {
    let broker = Broker::start();
    for frame_max in [8192usize, 131_072] {
        let login = Login { frame_max: frame_max as u32, ..Login::default() };
        let mut wire = Wire::log_in(broker.address, &login).expect("the size is allowed");
        wire.open(1);
        wire.open(2);
        let queue = wire.declare_exclusive(1);
        wire.consume(2, &queue, "t", true);
        let part = frame_max - 8;
        for size in
            [0, 1, 2, part - 1, part, part + 1, 2 * part - 1, 2 * part, 2 * part + 1, 5 * part, 1 << 20]
        {
            wire.publish(1, "", &queue, &body_of(size));
            assert!(wire.delivery().body == body_of(size), "{size} bytes by deliver");
        }
        wire.cancel(2, "t");
        for size in [0, 1, part - 1, part, part + 1, 1 << 20] {
            wire.publish(1, "", &queue, &body_of(size));
            assert!(
                wire.get(1, &queue, true).expect("published before").body == body_of(size),
                "{size} bytes by get"
            );
        }
    }
}

#[test]
fn a_body_may_come_in_any_frames() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = wire.declare_exclusive(1);
    let body = body_of(1000);
    for splits in [vec![1000], vec![1; 1000], vec![999, 1], vec![1, 999], vec![333, 333, 334]] {
        let mut bytes = method_frame(1, &basic_publish("", &queue, false));
        bytes.extend(header_frame(1, 1000, &Properties::none()));
        let mut at = 0;
        for length in splits {
            bytes.extend(frame(FRAME_BODY, 1, &body[at..at + length]));
            at += length;
        }
        wire.send(&bytes);
        assert_eq!(wire.get(1, &queue, true).expect("published before").body, body);
    }
}

#[test]
fn contents_of_two_channels_may_interleave() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    wire.open(2);
    let queue = wire.declare_exclusive(1);
    let mut bytes = Vec::new();
    for channel in [1, 2] {
        bytes.extend(method_frame(channel, &basic_publish("", &queue, false)));
    }
    for channel in [2, 1] {
        bytes.extend(header_frame(channel, 6, &Properties::none()));
    }
    for (channel, part) in [(1, b"one"), (2, b"two"), (2, b"TWO"), (1, b"ONE")] {
        bytes.extend(frame(FRAME_BODY, channel, part));
    }
    wire.send(&bytes);
    wire.round_trip(2);
    let mut bodies: Vec<Vec<u8>> = wire.drain(1, &queue).into_iter().map(|delivery| delivery.body).collect();
    bodies.sort();
    assert_eq!(bodies, [b"oneONE", b"twoTWO"]);
}

#[test]
fn a_large_body_crosses_from_one_connection_to_all() {
    let broker = Broker::start();
    let mut publisher = broker.channel();
    let exchange = broker.name("large");
    publisher.declare_exchange(1, &exchange, "fanout");
    let mut readers: Vec<Wire> = (0..4).map(|_| broker.channel()).collect();
    for reader in &mut readers {
        let queue = reader.declare_exclusive(1);
        reader.bind(1, &queue, &exchange, "", &Arguments::new());
        reader.consume(1, &queue, "t", false);
    }
    let body = body_of(5 << 20);
    publisher.publish(1, &exchange, "", &body);
    for reader in &mut readers {
        assert!(reader.delivery().body == body, "the body came through");
    }
}

#[test]
fn a_publish_cut_off_by_the_end_of_its_connection_does_not_happen() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = broker.name("cut");
    wire.declare(1, &queue);
    let mut victim = broker.channel();
    let exclusive = victim.declare_exclusive(1);
    let whole =
        lepus_tests::wire::publish_frames(131_072, 1, "", &queue, false, &Properties::none(), &body_of(1000));
    victim.send(&whole);
    victim.send(&whole[..whole.len() - 10]);
    victim.vanish();
    // Its exclusive queue goes when the broker has seen the end: until then a mandatory publish finds it.
    loop {
        wire.publish_as(1, "", &exclusive, true, &Properties::none(), b"");
        wire.round_trip(1);
        if wire.returned() {
            break;
        }
    }
    assert_eq!(wire.drain(1, &queue).len(), 1);
}
