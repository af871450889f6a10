//! How much a consumer may have.

use lepus_shards::RefusalKind;
use lepus_shards::shard::Verdict;

use crate::client::{Bench, declare};

#[test]
fn a_consumers_prefetch_is_reached_and_never_exceeded() {
    for prefetch in [1u16, 10, 300] {
        let mut bench = Bench::new();
        let (publisher, consumer) = (bench.connect(0), bench.connect(1));
        bench.declare(publisher, "q", &[]);
        bench.prefetch(consumer, prefetch, false);
        bench.subscribe(consumer, "q");
        for number in 0..2 * prefetch {
            bench.publish(publisher, "q", &number.to_string());
        }
        let mut held = bench.deliveries(consumer);
        assert_eq!(held.len(), usize::from(prefetch));
        let first = held.remove(0);
        bench.settle(consumer, first.tag, false, Verdict::Accept);
        assert_eq!(bench.deliveries(consumer).len(), 1);
    }
}

#[test]
fn a_channels_prefetch_is_shared_by_its_consumers_on_all_shards() {
    for prefetch in [1u16, 10] {
        let mut bench = Bench::new();
        let (publisher, client) = (bench.connect(0), bench.connect(1));
        let queues = ["a", "b", "c", "d"];
        queues.iter().for_each(|queue| bench.declare(publisher, queue, &[]));
        bench.prefetch(client, prefetch, true);
        for queue in queues {
            bench.subscribe(client, queue);
        }
        for number in 0..50 {
            bench.publish(publisher, queues[number % 4], &number.to_string());
        }
        let mut all = bench.deliveries(client);
        assert_eq!(all.len(), usize::from(prefetch), "over four queues on two shards");
        let mut held: std::collections::VecDeque<_> = all.drain(..).collect();
        let mut seen = held.len();
        while let Some(next) = held.pop_front() {
            bench.settle(client, next.tag, false, Verdict::Accept);
            let more = bench.deliveries(client);
            seen += more.len();
            held.extend(more);
            assert!(held.len() <= usize::from(prefetch));
        }
        assert_eq!(seen, 50, "and everything comes in the end");
    }
}

#[test]
fn a_channels_prefetch_may_change_while_consumers_run() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    bench.declare(client, "q", &[]);
    bench.prefetch(client, 2, true);
    bench.subscribe(client, "q");
    for number in 0..20 {
        bench.publish(client, "q", &number.to_string());
    }
    assert_eq!(bench.deliveries(client).len(), 2);
    bench.prefetch(client, 5, true);
    assert_eq!(bench.deliveries(client).len(), 3);
    bench.prefetch(client, 1, true);
    bench.settle(client, 4, true, Verdict::Accept);
    assert!(bench.deliveries(client).is_empty(), "one is held still");
    bench.prefetch(client, 0, true);
    assert_eq!(bench.deliveries(client).len(), 15);
}

#[test]
fn gets_and_no_ack_consumers_are_not_bound() {
    let mut bench = Bench::new();
    let client = bench.connect(0);
    bench.declare(client, "q", &[]);
    bench.prefetch(client, 1, false);
    for number in 0..5 {
        bench.publish(client, "q", &number.to_string());
    }
    assert!((0..3).all(|_| bench.get(client, "q", false).is_some()));
    bench.consume(client, "q", 0, false, true);
    assert_eq!(bench.deliveries(client).len(), 2);
}

#[test]
fn a_connection_that_does_not_write_gets_no_more_than_its_window_and_others_go_on() {
    let mut bench = Bench::new();
    let (slow, fast) = (bench.connect(1), bench.connect(0));
    bench.declare(slow, "q", &[]);
    bench.subscribe(slow, "q");
    let body = "x".repeat(10_000);
    let window = lepus_shards::limits::DELIVERY_WINDOW_BYTES / body.len();
    let all = 4 * window;
    for _ in 0..all {
        bench.publish(fast, "q", &body);
    }
    let got = bench.deliveries(slow).len();
    assert!((window..=window + 1).contains(&got), "{got} deliveries of a window of {window}");
    bench.subscribe(fast, "q");
    let taken = bench.deliveries(fast).len();
    assert!((window..=window + 1).contains(&taken), "the other one has a window of its own");
    let mut seen = got + taken;
    for _ in 0..4 {
        let (kernel, around) = bench.world.at(1);
        kernel.output_drained(around, slow.connection, 0);
        bench.settle_down();
        seen += bench.deliveries(slow).len();
    }
    assert_eq!(seen, all, "what is written makes room");
}

#[test]
fn past_the_memory_budget_publishing_is_blocked_on_all_shards_until_there_is_room() {
    let mut bench = Bench::with_budget(10_000);
    bench.world.around.iter_mut().for_each(|around| around.spills = false);
    let (here, there) = (bench.connect(0), bench.connect(1));
    bench.declare(here, "q", &[]);
    let mut count = 0;
    while !bench.world.shards[0].publishing_blocked() {
        bench.send(here, "", "q", &"x".repeat(500), false, None);
        bench.settle_down();
        count += 1;
    }
    assert!((5..30).contains(&count), "blocked after {count}");
    assert_eq!((bench.blocked(here), bench.blocked(there)), (vec![true], vec![true]));
    while bench.world.shards[1].publishing_blocked() {
        bench.get(there, "q", true).expect("blocked with nothing in the queue");
    }
    assert_eq!((bench.blocked(here), bench.blocked(there)), (vec![false], vec![false]));
}

#[test]
fn a_disk_without_space_blocks_publishing_and_refuses_what_would_be_stored() {
    let mut bench = Bench::new();
    let client = bench.connect(1);
    bench.declare(client, "old", &[]);
    for (short, said) in [(true, vec![true]), (false, vec![false])] {
        bench.world.shards[0].note_log(0, false, short);
        bench.settle_down();
        assert_eq!(bench.blocked(client), said);
        // What is there can be declared again, and what is not stored can be declared at any time.
        if short {
            let refused = bench.refused(client, declare("new", [true, false, false], &[]));
            assert_eq!(refused, RefusalKind::ResourceError);
        } else {
            bench.declare(client, "new", &[]);
        }
        bench.declare(client, "old", &[]);
        bench.request(client, declare("transient", [false, false, false], &[]));
    }
}
