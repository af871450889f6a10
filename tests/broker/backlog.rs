//! Backlogs larger than memory: they lie on disk, come back in order, and survive as much as they should.

use lepus_tests::{Arguments, Broker, Properties, Setup};

/// The smallest budget there is.
const BUDGET_BYTES: usize = 16 * 1024 * 1024;
const BODY_BYTES: usize = 16 * 1024;
/// Four times the budget.
const MESSAGES: u64 = (4 * BUDGET_BYTES / BODY_BYTES) as u64;
/// What else a broker needs.
const BESIDE_BYTES: usize = 48 * 1024 * 1024;

fn setup() -> Setup {
    Setup::new().set("memory_budget=16MiB")
}

fn body(number: u64) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(BODY_BYTES, number as u8);
    body
}

fn fill(broker: &Broker, exchange: &str, key: &str, properties: &Properties) {
    let mut wire = broker.channel();
    wire.select_confirms(1);
    for number in 0..MESSAGES {
        wire.publish_as(1, exchange, key, false, properties, &body(number));
        if number % 64 == 63 {
            wire.confirmed(number + 1);
        }
    }
    wire.close();
}

/// Consumes the queue, some of it by gets, and says what was in it.
fn empty(broker: &Broker, queue: &str) -> Vec<u64> {
    let mut wire = broker.channel();
    let mut bodies = Vec::new();
    for _ in 0..100 {
        bodies.push(wire.get(1, queue, true).expect("more than that is there").body);
    }
    wire.qos(1, 50, false);
    wire.consume(1, queue, "all", false);
    while (bodies.len() as u64) < MESSAGES {
        let delivery = wire.delivery();
        wire.ack(1, delivery.tag, false);
        bodies.push(delivery.body);
    }
    wire.close();
    let numbers = bodies.iter().map(|found| {
        let number = u64::from_be_bytes(found[..8].try_into().expect("eight bytes"));
        assert!(*found == body(number), "message {number} came back as it was");
        number
    });
    numbers.collect()
}

fn all() -> Vec<u64> {
    (0..MESSAGES).collect()
}

fn assert_small(broker: &Broker, before: usize) {
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < BUDGET_BYTES + BESIDE_BYTES, "{grown} bytes more for a budget of {BUDGET_BYTES}");
}

#[test]
fn a_persistent_backlog_beyond_memory_survives_a_kill_in_its_order() {
    let Some(broker) = Broker::own(setup()) else { return };
    let queue = broker.name("large");
    broker.channel().declare(1, &queue);
    let before = broker.resident_bytes();
    fill(&broker, "", &queue, &Properties::persistent());
    assert_small(&broker, before);
    let broker = setup().start_in(broker.kill());
    assert_eq!(broker.channel().look(1, &queue), (MESSAGES as u32, 0));
    assert!(empty(&broker, &queue) == all());
    assert_small(&broker, before);
    broker.stop();
}

#[test]
fn a_transient_backlog_beyond_memory_lies_on_disk_and_ends_with_the_process() {
    let Some(broker) = Broker::own(setup()) else { return };
    let queue = broker.name("large");
    broker.channel().declare(1, &queue);
    let before = broker.resident_bytes();
    fill(&broker, "", &queue, &Properties::none());
    assert_small(&broker, before);
    assert!(empty(&broker, &queue) == all());
    fill(&broker, "", &queue, &Properties::none());
    let broker = setup().start_in(broker.kill());
    assert_eq!(broker.channel().look(1, &queue), (0, 0));
    broker.stop();
}

#[test]
fn a_backlog_in_several_queues_is_there_for_each_and_one_is_purged_without_the_others() {
    let Some(broker) = Broker::own(setup()) else { return };
    let mut wire = broker.channel();
    let queues = ["kept", "asked for less", "purged"].map(|name| broker.name(name));
    for (queue, durability) in queues.iter().zip(["fsync", "memory", "os"]) {
        let arguments = Arguments::new().text("x-durability", durability);
        wire.declare_as(1, queue, [false, true, false, false, false], &arguments);
        wire.bind(1, queue, "amq.fanout", "", &Arguments::new());
    }
    fill(&broker, "amq.fanout", "", &Properties::persistent());
    assert_eq!(wire.purge(1, &queues[2]), MESSAGES as u32);
    for queue in &queues[..2] {
        assert!(empty(&broker, queue) == all());
    }
    wire.close();
    broker.stop();
}
