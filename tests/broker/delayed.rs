//! Delayed exchanges on disk and by the clock of a real broker.

use std::time::Duration;

use lepus_tests::wire::{exchange_declare, queue_declare};
use lepus_tests::{Arguments, Broker, Properties, Setup, Wire};

const WAITING: &str = "amq.delayed.later";

fn prepared(broker: &Broker) -> Wire {
    let mut wire = broker.channel();
    let arguments = Arguments::new().text("x-delayed-type", "direct");
    let durable = [false, true, false, false, false];
    wire.call(1, exchange_declare("later", "x-delayed-message", durable, &arguments));
    wire.declare(1, "q");
    wire.bind(1, "q", "later", "k", &Arguments::new());
    wire.select_confirms(1);
    wire
}

/// Headers, and persistent.
fn delayed(ms: i32) -> Properties {
    let mut properties = vec![0b0011_0000, 0];
    properties.extend(Arguments::new().int("x-delay", ms).wire());
    properties.push(2);
    Properties(properties)
}

fn bodies(wire: &mut Wire) -> Vec<String> {
    let found = wire.drain(1, "q");
    found.iter().map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned()).collect()
}

fn wait_for(wire: &mut Wire, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        found.extend(bodies(wire));
        std::thread::sleep(Duration::from_millis(5));
    }
    found
}

#[test]
fn a_delayed_message_goes_on_before_one_that_waits_longer_and_says_that_it_has_waited() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let mut wire = prepared(&broker);
    wire.publish_as(1, "later", "k", false, &delayed(3_600_000), b"in an hour");
    wire.publish_as(1, "later", "k", true, &delayed(300), b"soon");
    wire.publish_as(1, "later", "k", false, &delayed(-1), b"now");
    wire.confirmed(3);
    assert!(!wire.returned(), "what waits is not unroutable");
    assert_eq!(bodies(&mut wire), ["now"]);
    let delivery = loop {
        match wire.get(1, "q", true) {
            Some(delivery) => break delivery,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!((&*delivery.body, &*delivery.exchange), (&b"soon"[..], "later"));
    let negated = [&b"\x07x-delayl"[..], &(-300_i64).to_be_bytes()].concat();
    let properties = delivery.properties.0;
    assert!(properties.windows(negated.len()).any(|window| window == negated), "{properties:?}");
    assert!(!properties.windows(7).any(|window| window == b"x-death"), "it has not died");
    assert_eq!(wire.look(1, WAITING).0, 1);
}

#[test]
fn what_waits_survives_a_crash_with_the_time_that_is_left() {
    let Some(broker) = Broker::own(Setup::new().set("shards=2")) else { return };
    let mut wire = prepared(&broker);
    for number in 0..100 {
        wire.publish_as(1, "later", "k", false, &delayed(2_000), number.to_string().as_bytes());
    }
    wire.publish_as(1, "later", "k", false, &delayed(3_600_000), b"in an hour");
    wire.confirmed(101);
    let broker = Setup::new().set("shards=1").start_in(broker.kill());
    let mut wire = broker.channel();
    // In any order: all of them may be due when they are read back.
    let mut found: Vec<u32> =
        wait_for(&mut wire, 100).iter().map(|body| body.parse().expect("a number")).collect();
    found.sort_unstable();
    assert_eq!(found, (0..100).collect::<Vec<_>>());
    assert_eq!(wire.look(1, WAITING).0, 1);
    // What has gone on does not come again.
    let broker = Setup::new().set("shards=2").start_in(broker.kill());
    let mut wire = broker.channel();
    assert_eq!(bodies(&mut wire), Vec::<String>::new());
    assert_eq!(wire.look(1, WAITING).0, 1);
}

#[test]
fn the_queue_where_messages_wait_is_closed_to_clients() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    prepared(&broker);
    let mut wire = broker.channel();
    let flags = [false, true, false, false, false];
    wire.send_method(1, &queue_declare(WAITING, flags, &Arguments::new()));
    let close = wire.closed();
    assert_eq!((close.code, close.ids), (403, (50, 10)), "{close:?}");
    let arguments = Arguments::new().text("x-delayed-type", "x-delayed-message");
    let mut wire = broker.channel();
    wire.send_method(1, &exchange_declare("wrong", "x-delayed-message", flags, &arguments));
    let close = wire.closed();
    assert_eq!(
        close.text,
        "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type, but not \
         'x-delayed-message'"
    );
}
