//! Queues that may be only so long.

use lepus_shards::Value;
use lepus_shards::shard::Verdict;

use crate::client::{Bench, Client, text};

fn confirming(bench: &mut Bench, shard: usize) -> Client {
    let client = bench.connect(shard);
    bench.world.at(shard).0.select_confirms(client.channel);
    client
}

/// Nothing is left in the logs, and nothing in memory.
fn assert_nothing_is_kept(bench: &Bench) {
    assert!(bench.world.around.iter().all(|around| around.logged.is_empty()), "the logs keep nothing");
    assert!(bench.world.shards.iter().all(|shard| shard.counts().memory_bytes < 1_000_000));
}

#[test]
fn the_first_ready_messages_go_when_the_queue_is_too_long() {
    let mut bench = Bench::new();
    let (client, publisher) = (bench.connect(0), confirming(&mut bench, 1));
    bench.declare(client, "q", &[("x-max-length", 2)]);
    for body in ["a", "b", "c", "d"] {
        bench.publish(publisher, "q", body);
    }
    assert_eq!(bench.look(client, "q"), Some((2, 0)));
    let confirmed = bench.confirms(publisher);
    assert!(confirmed.iter().all(|(_, _, accepted)| *accepted), "what is dropped later was taken");
    assert_eq!(bench.bodies(client, "q"), ["c", "d"]);
    assert_nothing_is_kept(&bench);
}

#[test]
fn a_burst_in_one_batch_is_cut_to_length_too() {
    let mut bench = Bench::new();
    let (client, publisher) = (bench.connect(0), bench.connect(1));
    bench.declare(client, "q", &[("x-max-length", 3)]);
    for number in 0..1_000 {
        bench.send(publisher, "", "q", &number.to_string(), true, None);
    }
    bench.settle_down();
    assert_eq!(bench.bodies(client, "q"), ["997", "998", "999"]);
    assert_nothing_is_kept(&bench);
}

#[test]
fn what_is_held_does_not_count_and_comes_back_in_front_of_the_line_that_is_cut() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    bench.declare(client, "q", &[("x-max-length", 1)]);
    bench.publish(client, "q", "held");
    let held = bench.get(client, "q", false).unwrap();
    bench.publish(client, "q", "ready");
    assert_eq!(bench.look(client, "q"), Some((1, 0)));
    bench.settle(client, held.tag, false, Verdict::Requeue);
    assert_eq!(bench.bodies(client, "q"), ["ready"], "the oldest ready message is dropped: the requeued one");
}

#[test]
fn a_queue_without_length_serves_consumers_only() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[("x-max-length", 0)]);
    bench.publish(client, "q", "nobody");
    assert_eq!(bench.look(client, "q"), Some((0, 0)));
    bench.subscribe(client, "q");
    bench.publish(client, "q", "somebody");
    assert_eq!(bench.deliveries(client).len(), 1);
}

#[test]
fn bytes_of_bodies_count_and_properties_do_not() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[("x-max-length-bytes", 10)]);
    for (body, ready) in [("12345", 1), ("67890", 2), ("a", 2), ("larger than it", 0), ("1234567890", 1)] {
        bench.publish(client, "q", body);
        assert_eq!(bench.look(client, "q"), Some((ready, 0)), "{body}");
    }
    let held = bench.get(client, "q", false).unwrap();
    bench.publish(client, "q", "1234567890");
    assert_eq!(bench.look(client, "q"), Some((1, 0)), "what is held does not count");
    bench.settle(client, held.tag, false, Verdict::Reject);
    bench.request(client, crate::client::purge("q"));
    bench.send(client, "", "q", "123456789", true, Some(5));
    bench.pass(5);
    bench.publish(client, "q", "1234567890");
    assert_eq!(bench.bodies(client, "q"), ["1234567890"], "purged and expired bytes are given back");
}

#[test]
fn a_full_queue_refuses_publishes_by_nack_and_other_queues_take_them() {
    let mut bench = Bench::new();
    let (client, publisher) = (bench.connect(0), confirming(&mut bench, 1));
    for queue in ["full", "free", "elsewhere"] {
        let bound = [("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))];
        bench.declare_with(client, queue, if queue == "full" { &bound } else { &[] });
        bench.bind_fanout(client, queue);
    }
    for body in ["a", "b"] {
        bench.send(publisher, "amq.fanout", "", body, true, None);
    }
    bench.settle_down();
    assert_eq!(bench.confirms(publisher), [(1, 1, true), (2, 2, false)]);
    assert_eq!(bench.bodies(client, "full"), ["a"]);
    for queue in ["free", "elsewhere"] {
        assert_eq!(bench.bodies(client, queue), ["a", "b"]);
    }
    bench.publish(publisher, "full", "c");
    assert_eq!(bench.confirms(publisher), [(3, 3, true)], "there is room again");
}

#[test]
fn without_confirms_a_full_queue_drops_what_it_refuses() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    let arguments = [("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))];
    bench.declare_with(client, "q", &arguments);
    for body in ["a", "b"] {
        bench.publish(client, "q", body);
    }
    assert_eq!(bench.bodies(client, "q"), ["a"]);
    assert_nothing_is_kept(&bench);
}

#[test]
fn a_queue_of_no_length_that_refuses_takes_nothing_even_for_consumers() {
    let mut bench = Bench::new();
    let client = confirming(&mut bench, 0);
    let arguments = [("x-max-length", Value::I32(0)), ("x-overflow", text("reject-publish"))];
    bench.declare_with(client, "q", &arguments);
    bench.subscribe(client, "q");
    bench.publish(client, "q", "a");
    assert_eq!((bench.confirms(client), bench.deliveries(client).len()), (vec![(1, 1, false)], 0));
}

#[test]
fn a_requeued_message_may_stand_beyond_the_length_of_a_queue_that_refuses() {
    let mut bench = Bench::new();
    let client = confirming(&mut bench, 0);
    let arguments = [("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))];
    bench.declare_with(client, "q", &arguments);
    bench.publish(client, "q", "a");
    let held = bench.get(client, "q", false).unwrap();
    bench.publish(client, "q", "b");
    bench.settle(client, held.tag, false, Verdict::Requeue);
    assert_eq!(bench.look(client, "q"), Some((2, 0)), "nothing that was taken is lost");
    bench.get(client, "q", true);
    bench.publish(client, "q", "c");
    assert_eq!(bench.confirms(client).last(), Some(&(3, 3, false)));
}
