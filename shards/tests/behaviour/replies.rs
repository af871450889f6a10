//! Direct replies: straight to who asked, at most once.

use lepus_shards::shard::{Published, Reply, Request};
use lepus_shards::topology::{Operation, REPLY_QUEUE};
use lepus_shards::{Arguments, RefusalKind, VhostId};

use crate::client::{Bench, Client, declare, delete, purge};
use crate::exchange_client::{bind, unbind};

const VHOST: VhostId = VhostId(0);

fn passive(name: &str) -> Request {
    let (name, passive) = (name.to_owned(), true);
    let [durable, exclusive, auto_delete] = [false; 3];
    let arguments = Arguments::new();
    Request::Topology(Operation::DeclareQueue {
        vhost: VHOST,
        name,
        passive,
        durable,
        exclusive,
        auto_delete,
        arguments,
    })
}

fn bodies(bench: &mut Bench, client: Client) -> Vec<String> {
    bench.deliveries(client).into_iter().map(|got| got.body).collect()
}

/// Somebody who asks on shard 0, and who answers on each shard.
fn bench() -> (Bench, Client, [Client; 2]) {
    let mut bench = Bench::new();
    let (asking, answering) = (bench.connect(0), [bench.connect(0), bench.connect(1)]);
    (bench, asking, answering)
}

#[test]
fn replies_from_any_shard_reach_the_channel_that_asked() {
    let (mut bench, asking, answering) = bench();
    let (_, name) = bench.consume_replies(asking);
    for (answerer, body) in [(answering[0], "near"), (answering[1], "far")] {
        assert_eq!(bench.send_mandatory(answerer, &[&name], body), Published::Routed(1));
        bench.settle_down();
        let got = bench.deliveries(asking);
        assert_eq!(got.iter().map(|got| (&*got.body, got.redelivered)).collect::<Vec<_>>(), [(body, false)]);
        assert_eq!(bench.returned(answerer), Vec::<String>::new());
    }
}

#[test]
fn tags_of_replies_count_with_the_channels_other_deliveries() {
    let (mut bench, asking, answering) = bench();
    let (_, name) = bench.consume_replies(asking);
    bench.declare(asking, "q", &[]);
    bench.subscribe(asking, "q");
    bench.publish(answering[1], "q", "a");
    bench.publish(answering[1], &name, "b");
    bench.publish(answering[0], "q", "c");
    let tags: Vec<_> = bench.deliveries(asking).into_iter().map(|got| (got.tag, got.body)).collect();
    assert_eq!(tags, [(1, "a".to_owned()), (2, "b".to_owned()), (3, "c".to_owned())]);
}

#[test]
fn a_mandatory_reply_to_somebody_who_is_gone_comes_back_before_its_confirm() {
    type Leave = fn(&mut Bench, Client, lepus_shards::ConsumerId);
    let ways: [Leave; 3] = [
        |bench, client, consumer| {
            assert!(matches!(bench.request(client, Request::Cancel { consumer }), Reply::Cancelled { .. }));
        },
        |bench, client, _| {
            let (kernel, around) = bench.world.at(client.shard);
            kernel.close_channel(around, client.channel);
            bench.settle_down();
        },
        |bench, client, _| bench.disconnect(client),
    ];
    for leave in ways {
        let (mut bench, asking, answering) = bench();
        let (consumer, name) = bench.consume_replies(asking);
        leave(&mut bench, asking, consumer);
        for answerer in answering {
            let (kernel, _) = bench.world.at(answerer.shard);
            kernel.select_confirms(answerer.channel);
        }
        // Nobody needs to be asked about a channel of the own shard.
        assert_eq!(bench.send_mandatory(answering[0], &[&name], "near"), Published::Unroutable);
        assert_eq!(bench.send_mandatory(answering[1], &[&name], "far"), Published::Routed(1));
        let (kernel, around) = bench.world.at(answering[1].shard);
        kernel.end_turn(around);
        bench.collect();
        assert_eq!(bench.confirms(answering[1]), [], "not before the other shard has answered");
        bench.settle_down();
        assert_eq!(bench.confirms_and_returns(answering[1]), ["returned far", "confirmed 1"]);
        assert_eq!(bench.confirms(answering[0]), [(1, 1, true)]);
    }
}

#[test]
fn a_message_that_others_get_as_well_is_not_returned() {
    let (mut bench, asking, answering) = bench();
    let (_, name) = bench.consume_replies(asking);
    bench.declare(asking, "q", &[]);
    assert_eq!(bench.send_mandatory(answering[1], &["q", &name], "m"), Published::Routed(2));
    bench.settle_down();
    assert_eq!(bodies(&mut bench, asking), ["m"]);
    bench.disconnect(asking);
    bench.send_mandatory(answering[1], &["q", &name], "n");
    bench.settle_down();
    assert_eq!(bench.returned(answering[1]), Vec::<String>::new());
    assert_eq!(bench.bodies(answering[0], "q"), ["m", "n"]);
}

#[test]
fn an_old_address_does_not_lead_to_the_next_consumer_or_channel() {
    let (mut bench, asking, answering) = bench();
    let (consumer, old) = bench.consume_replies(asking);
    bench.request(asking, Request::Cancel { consumer });
    let (_, new) = bench.consume_replies(asking);
    assert_ne!(old, new);
    bench.send_mandatory(answering[1], &[&old], "old");
    bench.send_mandatory(answering[1], &[&new], "new");
    bench.settle_down();
    assert_eq!(bodies(&mut bench, asking), ["new"]);
    assert_eq!(bench.returned(answering[1]), ["old"]);
}

#[test]
fn who_does_not_read_loses_replies_and_gets_others_after_it_has_read() {
    let (mut bench, asking, answering) = bench();
    let (_, name) = bench.consume_replies(asking);
    let large = "m".repeat(1 << 20);
    for _ in 0..20 {
        bench.send_mandatory(answering[1], &[&name], &large);
        bench.settle_down();
    }
    assert_eq!(bench.deliveries(asking).len(), 16, "16 MiB are kept for a client that does not read");
    assert_eq!(bench.returned(answering[1]).len(), 4);
    let (kernel, around) = bench.world.at(asking.shard);
    kernel.output_drained(around, asking.connection, 0);
    bench.publish(answering[1], &name, "again");
    assert_eq!(bodies(&mut bench, asking), ["again"]);
}

#[test]
fn one_consumer_a_channel_and_none_that_acknowledges() {
    let (mut bench, asking, _) = bench();
    let text = |reply: Reply| match reply {
        Reply::Refused(refusal) => refusal.text,
        other => panic!("{other:?}"),
    };
    let reply = bench.consume(asking, REPLY_QUEUE, 0, false, false);
    assert_eq!(text(reply), "reply consumer cannot acknowledge");
    bench.consume_replies(asking);
    let reply = bench.consume(asking, REPLY_QUEUE, 0, false, true);
    assert_eq!(text(reply), "reply consumer already set");
}

#[test]
fn the_name_looks_like_a_queue_as_long_as_it_leads_somewhere() {
    let (mut bench, asking, answering) = bench();
    let (consumer, name) = bench.consume_replies(asking);
    for client in answering {
        let seen = Reply::QueueDeclared { name: name.as_str().into(), messages: 0, consumers: 1 };
        assert_eq!(bench.request(client, passive(&name)), seen);
        assert_eq!(bench.request(client, declare(&name, [false; 3], &[])), seen);
        assert_eq!(bench.request(client, purge(&name)), Reply::QueuePurged { messages: 0 });
        assert_eq!(bench.request(client, delete(&name)), Reply::QueueDeleted { messages: 0 });
        assert_eq!(bench.refused(client, bind("amq.direct", &name, "k")), RefusalKind::AccessRefused);
        assert_eq!(bench.refused(client, unbind("amq.direct", &name, "k")), RefusalKind::AccessRefused);
        let get = Request::Get { vhost: VHOST, queue: name.clone(), no_ack: true };
        assert_eq!(bench.refused(client, get), RefusalKind::NotImplemented);
        let reply = bench.consume(client, &name, 0, false, true);
        assert!(matches!(reply, Reply::Refused(refusal) if refusal.kind == RefusalKind::PreconditionFailed));
        assert!(matches!(bench.request(client, passive(REPLY_QUEUE)), Reply::QueueDeclared { .. }));
    }
    bench.publish(answering[1], &name, "it is there still");
    assert_eq!(bodies(&mut bench, asking), ["it is there still"]);
    bench.request(asking, Request::Cancel { consumer });
    for client in answering {
        assert_eq!(bench.refused(client, passive(&name)), RefusalKind::NotFound);
        assert_eq!(bench.refused(client, passive("amq.rabbitmq.reply-to.bogus")), RefusalKind::NotFound);
    }
}
