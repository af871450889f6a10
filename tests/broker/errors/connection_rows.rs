//! Situations that end the connection.

use lepus_tests::wire::queue_declare;
use lepus_tests::{Arguments, Login, Method, Wire};

use super::bench::{
    Bench, CHANNEL_FLOW, CHANNEL_OPEN, CONSUME, Ids, PASSIVE, PUBLISH, QOS, QUEUE_DECLARE, RECOVER,
    RECOVER_ASYNC, Row, consume, empty_publish, m, row,
};

/// A method that only brokers send.
const DECLARE_OK: Ids = (50, 11);

fn rows(bench: &Bench) -> Vec<Row> {
    let q = &bench.name("q");
    let flow_off = m(&Method::new(20, 20).bits(&[false]));
    vec![
        row(
            "channel opened twice",
            [m(&Method::new(20, 10).shortstr(""))],
            504,
            "second 'channel.open' seen",
            CHANNEL_OPEN,
        ),
        row(
            "unimplemented method",
            [m(&Method::new(50, 11).shortstr("q").long(0).long(0))],
            503,
            "unimplemented method",
            DECLARE_OK,
        ),
        row(
            "consumer tag used twice",
            [consume(q, "t"), consume(q, "t")],
            530,
            "attempt to reuse consumer tag 't'",
            CONSUME,
        ),
        row("immediate=true", [empty_publish("", q, &[false, true])], 540, "immediate=true", PUBLISH),
        row(
            "prefetch_size",
            [m(&Method::new(60, 10).long(9).short(1).bits(&[false]))],
            540,
            "prefetch_size!=0 (9)",
            QOS,
        ),
        row("flow(false)", [flow_off], 540, "active=false", CHANNEL_FLOW),
        row(
            "recover(requeue=false)",
            [m(&Method::new(60, 110).bits(&[false]))],
            540,
            "requeue=false",
            RECOVER,
        ),
        row(
            "recover-async(requeue=false)",
            [m(&Method::new(60, 100).bits(&[false]))],
            540,
            "requeue=false",
            RECOVER_ASYNC,
        ),
    ]
}

#[test]
fn each_row_that_ends_the_connection_says_so_and_ends_nothing_else() {
    let mut bench = Bench::new();
    let rows = rows(&bench);
    bench.play(rows, Bench::connection_closes);
}

#[test]
fn a_channel_that_is_used_before_it_is_open_is_504() {
    let mut bench = Bench::new();
    let mut wire = bench.wire();
    wire.send_method(3, &queue_declare("q", PASSIVE, &Arguments::new()));
    let close = wire.closed();
    assert_eq!((close.channel, close.code, close.ids), (0, 504, QUEUE_DECLARE), "{close:?}");
    assert_eq!(close.text, "CHANNEL_ERROR - expected 'channel.open'");
    bench.ends(wire);
}

#[test]
fn more_channels_than_agreed_are_530() {
    let mut bench = Bench::new();
    let login = Login { channel_max: 3, ..Login::default() };
    let mut wire = Wire::log_in(bench.broker.address, &login).expect("three channels are fine");
    (1..=3).for_each(|channel| wire.open(channel));
    wire.send_method(4, &Method::new(20, 10).shortstr(""));
    let close = wire.closed();
    assert_eq!((close.channel, close.code, close.ids), (0, 530, (0, 0)), "{close:?}");
    let text = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)";
    assert_eq!(close.text, text);
    bench.ends(wire);
}

#[test]
fn a_channel_number_out_of_range_closes_the_connection() {
    let bench = Bench::new();
    if !bench.broker.is_lepus() {
        return; // RabbitMQ counts channels and lets any number pass.
    }
    for channel in [2048, 40_000, u16::MAX] {
        let open = lepus_tests::wire::method_frame(channel, &Method::new(20, 10).shortstr(""));
        bench.bytes_error(&open, &[504, 530]);
    }
}

#[test]
fn after_a_connection_error_nothing_but_close_ok_counts() {
    let mut bench = Bench::new();
    let queue = bench.name("q");
    let mut wire = bench.wire();
    wire.send_method(1, &Method::new(20, 20).bits(&[false]));
    assert_eq!(wire.closed().code, 540);
    wire.publish(1, "", &queue, b"too late");
    wire.send_method(1, &queue_declare("too late", [false; 5], &Arguments::new()));
    bench.ends(wire);
    assert_eq!(bench.wire().look(1, &queue).0, 0, "a publish after the error");
}
