//! Situations that no method causes, and those that need a broker with settings of its own.

use lepus_tests::wire::{basic_publish, header_frame, method_frame};
use lepus_tests::{Broker, Close, Method, Properties, Setup, Wire};

use super::bench::{CONSUME, PUBLISH, consume};

/// A connection with channels 1 and 2 to a broker with this setting, if the tests are of Lepus.
fn scene(setting: &str) -> Option<(Broker, Wire)> {
    let broker = Broker::own(Setup::new().set(setting))?;
    let mut wire = broker.channel();
    wire.open(2);
    Some((broker, wire))
}

#[test]
fn a_message_above_the_limit_is_406() {
    let Some((broker, mut wire)) = scene("amqp.max_message_bytes=8") else { return };
    wire.send(&method_frame(1, &basic_publish("", "nobody", false)));
    wire.send(&header_frame(1, 9, &Properties::none()));
    let text = "PRECONDITION_FAILED - message size 9 is larger than configured max size 8".to_owned();
    assert_eq!(wire.closed(), Close { channel: 1, code: 406, text, ids: PUBLISH });
    wire.round_trip(2);
    // One of the largest size passes.
    let queue = wire.declare_exclusive(2);
    wire.publish(2, "", &queue, b"8 bytes.");
    assert_eq!(wire.get(2, &queue, true).expect("published before").body, b"8 bytes.");
    broker.stop();
}

#[test]
fn a_delivery_that_is_kept_too_long_is_406_and_goes_to_another() {
    let Some((broker, mut wire)) = scene("amqp.consumer_timeout_ms=200") else { return };
    wire.declare(1, "q");
    wire.publish(1, "", "q", b"m");
    wire.open(7);
    wire.consume(7, "q", "late", false);
    wire.delivery();
    let text = "PRECONDITION_FAILED - delivery acknowledgement on channel 7 timed out. Timeout value used: 200 ms. \
                This timeout value can be configured, see consumers doc guide to learn more";
    assert_eq!(wire.closed(), Close { channel: 7, code: 406, text: text.to_owned(), ids: (0, 0) });
    wire.close_ok(7);
    let again = std::iter::repeat_with(|| wire.get(1, "q", true)).flatten().next().expect("it comes back");
    assert!(again.redelivered, "the connection and its other channels live");
    wire.open(7);
    broker.stop();
}

#[test]
fn more_consumers_than_a_channel_may_have_are_530() {
    let Some((broker, mut wire)) = scene("amqp.consumers_per_channel_max=2") else { return };
    wire.declare(1, "q");
    for tag in ["a", "b"] {
        wire.consume(1, "q", tag, false);
        wire.consume(2, "q", tag, false);
    }
    // One that has gone makes room for another.
    wire.cancel(1, "a");
    wire.consume(1, "q", "c", false);
    wire.send(&consume("q", "d"));
    let text = "NOT_ALLOWED - reached maximum (2) of consumers per channel".to_owned();
    assert_eq!(wire.closed(), Close { channel: 0, code: 530, text, ids: CONSUME });
    wire.send_method(0, &Method::new(10, 51));
    assert_eq!(wire.until_end(), []);
    broker.channel().round_trip(1);
    broker.stop();
}
