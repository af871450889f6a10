//! Delayed exchanges: when messages go on, where they wait, and what becomes of that.

use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{HeaderSource, Publish, Published, Reply, Request, Verdict};
use lepus_shards::topology::Operation;
use lepus_shards::{Arguments, RefusalKind, Value, VhostId};

use crate::client::{Bench, Client, delete, purge, text};
use crate::exchange_client::{bind, bind_exchange, declare_exchange};

const VHOST: VhostId = VhostId(0);

#[derive(Debug)]
struct Delay(Value);

impl HeaderSource for Delay {
    fn headers(&self) -> Arguments {
        [("x-delay".to_owned(), self.0.clone())].into()
    }
}

fn send(bench: &mut Bench, client: Client, exchange: &str, key: &str, body: &str, delay: Value) -> Published {
    let message = MessageView {
        exchange: exchange.as_bytes(),
        routing_key: key.as_bytes(),
        properties: &[0, 1],
        body: body.as_bytes(),
    };
    let headers = &Delay(delay);
    let (durability, further_keys) = (Durability::Fsync, &[][..]);
    let publish = Publish { message, durability, mandatory: false, ttl_ms: None, further_keys, headers };
    let (kernel, around) = bench.world.at(client.shard);
    let published = kernel.publish(around, client.channel, &publish).unwrap();
    bench.settle_down();
    published
}

fn declare_delayed(name: &str, arguments: &[(&str, Value)]) -> Request {
    let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Request::Topology(Operation::DeclareExchange {
        vhost: VHOST,
        name: name.into(),
        kind: "x-delayed-message".into(),
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        arguments,
    })
}

fn delayed(name: &str, kind: &str) -> Request {
    declare_delayed(name, &[("x-delayed-type", text(kind))])
}

/// A delayed exchange `x` and a queue `q` that is bound by `k`, with a client on each shard.
fn prepared(kind: &str) -> (Bench, [Client; 2]) {
    let mut bench = Bench::new();
    let clients = [bench.connect(0), bench.connect(1)];
    bench.ask(clients[0], delayed("x", kind));
    bench.declare(clients[1], "q", &[]);
    bench.ask(clients[0], bind("x", "q", "k"));
    (bench, clients)
}

#[test]
fn a_message_goes_on_when_its_time_has_come_whatever_waits_before_it() {
    let (mut bench, clients) = prepared("direct");
    for (body, delay_ms) in [("third", 10_000), ("first", 10), ("second", 500)] {
        assert_eq!(send(&mut bench, clients[0], "x", "k", body, Value::I32(delay_ms)), Published::Routed(1));
    }
    send(&mut bench, clients[1], "x", "k", "at once", Value::I32(0));
    assert_eq!(bench.bodies(clients[0], "q"), ["at once"]);
    bench.pass(9);
    assert_eq!(bench.bodies(clients[0], "q"), Vec::<String>::new());
    bench.pass(1);
    assert_eq!(bench.bodies(clients[0], "q"), ["first"]);
    bench.pass(489);
    assert_eq!(bench.bodies(clients[0], "q"), Vec::<String>::new());
    bench.pass(1);
    assert_eq!(bench.bodies(clients[0], "q"), ["second"]);
    assert_eq!(bench.look(clients[1], "amq.delayed.x"), Some((1, 0)), "what waits is counted");
    bench.pass(9_500);
    assert_eq!(bench.bodies(clients[0], "q"), ["third"]);
    assert_eq!(bench.look(clients[1], "amq.delayed.x"), Some((0, 0)));
}

#[test]
fn a_transaction_s_message_waits_from_the_commit_on() {
    let (mut bench, [client, other]) = prepared("direct");
    bench.world.at(client.shard).0.select_transactions(client.channel);
    for (body, delay_ms) in [("later", 100), ("sooner", 10)] {
        assert_eq!(send(&mut bench, client, "x", "k", body, Value::I32(delay_ms)), Published::Kept);
    }
    bench.pass(1_000);
    assert_eq!(bench.look(other, "amq.delayed.x"), Some((0, 0)), "it is not committed");
    let (kernel, around) = bench.world.at(client.shard);
    kernel.commit(around, client.channel);
    bench.settle_down();
    assert_eq!(bench.replies(client), [Reply::Committed]);
    assert_eq!(bench.look(other, "amq.delayed.x"), Some((2, 0)));
    bench.pass(99);
    assert_eq!(bench.bodies(other, "q"), ["sooner"]);
    bench.pass(1);
    assert_eq!(bench.bodies(other, "q"), ["later"]);
}

#[test]
fn it_is_routed_as_the_type_says_and_by_the_bindings_of_then() {
    let (mut bench, clients) = prepared("topic");
    send(&mut bench, clients[0], "x", "a.b", "late", Value::I64(100));
    send(&mut bench, clients[0], "x", "nowhere", "lost", Value::I64(100));
    bench.ask(clients[0], bind("x", "q", "a.*"));
    let body = |bench: &mut Bench| bench.get(clients[1], "q", true).map(|got| (got.body, got.notes));
    bench.pass(100);
    let (text, notes) = body(&mut bench).unwrap();
    assert_eq!((&*text, notes), ("late", vec!["waited".to_owned()]), "and nothing of a death");
    assert_eq!(body(&mut bench), None);
    assert_eq!(bench.look(clients[0], "amq.delayed.x"), Some((0, 0)), "what leads nowhere ends");
}

#[test]
fn only_positive_integers_delay() {
    let (mut bench, clients) = prepared("fanout");
    let values = [Value::I32(-5), Value::Bool(true), text("100"), Value::F64(100.0), Value::Void];
    for (number, value) in values.into_iter().enumerate() {
        send(&mut bench, clients[0], "x", "", &number.to_string(), value);
    }
    assert_eq!(bench.bodies(clients[1], "q"), ["0", "1", "2", "3", "4"]);
}

#[test]
fn a_confirm_comes_from_where_the_message_waits() {
    let (mut bench, clients) = prepared("direct");
    for client in clients {
        bench.world.at(client.shard).0.select_confirms(client.channel);
        send(&mut bench, client, "x", "k", "m", Value::I32(50));
        assert_eq!(bench.confirms(client), [(1, 1, true)]);
    }
    bench.pass(50);
    assert_eq!(bench.bodies(clients[0], "q").len(), 2);
}

#[test]
fn an_exchange_on_the_way_delays_too_and_a_wait_is_over_once() {
    let (mut bench, clients) = prepared("direct");
    bench.declare(clients[0], "early", &[]);
    bench.ask(clients[0], declare_exchange("first", "fanout", &[]));
    bench.ask(clients[0], bind("first", "early", ""));
    bench.ask(clients[0], bind_exchange("first", "x", ""));
    bench.ask(clients[0], delayed("again", "fanout"));
    bench.ask(clients[0], bind_exchange("x", "again", "k"));
    bench.ask(clients[0], bind("again", "early", ""));
    assert_eq!(send(&mut bench, clients[1], "first", "k", "m", Value::I32(50)), Published::Routed(2));
    assert_eq!(bench.bodies(clients[0], "early"), ["m"]);
    bench.pass(50);
    assert_eq!(bench.bodies(clients[0], "q"), ["m"]);
    assert_eq!(bench.bodies(clients[0], "early"), ["m"], "the next delayed exchange lets it through");
}

#[test]
fn what_a_full_queue_refuses_waits_on() {
    let (mut bench, clients) = prepared("direct");
    let bound = [("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))];
    bench.declare_with(clients[0], "full", &bound);
    bench.ask(clients[0], bind("x", "full", "f"));
    for body in ["0", "1"] {
        send(&mut bench, clients[0], "x", "f", body, Value::I32(50));
    }
    bench.pass(50);
    assert_eq!(bench.bodies(clients[0], "full"), ["0"]);
    bench.pass(1_000);
    assert_eq!(bench.bodies(clients[0], "full"), ["1"]);
}

#[test]
fn where_messages_wait_is_the_exchanges_own() {
    let (mut bench, clients) = prepared("direct");
    send(&mut bench, clients[0], "x", "k", "m", Value::I32(50));
    let name = "amq.delayed.x";
    for request in [
        Request::Get { vhost: VHOST, queue: name.into(), no_ack: true },
        delete(name),
        bind("amq.fanout", name, ""),
        crate::client::declare(name, [false, false, false], &[]),
    ] {
        assert_eq!(bench.refused(clients[1], request), RefusalKind::AccessRefused);
    }
    bench.publish(clients[1], name, "smuggled");
    assert_eq!(bench.look(clients[1], name), Some((1, 0)), "its name leads a publish nowhere");
    assert_eq!(bench.request(clients[1], purge(name)), Reply::QueuePurged { messages: 1 });
    bench.pass(100);
    assert_eq!(bench.bodies(clients[1], "q"), Vec::<String>::new());
}

#[test]
fn messages_that_wait_go_with_their_exchange_and_a_new_one_starts_empty() {
    let (mut bench, clients) = prepared("direct");
    send(&mut bench, clients[0], "x", "k", "old", Value::I32(50));
    let delete = Operation::DeleteExchange { vhost: VHOST, name: "x".into(), if_unused: false };
    bench.ask(clients[1], Request::Topology(delete));
    assert_eq!(bench.look(clients[0], "amq.delayed.x"), None);
    bench.ask(clients[1], delayed("x", "direct"));
    bench.ask(clients[0], bind("x", "q", "k"));
    bench.pass(100);
    assert_eq!(bench.bodies(clients[0], "q"), Vec::<String>::new());
}

#[test]
fn a_dead_letter_that_asks_for_it_waits_before_it_comes_back() {
    let (mut bench, clients) = prepared("direct");
    let to = [("x-dead-letter-exchange", text("x")), ("x-dead-letter-routing-key", text("k"))];
    bench.declare_with(clients[0], "work", &to);
    // Headers of stored messages say nothing here: this one goes on at once, and is not lost on its way.
    bench.publish(clients[0], "work", "m");
    let held = bench.get(clients[1], "work", false).unwrap();
    bench.settle(clients[1], held.tag, false, Verdict::Reject);
    assert_eq!(bench.bodies(clients[1], "q"), ["m"]);
}

#[test]
fn a_type_that_cannot_be_is_refused() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    for kind in ["x-delayed-message", "nothing", "x-recent-history"] {
        assert_eq!(bench.refused(client, delayed("x", kind)), RefusalKind::PreconditionFailed);
    }
    assert_eq!(bench.refused(client, declare_delayed("x", &[])), RefusalKind::PreconditionFailed);
    let long = "x".repeat(255);
    assert_eq!(bench.refused(client, delayed(&long, "direct")), RefusalKind::PreconditionFailed);
    bench.ask(client, delayed("x", "direct"));
    bench.ask(client, delayed("x", "direct"));
    assert_eq!(bench.refused(client, delayed("x", "topic")), RefusalKind::PreconditionFailed);
}
