//! Queues with dead letters, bounds, priorities and single active consumers: what survives, and what stays open.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use lepus_tests::limits::number;
use lepus_tests::{Arguments, Broker, Delivery, Event, Properties, Setup, Wire};

const DURABLE: [bool; 5] = [false, true, false, false, false];

fn dead_letters_to(queue: &str) -> Arguments {
    Arguments::new().text("x-dead-letter-exchange", "").text("x-dead-letter-routing-key", queue)
}

fn declare(wire: &mut Wire, queue: &str, arguments: &Arguments) {
    wire.declare_as(1, queue, DURABLE, arguments);
}

/// Publishes a persistent message and waits for its confirm, the channel's `number`th.
fn publish_confirmed(wire: &mut Wire, queue: &str, body: &[u8], number: u64) {
    wire.publish_as(1, "", queue, false, &Properties::persistent(), body);
    wire.confirmed(number);
}

/// A message that is there, or comes before long.
fn get(wire: &mut Wire, queue: &str, no_ack: bool) -> Delivery {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match wire.get(1, queue, no_ack) {
            Some(delivery) => return delivery,
            None => assert!(Instant::now() < until, "no message came to {queue}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn has_text(delivery: &Delivery, text: &[u8]) -> bool {
    delivery.properties.0.windows(text.len()).any(|window| window == text)
}

fn reject(wire: &mut Wire, queue: &str) {
    let tag = get(wire, queue, false).tag;
    wire.reject(1, tag, false);
}

#[test]
fn a_dead_letter_and_its_history_survive_a_kill_and_it_is_in_one_place() {
    let Some(broker) = Broker::own(Setup::new().set("shards=2")) else { return };
    let mut wire = broker.channel();
    for (queue, to) in [("a", "b"), ("b", "c")] {
        declare(&mut wire, queue, &dead_letters_to(to));
    }
    declare(&mut wire, "c", &Arguments::new());
    wire.select_confirms(1);
    publish_confirmed(&mut wire, "a", b"m", 1);
    reject(&mut wire, "a");
    // It is in the log when its owner has confirmed something later.
    get(&mut wire, "b", false);
    publish_confirmed(&mut wire, "b", b"later", 2);
    let broker = Setup::new().set("shards=2").start_in(broker.kill());
    let mut wire = broker.channel();
    assert_eq!(wire.look(1, "a").0, 0, "the source has let go of it");
    reject(&mut wire, "b");
    let dead = get(&mut wire, "c", true);
    assert_eq!((dead.body.as_slice(), dead.redelivered), (&b"m"[..], false));
    for text in [&b"x-first-death-queueS\0\0\0\x01a"[..], b"x-last-death-queueS\0\0\0\x01b"] {
        assert!(has_text(&dead, text), "both deaths are in its history: {:?}", dead.properties);
    }
    assert_eq!(wire.drain(1, "b").len(), 1);
    broker.stop();
}

/// `LEPUS_CHAIN_LIVES` and `LEPUS_CHAIN_MESSAGES` set how often it is killed and how much is published in each life
/// (6 and 400 by default).
#[test]
fn a_chain_of_dead_letters_at_least_once_loses_nothing_however_often_it_is_killed() {
    const HOPS: usize = 5;
    let setup = || Setup::new().set("shards=2");
    let Some(mut broker) = Broker::own(setup()) else { return };
    let (lives, messages) =
        (number("LEPUS_CHAIN_LIVES", 6) as u64, number("LEPUS_CHAIN_MESSAGES", 400) as u64);
    let mut wire = broker.channel();
    // One after another they are put on one shard and the other.
    for hop in 0..HOPS {
        let arguments = dead_letters_to(&format!("chain.{}", hop + 1)).int("x-message-ttl", 20);
        let arguments = arguments.text("x-dead-letter-strategy", "at-least-once");
        declare(&mut wire, &format!("chain.{hop}"), &arguments);
    }
    let last = format!("chain.{HOPS}");
    declare(&mut wire, &last, &Arguments::new());
    let (mut confirmed, mut next, mut arrivals) = (HashSet::new(), 0u64, 0u64);
    let mut seen: HashSet<u64> = HashSet::new();
    for life in 0..lives {
        let mut wire = broker.channel();
        wire.select_confirms(1);
        let first = next;
        for _ in 0..messages {
            wire.publish_as(1, "", "chain.0", false, &Properties::persistent(), &next.to_be_bytes());
            next += 1;
        }
        // From hardly anything confirmed to everything, and some of it all the way through.
        let (mut upto, wanted) = (0, messages * (2 + life % 6) / 8);
        while upto < wanted {
            match wire.event() {
                Event::Ack(1, tag, _) => upto = upto.max(tag),
                other => panic!("waited for a confirm, got {other:?}"),
            }
        }
        confirmed.extend(first..first + upto);
        thread::sleep(Duration::from_millis(life * 17 % 160));
        broker = setup().start_in(broker.kill());
    }
    let mut wire = broker.channel();
    wire.consume(1, &last, "t", true);
    while !seen.is_superset(&confirmed) {
        let Some(arrived) = wire.delivery_within(Duration::from_secs(30)) else {
            panic!("{} of {} arrived", seen.intersection(&confirmed).count(), confirmed.len());
        };
        seen.insert(u64::from_be_bytes(arrived.body[..].try_into().expect("a number")));
        arrivals += 1;
    }
    println!("{next} published, {} confirmed, {} arrived, {arrivals} times", confirmed.len(), seen.len());
    for hop in 0..HOPS {
        let queue = format!("chain.{hop}");
        let until = Instant::now() + Duration::from_secs(60);
        while wire.look(1, &queue).0 > 0 {
            assert!(Instant::now() < until, "{queue} lets go of what is further on");
            thread::sleep(Duration::from_millis(20));
        }
    }
    broker.stop();
}

#[test]
fn priorities_hold_after_a_restart() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let mut wire = broker.channel();
    declare(&mut wire, "q", &Arguments::new().int("x-max-priority", 9));
    wire.select_confirms(1);
    for (number, priority) in [1, 9, 5, 0, 9].into_iter().enumerate() {
        // Delivery mode 2, and the priority.
        let properties = Properties(vec![0x18, 0x00, 2, priority]);
        wire.publish_as(1, "", "q", false, &properties, &[b'0' + number as u8]);
    }
    wire.confirmed(5);
    let broker = Setup::new().start_in(broker.kill());
    let mut wire = broker.channel();
    let order: Vec<u8> = wire.drain(1, "q").iter().map(|got| got.body[0]).collect();
    assert_eq!(order, b"14203");
    broker.stop();
}

/// A full queue of two messages that makes its publishers wait, on a connection that waits with channel 1 and
/// holds both messages on it.
fn waiting(broker: &Broker) -> (Wire, Vec<u64>) {
    let mut wire = broker.channel();
    declare(&mut wire, "full", &Arguments::new().int("x-max-length", 2).text("x-overflow", "block"));
    wire.consume(1, "full", "t", false);
    for number in 0..2 {
        wire.publish(1, "", "full", &[b'0' + number]);
    }
    let tags = wire.deliveries(2).iter().map(|delivery| delivery.tag).collect();
    wire.cancel(1, "t");
    for number in 2..10 {
        wire.publish(1, "", "full", &[b'0' + number]);
    }
    wire.open(2);
    (wire, tags)
}

#[test]
fn a_channel_that_waits_for_room_takes_acks_and_other_channels_go_on() {
    let Some(broker) = Broker::own(Setup::new().set("shards=2")) else { return };
    let (mut wire, tags) = waiting(&broker);
    assert_eq!(wire.look(2, "full").0, 2);
    wire.ack(1, tags[0], false);
    wire.nack(1, tags[1], false, true);
    // Given back to its place: it stands beyond what the queue may have, and first.
    let bodies: Vec<u8> = (0..9).map(|_| got_on(&mut wire, 2)).collect();
    assert_eq!(bodies, b"123456789");
    wire.round_trip(1);
    broker.stop();
}

fn got_on(wire: &mut Wire, channel: u16) -> u8 {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(delivery) = wire.get(channel, "full", true) {
            return delivery.body[0];
        }
        assert!(Instant::now() < until, "no message comes");
    }
}

#[test]
fn a_channel_that_waits_for_room_can_be_closed_and_so_can_its_connection() {
    let Some(broker) = Broker::own(Setup::new().set("shards=2")) else { return };
    let (mut wire, _) = waiting(&broker);
    wire.close_channel(1);
    wire.open(1);
    wire.round_trip(1);
    let (waits, _) = waiting(&broker);
    waits.close();
    wire.close();
    broker.stop();
}
