//! Situations that end the channel and leave the connection open.

use lepus_tests::wire::{basic_consume, queue_bind};
use lepus_tests::{Arguments, Method, Properties};

use super::bench::{
    ACK, Bench, CONSUME, DURABLE, EXCHANGE_BIND, EXCHANGE_DECLARE, EXCHANGE_DELETE, EXCHANGE_UNBIND,
    EXCLUSIVE, GET, NACK, PASSIVE, PUBLISH, QUEUE_BIND, QUEUE_DECLARE, QUEUE_DELETE, QUEUE_PURGE,
    QUEUE_UNBIND, REJECT, bind, bind_exchange, consume, consume_with, declare_exchange, declare_queue,
    delete_exchange, delete_queue, get, m, passive_queue, property, publish, purge, row, settle, unbind,
};

const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Flags of properties.
const EXPIRATION: u16 = 1 << 8;
const REPLY_TO_FLAG: u16 = 1 << 9;
const USER_ID: u16 = 1 << 4;

fn with(name: &str, value: i32) -> Arguments {
    Arguments::new().int(name, value)
}

fn none() -> Arguments {
    Arguments::new()
}

#[test]
fn what_does_not_exist_is_404() {
    let mut bench = Bench::new();
    let (q, no_queue) = (&bench.name("q"), "no queue 'none' in vhost '/'");
    let (no_exchange, no_last) = ("no exchange 'none' in vhost '/'", "no previously declared queue");
    let passive_exchange = declare_exchange("none", "direct", PASSIVE, &none());
    let rows = vec![
        row("passive declare of no queue", [passive_queue("none")], 404, no_queue, QUEUE_DECLARE),
        row("get from no queue", [get("none")], 404, no_queue, GET),
        row("purge of no queue", [purge("none")], 404, no_queue, QUEUE_PURGE),
        row("consume from no queue", [consume("none", "")], 404, no_queue, CONSUME),
        row("bind of no queue", [bind("none", "amq.direct")], 404, no_queue, QUEUE_BIND),
        row("bind to no exchange", [bind(q, "none")], 404, no_exchange, QUEUE_BIND),
        row("passive declare of no exchange", [passive_exchange], 404, no_exchange, EXCHANGE_DECLARE),
        row(
            "bind of no exchange",
            [bind_exchange(30, "none", "amq.direct")],
            404,
            no_exchange,
            EXCHANGE_BIND,
        ),
        row(
            "bind from no exchange",
            [bind_exchange(30, "amq.direct", "none")],
            404,
            no_exchange,
            EXCHANGE_BIND,
        ),
        row("publish to no exchange", [publish("none", "k", &Properties::none())], 404, no_exchange, PUBLISH),
        row("consume from '' before a declare", [consume("", "")], 404, no_last, CONSUME),
        row("get from '' before a declare", [get("")], 404, no_last, GET),
        row("purge of '' before a declare", [purge("")], 404, no_last, QUEUE_PURGE),
        row("bind of '' before a declare", [bind("", "amq.direct")], 404, no_last, QUEUE_BIND),
        row("delete of '' before a declare", [delete_queue("", false, false)], 404, no_last, QUEUE_DELETE),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn a_queue_declared_again_with_other_properties_is_406() {
    let mut bench = Bench::new();
    let (q, typed) = (&bench.name("q"), &bench.name("typed"));
    let differs = |argument: &str, of: &str, what: &str| {
        format!("inequivalent arg '{argument}' for {}: received {what}", bench.queue(of))
    };
    let durable = |arguments: &Arguments| declare_queue(q, DURABLE, arguments);
    let typed_as = |arguments: &Arguments| declare_queue(typed, DURABLE, arguments);
    let rows = vec![
        row(
            "durable",
            [declare_queue(q, [false; 5], &none())],
            406,
            differs("durable", "q", "'false' but current is 'true'"),
            QUEUE_DECLARE,
        ),
        row(
            "auto_delete",
            [declare_queue(q, [false, true, false, true, false], &none())],
            406,
            differs("auto_delete", "q", "'true' but current is 'false'"),
            QUEUE_DECLARE,
        ),
        row(
            "an argument that it has not",
            [durable(&with("x-max-length", 10))],
            406,
            differs("x-max-length", "q", "the value '10' of type 'signedint' but current is none"),
            QUEUE_DECLARE,
        ),
        row(
            "without an argument that it has",
            [typed_as(&none())],
            406,
            differs("x-max-length", "typed", "none but current is the value '10' of type 'signedint'"),
            QUEUE_DECLARE,
        ),
        row(
            "an argument with another value",
            [typed_as(&with("x-max-length", 11))],
            406,
            differs("x-max-length", "typed", "'11' but current is '10'"),
            QUEUE_DECLARE,
        ),
        row(
            "x-queue-type",
            [durable(&Arguments::new().text("x-queue-type", "quorum"))],
            406,
            differs("x-queue-type", "q", "'quorum' but current is 'classic'"),
            QUEUE_DECLARE,
        ),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn an_exchange_declared_again_with_other_properties_is_406() {
    let mut bench = Bench::new();
    let x = &bench.name("x");
    let differs = |argument: &str, of: &str, what: &str| {
        format!("inequivalent arg '{argument}' for {}: received {what}", bench.exchange(of))
    };
    let as_x =
        |kind: &str, flags: [bool; 5], arguments: &Arguments| declare_exchange(x, kind, flags, arguments);
    let auto_delete = [false, true, true, false, false];
    let internal = [false, true, false, true, false];
    let other = "'true' but current is 'false'";
    let rows = vec![
        row(
            "type",
            [as_x("topic", DURABLE, &none())],
            406,
            differs("type", "x", "'topic' but current is 'direct'"),
            EXCHANGE_DECLARE,
        ),
        row(
            "durable",
            [as_x("direct", [false; 5], &none())],
            406,
            differs("durable", "x", "'false' but current is 'true'"),
            EXCHANGE_DECLARE,
        ),
        row(
            "auto_delete",
            [as_x("direct", auto_delete, &none())],
            406,
            differs("auto_delete", "x", other),
            EXCHANGE_DECLARE,
        ),
        row(
            "internal",
            [as_x("direct", internal, &none())],
            406,
            differs("internal", "x", other),
            EXCHANGE_DECLARE,
        ),
        row(
            "an alternate exchange that it has not",
            [as_x("direct", DURABLE, &Arguments::new().text("alternate-exchange", "a"))],
            406,
            differs("alternate-exchange", "x", "the value 'a' of type 'longstr' but current is none"),
            EXCHANGE_DECLARE,
        ),
        row(
            "without the alternate exchange that it has",
            [declare_exchange(&bench.name("alternate"), "fanout", DURABLE, &none())],
            406,
            differs("alternate-exchange", "alternate", "none but current is the value 'a' of type 'longstr'"),
            EXCHANGE_DECLARE,
        ),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn an_invalid_argument_is_406() {
    let mut bench = Bench::new();
    let made = bench.name("made");
    let declare = |arguments: &Arguments| [declare_queue(&made, DURABLE, arguments)];
    let invalid =
        |argument: &str, why: &str| format!("invalid arg '{argument}' for {}: {why}", bench.queue("made"));
    let rows = vec![
        row(
            "x-expires of 0",
            declare(&with("x-expires", 0)),
            406,
            invalid("x-expires", "{value_zero,0}"),
            QUEUE_DECLARE,
        ),
        row(
            "x-expires below 0",
            declare(&with("x-expires", -1)),
            406,
            invalid("x-expires", "{value_negative,-1}"),
            QUEUE_DECLARE,
        ),
        row(
            "x-message-ttl below 0",
            declare(&with("x-message-ttl", -1)),
            406,
            invalid("x-message-ttl", "{value_negative,-1}"),
            QUEUE_DECLARE,
        ),
        row(
            "x-max-length below 0",
            declare(&with("x-max-length", -1)),
            406,
            invalid("x-max-length", "{value_negative,-1}"),
            QUEUE_DECLARE,
        ),
        row(
            "x-max-length that is text",
            declare(&Arguments::new().text("x-max-length", "ten")),
            406,
            invalid("x-max-length", "\"expected integer, got longstr\""),
            QUEUE_DECLARE,
        ),
        row(
            "x-max-priority above 255",
            declare(&with("x-max-priority", 256)),
            406,
            invalid("x-max-priority", "{max_value_exceeded,256}"),
            QUEUE_DECLARE,
        ),
        row(
            "x-overflow that nobody knows",
            declare(&Arguments::new().text("x-overflow", "drop")),
            406,
            invalid("x-overflow", "invalid_overflow"),
            QUEUE_DECLARE,
        ),
        row(
            "a dead letter key without an exchange",
            declare(&Arguments::new().text("x-dead-letter-routing-key", "k")),
            406,
            invalid("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined"),
            QUEUE_DECLARE,
        ),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn an_unknown_exchange_type_is_a_channel_error() {
    let mut bench = Bench::new();
    // RabbitMQ 4.3 has two texts for this.
    let word = if bench.broker.is_lepus() { "unknown" } else { "invalid" };
    let text = format!("{word} exchange type 'foo'");
    let sent = [declare_exchange("none", "foo", DURABLE, &none())];
    bench.play(vec![row("unknown exchange type", sent, 406, text, EXCHANGE_DECLARE)], Bench::channel_closes);
}

#[test]
fn reserved_names_are_403() {
    let mut bench = Bench::new();
    let made = declare_exchange("amq.x", "direct", [false; 5], &none());
    let system = "deletion of system exchange 'amq.topic' in vhost '/' not allowed";
    let trace = "deletion of system exchange 'amq.rabbitmq.trace' in vhost '/' not allowed";
    let reserved = |what: &str| format!("{what} name 'amq.x' contains reserved prefix 'amq.*'");
    let rows = vec![
        row("queue", [declare_queue("amq.x", DURABLE, &none())], 403, reserved("queue"), QUEUE_DECLARE),
        row("exchange", [made], 403, reserved("exchange"), EXCHANGE_DECLARE),
        row("system exchange deleted", [delete_exchange("amq.topic", false)], 403, system, EXCHANGE_DELETE),
        row(
            "trace exchange deleted",
            [delete_exchange("amq.rabbitmq.trace", false)],
            403,
            trace,
            EXCHANGE_DELETE,
        ),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn the_default_exchange_cannot_be_changed() {
    let mut bench = Bench::new();
    let (q, text) = (&bench.name("q"), "operation not permitted on the default exchange");
    let rows = vec![
        row("declared", [declare_exchange("", "direct", DURABLE, &none())], 403, text, EXCHANGE_DECLARE),
        row("looked at", [declare_exchange("", "direct", PASSIVE, &none())], 403, text, EXCHANGE_DECLARE),
        row("deleted", [delete_exchange("", false)], 403, text, EXCHANGE_DELETE),
        row("queue bound", [bind(q, "")], 403, text, QUEUE_BIND),
        row("queue unbound", [unbind(q, "")], 403, text, QUEUE_UNBIND),
        row("bound as a destination", [bind_exchange(30, "", "amq.direct")], 403, text, EXCHANGE_BIND),
        row("bound as a source", [bind_exchange(30, "amq.direct", "")], 403, text, EXCHANGE_BIND),
        row("unbound as a destination", [bind_exchange(40, "", "amq.direct")], 403, text, EXCHANGE_UNBIND),
        row("unbound as a source", [bind_exchange(40, "amq.direct", "")], 403, text, EXCHANGE_UNBIND),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn an_internal_exchange_takes_no_publish() {
    let mut bench = Bench::new();
    let text = format!("cannot publish to internal {}", bench.exchange("inside"));
    let trace = "cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'";
    let sent = publish(&bench.name("inside"), "", &Properties::none());
    let traced = publish("amq.rabbitmq.trace", "publish.x", &Properties::none());
    let rows = vec![row("internal", [sent], 403, text, PUBLISH), row("trace", [traced], 403, trace, PUBLISH)];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn another_connections_exclusive_queue_is_405() {
    let mut bench = Bench::new();
    let locked = &bench.name("locked");
    let text = format!(
        "cannot obtain exclusive access to locked {}. It could be originally declared on another connection or the \
         exclusive property value does not match that of the original declaration.",
        bench.queue("locked")
    );
    let text = text.as_str();
    let rows = vec![
        row("looked at", [passive_queue(locked)], 405, text, QUEUE_DECLARE),
        row("declared as it is", [declare_queue(locked, EXCLUSIVE, &none())], 405, text, QUEUE_DECLARE),
        row("declared otherwise", [declare_queue(locked, DURABLE, &none())], 405, text, QUEUE_DECLARE),
        row("bound", [bind(locked, "amq.direct")], 405, text, QUEUE_BIND),
        row("purged", [purge(locked)], 405, text, QUEUE_PURGE),
        row("deleted", [delete_queue(locked, false, false)], 405, text, QUEUE_DELETE),
        row("consumed", [consume(locked, "")], 405, text, CONSUME),
        row("got from", [get(locked)], 405, text, GET),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn consumers_that_cannot_be_beside_each_other_are_refused() {
    let mut bench = Bench::new();
    let [alone, used, single, quorum] = &["alone", "used", "single", "quorum"].map(|name| bench.name(name));
    let in_use = |object: &str| format!("{} in exclusive use", bench.queue(object));
    let no_get = |object: &str, kind: &str| {
        format!(
            "cannot obtain access to locked {}. basic.get operations are not supported by {kind} queues with single \
             active consumer",
            bench.queue(object)
        )
    };
    let mut rows = vec![
        row("beside an exclusive one", [consume(alone, "")], 403, in_use("alone"), CONSUME),
        row("exclusive beside another", [consume_with(used, false, true)], 403, in_use("used"), CONSUME),
        row(
            "exclusive beside an exclusive one",
            [consume_with(alone, false, true)],
            403,
            in_use("alone"),
            CONSUME,
        ),
        row(
            "exclusive single active consumer",
            [consume_with(single, false, true)],
            403,
            in_use("single"),
            CONSUME,
        ),
        row("get on a quorum queue of theirs", [get(quorum)], 405, no_get("quorum", "<<\"quorum\">>"), GET),
    ];
    if bench.broker.is_lepus() {
        // RabbitMQ 4.3 takes a get from a classic one, and breaks the order that it is there for.
        rows.push(row(
            "get on a classic queue of theirs",
            [get(single)],
            405,
            no_get("single", "classic"),
            GET,
        ));
    }
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn unknown_and_spent_delivery_tags_are_406() {
    let mut bench = Bench::new();
    let full = &bench.name("full");
    let unknown = |tag: u64| format!("unknown delivery tag {tag}");
    let rows = vec![
        row("ack", [settle(80, 5, false)], 406, unknown(5), ACK),
        row("ack of several", [settle(80, 5, true)], 406, unknown(5), ACK),
        row("ack of 0", [settle(80, 0, false)], 406, unknown(0), ACK),
        row("ack of the last tag there is", [settle(80, u64::MAX, false)], 406, unknown(u64::MAX), ACK),
        row("reject", [settle(90, 6, true)], 406, unknown(6), REJECT),
        row("nack", [settle(120, 7, false)], 406, unknown(7), NACK),
        row("ack twice", [get(full), settle(80, 1, false), settle(80, 1, false)], 406, unknown(1), ACK),
    ];
    // What the last row gets first comes before its close.
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn what_a_refused_channel_held_is_ready_again() {
    let bench = Bench::new();
    let queue = bench.name("q");
    let mut wire = bench.wire();
    wire.select_confirms(1);
    for _ in 0..3 {
        wire.publish(1, "", &queue, b"m");
        wire.confirmed(1);
        assert!(wire.get(1, &queue, false).is_some());
    }
    wire.ack(1, 2, false);
    wire.ack(1, 2, false);
    assert_eq!(wire.closed().code, 406);
    wire.close_ok(1);
    wire.open(1);
    assert_eq!(wire.drain(2, &queue).len(), 2);
}

#[test]
fn deletes_with_conditions_are_refused() {
    let mut bench = Bench::new();
    let rows = vec![
        row(
            "if-unused",
            [delete_queue(&bench.name("used"), true, false)],
            406,
            format!("{} in use", bench.queue("used")),
            QUEUE_DELETE,
        ),
        row(
            "if-empty",
            [delete_queue(&bench.name("full"), false, true)],
            406,
            format!("{} not empty", bench.queue("full")),
            QUEUE_DELETE,
        ),
        row(
            "exchange if-unused",
            [delete_exchange(&bench.name("bound"), true)],
            406,
            format!("{} in use", bench.exchange("bound")),
            EXCHANGE_DELETE,
        ),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn mixing_confirms_and_transactions_is_406() {
    let mut bench = Bench::new();
    let confirm = m(&Method::new(85, 10).bits(&[false]));
    let sent = [confirm, m(&Method::new(90, 10))];
    let rows = vec![row(
        "tx on a channel with confirms",
        sent,
        406,
        "cannot switch from confirm to tx mode",
        (90, 10),
    )];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn properties_that_are_not_true_or_not_readable_are_406() {
    let mut bench = Bench::new();
    let sent = |flag, text| [publish("", "nobody", &property(flag, text))];
    let user = "user_id property set to 'a' but authenticated user was 'guest'";
    let mut rows = vec![row("user-id", sent(USER_ID, "a"), 406, user, PUBLISH)];
    // Behind the colon each broker explains in its own words.
    if bench.broker.is_lepus() {
        let invalid = |text: &str| format!("invalid expiration '{text}': not a number of milliseconds");
        for text in ["x", "", "-1", "1.5"] {
            rows.push(row("expiration", sent(EXPIRATION, text), 406, invalid(text), PUBLISH));
        }
    }
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn misuse_of_direct_replies_is_406() {
    let mut bench = Bench::new();
    let asking = publish("", "nobody", &property(REPLY_TO_FLAG, REPLY_TO));
    let again = basic_consume(REPLY_TO, "u", true, false, &Arguments::new());
    let twice = [consume_with(REPLY_TO, true, false), m(&again)];
    let rows = vec![
        row(
            "with acks",
            [consume_with(REPLY_TO, false, false)],
            406,
            "reply consumer cannot acknowledge",
            CONSUME,
        ),
        row("twice", twice, 406, "reply consumer already set", CONSUME),
        row("asking without", [asking], 406, "fast reply consumer does not exist", PUBLISH),
    ];
    bench.play(rows, Bench::channel_closes);
}

#[test]
fn a_refused_publish_is_refused_behind_its_content_however_long() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    wire.publish(1, "none", "", &[b'x'; 300_000]);
    let close = wire.closed();
    assert_eq!((close.channel, close.code, close.ids), (1, 404, PUBLISH));
    wire.round_trip(2);
    wire.close_ok(1);
    wire.open(1);
    wire.round_trip(1);
}

#[test]
fn a_binding_that_its_exchange_cannot_read_is_406() {
    let mut bench = Bench::new();
    let arguments = Arguments::new().text("x-match", "some");
    let sent = [m(&queue_bind(&bench.name("q"), "amq.headers", "", &arguments))];
    let text = "Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x";
    bench.play(vec![row("x-match", sent, 406, text, QUEUE_BIND)], Bench::channel_closes);
}
