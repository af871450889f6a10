//! Policies of a stopped broker: set by the command, obeyed from the next start on.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use lepus_tests::process::binary;
use lepus_tests::{Arguments, Broker, Properties, Setup, Wire};

fn policy(arguments: &[&str], directory: &Path, further: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("policy").args(arguments).arg(directory).args(further).stdin(Stdio::null());
    command.output().expect("the binary runs")
}

fn succeeded(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn bodies(wire: &mut Wire, queue: &str) -> Vec<String> {
    let deliveries = wire.drain(1, queue);
    deliveries.iter().map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned()).collect()
}

/// Publishes persistent messages on a channel of their own, and waits for the confirms.
fn publish(broker: &Broker, exchange: &str, key: &str, bodies: &[&str]) {
    let mut wire = broker.channel();
    wire.select_confirms(1);
    for body in bodies {
        wire.publish_as(1, exchange, key, false, &Properties::persistent(), body.as_bytes());
    }
    wire.confirmed(bodies.len() as u64);
}

#[test]
fn what_is_set_between_two_runs_holds_for_what_is_there_and_for_what_comes() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let mut wire = broker.channel();
    wire.declare(1, "orders");
    wire.declare(1, "unrouted");
    wire.declare_exchange(1, "x", "direct");
    wire.bind(1, "unrouted", "amq.fanout", "", &Arguments::new());
    publish(&broker, "", "orders", &["0", "1", "2", "3", "4"]);
    let data = broker.stop().expect("a broker of our own");
    let set = |flags: &[&str], rest: &[&str]| {
        let arguments: Vec<&str> = ["set"].iter().chain(flags).copied().collect();
        succeeded(&policy(&arguments, data.path(), rest));
    };
    set(&["--priority", "-1"], &["everything", "", r#"{"max-length": 1}"#]);
    set(&["--apply-to", "queues"], &["orders", "^orders", r#"{"max-length": 4}"#]);
    set(&["--operator"], &["bound", "^orders", r#"{"max-length": 3}"#]);
    set(&["--apply-to", "exchanges"], &["rest", "^x$", r#"{"alternate-exchange": "amq.fanout"}"#]);
    let listed = succeeded(&policy(&["list"], data.path(), &[]));
    let expected = [
        "vhost\tkind\tname\tpattern\tapply-to\tdefinition\tpriority",
        "/\tpolicy\teverything\t\tall\t{\"max-length\":1}\t-1",
        "/\tpolicy\torders\t^orders\tqueues\t{\"max-length\":4}\t0",
        "/\tpolicy\trest\t^x$\texchanges\t{\"alternate-exchange\":\"amq.fanout\"}\t0",
        "/\toperator policy\tbound\t^orders\tall\t{\"max-length\":3}\t0",
    ];
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);

    let broker = Setup::new().start_in(data);
    let mut wire = broker.channel();
    wire.declare(1, "later");
    publish(&broker, "", "later", &["0", "1"]);
    publish(&broker, "x", "nowhere", &["lost?"]);
    assert_eq!(bodies(&mut wire, "orders"), ["2", "3", "4"], "shortened when it was restored");
    assert_eq!(bodies(&mut wire, "later"), ["1"]);
    assert_eq!(bodies(&mut wire, "unrouted"), ["lost?"]);

    // A crash in between changes nothing, and what is cleared holds no more.
    let data = broker.kill();
    succeeded(&policy(&["clear", "--operator"], data.path(), &["bound"]));
    let broker = Setup::new().start_in(data);
    let mut wire = broker.channel();
    publish(&broker, "", "orders", &["0", "1", "2", "3", "4"]);
    assert_eq!(bodies(&mut wire, "orders"), ["1", "2", "3", "4"]);
}

#[test]
fn a_wrong_policy_or_one_for_a_running_broker_is_refused_in_one_line() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let refused = |arguments: &[&str], directory: &Path, further: &[&str]| {
        let output = policy(arguments, directory, further);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    let limit = r#"{"max-length": 1}"#;
    let running = refused(&["set"], broker.data_path(), &["p", "", limit]);
    assert!(running.contains("in use by the process with pid"), "{running}");
    refused(&["list"], broker.data_path(), &[]);
    let data = broker.stop().expect("a broker of our own");
    for (further, said) in [
        (["p", "", "max-length=1"], "the definition must be a JSON object"),
        (["p", "", r#"{"max-length": -1}"#], "-1 is not a valid maximum length"),
        (["p", "", r#"{"foo": 1}"#], "[{<<\"foo\">>,1}] are not recognised policy settings"),
        (["p", "", "{}"], "no policy provided"),
        (["p", "(", limit], "pattern should be regular expression but is invalid"),
    ] {
        let text = refused(&["set"], data.path(), &further);
        assert!(text.contains(said), "{text}");
    }
    let text = refused(&["set", "--apply-to", "foo"], data.path(), &["p", "", limit]);
    assert!(text.contains("should be one of: queues, classic_queues"), "{text}");
    let text = refused(&["clear"], data.path(), &["p"]);
    assert!(text.contains("no policy 'p' in vhost '/'"), "{text}");
    let text = refused(&["list"], &data.path().join("missing"), &[]);
    assert!(text.contains("there is no data directory"), "{text}");
}
