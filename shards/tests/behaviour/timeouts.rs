//! Deliveries that stay unacked for too long.

use lepus_shards::shard::Verdict;

use crate::client::{Bench, Client};
use crate::world::CONSUMER_TIMEOUT_MS;

fn closed_for(ms: u64) -> Vec<String> {
    vec![format!(
        "delivery acknowledgement on channel 1 timed out. Timeout value used: {ms} ms. This timeout value can be \
         configured, see consumers doc guide to learn more"
    )]
}

/// Time passes a second at a time, as looks are that far apart.
fn pass_seconds(bench: &mut Bench, seconds: u64) {
    (0..seconds).for_each(|_| bench.pass(1_000));
}

fn with_a_held_message(arguments: &[(&str, i64)]) -> (Bench, Client) {
    let mut bench = Bench::new();
    let (client, publisher) = (bench.connect(1), bench.connect(0));
    bench.declare(client, "q", arguments);
    bench.subscribe(client, "q");
    bench.publish(publisher, "q", "m");
    (bench, client)
}

#[test]
fn a_channel_that_keeps_a_delivery_for_half_an_hour_is_closed() {
    let (mut bench, client) = with_a_held_message(&[]);
    pass_seconds(&mut bench, CONSUMER_TIMEOUT_MS / 1_000 - 1);
    assert!(bench.failures(client).is_empty(), "never early");
    pass_seconds(&mut bench, 32);
    assert_eq!(bench.failures(client).first(), closed_for(CONSUMER_TIMEOUT_MS).first());
}

#[test]
fn a_queue_may_have_a_timeout_of_its_own_and_gets_count_too() {
    let (mut bench, client) = with_a_held_message(&[("x-consumer-timeout", 10_000)]);
    let getter = bench.connect(0);
    pass_seconds(&mut bench, 9);
    assert!(bench.failures(client).is_empty());
    pass_seconds(&mut bench, 3);
    assert_eq!(bench.failures(client).first(), closed_for(10_000).first());
    bench.disconnect(client);
    assert!(bench.get(getter, "q", false).is_some());
    pass_seconds(&mut bench, 12);
    assert_eq!(bench.failures(getter).first(), closed_for(10_000).first());
}

#[test]
fn whoever_acks_in_time_goes_on_and_none_is_no_bound() {
    let (mut bench, client) = with_a_held_message(&[("x-consumer-timeout", 5_000)]);
    for tag in 1..10 {
        pass_seconds(&mut bench, 4);
        bench.settle(client, tag, false, Verdict::Accept);
        bench.publish(client, "q", "next");
    }
    assert!(bench.failures(client).is_empty());
    let (mut bench, client) = with_a_held_message(&[("x-consumer-timeout", 0)]);
    pass_seconds(&mut bench, 2 * CONSUMER_TIMEOUT_MS / 1_000);
    assert!(bench.failures(client).is_empty());
}

#[test]
fn a_patient_queue_does_not_hide_an_impatient_one_behind_it() {
    let (mut bench, client) = with_a_held_message(&[("x-consumer-timeout", 3_600_000)]);
    bench.declare(client, "quick", &[("x-consumer-timeout", 5_000)]);
    bench.subscribe(client, "quick");
    pass_seconds(&mut bench, 20);
    assert!(bench.failures(client).is_empty());
    bench.publish(client, "quick", "m");
    pass_seconds(&mut bench, 4);
    assert!(bench.failures(client).is_empty());
    pass_seconds(&mut bench, 4);
    assert_eq!(bench.failures(client).first(), closed_for(5_000).first());
}
