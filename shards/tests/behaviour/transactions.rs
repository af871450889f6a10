//! Transactions: what is seen of them, when, and what is left when they do not come to their end.

use lepus_shards::shard::{Published, Reply, Request, Verdict};
use lepus_shards::{DeliveryTag, RefusalKind, Value, VhostId};

use crate::client::{Bench, Client, delete, text};
use crate::world::Event;

/// A client with transactions on this shard.
fn transactional(bench: &mut Bench, shard: usize) -> Client {
    let client = bench.connect(shard);
    bench.world.at(shard).0.select_transactions(client.channel);
    client
}

fn begin_commit(bench: &mut Bench, client: Client) {
    let (kernel, around) = bench.world.at(client.shard);
    kernel.commit(around, client.channel);
}

fn commit(bench: &mut Bench, client: Client) -> Reply {
    begin_commit(bench, client);
    bench.settle_down();
    let mut replies = bench.replies(client);
    assert_eq!(replies.len(), 1, "a commit has one answer");
    replies.remove(0)
}

fn roll_back(bench: &mut Bench, client: Client) {
    bench.world.at(client.shard).0.roll_back(client.channel);
    bench.settle_down();
}

/// Durable queues, of which each shard has at least one, bound to the fanout exchange.
fn queues(bench: &mut Bench, client: Client) -> [&'static str; 4] {
    let queues = ["a", "b", "c", "d"];
    for queue in queues {
        bench.declare(client, queue, &[]);
        bench.bind_fanout(client, queue);
    }
    let owners: Vec<usize> = queues.iter().map(|queue| owner(bench, queue)).collect();
    assert!(owners.contains(&0) && owners.contains(&1));
    queues
}

fn owner(bench: &Bench, queue: &str) -> usize {
    let info = bench.world.shards[0].topology().queue(VhostId(0), queue).unwrap();
    info.id.owner().index()
}

/// What was asked of both logs since the start, as far as transactions go.
fn story(bench: &Bench) -> Vec<String> {
    let all = bench.world.around.iter().flat_map(|around| &around.log_story);
    all.filter(|what| !what.starts_with("append") && !what.starts_with("settle")).cloned().collect()
}

fn assert_nothing_left(bench: &Bench) {
    for around in &bench.world.around {
        around.assert_no_transactions();
        assert!(around.logged.is_empty(), "{:?}", around.logged);
    }
}

#[test]
fn what_is_published_is_there_for_all_when_the_commit_is_answered_and_not_before() {
    let mut bench = Bench::new();
    let (client, other) = (transactional(&mut bench, 0), bench.connect(1));
    let queues = queues(&mut bench, client);
    for body in ["0", "1"] {
        bench.send(client, "amq.fanout", "", body, true, None);
        bench.send(client, "", "a", body, false, None);
    }
    bench.settle_down();
    for queue in queues {
        assert_eq!(bench.look(other, queue), Some((0, 0)), "{queue}");
    }
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    assert_eq!(bench.bodies(other, "a"), ["0", "0", "1", "1"], "in the order of publishing");
    for queue in &queues[1..] {
        assert_eq!(bench.bodies(other, queue), ["0", "1"], "{queue}");
    }
    assert_nothing_left(&bench);
}

#[test]
fn whoever_hears_of_a_commit_sees_it_from_any_shard() {
    for seed in 0..200 {
        let mut bench = Bench::new();
        let client = transactional(&mut bench, 0);
        let readers = [bench.connect(0), bench.connect(1)];
        let queues = queues(&mut bench, client);
        bench.world.random = fastrand::Rng::with_seed(seed);
        bench.send(client, "amq.fanout", "", "m", true, None);
        begin_commit(&mut bench, client);
        while !bench.replies(client).contains(&Reply::Committed) {
            bench.world.happen();
            bench.collect();
        }
        for queue in queues {
            // On the shard of the queue a get is answered at once.
            let reader = readers[owner(&bench, queue)];
            let request = Request::Get { vhost: VhostId(0), queue: queue.into(), no_ack: true };
            let (kernel, around) = bench.world.at(reader.shard);
            kernel.request(around, reader.channel, request);
            bench.collect();
            let got = bench.take(reader, |event| matches!(event, Event::Got { .. }).then_some(()));
            assert_eq!(got.len(), 1, "{queue}, seed {seed}");
        }
    }
}

#[test]
fn a_commit_on_one_shard_is_one_group_and_waits_for_the_log() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    queues(&mut bench, client);
    let queue = if owner(&bench, "a") == 0 { "a" } else { "b" };
    for body in ["0", "1"] {
        bench.send(client, "", queue, body, true, None);
    }
    begin_commit(&mut bench, client);
    bench.world.end_turn(0);
    bench.collect();
    assert_eq!(bench.replies(client), [], "not on disk");
    bench.world.commit_all(0);
    bench.collect();
    assert_eq!(bench.replies(client), [Reply::Committed]);
    assert_eq!(story(&bench).len(), 1, "{:?}", story(&bench));
    assert!(story(&bench)[0].starts_with("group"));
    assert_eq!(bench.bodies(client, queue), ["0", "1"]);
    assert_nothing_left(&bench);
}

#[test]
fn a_commit_on_several_shards_is_prepared_decided_and_resolved() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    queues(&mut bench, client);
    bench.send(client, "amq.fanout", "", "m", true, None);
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    let mut story = story(&bench);
    story.sort();
    assert_eq!(story, ["decide", "forget", "prepare", "prepare", "resolve true", "resolve true"]);
}

#[test]
fn what_no_log_has_to_keep_is_committed_without_logs() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    let queues = queues(&mut bench, client);
    assert_eq!(commit(&mut bench, client), Reply::Committed, "of nothing");
    bench.send(client, "amq.fanout", "", "m", false, None);
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    assert_eq!(story(&bench), [] as [&str; 0]);
    for queue in queues {
        assert_eq!(bench.bodies(client, queue), ["m"]);
    }
}

#[test]
fn a_rollback_drops_publishes_and_leaves_deliveries_unacked_under_their_tags() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    bench.declare(client, "q", &[]);
    let other = bench.connect(1);
    for body in ["0", "1", "2", "3"] {
        bench.publish(other, "q", body);
    }
    for tag in 1..=4 {
        assert_eq!(bench.get(client, "q", false).unwrap().tag, tag);
    }
    bench.send(client, "", "q", "never", true, None);
    bench.settle(client, 3, false, Verdict::Requeue);
    bench.settle(client, 2, true, Verdict::Accept);
    bench.settle(client, 4, false, Verdict::Reject);
    assert_eq!(bench.look(other, "q"), Some((0, 0)), "nothing has come back");
    roll_back(&mut bench, client);
    assert_eq!(bench.look(other, "q"), Some((0, 0)), "nor does it by that");
    bench.settle(client, 1, false, Verdict::Accept);
    bench.settle(client, 4, true, Verdict::Requeue);
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    assert_eq!(bench.bodies(other, "q"), ["1", "2", "3"]);
    assert_nothing_left(&bench);
}

#[test]
fn a_delivery_is_settled_once_within_a_transaction_and_recover_does_not_touch_it() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    bench.declare(client, "q", &[]);
    for body in ["0", "1", "2"] {
        let other = bench.connect(0);
        bench.publish(other, "q", body);
        bench.get(client, "q", false).unwrap();
    }
    bench.settle(client, 2, false, Verdict::Accept);
    let (kernel, around) = bench.world.at(0);
    for (tag, multiple) in [(2, false), (2, true), (7, false)] {
        let refused = kernel.settle(around, client.channel, DeliveryTag(tag), multiple, Verdict::Accept);
        assert_eq!(refused.unwrap_err().text, format!("unknown delivery tag {tag}"));
    }
    kernel.recover(around, client.channel);
    bench.settle_down();
    assert_eq!(bench.look(client, "q"), Some((2, 0)), "RabbitMQ's recover is not part of the transaction");
    roll_back(&mut bench, client);
    bench.settle(client, 2, false, Verdict::Accept);
    commit(&mut bench, client);
    assert_eq!(bench.bodies(client, "q"), ["0", "2"]);
    assert_nothing_left(&bench);
}

#[test]
fn prefetch_is_used_until_the_commit() {
    for global in [false, true] {
        for shard in 0..2 {
            let mut bench = Bench::new();
            let client = transactional(&mut bench, shard);
            bench.declare(client, "q", &[]);
            let other = bench.connect(1);
            for body in ["0", "1", "2", "3", "4"] {
                bench.publish(other, "q", body);
            }
            bench.prefetch(client, 2, global);
            bench.subscribe(client, "q");
            assert_eq!(bench.deliveries(client).len(), 2);
            bench.settle(client, 2, true, Verdict::Accept);
            assert_eq!(bench.deliveries(client), [], "not before the commit");
            roll_back(&mut bench, client);
            assert_eq!(bench.deliveries(client), [], "not by a rollback");
            bench.settle(client, 1, false, Verdict::Accept);
            assert_eq!(commit(&mut bench, client), Reply::Committed);
            assert_eq!(bench.deliveries(client).len(), 1, "one was acked");
            bench.settle(client, 0, true, Verdict::Accept);
            assert_eq!(commit(&mut bench, client), Reply::Committed);
            assert_eq!(bench.deliveries(client).len(), 2);
            bench.settle(client, 0, true, Verdict::Accept);
            assert_eq!(commit(&mut bench, client), Reply::Committed);
            assert_nothing_left(&bench);
        }
    }
}

#[test]
fn a_channel_that_closes_requeues_what_it_had_not_committed() {
    for lost in [false, true] {
        let mut bench = Bench::new();
        let (client, other) = (transactional(&mut bench, 0), bench.connect(1));
        bench.declare(client, "q", &[]);
        for body in ["0", "1", "2", "3"] {
            bench.publish(other, "q", body);
            bench.get(client, "q", false).unwrap();
        }
        bench.settle(client, 3, false, Verdict::Accept);
        bench.settle(client, 1, false, Verdict::Reject);
        bench.send(client, "", "q", "never", true, None);
        if lost {
            bench.disconnect(client);
        } else {
            let (kernel, around) = bench.world.at(0);
            kernel.close_channel(around, client.channel);
            bench.settle_down();
        }
        let got: Vec<_> = std::iter::from_fn(|| bench.get(other, "q", true)).collect();
        let bodies: Vec<&str> = got.iter().map(|got| got.body.as_str()).collect();
        assert_eq!(bodies, ["0", "1", "2", "3"]);
        assert!(got.iter().all(|got| got.redelivered));
        assert_nothing_left(&bench);
    }
}

#[test]
fn a_commit_under_way_does_not_need_its_connection() {
    for seed in 0..300 {
        let mut bench = Bench::new();
        let (client, other) = (transactional(&mut bench, 0), bench.connect(1));
        let queues = queues(&mut bench, client);
        bench.publish(other, "a", "acked");
        bench.publish(other, "a", "held");
        bench.subscribe(client, "a");
        bench.settle(client, 1, false, Verdict::Accept);
        bench.send(client, "amq.fanout", "", "m", true, None);
        bench.world.random = fastrand::Rng::with_seed(seed);
        begin_commit(&mut bench, client);
        for _ in 0..seed % 40 {
            bench.world.happen();
        }
        bench.collect();
        bench.disconnect(client);
        assert_eq!(bench.bodies(other, "a"), ["held", "m"], "seed {seed}");
        for queue in &queues[1..] {
            assert_eq!(bench.bodies(other, queue), ["m"], "{queue}, seed {seed}");
        }
        assert_nothing_left(&bench);
    }
}

#[test]
fn a_queue_that_is_deleted_meanwhile_takes_its_share_with_it() {
    // At any moment of the commit.
    for seed in 0..300 {
        let mut bench = Bench::new();
        let (client, other) = (transactional(&mut bench, 0), bench.connect(1));
        let queues = queues(&mut bench, client);
        bench.publish(other, "a", "acked");
        bench.publish(other, "b", "acked");
        for (queue, tag) in [("a", 1), ("b", 2)] {
            assert_eq!(bench.get(client, queue, false).unwrap().tag, tag);
        }
        bench.settle(client, 0, true, Verdict::Accept);
        bench.send(client, "amq.fanout", "", "m", true, None);
        bench.world.random = fastrand::Rng::with_seed(seed);
        begin_commit(&mut bench, client);
        for _ in 0..seed % 40 {
            bench.world.happen();
        }
        let (kernel, around) = bench.world.at(1);
        kernel.request(around, other.channel, delete("a"));
        bench.settle_down();
        assert_eq!(bench.replies(client), [Reply::Committed], "seed {seed}");
        bench.replies(other);
        for queue in &queues[1..] {
            assert_eq!(bench.bodies(other, queue), ["m"], "{queue}, seed {seed}");
        }
        assert_nothing_left(&bench);
    }
}

#[test]
fn a_consumer_that_is_cancelled_leaves_its_deliveries_to_the_commit() {
    let mut bench = Bench::new();
    let (client, other) = (transactional(&mut bench, 0), bench.connect(1));
    queues(&mut bench, client);
    let consumer = bench.subscribe(client, "a");
    bench.publish(other, "a", "acked");
    bench.publish(other, "a", "held");
    bench.settle(client, 1, false, Verdict::Accept);
    assert_eq!(bench.request(client, Request::Cancel { consumer }), Reply::Cancelled { consumer });
    assert_eq!(bench.look(other, "a"), Some((0, 0)), "both are the channel's");
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    bench.disconnect(client);
    assert_eq!(bench.bodies(other, "a"), ["held"]);
    assert_nothing_left(&bench);
}

#[test]
fn what_was_published_before_on_the_channel_comes_first() {
    for seed in 0..100 {
        let mut bench = Bench::new();
        let client = bench.connect(0);
        queues(&mut bench, client);
        bench.send(client, "amq.fanout", "", "before", true, None);
        bench.world.at(0).0.select_transactions(client.channel);
        bench.send(client, "amq.fanout", "", "within", true, None);
        bench.world.random = fastrand::Rng::with_seed(seed);
        begin_commit(&mut bench, client);
        while !bench.replies(client).contains(&Reply::Committed) {
            bench.world.happen();
            bench.collect();
        }
        for queue in ["a", "b", "c", "d"] {
            assert_eq!(bench.bodies(client, queue), ["before", "within"], "{queue}, seed {seed}");
        }
    }
}

#[test]
fn publishes_come_before_settlements() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    bench.declare(client, "q", &[("x-max-length", 1)]);
    let other = bench.connect(1);
    bench.publish(other, "q", "old");
    bench.get(client, "q", false).unwrap();
    bench.settle(client, 1, false, Verdict::Requeue);
    bench.send(client, "", "q", "new", true, None);
    commit(&mut bench, client);
    assert_eq!(bench.bodies(client, "q"), ["new"], "what comes back is one too many, and the first");
    assert_nothing_left(&bench);
}

#[test]
fn a_full_queue_that_rejects_refuses_the_whole_transaction() {
    for shard in 0..2 {
        let mut bench = Bench::new();
        let (client, other) = (transactional(&mut bench, shard), bench.connect(1));
        let queues = queues(&mut bench, client);
        let arguments = [("x-max-length", Value::I32(2)), ("x-overflow", text("reject-publish"))];
        bench.declare_with(client, "full", &arguments);
        bench.bind_fanout(client, "full");
        bench.publish(other, "a", "acked");
        bench.get(client, "a", false).unwrap();
        bench.settle(client, 1, false, Verdict::Accept);
        for body in ["0", "1", "2"] {
            bench.send(client, "amq.fanout", "", body, true, None);
        }
        match commit(&mut bench, client) {
            Reply::Refused(refusal) => assert_eq!(refusal.kind, RefusalKind::PreconditionFailed),
            other => panic!("{other:?}"),
        }
        for queue in queues.iter().chain(&["full"]) {
            assert_eq!(bench.bodies(other, queue), [] as [&str; 0], "{queue}");
        }
        assert!(story(&bench).iter().all(|what| what == "prepare" || what == "resolve false"));
        // The protocol closes the channel: what it had acked is back.
        bench.disconnect(client);
        assert_eq!(bench.bodies(other, "a"), ["acked"]);
        // Two are not too many.
        let client = transactional(&mut bench, shard);
        for body in ["0", "1"] {
            bench.send(client, "amq.fanout", "", body, true, None);
        }
        assert_eq!(commit(&mut bench, client), Reply::Committed);
        for queue in queues.iter().chain(&["full"]) {
            assert_eq!(bench.bodies(other, queue), ["0", "1"], "{queue}");
        }
        assert_nothing_left(&bench);
    }
}

#[test]
fn a_full_queue_that_makes_publishers_wait_takes_a_transaction_all_the_same() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    let arguments = [("x-max-length", Value::I32(1)), ("x-overflow", text("block"))];
    bench.declare_with(client, "q", &arguments);
    for body in ["0", "1", "2"] {
        bench.send(client, "", "q", body, true, None);
    }
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    assert_eq!(bench.holds(client), [] as [bool; 0]);
    assert_eq!(bench.bodies(client, "q"), ["0", "1", "2"]);
}

#[test]
fn unroutable_messages_come_back_with_the_commit_and_unknown_exchanges_at_once() {
    let mut bench = Bench::new();
    let client = transactional(&mut bench, 0);
    assert_eq!(send_mandatory(&mut bench, client, "", "nowhere").unwrap(), Published::Kept);
    roll_back(&mut bench, client);
    send_mandatory(&mut bench, client, "", "nowhere").unwrap();
    let unknown = send_mandatory(&mut bench, client, "nothing", "nowhere").unwrap_err();
    assert_eq!(unknown.kind, RefusalKind::NotFound);
    bench.settle_down();
    let events = |bench: &mut Bench| {
        bench.take(client, |event| match event {
            Event::Returned { .. } => Some("returned"),
            Event::Reply { reply: Reply::Committed, .. } => Some("committed"),
            _ => None,
        })
    };
    assert_eq!(events(&mut bench), [] as [&str; 0]);
    begin_commit(&mut bench, client);
    bench.settle_down();
    assert_eq!(events(&mut bench), ["returned", "committed"]);
}

fn send_mandatory(
    bench: &mut Bench,
    client: Client,
    exchange: &str,
    key: &str,
) -> Result<Published, lepus_shards::Refusal> {
    use lepus_shards::message::{Durability, MessageView};
    use lepus_shards::shard::{NoHeaders, Publish};
    let (exchange, routing_key) = (exchange.as_bytes(), key.as_bytes());
    let message = MessageView { exchange, routing_key, properties: &[0, 1], body: b"m" };
    let publish = Publish {
        message,
        durability: Durability::Fsync,
        mandatory: true,
        ttl_ms: None,
        further_keys: &[],
        headers: &NoHeaders,
    };
    let (kernel, around) = bench.world.at(client.shard);
    kernel.publish(around, client.channel, &publish)
}

#[test]
fn what_is_not_committed_is_memory_and_is_bounded() {
    let mut bench = Bench::with_budget(1 << 20);
    let client = transactional(&mut bench, 0);
    bench.declare(client, "q", &[]);
    let body = "x".repeat(50_000);
    let before = bench.world.shards[0].counts().memory_bytes;
    send_body(&mut bench, client, &body).unwrap();
    assert!(bench.world.shards[0].counts().memory_bytes >= before + 50_000);
    send_body(&mut bench, client, &body).unwrap();
    let refusal = send_body(&mut bench, client, &body).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::ResourceError);
    assert_eq!(refusal.text, "transactions that are not committed have more than 131072 bytes");
    roll_back(&mut bench, client);
    assert_eq!(bench.world.shards[0].counts().memory_bytes, before);
    send_body(&mut bench, client, &body).unwrap();
    bench.disconnect(client);
    assert_eq!(bench.world.shards[0].counts().memory_bytes, before);
}

fn send_body(bench: &mut Bench, client: Client, body: &str) -> Result<Published, lepus_shards::Refusal> {
    use lepus_shards::message::{Durability, MessageView};
    use lepus_shards::shard::{NoHeaders, Publish};
    let message =
        MessageView { exchange: b"", routing_key: b"q", properties: &[0, 0], body: body.as_bytes() };
    let publish = Publish {
        message,
        durability: Durability::Memory,
        mandatory: false,
        ttl_ms: None,
        further_keys: &[],
        headers: &NoHeaders,
    };
    let (kernel, around) = bench.world.at(client.shard);
    kernel.publish(around, client.channel, &publish)
}

#[test]
fn a_message_that_a_queue_does_not_keep_is_settled_in_the_log() {
    let mut bench = Bench::new();
    let (client, other) = (transactional(&mut bench, 0), bench.connect(1));
    let queues = queues(&mut bench, client);
    // One passes it on without acks, one holds it for somebody, and for one its time is over at once.
    assert!(matches!(bench.consume(other, queues[0], 0, false, true), Reply::Consuming { .. }));
    bench.subscribe(other, queues[1]);
    bench.declare_with(client, "late", &[("x-message-ttl", Value::I32(0))]);
    bench.bind_fanout(client, "late");
    bench.send(client, "amq.fanout", "", "m", true, None);
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    let deliveries = bench.deliveries(other);
    assert_eq!(deliveries.len(), 2);
    let in_log: usize = bench
        .world
        .around
        .iter()
        .flat_map(|around| around.logged.values())
        .map(|(queues, _)| queues.len())
        .sum();
    assert_eq!(in_log, 3, "those that keep it");
    let (kernel, around) = bench.world.at(1);
    let acked = deliveries.iter().any(|got| {
        kernel.settle(around, other.channel, DeliveryTag(got.tag), false, Verdict::Accept).is_ok()
    });
    assert!(acked);
    bench.settle_down();
    for queue in &queues[2..] {
        assert_eq!(bench.bodies(other, queue), ["m"]);
    }
    assert_nothing_left(&bench);
}

#[test]
fn a_rejected_delivery_becomes_a_dead_letter_with_the_commit() {
    let mut bench = Bench::new();
    let (client, other) = (transactional(&mut bench, 0), bench.connect(1));
    bench.declare(client, "dead", &[]);
    bench.declare_with_dead_letters(client, "q", "dead", &[]);
    bench.publish(other, "q", "m");
    bench.get(client, "q", false).unwrap();
    bench.settle(client, 1, false, Verdict::Reject);
    assert_eq!(bench.look(client, "dead"), Some((0, 0)));
    assert_eq!(commit(&mut bench, client), Reply::Committed);
    assert_eq!(bench.bodies(client, "dead"), ["m"]);
    assert_nothing_left(&bench);
}

#[test]
fn transactions_of_several_channels_do_not_mix() {
    let mut bench = Bench::new();
    let clients = [transactional(&mut bench, 0), transactional(&mut bench, 0), transactional(&mut bench, 1)];
    queues(&mut bench, clients[0]);
    for (client, body) in clients.into_iter().zip(["0", "1", "2"]) {
        bench.send(client, "amq.fanout", "", body, true, None);
    }
    for client in clients {
        begin_commit(&mut bench, client);
    }
    bench.settle_down();
    for client in clients {
        assert_eq!(bench.replies(client), [Reply::Committed]);
    }
    for queue in ["a", "b", "c", "d"] {
        let mut bodies = bench.bodies(clients[2], queue);
        bodies.sort();
        assert_eq!(bodies, ["0", "1", "2"]);
    }
    assert_nothing_left(&bench);
}
