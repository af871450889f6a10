//! Who gets what, and in which order.

use lepus_shards::RefusalKind;
use lepus_shards::shard::{Reply, Request, Verdict};

use crate::client::Bench;

#[test]
fn requeued_messages_come_back_at_their_own_places_and_marked() {
    let mut bench = Bench::new();
    let (publisher, client) = (bench.connect(0), bench.connect(1));
    bench.declare(publisher, "q", &[]);
    for body in ["0", "1", "2", "3", "4"] {
        bench.publish(publisher, "q", body);
    }
    let held: Vec<_> = (0..4).map(|_| bench.get(client, "q", false).unwrap()).collect();
    for index in [2, 0, 3] {
        bench.settle(client, held[index].tag, false, Verdict::Requeue);
    }
    let rest: Vec<_> = std::iter::from_fn(|| bench.get(client, "q", true)).collect();
    let seen: Vec<_> = rest.iter().map(|got| (got.body.as_str(), got.redelivered)).collect();
    assert_eq!(seen, [("0", true), ("2", true), ("3", true), ("4", false)]);
}

#[test]
fn a_connection_that_is_lost_gives_everything_back_to_the_next_in_order() {
    let mut bench = Bench::new();
    let (lost, next) = (bench.connect(1), bench.connect(0));
    bench.declare(next, "q", &[]);
    bench.prefetch(lost, 3, false);
    bench.subscribe(lost, "q");
    for body in ["0", "1", "2", "3"] {
        bench.publish(next, "q", body);
    }
    bench.subscribe(next, "q");
    assert_eq!(bench.deliveries(next).len(), 1, "what the other one could not take");
    bench.disconnect(lost);
    let seen: Vec<_> = bench.deliveries(next).into_iter().map(|got| (got.body, got.redelivered)).collect();
    assert_eq!(seen, [("0".to_owned(), true), ("1".to_owned(), true), ("2".to_owned(), true)]);
}

#[test]
fn a_higher_priority_is_served_while_it_has_credit_and_equals_take_turns() {
    let mut bench = Bench::new();
    let (high, low, equal) = (bench.connect(0), bench.connect(1), bench.connect(0));
    bench.declare(low, "q", &[]);
    bench.prefetch(high, 2, false);
    for (client, priority) in [(low, 0), (equal, 0), (high, 5)] {
        bench.consume(client, "q", priority, false, false);
    }
    for number in 0..6 {
        bench.publish(low, "q", &number.to_string());
    }
    let bodies = |bench: &mut Bench, client| -> Vec<String> {
        bench.deliveries(client).into_iter().map(|got| got.body).collect()
    };
    let first = bench.deliveries(high);
    assert_eq!(first.iter().map(|got| got.body.as_str()).collect::<Vec<_>>(), ["0", "1"]);
    assert_eq!(
        (bodies(&mut bench, low), bodies(&mut bench, equal)),
        (vec!["2".into(), "4".into()], vec!["3".into(), "5".into()])
    );
    bench.settle(high, first[0].tag, false, Verdict::Accept);
    bench.publish(low, "q", "6");
    assert_eq!(bodies(&mut bench, high), ["6"]);
}

#[test]
fn an_exclusive_consumer_tolerates_no_other() {
    let mut bench = Bench::new();
    let (first, second) = (bench.connect(0), bench.connect(1));
    bench.declare(first, "q", &[]);
    assert!(matches!(bench.consume(first, "q", 0, true, false), Reply::Consuming { .. }));
    for exclusive in [false, true] {
        let Reply::Refused(refusal) = bench.consume(second, "q", 0, exclusive, false) else {
            panic!("not refused")
        };
        assert_eq!(refusal.kind, RefusalKind::AccessRefused);
    }
    bench.disconnect(first);
    assert!(matches!(bench.consume(second, "q", 0, false, false), Reply::Consuming { .. }));
}

#[test]
fn nothing_is_delivered_after_a_cancel_was_answered() {
    let mut bench = Bench::new();
    let (client, publisher) = (bench.connect(1), bench.connect(0));
    bench.declare(client, "q", &[]);
    let consumer = bench.subscribe(client, "q");
    bench.publish(publisher, "q", "before");
    assert_eq!(bench.request(client, Request::Cancel { consumer }), Reply::Cancelled { consumer });
    let held = bench.deliveries(client);
    bench.publish(publisher, "q", "after");
    assert!(bench.deliveries(client).is_empty());
    bench.settle(client, held[0].tag, false, Verdict::Requeue);
    assert!(bench.deliveries(client).is_empty());
    assert_eq!(bench.bodies(publisher, "q"), ["before", "after"]);
}

#[test]
fn recover_requeues_what_the_channel_holds() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    bench.declare(client, "q", &[]);
    for body in ["0", "1"] {
        bench.publish(client, "q", body);
    }
    let first = bench.get(client, "q", false).unwrap();
    let (kernel, around) = bench.world.at(1);
    kernel.recover(around, client.channel);
    bench.settle_down();
    let again = bench.get(client, "q", false).unwrap();
    assert_eq!((again.body.as_str(), again.redelivered, again.tag), ("0", true, first.tag + 1));
    let (kernel, around) = bench.world.at(1);
    let unknown =
        kernel.settle(around, client.channel, lepus_shards::DeliveryTag(first.tag), false, Verdict::Accept);
    assert_eq!(unknown.unwrap_err().kind, RefusalKind::PreconditionFailed, "its tag has ended");
}
