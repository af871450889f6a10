//! More than memory holds: publishers are told and not read, consumers drain, nothing confirmed is lost.

use std::io::Write as _;
use std::thread;

use lepus_tests::wire::publish_frames;
use lepus_tests::{Broker, Event, Properties, Setup, Wire};

const BODY_BYTES: usize = 64 * 1024;
const MESSAGES: usize = 4000;
const BUDGET_MIB: usize = 32;
/// Messages, read buffers and the rest: what a broker with this budget may grow by.
const GROWTH_MAX: usize = (4 * BUDGET_MIB) << 20;

/// A body that says which message it is.
fn body(number: usize) -> Vec<u8> {
    let mut body = vec![0xAB; BODY_BYTES];
    body[..8].copy_from_slice(&(number as u64).to_be_bytes());
    body
}

fn number(body: &[u8]) -> usize {
    assert_eq!(body.len(), BODY_BYTES);
    u64::from_be_bytes(body[..8].try_into().expect("eight bytes")) as usize
}

/// Writes all messages as fast as the broker reads, on a thread of its own.
fn publish_on(wire: &Wire, queue: &str) -> thread::JoinHandle<()> {
    let mut socket = wire.socket().try_clone().expect("a descriptor is left");
    // While the publisher is blocked, writing takes as long as the test.
    socket.set_write_timeout(None).expect("an open socket");
    let queue = queue.to_owned();
    thread::spawn(move || {
        for number in 0..MESSAGES {
            let frames =
                publish_frames(131_072, 1, "", &queue, false, &Properties::persistent(), &body(number));
            socket.write_all(&frames).expect("the broker keeps the connection");
        }
    })
}

#[test]
fn a_flood_blocks_publishers_and_loses_nothing() {
    let Some(mut broker) = Broker::own(Setup::new().set(&format!("memory_budget={BUDGET_MIB}MiB"))) else {
        return;
    };
    let before = broker.resident_bytes();
    let mut publisher = broker.channel();
    let queue = broker.name("flood");
    publisher.declare(1, &queue);
    publisher.select_confirms(1);
    let writing = publish_on(&publisher, &queue);
    // Told, with a reason.
    let blocked = publisher.wait_for(|event| matches!(event, Event::Method(0, (10, 60), _)));
    let Event::Method(_, _, mut reason) = blocked else { unreachable!("that was waited for") };
    assert!(!reason.shortstr().is_empty(), "connection.blocked gives a reason");
    // Not read: a quarter of the flood is more than budget and socket buffers hold, and it never gets in.
    let mut other = broker.channel();
    let kept = other.look(1, &queue).0 as usize;
    assert!(kept < MESSAGES / 4, "{kept} messages of {BODY_BYTES} bytes with a budget of {BUDGET_MIB} MiB");
    assert!(!writing.is_finished(), "the whole flood was read");
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "grew by {} MiB with a budget of {BUDGET_MIB} MiB", grown >> 20);

    // Acks and deliveries still flow, on connections old and new.
    let mut consumer = broker.channel();
    consumer.qos(1, 50, false);
    consumer.consume(1, &queue, "t", false);
    for expected in 0..MESSAGES {
        let delivery = consumer.delivery();
        assert_eq!((number(&delivery.body), delivery.redelivered), (expected, false));
        if expected % 10 == 9 || expected + 1 == MESSAGES {
            consumer.ack(1, delivery.tag, true);
        }
    }
    publisher.wait_for(|event| matches!(event, Event::Method(0, (10, 61), _)));
    publisher.confirmed(MESSAGES as u64);
    writing.join().expect("all was written");
    consumer.close();
    assert_eq!(other.look(1, &queue).0, 0);
    broker.assert_healthy();
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "grew by {} MiB in the end", grown >> 20);
}

#[test]
fn a_blocked_broker_still_serves_gets_purges_and_deletes() {
    let Some(mut broker) = Broker::own(Setup::new().set(&format!("memory_budget={BUDGET_MIB}MiB"))) else {
        return;
    };
    let mut publisher = broker.channel();
    let queue = broker.name("flood");
    publisher.declare(1, &queue);
    let writing = publish_on(&publisher, &queue);
    publisher.wait_for(|event| matches!(event, Event::Method(0, (10, 60), _)));
    let mut other = broker.channel();
    for expected in 0..10 {
        let got = other.get(1, &queue, false).expect("the queue is full");
        assert_eq!(number(&got.body), expected);
        other.ack(1, got.tag, false);
    }
    // Room is made by purging alone, until all has been in.
    let mut purged = 10;
    while purged < MESSAGES {
        purged += other.purge(1, &queue) as usize;
    }
    assert_eq!(purged, MESSAGES);
    writing.join().expect("all was written");
    other.delete_queue(1, &queue);
    broker.assert_healthy();
}
