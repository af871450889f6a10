//! Ten thousand connections that do nothing cost next to nothing, and stand in nobody's way.

use lepus_tests::limits::idle_connections;
use lepus_tests::wire::{PROTOCOL_HEADER, method_frame};
use lepus_tests::{Broker, Method, Setup, Wire, os};

const BYTES_PER_CONNECTION_MAX: usize = 8 * 1024;
/// Held open before the first look at memory, so that what the broker allocates once is not counted.
const WARM_UP: usize = 200;

/// All that a client says until its channel is open, in one piece.
fn whole_handshake() -> Vec<u8> {
    let start_ok =
        Method::new(10, 11).longstr(b"").shortstr("PLAIN").longstr(b"\0guest\0guest").shortstr("en_US");
    let mut bytes = PROTOCOL_HEADER.to_vec();
    let methods = [
        (0, start_ok),
        (0, Method::new(10, 31).short(2047).long(131_072).short(0)),
        (0, Method::new(10, 40).shortstr("/").shortstr("").bits(&[false])),
        (1, Method::new(20, 10).shortstr("")),
    ];
    for (channel, method) in &methods {
        bytes.extend(method_frame(*channel, method));
    }
    bytes
}

fn open(broker: &Broker, count: usize) -> Vec<Wire> {
    let handshake = whole_handshake();
    let mut wires = Vec::with_capacity(count);
    for _ in 0..count {
        let mut wire = Wire::raw(broker.address);
        wire.send(&handshake);
        wire.expect(1, (20, 11));
        wires.push(wire);
    }
    wires
}

fn publish(wire: &mut Wire, queue: &str, from: u64, count: u64) {
    for _ in 0..count {
        wire.publish(1, "", queue, b"beside the idle");
    }
    wire.confirmed(from + count);
}

#[test]
fn idle_connections_cost_little_and_stand_in_nobodys_way() {
    let Some(mut broker) = Broker::own(Setup::new()) else { return };
    let count = idle_connections();
    let needed = count as u64 + 500;
    let limit = os::raise_open_files();
    assert!(limit >= needed, "{count} connections need {needed} open files, and the limit is {limit}");

    let mut publisher = broker.channel();
    let queue = broker.name("beside");
    publisher.declare(1, &queue);
    publisher.select_confirms(1);
    publish(&mut publisher, &queue, 0, 1000);
    assert_eq!(publisher.purge(1, &queue), 1000);
    drop(open(&broker, WARM_UP));
    let mut warm = open(&broker, WARM_UP);
    let before = broker.resident_bytes();

    let mut idle = Vec::with_capacity(count);
    for step in 0..10 {
        idle.extend(open(&broker, count / 10));
        publish(&mut publisher, &queue, 1000 + step * 1000, 1000);
        assert_eq!(publisher.purge(1, &queue), 1000);
    }
    let each = broker.resident_bytes().saturating_sub(before) / idle.len();
    assert!(
        each <= BYTES_PER_CONNECTION_MAX,
        "{each} bytes of resident memory for each of {} connections",
        idle.len()
    );

    // They all work still.
    for wire in idle.iter_mut().step_by(97).chain(&mut warm) {
        wire.round_trip(1);
    }
    drop(idle);
    publish(&mut publisher, &queue, 11_000, 1000);
    assert_eq!(publisher.purge(1, &queue), 1000);
    broker.assert_healthy();
}
