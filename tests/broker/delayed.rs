//! Delayed exchanges on disk and by the clock of a real broker. `LEPUS_DELAYED_MESSAGES` sets how many messages wait
//! over a crash (2000 by default, a million in a long run).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lepus_tests::limits::number;
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

#[test]
fn all_that_waits_survives_two_crashes_is_counted_and_goes_on_once_and_not_too_early() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let count = number("LEPUS_DELAYED_MESSAGES", 2_000) as u32;
    let mut wire = prepared(&broker);
    // Time enough to publish all of them, and to start twice, before the first is due.
    let least_ms = 6_000 + count / 15;
    let mut random = fastrand::Rng::with_seed(5);
    let began = Instant::now();
    let mut due = Vec::with_capacity(count as usize);
    for message in 0..count {
        let ms = least_ms + random.u32(..2_000);
        due.push(began.elapsed() + Duration::from_millis(ms.into()));
        wire.publish_as(1, "later", "k", false, &delayed(ms as i32), &message.to_be_bytes());
        if message % 1_000 == 999 || message + 1 == count {
            wire.confirmed(u64::from(message) + 1);
        }
    }
    let published = began.elapsed();
    let mut broker = broker;
    for _ in 0..2 {
        assert_eq!(wire.look(1, WAITING).0, count, "before");
        broker = Setup::new().start_in(broker.kill());
        wire = broker.channel();
        assert_eq!(wire.look(1, WAITING).0, count, "behind the crash");
        assert_eq!(wire.look(1, "q").0, 0, "nothing has gone on yet");
    }
    println!("{count} published in {published:?}, all there after two crashes at {:?}", began.elapsed());
    wire.consume(1, "q", "t", true);
    let (mut arrivals, mut earliest) = (HashMap::new(), Duration::ZERO);
    for _ in 0..count {
        let delivery = wire.patient_delivery(Duration::from_millis(u64::from(least_ms) + 30_000));
        let message = u32::from_be_bytes(delivery.body[..].try_into().expect("a number"));
        earliest = earliest.max(due[message as usize].saturating_sub(began.elapsed()));
        *arrivals.entry(message).or_insert(0u32) += 1;
    }
    // The broker counts whole milliseconds, and over a restart by the clock on the wall.
    assert!(earliest < Duration::from_millis(5), "one went on {earliest:?} before its time");
    assert_eq!(arrivals.len(), count as usize, "each once");
    println!("the last one arrived at {:?}, due at {:?}", began.elapsed(), due.iter().max());
    assert_eq!((wire.look(1, WAITING).0, wire.look(1, "q").0), (0, 0));
    // And it stays so.
    let broker = Setup::new().start_in(broker.kill());
    let mut wire = broker.channel();
    assert_eq!(wire.look(1, WAITING).0, 0, "what has gone on does not wait again");
    broker.stop();
}
