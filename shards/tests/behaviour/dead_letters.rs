//! What becomes of messages that queues give up.

use lepus_shards::shard::{Reply, Request, Verdict};
use lepus_shards::topology::Operation;
use lepus_shards::{Value, VhostId};

use crate::client::{Bench, Client, delete, purge, text};

/// Queue `source` on one shard gives its dead letters to `target` on the other.
fn two_queues(more: &[(&str, Value)]) -> (Bench, Client) {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare_with_dead_letters(client, "source", "target", more);
    bench.declare(client, "target", &[]);
    (bench, client)
}

/// Bodies and histories of all that is in a queue.
fn letters(bench: &mut Bench, client: Client, queue: &str) -> Vec<(String, String)> {
    let got = std::iter::from_fn(|| bench.get(client, queue, true));
    got.map(|got| (got.body, got.notes.join(", "))).collect()
}

fn letter(body: &str, history: &str) -> (String, String) {
    (body.to_owned(), history.to_owned())
}

#[test]
fn a_rejected_message_goes_where_the_queue_says_and_says_why() {
    let (mut bench, client) = two_queues(&[]);
    bench.publish(client, "source", "m");
    let got = bench.get(client, "source", false).unwrap();
    bench.settle(client, got.tag, false, Verdict::Reject);
    let dead = bench.get(client, "target", true).unwrap();
    assert_eq!((dead.body.as_str(), dead.redelivered), ("m", false));
    assert_eq!(dead.notes, ["rejected source"]);
    assert!(bench.world.around.iter().all(|around| around.logged.is_empty()), "neither log keeps it");
}

#[test]
fn an_expired_message_is_given_up_in_the_order_of_the_queue_and_only_once() {
    let (mut bench, client) = two_queues(&[("x-message-ttl", Value::I32(50))]);
    for body in ["a", "b", "c"] {
        bench.publish(client, "source", body);
    }
    bench.pass(49);
    assert_eq!(bench.look(client, "target"), Some((0, 0)));
    bench.pass(1);
    let expired = |body| letter(body, "expired source");
    assert_eq!(letters(&mut bench, client, "target"), [expired("a"), expired("b"), expired("c")]);
    assert_eq!(bench.look(client, "source"), Some((0, 0)));
}

#[test]
fn a_message_without_any_time_is_dead_on_arrival() {
    let (mut bench, client) = two_queues(&[]);
    bench.send(client, "", "source", "m", true, Some(0));
    bench.settle_down();
    assert_eq!(letters(&mut bench, client, "target"), [letter("m", "expired source")]);
}

#[test]
fn a_message_that_expired_while_it_was_held_dies_when_it_comes_back() {
    let (mut bench, client) = two_queues(&[]);
    bench.send(client, "", "source", "m", true, Some(10));
    let got = bench.get(client, "source", false).unwrap();
    bench.pass(20);
    assert_eq!(bench.look(client, "target"), Some((0, 0)));
    bench.settle(client, got.tag, false, Verdict::Requeue);
    assert_eq!(letters(&mut bench, client, "target"), [letter("m", "expired source")]);
}

#[test]
fn what_a_full_queue_drops_or_refuses_is_given_up_too() {
    for (overflow, dead) in [("drop-head", "a"), ("reject-publish-dlx", "b")] {
        let (mut bench, client) =
            two_queues(&[("x-max-length", Value::I32(1)), ("x-overflow", text(overflow))]);
        bench.world.at(0).0.select_confirms(client.channel);
        for body in ["a", "b"] {
            bench.publish(client, "source", body);
        }
        assert_eq!(letters(&mut bench, client, "target"), [letter(dead, "maxlen source")]);
        assert_eq!(bench.look(client, "source"), Some((1, 0)));
        let refused = overflow == "reject-publish-dlx";
        assert_eq!(bench.confirms(client).last().map(|confirm| confirm.2), Some(!refused));
    }
}

#[test]
fn a_purged_and_a_deleted_queue_give_nothing_up() {
    let (mut bench, client) = two_queues(&[]);
    bench.publish(client, "source", "m");
    bench.request(client, purge("source"));
    bench.publish(client, "source", "m");
    bench.request(client, delete("source"));
    assert_eq!(bench.look(client, "target"), Some((0, 0)));
}

#[test]
fn a_dead_letter_without_a_place_is_dropped() {
    let (mut bench, client) = two_queues(&[]);
    bench.request(client, delete("target"));
    bench.declare_with(client, "lost", &[("x-dead-letter-exchange", text("not there"))]);
    for queue in ["source", "lost"] {
        bench.publish(client, queue, "m");
        let got = bench.get(client, queue, false).unwrap();
        bench.settle(client, got.tag, false, Verdict::Reject);
    }
    assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
}

#[test]
fn an_internal_exchange_takes_dead_letters() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    let internal = Operation::DeclareExchange {
        vhost: VhostId(0),
        name: "inside".into(),
        kind: "fanout".into(),
        passive: false,
        durable: false,
        auto_delete: false,
        internal: true,
        arguments: Default::default(),
    };
    bench.request(client, Request::Topology(internal));
    bench.declare(client, "target", &[]);
    bench.bind(client, "inside", "target", "");
    bench.declare_with(client, "source", &[("x-dead-letter-exchange", text("inside"))]);
    bench.publish(client, "source", "m");
    let got = bench.get(client, "source", false).unwrap();
    bench.settle(client, got.tag, false, Verdict::Reject);
    assert_eq!(letters(&mut bench, client, "target"), [letter("m", "rejected source")]);
}

#[test]
fn a_message_that_goes_in_circles_by_itself_is_dropped_and_a_rejected_one_is_not() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    let ttl = [("x-message-ttl", Value::I32(10))];
    for (from, to) in [("a", "b"), ("b", "a"), ("self", "self")] {
        bench.declare_with_dead_letters(client, from, to, &ttl);
    }
    bench.publish(client, "a", "circling");
    bench.publish(client, "self", "circling");
    for _ in 0..5 {
        bench.pass(10);
    }
    for queue in ["a", "b", "self"] {
        assert_eq!(bench.look(client, queue), Some((0, 0)), "{queue}");
    }
    // Rejected on its way, it goes on.
    bench.publish(client, "a", "rejected");
    bench.pass(10);
    let got = bench.get(client, "b", false).unwrap();
    bench.settle(client, got.tag, false, Verdict::Reject);
    bench.pass(10);
    let got = bench.get(client, "b", true).unwrap();
    assert_eq!(got.notes, ["expired a", "rejected b", "expired a"]);
}

#[test]
fn a_message_is_in_the_targets_log_before_the_source_lets_go() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    // Both on shard 0: one log.
    bench.declare_with_dead_letters(client, "source", "target", &[]);
    bench.declare(client, "elsewhere", &[]);
    bench.declare(client, "target", &[]);
    bench.publish(client, "source", "m");
    let got = bench.get(client, "source", false).unwrap();
    bench.settle(client, got.tag, false, Verdict::Reject);
    let logged = &bench.world.around[0].log_story;
    assert_eq!(logged[logged.len() - 2..], ["append 2", "settle 1"]);
}

mod at_least_once {
    use super::*;

    fn kept(more: &[(&str, Value)]) -> (Bench, Client) {
        let strategy = [("x-dead-letter-strategy", text("at-least-once"))];
        two_queues(&[&strategy, more].concat())
    }

    fn reject_one(bench: &mut Bench, client: Client, body: &str) {
        bench.publish(client, "source", body);
        let got = bench.get(client, "source", false).unwrap();
        let (kernel, around) = bench.world.at(client.shard);
        let tag = lepus_shards::DeliveryTag(got.tag);
        kernel.settle(around, client.channel, tag, false, Verdict::Reject).unwrap();
    }

    #[test]
    fn the_source_keeps_a_message_until_the_target_has_it_in_its_log() {
        let (mut bench, client) = kept(&[]);
        reject_one(&mut bench, client, "m");
        for _ in 0..4 {
            (0..2).for_each(|shard| bench.world.end_turn(shard));
            bench.world.settle_links();
        }
        assert_eq!(bench.world.around[0].logged.len(), 1, "the target's log has not written it");
        bench.settle_down();
        assert_eq!(bench.world.around[0].logged.len(), 0, "now it has");
        assert_eq!(letters(&mut bench, client, "target"), [letter("m", "rejected source")]);
    }

    #[test]
    fn a_target_that_is_full_or_missing_gets_the_message_when_it_can() {
        let (mut bench, client) = kept(&[]);
        bench.request(client, delete("target"));
        reject_one(&mut bench, client, "m");
        bench.settle_down();
        bench.pass(5_000);
        let full = [("x-max-length", Value::I32(0)), ("x-overflow", text("reject-publish"))];
        bench.declare_with(client, "target", &full);
        bench.pass(5_000);
        assert_eq!(bench.world.around[0].logged.len(), 1, "the source still has it");
        bench.request(client, delete("target"));
        bench.declare(client, "target", &[]);
        bench.pass(1_000);
        assert_eq!(letters(&mut bench, client, "target"), [letter("m", "rejected source")], "once");
        assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
    }

    #[test]
    fn of_several_targets_only_those_that_refused_are_tried_again() {
        let mut bench = Bench::new();
        let client = bench.connect(0);
        let to = [
            ("x-dead-letter-exchange", text("amq.fanout")),
            ("x-dead-letter-strategy", text("at-least-once")),
        ];
        bench.declare_with(client, "source", &to);
        let full = [("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))];
        for (queue, arguments) in [("free", &[][..]), ("full", &full[..])] {
            bench.declare_with(client, queue, arguments);
            bench.bind_fanout(client, queue);
        }
        bench.publish(client, "full", "in the way");
        reject_one(&mut bench, client, "m");
        bench.settle_down();
        bench.pass(3_000);
        assert_eq!(bench.bodies(client, "full"), ["in the way"]);
        bench.pass(1_000);
        assert_eq!(letters(&mut bench, client, "full"), [letter("m", "rejected source")]);
        assert_eq!(letters(&mut bench, client, "free"), [letter("m", "rejected source")], "once");
    }

    #[test]
    fn a_target_that_is_deleted_under_way_counts_as_one_that_refused() {
        let mut bench = Bench::new();
        let (client, deleter) = (bench.connect(1), bench.connect(0));
        // The target's owner is the shard that decides about deletions: it hears of this one first.
        bench.declare(client, "target", &[]);
        let strategy = [("x-dead-letter-strategy", text("at-least-once"))];
        bench.declare_with_dead_letters(client, "source", "target", &strategy);
        reject_one(&mut bench, client, "m");
        let (kernel, around) = bench.world.at(0);
        kernel.request(around, deleter.channel, delete("target"));
        bench.settle_down();
        assert_eq!(bench.replies(deleter), [Reply::QueueDeleted { messages: 0 }], "it had not arrived");
        bench.declare(client, "target", &[]);
        bench.pass(1_000);
        assert_eq!(letters(&mut bench, client, "target"), [letter("m", "rejected source")]);
        assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
    }

    #[test]
    fn a_circle_ends_a_message_that_is_kept_too() {
        let mut bench = Bench::new();
        let client = bench.connect(0);
        let more = [("x-message-ttl", Value::I32(10)), ("x-dead-letter-strategy", text("at-least-once"))];
        bench.declare_with_dead_letters(client, "self", "self", &more);
        bench.publish(client, "self", "m");
        bench.pass(10);
        assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
    }
}

mod delivery_limit {
    use super::*;

    #[test]
    fn a_message_that_fails_once_too_often_is_given_up() {
        let (mut bench, client) = two_queues(&[("x-delivery-limit", Value::I32(2))]);
        bench.publish(client, "source", "m");
        let mut notes = Vec::new();
        while let Some(got) = bench.get(client, "source", false) {
            notes.push(got.notes.join(""));
            bench.settle(client, got.tag, false, Verdict::Fail);
        }
        assert_eq!(notes, ["", "returned 1 1", "returned 2 2"]);
        assert_eq!(letters(&mut bench, client, "target"), [letter("m", "delivery_limit source")]);
    }

    #[test]
    fn what_is_merely_put_back_does_not_count_and_a_lost_connection_does() {
        let (mut bench, client) = two_queues(&[("x-delivery-limit", Value::I32(1))]);
        bench.publish(client, "source", "m");
        for _ in 0..5 {
            let got = bench.get(client, "source", false).unwrap();
            bench.settle(client, got.tag, false, Verdict::Requeue);
        }
        for expected in ["returned 5 0", "returned 6 1"] {
            let other = bench.connect(1);
            assert_eq!(bench.get(other, "source", false).unwrap().notes, [expected]);
            bench.disconnect(other);
        }
        assert_eq!(letters(&mut bench, client, "target"), [letter("m", "delivery_limit source")]);
    }

    #[test]
    fn deliveries_of_queues_without_a_limit_say_nothing() {
        let (mut bench, client) = two_queues(&[]);
        bench.publish(client, "source", "m");
        for redelivered in [false, true, true] {
            let got = bench.get(client, "source", false).unwrap();
            assert_eq!((got.redelivered, got.notes.len()), (redelivered, 0));
            bench.settle(client, got.tag, false, Verdict::Fail);
        }
        bench.subscribe(client, "source");
        assert!(bench.deliveries(client)[0].notes.is_empty());
    }
}
