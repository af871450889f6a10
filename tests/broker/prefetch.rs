//! Prefetch, exactly: what is unacked never exceeds it, and reaches it.

use lepus_tests::{Broker, Wire};

const PREFETCHES: [u16; 3] = [1, 10, 300];

fn filled(broker: &Broker, wire: &mut Wire, count: usize) -> String {
    let queue = broker.name("prefetch");
    wire.declare(1, &queue);
    wire.select_confirms(1);
    for _ in 0..count {
        wire.publish(1, "", &queue, b"m");
    }
    queue
}

/// How many are on their way or here without being settled: the published ones less the ready and settled.
fn unacked(wire: &mut Wire, queues: &[String], published: usize, settled: usize) -> usize {
    let ready: usize = queues.iter().map(|queue| wire.look(1, queue).0 as usize).sum();
    published - settled - ready
}

#[test]
fn a_slow_consumer_holds_its_prefetch_and_no_more() {
    let broker = Broker::start();
    for prefetch in PREFETCHES {
        let limit = usize::from(prefetch);
        let published = 3 * limit + 7;
        let mut wire = broker.channel();
        let queue = filled(&broker, &mut wire, published);
        wire.confirmed(published as u64);
        let queues = [queue.clone()];
        let mut consumer = broker.channel();
        consumer.qos(1, prefetch, false);
        consumer.consume(1, &queue, "slow", false);
        let (mut held, mut settled) = (Vec::new(), 0);
        while settled < published {
            let want = limit.min(published - settled);
            while held.len() < want {
                held.push(consumer.delivery().tag);
            }
            // It has reached the limit; nothing further may be on its way.
            assert!(consumer.arrived(1).is_empty(), "more than {limit} came");
            assert_eq!(unacked(&mut wire, &queues, published, settled), want, "unacked at prefetch {limit}");
            // Out of order and in part: the last, then up to some in the middle.
            let last = held.pop().expect("the limit is one at least");
            consumer.ack(1, last, false);
            settled += 1;
            let few = held.len() / 2;
            if few > 0 {
                consumer.ack(1, held[few - 1], true);
                held.drain(..few);
                settled += few;
            }
            consumer.round_trip(1);
        }
        assert_eq!(unacked(&mut wire, &queues, published, settled), 0);
    }
}

#[test]
fn each_consumer_of_a_channel_has_a_prefetch_of_its_own() {
    let broker = Broker::start();
    for prefetch in PREFETCHES {
        let limit = usize::from(prefetch);
        let mut wire = broker.channel();
        let queue = filled(&broker, &mut wire, 4 * limit + 5);
        wire.confirmed(4 * limit as u64 + 5);
        let mut consumer = broker.channel();
        consumer.qos(1, prefetch, false);
        consumer.consume(1, &queue, "a", false);
        consumer.consume(1, &queue, "b", false);
        // A later value is for later consumers.
        consumer.qos(1, prefetch + 1, false);
        consumer.consume(1, &queue, "c", false);
        let mut got = consumer.deliveries(3 * limit + 1);
        got.extend(consumer.arrived(1));
        let of = |tag: &str| got.iter().filter(|delivery| delivery.consumer == tag).count();
        assert_eq!((of("a"), of("b"), of("c")), (limit, limit, limit + 1));
        let first_of_b = got.iter().find(|delivery| delivery.consumer == "b").expect("b has some").tag;
        consumer.ack(1, first_of_b, false);
        assert_eq!(consumer.delivery().consumer, "b");
        assert!(consumer.arrived(1).is_empty());
    }
}

#[test]
fn a_global_prefetch_is_shared_by_consumers_of_queues_on_all_shards() {
    let broker = Broker::start();
    for prefetch in PREFETCHES {
        let limit = usize::from(prefetch);
        let mut wire = broker.channel();
        let each = limit + 3;
        // Enough queues that every shard owns some.
        let queues: Vec<String> = (0..6).map(|_| filled(&broker, &mut wire, each)).collect();
        let published = queues.len() * each;
        wire.confirmed(published as u64);
        let mut consumer = broker.channel();
        consumer.qos(1, prefetch, true);
        for queue in &queues {
            consumer.consume(1, queue, queue, false);
        }
        let (mut held, mut settled) = (Vec::new(), 0);
        while settled < published {
            let want = limit.min(published - settled);
            while held.len() < want {
                held.push(consumer.delivery().tag);
            }
            assert!(consumer.arrived(1).is_empty(), "more than {limit} came");
            let unacked = unacked(&mut wire, &queues, published, settled);
            assert_eq!(unacked, want, "unacked on the channel at prefetch {limit}");
            let half = held.len().div_ceil(2);
            consumer.ack(1, held[half - 1], true);
            held.drain(..half);
            settled += half;
            consumer.round_trip(1);
        }
    }
}

#[test]
fn both_prefetches_hold_at_once() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queues: Vec<String> = (0..3).map(|_| filled(&broker, &mut wire, 20)).collect();
    wire.confirmed(60);
    let mut consumer = broker.channel();
    consumer.qos(1, 4, false);
    consumer.qos(1, 10, true);
    for queue in &queues {
        consumer.consume(1, queue, queue, false);
    }
    let mut got = consumer.deliveries(10);
    got.extend(consumer.arrived(1));
    assert_eq!(got.len(), 10, "the channel's limit");
    for queue in &queues {
        let held = got.iter().filter(|delivery| delivery.consumer == *queue).count();
        assert!(held <= 4, "{held} on one consumer");
    }
}

#[test]
fn a_raised_global_prefetch_takes_effect_at_once() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 20);
    wire.confirmed(20);
    let mut consumer = broker.channel();
    consumer.qos(1, 2, true);
    consumer.consume(1, &queue, "t", false);
    consumer.deliveries(2);
    assert!(consumer.arrived(1).is_empty());
    consumer.qos(1, 5, true);
    consumer.deliveries(3);
    assert!(consumer.arrived(1).is_empty());
    consumer.qos(1, 0, true);
    consumer.deliveries(15);
}

#[test]
fn a_requeued_or_rejected_message_gives_its_credit_back() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 5);
    wire.confirmed(5);
    let mut consumer = broker.channel();
    consumer.qos(1, 1, false);
    consumer.consume(1, &queue, "t", false);
    let first = consumer.delivery();
    consumer.nack(1, first.tag, false, true);
    let second = consumer.delivery();
    assert!(second.redelivered);
    consumer.reject(1, second.tag, false);
    let third = consumer.delivery();
    assert!(!third.redelivered);
    assert!(consumer.arrived(1).is_empty());
}

#[test]
fn no_ack_consumers_and_gets_are_not_bound() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 50);
    wire.confirmed(50);
    let mut consumer = broker.channel();
    consumer.qos(1, 1, false);
    for _ in 0..10 {
        assert!(consumer.get(1, &queue, false).is_some());
    }
    consumer.consume(1, &queue, "t", true);
    consumer.deliveries(40);
}

#[test]
fn a_channel_that_closes_gives_no_credit_to_the_next() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let queue = filled(&broker, &mut wire, 30);
    wire.confirmed(30);
    let mut consumer = broker.channel();
    for _ in 0..5 {
        consumer.qos(1, 3, false);
        consumer.consume(1, &queue, "t", false);
        let mut got = consumer.deliveries(3);
        got.extend(consumer.arrived(1));
        assert_eq!(got.iter().map(|delivery| delivery.tag).collect::<Vec<_>>(), [1, 2, 3]);
        consumer.close_channel(1);
        consumer.open(1);
    }
    assert_eq!(wire.drain(1, &queue).len(), 30);
}
