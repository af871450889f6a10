//! Tracing of a vhost, turned on and off while clients are at work.

use lepus_shards::VhostId;
use lepus_shards::shard::{Reply, Request};
use lepus_shards::topology::{Operation, TRACE_EXCHANGE};

use crate::client::{Bench, Client};

const VHOST: VhostId = VhostId(0);

/// Queues on two shards, a client on each, and the traces of one of them.
fn scene(keys: &str) -> (Bench, [Client; 2]) {
    let mut bench = Bench::new();
    let clients = [bench.connect(0), bench.connect(1)];
    for queue in ["q0", "q1", "traces"] {
        bench.declare(clients[0], queue, &[]);
    }
    bench.bind(clients[0], TRACE_EXCHANGE, "traces", keys);
    (bench, clients)
}

fn turn(bench: &mut Bench, client: Client, on: bool) {
    let request = Request::Topology(Operation::TraceVhost { vhost: VHOST, on });
    assert_eq!(bench.request(client, request), Reply::Done);
}

/// What was traced since last asked: what happened, and the body.
fn traces(bench: &mut Bench, client: Client) -> Vec<(String, String)> {
    let got = std::iter::from_fn(|| bench.get(client, "traces", true));
    got.map(|got| (got.notes.join("\n"), got.body)).collect()
}

#[test]
fn channels_that_publish_already_are_traced_from_then_on_and_no_longer_than_asked() {
    let (mut bench, clients) = scene("publish.#");
    for (round, traced) in [false, true, false, true].into_iter().enumerate() {
        if round > 0 {
            // Whoever asks, it holds for all, and to ask again changes nothing.
            turn(&mut bench, clients[round % 2], traced);
            turn(&mut bench, clients[0], traced);
        }
        for (client, queue) in [(clients[0], "q0"), (clients[1], "q0"), (clients[1], "q1")] {
            for body in ["first", "by the same way"] {
                bench.publish(client, queue, body);
            }
        }
        let expected: Vec<(String, String)> = ["q0", "q0", "q1"]
            .iter()
            .flat_map(|queue| ["first", "by the same way"].map(|body| (*queue, body)))
            .map(|(queue, body)| (format!("published on 1 in / to {queue} from ''"), body.to_owned()))
            .collect();
        assert_eq!(traces(&mut bench, clients[0]), if traced { expected } else { Vec::new() });
        for queue in ["q0", "q1"] {
            bench.bodies(clients[1], queue);
        }
    }
}

#[test]
fn deliveries_of_either_shard_are_traced_where_they_arrive() {
    let (mut bench, clients) = scene("deliver.#");
    bench.subscribe(clients[0], "q0");
    turn(&mut bench, clients[1], true);
    bench.consume(clients[1], "q1", 0, false, true);
    bench.publish(clients[1], "q0", "a");
    bench.publish(clients[0], "q1", "b");
    bench.publish(clients[0], "q1", "c");
    let delivered = |body: &str| ("delivered on 1 in / false from ''".to_owned(), body.to_owned());
    assert_eq!(traces(&mut bench, clients[0]), ["a", "b", "c"].map(delivered));
    assert_eq!(traces(&mut bench, clients[1]), [], "traces are not traced");
}

#[test]
fn what_is_traced_waits_for_nobody_and_changes_no_confirm() {
    let (mut bench, clients) = scene("#");
    turn(&mut bench, clients[0], true);
    let (kernel, _) = bench.world.at(1);
    kernel.select_confirms(clients[1].channel);
    bench.publish(clients[1], "q0", "m");
    bench.publish(clients[1], "nobody", "m");
    let confirms = bench.confirms(clients[1]);
    assert_eq!(confirms.iter().map(|(first, last, _)| last - first + 1).sum::<u64>(), 2);
    assert!(confirms.iter().all(|(.., accepted)| *accepted));
    let stories: Vec<String> = traces(&mut bench, clients[0]).into_iter().map(|(story, _)| story).collect();
    assert_eq!(stories, ["published on 1 in / to q0 from ''", "published on 1 in / to  from ''"]);
}
