//! `lepus bench` loads the broker: each workload for a moment, and what it counted must add up. Nothing here is
//! about speed.

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lepus_tests::frames::queue_declare;
use lepus_tests::limits::START;
use lepus_tests::process::binary;
use lepus_tests::{Arguments, Broker, Event, Setup, os};
use serde_json::Value;

fn bench(arguments: &str) -> Output {
    let arguments = arguments.split_whitespace();
    Command::new(binary()).arg("bench").args(arguments).output().expect("the binary can be run")
}

/// Runs a workload against the broker and gives its report.
fn report(broker: &Broker, arguments: &str) -> Value {
    json(&format!("{arguments} --uri {} --json", broker.url()))
}

fn json(arguments: &str) -> Value {
    let output = bench(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "lepus bench {arguments}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments}: {error}"))
}

fn figure(report: &Value, name: &str) -> f64 {
    report["figures"][name].as_f64().unwrap_or_else(|| panic!("{report} has no {name}"))
}

/// Something was sent, and as much of it came as should.
fn assert_complete(report: &Value, copies: f64, confirmed: bool) {
    let sent = figure(report, "sent");
    assert!(sent > 0.0, "{report}");
    assert_eq!(figure(report, "delivered"), sent * copies, "{report}");
    if confirmed {
        assert_eq!(figure(report, "confirmed"), sent, "{report}");
    }
}

#[test]
fn whatever_is_sent_comes_and_is_confirmed() {
    let broker = Broker::start();
    for exchange in ["default", "direct", "topic", "headers"] {
        let options = "--messages 300 --queues 3 --producers 2 --consumers 2 --confirm 50 --ack multiple";
        let report = report(&broker, &format!("throughput --exchange {exchange} {options}"));
        assert_complete(&report, 1.0, true);
        assert_eq!(figure(&report, "sent"), 600.0);
    }
    let fanned =
        report(&broker, "throughput --exchange fanout --queues 4 --messages 100 --persistent --body 10-9000");
    assert_complete(&fanned, 4.0, false);
    assert_complete(&report(&broker, "fanout --queues 5 --seconds 0.2"), 5.0, true);
}

#[test]
fn latencies_are_of_every_message_that_was_due() {
    let broker = Broker::start();
    let report = report(&broker, "latency --rate 500 --seconds 1 --warm-up 0.2 --persistent");
    assert_complete(&report, 1.0, true);
    assert_eq!((figure(&report, "due"), figure(&report, "sent")), (600.0, 600.0), "{report}");
    for latency in ["deliver", "confirm"] {
        // The warm-up is not counted.
        assert_eq!(figure(&report, &format!("{latency}_count")), 500.0, "{report}");
        assert!(
            figure(&report, &format!("{latency}_p50_us")) <= figure(&report, &format!("{latency}_max_us"))
        );
    }
}

#[test]
fn a_backlog_is_drained_and_round_trips_come_round() {
    let broker = Broker::start();
    let report_of = |arguments: &str| report(&broker, arguments);
    assert_complete(&report_of("backlog --messages 2000 --body 500 --persistent"), 1.0, true);
    for replies in ["direct", "queue"] {
        let rpc = report_of(&format!("rpc --seconds 0.3 --reply {replies}"));
        assert!(figure(&rpc, "requests") > 0.0);
        assert_eq!(figure(&rpc, "replies"), figure(&rpc, "requests"));
    }
}

#[test]
fn objects_come_and_go_and_connections_idle() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let churn = report(&broker, "churn --seconds 0.3");
    for what in ["connections", "channels", "queues"] {
        assert!(figure(&churn, what) > 0.0, "{churn}");
    }
    let idle = report(&broker, &format!("idle --connections 20 --seconds 0.2 --pid {}", broker.pid()));
    assert_eq!(figure(&idle, "connections"), 20.0);
}

#[test]
fn limits_are_measured_without_a_broker_and_confirms_beside_the_disk() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let directory = broker.data_path().parent().expect("it is in a directory").display().to_string();
    let limit = json("limit --seconds 0.2 --json");
    assert_eq!(figure(&limit, "received"), figure(&limit, "reframed"));
    let together = "--publishers 3 --connections 2 --seconds 0.3";
    let confirms = report(&broker, &format!("confirms --directory {directory} --turns 1 {together}"));
    for times in ["confirm", "raw_write", "round_trip"] {
        assert_eq!(figure(&confirms, &format!("{times}_count")), 200.0, "{confirms}");
    }
    for shown in ["confirm_to_least_ratio", "together_per_s", "loopback_per_s"] {
        assert!(figure(&confirms, shown) > 0.0, "{confirms}");
    }
}

#[test]
fn nothing_is_left_behind() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    report(&broker, "throughput --messages 100 --queues 3 --exchange topic");
    report(&broker, "backlog --messages 500 --persistent");
    let stopped = broker.stop().expect("it is ours");
    let check =
        Command::new(binary()).arg("check-store").arg(stopped.path()).output().expect("it can be run");
    let text = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success() && !text.contains("queue"), "{text}");
}

/// Messages that are ready in a queue, if there is one.
fn ready(broker: &Broker, queue: &str) -> Option<u32> {
    let mut wire = broker.channel();
    wire.send_method(1, &queue_declare(queue, [true, false, false, false, false], &Arguments::new()));
    match wire.event() {
        Event::Method(1, (50, 11), mut ok) => {
            ok.shortstr();
            Some(ok.long())
        }
        Event::Close(close) if close.code == 404 => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_that_a_signal_ends_reports_and_leaves_nothing() {
    let broker = Broker::start();
    let uri = broker.url();
    let line =
        format!("bench throughput --seconds 600 --rate 100 --consumers 0 --persistent --json --uri {uri}");
    let mut command = Command::new(binary());
    let child = command.args(line.split_whitespace()).stdout(Stdio::piped()).spawn();
    let child = child.expect("the binary can be run");
    let queue = format!("lepus-bench.{}.0.q000000", child.id());
    let deadline = Instant::now() + START;
    while ready(&broker, &queue).unwrap_or(0) == 0 {
        assert!(Instant::now() < deadline, "no message in {queue}");
        thread::sleep(Duration::from_millis(20));
    }
    os::signal(child.id(), libc::SIGINT);
    let output = child.wait_with_output().expect("it is ours");
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).expect("it reports");
    assert_eq!(report["interrupted"], true);
    assert!(figure(&report, "sent") > 0.0, "{report}");
    assert_eq!(ready(&broker, &queue), None);
}

#[test]
fn brokers_are_compared_in_turns() {
    let broker = Broker::start();
    let (uri, plot) =
        (broker.url(), std::env::temp_dir().join(format!("lepus-compare-{}.svg", std::process::id())));
    let report = json(&format!(
        "compare --uri a={uri} --uri b={uri} --rounds 2 --seconds 0.2 --workload small=throughput --json --plot {}",
        plot.display()
    ));
    assert_eq!(report["targets"].as_array().map(Vec::len), Some(2), "{report}");
    let svg = std::fs::read_to_string(&plot).expect("the plot is written");
    std::fs::remove_file(&plot).expect("it was just read");
    assert!(svg.starts_with("<svg") || svg.starts_with("<?xml"));
}

#[test]
fn what_cannot_be_run_is_said_in_one_line() {
    for (arguments, code) in [
        ("throughput --uri amqp://127.0.0.1:1/", 1),
        ("throughput --uri http://127.0.0.1/", 2),
        ("throughput --ack each --prefetch -1", 2),
        ("latency --rate 0", 2),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{arguments}");
    }
}
