//! Exchanges that remember, and exchanges that choose.

use std::collections::BTreeMap;

use crate::client::{Bench, Client};
use crate::exchange_client::{bind, bind_exchange, declare_exchange, delete_exchange, unbind};

fn remembering(bench: &mut Bench, client: Client, length: i64) {
    bench.ask(client, declare_exchange("x", "x-recent-history", &[("x-recent-history-length", length)]));
}

#[test]
fn a_new_queue_gets_the_last_messages_in_order_and_those_to_come() {
    let mut bench = Bench::new();
    let clients = [bench.connect(0), bench.connect(1)];
    remembering(&mut bench, clients[0], 3);
    for (n, body) in ["0", "1", "2", "3", "4"].into_iter().enumerate() {
        bench.send(clients[n % 2], "x", "key", body, true, None);
        bench.settle_down();
    }
    // Four queues, so that each shard owns some.
    for queue in ["q0", "q1", "q2", "q3"] {
        bench.declare(clients[0], queue, &[]);
        bench.ask(clients[1], bind("x", queue, ""));
    }
    bench.send(clients[1], "x", "key", "5", true, None);
    bench.settle_down();
    for queue in ["q0", "q1", "q2", "q3"] {
        assert_eq!(bench.bodies(clients[0], queue), ["2", "3", "4", "5"], "{queue}");
    }
}

#[test]
fn a_message_that_is_under_way_while_a_queue_is_bound_comes_once() {
    // On each of two shards a publish is sent in every state of the binding's way through the broker.
    for seed in 0..200 {
        let mut bench = Bench::new();
        bench.world.random.seed(seed);
        let clients = [bench.connect(0), bench.connect(1)];
        remembering(&mut bench, clients[0], 100);
        bench.declare(clients[0], "q", &[]);
        bench.begin(clients[1], bind("x", "q", ""));
        let mut sent = Vec::new();
        for step in 0..20 {
            let body = step.to_string();
            bench.send(clients[step % 2], "x", "", &body, true, None);
            bench.world.happen();
            sent.push(body);
        }
        bench.settle_down();
        let mut bodies = bench.bodies(clients[0], "q");
        bodies.sort_by_key(|body| body.parse::<usize>().unwrap());
        assert_eq!(bodies, sent, "each once");
    }
}

#[test]
fn a_history_comes_through_an_exchange_that_is_bound_and_by_its_rules() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    remembering(&mut bench, client, 5);
    for key in ["a", "b", "a"] {
        bench.send(client, "x", key, key, false, None);
    }
    bench.declare(client, "q", &[]);
    bench.ask(client, bind("amq.direct", "q", "a"));
    assert_eq!(bench.bodies(client, "q"), Vec::<String>::new());
    bench.ask(client, bind_exchange("x", "amq.direct", ""));
    assert_eq!(bench.bodies(client, "q"), ["a", "a"]);
}

#[test]
fn a_history_goes_with_its_exchange() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    remembering(&mut bench, client, 5);
    bench.declare(client, "q", &[]);
    bench.send(client, "x", "", "old", true, None);
    bench.ask(client, bind("x", "q", ""));
    bench.ask(client, unbind("x", "q", ""));
    bench.ask(client, bind("x", "q", ""));
    assert_eq!(bench.bodies(client, "q"), ["old", "old"], "bound anew is remembered to anew");
    bench.ask(client, delete_exchange("x"));
    remembering(&mut bench, client, 5);
    bench.ask(client, bind("x", "q", ""));
    assert_eq!(bench.bodies(client, "q"), Vec::<String>::new());
}

#[test]
fn histories_take_a_bounded_share_of_memory_and_are_counted() {
    let budget = 800_000;
    let mut bench = Bench::with_budget(budget);
    let client = bench.connect(0);
    remembering(&mut bench, client, 1_000_000);
    let body = "m".repeat(1_000);
    for _ in 0..500 {
        bench.send(client, "x", "", &body, true, None);
        bench.settle_down();
    }
    let bytes = |bench: &mut Bench| -> u64 {
        (0..2).map(|shard| bench.world.shards[shard].counts().memory_bytes).sum()
    };
    let kept = bytes(&mut bench);
    assert!((90_000..=100_000).contains(&kept), "an eighth of the budget: {kept}");
    bench.ask(client, delete_exchange("x"));
    assert_eq!(bytes(&mut bench), 0);
}

#[test]
fn a_lot_falls_on_every_binding_and_one_at_a_time() {
    for kind in ["x-random", "x-local-random"] {
        let mut bench = Bench::new();
        let client = bench.connect(1);
        bench.ask(client, declare_exchange("x", kind, &[]));
        for queue in ["q0", "q1", "q2"] {
            bench.declare(client, queue, &[]);
            bench.ask(client, bind("x", queue, ""));
        }
        for _ in 0..300 {
            bench.send(client, "x", "same", "m", false, None);
        }
        bench.settle_down();
        let counts: BTreeMap<&str, u64> =
            ["q0", "q1", "q2"].map(|queue| (queue, bench.look(client, queue).unwrap().0)).into();
        assert_eq!(counts.values().sum::<u64>(), 300);
        assert!(counts.values().all(|count| *count > 50), "{kind}: {counts:?}");
    }
}

#[test]
fn a_hashed_key_stays_on_its_queue_whoever_publishes_and_moves_only_to_a_new_one() {
    let mut bench = Bench::new();
    let clients = [bench.connect(0), bench.connect(1)];
    bench.ask(clients[0], declare_exchange("x", "x-consistent-hash", &[]));
    for queue in ["q0", "q1", "q2"] {
        bench.declare(clients[0], queue, &[]);
        bench.ask(clients[0], bind("x", queue, "1"));
    }
    let spread = |bench: &mut Bench, publisher: Client, queues: &[&str]| -> Vec<(String, String)> {
        for key in 0..100 {
            let key = key.to_string();
            bench.send(publisher, "x", &key, &key, false, None);
        }
        bench.settle_down();
        let mut found = Vec::new();
        for queue in queues {
            found.extend(bench.bodies(clients[0], queue).into_iter().map(|key| (key, (*queue).to_owned())));
        }
        found.sort();
        found
    };
    let first = spread(&mut bench, clients[0], &["q0", "q1", "q2"]);
    assert_eq!(first.len(), 100);
    assert_eq!(first, spread(&mut bench, clients[1], &["q0", "q1", "q2"]));
    bench.declare(clients[0], "q3", &[]);
    bench.ask(clients[0], bind("x", "q3", "1"));
    for (before, after) in first.iter().zip(spread(&mut bench, clients[1], &["q0", "q1", "q2", "q3"])) {
        assert!(*before == after || after.1 == "q3", "{before:?} became {after:?}");
    }
}
