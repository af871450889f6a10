//! From the first byte to open-ok: what is offered and what is accepted. How the broker says no is in `errors/`.

use std::time::Instant;

use lepus_tests::limits::PATIENCE;
use lepus_tests::wire::{PROTOCOL_HEADER, method_frame};
use lepus_tests::{Broker, Event, Login, Method, Setup, Wire};

#[test]
fn the_offer_is_that_of_the_specification() {
    let broker = Broker::start();
    let wire = broker.connect();
    assert_eq!(wire.offered, (2047, 131_072, 60));
    let properties = String::from_utf8_lossy(&wire.server_properties).into_owned();
    for name in ["product", "version", "platform", "copyright", "information", "cluster_name", "capabilities"]
    {
        assert!(properties.contains(name), "{name} is not in {properties:?}");
    }
}

#[test]
fn plain_and_amqplain_let_in() {
    let broker = Broker::start();
    let table = [&b"\x05LOGINS\x00\x00\x00\x05guest"[..], b"\x08PASSWORDS\x00\x00\x00\x05guest"].concat();
    let amqplain = Login { mechanism: "AMQPLAIN".to_owned(), response: table, ..Login::default() };
    for login in [Login::default(), amqplain] {
        let mut wire = Wire::log_in(broker.address, &login).expect("the credentials are right");
        wire.open(1);
        wire.close();
    }
}

#[test]
fn a_clean_close_is_answered_and_the_socket_closed() {
    let broker = Broker::start();
    broker.connect().close();
    let mut wire = broker.channel();
    wire.close_channel(1);
    wire.open(1);
    wire.close();
}

#[test]
fn the_whole_handshake_may_come_in_one_piece() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = broker.name("pipelined");
    wire.declare(1, &queue);

    let mut bytes = PROTOCOL_HEADER.to_vec();
    let mut properties = Method::new(10, 11);
    properties = properties.longstr(b"").shortstr("PLAIN").longstr(b"\0guest\0guest").shortstr("en_US");
    let methods = [
        (0, properties),
        (0, Method::new(10, 31).short(2047).long(131_072).short(0)),
        (0, Method::new(10, 40).shortstr("/").shortstr("").bits(&[false])),
        (1, Method::new(20, 10).shortstr("")),
        (2, Method::new(20, 10).shortstr("")),
    ];
    for (channel, method) in &methods {
        bytes.extend(method_frame(*channel, method));
    }
    let publish = |body: &[u8]| {
        lepus_tests::wire::publish_frames(4096, 1, "", &queue, false, &lepus_tests::Properties::none(), body)
    };
    bytes.extend(publish(b"one"));
    bytes.extend(publish(b"two"));
    bytes.extend(method_frame(0, &Method::new(10, 50).short(200).shortstr("OK").short(0).short(0)));
    let mut pipelined = Wire::raw(broker.address);
    pipelined.send(&bytes);
    let mut answers = Vec::new();
    while answers.last() != Some(&(10, 51)) {
        match pipelined.event() {
            Event::Method(_, ids, _) => answers.push(ids),
            other => panic!("after {answers:?} came {other:?}"),
        }
    }
    assert_eq!(answers, [(10, 10), (10, 30), (10, 41), (20, 11), (20, 11), (10, 51)]);
    // No confirm was asked for: the close may be answered before the messages are in their queue.
    let mut bodies = Vec::new();
    let began = Instant::now();
    while bodies.len() < 2 && began.elapsed() < PATIENCE {
        bodies.extend(wire.drain(1, &queue).into_iter().map(|delivery| delivery.body));
    }
    assert_eq!(bodies, [b"one", b"two"]);
}

#[test]
fn every_byte_may_come_alone() {
    let broker = Broker::start();
    let mut wire = broker.connect();
    let queue = broker.name("bytewise");
    let mut bytes = method_frame(1, &Method::new(20, 10).shortstr(""));
    let flags = [false, true, false, false, false];
    bytes.extend(method_frame(
        1,
        &lepus_tests::wire::queue_declare(&queue, flags, &lepus_tests::Arguments::new()),
    ));
    let properties = lepus_tests::Properties::headers(&lepus_tests::Arguments::new().text("k", "v"));
    bytes.extend(lepus_tests::wire::publish_frames(64, 1, "", &queue, true, &properties, &[b'x'; 150]));
    bytes.extend(method_frame(1, &Method::new(60, 70).short(0).shortstr(&queue).bits(&[true])));
    for byte in bytes {
        wire.send(&[byte]);
    }
    wire.expect(1, (20, 11));
    wire.expect(1, (50, 11));
    match wire.event() {
        Event::GetOk(got) => assert_eq!((got.body, got.properties), (vec![b'x'; 150], properties)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lower_offers_of_the_client_win() {
    let broker = Broker::start();
    let login = Login { channel_max: 2, frame_max: 8192, ..Login::default() };
    let mut wire = Wire::log_in(broker.address, &login).expect("lower values are fine");
    wire.open(1);
    wire.open(2);
    let queue = wire.declare_exclusive(1);
    let body = vec![7; 20_000];
    wire.publish(1, "", &queue, &body);
    // The harness checks that no frame is longer than what was agreed.
    assert_eq!(wire.get(1, &queue, true).expect("it was published").body, body);
}

#[test]
fn a_half_open_handshake_is_cut() {
    let Some(mut broker) = Broker::own(Setup::new().set("amqp.handshake_timeout_ms=300")) else { return };
    let mut silent = Wire::raw(broker.address);
    let mut partial = Wire::raw(broker.address);
    partial.send(&PROTOCOL_HEADER[..5]);
    let mut started = Wire::raw(broker.address);
    started.send(PROTOCOL_HEADER);
    let mut tuned = Wire::raw(broker.address);
    tuned.begin(&Login::default()).expect("the credentials are right");
    for wire in [&mut silent, &mut partial, &mut started, &mut tuned] {
        // Panics after the harness's patience if the broker never lets go.
        wire.bytes_until_end();
    }
    broker.assert_healthy();
}

#[test]
fn heartbeats_come_and_their_absence_is_noticed() {
    let broker = Broker::start();
    let login = Login { heartbeat: 1, ..Login::default() };
    let mut wire = Wire::log_in(broker.address, &login).expect("heartbeats are fine");
    wire.wait_for(|event| *event == Event::Heartbeat);
    // We send none: the broker takes us for dead, after some heartbeats of its own.
    let began = Instant::now();
    wire.until_end();
    assert!(began.elapsed() < PATIENCE, "a dead client was kept for {:?}", began.elapsed());
}

#[test]
fn a_client_that_sends_heartbeats_is_kept() {
    let broker = Broker::start();
    let login = Login { heartbeat: 1, ..Login::default() };
    let mut wire = Wire::log_in(broker.address, &login).expect("heartbeats are fine");
    for _ in 0..8 {
        wire.wait_for(|event| *event == Event::Heartbeat);
        wire.send_frame(8, 0, b"");
    }
    wire.open(1);
    wire.close();
}
