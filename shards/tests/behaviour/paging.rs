//! Backlogs larger than memory.

use lepus_shards::shard::{Reply, Verdict};

use crate::client::{Bench, delete, purge};

/// Room for a handful of bodies of [`body`].
const BUDGET: u64 = 20_000;
const MESSAGES: usize = 300;

fn body(number: usize) -> String {
    format!("{number}:{}", "x".repeat(500))
}

fn numbers(bodies: &[String]) -> Vec<usize> {
    bodies.iter().map(|body| body.split(':').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_backlog_beyond_memory_comes_back_in_its_order_whatever_it_is_made_of() {
    for persistent in [[true, true], [false, false], [true, false]] {
        let mut bench = Bench::with_budget(BUDGET);
        let client = bench.connect(0);
        bench.declare(client, "q", &[]);
        for number in 0..MESSAGES {
            bench.send(client, "", "q", &body(number), persistent[number % 2], None);
            bench.settle_down();
        }
        assert!(bench.world.shards.iter().all(|shard| shard.counts().memory_bytes < BUDGET));
        assert_eq!(bench.look(client, "q"), Some((MESSAGES as u64, 0)));
        assert_eq!(numbers(&bench.bodies(client, "q")), (0..MESSAGES).collect::<Vec<_>>());
        let loaded: u64 = bench.world.around.iter().map(|around| around.loaded).sum();
        assert!(loaded > MESSAGES as u64 / 2, "{loaded} were loaded");
        assert!(bench.world.around.iter().all(|around| around.logged.is_empty()), "the log keeps nothing");
        assert!(bench.world.shards.iter().all(|shard| shard.counts().memory_bytes == 0));
    }
}

#[test]
fn what_is_published_while_a_backlog_is_read_does_not_overtake_it() {
    let mut bench = Bench::with_budget(BUDGET);
    let (publisher, consumer) = (bench.connect(0), bench.connect(1));
    bench.declare(publisher, "q", &[]);
    for number in 0..MESSAGES {
        bench.publish(publisher, "q", &body(number));
    }
    bench.prefetch(consumer, 1, false);
    bench.subscribe(consumer, "q");
    let mut seen = Vec::new();
    for number in MESSAGES.. {
        let got = bench.deliveries(consumer);
        let Some(last) = got.last() else { break };
        let tag = last.tag;
        seen.extend(got.into_iter().map(|got| got.body));
        if number < 2 * MESSAGES {
            // Nothing settles down in between: the next one may be on its way from the disk.
            bench.send(publisher, "", "q", &body(number), number % 2 == 0, None);
        }
        bench.settle(consumer, tag, false, Verdict::Accept);
        let (kernel, around) = bench.world.at(1);
        kernel.output_drained(around, consumer.connection, 0);
        bench.settle_down();
    }
    assert_eq!(numbers(&seen), (0..2 * MESSAGES).collect::<Vec<_>>());
}

#[test]
fn what_comes_back_to_a_backlog_is_delivered_first_and_marked() {
    let mut bench = Bench::with_budget(BUDGET);
    let client = bench.connect(0);
    bench.declare(client, "q", &[]);
    for number in 0..MESSAGES {
        bench.publish(client, "q", &body(number));
    }
    let held = bench.get(client, "q", false).unwrap();
    bench.settle(client, held.tag, false, Verdict::Requeue);
    let again = bench.get(client, "q", false).unwrap();
    assert!(again.redelivered && again.body == held.body);
    assert!(!bench.get(client, "q", false).unwrap().redelivered);
}

#[test]
fn a_backlog_is_purged_and_deleted_without_being_read() {
    for deleted in [false, true] {
        let mut bench = Bench::with_budget(BUDGET);
        let client = bench.connect(1);
        bench.declare(client, "q", &[]);
        for number in 0..MESSAGES {
            bench.send(client, "", "q", &body(number), number % 3 > 0, None);
            bench.settle_down();
        }
        let before: u64 = bench.world.around.iter().map(|around| around.loaded).sum();
        let messages = MESSAGES as u64;
        let answer = match deleted {
            true => (bench.request(client, delete("q")), Reply::QueueDeleted { messages }),
            false => (bench.request(client, purge("q")), Reply::QueuePurged { messages }),
        };
        assert_eq!(answer.0, answer.1);
        bench.settle_down();
        assert_eq!(bench.world.around.iter().map(|around| around.loaded).sum::<u64>(), before);
        assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
        assert!(bench.world.shards.iter().all(|shard| shard.counts().memory_bytes == 0));
    }
}

#[test]
fn a_message_that_the_disk_does_not_give_back_is_left_out_and_the_rest_is_served() {
    let mut bench = Bench::with_budget(BUDGET);
    let client = bench.connect(0);
    bench.declare(client, "q", &[]);
    for number in 0..MESSAGES {
        bench.publish(client, "q", &body(number));
    }
    bench.world.around.iter_mut().for_each(|around| around.loses_every = Some(10));
    let got = numbers(&bench.bodies(client, "q"));
    assert!(got.is_sorted() && (MESSAGES / 2..MESSAGES).contains(&got.len()), "{} of {MESSAGES}", got.len());
    assert_eq!(bench.look(client, "q"), Some((0, 0)));
    assert!(bench.world.around.iter().all(|around| around.logged.is_empty()));
}

#[test]
fn a_message_is_spilled_once_however_long_the_disk_takes() {
    let mut bench = Bench::with_budget(BUDGET);
    let client = bench.connect(0);
    bench.declare(client, "q", &[]);
    for number in 0..MESSAGES {
        // Turns end, and nothing is committed.
        bench.send(client, "", "q", &body(number), false, None);
        bench.world.end_turn(0);
        bench.world.settle_links();
        bench.world.end_turn(1);
        bench.world.settle_links();
    }
    let spilled: u64 = bench.world.around.iter().map(|around| around.spilled).sum();
    assert!((1..=MESSAGES as u64).contains(&spilled), "{spilled} of {MESSAGES}");
    bench.settle_down();
    assert_eq!(numbers(&bench.bodies(client, "q")), (0..MESSAGES).collect::<Vec<_>>());
}

#[test]
fn a_message_in_several_queues_leaves_memory_and_comes_back_in_each() {
    for persistent in [true, false] {
        let mut bench = Bench::with_budget(BUDGET);
        let client = bench.connect(1);
        for queue in ["one", "two"] {
            bench.declare(client, queue, &[]);
            bench.bind_fanout(client, queue);
        }
        for number in 0..MESSAGES {
            bench.send(client, "amq.fanout", "", &body(number), persistent, None);
            bench.settle_down();
        }
        for queue in ["one", "two"] {
            assert_eq!(numbers(&bench.bodies(client, queue)), (0..MESSAGES).collect::<Vec<_>>());
        }
        assert!(bench.world.around.iter().all(|around| around.logged.is_empty()), "the log keeps nothing");
        assert!(bench.world.shards.iter().all(|shard| shard.counts().memory_bytes == 0));
    }
}

#[test]
fn a_backlog_that_expires_in_any_order_is_read_little_at_a_time_and_all_of_it_ends_once() {
    let mut bench = Bench::with_budget(BUDGET);
    let client = bench.connect(0);
    bench.declare_with_dead_letters(client, "q", "dead", &[]);
    bench.declare(client, "dead", &[]);
    let ttl_ms = |number: usize| (number as u64 * 7919) % 5 * 50 + 1_000;
    for number in 0..MESSAGES {
        bench.send(client, "", "q", &body(number), true, Some(ttl_ms(number)));
        bench.settle_down();
    }
    bench.pass(990);
    assert_eq!(bench.look(client, "q"), Some((MESSAGES as u64, 0)));
    let mut ended = Vec::new();
    for round in 0..5 {
        let owner = bench.world.shards.iter().map(|shard| shard.counts().memory_bytes).max();
        assert!(owner < Some(BUDGET), "what is read is not kept: {owner:?}");
        bench.pass(if round == 0 { 20 } else { 50 });
        let mut now = numbers(&bench.bodies(client, "dead"));
        now.sort_unstable();
        let due = |number: &usize| ttl_ms(*number) == 1_000 + 50 * round;
        assert_eq!(now, (0..MESSAGES).filter(due).collect::<Vec<_>>(), "in round {round}");
        ended.extend(now);
    }
    assert_eq!((ended.len(), bench.look(client, "q")), (MESSAGES, Some((0, 0))));
}

#[test]
fn a_queue_that_goes_while_its_expired_messages_are_read_takes_them_along() {
    let mut bench = Bench::with_budget(BUDGET);
    let client = bench.connect(0);
    for end in [purge("q"), delete("q")] {
        bench.declare_with_dead_letters(client, "q", "dead", &[]);
        bench.declare(client, "dead", &[]);
        for number in 0..MESSAGES {
            bench.send(client, "", "q", &body(number), true, Some(1_000));
            bench.settle_down();
        }
        // They fall due, and nothing has been read yet when the queue goes.
        bench.world.now_ms += 1_100;
        for shard in 0..bench.world.count() {
            let now_ms = bench.world.now_ms;
            let (kernel, around) = bench.world.at(shard);
            kernel.set_time(now_ms);
            kernel.tick(around);
        }
        bench.request(client, end);
        bench.settle_down();
        let dead = numbers(&bench.bodies(client, "dead"));
        assert!(dead.len() < MESSAGES, "some were in memory, and the rest has gone");
        assert!(bench.world.around.iter().all(|around| around.logged.is_empty()), "the log keeps nothing");
    }
}
