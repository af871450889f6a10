//! Full queues that make their publishers wait.

use lepus_shards::Value;
use lepus_shards::shard::{Reply, Verdict};

use crate::client::{Bench, Client, delete, purge, text};

fn blocking(bench: &mut Bench, client: Client, queue: &str, most: i32) {
    let arguments = [("x-max-length", Value::I32(most)), ("x-overflow", text("block"))];
    bench.declare_with(client, queue, &arguments);
}

/// A queue for two messages, and a publisher with confirms on the other shard.
fn full() -> (Bench, Client, Client) {
    let mut bench = Bench::new();
    let (client, publisher) = (bench.connect(0), bench.connect(1));
    blocking(&mut bench, client, "q", 2);
    bench.world.at(1).0.select_confirms(publisher.channel);
    for body in ["0", "1", "2", "3"] {
        bench.publish(publisher, "q", body);
    }
    (bench, client, publisher)
}

#[test]
fn what_comes_to_a_full_queue_waits_outside_unconfirmed_and_goes_in_in_order() {
    let (mut bench, client, publisher) = full();
    assert_eq!(bench.look(client, "q"), Some((2, 0)));
    assert_eq!(bench.holds(publisher), [true], "told once");
    assert_eq!(bench.confirms(publisher).last(), Some(&(2, 2, true)));
    let first = bench.get(client, "q", false).unwrap();
    assert_eq!(bench.confirms(publisher), [(3, 3, true)], "room for one");
    assert_eq!(bench.holds(publisher), [] as [bool; 0], "another one waits");
    bench.settle(client, first.tag, false, Verdict::Accept);
    assert_eq!(bench.bodies(client, "q"), ["1", "2", "3"]);
    assert_eq!((bench.confirms(publisher), bench.holds(publisher)), (vec![(4, 4, true)], vec![false]));
    assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
}

#[test]
fn a_consumer_a_purge_and_time_make_room() {
    let (mut bench, client, publisher) = full();
    bench.subscribe(client, "q");
    let bodies: Vec<String> = bench.deliveries(client).into_iter().map(|got| got.body).collect();
    assert_eq!(
        (bodies, bench.holds(publisher)),
        (["0", "1", "2", "3"].map(str::to_owned).to_vec(), vec![true, false])
    );

    let (mut bench, client, publisher) = full();
    assert_eq!(bench.request(client, purge("q")), Reply::QueuePurged { messages: 2 });
    assert_eq!((bench.look(client, "q"), bench.holds(publisher)), (Some((2, 0)), vec![true, false]));

    let mut bench = Bench::new();
    let client = bench.connect(0);
    blocking(&mut bench, client, "q", 1);
    for body in ["0", "1"] {
        bench.send(client, "", "q", body, true, Some(10));
    }
    bench.settle_down();
    bench.pass(10);
    assert_eq!(bench.bodies(client, "q"), ["1"], "its time began as it went in");
    assert_eq!(bench.holds(client), [true, false]);
}

#[test]
fn a_message_for_several_queues_is_confirmed_when_it_is_in_all() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.world.at(0).0.select_confirms(client.channel);
    for (queue, most) in [("a", 1), ("b", 100), ("c", 1), ("d", 1)] {
        blocking(&mut bench, client, queue, most);
        bench.bind_fanout(client, queue);
    }
    for body in ["0", "1"] {
        bench.send(client, "amq.fanout", "", body, true, None);
    }
    bench.settle_down();
    assert_eq!(bench.confirms(client), [(1, 1, true)]);
    assert_eq!(bench.look(client, "b"), Some((2, 0)), "what has room has it");
    for (queue, left) in [("a", vec![]), ("c", vec![]), ("d", vec![(2, 2, true)])] {
        assert_eq!(bench.get(client, queue, true).unwrap().body, "0");
        assert_eq!(bench.confirms(client), left, "{queue}");
    }
    assert_eq!(bench.holds(client), [true, false]);
}

#[test]
fn a_large_message_enters_an_empty_queue_and_waits_for_a_full_one() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    let arguments = [("x-max-length-bytes", Value::I32(4)), ("x-overflow", text("block"))];
    bench.declare_with(client, "q", &arguments);
    bench.publish(client, "q", "larger than that");
    bench.publish(client, "q", "x");
    assert_eq!((bench.look(client, "q"), bench.holds(client)), (Some((1, 0)), vec![true]));
    assert_eq!(bench.bodies(client, "q"), ["larger than that", "x"]);
}

#[test]
fn who_waits_for_a_queue_that_is_deleted_goes_on() {
    let (mut bench, client, publisher) = full();
    bench.request(client, delete("q"));
    assert_eq!(bench.holds(publisher), [true, false]);
    assert_eq!(bench.confirms(publisher).last(), Some(&(3, 4, true)));
    assert_eq!(bench.world.shards[0].counts().memory_bytes, 0);
}

#[test]
fn a_publisher_that_goes_leaves_what_waits() {
    let (mut bench, client, publisher) = full();
    bench.disconnect(publisher);
    assert_eq!(bench.bodies(client, "q"), ["0", "1", "2", "3"]);
}

#[test]
fn a_dead_letter_waits_and_holds_nobody() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    blocking(&mut bench, client, "target", 1);
    bench.declare_with_dead_letters(client, "source", "target", &[]);
    for body in ["0", "1"] {
        bench.publish(client, "source", body);
        let got = bench.get(client, "source", false).unwrap();
        bench.settle(client, got.tag, false, Verdict::Reject);
    }
    assert_eq!(bench.holds(client), [] as [bool; 0]);
    assert_eq!(bench.bodies(client, "target"), ["0", "1"]);
}
