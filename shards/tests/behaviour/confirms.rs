//! When a publish is confirmed.

use lepus_shards::Value;
use lepus_shards::shard::Verdict;

use crate::client::{Bench, Client, delete};

fn confirming(bench: &mut Bench, shard: usize) -> Client {
    let client = bench.connect(shard);
    bench.world.at(shard).0.select_confirms(client.channel);
    client
}

/// Ends the turns of all shards and lets batches arrive, without the logs.
fn without_logs(bench: &mut Bench) {
    for _ in 0..4 {
        for shard in 0..2 {
            bench.world.end_turn(shard);
        }
        bench.world.settle_links();
    }
}

#[test]
fn a_persistent_message_waits_for_the_log_and_a_transient_one_only_for_its_order() {
    let mut bench = Bench::new();
    let client = confirming(&mut bench, 0);
    bench.declare(client, "q", &[]);
    bench.send(client, "", "q", "transient", false, None);
    bench.send(client, "", "q", "persistent", true, None);
    bench.send(client, "", "q", "transient again", false, None);
    without_logs(&mut bench);
    bench.collect();
    assert_eq!(bench.confirms(client), [(1, 1, true)]);
    bench.settle_down();
    assert_eq!(bench.confirms(client), [(2, 3, true)], "together");
}

#[test]
fn a_message_in_queues_of_several_shards_waits_for_all_their_logs() {
    let mut bench = Bench::new();
    let client = confirming(&mut bench, 0);
    for queue in ["a", "b", "c"] {
        bench.declare(client, queue, &[]);
        bench.bind_fanout(client, queue);
    }
    bench.send(client, "amq.fanout", "", "m", true, None);
    without_logs(&mut bench);
    bench.world.commit_all(0);
    without_logs(&mut bench);
    bench.collect();
    assert_eq!(bench.confirms(client), [], "the other shard's log has it not");
    bench.world.commit_all(1);
    without_logs(&mut bench);
    bench.collect();
    assert_eq!(bench.confirms(client), [(1, 1, true)]);
}

#[test]
fn what_nobody_takes_is_confirmed_at_once_and_in_order() {
    let mut bench = Bench::new();
    let client = confirming(&mut bench, 1);
    for _ in 0..3 {
        bench.send(client, "", "nowhere", "m", true, None);
    }
    without_logs(&mut bench);
    bench.collect();
    assert_eq!(bench.confirms(client), [(1, 3, true)]);
}

#[test]
fn a_queue_that_is_deleted_meanwhile_confirms_all_the_same() {
    let mut bench = Bench::new();
    let (client, other) = (confirming(&mut bench, 0), bench.connect(1));
    bench.declare(client, "q", &[]);
    bench.publish(client, "q", "before");
    assert_eq!(bench.confirms(client), [(1, 1, true)]);
    bench.send(client, "", "q", "under way", true, None);
    bench.request(other, delete("q"));
    bench.send(client, "", "q", "too late", true, None);
    bench.settle_down();
    let confirmed: u64 = bench
        .confirms(client)
        .iter()
        .map(|(first, last, accepted)| if *accepted { last - first + 1 } else { 0 })
        .sum();
    assert_eq!(confirmed, 2);
}

#[test]
fn queues_of_different_durability_share_a_message_and_each_is_done_with_it_alone() {
    let text = |name: &str| Value::LongString(name.as_bytes().to_vec());
    for kept_first in [true, false] {
        let mut bench = Bench::new();
        let client = bench.connect(0);
        // Queues are spread over the shards by turns: each has both kinds.
        let mut queues = Vec::new();
        for durability in ["fsync", "memory"] {
            for number in 0..2 {
                let queue = format!("{durability} {number}");
                bench.declare_with(client, &queue, &[("x-durability", text(durability))]);
                bench.bind_fanout(client, &queue);
                queues.push(queue);
            }
        }
        queues.sort_by_key(|queue| queue.starts_with("fsync") != kept_first);
        bench.send(client, "", "memory 0", "alone", true, None);
        bench.settle_down();
        let logged =
            |bench: &Bench| -> usize { bench.world.around.iter().map(|around| around.logged.len()).sum() };
        assert_eq!(logged(&bench), 0, "nobody asked for it to be kept");
        assert_eq!(bench.get(client, "memory 0", true).unwrap().body, "alone");
        bench.send(client, "amq.fanout", "", "shared", true, None);
        bench.settle_down();
        assert!(logged(&bench) > 0);
        for queue in &queues {
            let got = bench.get(client, queue, false).unwrap();
            bench.settle(client, got.tag, false, Verdict::Requeue);
            let got = bench.get(client, queue, false).unwrap();
            assert_eq!((got.body.as_str(), got.redelivered), ("shared", true));
            bench.settle(client, got.tag, false, Verdict::Accept);
        }
        assert_eq!(logged(&bench), 0);
    }
}
