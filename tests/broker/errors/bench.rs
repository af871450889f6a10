//! The scene on which every row is played, what a row is, and what is asked of each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lepus_tests::wire::{
    basic_consume, exchange_declare, header_frame, method_frame, publish_frames, queue_bind, queue_declare,
};
use lepus_tests::{Arguments, Broker, Close, Event, Method, Properties, Wire};

/// Class and method id in a close frame.
pub type Ids = (u16, u16);

pub const CHANNEL_OPEN: Ids = (20, 10);
pub const CHANNEL_FLOW: Ids = (20, 20);
pub const EXCHANGE_DECLARE: Ids = (40, 10);
pub const EXCHANGE_DELETE: Ids = (40, 20);
pub const EXCHANGE_BIND: Ids = (40, 30);
pub const EXCHANGE_UNBIND: Ids = (40, 40);
pub const QUEUE_DECLARE: Ids = (50, 10);
pub const QUEUE_BIND: Ids = (50, 20);
pub const QUEUE_PURGE: Ids = (50, 30);
pub const QUEUE_DELETE: Ids = (50, 40);
pub const QUEUE_UNBIND: Ids = (50, 50);
pub const QOS: Ids = (60, 10);
pub const CONSUME: Ids = (60, 20);
pub const PUBLISH: Ids = (60, 40);
pub const GET: Ids = (60, 70);
pub const ACK: Ids = (60, 80);
pub const REJECT: Ids = (60, 90);
pub const RECOVER_ASYNC: Ids = (60, 100);
pub const RECOVER: Ids = (60, 110);
pub const NACK: Ids = (60, 120);

/// Flags of a declaration: durable and nothing else.
pub const DURABLE: [bool; 5] = [false, true, false, false, false];
/// Flags of a declaration: passive.
pub const PASSIVE: [bool; 5] = [true, false, false, false, false];
/// Flags of a queue's declaration: exclusive.
pub const EXCLUSIVE: [bool; 5] = [false, false, true, false, false];

/// One situation: what is sent on channel 1, and the close that answers it.
pub struct Row {
    pub situation: &'static str,
    /// Frames on channel 1.
    pub sent: Vec<u8>,
    pub code: u16,
    /// What follows the code's name and ` - `.
    pub text: String,
    pub ids: Ids,
}

/// A row whose frames are these methods and contents.
pub fn row(
    situation: &'static str,
    sent: impl IntoIterator<Item = Vec<u8>>,
    code: u16,
    text: impl Into<String>,
    ids: Ids,
) -> Row {
    Row { situation, sent: sent.into_iter().flatten().collect(), code, text: text.into(), ids }
}

/// The reply code's name, with which each text begins.
fn name_of(code: u16) -> &'static str {
    match code {
        403 => "ACCESS_REFUSED",
        404 => "NOT_FOUND",
        405 => "RESOURCE_LOCKED",
        406 => "PRECONDITION_FAILED",
        503 => "COMMAND_INVALID",
        504 => "CHANNEL_ERROR",
        530 => "NOT_ALLOWED",
        540 => "NOT_IMPLEMENTED",
        code => unreachable!("no row has {code}"),
    }
}

/// A broker with objects to offend, and a connection that keeps those that belong to somebody:
///
/// - queue `q`, durable and empty; `typed`, with a length of 10; `full`, with a message; `used`, with a consumer;
///   `alone`, with an exclusive consumer; `single` and `quorum`, with a single active consumer; `locked`, exclusive to the
///   scene's connection;
/// - exchange `x`, durable and direct; `bound`, with a binding to `q`; `inside`, internal; `alternate`, with an
///   alternate exchange.
pub struct Bench {
    pub broker: Broker,
    keeper: Wire,
    prefix: String,
}

impl Bench {
    pub fn new() -> Bench {
        let broker = Broker::start();
        let (keeper, prefix) = (broker.channel(), broker.name("errors"));
        let mut bench = Bench { broker, keeper, prefix };
        for name in ["q", "typed", "full", "used", "alone", "single", "quorum"] {
            let single = Arguments::new().bool("x-single-active-consumer", true);
            let arguments = match name {
                "typed" => Arguments::new().int("x-max-length", 10),
                "single" => single,
                "quorum" => single.text("x-queue-type", "quorum"),
                _ => Arguments::new(),
            };
            let queue = bench.name(name);
            bench.keeper.declare_as(1, &queue, DURABLE, &arguments);
        }
        for (name, kind, internal, arguments) in [
            ("x", "direct", false, Arguments::new()),
            ("bound", "fanout", false, Arguments::new()),
            ("inside", "fanout", true, Arguments::new()),
            ("alternate", "fanout", false, Arguments::new().text("alternate-exchange", "a")),
        ] {
            let (exchange, flags) = (bench.name(name), [false, true, false, internal, false]);
            bench.keeper.call(1, exchange_declare(&exchange, kind, flags, &arguments));
        }
        let names = ["locked", "full", "used", "alone", "q", "bound"].map(|name| bench.name(name));
        let [locked, full, used, alone, q, bound] = &names;
        bench.keeper.declare_as(1, locked, EXCLUSIVE, &Arguments::new());
        bench.keeper.select_confirms(1);
        bench.keeper.publish(1, "", full, b"m");
        bench.keeper.confirmed(1);
        bench.keeper.consume(1, used, "used", false);
        bench.keeper.call(1, basic_consume(alone, "alone", false, true, &Arguments::new()));
        bench.keeper.bind(1, q, bound, "", &Arguments::new());
        bench
    }

    /// What one of the scene's objects is really called.
    pub fn name(&self, object: &str) -> String {
        format!("{}.{object}", self.prefix)
    }

    /// `queue 'q' in vhost '/'`
    pub fn queue(&self, object: &str) -> String {
        format!("queue '{}' in vhost '/'", self.name(object))
    }

    /// `exchange 'x' in vhost '/'`
    pub fn exchange(&self, object: &str) -> String {
        format!("exchange '{}' in vhost '/'", self.name(object))
    }

    /// A connection with channels 1 and 2.
    pub fn wire(&self) -> Wire {
        let mut wire = self.broker.channel();
        wire.open(2);
        wire
    }

    /// Plays all rows, and says of each that does not hold what came instead.
    pub fn play(&mut self, rows: Vec<Row>, one: fn(&mut Bench, &Row)) {
        let mut failed = Vec::new();
        for row in &rows {
            if catch_unwind(AssertUnwindSafe(|| one(self, row))).is_err() {
                failed.push(row.situation);
            }
        }
        assert!(failed.is_empty(), "{} of {} rows: {failed:#?}", failed.len(), rows.len());
    }

    /// Channel 1 closes as the row says; the connection and its other channel live on, and so does the
    /// channel's number. Nobody else notices.
    pub fn channel_closes(&mut self, row: &Row) {
        let mut wire = self.wire();
        wire.send(&row.sent);
        assert_eq!(wire.closed(), expected(row, 1), "{}", row.situation);
        wire.round_trip(2);
        // Until close-ok, whatever comes on the channel is ignored.
        wire.send_method(1, &queue_declare("ignored", PASSIVE, &Arguments::new()));
        wire.publish(1, "none", "nobody", b"ignored");
        wire.close_ok(1);
        wire.open(1);
        wire.round_trip(1);
        wire.round_trip(2);
        self.keeper.round_trip(1);
        wire.close();
    }

    /// The connection closes as the row says, and its socket after close-ok. Nobody else notices.
    pub fn connection_closes(&mut self, row: &Row) {
        let mut wire = self.wire();
        wire.send(&row.sent);
        assert_eq!(wire.closed(), expected(row, 0), "{}", row.situation);
        // What a row's first methods were answered came before.
        let events = self.end_of(wire);
        assert!(!events.iter().any(|event| matches!(event, Event::Close(_))), "{events:?}");
    }

    /// Nothing more comes, and the socket closes when close-ok has come.
    pub fn ends(&mut self, wire: Wire) {
        assert_eq!(self.end_of(wire), []);
    }

    fn end_of(&mut self, mut wire: Wire) -> Vec<Event> {
        wire.send_method(0, &Method::new(10, 51));
        let events = wire.until_end();
        self.keeper.round_trip(1);
        events
    }

    /// Bytes after which the connection is closed with one of these codes.
    pub fn bytes_error(&self, bytes: &[u8], codes: &[u16]) {
        let mut wire = self.wire();
        wire.try_send(bytes);
        match wire.wait_for(|event| matches!(event, Event::Close(_) | Event::End)) {
            Event::Close(close) => {
                assert_eq!(close.channel, 0, "{close:?}");
                assert!(codes.contains(&close.code), "{close:?} and not {codes:?}");
            }
            // Code 0 stands for a socket closed without a word.
            _ => assert!(codes.contains(&0), "the socket was closed without a close method"),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.broker.is_lepus() && !std::thread::panicking() {
            for name in ["q", "typed", "full", "used", "alone", "single", "quorum", "made"] {
                let queue = self.name(name);
                self.keeper.delete_queue(1, &queue);
            }
            for name in ["x", "bound", "inside", "alternate"] {
                let exchange = self.name(name);
                self.keeper.call(1, Method::new(40, 20).short(0).shortstr(&exchange).bits(&[false, false]));
            }
        }
    }
}

fn expected(row: &Row, channel: u16) -> Close {
    let text = format!("{} - {}", name_of(row.code), row.text);
    Close { channel, code: row.code, text, ids: row.ids }
}

/// A method's frame on channel 1.
pub fn m(method: &Method) -> Vec<u8> {
    method_frame(1, method)
}

/// A whole publish on channel 1.
pub fn publish(exchange: &str, key: &str, properties: &Properties) -> Vec<u8> {
    publish_frames(131_072, 1, exchange, key, false, properties, b"m")
}

/// A publish without a body, with these flags: mandatory, immediate.
pub fn empty_publish(exchange: &str, key: &str, flags: &[bool]) -> Vec<u8> {
    let method = Method::new(60, 40).short(0).shortstr(exchange).shortstr(key).bits(flags);
    [m(&method), header_frame(1, 0, &Properties::none())].concat()
}

pub fn declare_queue(name: &str, flags: [bool; 5], arguments: &Arguments) -> Vec<u8> {
    m(&queue_declare(name, flags, arguments))
}

pub fn passive_queue(name: &str) -> Vec<u8> {
    declare_queue(name, PASSIVE, &Arguments::new())
}

pub fn bind(queue: &str, exchange: &str) -> Vec<u8> {
    m(&queue_bind(queue, exchange, "k", &Arguments::new()))
}

pub fn unbind(queue: &str, exchange: &str) -> Vec<u8> {
    let method = Method::new(50, 50).short(0).shortstr(queue).shortstr(exchange).shortstr("k");
    m(&method.table(&Arguments::new()))
}

pub fn purge(queue: &str) -> Vec<u8> {
    m(&Method::new(50, 30).short(0).shortstr(queue).bits(&[false]))
}

pub fn delete_queue(queue: &str, if_unused: bool, if_empty: bool) -> Vec<u8> {
    m(&Method::new(50, 40).short(0).shortstr(queue).bits(&[if_unused, if_empty, false]))
}

pub fn declare_exchange(name: &str, kind: &str, flags: [bool; 5], arguments: &Arguments) -> Vec<u8> {
    m(&exchange_declare(name, kind, flags, arguments))
}

pub fn delete_exchange(name: &str, if_unused: bool) -> Vec<u8> {
    m(&Method::new(40, 20).short(0).shortstr(name).bits(&[if_unused, false]))
}

/// exchange.bind (30) and exchange.unbind (40).
pub fn bind_exchange(method: u16, destination: &str, source: &str) -> Vec<u8> {
    let method = Method::new(40, method).short(0).shortstr(destination).shortstr(source).shortstr("k");
    m(&method.bits(&[false]).table(&Arguments::new()))
}

pub fn get(queue: &str) -> Vec<u8> {
    m(&Method::new(60, 70).short(0).shortstr(queue).bits(&[false]))
}

pub fn consume(queue: &str, tag: &str) -> Vec<u8> {
    m(&basic_consume(queue, tag, false, false, &Arguments::new()))
}

pub fn consume_with(queue: &str, no_ack: bool, exclusive: bool) -> Vec<u8> {
    m(&basic_consume(queue, "t", no_ack, exclusive, &Arguments::new()))
}

/// basic.ack (80), basic.reject (90) and basic.nack (120).
pub fn settle(method: u16, tag: u64, multiple: bool) -> Vec<u8> {
    m(&Method::new(60, method).longlong(tag).bits(&[multiple]))
}

/// Properties with nothing but this text property, whose flag is given.
pub fn property(flag: u16, text: &str) -> Properties {
    let length = u8::try_from(text.len()).expect("a short string");
    Properties([&flag.to_be_bytes()[..], &[length], text.as_bytes()].concat())
}
