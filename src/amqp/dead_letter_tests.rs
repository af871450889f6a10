//! Histories as RabbitMQ 4.3 writes them, read back with `amq-protocol`.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame};
use amq_protocol::protocol::BasicProperties;
use amq_protocol::types::AMQPValue;
use amq_protocol::types::parsing::parse_field_table;

use super::*;
use crate::amqp::properties::Properties;

/// Two flags; a priority of 3, mode 2, an expiration, headers `z`, `a` and a `x-death` of the client's.
fn published() -> Vec<u8> {
    let mut headers = amq_protocol::types::FieldTable::default();
    headers.insert("z".into(), AMQPValue::LongInt(1));
    headers.insert("a".into(), AMQPValue::Timestamp(5));
    headers.insert("x-death".into(), AMQPValue::LongString("mine".into()));
    let properties = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_priority(3)
        .with_correlation_id("c".into())
        .with_expiration("60000".into())
        .with_message_id("m".into());
    let header = AMQPContentHeader { class_id: 60, body_size: 0, properties };
    let frame = gen_frame(&AMQPFrame::Header(1, header))(WriteContext::from(Vec::new())).unwrap();
    let (frame, _) = frame.into_inner();
    // Behind the frame's head, class, weight and body size; before its end.
    frame[7 + 12..frame.len() - 1].to_vec()
}

fn view<'a>(properties: &'a [u8], key: &'a str) -> MessageView<'a> {
    MessageView { exchange: b"ex", routing_key: key.as_bytes(), properties, body: b"" }
}

fn die(properties: &[u8], key: &str, queue: &str, reason: Reason, unix_s: u64) -> DeadLetterProperties {
    rewrite(&view(properties, key), &Death { queue, reason }, unix_s)
}

/// The headers as text, in the order of the wire.
fn headers(properties: &[u8]) -> Vec<String> {
    let parts = Parts::of(properties).unwrap();
    let table = parts.headers.unwrap();
    let names = fields(table).map(|field| String::from_utf8(field.name.to_vec()).unwrap());
    let (rest, parsed) = parse_field_table(table).unwrap();
    assert!(rest.is_empty());
    let show = |name: String| {
        let value = plain(&parsed.inner()[name.as_str()]);
        format!("{name}={value}")
    };
    names.map(show).collect()
}

fn plain(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => format!("'{}'", String::from_utf8_lossy(text.as_bytes())),
        AMQPValue::LongLongInt(number) => format!("{number}l"),
        AMQPValue::Timestamp(time) => format!("{time}T"),
        AMQPValue::LongInt(number) => format!("{number}I"),
        AMQPValue::FieldArray(values) => {
            format!("[{}]", values.as_slice().iter().map(plain).collect::<Vec<_>>().join(" "))
        }
        AMQPValue::FieldTable(table) => {
            let fields = table.inner().iter().map(|(name, value)| format!("{name}={}", plain(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(" "))
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn a_first_death_is_written_and_the_time_to_live_taken_out() {
    let dead = die(&published(), "key", "q", Reason::Expired, 77);
    assert_eq!(
        headers(&dead.properties),
        [
            "a=5T",
            "x-death=[{count=1l exchange='ex' original-expiration='60000' queue='q' reason='expired' \
             routing-keys=['key'] time=77T}]",
            "x-first-death-exchange='ex'",
            "x-first-death-queue='q'",
            "x-first-death-reason='expired'",
            "x-last-death-exchange='ex'",
            "x-last-death-queue='q'",
            "x-last-death-reason='expired'",
            "z=1I",
        ]
    );
    assert!(dead.persistent);
    assert_eq!(dead.circled, ["q"]);
    let parts = Parts::of(&dead.properties).unwrap();
    assert_eq!((parts.expiration, parts.priority, parts.has_history), (None, 3, true));
    // What a client gets is well-formed, and has everything else.
    let mut sent = dead.properties.clone();
    sent[1] &= !(crate::amqp::properties::HISTORY as u8);
    assert!(Properties::parse(&sent).unwrap().persistent);
    for text in ["\u{a}text/plain", "\u{1}c", "\u{1}m"] {
        assert!(sent.windows(text.len()).any(|window| window == text.as_bytes()), "{text}");
    }
}

#[test]
fn the_fields_of_an_entry_stand_in_the_known_order() {
    let dead = die(&published(), "key", "q", Reason::Rejected, 77);
    let parts = Parts::of(&dead.properties).unwrap();
    let deaths = fields(parts.headers.unwrap()).find(|field| field.name == DEATHS).unwrap();
    let entries = read_history(&deaths.value);
    let names: Vec<&[u8]> = entries[0].0.iter().map(|field| field.name).collect();
    let known = ["original-expiration", "count", "reason", "queue", "time", "exchange", "routing-keys"];
    assert_eq!(names, known.map(str::as_bytes));
}

#[test]
fn later_deaths_come_first_and_repeated_ones_are_counted() {
    let first = die(&published(), "k", "a", Reason::Expired, 1);
    let second = die(&first.properties, "k2", "b", Reason::Rejected, 2);
    assert!(second.circled.is_empty(), "rejected: what comes now is not a circle by itself");
    let third = die(&second.properties, "k3", "a", Reason::Expired, 3);
    let shown = headers(&third.properties);
    assert_eq!(
        shown[1],
        "x-death=[{count=2l exchange='ex' original-expiration='60000' queue='a' reason='expired' \
         routing-keys=['k'] time=1T} {count=1l exchange='ex' queue='b' reason='rejected' routing-keys=['k2'] \
         time=2T}]"
    );
    assert_eq!(shown[2..8].iter().filter(|line| line.ends_with("='a'")).count(), 2, "first and last queue");
    assert_eq!(third.circled, ["a"]);
    let fourth = die(&third.properties, "k", "c", Reason::MaxLength, 4);
    assert_eq!(fourth.circled, ["c", "a"]);
}

#[test]
fn what_a_client_wrote_is_no_history() {
    let dead = die(&published(), "k", "a", Reason::Rejected, 1);
    // The client publishes what it got: without the broker's mark.
    let mut again = dead.properties.clone();
    again[1] &= !(crate::amqp::properties::HISTORY as u8);
    let dead = die(&again, "k", "b", Reason::Rejected, 2);
    let shown = headers(&dead.properties);
    assert!(shown[1].starts_with("x-death=[{count=1l exchange='ex' queue='b'") && !shown[1].contains("'a'"));
    assert!(shown.contains(&"x-first-death-queue='b'".to_owned()), "{shown:?}");
}

#[test]
fn a_message_without_properties_can_die_and_come_back() {
    let dead = die(&[0, 0], "k", "q", Reason::DeliveryLimit, 1);
    assert_eq!(headers(&dead.properties).len(), 7);
    assert!(!dead.persistent);
    let noted = note_returns(&[0, 0], Returns { all: 2, failures: 0 });
    assert_eq!(headers(&noted), ["x-acquired-count=2l"]);
    let noted = note_returns(&noted, Returns { all: 3, failures: 1 });
    assert_eq!(headers(&noted), ["x-acquired-count=3l", "x-delivery-count=1l"]);
}

#[test]
fn returns_are_noted_beside_what_is_there_and_keep_the_time_to_live() {
    let noted = note_returns(&published(), Returns { all: 2, failures: 1 });
    assert_eq!(
        headers(&noted),
        ["a=5T", "x-acquired-count=2l", "x-death='mine'", "x-delivery-count=1l", "z=1I"]
    );
    assert_eq!(Properties::parse(&noted).unwrap().expiration, Some(&b"60000"[..]));
}
