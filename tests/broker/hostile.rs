//! Clients that are broken or mean: the right close or a closed socket, no panic, no growth of memory.

use std::io::Write as _;
use std::time::Duration;

use lepus_tests::wire::{
    FRAME_METHOD, PROTOCOL_HEADER, basic_publish, exchange_declare, frame, header_frame, method_frame,
    publish_frames, queue_declare,
};
use lepus_tests::{Arguments, Broker, Event, Method, Properties, Setup, Wire};

const MIB: usize = 1 << 20;
/// What a broker may grow by for reasons of its own, whatever a client does.
const GROWTH_MAX: usize = 32 * MIB;

fn grown(broker: &Broker, before: usize) -> usize {
    broker.resident_bytes().saturating_sub(before)
}

fn assert_small(broker: &Broker, before: usize, after_what: &str) {
    let grown = grown(broker, before);
    assert!(grown < GROWTH_MAX, "memory grew by {} MiB {after_what}", grown / MIB);
}

/// Bytes that a healthy client could have sent after the handshake on channel 1.
fn healthy_bytes() -> Vec<u8> {
    let mut bytes = method_frame(1, &Method::new(20, 10).shortstr(""));
    let exclusive = [false, false, true, false, false];
    bytes.extend(method_frame(1, &queue_declare("", exclusive, &Arguments::new().int("x-unknown", 1))));
    let headers =
        Properties::headers(&Arguments::new().text("k", "v").nested("n", &Arguments::new().bool("b", true)));
    bytes.extend(publish_frames(4096, 1, "", "nobody", true, &headers, &[7; 5000]));
    bytes.extend(method_frame(1, &Method::new(60, 10).long(0).short(10).bits(&[false])));
    bytes.extend(method_frame(1, &exchange_declare("amq.topic", "topic", [true; 5], &Arguments::new())));
    bytes.extend(method_frame(1, &Method::new(60, 80).longlong(0).bits(&[true])));
    bytes.extend(frame(8, 0, b""));
    bytes
}

/// Sends it, says that nothing more comes, and waits until the broker has let go.
fn send_and_wait(mut wire: Wire, bytes: &[u8]) {
    wire.try_send(bytes);
    wire.end_of_sending();
    wire.bytes_until_end();
}

fn random_bytes(random: &mut fastrand::Rng, length_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.usize(1..length_max)];
    random.fill(&mut bytes);
    bytes
}

/// One broken client of each kind.
fn be_hostile(broker: &Broker, random: &mut fastrand::Rng) {
    // Nothing but noise; noise after the header; noise after the handshake.
    send_and_wait(Wire::raw(broker.address), &random_bytes(random, 2000));
    let after_header = [PROTOCOL_HEADER, &random_bytes(random, 2000)].concat();
    send_and_wait(Wire::raw(broker.address), &after_header);
    send_and_wait(broker.connect(), &random_bytes(random, 2000));
    // Frames that are well formed around noise.
    let kind = *random.choice(&[1, 1, 2, 3, 8, 4]).expect("some are given");
    let framed = frame(kind, random.u16(..4), &random_bytes(random, 300));
    send_and_wait(broker.channel(), &framed);
    // A method that exists, with noise for arguments.
    let class = *random.choice(&[10u16, 20, 40, 50, 60, 85, 90]).expect("some are given");
    let mut payload = class.to_be_bytes().to_vec();
    payload.extend((random.u16(1..13) * 10).to_be_bytes());
    payload.extend(random_bytes(random, 200));
    send_and_wait(broker.channel(), &frame(FRAME_METHOD, random.u16(..2), &payload));
    // What a healthy client says, with a few bytes changed, or cut off.
    let mut changed = healthy_bytes();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..changed.len());
        changed[at] = random.u8(..);
    }
    send_and_wait(broker.connect(), &changed);
    let cut = healthy_bytes();
    send_and_wait(broker.connect(), &cut[..random.usize(..cut.len())]);
}

#[test]
fn random_and_changed_bytes_do_no_harm() {
    let Some(mut broker) = Broker::own(Setup::new()) else { return };
    let seed = std::env::var("LEPUS_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("LEPUS_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..50 {
        be_hostile(&broker, &mut random);
    }
    let before = broker.resident_bytes();
    for _ in 0..250 {
        be_hostile(&broker, &mut random);
    }
    broker.assert_healthy();
    assert_small(&broker, before, "under hostile bytes");
}

#[test]
fn a_client_that_never_reads_its_deliveries_is_cut_and_costs_little() {
    const MESSAGES: u32 = 100;
    let Some(mut broker) = Broker::own(Setup::new().set("amqp.write_stall_timeout_ms=500")) else { return };
    let mut wire = broker.channel();
    let queue = broker.name("unread");
    wire.declare(1, &queue);
    wire.select_confirms(1);
    for _ in 0..MESSAGES {
        wire.publish(1, "", &queue, &vec![1; MIB]);
    }
    wire.confirmed(MESSAGES.into());
    let before = broker.resident_bytes();
    let mut victims: Vec<Wire> = (0..3).map(|_| broker.channel()).collect();
    for victim in &mut victims {
        victim.call(1, Method::new(60, 10).long(0).short(0).bits(&[false]));
        victim
            .send_method(1, &lepus_tests::wire::basic_consume(&queue, "t", false, false, &Arguments::new()));
    }
    // Cut off, they give everything back.
    let mut most = 0;
    let began = std::time::Instant::now();
    loop {
        most = most.max(grown(&broker, before));
        let (ready, consumers) = wire.look(1, &queue);
        if ready == MESSAGES && consumers == 0 && began.elapsed() > Duration::from_millis(500) {
            break;
        }
        assert!(began.elapsed() < lepus_tests::limits::PATIENCE, "{ready} ready and {consumers} consumers");
    }
    assert!(most < GROWTH_MAX, "memory grew by {} MiB for clients that do not read", most / MIB);
    drop(victims);
    broker.assert_healthy();
}

/// Writes without ever reading until the broker hangs up; true when it did.
fn write_until_cut(wire: &Wire, bytes: &[u8], limit: usize) -> bool {
    let mut socket = wire.socket();
    let mut written = 0;
    while written < limit {
        if socket.write_all(bytes).is_err() {
            return true;
        }
        written += bytes.len();
    }
    false
}

#[test]
fn a_client_that_asks_and_never_reads_is_cut_and_costs_little() {
    let Some(mut broker) = Broker::own(Setup::new().set("amqp.write_stall_timeout_ms=500")) else { return };
    let passive =
        exchange_declare("amq.direct", "direct", [true, false, false, false, false], &Arguments::new());
    let asking = method_frame(1, &passive).repeat(1000);
    let returning =
        publish_frames(131_072, 1, "", "nobody", true, &Properties::none(), &vec![1; 100_000]).repeat(3);
    let echoing = frame(8, 0, b"").repeat(1000);
    let wire = broker.channel();
    wire.close();
    let before = broker.resident_bytes();
    for bytes in [&asking, &returning] {
        let wire = broker.channel();
        assert!(write_until_cut(&wire, bytes, 1 << 30), "a gibibyte was answered into nowhere");
        assert_small(&broker, before, "for a client that never reads");
    }
    // Heartbeats are not answered: as many as one likes.
    let wire = broker.channel();
    assert!(!write_until_cut(&wire, &echoing, 10 * MIB));
    assert_small(&broker, before, "for heartbeats");
    broker.assert_healthy();
}

#[test]
fn announced_sizes_cost_nothing_and_keep_nobody_out() {
    let Some(mut broker) = Broker::own(Setup::new()) else { return };
    broker.assert_healthy();
    let pass_large_messages = || {
        for _ in 0..4 {
            let mut wire = broker.channel();
            let queue = wire.declare_exclusive(1);
            wire.publish(1, "", &queue, &vec![1; MIB]);
            assert_eq!(wire.get(1, &queue, true).expect("published before").body.len(), MIB);
        }
    };
    // What the allocator keeps after messages that do come is not what this measures.
    pass_large_messages();
    let before = broker.resident_bytes();
    // On all shards: large contents are announced, then smaller ones that fit into whatever is set aside for
    // contents, and nothing comes.
    let sizes = [100, 32, 8, 2, 1].map(|size| size * MIB);
    let announcing: Vec<Wire> = sizes
        .iter()
        .flat_map(|size| [size; 16])
        .map(|size| {
            let mut wire = broker.connect();
            for channel in 1..=10 {
                wire.send_method(channel, &Method::new(20, 10).shortstr(""));
                wire.send(&method_frame(channel, &basic_publish("", "nobody", false)));
                wire.send(&header_frame(channel, *size as u64, &Properties::none()));
            }
            wire
        })
        .collect();
    // Those who announced have been heard once later connections are served on every shard.
    for _ in 0..8 {
        broker.channel().round_trip(1);
    }
    assert_small(&broker, before, "for bodies that were only announced");
    pass_large_messages();
    drop(announcing);
    broker.assert_healthy();
}

#[test]
fn a_message_above_the_limit_is_refused_by_its_header() {
    // RabbitMQ waits for the body.
    let Some(broker) = Broker::own(Setup::new()) else { return };
    for size in [128 * MIB as u64 + 1, 1 << 40, u64::MAX] {
        let mut wire = broker.channel();
        wire.open(2);
        wire.send(&method_frame(1, &basic_publish("", "nobody", false)));
        wire.send(&header_frame(1, size, &Properties::none()));
        let close = wire.closed();
        assert_eq!((close.channel, close.code), (1, 406), "{close:?}");
        let text =
            format!("PRECONDITION_FAILED - message size {size} is larger than configured max size 134217728");
        assert_eq!(close.text, text);
        wire.round_trip(2);
    }
}

#[test]
fn many_silent_sockets_keep_nobody_out() {
    let Some(mut broker) = Broker::own(Setup::new().set("amqp.handshake_timeout_ms=1000")) else { return };
    let mut silent: Vec<Wire> = (0..500).map(|_| Wire::raw(broker.address)).collect();
    broker.assert_healthy();
    for wire in &mut silent {
        wire.bytes_until_end();
    }
    broker.assert_healthy();
}

#[test]
fn a_table_nested_without_end_is_refused() {
    let broker = Broker::start();
    let mut nested = Arguments::new();
    for _ in 0..2000 {
        nested = Arguments::new().nested("n", &nested);
    }
    let mut wire = broker.channel();
    wire.send_method(1, &queue_declare("nested", [false, false, true, false, false], &nested));
    // Refused or taken: the broker must not fall over it.
    match wire.event() {
        Event::Close(_) | Event::End => {}
        Event::Method(1, (50, 11), _) => wire.round_trip(1),
        other => panic!("{other:?}"),
    }
    broker.channel().round_trip(1);
}

#[test]
fn connections_that_come_and_go_leave_nothing() {
    let Some(mut broker) = Broker::own(Setup::new()) else { return };
    let churn = |rounds: usize| {
        for round in 0..rounds {
            let mut wire = broker.channel();
            let queue = wire.declare_exclusive(1);
            wire.consume(1, &queue, "t", false);
            wire.publish(1, "", &queue, b"m");
            wire.delivery();
            if round % 2 == 0 { wire.vanish() } else { wire.close() }
        }
    };
    churn(500);
    let before = broker.resident_bytes();
    churn(2000);
    let grown = grown(&broker, before);
    assert!(grown < 8 * MIB, "memory grew by {} KiB over 2000 connections", grown / 1024);
    broker.assert_healthy();
}
