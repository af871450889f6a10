//! What is refused: with which code, ids and text, and what stays open.

use lepus_tests::wire::{
    FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, basic_consume, basic_publish, exchange_declare,
    frame, header_frame, method_frame, queue_bind, queue_declare,
};
use lepus_tests::{Arguments, Broker, Close, Event, Login, Method, Properties, Wire};

/// One broker, and a connection with channels 1 and 2 for each case.
struct Bench {
    broker: Broker,
}

impl Bench {
    fn new() -> Bench {
        Bench { broker: Broker::start() }
    }

    fn wire(&self) -> Wire {
        let mut wire = self.broker.channel();
        wire.open(2);
        wire
    }

    /// The methods, one after another on channel 1, end with the channel closed like this; the connection
    /// and its other channel live on, and so does the channel's number.
    fn channel_error(&self, methods: &[Method], code: u16, text: &str, ids: (u16, u16)) {
        let mut wire = self.wire();
        self.channel_error_on(&mut wire, methods, code, text, ids);
    }

    fn channel_error_on(&self, wire: &mut Wire, methods: &[Method], code: u16, text: &str, ids: (u16, u16)) {
        for method in methods {
            wire.send_method(1, method);
        }
        assert_eq!(wire.closed(), Close { channel: 1, code, text: text.to_owned(), ids });
        wire.round_trip(2);
        // Until close-ok, whatever comes on the channel is ignored.
        wire.send_method(1, &passive_queue("ignored"));
        wire.publish(1, "", "nobody", b"ignored");
        wire.close_ok(1);
        wire.open(1);
        wire.round_trip(1);
        wire.round_trip(2);
    }

    /// The methods end with the connection closed like this, and with the socket after close-ok.
    fn connection_error(&self, methods: &[Method], code: u16, text: &str, ids: (u16, u16)) {
        let mut wire = self.wire();
        for method in methods {
            wire.send_method(1, method);
        }
        assert_eq!(wire.closed(), Close { channel: 0, code, text: text.to_owned(), ids });
        wire.send_method(0, &Method::new(10, 51));
        wire.until_end();
    }

    /// Bytes after which the connection is closed with one of these codes.
    fn bytes_error(&self, bytes: &[u8], codes: &[u16]) {
        let mut wire = self.wire();
        wire.try_send(bytes);
        match wire.wait_for(|event| matches!(event, Event::Close(_) | Event::End)) {
            Event::Close(close) => {
                assert_eq!(close.channel, 0, "{close:?}");
                assert!(codes.contains(&close.code), "{close:?} and not {codes:?}");
            }
            // Code 0 stands for a socket closed without a word.
            _ => assert!(codes.contains(&0), "the socket was closed without a close method"),
        }
    }
}

fn passive_queue(name: &str) -> Method {
    queue_declare(name, [true, false, false, false, false], &Arguments::new())
}

fn durable_queue(name: &str) -> Method {
    queue_declare(name, [false, true, false, false, false], &Arguments::new())
}

fn get(queue: &str) -> Method {
    Method::new(60, 70).short(0).shortstr(queue).bits(&[false])
}

fn purge(queue: &str) -> Method {
    Method::new(50, 30).short(0).shortstr(queue).bits(&[false])
}

fn consume(queue: &str, tag: &str) -> Method {
    basic_consume(queue, tag, false, false, &Arguments::new())
}

fn delete_queue(queue: &str, if_unused: bool, if_empty: bool) -> Method {
    Method::new(50, 40).short(0).shortstr(queue).bits(&[if_unused, if_empty, false])
}

fn exchange(name: &str, kind: &str, flags: [bool; 5]) -> Method {
    exchange_declare(name, kind, flags, &Arguments::new())
}

fn delete_exchange(name: &str, if_unused: bool) -> Method {
    Method::new(40, 20).short(0).shortstr(name).bits(&[if_unused, false])
}

fn bind_exchange(destination: &str, source: &str) -> Method {
    let method = Method::new(40, 30).short(0).shortstr(destination).shortstr(source).shortstr("");
    method.bits(&[false]).table(&Arguments::new())
}

fn unbind_queue(queue: &str, exchange: &str) -> Method {
    Method::new(50, 50).short(0).shortstr(queue).shortstr(exchange).shortstr(queue).table(&Arguments::new())
}

#[test]
fn what_does_not_exist_is_404() {
    let bench = Bench::new();
    let queue = bench.broker.name("exists");
    bench.wire().declare(1, &queue);
    let no_queue = "NOT_FOUND - no queue 'none' in vhost '/'";
    let no_exchange = "NOT_FOUND - no exchange 'none' in vhost '/'";
    let none = Arguments::new();
    bench.channel_error(&[passive_queue("none")], 404, no_queue, (50, 10));
    bench.channel_error(&[get("none")], 404, no_queue, (60, 70));
    bench.channel_error(&[purge("none")], 404, no_queue, (50, 30));
    bench.channel_error(&[consume("none", "")], 404, no_queue, (60, 20));
    bench.channel_error(&[queue_bind("none", "amq.direct", "", &none)], 404, no_queue, (50, 20));
    bench.channel_error(&[queue_bind(&queue, "none", "", &none)], 404, no_exchange, (50, 20));
    bench.channel_error(
        &[exchange("none", "direct", [true, false, false, false, false])],
        404,
        no_exchange,
        (40, 10),
    );
    bench.channel_error(&[bind_exchange("none", "amq.direct")], 404, no_exchange, (40, 30));
    bench.channel_error(&[bind_exchange("amq.direct", "none")], 404, no_exchange, (40, 30));
}

#[test]
fn a_publish_to_no_exchange_closes_the_channel_after_its_content() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    wire.publish(1, "none", "", &[b'x'; 300_000]);
    let text = "NOT_FOUND - no exchange 'none' in vhost '/'".to_owned();
    assert_eq!(wire.closed(), Close { channel: 1, code: 404, text, ids: (60, 40) });
    wire.round_trip(2);
    wire.close_ok(1);
    wire.open(1);
    wire.round_trip(1);
}

#[test]
fn an_empty_queue_name_needs_an_earlier_declare() {
    let bench = Bench::new();
    let text = "NOT_FOUND - no previously declared queue";
    bench.channel_error(&[consume("", "")], 404, text, (60, 20));
    bench.channel_error(&[get("")], 404, text, (60, 70));
    bench.channel_error(&[purge("")], 404, text, (50, 30));
    let mut wire = bench.wire();
    let queue = wire.declare_exclusive(1);
    wire.publish(1, "", &queue, b"m");
    assert_eq!(wire.get(1, "", true).expect("the last declared queue").body, b"m");
}

#[test]
fn another_declaration_is_406() {
    let bench = Bench::new();
    let queue = bench.broker.name("q");
    let mut wire = bench.wire();
    wire.declare(1, &queue);
    let inequivalent = |argument: &str, received: &str, current: &str| {
        format!(
            "PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{queue}' in vhost '/': received '{received}' but current is '{current}'"
        )
    };
    let none = Arguments::new();
    let transient = queue_declare(&queue, [false; 5], &none);
    bench.channel_error(&[transient], 406, &inequivalent("durable", "false", "true"), (50, 10));
    let auto_delete = queue_declare(&queue, [false, true, false, true, false], &none);
    bench.channel_error(&[auto_delete], 406, &inequivalent("auto_delete", "true", "false"), (50, 10));
    // The same again is fine, with classic spelled out or not.
    wire.declare_as(
        1,
        &queue,
        [false, true, false, false, false],
        &Arguments::new().text("x-queue-type", "classic"),
    );
    wire.declare(1, &queue);
}

#[test]
fn another_exchange_declaration_is_406() {
    let bench = Bench::new();
    let name = bench.broker.name("x");
    let mut wire = bench.wire();
    wire.declare_exchange(1, &name, "direct");
    let durable = [false, true, false, false, false];
    let inequivalent = |argument: &str, received: &str, current: &str| {
        format!(
            "PRECONDITION_FAILED - inequivalent arg '{argument}' for exchange '{name}' in vhost '/': received '{received}' but current is '{current}'"
        )
    };
    bench.channel_error(
        &[exchange(&name, "topic", durable)],
        406,
        &inequivalent("type", "topic", "direct"),
        (40, 10),
    );
    bench.channel_error(
        &[exchange(&name, "direct", [false; 5])],
        406,
        &inequivalent("durable", "false", "true"),
        (40, 10),
    );
    let auto_delete = exchange(&name, "direct", [false, true, true, false, false]);
    bench.channel_error(&[auto_delete], 406, &inequivalent("auto_delete", "true", "false"), (40, 10));
    let internal = exchange(&name, "direct", [false, true, false, true, false]);
    bench.channel_error(&[internal], 406, &inequivalent("internal", "true", "false"), (40, 10));
    let other = exchange_declare(&name, "direct", durable, &Arguments::new().text("alternate-exchange", "a"));
    let text = format!(
        "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange '{name}' in vhost '/': received the value 'a' of type 'longstr' but current is none"
    );
    bench.channel_error(&[other], 406, &text, (40, 10));
}

#[test]
fn an_unknown_exchange_type_is_a_channel_error() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    wire.send_method(1, &exchange("none", "foo", [false; 5]));
    let close = wire.closed();
    assert_eq!((close.channel, close.code, close.ids), (1, 406, (40, 10)));
    let texts = ["unknown exchange type 'foo'", "invalid exchange type 'foo'"];
    assert!(texts.iter().any(|text| close.text == format!("PRECONDITION_FAILED - {text}")), "{}", close.text);
    wire.round_trip(2);
}

#[test]
fn reserved_names_are_403() {
    let bench = Bench::new();
    let queue = "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'";
    bench.channel_error(&[durable_queue("amq.x")], 403, queue, (50, 10));
    let name = "ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'";
    bench.channel_error(&[exchange("amq.x", "direct", [false; 5])], 403, name, (40, 10));
    let system = "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed";
    bench.channel_error(&[delete_exchange("amq.topic", false)], 403, system, (40, 20));
}

#[test]
fn the_default_exchange_cannot_be_changed() {
    let bench = Bench::new();
    let queue = bench.broker.name("q");
    bench.wire().declare(1, &queue);
    let text = "ACCESS_REFUSED - operation not permitted on the default exchange";
    bench.channel_error(&[exchange("", "direct", [false, true, false, false, false])], 403, text, (40, 10));
    bench.channel_error(&[delete_exchange("", false)], 403, text, (40, 20));
    bench.channel_error(&[queue_bind(&queue, "", "k", &Arguments::new())], 403, text, (50, 20));
    bench.channel_error(&[unbind_queue(&queue, "")], 403, text, (50, 50));
    bench.channel_error(&[bind_exchange("", "amq.direct")], 403, text, (40, 30));
    bench.channel_error(&[bind_exchange("amq.direct", "")], 403, text, (40, 30));
}

#[test]
fn an_internal_exchange_takes_no_publish() {
    let bench = Bench::new();
    let name = bench.broker.name("internal");
    let mut wire = bench.wire();
    wire.call(1, exchange(&name, "fanout", [false, true, false, true, false]));
    wire.publish(1, &name, "", b"m");
    let text = format!("ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'");
    assert_eq!(wire.closed(), Close { channel: 1, code: 403, text, ids: (60, 40) });
    wire.round_trip(2);
}

#[test]
fn an_exclusive_queue_of_another_connection_is_405() {
    let bench = Bench::new();
    let mut owner = bench.wire();
    let name = bench.broker.name("exclusive");
    owner.declare_as(1, &name, [false, false, true, false, false], &Arguments::new());
    let text = format!(
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration."
    );
    let none = Arguments::new();
    bench.channel_error(&[passive_queue(&name)], 405, &text, (50, 10));
    bench.channel_error(
        &[queue_declare(&name, [false, false, true, false, false], &none)],
        405,
        &text,
        (50, 10),
    );
    bench.channel_error(&[queue_bind(&name, "amq.direct", "", &none)], 405, &text, (50, 20));
    bench.channel_error(&[purge(&name)], 405, &text, (50, 30));
    bench.channel_error(&[delete_queue(&name, false, false)], 405, &text, (50, 40));
    bench.channel_error(&[consume(&name, "")], 405, &text, (60, 20));
    bench.channel_error(&[get(&name)], 405, &text, (60, 70));
    // The owner may, on any channel.
    owner.look(2, &name);
}

#[test]
fn a_second_consumer_beside_an_exclusive_one_is_403() {
    let bench = Bench::new();
    let queue = bench.broker.name("q");
    let mut wire = bench.wire();
    wire.declare(1, &queue);
    wire.call(1, basic_consume(&queue, "alone", false, true, &Arguments::new()));
    let text = format!("ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use");
    bench.channel_error(&[consume(&queue, "")], 403, &text, (60, 20));
    wire.cancel(1, "alone");
    wire.consume(1, &queue, "shared", false);
    bench.channel_error(&[basic_consume(&queue, "", false, true, &Arguments::new())], 403, &text, (60, 20));
}

#[test]
fn a_consumer_tag_used_twice_closes_the_connection() {
    let bench = Bench::new();
    let queue = bench.broker.name("q");
    bench.wire().declare(1, &queue);
    let twice = [consume(&queue, "t"), consume(&queue, "t")];
    bench.connection_error(&twice, 530, "NOT_ALLOWED - attempt to reuse consumer tag 't'", (60, 20));
}

#[test]
fn unknown_and_spent_delivery_tags_are_406() {
    let bench = Bench::new();
    let ack = |tag, multiple| Method::new(60, 80).longlong(tag).bits(&[multiple]);
    let unknown = |tag: u64| format!("PRECONDITION_FAILED - unknown delivery tag {tag}");
    bench.channel_error(&[ack(5, false)], 406, &unknown(5), (60, 80));
    bench.channel_error(&[ack(5, true)], 406, &unknown(5), (60, 80));
    bench.channel_error(&[ack(0, false)], 406, &unknown(0), (60, 80));
    bench.channel_error(&[ack(u64::MAX, false)], 406, &unknown(u64::MAX), (60, 80));
    bench.channel_error(&[Method::new(60, 90).longlong(6).bits(&[true])], 406, &unknown(6), (60, 90));
    bench.channel_error(
        &[Method::new(60, 120).longlong(7).bits(&[false, true])],
        406,
        &unknown(7),
        (60, 120),
    );

    let queue = bench.broker.name("q");
    let mut wire = bench.wire();
    wire.declare(1, &queue);
    for _ in 0..3 {
        wire.publish(1, "", &queue, b"m");
        while wire.get(1, &queue, false).is_none() {}
    }
    bench.channel_error_on(&mut wire, &[ack(2, false), ack(2, false)], 406, &unknown(2), (60, 80));
    // What was unacked on the closed channel is ready again.
    assert_eq!(wire.drain(2, &queue).len(), 2);
}

#[test]
fn deletes_with_conditions_are_refused() {
    let bench = Bench::new();
    let (queue, name) = (bench.broker.name("q"), bench.broker.name("x"));
    let mut wire = bench.wire();
    wire.declare(1, &queue);
    wire.declare_exchange(1, &name, "fanout");
    wire.bind(1, &queue, &name, "", &Arguments::new());
    wire.select_confirms(1);
    wire.publish(1, "", &queue, b"m");
    wire.confirmed(1);
    let not_empty = format!("PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty");
    bench.channel_error(&[delete_queue(&queue, false, true)], 406, &not_empty, (50, 40));
    wire.consume(1, &queue, "t", false);
    let in_use = format!("PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use");
    bench.channel_error(&[delete_queue(&queue, true, false)], 406, &in_use, (50, 40));
    let bound = format!("PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use");
    bench.channel_error(&[delete_exchange(&name, true)], 406, &bound, (40, 20));
}

#[test]
fn what_is_not_implemented_is_540() {
    let bench = Bench::new();
    bench.connection_error(
        &[Method::new(60, 10).long(9).short(1).bits(&[false])],
        540,
        "NOT_IMPLEMENTED - prefetch_size!=0 (9)",
        (60, 10),
    );
    bench.connection_error(
        &[Method::new(20, 20).bits(&[false])],
        540,
        "NOT_IMPLEMENTED - active=false",
        (20, 20),
    );
    bench.connection_error(
        &[Method::new(60, 110).bits(&[false])],
        540,
        "NOT_IMPLEMENTED - requeue=false",
        (60, 110),
    );
    let mut wire = bench.wire();
    let immediate = Method::new(60, 40).short(0).shortstr("").shortstr("q").bits(&[false, true]);
    wire.send_method(1, &immediate);
    wire.send(&header_frame(1, 0, &Properties::none()));
    let text = "NOT_IMPLEMENTED - immediate=true".to_owned();
    assert_eq!(wire.closed(), Close { channel: 0, code: 540, text, ids: (60, 40) });
}

#[test]
fn flow_on_is_answered() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    assert_eq!(wire.call(1, Method::new(20, 20).bits(&[true])).octet() & 1, 1);
}

#[test]
fn channels_are_opened_once_and_before_use() {
    let bench = Bench::new();
    let open = Method::new(20, 10).shortstr("");
    bench.connection_error(&[open], 504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10));
    let mut wire = bench.wire();
    wire.send_method(3, &passive_queue("q"));
    let close = wire.closed();
    assert_eq!((close.channel, close.code), (0, 504), "{close:?}");
    assert_eq!(close.text, "CHANNEL_ERROR - expected 'channel.open'");
}

#[test]
fn more_channels_than_agreed_are_530() {
    let bench = Bench::new();
    let login = Login { channel_max: 3, ..Login::default() };
    let mut wire = Wire::log_in(bench.broker.address, &login).expect("three channels are fine");
    (1..=3).for_each(|channel| wire.open(channel));
    wire.send_method(4, &Method::new(20, 10).shortstr(""));
    let close = wire.closed();
    assert_eq!((close.channel, close.code), (0, 530), "{close:?}");
    let text = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)";
    assert_eq!(close.text, text);
}

#[test]
fn a_channel_number_out_of_range_closes_the_connection() {
    let bench = Bench::new();
    if !bench.broker.is_lepus() {
        return; // RabbitMQ counts channels and lets any number pass.
    }
    for channel in [2048, 40_000, u16::MAX] {
        bench.bytes_error(&method_frame(channel, &Method::new(20, 10).shortstr("")), &[504, 530]);
    }
}

#[test]
fn a_wrong_end_byte_is_501() {
    let bench = Bench::new();
    let mut bytes = method_frame(1, &passive_queue("q"));
    *bytes.last_mut().expect("a frame has an end") = 0xCD;
    bench.bytes_error(&bytes, &[501]);
}

#[test]
fn a_frame_longer_than_agreed_is_501() {
    let bench = Bench::new();
    let mut publish = method_frame(1, &basic_publish("", "q", false));
    publish.extend(header_frame(1, 200_000, &Properties::none()));
    publish.extend(frame(FRAME_BODY, 1, &[0; 131_072 + 1000]));
    bench.bytes_error(&publish, &[501]);
    // A length that nobody could keep is refused before anybody tries.
    bench.bytes_error(&[FRAME_METHOD, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0, 10, 0, 10], &[501]);
}

#[test]
fn the_longest_frame_that_was_agreed_is_taken() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    let queue = wire.declare_exclusive(1);
    wire.publish(1, "", &queue, &vec![1; 131_072 - 8]);
    assert_eq!(wire.get(1, &queue, true).expect("published before").body.len(), 131_072 - 8);
}

#[test]
fn contents_out_of_place_are_505() {
    let bench = Bench::new();
    let header = header_frame(1, 4, &Properties::none());
    let body = frame(FRAME_BODY, 1, b"body");
    let publish = method_frame(1, &basic_publish("", "nobody", false));
    bench.bytes_error(&header, &[505]);
    bench.bytes_error(&body, &[505]);
    bench.bytes_error(&[&publish[..], &body].concat(), &[505]);
    bench.bytes_error(&[&publish[..], &publish].concat(), &[505]);
    bench.bytes_error(&[&publish[..], &header, &header].concat(), &[505]);
    bench.bytes_error(&[&publish[..], &header, &method_frame(1, &passive_queue("q"))].concat(), &[505]);
    bench.bytes_error(&frame(FRAME_HEARTBEAT, 1, b""), &[505]);
}

#[test]
fn more_body_than_announced_is_refused() {
    let bench = Bench::new();
    let mut bytes = method_frame(1, &basic_publish("", "nobody", false));
    bytes.extend(header_frame(1, 4, &Properties::none()));
    bytes.extend(frame(FRAME_BODY, 1, b"five!"));
    // RabbitMQ takes the frame and then finds one too many; either way the connection goes.
    bytes.extend(frame(FRAME_BODY, 1, b"more"));
    bench.bytes_error(&bytes, &[501, 502, 505]);
}

#[test]
fn a_header_of_another_class_is_refused() {
    let bench = Bench::new();
    let mut bytes = method_frame(1, &basic_publish("", "nobody", false));
    let mut header = vec![0, 50, 0, 0];
    header.extend(0u64.to_be_bytes());
    header.extend([0, 0]);
    bytes.extend(frame(FRAME_HEADER, 1, &header));
    bench.bytes_error(&bytes, &[501, 502, 505]);
}

#[test]
fn unknown_frames_and_methods_close_the_connection() {
    let bench = Bench::new();
    bench.bytes_error(&frame(9, 1, b"what"), &[0, 501, 505]);
    bench.bytes_error(&method_frame(1, &Method::new(60, 200)), &[0, 501, 502, 503, 540]);
    bench.bytes_error(&method_frame(1, &Method::new(99, 10)), &[0, 501, 502, 503, 540]);
    // A method that only the broker sends.
    bench.bytes_error(
        &method_frame(1, &Method::new(50, 11).shortstr("q").long(0).long(0)),
        &[0, 503, 540, 541],
    );
}

#[test]
fn cut_off_arguments_are_a_syntax_error() {
    let bench = Bench::new();
    let whole = durable_queue("a-queue-with-a-name").payload().to_vec();
    for length in [4, 5, 6, 7, 12, whole.len() - 3] {
        bench.bytes_error(&frame(FRAME_METHOD, 1, &whole[..length]), &[501, 502]);
    }
    // A table that claims to be longer than its frame.
    let lying = Method::new(50, 10).short(0).shortstr("q").bits(&[false; 5]).long(1000).octet(1);
    bench.bytes_error(&method_frame(1, &lying), &[501, 502]);
    for payload in [&b""[..], b"\0", b"\0\x32\0"] {
        bench.bytes_error(&frame(FRAME_METHOD, 1, payload), &[501, 502]);
    }
}

#[test]
fn deletes_and_unbinds_of_nothing_are_fine() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    assert_eq!(wire.delete_queue(1, "none"), 0);
    wire.call(1, delete_exchange("none", false));
    wire.call(1, delete_exchange("none", true));
    let queue = wire.declare_exclusive(1);
    wire.call(1, unbind_queue(&queue, "amq.direct"));
    wire.call(1, unbind_queue("none", "amq.direct"));
    wire.call(1, unbind_queue(&queue, "none"));
}

#[test]
fn after_a_connection_error_nothing_but_close_ok_counts() {
    let bench = Bench::new();
    let queue = bench.broker.name("q");
    let mut wire = bench.wire();
    wire.declare(1, &queue);
    wire.send_method(1, &Method::new(20, 20).bits(&[false]));
    assert_eq!(wire.closed().code, 540);
    wire.publish(1, "", &queue, b"too late");
    wire.send_method(1, &durable_queue("too late"));
    wire.send_method(0, &Method::new(10, 51));
    assert_eq!(wire.until_end(), []);
    assert_eq!(bench.wire().look(1, &queue).0, 0, "a publish after the error");
}
