//! How long messages and queues live.

use lepus_shards::RefusalKind;
use lepus_shards::shard::{Reply, Request, Verdict};

use crate::client::{Bench, declare, delete, purge};

#[test]
fn a_message_goes_when_its_time_is_over_wherever_it_stands() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[]);
    for (body, ttl_ms) in [("long", Some(60_000)), ("short", Some(50)), ("ever", None), ("last", Some(50))] {
        bench.send(client, "", "q", body, true, ttl_ms);
    }
    bench.pass(49);
    assert_eq!(bench.look(client, "q"), Some((4, 0)));
    bench.pass(1);
    assert_eq!(bench.look(client, "q"), Some((2, 0)));
    assert_eq!(bench.bodies(client, "q"), ["long", "ever"]);
}

#[test]
fn the_queues_time_to_live_counts_too_and_the_shorter_one_wins() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    bench.declare(client, "q", &[("x-message-ttl", 100)]);
    for (body, ttl_ms) in [("queue's", None), ("own", Some(10)), ("longer", Some(1_000))] {
        bench.send(client, "", "q", body, true, ttl_ms);
    }
    bench.settle_down();
    bench.pass(10);
    assert_eq!(bench.look(client, "q"), Some((2, 0)));
    bench.pass(90);
    assert_eq!(bench.look(client, "q"), Some((0, 0)));
}

#[test]
fn a_message_that_is_held_past_its_time_is_kept_until_it_comes_back() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[]);
    for body in ["a", "b"] {
        bench.send(client, "", "q", body, true, Some(100));
    }
    let (first, second) = (bench.get(client, "q", false).unwrap(), bench.get(client, "q", false).unwrap());
    bench.pass(200);
    bench.settle(client, first.tag, false, Verdict::Requeue);
    assert_eq!(bench.look(client, "q"), Some((0, 0)), "too late to go back");
    bench.settle(client, second.tag, false, Verdict::Accept);
}

#[test]
fn a_message_without_any_time_reaches_a_consumer_that_waits_and_nobody_else() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[]);
    bench.send(client, "", "q", "nobody", true, Some(0));
    bench.settle_down();
    assert_eq!(bench.look(client, "q"), Some((0, 0)));
    bench.subscribe(client, "q");
    bench.send(client, "", "q", "waited for", true, Some(0));
    bench.settle_down();
    assert_eq!(bench.deliveries(client).len(), 1);
}

#[test]
fn a_queue_that_nobody_uses_expires_and_one_that_is_used_does_not() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    for queue in ["unused", "looked at", "consumed"] {
        bench.declare(client, queue, &[("x-expires", 1_000)]);
    }
    let consumer = bench.connect(0);
    bench.subscribe(consumer, "consumed");
    bench.pass(900);
    assert!(bench.get(client, "looked at", true).is_none());
    bench.pass(200);
    assert_eq!(bench.look(client, "unused"), None);
    assert_eq!(bench.look(client, "looked at"), Some((0, 0)));
    bench.pass(5_000);
    assert_eq!(bench.look(client, "consumed"), Some((0, 1)));
    bench.disconnect(consumer);
    bench.pass(5_000);
    assert_eq!(bench.look(client, "consumed"), None);
}

#[test]
fn an_auto_delete_queue_goes_with_its_last_consumer_and_waits_for_the_first() {
    let mut bench = Bench::new();
    let (here, there) = (bench.connect(0), bench.connect(1));
    bench.request(here, declare("q", [false, false, true], &[]));
    bench.pass(60_000);
    assert_eq!(bench.look(here, "q"), Some((0, 0)));
    let consumer = bench.subscribe(here, "q");
    bench.subscribe(there, "q");
    assert_eq!(bench.request(here, Request::Cancel { consumer }), Reply::Cancelled { consumer });
    assert_eq!(bench.look(here, "q"), Some((0, 1)));
    bench.disconnect(there);
    assert_eq!(bench.look(here, "q"), None);
}

#[test]
fn an_exclusive_queue_is_its_connections_alone_and_goes_with_it() {
    let mut bench = Bench::new();
    let (owner, other) = (bench.connect(1), bench.connect(0));
    bench.request(owner, declare("q", [false, true, false], &[]));
    let refused = bench.refused(other, declare("q", [false, true, false], &[]));
    assert_eq!(refused, RefusalKind::ResourceLocked);
    let refused = bench.refused(other, purge("q"));
    assert_eq!(refused, RefusalKind::ResourceLocked);
    bench.disconnect(owner);
    assert_eq!(bench.look(other, "q"), None);
}

#[test]
fn a_deleted_queue_cancels_its_consumers_and_forgets_what_they_hold() {
    let mut bench = Bench::new();
    let (consumer, deleter) = (bench.connect(0), bench.connect(1));
    bench.declare(consumer, "q", &[]);
    bench.prefetch(consumer, 1, false);
    bench.subscribe(consumer, "q");
    for body in ["held", "ready"] {
        bench.publish(deleter, "q", body);
    }
    assert_eq!(bench.request(deleter, delete("q")), Reply::QueueDeleted { messages: 1 });
    assert_eq!(bench.cancelled(consumer), 1);
    // The ack comes too late, and is no mistake.
    let held = bench.deliveries(consumer);
    bench.settle(consumer, held[0].tag, false, Verdict::Accept);
    assert_eq!(bench.look(deleter, "q"), None);
    assert!(bench.world.around.iter().all(|around| around.logged.is_empty()), "the log keeps nothing for it");
}

#[test]
fn a_large_queue_is_purged_in_slices_between_which_others_are_served() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "large", &[]);
    for number in 0..10_000 {
        bench.send(client, "", "large", &number.to_string(), true, None);
    }
    bench.settle_down();
    let held = bench.get(client, "large", false).unwrap();
    let (kernel, around) = bench.world.at(0);
    kernel.request(around, client.channel, purge("large"));
    // It takes many ticks; each does a bounded part.
    let (mut ticks, mut left) = (0, usize::MAX);
    for shard in [0, 1].repeat(3) {
        bench.world.end_turn(shard);
        bench.world.settle_links();
    }
    while bench.world.shards.iter().any(|shard| shard.has_rubble()) {
        for shard in 0..2 {
            let (kernel, around) = bench.world.at(shard);
            kernel.carry_off(around);
        }
        let logged: usize = bench.world.around.iter().map(|around| around.logged.len()).sum();
        assert!(left == usize::MAX || left - logged <= 2 * 4 * 64, "a slice is bounded");
        (left, ticks) = (logged, ticks + 1);
    }
    assert!(ticks >= 4, "{ticks} ticks for ten thousand messages");
    bench.settle_down();
    assert_eq!(bench.replies(client), [Reply::QueuePurged { messages: 9_999 }], "answered when all are gone");
    assert_eq!(bench.look(client, "large"), Some((0, 0)));
    bench.settle(client, held.tag, false, Verdict::Requeue);
    assert_eq!(bench.bodies(client, "large"), ["0"], "what was held was not purged");
}
