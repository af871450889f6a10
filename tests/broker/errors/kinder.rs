//! What looks like an error and is answered well.

use lepus_tests::wire::{exchange_declare, queue_declare};
use lepus_tests::{Arguments, Event, Method, Properties};

use super::bench::{Bench, DURABLE, PASSIVE};

#[test]
fn deletes_and_unbinds_of_nothing_are_fine() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    let delete_exchange = |if_unused| Method::new(40, 20).short(0).shortstr("none").bits(&[if_unused, false]);
    let unbind = |queue: &str, exchange: &str| {
        Method::new(50, 50).short(0).shortstr(queue).shortstr(exchange).shortstr("k").table(&Arguments::new())
    };
    let unbind_exchange = |destination: &str, source: &str| {
        let method = Method::new(40, 40).short(0).shortstr(destination).shortstr(source).shortstr("k");
        method.bits(&[false]).table(&Arguments::new())
    };
    assert_eq!(wire.delete_queue(1, "none"), 0);
    wire.call(1, delete_exchange(false));
    wire.call(1, delete_exchange(true));
    let queue = wire.declare_exclusive(1);
    wire.call(1, unbind(&queue, "amq.direct"));
    wire.call(1, unbind("none", "amq.direct"));
    wire.call(1, unbind(&queue, "none"));
    // RabbitMQ answers exchange.unbind with the id 51.
    for (destination, source) in
        [("amq.fanout", "amq.direct"), ("none", "amq.direct"), ("amq.fanout", "none")]
    {
        wire.send_method(1, &unbind_exchange(destination, source));
        wire.expect(1, (40, 51));
    }
}

#[test]
fn the_same_declaration_again_is_fine_with_classic_spelled_out_or_not() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    wire.declare_as(1, &bench.name("q"), DURABLE, &Arguments::new().text("x-queue-type", "classic"));
    wire.declare(1, &bench.name("q"));
    // Integers are equal by value, whatever their width.
    let long = [&b"l"[..], &10i64.to_be_bytes()].concat();
    wire.declare_as(1, &bench.name("typed"), DURABLE, &Arguments::new().field("x-max-length", &long));
    wire.declare_exchange(1, &bench.name("x"), "direct");
    // Arguments that the type does not know are not compared.
    wire.declare_as(1, &bench.name("q"), DURABLE, &Arguments::new().text("x-of-nobody", "new"));
}

#[test]
fn names_lose_carriage_returns_and_line_feeds() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    let (queue, exchange) = (bench.name("q"), bench.name("x"));
    let mut ok = wire.call(1, queue_declare(&format!("\r\n{queue}\n"), DURABLE, &Arguments::new()));
    assert_eq!(ok.shortstr(), queue);
    wire.call(1, exchange_declare(&format!("{exchange}\r\n"), "direct", DURABLE, &Arguments::new()));
}

#[test]
fn reserved_names_that_exist_may_be_looked_at() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    let names = ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace"];
    for name in names {
        wire.call(1, exchange_declare(name, "direct", PASSIVE, &Arguments::new()));
    }
    let queue = wire.declare_exclusive(1);
    assert!(queue.starts_with("amq.gen-"), "{queue}");
    wire.look(2, &queue);
    // And one may be declared again as it is, if it is not a queue.
    wire.call(1, exchange_declare("amq.direct", "direct", DURABLE, &Arguments::new()));
}

#[test]
fn an_empty_queue_name_is_the_channels_last_queue() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    let queue = wire.declare_exclusive(1);
    wire.publish(1, "", &queue, b"m");
    assert_eq!(wire.get(1, "", true).expect("the last declared queue").body, b"m");
}

#[test]
fn flow_on_is_answered() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    assert_eq!(wire.call(1, Method::new(20, 20).bits(&[true])).octet() & 1, 1);
}

#[test]
fn a_mandatory_message_that_nobody_takes_is_returned_and_then_acked() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    let properties = Properties::headers(&Arguments::new().int("spring_returned_message_correlation", 7));
    wire.select_confirms(1);
    wire.publish_as(1, &bench.name("x"), "nobody", true, &properties, b"m");
    match wire.event() {
        Event::Return(returned) => {
            assert_eq!(returned.reply, Some((312, "NO_ROUTE".to_owned())));
            assert_eq!((returned.exchange, &*returned.routing_key), (bench.name("x"), "nobody"));
            assert_eq!((returned.properties, &*returned.body), (properties, &b"m"[..]));
        }
        other => panic!("{other:?} before the return"),
    }
    assert_eq!(wire.event(), Event::Ack(1, 1, false));
}

#[test]
fn a_normal_close_says_200_ok_and_is_answered() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    wire.close_channel(1);
    wire.open(1);
    wire.close();
}
