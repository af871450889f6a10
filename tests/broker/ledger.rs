//! One ledger for all who take messages: where brokers with the same idea went wrong.

use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lepus_tests::{Broker, Delivery, Event, Properties, Wire};

/// A queue with messages `0`, `1`, `2` and so on in it, all of them arrived.
fn filled(broker: &Broker, wire: &mut Wire, count: usize) -> String {
    let queue = broker.name("ledger");
    wire.declare(1, &queue);
    publish_all(wire, &queue, 0..count);
    queue
}

/// Publishes numbers on a channel of its own and waits for all confirms.
fn publish_all(wire: &mut Wire, queue: &str, numbers: std::ops::Range<usize>) {
    const PUBLISHER: u16 = 1000;
    wire.open(PUBLISHER);
    wire.select_confirms(PUBLISHER);
    let count = numbers.len() as u64;
    for number in numbers {
        wire.publish(PUBLISHER, "", queue, number.to_string().as_bytes());
    }
    wire.confirmed(count);
    wire.close_channel(PUBLISHER);
}

fn numbers(deliveries: &[Delivery]) -> Vec<usize> {
    let number = |delivery: &Delivery| std::str::from_utf8(&delivery.body).ok()?.parse().ok();
    deliveries.iter().map(|delivery| number(delivery).expect("the body is a number")).collect()
}

#[test]
fn an_ack_as_fast_as_the_delivery_finds_it() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = broker.name("fast");
    wire.declare(1, &queue);
    wire.qos(1, 1, false);
    wire.consume(1, &queue, "t", false);
    // Each ack goes out in the moment of its delivery, by the tag that comes next: a ledger that learns of
    // the tag after the delivery has left answers one of them with 406.
    let mut publisher = broker.channel();
    let feeding = queue.clone();
    let feeder = thread::spawn(move || {
        for number in 0..5000 {
            publisher.publish(1, "", &feeding, number.to_string().as_bytes());
        }
        publisher.close();
    });
    for tag in 1..=5000 {
        let delivery = wire.delivery();
        assert_eq!(delivery.tag, tag);
        wire.ack(1, tag, false);
    }
    feeder.join().expect("the publisher is served");
    wire.close_channel(1);
    wire.open(1);
    assert_eq!(wire.look(1, &queue), (0, 0));
}

#[test]
fn an_ack_before_the_delivery_was_read_finds_it() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 1);
    wire.consume(1, &queue, "t", false);
    // The delivery left before consume-ok was answered to by this; it has not been looked at.
    wire.round_trip(1);
    wire.ack(1, 1, false);
    wire.round_trip(1);
    assert_eq!(wire.delivery().tag, 1);
    wire.close_channel(1);
    wire.open(1);
    assert_eq!(wire.look(1, &queue).0, 0);
}

#[test]
fn a_consumer_that_vanishes_gives_all_back_in_order() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 100);
    for _ in 0..5 {
        let mut victim = broker.channel();
        victim.consume(1, &queue, "t", false);
        let got = victim.deliveries(100);
        assert_eq!(numbers(&got), (0..100).collect::<Vec<_>>());
        victim.vanish();
        // No close was sent. The next consumer gets what comes back, in the old order and marked.
        let mut next = broker.channel();
        next.consume(1, &queue, "t", false);
        let again = next.deliveries(100);
        assert_eq!(numbers(&again), (0..100).collect::<Vec<_>>());
        assert!(again.iter().all(|delivery| delivery.redelivered));
        next.close();
    }
    assert_eq!(wire.drain(1, &queue).len(), 100);
}

#[test]
fn a_vanished_connection_keeps_neither_consumers_nor_gets() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 3);
    let mut victim = broker.channel();
    assert!(victim.get(1, &queue, false).is_some());
    victim.qos(1, 1, false);
    victim.consume(1, &queue, "t", false);
    victim.delivery();
    victim.vanish();
    // Until the broker has noticed, the third message is the only one that it can give.
    while wire.look(1, &queue) != (3, 0) {}
    let mut next = broker.channel();
    next.consume(1, &queue, "t", false);
    assert_eq!(numbers(&next.deliveries(3)), [0, 1, 2]);
    assert_eq!(wire.look(1, &queue), (0, 1));
}

#[test]
fn gets_and_a_consumer_take_each_message_once() {
    const MESSAGES: usize = 3000;
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = broker.name("contended");
    wire.declare(1, &queue);
    let done = AtomicBool::new(false);
    let mut seen: Vec<usize> = thread::scope(|scope| {
        let pollers: Vec<_> = (0..3)
            .map(|_| {
                let (broker, queue, done) = (&broker, &queue, &done);
                scope.spawn(move || {
                    let (mut wire, mut seen) = (broker.channel(), Vec::new());
                    while !done.load(Ordering::Acquire) {
                        if let Some(delivery) = wire.get(1, queue, false) {
                            assert!(!delivery.redelivered);
                            wire.ack(1, delivery.tag, false);
                            seen.push(delivery);
                        }
                    }
                    wire.close();
                    numbers(&seen)
                })
            })
            .collect();
        let consumer = scope.spawn(|| {
            let (mut consumer, mut seen) = (broker.channel(), Vec::new());
            consumer.qos(1, 5, false);
            consumer.consume(1, &queue, "t", false);
            loop {
                match consumer.wait_for(|event| matches!(event, Event::Deliver(_) | Event::Method(..))) {
                    Event::Deliver(delivery) if delivery.body == b"end" => break,
                    Event::Deliver(delivery) => {
                        assert!(!delivery.redelivered);
                        consumer.ack(1, delivery.tag, false);
                        seen.push(delivery);
                    }
                    _ => {}
                }
            }
            consumer.close();
            numbers(&seen)
        });
        publish_all(&mut wire, &queue, 0..MESSAGES);
        // Until only the consumer can have anything, then an end for it alone.
        while wire.look(1, &queue).0 > 0 {}
        done.store(true, Ordering::Release);
        let mut seen: Vec<usize> =
            pollers.into_iter().flat_map(|poller| poller.join().expect("served")).collect();
        wire.publish(1, "", &queue, b"end");
        seen.extend(consumer.join().expect("served"));
        seen
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
}

#[test]
fn requeue_puts_back_at_the_original_place() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 10);
    let tags: Vec<u64> = (0..6).map(|_| wire.get(1, &queue, false).expect("ten are there").tag).collect();
    wire.nack(1, tags[4], false, true);
    wire.reject(1, tags[0], true);
    wire.ack(1, tags[1], false);
    wire.nack(1, tags[3], false, true);
    wire.round_trip(1);
    let got = wire.drain(1, &queue);
    assert_eq!(numbers(&got), [0, 3, 4, 6, 7, 8, 9]);
    let redelivered: Vec<bool> = got.iter().map(|delivery| delivery.redelivered).collect();
    assert_eq!(redelivered, [true, true, true, false, false, false, false]);
    // The two that are still unacked go between them when their channel closes.
    wire.close_channel(1);
    wire.open(1);
    assert_eq!(numbers(&wire.drain(1, &queue)), [2, 5]);
}

#[test]
fn a_requeued_message_waits_before_later_ones_for_a_consumer() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 5);
    wire.qos(1, 2, false);
    wire.consume(1, &queue, "t", false);
    let first = wire.deliveries(2);
    assert_eq!(numbers(&first), [0, 1]);
    wire.nack(1, first[0].tag, false, true);
    let again = wire.delivery();
    assert_eq!((numbers(from_ref(&again)), again.redelivered, again.tag), (vec![0], true, 3));
    wire.ack(1, again.tag, true);
    assert_eq!(numbers(&wire.deliveries(2)), [2, 3]);
}

#[test]
fn redelivered_is_set_on_deliver_and_on_get() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 2);
    for _ in 0..2 {
        let got = wire.get(1, &queue, false).expect("two are there");
        assert!(!got.redelivered);
    }
    wire.nack(1, 0, true, true);
    let got = wire.get(1, &queue, false).expect("both are back");
    assert!(got.redelivered, "on get");
    wire.nack(1, got.tag, false, true);
    wire.consume(1, &queue, "t", false);
    let got = wire.deliveries(2);
    assert_eq!(numbers(&got), [0, 1]);
    assert!(got.iter().all(|delivery| delivery.redelivered), "on deliver");
}

#[test]
fn exchange_and_routing_key_stay_with_a_requeued_message() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let (queue, exchange) = (broker.name("q"), broker.name("x"));
    wire.declare(1, &queue);
    wire.declare_exchange(1, &exchange, "topic");
    wire.bind(1, &queue, &exchange, "a.#", &lepus_tests::Arguments::new());
    let properties =
        Properties::headers(&lepus_tests::Arguments::new().bool("b", true).int("n", 7).text("t", "grün"));
    wire.publish_as(1, &exchange, "a.key", false, &properties, b"m");
    let mut taken = broker.channel();
    while taken.get(1, &queue, false).is_none() {}
    taken.vanish();
    wire.consume(1, &queue, "t", false);
    let first = wire.delivery();
    wire.nack(1, first.tag, false, true);
    let second = wire.delivery();
    wire.nack(1, second.tag, false, true);
    wire.cancel(1, "t");
    let third = wire.delivery();
    for delivery in [&first, &second, &third] {
        assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), (exchange.as_str(), "a.key"));
        assert_eq!(
            (&delivery.properties, delivery.body.as_slice(), delivery.redelivered),
            (&properties, &b"m"[..], true)
        );
    }
}

#[test]
fn counts_hold_after_acks_out_of_order() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 10);
    for _ in 0..8 {
        wire.get(1, &queue, false).expect("ten are there");
    }
    assert_eq!(wire.look(1, &queue).0, 2);
    for tag in [7, 2, 5] {
        wire.ack(1, tag, false);
    }
    wire.round_trip(1);
    assert_eq!(wire.look(1, &queue).0, 2, "settled messages are no ready ones");
    wire.nack(1, 4, true, true);
    wire.round_trip(1);
    assert_eq!(wire.look(1, &queue).0, 5, "1, 3 and 4 came back");
    wire.close_channel(1);
    wire.open(1);
    assert_eq!(wire.look(1, &queue).0, 7, "6 and 8 came back");
    assert_eq!(numbers(&wire.drain(1, &queue)), [0, 2, 3, 5, 7, 8, 9]);
    assert_eq!(wire.look(1, &queue).0, 0);
}

#[test]
fn multiple_settles_up_to_the_tag_and_no_further() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 10);
    wire.consume(1, &queue, "t", false);
    wire.deliveries(10);
    wire.ack(1, 3, false);
    wire.ack(1, 5, true);
    wire.nack(1, 7, true, false);
    wire.cancel(1, "t");
    wire.close_channel(1);
    wire.open(1);
    assert_eq!(numbers(&wire.drain(1, &queue)), [7, 8, 9]);
}

#[test]
fn a_tag_belongs_to_its_channel() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 2);
    wire.open(2);
    assert_eq!(wire.get(1, &queue, false).expect("two are there").tag, 1);
    assert_eq!(wire.get(2, &queue, false).expect("one is left").tag, 1);
    wire.ack(2, 1, false);
    wire.ack(2, 1, false);
    let close = wire.closed();
    assert_eq!((close.channel, close.code), (2, 406));
    wire.ack(1, 1, false);
    wire.round_trip(1);
    assert_eq!(wire.look(1, &queue).0, 0);
}

#[test]
fn purge_leaves_the_unacked_and_its_count_is_right() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 10);
    for _ in 0..4 {
        wire.get(1, &queue, false).expect("ten are there");
    }
    wire.nack(1, 2, false, true);
    assert_eq!(wire.purge(1, &queue), 7);
    assert_eq!(wire.look(1, &queue).0, 0);
    publish_all(&mut wire, &queue, 10..12);
    wire.ack(1, 1, false);
    wire.nack(1, 4, true, true);
    wire.round_trip(1);
    assert_eq!(numbers(&wire.drain(1, &queue)), [2, 3, 10, 11]);
    assert_eq!(wire.purge(1, &queue), 0);
}

#[test]
fn acks_after_a_queue_is_deleted_are_fine() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 5);
    for _ in 0..3 {
        wire.get(1, &queue, false).expect("five are there");
    }
    assert_eq!(wire.delete_queue(1, &queue), 2);
    // The name starts anew; the old tags can still be settled, once.
    wire.declare(1, &queue);
    wire.nack(1, 1, false, true);
    wire.ack(1, 3, true);
    wire.round_trip(1);
    assert_eq!(wire.look(1, &queue).0, 0, "a message of the deleted queue came back");
    wire.ack(1, 3, false);
    assert_eq!(wire.closed().code, 406);
}

#[test]
fn a_queue_that_nobody_declared_takes_nothing_and_stays_unknown() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = broker.name("undeclared");
    wire.select_confirms(1);
    wire.publish(1, "", &queue, b"m");
    wire.confirmed(1);
    wire.publish_as(1, "", &queue, true, &Properties::none(), b"m");
    assert!(matches!(wire.event(), Event::Return(_)));
    assert_eq!(wire.event(), Event::Ack(1, 2, false));
    wire.open(2);
    wire.send_method(2, &lepus_tests::Method::new(60, 70).short(0).shortstr(&queue).bits(&[false]));
    assert_eq!(wire.closed().code, 404);
    assert_eq!(wire.declare(1, &queue), (0, 0), "nothing was kept for it");
}

#[test]
fn recover_requeues_what_is_unacked_on_the_channel_alone() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 4);
    wire.open(2);
    let other = wire.get(2, &queue, false).expect("four are there");
    for _ in 0..2 {
        wire.get(1, &queue, false).expect("three are there");
    }
    wire.call(1, lepus_tests::Method::new(60, 110).bits(&[true]));
    wire.round_trip(1);
    assert_eq!(numbers(&wire.drain(1, &queue)), [1, 2, 3]);
    wire.nack(2, other.tag, false, true);
    wire.round_trip(2);
    assert_eq!(numbers(&wire.drain(2, &queue)), [0]);
}

#[test]
fn cancel_stops_deliveries_before_it_answers() {
    let broker = Broker::start();
    let mut publisher = broker.channel();
    let queue = broker.name("cancelled");
    publisher.declare(1, &queue);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (queue, stop) = (&queue, &stop);
        scope.spawn(move || {
            // Paced by confirms, so that the queue is fed all the time and never floods.
            publisher.select_confirms(1);
            while !stop.load(Ordering::Acquire) {
                publisher.publish(1, "", queue, b"m");
                assert!(matches!(publisher.event(), Event::Ack(..)));
            }
            publisher.close();
        });
        let mut wire = broker.channel();
        for round in 0..200 {
            let tag = format!("t{round}");
            wire.consume(1, queue, &tag, true);
            wire.delivery();
            wire.cancel(1, &tag);
            // All that this consumer ever gets is here by now.
            wire.arrived(1);
            wire.round_trip(1);
            let late = wire.arrived(1);
            assert!(late.is_empty(), "round {round}: {} deliveries after cancel-ok", late.len());
        }
        stop.store(true, Ordering::Release);
        wire.close();
    });
}

#[test]
fn what_is_unacked_outlives_its_consumer() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 3);
    wire.consume(1, &queue, "t", false);
    let got = wire.deliveries(3);
    wire.cancel(1, "t");
    assert_eq!(wire.look(1, &queue), (0, 0), "still unacked");
    wire.ack(1, got[0].tag, false);
    wire.nack(1, got[1].tag, false, true);
    wire.round_trip(1);
    assert_eq!(wire.look(1, &queue).0, 1);
    wire.ack(1, got[2].tag, false);
    wire.round_trip(1);
}

#[test]
fn a_priority_consumer_is_served_first_and_equals_take_turns() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = broker.name("priority");
    wire.declare(1, &queue);
    wire.qos(1, 4, false);
    let priority = |n| lepus_tests::Arguments::new().int("x-priority", n);
    for (tag, arguments) in [("low", priority(-1)), ("one", priority(5)), ("two", priority(5))] {
        wire.call(1, lepus_tests::wire::basic_consume(&queue, tag, false, false, &arguments));
    }
    publish_all(&mut wire, &queue, 0..10);
    let got = wire.deliveries(10);
    let of = |tag: &str| got.iter().filter(|delivery| delivery.consumer == tag).count();
    assert_eq!((of("one"), of("two"), of("low")), (4, 4, 2));
    let low: Vec<Delivery> = got.iter().filter(|delivery| delivery.consumer == "low").cloned().collect();
    assert_eq!(numbers(&low), [8, 9], "the low one gets what the others have no credit for");
}

#[test]
fn publication_order_holds_for_one_publisher_and_one_consumer() {
    const MESSAGES: usize = 20_000;
    let broker = Broker::start();
    let mut consumer = broker.channel();
    let queue = broker.name("ordered");
    consumer.declare(1, &queue);
    consumer.qos(1, 100, false);
    consumer.consume(1, &queue, "t", false);
    let mut publisher = broker.channel();
    let feeding = queue.clone();
    let feeder = thread::spawn(move || {
        for number in 0..MESSAGES {
            publisher.publish(1, "", &feeding, number.to_string().as_bytes());
        }
        publisher.close();
    });
    for number in 0..MESSAGES {
        let delivery = consumer.delivery();
        assert_eq!(numbers(from_ref(&delivery)), [number]);
        assert_eq!((delivery.tag, delivery.redelivered), (number as u64 + 1, false));
        if number % 50 == 49 {
            consumer.ack(1, delivery.tag, true);
        }
    }
    feeder.join().expect("the publisher is served");
}
