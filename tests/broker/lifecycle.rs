//! Starting, stopping, starting again.

use std::fs;
use std::net::TcpListener;
use std::process::Output;
use std::time::Instant;

use lepus_tests::limits::{DRAIN, PATIENCE};
use lepus_tests::process::DataDir;
use lepus_tests::wire::{exchange_declare, queue_declare};
use lepus_tests::{Arguments, Broker, Close, Event, Method, Properties, Setup, Wire, os};

#[test]
fn sigterm_closes_connections_with_320_and_exits_with_0() {
    let Some(mut broker) = Broker::own(Setup::new()) else { return };
    let mut wires: Vec<Wire> = (0..6).map(|_| broker.channel()).collect();
    let queue = broker.name("drained");
    wires[0].declare(1, &queue);
    wires[1].consume(1, &queue, "t", false);
    // One that will not answer, and one that has not logged in.
    let deaf = broker.channel();
    let half = Wire::raw(broker.address);
    os::signal(broker.pid(), libc::SIGTERM);
    for wire in &mut wires {
        let close = wire.closed();
        assert_eq!((close.channel, close.code, close.ids), (0, 320, (0, 0)), "{close:?}");
        assert!(close.text.starts_with("CONNECTION_FORCED - "), "{}", close.text);
        wire.send_method(0, &Method::new(10, 51));
        assert_eq!(wire.until_end(), []);
    }
    let status = broker.wait(DRAIN).expect("it ends within ten seconds, whoever does not answer");
    assert!(status.success(), "{status}; it said:\n{}", broker.log());
    drop((deaf, half));
}

#[test]
fn an_idle_broker_ends_at_sigterm_and_at_sigint() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let Some(mut broker) = Broker::own(Setup::new()) else { return };
        os::signal(broker.pid(), signal);
        let status = broker.wait(DRAIN).expect("it ends within ten seconds");
        assert!(status.success(), "{status}; it said:\n{}", broker.log());
    }
}

/// Declares some of each kind and gives the names of the queue, of the exchanges, and of what must not survive.
struct Definitions {
    queue: String,
    exchange: String,
    target: String,
    gone: Vec<String>,
    gone_exchange: String,
}

fn define(broker: &Broker) -> (Definitions, Wire) {
    let mut wire = broker.channel();
    let names = Definitions {
        queue: broker.name("durable"),
        exchange: broker.name("x"),
        target: broker.name("x"),
        gone: vec![broker.name("transient"), broker.name("exclusive")],
        gone_exchange: broker.name("x"),
    };
    let none = Arguments::new();
    let kept = Arguments::new().text("x-note", "kept").int("x-number", 7);
    wire.declare_as(1, &names.queue, [false, true, false, false, false], &kept);
    wire.declare_exchange(1, &names.exchange, "topic");
    wire.declare_exchange(1, &names.target, "headers");
    let bind = Method::new(40, 30).short(0).shortstr(&names.target).shortstr(&names.exchange).shortstr("a.#");
    wire.call(1, bind.bits(&[false]).table(&none));
    wire.bind(1, &names.queue, &names.target, "", &Arguments::new().text("x-match", "any").int("n", 5));
    wire.call(1, queue_declare(&names.gone[0], [false; 5], &none));
    wire.call(1, queue_declare(&names.gone[1], [false, true, true, false, false], &none));
    wire.call(1, exchange_declare(&names.gone_exchange, "fanout", [false; 5], &none));
    wire.bind(1, &names.gone[0], "amq.direct", "k", &none);
    wire.publish_as(1, "", &names.gone[0], false, &Properties::persistent(), b"m");
    (names, wire)
}

fn assert_restored(broker: &Broker, names: &Definitions) {
    let mut wire = broker.channel();
    // Routed through both exchanges and both bindings, arguments included.
    let headers = |n| Properties::headers(&Arguments::new().int("n", n));
    wire.publish_as(1, &names.exchange, "a.b", true, &headers(5), b"hit");
    wire.publish_as(1, &names.exchange, "a.b", false, &headers(6), b"wrong header");
    wire.publish_as(1, &names.exchange, "b", false, &headers(5), b"wrong key");
    wire.round_trip(1);
    assert!(!wire.returned(), "a binding is missing");
    let got: Vec<Vec<u8>> = wire.drain(1, &names.queue).into_iter().map(|delivery| delivery.body).collect();
    assert_eq!(got, [b"hit"]);
    // Durable, and with the arguments that it had.
    let kept = Arguments::new().text("x-note", "kept").int("x-number", 7);
    wire.declare_as(1, &names.queue, [false, true, false, false, false], &kept);
    wire.declare_exchange(1, &names.exchange, "topic");
    for name in &names.gone {
        wire.open(2);
        wire.send_method(2, &queue_declare(name, [true, false, false, false, false], &Arguments::new()));
        let text = format!("NOT_FOUND - no queue '{name}' in vhost '/'");
        assert_eq!(wire.closed(), Close { channel: 2, code: 404, text, ids: (50, 10) });
        wire.close_ok(2);
    }
    wire.open(2);
    wire.send_method(
        2,
        &exchange_declare(
            &names.gone_exchange,
            "fanout",
            [true, false, false, false, false],
            &Arguments::new(),
        ),
    );
    assert_eq!(wire.closed().code, 404);
}

#[test]
fn durable_definitions_survive_a_restart_and_others_do_not() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let (names, wire) = define(&broker);
    let data = broker.stop().expect("a broker of our own");
    drop(wire);
    let broker = Setup::new().start_in(data);
    assert_restored(&broker, &names);
    // And once more, on another number of shards.
    let data = broker.stop().expect("a broker of our own");
    let broker = Setup::default().set("shards=1").start_in(data);
    assert_restored(&broker, &names);
    let data = broker.stop().expect("a broker of our own");
    let broker = Setup::default().set("shards=3").start_in(data);
    assert_restored(&broker, &names);
}

#[test]
fn durable_definitions_survive_a_crash() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let (names, wire) = define(&broker);
    let broker = Setup::new().start_in(broker.kill());
    drop(wire);
    assert_restored(&broker, &names);
}

#[test]
fn deleted_definitions_stay_deleted() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let (names, mut wire) = define(&broker);
    wire.delete_queue(1, &names.queue);
    wire.call(1, Method::new(40, 20).short(0).shortstr(&names.exchange).bits(&[false, false]));
    let broker = Setup::new().start_in(broker.kill());
    let mut wire = broker.channel();
    wire.send_method(1, &queue_declare(&names.queue, [true, false, false, false, false], &Arguments::new()));
    assert_eq!(wire.closed().code, 404);
    wire.close_ok(1);
    wire.open(1);
    wire.declare_exchange(1, &names.exchange, "fanout");
    wire.declare(1, &names.queue);
    wire.publish_as(1, &names.exchange, "a.b", true, &Properties::none(), b"m");
    assert!(matches!(wire.event(), Event::Return(_)), "an old binding came back");
}

/// A start that must fail: exit code 2, and one line on standard error that contains all of this.
fn assert_refused(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one line:\n{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
}

fn quiet() -> Setup {
    Setup::new().set("log_level=off")
}

/// Runs a start that fails; one that does not is ended by the harness's patience.
fn output(mut command: std::process::Command) -> Output {
    let child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    let Some(status) = lepus_tests::process::wait(&mut child, PATIENCE) else {
        let _ = child.kill();
        panic!("it started, or hangs: {:?}", child.wait_with_output());
    };
    let mut output = child.wait_with_output().expect("it has ended");
    output.status = status;
    output
}

#[test]
fn a_taken_port_is_named() {
    if Broker::own(Setup::new()).is_none() {
        return;
    }
    let holder = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = holder.local_addr().expect("it is bound").to_string();
    let data = DataDir::new();
    let mut command = quiet().command(data.path());
    command.arg("--listen").arg(&address);
    assert_refused(&output(command), &[&address]);
}

#[test]
fn a_locked_data_directory_is_named() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let data = broker.data_path().to_owned();
    let mut command = quiet().command(&data);
    command.arg("--listen=127.0.0.1:0");
    assert_refused(&output(command), &[&data.display().to_string()]);
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    if Broker::own(Setup::new()).is_none() {
        return;
    }
    let data = DataDir::new();
    let file = data.path().join("file");
    fs::write(&file, b"").expect("the directory is ours");
    let below = file.join("data");
    let mut command = quiet().command(&below);
    command.arg("--listen=127.0.0.1:0");
    assert_refused(&output(command), &[&below.display().to_string()]);
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    if Broker::own(Setup::new()).is_none() {
        return;
    }
    let data = DataDir::new();
    let file = data.path().join("lepus.toml");
    fs::write(&file, "[amqp]\nheartbeat = 10\n").expect("the directory is ours");
    let mut command = quiet().command(data.path());
    command.arg("--config").arg(&file);
    assert_refused(&output(command), &["amqp.heartbeat", "amqp.heartbeat_s"]);
    let mut command = quiet().command(data.path());
    command.args(["--set", "memory_buget=1GiB"]);
    assert_refused(&output(command), &["memory_buget", "memory_budget"]);
    let mut command = quiet().command(data.path());
    command.env("LEPUS_MEMORY_BUGET", "1GiB");
    assert_refused(&output(command), &["LEPUS_MEMORY_BUGET", "memory_budget"]);
}

#[test]
fn a_port_that_was_just_left_can_be_taken_again() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let address = broker.address.to_string();
    let wires: Vec<Wire> = (0..20).map(|_| broker.channel()).collect();
    let data = broker.stop().expect("a broker of our own");
    drop(wires);
    let began = Instant::now();
    let mut command = quiet().command(data.path());
    let mut child = command.arg("--listen").arg(&address).spawn().expect("the binary starts");
    let served = loop {
        if std::net::TcpStream::connect(&address).is_ok() {
            break true;
        }
        if child.try_wait().expect("our child").is_some() || began.elapsed() > PATIENCE {
            break false;
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    assert!(served, "{address} could not be taken again");
}
