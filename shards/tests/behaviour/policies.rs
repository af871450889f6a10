//! Policies come, go and are changed while queues and exchanges are in use.

use lepus_shards::shard::{Reply, Request};
use lepus_shards::topology::{ApplyTo, Operation, Policy, PolicyOf};
use lepus_shards::{RefusalKind, Value, VhostId};

use crate::client::{Bench, Client, declare};
use crate::exchange_client::{bind, declare_exchange};

const VHOST: VhostId = VhostId(0);

fn set(name: &str, pattern: &str, fields: &[(&str, Value)]) -> Request {
    let definition = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let (name, pattern, apply_to, priority) = (name.into(), pattern.into(), ApplyTo::All, 0);
    let policy = Policy { name, pattern, apply_to, priority, definition };
    Request::Topology(Operation::SetPolicy { vhost: VHOST, of: PolicyOf::User, policy })
}

fn clear(name: &str) -> Request {
    Request::Topology(Operation::ClearPolicy { vhost: VHOST, of: PolicyOf::User, name: name.into() })
}

fn text(text: &str) -> Value {
    Value::LongString(text.into())
}

/// Two queues on two shards, with five messages each.
fn filled() -> (Bench, [Client; 2]) {
    let mut bench = Bench::new();
    let clients = [bench.connect(0), bench.connect(1)];
    for queue in ["q0", "q1"] {
        bench.declare(clients[0], queue, &[]);
        for body in ["0", "1", "2", "3", "4"] {
            bench.publish(clients[1], queue, body);
        }
    }
    (bench, clients)
}

#[test]
fn a_queue_that_is_too_long_is_shortened_when_the_policy_comes() {
    for (setting, limit) in [("max-length", 2), ("max-length-bytes", 2)] {
        let (mut bench, clients) = filled();
        bench.ask(clients[1], set("p", "^q", &[(setting, Value::I64(limit))]));
        for queue in ["q0", "q1"] {
            assert_eq!(bench.look(clients[0], queue), Some((2, 0)), "{setting}");
            bench.publish(clients[0], queue, "5");
            assert_eq!(bench.bodies(clients[1], queue), ["4", "5"], "{setting}");
        }
        bench.ask(clients[0], clear("p"));
        for body in ["6", "7", "8"] {
            bench.publish(clients[0], "q0", body);
        }
        assert_eq!(bench.bodies(clients[0], "q0"), ["6", "7", "8"], "bounds go with the policy");
    }
}

#[test]
fn bytes_are_counted_right_while_bounds_come_and_go() {
    let (mut bench, clients) = filled();
    let held = bench.get(clients[0], "q0", false).unwrap();
    bench.ask(clients[1], set("p", "^q", &[("max-length-bytes", Value::I64(100))]));
    bench.settle(clients[0], held.tag, false, lepus_shards::shard::Verdict::Requeue);
    bench.ask(clients[1], set("p", "^q", &[("max-length-bytes", Value::I64(3))]));
    assert_eq!(bench.look(clients[0], "q0"), Some((3, 0)));
    bench.ask(clients[1], set("p", "^q", &[("max-length", Value::I64(100))]));
    bench.publish(clients[0], "q0", "5");
    bench.ask(clients[1], set("p", "^q", &[("max-length-bytes", Value::I64(2))]));
    assert_eq!(bench.bodies(clients[0], "q0"), ["4", "5"]);
}

#[test]
fn a_time_to_live_holds_for_messages_to_come_and_one_of_the_queue_for_itself() {
    let (mut bench, clients) = filled();
    bench.ask(clients[0], set("p", "^q0", &[("message-ttl", Value::I64(100))]));
    bench.publish(clients[0], "q0", "mortal");
    bench.pass(150);
    assert_eq!(bench.bodies(clients[0], "q0"), ["0", "1", "2", "3", "4"]);
    bench.ask(clients[0], set("p", "^q", &[("expires", Value::I64(1_000))]));
    bench.pass(600);
    // Less time than before: what the old time says does not count any more, and the other way round.
    bench.ask(clients[0], set("p", "^q", &[("expires", Value::I64(500))]));
    bench.pass(450);
    let there =
        |bench: &mut Bench, queue: &str| bench.world.shards[0].topology().queue(VHOST, queue).is_some();
    assert!(there(&mut bench, "q0") && there(&mut bench, "q1"), "the new time began with the policy");
    bench.pass(100);
    assert!(!there(&mut bench, "q0") && !there(&mut bench, "q1"));
    bench.declare(clients[0], "q0", &[]);
    bench.pass(450);
    bench.ask(clients[0], set("p", "^q", &[("expires", Value::I64(5_000))]));
    bench.pass(1_000);
    assert!(there(&mut bench, "q0"), "the deadline of the former time has passed");
    bench.ask(clients[0], clear("p"));
    bench.pass(60_000);
    assert!(there(&mut bench, "q0"));
}

#[test]
fn dead_letters_go_where_the_policy_says() {
    let (mut bench, clients) = filled();
    bench.declare(clients[0], "dead", &[]);
    bench.ask(
        clients[0],
        set(
            "p",
            "^q",
            &[
                ("dead-letter-exchange", text("")),
                ("dead-letter-routing-key", text("dead")),
                ("max-length", Value::I64(3)),
            ],
        ),
    );
    assert_eq!(bench.bodies(clients[0], "dead").len(), 4, "two of each queue were too many");
}

#[test]
fn an_exchange_gets_an_alternate_by_policy_also_for_a_route_that_was_used_before() {
    let (mut bench, clients) = filled();
    bench.ask(clients[0], declare_exchange("x", "direct", &[]));
    bench.ask(clients[0], declare_exchange("other", "fanout", &[]));
    bench.declare(clients[0], "rest", &[]);
    bench.ask(clients[0], bind("other", "rest", ""));
    let publish = |bench: &mut Bench, body: &str| {
        for client in clients {
            bench.send(client, "x", "nowhere", body, false, None);
        }
        bench.settle_down();
    };
    publish(&mut bench, "lost");
    bench.ask(clients[1], set("p", "^x$", &[("alternate-exchange", text("other"))]));
    publish(&mut bench, "kept");
    assert_eq!(bench.bodies(clients[0], "rest"), ["kept", "kept"]);
    bench.ask(clients[1], clear("p"));
    publish(&mut bench, "lost");
    assert_eq!(bench.bodies(clients[0], "rest"), Vec::<String>::new());
}

#[test]
fn what_comes_after_the_policy_is_told_as_well() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    bench.ask(client, set("p", "^late", &[("max-length", Value::I64(1))]));
    bench.request(client, declare("late", [false, false, false], &[]));
    for body in ["0", "1"] {
        bench.publish(client, "late", body);
    }
    assert_eq!(bench.bodies(client, "late"), ["1"]);
}

#[test]
fn publishers_that_wait_go_on_when_the_policy_lets_them() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    bench.declare(client, "q", &[]);
    let block = [("max-length", Value::I64(1)), ("overflow", text("block"))];
    bench.ask(client, set("p", "^q", &block));
    bench.publish(client, "q", "0");
    bench.publish(client, "q", "1");
    assert_eq!(bench.look(client, "q"), Some((1, 0)), "the second waits outside");
    bench.ask(client, clear("p"));
    assert_eq!(bench.bodies(client, "q"), ["0", "1"]);
}

#[test]
fn a_policy_that_is_none_is_refused_and_changes_nothing() {
    let (mut bench, clients) = filled();
    let wrong = set("p", "(", &[("max-length", Value::I64(1))]);
    assert_eq!(bench.refused(clients[0], wrong), RefusalKind::PreconditionFailed);
    let wrong = set("p", "^q", &[("max-length", Value::I64(-1))]);
    assert_eq!(bench.refused(clients[0], wrong), RefusalKind::PreconditionFailed);
    assert_eq!(bench.refused(clients[0], clear("p")), RefusalKind::NotFound);
    assert_eq!(bench.look(clients[0], "q0"), Some((5, 0)));
    // One that fits nothing is kept all the same.
    assert_eq!(
        bench.request(clients[1], set("p", "^nothing", &[("max-length", Value::I64(1))])),
        Reply::Done
    );
    assert_eq!(bench.request(clients[1], clear("p")), Reply::Done);
}
