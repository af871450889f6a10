//! Order that is not that of publication: priorities, and one consumer at a time.

use lepus_shards::shard::{Reply, Request, Verdict};
use lepus_shards::{RefusalKind, Value, VhostId};

use crate::client::{Bench, Client};

fn publish_with_priority(bench: &mut Bench, client: Client, body: &str, priority: u8) {
    bench.send_with(client, "", "q", body, [priority, 1], None);
    bench.settle_down();
}

fn bodies(bench: &mut Bench, client: Client) -> Vec<String> {
    bench.deliveries(client).into_iter().map(|got| got.body).collect()
}

#[test]
fn higher_priorities_overtake_and_equal_ones_keep_their_order() {
    let mut bench = Bench::new();
    let (client, publisher) = (bench.connect(0), bench.connect(1));
    bench.declare(client, "q", &[("x-max-priority", 5)]);
    for (body, priority) in [("a1", 1), ("b5", 5), ("c3", 3), ("d0", 0), ("e9", 9), ("f5", 5)] {
        publish_with_priority(&mut bench, publisher, body, priority);
    }
    let held = bench.get(client, "q", false).unwrap();
    assert_eq!(held.body, "b5");
    bench.settle(client, held.tag, false, Verdict::Requeue);
    assert_eq!(bench.bodies(client, "q"), ["b5", "e9", "f5", "c3", "a1", "d0"]);
}

#[test]
fn a_queue_that_is_too_long_drops_its_highest_priority_first() {
    // As RabbitMQ does: the head of the queue is what would be delivered next.
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[("x-max-priority", 5), ("x-max-length", 2)]);
    for (body, priority) in [("a1", 1), ("b5", 5), ("c3", 3), ("d0", 0)] {
        publish_with_priority(&mut bench, client, body, priority);
    }
    assert_eq!(bench.bodies(client, "q"), ["a1", "d0"]);
}

#[test]
fn priorities_are_purged_and_expire_like_others() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[("x-max-priority", 255)]);
    for priority in [0, 7, 255] {
        bench.send_with(client, "", "q", "short", [priority, 1], Some(10));
        bench.send_with(client, "", "q", "long", [priority, 1], None);
    }
    bench.settle_down();
    bench.pass(10);
    assert_eq!(bench.look(client, "q"), Some((3, 0)));
    assert_eq!(bench.request(client, crate::client::purge("q")), Reply::QueuePurged { messages: 3 });
    assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
}

/// A queue with a single active consumer.
fn single() -> (Bench, Client) {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare_with(client, "q", &[("x-single-active-consumer", Value::Bool(true))]);
    (bench, client)
}

#[test]
fn one_consumer_gets_everything_and_the_next_goes_on_where_it_ended() {
    let (mut bench, publisher) = single();
    let (first, second) = (bench.connect(1), bench.connect(0));
    bench.prefetch(first, 3, false);
    bench.subscribe(first, "q");
    bench.subscribe(second, "q");
    for body in ["0", "1", "2", "3", "4"] {
        bench.publish(publisher, "q", body);
    }
    assert_eq!(bodies(&mut bench, first), ["0", "1", "2"]);
    assert!(bodies(&mut bench, second).is_empty(), "the active one has no credit, and nobody else gets any");
    bench.settle(first, 1, false, Verdict::Accept);
    assert_eq!(bodies(&mut bench, first), ["3"]);
    bench.disconnect(first);
    assert_eq!(
        bodies(&mut bench, second),
        ["1", "2", "3", "4"],
        "in order, from the first that was not settled"
    );
}

#[test]
fn what_a_cancelled_consumer_still_holds_is_waited_for() {
    let (mut bench, publisher) = single();
    let (first, second) = (bench.connect(1), bench.connect(0));
    bench.prefetch(first, 1, false);
    let consumer = bench.subscribe(first, "q");
    bench.subscribe(second, "q");
    for body in ["0", "1"] {
        bench.publish(publisher, "q", body);
    }
    let held = bench.deliveries(first);
    bench.request(first, Request::Cancel { consumer });
    assert!(bodies(&mut bench, second).is_empty());
    bench.settle(first, held[0].tag, false, Verdict::Requeue);
    assert_eq!(bodies(&mut bench, second), ["0", "1"]);
}

#[test]
fn the_highest_priority_and_then_the_longest_wait_follow() {
    let (mut bench, publisher) = single();
    let clients: Vec<Client> = (0..4).map(|shard| bench.connect(shard % 2)).collect();
    for (client, priority) in clients.iter().zip([0, 1, 5, 5]) {
        bench.consume(*client, "q", priority, false, true);
    }
    for (turn, active) in [0, 2, 3, 1].into_iter().enumerate() {
        bench.publish(publisher, "q", &turn.to_string());
        assert_eq!(bodies(&mut bench, clients[active]), [turn.to_string()]);
        bench.disconnect(clients[active]);
    }
}

#[test]
fn two_consumers_of_one_channel_do_not_hand_on_to_each_other_as_it_closes() {
    let (mut bench, publisher) = single();
    let (first, second) = (bench.connect(1), bench.connect(0));
    bench.prefetch(first, 2, false);
    bench.subscribe(first, "q");
    bench.subscribe(first, "q");
    bench.subscribe(second, "q");
    for body in ["0", "1", "2", "3"] {
        bench.publish(publisher, "q", body);
    }
    assert_eq!(bodies(&mut bench, first), ["0", "1"]);
    bench.disconnect(first);
    assert_eq!(bodies(&mut bench, second), ["0", "1", "2", "3"]);
}

#[test]
fn nobody_gets_or_consumes_exclusively_from_a_queue_with_a_single_active_consumer() {
    let (mut bench, client) = single();
    let get = Request::Get { vhost: VhostId(0), queue: "q".into(), no_ack: true };
    assert_eq!(bench.refused(client, get), RefusalKind::ResourceLocked);
    assert!(matches!(bench.consume(client, "q", 0, true, false), Reply::Refused(_)));
}
