//! What the broker tells of its own time.

use std::thread;
use std::time::{Duration, Instant};

use lepus_tests::limits::PATIENCE;
use lepus_tests::{Broker, Properties, Setup, os};

/// Rows of the log that say how long something took: what, on which shard, and how often it was.
fn rows(log: &str) -> Vec<(String, u32, u64)> {
    let value = |line: &str, key: &str| -> Option<String> {
        let rest = line.split_once(&format!(" {key}="))?.1;
        match rest.strip_prefix('"') {
            Some(quoted) => Some(quoted.split_once('"')?.0.to_owned()),
            None => Some(rest.split(' ').next()?.to_owned()),
        }
    };
    let parse = |line: &str| {
        let (shard, count) = (value(line, "shard")?.parse().ok()?, value(line, "count")?.parse().ok()?);
        Some((value(line, "what")?, shard, count))
    };
    log.lines().filter(|line| line.contains("timing")).filter_map(parse).collect()
}

/// Waits until both shards have told everything that they tell, once more than before.
fn told(broker: &Broker, times: usize) -> Vec<(String, u32, u64)> {
    const OF_BOTH_SHARDS: usize = 2 * 5;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let rows = rows(&broker.log());
        if rows.len() >= times * OF_BOTH_SHARDS {
            return rows[(times - 1) * OF_BOTH_SHARDS..times * OF_BOTH_SHARDS].to_vec();
        }
        assert!(Instant::now() < deadline, "not told; it said:\n{}", broker.log());
        thread::sleep(Duration::from_millis(20));
    }
}

fn count(rows: &[(String, u32, u64)], what: &str) -> u64 {
    rows.iter().filter(|(of, ..)| of == what).map(|(.., count)| count).sum()
}

#[test]
fn sigusr1_makes_each_shard_tell_its_times_since_the_last_time() {
    let Some(mut broker) = Broker::own(Setup::new()) else { return };
    let mut wires = [broker.channel(), broker.channel()];
    for (number, wire) in wires.iter_mut().enumerate() {
        // Queues are placed by turns: one of the two is not on the shard of the connection.
        let queues = [0, 1].map(|other| format!("{}.{other}", broker.name(&format!("timed{number}"))));
        for queue in &queues {
            wire.declare(1, queue);
        }
        wire.select_confirms(1);
        for published in 0..200 {
            let queue = &queues[published % 2];
            wire.publish_as(1, "", queue, false, &Properties::persistent(), b"timed");
        }
        wire.confirmed(200);
        for _ in 0..100 {
            queues.iter().for_each(|queue| drop(wire.get(1, queue, true).expect("it was confirmed")));
        }
    }
    // The clock's work is done some times a second: what has not been timed yet will be.
    let (mut rows, mut times) = (Vec::new(), 0);
    let of_all = ["turns", "loop lag", "time in queue", "commits", "mesh"];
    while of_all.iter().any(|what| count(&rows, what) == 0) {
        times += 1;
        assert!(times < 100, "something was never timed: {rows:?}");
        os::signal(broker.pid(), libc::SIGUSR1);
        rows.extend(told(&broker, times));
    }
    os::signal(broker.pid(), libc::SIGUSR1);
    let rows = told(&broker, times + 1);
    assert_eq!(count(&rows, "time in queue"), 0, "it begins anew: {rows:?}");
    broker.assert_healthy();
    drop(wires);
    broker.stop();
}
